//! HTTP/1: requests of one connection, one after the other, each taken to an endpoint and its response back.
//!
//! ```text
//!   client ──▶ input ──▶ Head ──▶ way, limits ──▶ Errand ──▶ Exchange ──▶ unsaid ──▶ client
//!                                      │                        ▲ │
//!                                      └──▶ Answer ──▶ unsaid   │ ▼
//!                                                             endpoint
//! ```
//!
//! All of it is one task: whoever wakes it, the client, the endpoint or the clock, it goes on where it can. A connection on which nothing is
//! said has no buffers.

mod exchange;
mod tunnel;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use crate::buffers::{Buffer, USUAL, Unsaid};
use crate::client_connection::Guest;
use crate::config_snapshot::{Site, Way};
use crate::deadline::{Interruption, Midst, Pace};
use crate::endpoints::Endpoint;
use crate::handshake::Stream;
use crate::local_reply::Answer;
use crate::metrics::Failure;
use crate::request_log::{Asked, Story, Told};
use crate::upstream::{connect, unconnected};
use crate::wire::LARGEST_HEAD;
use crate::wire::body::{Body, Framing};
use crate::wire::request_head::{Head, room};
use crate::worker::Over;
use exchange::{Broken, End, Exchange};

/// How much of a body that nobody wants is read, so that the connection can go on.
const MOST_DISCARDED: u64 = 64 * 1024;
/// How many endpoints, or connections to them, are tried for one request.
const MOST_TRIES: u32 = 3;
/// How long, when the gateway ends, it is waited for a request that may be on its way.
pub(crate) const LAST_CHANCE: Duration = Duration::from_millis(500);
/// How long somebody who is sent away may take to read why.
pub(crate) const FAREWELL: Duration = Duration::from_secs(1);

/// What is to be done for a client.
#[expect(clippy::struct_excessive_bools, reason = "each is another word of the request")]
struct Errand {
    site: Arc<Site>,
    way: Arc<Way>,
    framing: Framing,
    to_head: bool,
    is_repeatable: bool,
    keeps_alive: bool,
    minor: u8,
    upgrades: bool,
    expects_continue: bool,
}

/// What was made of the bytes that have arrived.
enum Understood {
    /// There must be more.
    More,
    Errand(Errand),
    /// The gateway answers by itself.
    Answer {
        answer: Answer,
        to_head: bool,
        framing: Framing,
        goes_on: bool,
    },
}

/// A connection.
struct Relay<S> {
    stream: S,
    input: Buffer,
    guest: Guest,
    pace: Pace,
    /// What the client has not been told yet.
    unsaid: Unsaid,
    /// The head of the request that is under way, for its endpoint.
    outgoing: Unsaid,
    /// Whether what is in `input` was found to be less than a head.
    is_half: bool,
    /// How much of it that was.
    looked_at: usize,
    /// That of the request under way, until it is told.
    story: Option<Story>,
}

/// Whoever is let go of in the middle of a request leaves a line all the same.
impl<S> Drop for Relay<S> {
    fn drop(&mut self) {
        if let Some(story) = self.story.take() {
            story.abandoned(&self.guest.worker, || Asked::of_composed(&self.outgoing.bytes));
        }
    }
}

/// Serves a connection of which this has arrived already.
pub(crate) async fn serve<S: Stream>(stream: S, arrived: Buffer, guest: Guest) -> Over {
    let idle = guest.worker.site().spec.server.idle_timeout;
    let pace = Pace::new(&guest.worker.house.ending, Instant::now(), idle);
    let (unsaid, outgoing) = (Unsaid::default(), Unsaid::default());
    let (input, is_half, looked_at, story) = (arrived, false, 0, None);
    let mut relay = Relay { stream, input, guest, pace, unsaid, outgoing, is_half, looked_at, story };
    loop {
        let done = match relay.next().await {
            Ok(errand) => relay.run(errand).await,
            Err(over) => Err(over),
        };
        if let Err(over) = done {
            if over.has_said_something() {
                Box::pin(part(&mut relay.stream)).await;
            }
            return over;
        }
        relay.outgoing = Unsaid::default();
        // What the gateway has to say itself may wait for what is asked next, and is not lost then.
        if relay.unsaid.is_empty() {
            relay.unsaid = Unsaid::default();
        }
    }
}

impl<S: Stream> Relay<S> {
    /// The next errand. What the gateway answers by itself is answered on the way.
    async fn next(&mut self) -> Result<Errand, Over> {
        loop {
            let understood = if self.has_news() { self.understand() } else { Understood::More };
            match understood {
                Understood::Errand(errand) => return Ok(errand),
                Understood::More if self.input.is_full() => self.input.grow(LARGEST_HEAD),
                // Nobody waits for an answer until they have asked for another.
                Understood::More if !self.unsaid.is_empty() => self.say().await?,
                Understood::More => self.fill().await?,
                Understood::Answer { answer, to_head, framing, goes_on } => {
                    self.answer(answer, to_head, framing, goes_on).await?;
                }
            }
        }
    }

    /// Whether it is worth a look: half a head becomes a whole one with the end of a line, and there are only so many lines.
    fn has_news(&self) -> bool {
        let arrived = self.input.filled();
        let news = arrived.get(self.looked_at..).unwrap_or(arrived);
        !arrived.is_empty() && (!self.is_half || news.contains(&b'\n') || self.input.is_full())
    }

    /// Waits until more has arrived.
    async fn fill(&mut self) -> Result<(), Over> {
        let now = Instant::now();
        let server = &self.guest.worker.site().spec.server;
        let midst = if self.input.is_empty() { Midst::Nothing } else { Midst::Something };
        match midst {
            Midst::Nothing => {
                self.input.rest();
                self.pace.within(now, server.idle_timeout);
            }
            // However many pieces it comes in, it must be whole in time.
            Midst::Something if !self.is_half => self.pace.within(now, server.header_timeout),
            Midst::Something => {}
        }
        self.is_half = midst == Midst::Something;
        let (stream, input, pace) = (&mut self.stream, &mut self.input, &mut self.pace);
        let mut is_last_chance = false;
        let filled = std::future::poll_fn(|cx| {
            let arrived = match midst {
                Midst::Nothing if stream.poll_readable(cx).is_pending() => Poll::Pending,
                _ => input.poll_fill(Pin::new(&mut *stream), cx),
            };
            match arrived {
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(Err(Over::Left)),
                Poll::Ready(Ok(_)) => return Poll::Ready(Ok(())),
                Poll::Pending => {}
            }
            loop {
                let waiting = if is_last_chance { Midst::Something } else { midst };
                return Poll::Ready(Err(match ready!(pace.poll(cx, waiting)) {
                    // A request may be on its way; its response will say that it is the last.
                    Interruption::Ending if !is_last_chance => {
                        is_last_chance = true;
                        pace.within(Instant::now(), LAST_CHANCE);
                        continue;
                    }
                    Interruption::Ending => Over::Ending,
                    Interruption::Overdue if is_last_chance => Over::Ending,
                    Interruption::Overdue if midst == Midst::Nothing => Over::Idle,
                    Interruption::Overdue => Over::SlowHead,
                }));
            }
        })
        .await;
        if matches!(filled, Err(Over::SlowHead)) {
            // It is told, whether it listens or not.
            let worker = &self.guest.worker;
            let story = Story::new(self.guest.peer, "HTTP/1.1", worker.now());
            story.answered(worker, &Asked::of_flawed(self.input.filled()), Answer::Slow);
            let _told = self.answer(Answer::Slow, false, Framing::None, false).await;
        }
        filled
    }

    /// Makes of what has arrived what can be made of it.
    fn understand(&mut self) -> Understood {
        let mut room = room();
        let worker = &self.guest.worker;
        let head = match Head::read(self.input.filled(), &mut room) {
            Ok(Some(head)) => head,
            Ok(None) => {
                self.looked_at = self.input.filled().len();
                return Understood::More;
            }
            Err(flaw) => {
                let (answer, asked) = (Answer::Flawed(flaw), Asked::of_flawed(self.input.filled()));
                Story::new(self.guest.peer, "HTTP/1.1", worker.now()).answered(worker, &asked, answer);
                let to_head = asked.method == "HEAD";
                return Understood::Answer { answer, to_head, framing: Framing::None, goes_on: false };
            }
        };
        (self.is_half, self.looked_at) = (false, 0);
        let site = worker.site();
        let name = site.spec.server.client_header.as_deref().and_then(|name| head.value(name.as_bytes()));
        let sender = self.guest.sender(&site, head.values(b"x-forwarded-for"), name);
        let mut story = Story::new(sender.address, protocol(head.minor), worker.now());
        let to_head = head.method == "HEAD";
        let way = site.find(head.host, head.path).cloned();
        let admitted = match &way {
            None => Err(Answer::NoRoute),
            Some(way) => {
                story.goes(way);
                self.guest.ask(way, &sender)
            }
        };
        let refused = admitted.as_ref().err().copied();
        story.is_from(worker, &sender, refused);
        let body = Body::new(head.framing, site.spec.server.max_body).err();
        let length = head.length;
        let understood = match (way, refused.or(body.map(Answer::Flawed))) {
            (Some(way), None) => {
                self.outgoing = Unsaid::new();
                head.compose(&self.guest.forwarded(&site), &mut self.outgoing.bytes);
                self.story = Some(story);
                Understood::Errand(Errand {
                    framing: head.framing,
                    to_head,
                    is_repeatable: is_repeatable(head.method),
                    keeps_alive: head.keeps_alive && !self.guest.has_carried_enough(),
                    minor: head.minor,
                    upgrades: head.upgrade.is_some(),
                    expects_continue: head.expects_continue,
                    way,
                    site: Arc::clone(&site),
                })
            }
            (_, answer) => {
                let answer = answer.unwrap_or(Answer::NoRoute);
                story.answered(worker, &Asked::of_head(&head), answer);
                let is_last = self.guest.ends_with(&site, answer) || self.guest.has_carried_enough();
                let goes_on = head.keeps_alive && !head.expects_continue && !is_last;
                Understood::Answer { answer, to_head, framing: head.framing, goes_on }
            }
        };
        self.input.settle(length);
        understood
    }

    /// Says what the gateway has to say itself, and gets over the body that nobody wants.
    async fn answer(
        &mut self,
        answer: Answer,
        to_head: bool,
        framing: Framing,
        goes_on: bool,
    ) -> Result<(), Over> {
        let goes_on = goes_on && !self.pace.is_ending();
        let unwanted = Body::new(framing, MOST_DISCARDED).ok().filter(|_| goes_on);
        let goes_on = unwanted.is_some();
        answer.write(to_head, !goes_on, &mut self.unsaid.bytes);
        if let Some(mut unwanted) = unwanted {
            while !unwanted.is_done() {
                let piece = unwanted.next(self.input.filled()).map(|piece| piece.used);
                match piece {
                    // Too much, or broken: the connection cannot go on after all, which the client finds out.
                    Err(_) => return self.say().await.and(Err(answer.over())),
                    Ok(0) => {
                        self.say().await?;
                        self.fill_body().await?;
                    }
                    Ok(used) => self.input.settle(used),
                }
            }
        }
        // Whoever has sent several requests at once is answered at once.
        if self.input.is_empty() || !goes_on || self.unsaid.bytes.len() > USUAL {
            self.say().await?;
        }
        if goes_on { Ok(()) } else { Err(answer.over()) }
    }

    /// Waits for more of a body that nobody wants.
    async fn fill_body(&mut self) -> Result<(), Over> {
        let patience = self.guest.worker.site().spec.server.body_timeout;
        self.pace.within(Instant::now(), patience);
        let (stream, input, pace) = (&mut self.stream, &mut self.input, &mut self.pace);
        std::future::poll_fn(|cx| match input.poll_fill(Pin::new(&mut *stream), cx) {
            Poll::Ready(Ok(0) | Err(_)) => Poll::Ready(Err(Over::Left)),
            Poll::Ready(Ok(_)) => Poll::Ready(Ok(())),
            Poll::Pending => {
                let _late = ready!(pace.poll(cx, Midst::Something));
                Poll::Ready(Err(Over::SlowBody))
            }
        })
        .await
    }

    /// Says what is unsaid.
    async fn say(&mut self) -> Result<(), Over> {
        let patience = self.guest.worker.site().spec.server.body_timeout;
        let (stream, unsaid, pace) = (&mut self.stream, &mut self.unsaid, &mut self.pace);
        let mut is_set = false;
        std::future::poll_fn(|cx| {
            match unsaid.poll_say(Pin::new(&mut *stream), cx, false) {
                Poll::Ready(Ok(())) => return Pin::new(&mut *stream).poll_flush(cx).map_err(|_| Over::Left),
                Poll::Ready(Err(_)) => return Poll::Ready(Err(Over::Left)),
                Poll::Pending => {}
            }
            if !std::mem::replace(&mut is_set, true) {
                pace.within(Instant::now(), patience);
            }
            let _late = ready!(pace.poll(cx, Midst::Something));
            Poll::Ready(Err(Over::SlowReader))
        })
        .await
    }

    /// Does an errand: finds an endpoint, and takes the request there and the response back.
    async fn run(&mut self, mut errand: Errand) -> Result<(), Over> {
        let mut tried: Vec<Arc<Endpoint>> = Vec::new();
        let mut tries = 0;
        let mut failure = Answer::Nobody;
        loop {
            let backend = &errand.way.backend;
            let picked = backend.pick(self.guest.worker.uptime(), &tried).filter(|_| tries < MOST_TRIES);
            let Some(endpoint) = picked else { return self.fail(errand, failure).await };
            tries += 1;
            if let Some(story) = &mut self.story {
                story.tried(&self.guest.worker, &endpoint, tries);
            }
            let held = endpoint.hold();
            let kept = self.guest.worker.pool.take(&endpoint);
            let is_kept = kept.is_some();
            let upstream = match kept {
                Some(upstream) => upstream,
                None => match connect(&endpoint, backend.connect_timeout).await {
                    Ok(upstream) => {
                        endpoint.connected();
                        upstream
                    }
                    Err(error) => {
                        let (answer, is_theirs) = unconnected(&error);
                        failure = answer;
                        if is_theirs {
                            self.guest.worker.trouble(&endpoint, Failure::Connect, &error);
                            endpoint.failed(self.guest.worker.uptime());
                        }
                        tried.push(endpoint);
                        continue;
                    }
                },
            };
            match self.exchange(&mut errand, &endpoint, upstream).await? {
                Exchanged::Done => {
                    drop(held);
                    return Ok(());
                }
                Exchanged::Failed { answer, may_repeat } => {
                    failure = answer;
                    if !may_repeat {
                        return self.fail(errand, failure).await;
                    }
                    if !is_kept {
                        tried.push(endpoint);
                    }
                    self.outgoing.rewind();
                }
            }
        }
    }

    /// Tells the client that nobody could answer. Of its body nothing more is wanted.
    async fn fail(&mut self, errand: Errand, answer: Answer) -> Result<(), Over> {
        let worker = Arc::clone(&self.guest.worker);
        if let Some(story) = self.story.take() {
            story.answered(&worker, &Asked::of_composed(&self.outgoing.bytes), answer);
        }
        let has_body = !matches!(errand.framing, Framing::None | Framing::Length(0));
        self.answer(answer, errand.to_head, Framing::None, errand.keeps_alive && !has_body).await
    }

    async fn exchange(
        &mut self,
        errand: &mut Errand,
        endpoint: &Arc<Endpoint>,
        upstream: TcpStream,
    ) -> Result<Exchanged, Over> {
        let worker = Arc::clone(&self.guest.worker);
        let body = match Body::new(errand.framing, errand.site.spec.server.max_body) {
            Ok(body) => body,
            Err(flaw) => return Ok(Exchanged::Failed { answer: Answer::Flawed(flaw), may_repeat: false }),
        };
        let mut exchange = Exchange::new(
            &mut self.stream,
            &mut self.input,
            upstream,
            &mut self.outgoing,
            &mut self.unsaid,
            body,
            &worker.house.ending,
        );
        exchange.prepare(errand.framing, errand.to_head, errand.minor, errand.keeps_alive);
        exchange.may_upgrade(errand.upgrades);
        if errand.expects_continue {
            exchange.invite();
        }
        let (response, server) = (errand.way.backend.response_timeout, &errand.site.spec.server);
        let (pace, story) = (&mut self.pace, &mut self.story);
        pace.within(Instant::now(), response);
        let ended = std::future::poll_fn(|cx| {
            if let Poll::Ready(ended) = exchange.poll(cx) {
                return Poll::Ready(ended);
            }
            if exchange.has_moved() {
                if let Some(story) = story {
                    *story.so_far() = exchange.told();
                }
                let patience = if exchange.waits_for_response() { response } else { server.body_timeout };
                pace.within(Instant::now(), patience);
            }
            match pace.poll(cx, Midst::Something) {
                Poll::Ready(Interruption::Overdue) => Poll::Ready(Err(exchange.overdue())),
                _ => Poll::Pending,
            }
        })
        .await;
        let told = exchange.told();
        match ended {
            Ok(End::Whole { upstream, goes_on }) => {
                let now = worker.now();
                if let Some(upstream) = upstream {
                    worker.pool.keep(endpoint, upstream, now, errand.way.backend.idle_timeout);
                }
                if let Some(story) = self.story.take() {
                    story.finished(&worker, || Asked::of_composed(&self.outgoing.bytes), told, now);
                }
                if goes_on { Ok(Exchanged::Done) } else { Err(Over::Said) }
            }
            Ok(End::Upgraded { upstream, arrived }) => {
                worker.numbers.upgraded();
                let input = std::mem::take(&mut self.input);
                let (pace, patience) = (&mut self.pace, server.tunnel_timeout);
                let mut nobody = Told::default();
                let so_far = self.story.as_mut().map_or(&mut nobody, Story::so_far);
                *so_far = Told { sent: 0, received: 0, ..told };
                let over =
                    tunnel::between(&mut self.stream, input, upstream, arrived, pace, patience, so_far).await;
                if let Some(mut story) = self.story.take() {
                    let told = *story.so_far();
                    let asked = || Asked::of_composed(&self.outgoing.bytes);
                    story.finished(&worker, asked, told, worker.now());
                }
                Err(over)
            }
            Err(broken) => self.broken(errand, endpoint, broken, told),
        }
    }

    /// What becomes of an exchange that did not end well.
    fn broken(
        &mut self,
        errand: &mut Errand,
        endpoint: &Endpoint,
        broken: Broken,
        told: Told,
    ) -> Result<Exchanged, Over> {
        let worker = Arc::clone(&self.guest.worker);
        if let Some(trouble) = broken.trouble() {
            worker.trouble(endpoint, trouble, &broken);
        }
        if let (Some(answer), 0) = (broken.answer(), told.status) {
            let may_repeat = broken.is_repeatable(errand.is_repeatable);
            if let Some(story) = &mut self.story {
                *story.so_far() = Told { sent: 0, ..told };
            }
            return Ok(Exchanged::Failed { answer, may_repeat });
        }
        // The client has heard a part of it; all that can be said is that there is no more.
        let over = broken.over();
        if let Some(story) = self.story.take() {
            story.broke(&worker, || Asked::of_composed(&self.outgoing.bytes), told, over, worker.now());
        }
        Err(over)
    }
}

/// How an exchange went, if the client is still there.
enum Exchanged {
    Done,
    /// Nobody has heard anything of it yet.
    Failed {
        answer: Answer,
        may_repeat: bool,
    },
}

const fn protocol(minor: u8) -> &'static str {
    if minor == 0 { "HTTP/1.0" } else { "HTTP/1.1" }
}

/// Whether a request may be made twice.
fn is_repeatable(method: &str) -> bool {
    matches!(method, "GET" | "HEAD" | "OPTIONS" | "PUT" | "DELETE")
}

/// Ends a connection so that the client hears the last words, even if it still talks.
pub(crate) async fn part<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S) {
    let farewell = async {
        stream.shutdown().await?;
        let mut heard = [0; 1024];
        while tokio::io::AsyncReadExt::read(&mut stream, &mut heard).await? > 0 {}
        std::io::Result::Ok(())
    };
    let _heard_or_not = timeout(FAREWELL, farewell).await;
}
