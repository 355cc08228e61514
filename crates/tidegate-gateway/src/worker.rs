//! A worker: a thread with a runtime of its own, that accepts connections and serves them.
//!
//! Workers share the limits and the site and nothing else that is written often. A connection stays with the worker that accepted it, and so
//! do the connections to endpoints that it uses.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use socket2::SockRef;
use tidegate_net::listen::is_connection_error;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::time::Instant;

use crate::door;
use crate::endpoints::Endpoint;
use crate::gateway::{House, Seat};
use crate::logbook::Page;
use crate::numbers::{Cut, Failure, WorkerNumbers};
use crate::probing;
use crate::second::{Responses, Seconds};
use crate::site::Site;
use crate::upstream::Pool;

/// How long a worker waits when the system has no more sockets to give.
const SHORTAGE: Duration = Duration::from_millis(50);
/// How much of a response may lie in a client's socket without having been sent.
const MOST_UNSENT: u32 = 128 * 1024;
/// How often connections that nobody uses are looked at.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// How long a line of the access log lies before it is handed over.
const TURN_EVERY: Duration = Duration::from_millis(100);

/// What the connections of one worker share.
pub(crate) struct Worker {
    pub(crate) house: Arc<House>,
    pub(crate) pool: Pool,
    pub(crate) seconds: Seconds,
    /// Those of HTTP/2 that are under way.
    pub(crate) responses: Responses,
    /// Where it writes what was asked for, if anybody wants to know.
    pub(crate) page: Option<Page>,
    pub(crate) numbers: Arc<WorkerNumbers>,
    /// The site in force, and which one it is.
    site: Mutex<(u64, Arc<Site>)>,
}

impl Worker {
    /// The site in force.
    pub(crate) fn site(&self) -> Arc<Site> {
        let mut known = self.site.lock().unwrap_or_else(PoisonError::into_inner);
        if known.0 != self.house.generation() {
            *known = self.house.site();
        }
        Arc::clone(&known.1)
    }

    /// The time.
    #[expect(clippy::unused_self, reason = "it is the worker's time")]
    pub(crate) fn now(&self) -> Instant {
        Instant::now()
    }

    /// For how long the gateway has run.
    pub(crate) fn uptime(&self) -> Duration {
        self.house.began.elapsed()
    }

    /// Notes that an endpoint did not do what it should.
    pub(crate) fn trouble(&self, endpoint: &Endpoint, failure: Failure, why: &dyn fmt::Display) {
        self.numbers.upstream_failed(failure);
        tracing::debug!(endpoint = endpoint.authority(), failure = failure.word(), %why, "an endpoint failed");
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").finish_non_exhaustive()
    }
}

/// Works until the gateway ends and the last connection is over, or has had its time.
pub(crate) fn work(house: Arc<House>, listener: std::net::TcpListener, number: usize) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let worker: io::Result<Arc<Worker>> = runtime.block_on(async {
        let site = Mutex::new(house.site());
        let numbers = house.numbers.worker(number);
        let page = house.logbook.clone().map(|logbook| Page::new(logbook, Arc::clone(&numbers)));
        let (pool, seconds, responses) = (Pool::default(), Seconds::default(), Responses::default());
        let worker = Arc::new(Worker { house, pool, seconds, responses, page, numbers, site });
        tokio::spawn(sweep(Arc::clone(&worker)));
        tokio::spawn(turn_pages(Arc::clone(&worker)));
        if number == 0 {
            tokio::spawn(probing::go(Arc::clone(&worker)));
        }
        let listener = TcpListener::from_std(listener)?;
        accept(listener, &worker).await;
        let drain = worker.site().drain_timeout();
        tokio::select! {
            _in_time = tokio::time::timeout(drain, worker.house.everybody_left()) => {}
            () = worker.house.cutting.triggered() => {}
        }
        worker.house.cutting.trigger();
        Ok(worker)
    });
    let worker = worker?;
    // Whoever is still there is cut off now, and what is told of them is written.
    drop(runtime);
    if let Some(page) = &worker.page {
        page.hand_over();
    }
    Ok(())
}

async fn sweep(worker: Arc<Worker>) {
    loop {
        tokio::time::sleep(SWEEP_EVERY).await;
        worker.pool.sweep(worker.now());
        worker.responses.sweep(worker.now());
        worker.seconds.sweep(worker.now());
    }
}

async fn turn_pages(worker: Arc<Worker>) {
    while let Some(page) = &worker.page {
        tokio::time::sleep(TURN_EVERY).await;
        page.hand_over();
    }
}

/// Lets in who comes, until the gateway ends.
async fn accept(listener: TcpListener, worker: &Arc<Worker>) {
    let ending = worker.house.ending.clone();
    let mut told = std::pin::pin!(ending.triggered());
    loop {
        let mut arrival = std::pin::pin!(listener.accept());
        let accepted = std::future::poll_fn(|cx| {
            if told.as_mut().poll(cx).is_ready() {
                return Poll::Ready(None);
            }
            arrival.as_mut().poll(cx).map(Some)
        });
        match accepted.await {
            None => break,
            Some(Ok((stream, address))) => admit(stream, address, worker),
            Some(Err(error)) if is_connection_error(&error) => {}
            Some(Err(error)) => {
                tracing::warn!(%error, "cannot accept connections; trying again");
                tokio::time::sleep(SHORTAGE).await;
            }
        }
    }
    // Whoever the kernel has let in already would be cut off with the socket.
    let mut waiting = std::future::poll_fn(|cx| Poll::Ready(listener.poll_accept(cx)));
    while let Poll::Ready(Ok((stream, address))) = (&mut waiting).await {
        admit(stream, address, worker);
    }
}

fn admit(stream: TcpStream, address: SocketAddr, worker: &Arc<Worker>) {
    // Responses are written as they come; waiting for more would only make them late.
    let _as_it_is = stream.set_nodelay(true);
    // A socket that holds megabytes looks as if its client took nothing for a long time, and then much.
    let _as_it_is = SockRef::from(&stream).set_tcp_notsent_lowat(MOST_UNSENT);
    let Some(seat) = worker.house.enter() else {
        worker.numbers.refused_connection();
        return;
    };
    let present = Present { worker: Arc::clone(worker), seat: Some(seat) };
    worker.numbers.accepted();
    tokio::spawn(async move {
        let over = door::attend(stream, address, &present.worker).await;
        if let Some(cut) = over.cut() {
            present.worker.numbers.cut(cut);
        }
        tracing::debug!(peer = %address, ?over, "connection over");
    });
}

/// That somebody is here. However they leave, also by a panic, they are not counted any more.
struct Present {
    worker: Arc<Worker>,
    seat: Option<Seat>,
}

impl Drop for Present {
    fn drop(&mut self) {
        self.worker.numbers.closed();
        drop(self.seat.take());
    }
}

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    /// The client left.
    Left,
    /// Everything was said.
    Said,
    /// The gateway ends.
    Ending,
    /// Nothing was said for too long.
    Idle,
    /// The head of a request took too long.
    SlowHead,
    /// A body took too long.
    SlowBody,
    /// The client did not take what it was sent.
    SlowReader,
    /// What the client said makes no sense.
    Protocol,
    /// What the client said is too large.
    TooLarge,
    /// An endpoint failed in the middle of a response.
    Upstream,
    /// There were too many connections.
    Refused,
}

impl Over {
    /// Why the gateway ended it, if it did.
    const fn cut(self) -> Option<Cut> {
        match self {
            Over::Left | Over::Said | Over::Refused => None,
            Over::Ending => Some(Cut::Draining),
            Over::Idle => Some(Cut::Idle),
            Over::SlowHead => Some(Cut::SlowHeader),
            Over::SlowBody => Some(Cut::SlowBody),
            Over::SlowReader => Some(Cut::SlowReader),
            Over::Protocol => Some(Cut::Protocol),
            Over::TooLarge => Some(Cut::TooLarge),
            Over::Upstream => Some(Cut::Upstream),
        }
    }

    /// Whether the client was told something that it should have time to hear.
    pub(crate) const fn has_said_something(self) -> bool {
        matches!(
            self,
            Over::Said | Over::SlowHead | Over::SlowBody | Over::TooLarge | Over::Protocol | Over::Refused
        )
    }
}
