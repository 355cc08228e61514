//! The lane: plain requests, one after the other, each answered as soon as it is whole.
//!
//! What a client asks for at once is answered with one write, unless that becomes too much ([`MOST_UNSAID`]) or one of its requests has
//! to wait in line: then what was answered before is said first.

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use ::http::header::AUTHORIZATION;
use ::http::{Method, Request};
use bytes::Bytes;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::http1_request::{self, Heard, Missing, Plain, RemovalMode, Seen};
use crate::http::{Answered, BID_PATH, Counter, RouteName};
use crate::metrics::{Cut, DoorName};
use crate::serve::Over;
use crate::serve::bounds::{MOST_UNSAID, READ_AHEAD};
use crate::serve::thread_buffers::{Desk, at_the_desk};
use crate::serve::reply_writer::{part, say};
use crate::serve::deadline_watch::{Interruption, Midst, Watch};
use crate::serve::worker::Worker;

/// How the lane was left.
pub(super) enum Exit {
    Over(Over),
    /// The connection needs somebody who knows all of HTTP; these bytes were read and not answered.
    General(TcpStream, Vec<u8>),
}

struct Line {
    stream: TcpStream,
    address: IpAddr,
    worker: Arc<Worker>,
    /// What was read and is not answered yet.
    kept: Vec<u8>,
    /// What the client has not taken yet.
    unsaid: Vec<u8>,
    /// If what is kept is the beginning of a request: what is missing, and when it began.
    half: Option<(Missing, Instant)>,
    /// The last answer was given: the server is about to end.
    has_had_its_say: bool,
}

/// What was read.
#[expect(clippy::large_enum_variant, reason = "it is taken apart where it was made")]
enum Next {
    Request(Request<Bytes>),
    /// It was answered; the client has not taken all of it.
    Said,
    General,
}

/// Replies plain requests as long as there is nothing else.
pub(super) async fn serve(stream: TcpStream, address: IpAddr, worker: &Arc<Worker>) -> Exit {
    let house = &worker.house;
    let mut watch = Watch::new(&house.ending, worker.beat.now(), house.bounds.idle);
    let worker = Arc::clone(worker);
    let mut line = Line {
        stream,
        address,
        worker,
        kept: Vec::new(),
        unsaid: Vec::new(),
        half: None,
        has_had_its_say: false,
    };
    loop {
        let over = match line.heard(&mut watch).await {
            Ok(Next::Request(request)) => line.answer(request).await.err(),
            Ok(Next::Said) => None,
            Ok(Next::General) => match line.say_rest().await {
                Ok(()) => return Exit::General(line.stream, line.kept),
                Err(over) => Some(over),
            },
            Err(over) => Some(over),
        };
        if let Some(over) = over {
            if line.has_had_its_say {
                part(line.stream).await;
            }
            return Exit::Over(over);
        }
    }
}

impl Line {
    /// The next request: of what is kept, or of what is still to be read.
    async fn heard(&mut self, watch: &mut Watch) -> Result<Next, Over> {
        if self.has_had_its_say {
            self.say_rest().await?;
            return Err(Over::Ending);
        }
        if !self.kept.is_empty() {
            // Whoever asks for much at once must not keep the others waiting, nor make the server remember all the answers.
            tokio::task::consume_budget().await;
            if self.unsaid.len() >= MOST_UNSAID {
                self.say_rest().await?;
            }
            match http1_request::read(&self.kept) {
                Heard::Whole(request, length) => {
                    self.kept.drain(..length);
                    return Ok(Next::Request(request));
                }
                Heard::Other => return Ok(Next::General),
                Heard::Half(missing) => self.half = Some((missing, Instant::now())),
            }
        }
        // Whoever has asked for several things at once is answered at once; only now there is time to wait.
        self.say_rest().await?;
        self.schedule(watch);
        std::future::poll_fn(|cx| {
            while let Poll::Ready(read) = at_the_desk(|desk| self.poll_read(cx, desk)) {
                if let Some(next) = read? {
                    return Poll::Ready(Ok(next));
                }
                self.schedule(watch);
            }
            let midst = if self.half.is_some() { Midst::Request } else { Midst::Nothing };
            let interruption = ready!(watch.poll(cx, midst));
            Poll::Ready(Err(match interruption {
                Interruption::Ending => Over::Ending,
                Interruption::Overdue if midst == Midst::Request => Over::Cut(Cut::SlowRequest),
                Interruption::Overdue => Over::Cut(Cut::Idle),
            }))
        })
        .await
    }

    /// When it will be too late for the next request. However many pieces it comes in, it must be whole in time.
    fn schedule(&self, watch: &mut Watch) {
        let bounds = &self.worker.house.bounds;
        watch.due(match self.half {
            None => self.worker.beat.now() + bounds.idle,
            Some((Missing::Head, began)) => began + bounds.head(),
            Some((Missing::Body, began)) => began + bounds.request,
        });
    }

    /// Reads more. A request if it is whole by then.
    fn poll_read(&mut self, cx: &mut Context<'_>, desk: &mut Desk) -> Poll<Result<Option<Next>, Over>> {
        let before = self.kept.len();
        desk.input[..before].copy_from_slice(&self.kept);
        let mut room = ReadBuf::new(&mut desk.input[before..]);
        let read = ready!(Pin::new(&mut self.stream).poll_read(cx, &mut room));
        let length = before + room.filled().len();
        if read.is_err() || length == before {
            return Poll::Ready(Err(Over::Left));
        }
        let heard = &desk.input[..length];
        let mut fields = http1_request::no_fields();
        let heard_first = match http1_request::see(heard, &mut fields) {
            Seen::Whole(plain) if plain.length == length && self.is_decided(&plain, &mut desk.counter) => {
                self.half = None;
                self.keep(&[]);
                http1_request::write_decision(&desk.counter.body, &self.worker.beat.date(), &mut desk.output);
                self.say_now(&desk.output);
                return Poll::Ready(Ok((!self.unsaid.is_empty()).then_some(Next::Said)));
            }
            Seen::Whole(plain) => plain.heard(),
            Seen::Half(missing) => Heard::Half(missing),
            Seen::Other => Heard::Other,
        };
        let (next, rest) = match heard_first {
            Heard::Whole(request, length) => (Some(Next::Request(request)), &heard[length..]),
            Heard::Half(missing) => {
                let began = self.half.map_or_else(Instant::now, |(_, began)| began);
                self.half = Some((missing, began));
                self.keep(heard);
                return Poll::Ready(Ok(None));
            }
            Heard::Other => (Some(Next::General), heard),
        };
        self.half = None;
        self.keep(rest);
        Poll::Ready(Ok(next))
    }

    /// Decides the only request that was read, if it is one that can be decided in short, and counts it.
    fn is_decided(&self, plain: &Plain<'_, '_>, counter: &mut Counter) -> bool {
        let house = &self.worker.house;
        if !plain.is("POST", BID_PATH) || house.ending.is_told() {
            return false;
        }
        let start = self.worker.stopwatch.raw();
        let Some(pass) = house.pass(plain.field(&AUTHORIZATION)) else { return false };
        let Some(is_granted) = house.api.bid(plain.body, &pass, counter) else { return false };
        self.worker.counts.http_request(RouteName::Acquire, 200, self.worker.since(start));
        self.worker.counts.decided(DoorName::Http, u64::from(is_granted), u64::from(!is_granted));
        true
    }

    fn keep(&mut self, rest: &[u8]) {
        if rest.is_empty() {
            // A connection on which nothing is half said keeps nothing.
            self.kept = Vec::new();
        } else {
            self.kept.clear();
            self.kept.extend_from_slice(rest);
        }
    }

    async fn answer(&mut self, request: Request<Bytes>) -> Result<(), Over> {
        let is_head = request.method() == Method::HEAD;
        let start = self.worker.stopwatch.raw();
        let house = Arc::clone(&self.worker.house);
        let mut answering = std::pin::pin!(house.answered(request, self.address));
        let at_once = std::future::poll_fn(|cx| Poll::Ready(answering.as_mut().poll(cx))).await;
        let answered = match at_once {
            Poll::Ready(answered) => answered,
            Poll::Pending => {
                self.say_rest().await?;
                self.unless_they_leave(answering).await?
            }
        };
        self.worker.counts.http_answered(&answered, self.worker.since(start));
        let response = answered.response;
        self.has_had_its_say = house.ending.is_told() && !matches!(http1_request::read(&self.kept), Heard::Whole(..));
        let parting = if self.has_had_its_say { RemovalMode::Close } else { RemovalMode::KeepAlive };
        let date = self.worker.beat.date();
        at_the_desk(|desk| {
            http1_request::write(&response, is_head, parting, &date, &mut desk.output);
            self.say_now(&desk.output);
        });
        Ok(())
    }

    /// Waits for an answer. A client that leaves meanwhile is not kept in anybody's line; so what it says is read, as far as
    /// [`READ_AHEAD`].
    async fn unless_they_leave(
        &mut self,
        mut call: Pin<&mut impl Future<Output = Answered>>,
    ) -> Result<Answered, Over> {
        std::future::poll_fn(|cx| {
            if let Poll::Ready(answered) = call.as_mut().poll(cx) {
                return Poll::Ready(Ok(answered));
            }
            while self.kept.len() < READ_AHEAD {
                let mut ahead = [0; 1024];
                let mut room = ReadBuf::new(&mut ahead);
                match ready!(Pin::new(&mut self.stream).poll_read(cx, &mut room)) {
                    Ok(()) if !room.filled().is_empty() => self.kept.extend_from_slice(room.filled()),
                    _ => return Poll::Ready(Err(Over::Left)),
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Writes as much as goes now, unless there is more to say first.
    fn say_now(&mut self, output: &[u8]) {
        let at_once = self.unsaid.is_empty() && self.kept.is_empty();
        let said = if at_once { self.stream.try_write(output).unwrap_or(0) } else { 0 };
        self.unsaid.extend_from_slice(&output[said..]);
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
