//! The listener: sockets, threads and time for the doors.
//!
//! ```text
//!   worker 1: socket ─ accept ─┬─ http::serve ──▶ Api ───┐
//!                              └─ resp::serve ──▶ Session ├──▶ store
//!   worker 2: socket ─ accept ─┬─ …                       │
//!                              └─ …  ─────────────────────┘
//! ```
//!
//! Decided: as many workers as cores, each a thread with a runtime, sockets and buffers of its own. Decisions of local stores are
//! made inside the poll that read the request; there is no queue, no channel and no lock between a socket and the store.
//!
//! Decided: every client is bounded, in number, size and time ([`Bounds`]). Who is beyond a bound is told so if that is possible, and cut
//! off; everybody else does not notice.
//!
//! Refused: knowing what a signal or a file is. Whoever starts a server tells it to stop.

mod failed_auth_limiter;
mod coarse_clock;
pub mod bounds;
mod connection_limit;
mod thread_buffers;
mod http;
mod resp;
mod reply_writer;
mod busy_poll;
mod deadline_watch;
mod worker;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

use tidegate::LimitStore;
use tidegate_net::{Ending, listen};
use tokio::sync::Notify;

use crate::http::Api;
use crate::metrics::{Cut, DoorName, Metrics};
use crate::resp::{Door, Doorman};
use failed_auth_limiter::Attempts;
use bounds::MOST_TURNED_AWAY;
use connection_limit::Crowd;
use worker::Ears;

pub use bounds::Bounds;

/// What a server answers with.
pub struct Service {
    /// What is said over HTTP.
    pub api: Api<dyn LimitStore>,
    /// What is said over RESP.
    pub door: Door,
    /// Who may come in. The same that the RESP door asks.
    pub doorman: Arc<dyn Doorman>,
    /// Where workers count what they do. The same that the API shows.
    pub metrics: Arc<Metrics>,
}

/// Where a server listens, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// For HTTP; nowhere if not given.
    pub http: Option<SocketAddr>,
    /// For RESP; nowhere if not given.
    pub resp: Option<SocketAddr>,
    /// How many threads; at least one.
    pub workers: usize,
}

/// A server that runs.
#[derive(Debug)]
pub struct Server {
    http: Option<SocketAddr>,
    resp: Option<SocketAddr>,
    house: Arc<House>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

/// Why a server does not start.
#[derive(Debug)]
pub enum StartError {
    /// It cannot listen at this address.
    Address {
        /// Where.
        address: SocketAddr,
        /// Why.
        error: io::Error,
    },
    /// It can have no threads.
    Thread(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Address { address, error } if error.kind() == io::ErrorKind::AddrInUse => {
                write!(
                    f,
                    "cannot listen at {address}: somebody else does; stop them or choose another address"
                )
            }
            StartError::Address { address, error } => write!(f, "cannot listen at {address}: {error}"),
            StartError::Thread(error) => write!(f, "cannot start a thread: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

impl Server {
    /// Starts to listen and to answer.
    pub fn start(service: Service, places: &Places, bounds: Bounds) -> Result<Server, StartError> {
        let workers = places.workers.max(1);
        let sockets = |place: Option<SocketAddr>| match place {
            None => Ok(Vec::new()),
            Some(address) => listen(address, workers).map_err(|error| StartError::Address { address, error }),
        };
        let (http, resp) = (sockets(places.http)?, sockets(places.resp)?);
        let here =
            |sockets: &[std::net::TcpListener]| sockets.first().and_then(|socket| socket.local_addr().ok());
        let ending = Ending::default();
        let house = Arc::new(House {
            api: service.api.ends_with(&ending),
            door: Arc::new(service.door),
            doorman: service.doorman,
            crowd: Crowd::of(bounds.connections),
            turned_away: Crowd::of(MOST_TURNED_AWAY),
            bounds,
            attempts: Attempts::new(),
            ending,
            left: Notify::new(),
        });
        let metrics = service.metrics;
        let mut server =
            Server { http: here(&http), resp: here(&resp), house, threads: Vec::with_capacity(workers) };
        let (mut http, mut resp) = (http.into_iter(), resp.into_iter());
        for number in 0..workers {
            let ears = Ears { http: http.next(), resp: resp.next() };
            let (house, counts) = (Arc::clone(&server.house), metrics.worker(number));
            let thread = std::thread::Builder::new().name(format!("worker-{number}"));
            match thread.spawn(move || worker::work(house, counts, ears)) {
                Ok(handle) => server.threads.push(handle),
                // Those that have started end with the server.
                Err(error) => return Err(StartError::Thread(error)),
            }
        }
        Ok(server)
    }

    /// Where it listens for HTTP.
    pub fn http(&self) -> Option<SocketAddr> {
        self.http
    }

    /// Where it listens for RESP.
    pub fn resp(&self) -> Option<SocketAddr> {
        self.resp
    }

    /// How many connections there are.
    pub fn connections(&self) -> usize {
        self.house.crowd.len()
    }

    /// Takes no more connections, ends those on which nothing is being said, lets the others finish, and returns when
    /// they have or when they took too long ([`Bounds::drain`]). Whoever waits in line is answered at once, as things stand.
    pub fn drain(mut self) {
        self.house.ending.tell();
        for thread in self.threads.drain(..) {
            // A worker that panicked has nothing left to finish.
            let _over = thread.join();
        }
    }
}

/// A server that nobody holds any more ends by itself; nobody waits for it.
impl Drop for Server {
    fn drop(&mut self) {
        self.house.ending.tell();
    }
}

/// What all workers share.
pub(crate) struct House {
    api: Api<dyn LimitStore>,
    door: Arc<Door>,
    doorman: Arc<dyn Doorman>,
    crowd: Crowd,
    turned_away: Crowd,
    bounds: Bounds,
    attempts: Attempts,
    ending: Ending,
    left: Notify,
}

impl House {
    /// Waits until there are no connections. Only who is told of the end leaves for good.
    async fn everybody_left(&self) {
        loop {
            let left = self.left.notified();
            if self.crowd.len() == 0 {
                return;
            }
            left.await;
        }
    }

    fn somebody_left(&self) {
        if self.ending.is_told() {
            self.left.notify_waiters();
        }
    }
}

impl fmt::Debug for House {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("House").field("crowd", &self.crowd).finish_non_exhaustive()
    }
}

/// What somebody is told for whom there is no room.
const fn no_room(door: DoorName) -> &'static [u8] {
    match door {
        DoorName::Http => {
            b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\n\
              connection: close\r\nretry-after: 1\r\ncontent-length: 134\r\n\r\n\
              {\"type\":\"about:blank\",\"title\":\"Too many connections\",\"status\":503,\"code\":\"overloaded\",\
              \"detail\":\"there is no room now; try again soon\"}"
        }
        DoorName::Resp => b"-UNAVAILABLE too many connections; try again soon\r\n",
    }
}

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    /// The client left.
    Left,
    /// Everything was said.
    Said,
    /// The server ends.
    Ending,
    /// The client was cut off.
    Cut(Cut),
}

impl Over {
    /// Why the server ended it, if it did.
    const fn cut(self) -> Option<Cut> {
        match self {
            Over::Left | Over::Said => None,
            Over::Ending => Some(Cut::Draining),
            Over::Cut(reason) => Some(reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::problem::{Code, Problem};

    #[test]
    fn who_is_turned_away_gets_a_whole_answer() {
        let text = std::str::from_utf8(no_room(DoorName::Http)).expect("text");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.contains(&format!("content-length: {}", body.len())), "{}", body.len());
        let json: serde_json::Value = serde_json::from_str(body).expect("JSON");
        let problem = Problem::new(Code::Overloaded, "there is no room now; try again soon").into_response();
        assert_eq!(json, serde_json::from_slice::<serde_json::Value>(problem.body()).expect("JSON"));
    }
}
