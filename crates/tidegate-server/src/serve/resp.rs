//! One RESP connection: bytes from the socket to a session and back.
//!
//! What was read is answered inside the poll that read it, with one write. Only what the client does not take at once, what waits for the
//! store's log, and what is decided elsewhere, is waited for. What is ready is said before that, and nothing is read meanwhile.

use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tidegate::store::durable;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::Over;
use super::bounds::LONG_TURN;
use super::thread_buffers::{Desk, at_the_desk};
use super::reply_writer::{part, say};
use super::busy_poll::Lookout;
use super::deadline_watch::{Interruption, Midst, Watch};
use super::worker::Worker;
use crate::metrics::Cut;
use crate::resp::reply::Writer;
use crate::resp::{Awaited, Pledge, Session, Tally, Then};

/// The same as in `Retry-After`.
fn too_many_failures(wait: Duration) -> String {
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    format!("too many failed attempts from this address; try again in {seconds} s")
}

/// A connection and what is kept of it between two polls.
struct Line {
    stream: TcpStream,
    address: IpAddr,
    session: Session,
    worker: Arc<Worker>,
    /// Half a frame, or what is behind something that is decided elsewhere.
    kept: Vec<u8>,
    /// What the client has not taken yet.
    unsaid: Vec<u8>,
    /// What waits for the store's log, and is to be said behind it.
    pledged: Option<Pledged>,
    /// When the frame began of which there is only a half.
    half_since: Option<Instant>,
    /// How many bytes were answered at once, the last time.
    turn: usize,
    /// Whether it is looked out for more behind that.
    lookout: Option<Lookout>,
    /// Something was answered since the server was told to end.
    has_had_its_say: bool,
}

/// Replies of which some wait for the log.
struct Pledged {
    text: Vec<u8>,
    pledges: Vec<Pledge>,
}

/// What to do after a poll.
enum Next {
    Read,
    /// What is unsaid is to be said first; there may be whole frames behind it.
    Say,
    Wait(Awaited),
    /// Say what is unsaid, then close.
    Close,
}

/// Replies a client until either side has enough.
pub(super) async fn serve(stream: TcpStream, address: IpAddr, worker: Arc<Worker>) -> Over {
    let session = Session::new(Arc::clone(&worker.house.door));
    let mut watch = Watch::new(&worker.house.ending, worker.beat.now(), worker.house.bounds.idle);
    let mut line = Line {
        stream,
        address,
        session,
        worker,
        kept: Vec::new(),
        unsaid: Vec::new(),
        pledged: None,
        half_since: None,
        turn: 0,
        lookout: None,
        has_had_its_say: false,
    };
    let over = line.converse(&mut watch).await;
    if line.has_had_its_say || over == Over::Said {
        part(line.stream).await;
    }
    line.session.cut().map_or(over, Over::Cut)
}

impl Line {
    /// Hears and answers until something ends it.
    async fn converse(&mut self, watch: &mut Watch) -> Over {
        loop {
            let next = match self.heard(watch).await {
                Ok(next) => next,
                Err(over) => return over,
            };
            if let Some(over) = self.follow(next).await {
                return over;
            }
            if self.has_had_its_say {
                return Over::Ending;
            }
            if self.turn >= LONG_TURN {
                // Whoever always has more to say must not keep the others waiting.
                tokio::task::yield_now().await;
            }
        }
    }

    /// Waits for something to read, and answers it.
    async fn heard(&mut self, watch: &mut Watch) -> Result<Next, Over> {
        let bounds = &self.worker.house.bounds;
        // However many pieces a frame comes in, it must be whole in time.
        let (midst, due) = match self.half_since {
            None => (Midst::Nothing, self.worker.beat.now() + bounds.idle),
            Some(since) => (Midst::Request, since + bounds.head()),
        };
        watch.due(due);
        poll_fn(|cx| {
            if let Poll::Ready(next) = at_the_desk(|desk| self.poll_read(cx, desk)) {
                return Poll::Ready(next);
            }
            let Poll::Ready(interruption) = watch.poll(cx, midst) else {
                self.look_out(cx);
                return Poll::Pending;
            };
            Poll::Ready(Err(match interruption {
                Interruption::Ending => Over::Ending,
                Interruption::Overdue if midst == Midst::Nothing => Over::Cut(Cut::Idle),
                Interruption::Overdue => Over::Cut(Cut::SlowRequest),
            }))
        })
        .await
    }

    /// While it is looked out for more, this is polled again once the worker has looked what there is.
    fn look_out(&mut self, cx: &mut Context<'_>) {
        let Some(lookout) = self.lookout else { return };
        if self.worker.vigil.lasts(lookout, self.worker.since(lookout.since)) {
            let _again = pin!(tokio::task::yield_now()).poll(cx);
        } else {
            self.lookout = None;
        }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, desk: &mut Desk) -> Poll<Result<Next, Over>> {
        let before = self.kept.len();
        desk.input[..before].copy_from_slice(&self.kept);
        let mut room = ReadBuf::new(&mut desk.input[before..]);
        let read = std::task::ready!(Pin::new(&mut self.stream).poll_read(cx, &mut room));
        let length = room.filled().len();
        Poll::Ready(match read {
            Ok(()) if length == 0 => Err(Over::Left),
            Ok(()) => Ok(self.answer(before + length, desk)),
            Err(_) => Err(Over::Left),
        })
    }

    /// Replies the first `length` bytes of the input.
    fn answer(&mut self, length: usize, desk: &mut Desk) -> Next {
        let (mut done, mut tally) = (0, Tally::default());
        self.turn = length;
        desk.room.swap(&mut self.session);
        let start = self.worker.stopwatch.raw();
        self.worker.vigil.begin(self.worker.stopwatch.delta_as_nanos(self.worker.vigil.ended(), start));
        loop {
            let fed = self.session.feed(&desk.input[done..length], &mut desk.output);
            done += fed.consumed;
            tally += fed.tally;
            let next = match fed.then {
                Then::Feed if self.has_failed_too_often(&mut desk.output) => Next::Close,
                Then::Feed => Next::Say,
                Then::Read => Next::Read,
                Then::Wait(awaited) => Next::Wait(awaited),
                Then::Close => Next::Close,
            };
            self.hold_back(fed.pledges, &mut desk.output);
            let is_said = self.say_now(&mut desk.output);
            if matches!(next, Next::Say) && is_said && self.pledged.is_none() {
                continue;
            }
            desk.room.swap(&mut self.session);
            self.keep(&desk.input[done..length], done);
            let end = self.worker.stopwatch.raw();
            self.worker.counts.resp_fed(&tally, self.worker.stopwatch.delta_as_nanos(start, end));
            let lookout = self.worker.vigil.end(tally.commands, end);
            self.lookout = lookout.filter(|_| is_said && self.pledged.is_none());
            return if is_said || !matches!(next, Next::Read) { next } else { Next::Say };
        }
    }

    /// Keeps everything from the first reply on that waits for the log.
    fn hold_back(&mut self, mut pledges: Vec<Pledge>, output: &mut Vec<u8>) {
        let Some(first) = pledges.first().map(|pledge| pledge.span.start) else { return };
        for Pledge { span, .. } in &mut pledges {
            *span = span.start - first..span.end - first;
        }
        // A buffer of its own, as long as it must be: the shared one is large, and stays where it is.
        self.pledged = Some(Pledged { text: output[first..].to_vec(), pledges });
        output.truncate(first);
    }

    /// Says what waits for the log, as far as that becomes durable; what never will is answered with errors.
    async fn redeem(&mut self) -> Result<(), Over> {
        let Some(Pledged { text, pledges }) = self.pledged.take() else { return Ok(()) };
        let (door, mut done) = (Arc::clone(&self.worker.house.door), 0);
        for pledge in pledges {
            self.unsaid.extend_from_slice(&text[done..pledge.span.start]);
            done = pledge.span.end;
            let mut durable = pin!(durable(door.store(), pledge.lsn));
            let has_something_to_say = !self.unsaid.is_empty();
            let polled = poll_fn(|cx| match durable.as_mut().poll(cx) {
                Poll::Pending if has_something_to_say => Poll::Ready(None),
                polled => polled.map(Some),
            });
            let durable = if let Some(durable) = polled.await {
                durable
            } else {
                self.say_rest().await?;
                durable.await
            };
            match durable {
                // Mostly all of it waits for one place, and is not copied again.
                Ok(()) if self.unsaid.is_empty() && pledge.span == (0..text.len()) => {
                    self.unsaid = text;
                    return Ok(());
                }
                Ok(()) => self.unsaid.extend_from_slice(&text[pledge.span]),
                Err(why) => pledge.broken(&why, self.session.protocol(), &mut self.unsaid),
            }
        }
        self.unsaid.extend_from_slice(&text[done..]);
        Ok(())
    }

    /// Keeps what is left when so much is done with.
    fn keep(&mut self, rest: &[u8], done: usize) {
        self.has_had_its_say |= done > 0 && self.worker.house.ending.is_told();
        if rest.is_empty() {
            // A connection that has nothing half said keeps nothing.
            self.kept = Vec::new();
            self.half_since = None;
        } else {
            self.kept.clear();
            self.kept.extend_from_slice(rest);
            let is_another = done > 0 || self.half_since.is_none();
            self.half_since = if is_another { Some(Instant::now()) } else { self.half_since };
        }
    }

    fn has_failed_too_often(&mut self, output: &mut Vec<u8>) -> bool {
        let failures = self.session.take_failures();
        let attempts = &self.worker.house.attempts;
        let wait = (0..failures).find_map(|_| attempts.failed(self.address));
        if let Some(wait) = wait {
            Writer::new(output, self.session.protocol()).error("ERR", too_many_failures(wait));
        }
        wait.is_some()
    }

    /// Writes as much as goes now; whether that was everything.
    fn say_now(&mut self, output: &mut Vec<u8>) -> bool {
        if output.is_empty() && self.unsaid.is_empty() {
            return true;
        }
        let said = if self.unsaid.is_empty() { self.stream.try_write(output) } else { Ok(0) };
        match said {
            Ok(length) => self.unsaid.extend_from_slice(&output[length..]),
            // Whatever else is wrong is found by whoever waits to write the rest.
            Err(_) => self.unsaid.extend_from_slice(output),
        }
        output.clear();
        self.unsaid.is_empty()
    }

    /// Does what a poll could not. `Some` if the connection is over.
    async fn follow(&mut self, mut next: Next) -> Option<Over> {
        loop {
            if let Err(over) = self.redeem().await {
                return Some(over);
            }
            if let Err(over) = self.say_rest().await {
                return Some(over);
            }
            match next {
                Next::Read => return None,
                Next::Close => return Some(Over::Said),
                Next::Say => {}
                Next::Wait(awaited) => {
                    let answered = awaited.answered().await;
                    self.session.resume(answered, &mut self.unsaid);
                }
            }
            next = at_the_desk(|desk| {
                let length = self.kept.len();
                desk.input[..length].copy_from_slice(&self.kept);
                self.answer(length, desk)
            });
        }
    }

    /// Waits until the client has taken everything.
    async fn say_rest(&mut self) -> Result<(), Over> {
        if self.unsaid.is_empty() {
            return Ok(());
        }
        let unsaid = std::mem::take(&mut self.unsaid);
        say(&self.stream, &unsaid, self.worker.house.bounds.write).await
    }
}
