//! An exchange: a request goes to an endpoint while its response comes back.
//!
//! ```text
//!   client ──▶ input ──▶ body ──▶ up ────▶ endpoint          both ways at once; neither waits for the other,
//!   client ◀── down ◀── body ◀── reply ◀── endpoint          and neither reads what the other end has not taken
//! ```

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use tidegate_net::Shutdown;
use tokio::net::TcpStream;

use crate::answers::Answer;
use crate::buffers::{Buffer, USUAL, Unsaid};
use crate::door::Stream;
use crate::numbers::Failure;
use crate::story::Told;
use crate::wire::framing::{Body, Frames, Framing};
use crate::wire::head::room;
use crate::wire::reply::{Reply, To};
use crate::wire::{Flaw, LARGEST_HEAD};
use crate::worker::Over;

/// What a client is told that waits for a word before it sends a body.
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// How much is said to a client at once.
const MOST_SAID: usize = 2 * USUAL;

/// How an exchange ends well.
pub(super) enum End {
    /// The response is whole.
    Whole {
        /// The connection to the endpoint, if it can be used again.
        upstream: Option<TcpStream>,
        /// Whether the client's can.
        goes_on: bool,
    },
    /// From here on they speak something else.
    Upgraded {
        upstream: TcpStream,
        /// What the endpoint has said already.
        arrived: Buffer,
    },
}

/// How an exchange ends otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Broken {
    /// The client has left.
    Left,
    /// The client's body makes no sense, or is too large.
    Body(Flaw),
    /// The client does not send its body.
    SlowBody,
    /// The client does not take the response.
    SlowReader,
    /// The endpoint has closed the connection. `untouched`: before it can have heard anything.
    Closed { untouched: bool, has_body: bool, is_silent: bool },
    /// What the endpoint says makes no sense.
    Nonsense(Flaw),
    /// The endpoint takes too long.
    Late,
}

impl Broken {
    /// What the client is told, if it has heard nothing yet.
    pub(super) const fn answer(self) -> Option<Answer> {
        match self {
            Broken::Left | Broken::SlowReader => None,
            Broken::Body(flaw) => Some(Answer::Flawed(flaw)),
            Broken::SlowBody => Some(Answer::Slow),
            Broken::Closed { .. } | Broken::Nonsense(_) => Some(Answer::Failed),
            Broken::Late => Some(Answer::Late),
        }
    }

    /// Whether the request may be made again: nobody has heard of it, or it does no harm to make it twice.
    pub(super) const fn is_repeatable(self, is_harmless: bool) -> bool {
        match self {
            Broken::Closed { untouched, has_body, is_silent } => {
                is_silent && !has_body && (untouched || is_harmless)
            }
            _ => false,
        }
    }

    /// What the endpoint is to blame for.
    pub(super) const fn trouble(self) -> Option<Failure> {
        match self {
            Broken::Closed { .. } => Some(Failure::Closed),
            Broken::Nonsense(_) => Some(Failure::Protocol),
            Broken::Late => Some(Failure::Timeout),
            _ => None,
        }
    }

    /// How the client's connection is over.
    pub(super) const fn over(self) -> Over {
        match self {
            Broken::Left => Over::Left,
            Broken::Body(Flaw::LargeBody) => Over::TooLarge,
            Broken::Body(_) => Over::Protocol,
            Broken::SlowBody => Over::SlowBody,
            Broken::SlowReader => Over::SlowReader,
            Broken::Closed { .. } | Broken::Nonsense(_) | Broken::Late => Over::Upstream,
        }
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Broken::Left => f.write_str("the client has left"),
            Broken::Body(flaw) | Broken::Nonsense(flaw) => flaw.fmt(f),
            Broken::SlowBody => f.write_str("the body did not come in time"),
            Broken::SlowReader => f.write_str("the client does not take the response"),
            Broken::Closed { .. } => f.write_str("the connection was closed in the middle"),
            Broken::Late => f.write_str("it took too long"),
        }
    }
}

/// How far the response is.
enum Stage {
    Head,
    Body { body: Body, frames: Frames, is_finished: bool },
    Upgraded,
}

/// How far the request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Upload {
    Going,
    Done,
    /// The endpoint takes no more of it, and may say why.
    Refused,
}

#[expect(clippy::struct_excessive_bools, reason = "each is about another party")]
pub(super) struct Exchange<'e, S> {
    client: &'e mut S,
    input: &'e mut Buffer,
    upstream: Option<TcpStream>,
    reply: Buffer,
    /// Whether the gateway is about to end: then the client's connection does not go on.
    ending: &'e Shutdown,
    head: &'e mut Unsaid,
    up: Unsaid,
    down: &'e mut Unsaid,
    body: Body,
    frames: Frames,
    /// Whether the end of the request's body was written.
    is_finished: bool,
    has_body: bool,
    upload: Upload,
    stage: Stage,
    to_head: bool,
    /// Whether the client wants to go over to another protocol.
    upgrades: bool,
    to: To,
    /// Whether both connections can go on.
    client_goes_on: bool,
    upstream_goes_on: bool,
    has_moved: bool,
    told: Told,
}

impl<'e, S: Stream> Exchange<'e, S> {
    pub(super) fn new(
        client: &'e mut S,
        input: &'e mut Buffer,
        upstream: TcpStream,
        head: &'e mut Unsaid,
        down: &'e mut Unsaid,
        body: Body,
        ending: &'e Shutdown,
    ) -> Exchange<'e, S> {
        Exchange {
            client,
            input,
            upstream: Some(upstream),
            reply: Buffer::default(),
            ending,
            head,
            up: Unsaid::default(),
            down,
            body,
            frames: Frames::Plain,
            is_finished: false,
            has_body: false,
            upload: Upload::Going,
            stage: Stage::Head,
            to_head: false,
            upgrades: false,
            to: To { minor: 1, keeps_alive: true },
            client_goes_on: true,
            upstream_goes_on: false,
            has_moved: false,
            told: Told::default(),
        }
    }

    /// What is known of the request.
    pub(super) fn prepare(&mut self, framing: Framing, to_head: bool, minor: u8, keeps_alive: bool) {
        self.has_body = !matches!(framing, Framing::None | Framing::Length(0));
        if self.has_body {
            self.up = Unsaid::new();
        }
        self.frames = if framing == Framing::Chunked { Frames::Chunks } else { Frames::Plain };
        (self.to_head, self.to) = (to_head, To { minor, keeps_alive });
    }

    /// Whether the client has asked for another protocol; nobody else is given one.
    pub(super) fn may_upgrade(&mut self, upgrades: bool) {
        self.upgrades = upgrades;
    }

    /// Asks the client for the body it waits to send.
    pub(super) fn invite(&mut self) {
        if self.has_body && self.input.is_empty() {
            self.down.bytes.extend_from_slice(CONTINUE);
        }
    }

    /// Whether anything has moved since this was asked last.
    pub(super) fn has_moved(&mut self) -> bool {
        std::mem::take(&mut self.has_moved)
    }

    /// Whether only the endpoint has to do something, and has said nothing yet.
    pub(super) fn waits_for_response(&self) -> bool {
        matches!(self.stage, Stage::Head) && self.upload != Upload::Going
    }

    /// What the client was told so far.
    pub(super) const fn told(&self) -> Told {
        self.told
    }

    /// Whom to blame if nothing moves any more.
    pub(super) fn overdue(&self) -> Broken {
        match self.stage {
            _ if !self.down.is_empty() => Broken::SlowReader,
            Stage::Head if self.upload == Upload::Going && self.head.is_empty() && self.up.is_empty() => {
                Broken::SlowBody
            }
            _ => Broken::Late,
        }
    }

    /// Goes on as far as possible.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<End, Broken>> {
        if self.upload == Upload::Going {
            self.poll_upload(cx)?;
        }
        match self.poll_download(cx)? {
            Poll::Ready(()) => Poll::Ready(Ok(self.end())),
            Poll::Pending => {
                if self.upload == Upload::Done {
                    self.poll_client(cx)?;
                }
                Poll::Pending
            }
        }
    }

    fn end(&mut self) -> End {
        let is_uploaded = self.upload == Upload::Done;
        match (self.upstream.take(), &self.stage) {
            (Some(upstream), Stage::Upgraded) => {
                End::Upgraded { upstream, arrived: std::mem::take(&mut self.reply) }
            }
            (upstream, _) => End::Whole {
                // Whoever says more than was asked for is not asked again.
                upstream: upstream.filter(|_| is_uploaded && self.upstream_goes_on && self.reply.is_empty()),
                goes_on: is_uploaded && self.client_goes_on,
            },
        }
    }

    /// Takes as much of the request to the endpoint as it takes.
    fn poll_upload(&mut self, cx: &mut Context<'_>) -> Result<(), Broken> {
        loop {
            if self.poll_say_upload(cx).is_pending() || self.upload != Upload::Going {
                return Ok(());
            }
            if self.body.is_done() {
                if std::mem::replace(&mut self.is_finished, true) || !self.has_body {
                    self.upload = Upload::Done;
                    return Ok(());
                }
                self.frames.finish(self.body.trailers(), &mut self.up.bytes);
                continue;
            }
            if self.take_piece()? {
                // Small chunks are said together.
                while self.up.bytes.len() < MOST_SAID && self.take_piece()? {}
                continue;
            }
            if self.input.is_full() {
                self.input.grow(2 * USUAL);
            }
            match self.input.poll_fill(Pin::new(&mut *self.client), cx) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(0) | Err(_)) => return Err(Broken::Left),
                Poll::Ready(Ok(_)) => self.has_moved = true,
            }
        }
    }

    /// Says to the endpoint what is to be said: the head, then pieces of the body. Ready if there is nothing left.
    fn poll_say_upload(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(upstream) = self.upstream.as_mut() else { return Poll::Ready(()) };
        let mut upstream = Pin::new(upstream);
        for (unsaid, stays) in [(&mut *self.head, true), (&mut self.up, false)] {
            if unsaid.is_empty() {
                continue;
            }
            let before = unsaid.left();
            match unsaid.poll_say(upstream.as_mut(), cx, stays) {
                Poll::Pending => {
                    self.has_moved |= unsaid.left() < before;
                    return Poll::Pending;
                }
                Poll::Ready(Ok(())) => self.has_moved = true,
                Poll::Ready(Err(_)) => self.upload = Upload::Refused,
            }
        }
        Poll::Ready(())
    }

    /// Takes a piece of the request's body from what has arrived; whether there was one.
    fn take_piece(&mut self) -> Result<bool, Broken> {
        let piece = self.body.next(self.input.filled()).map_err(Broken::Body)?;
        let used = piece.used;
        self.told.received += piece.data.len() as u64;
        self.frames.write(piece.data, &mut self.up.bytes);
        self.input.settle(used);
        Ok(used > 0)
    }

    /// Takes as much of the response to the client as there is, and as it takes. Ready when all of it is said.
    fn poll_download(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        loop {
            let is_over = self.understand()?;
            // More may have arrived than is said at once.
            let has_more = self.down.bytes.len() >= MOST_SAID;
            // What is there is said before more is read, so that neither end is ahead of the other; and all of it at once.
            if !self.down.is_empty() {
                let before = self.down.left();
                match self.down.poll_say(Pin::new(&mut *self.client), cx, false) {
                    Poll::Pending => {
                        // A client that takes a little is slow, and not gone.
                        self.has_moved |= self.down.left() < before;
                        return Poll::Pending;
                    }
                    Poll::Ready(Ok(())) => self.has_moved = true,
                    Poll::Ready(Err(_)) => return Poll::Ready(Err(Broken::Left)),
                }
            }
            if is_over {
                return Pin::new(&mut *self.client).poll_flush(cx).map_err(|_| Broken::Left);
            }
            if has_more {
                continue;
            }
            let Some(upstream) = self.upstream.as_mut() else { return Poll::Ready(Err(self.closed())) };
            let read = match self.reply.poll_fill(Pin::new(upstream), cx) {
                Poll::Pending => {
                    // Buffered layers hold back what is not flushed.
                    let _on_its_way = Pin::new(&mut *self.client).poll_flush(cx);
                    return Poll::Pending;
                }
                Poll::Ready(read) => read,
            };
            match (read, &mut self.stage) {
                (Ok(length), _) if length > 0 => self.has_moved = true,
                (Ok(_), Stage::Body { body, frames, is_finished }) if body.ends_with_connection() => {
                    frames.finish(&[], &mut self.down.bytes);
                    *is_finished = true;
                    self.upstream_goes_on = false;
                }
                _ => return Poll::Ready(Err(self.closed())),
            }
        }
    }

    /// Makes of what the endpoint has said what can be made of it; whether that is all.
    fn understand(&mut self) -> Result<bool, Broken> {
        loop {
            match &mut self.stage {
                Stage::Upgraded | Stage::Body { is_finished: true, .. } => return Ok(true),
                Stage::Head => {
                    if self.reply.is_empty() || !self.read_head()? {
                        return Ok(false);
                    }
                }
                Stage::Body { body, frames, is_finished } => {
                    while !body.is_done() && self.down.bytes.len() < MOST_SAID {
                        let piece = body.next(self.reply.filled()).map_err(Broken::Nonsense)?;
                        let used = piece.used;
                        self.told.sent += piece.data.len() as u64;
                        frames.write(piece.data, &mut self.down.bytes);
                        self.reply.settle(used);
                        if used == 0 {
                            break;
                        }
                    }
                    if !body.is_done() {
                        return Ok(false);
                    }
                    frames.finish(body.trailers(), &mut self.down.bytes);
                    *is_finished = true;
                }
            }
        }
    }

    /// Reads the head of the response; whether it was all there.
    fn read_head(&mut self) -> Result<bool, Broken> {
        let mut room = room();
        let reply = Reply::read(self.reply.filled(), &mut room, self.to_head).map_err(Broken::Nonsense)?;
        let Some(reply) = reply else {
            if self.reply.is_full() {
                self.reply.grow(LARGEST_HEAD);
            }
            return Ok(false);
        };
        let length = reply.length;
        if matches!(reply.status, 100..=199) && reply.status != 101 {
            // What comes before the response is between the gateway and the endpoint.
            self.reply.settle(length);
            return Ok(!self.reply.is_empty());
        }
        if reply.status == 101 && !self.upgrades {
            return Err(Broken::Nonsense(Flaw::Bad("it goes over to a protocol that nobody asked for")));
        }
        if self.down.bytes.capacity() == 0 {
            *self.down = Unsaid::new();
        }
        let to = To { keeps_alive: self.to.keeps_alive && !self.ending.is_triggered(), ..self.to };
        let (frames, goes_on) = reply.compose(to, &mut self.down.bytes);
        self.told.status = reply.status;
        self.client_goes_on = goes_on;
        self.upstream_goes_on = reply.keeps_alive;
        self.stage = if reply.status == 101 {
            Stage::Upgraded
        } else {
            let body = Body::new(reply.framing, u64::MAX).map_err(Broken::Nonsense)?;
            Stage::Body { body, frames, is_finished: false }
        };
        self.reply.settle(length);
        Ok(true)
    }

    /// Looks whether the client is still there.
    fn poll_client(&mut self, cx: &mut Context<'_>) -> Result<(), Broken> {
        while !self.input.is_full() {
            match self.input.poll_fill(Pin::new(&mut *self.client), cx) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(0) | Err(_)) => return Err(Broken::Left),
                Poll::Ready(Ok(_)) => {}
            }
        }
        Ok(())
    }

    fn closed(&self) -> Broken {
        Broken::Closed {
            untouched: self.head.is_untouched(),
            has_body: self.told.received > 0,
            is_silent: matches!(self.stage, Stage::Head) && self.reply.is_empty(),
        }
    }
}
