//! The listener: sockets, threads and time for the doors.
//!
//! ```text
//!   worker 1: socket ─ accept ─┬─ http::serve ──▶ HttpApi ───┐
//!                              └─ resp::serve ──▶ RespSession ├──▶ store
//!   worker 2: socket ─ accept ─┬─ …                       │
//!                              └─ …  ─────────────────────┘
//! ```
//!
//! Decided: as many workers as cores, each a thread with a runtime, sockets and buffers of its own. Decisions of local stores are
//! made inside the poll that read the request; there is no queue, no channel and no lock between a socket and the store.
//!
//! Decided: every client is bounded, in number, size and time ([`ConnectionBounds`]). Caller is beyond a bound is told so if that is possible, and cut
//! off; everybody else does not notice.
//!
//! Refused: knowing what a signal or a file is. Whoever starts a server tells it to stop.

pub mod bounds;
mod busy_poll;
mod coarse_clock;
mod connection_limit;
mod deadline_watch;
mod failed_auth_limiter;
mod http;
mod reply_writer;
mod resp;
mod thread_buffers;
mod worker;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

use tidegate::LimitStore;
use tidegate_net::{Shutdown, listen};
use tokio::sync::Notify;

use crate::http::HttpApi;
use crate::metrics::{CutReason, Protocol, ServerMetrics};
use crate::resp::{Authenticator, RespService};
use bounds::MAX_REJECTIONS;
use connection_limit::ConnectionLimit;
use failed_auth_limiter::FailedAuthLimiter;
use worker::WorkerListeners;

pub use bounds::ConnectionBounds;

/// What a server answers with.
pub struct ServerHandlers {
    /// What is said over HTTP.
    pub api: HttpApi<dyn LimitStore>,
    /// What is said over RESP.
    pub resp: RespService,
    /// Caller may come in. The same that the RESP door asks.
    pub authenticator: Arc<dyn Authenticator>,
    /// Where workers count what they do. The same that the API shows.
    pub metrics: Arc<ServerMetrics>,
}

/// Where a server listens, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenConfig {
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
    state: Arc<ServerState>,
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
    pub fn start(
        service: ServerHandlers,
        config: &ListenConfig,
        bounds: ConnectionBounds,
    ) -> Result<Server, StartError> {
        let workers = config.workers.max(1);
        let sockets = |place: Option<SocketAddr>| match place {
            None => Ok(Vec::new()),
            Some(address) => listen(address, workers).map_err(|error| StartError::Address { address, error }),
        };
        let (http, resp) = (sockets(config.http)?, sockets(config.resp)?);
        let here =
            |sockets: &[std::net::TcpListener]| sockets.first().and_then(|socket| socket.local_addr().ok());
        let shutdown = Shutdown::default();
        let state = Arc::new(ServerState {
            api: service.api.with_shutdown(&shutdown),
            resp: Arc::new(service.resp),
            authenticator: service.authenticator,
            connections: ConnectionLimit::of(bounds.connections),
            rejections: ConnectionLimit::of(MAX_REJECTIONS),
            bounds,
            failed_auths: FailedAuthLimiter::new(),
            shutdown,
            left: Notify::new(),
        });
        let metrics = service.metrics;
        let mut server =
            Server { http: here(&http), resp: here(&resp), state, threads: Vec::with_capacity(workers) };
        let (mut http, mut resp) = (http.into_iter(), resp.into_iter());
        for number in 0..workers {
            let listeners = WorkerListeners { http: http.next(), resp: resp.next() };
            let (state, counts) = (Arc::clone(&server.state), metrics.worker(number));
            let thread = std::thread::Builder::new().name(format!("worker-{number}"));
            match thread.spawn(move || worker::run(state, counts, listeners)) {
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
        self.state.connections.len()
    }

    /// Takes no more connections, ends those on which nothing is being said, lets the others finish, and returns when
    /// they have or when they took too long ([`ConnectionBounds::drain`]). Whoever waits in line is answered at once, as things stand.
    pub fn drain(mut self) {
        self.state.shutdown.trigger();
        for thread in self.threads.drain(..) {
            // A worker that panicked has nothing left to finish.
            let _over = thread.join();
        }
    }
}

/// A server that nobody holds any more ends by itself; nobody waits for it.
impl Drop for Server {
    fn drop(&mut self) {
        self.state.shutdown.trigger();
    }
}

/// What all workers share.
pub(crate) struct ServerState {
    api: HttpApi<dyn LimitStore>,
    resp: Arc<RespService>,
    authenticator: Arc<dyn Authenticator>,
    connections: ConnectionLimit,
    rejections: ConnectionLimit,
    bounds: ConnectionBounds,
    failed_auths: FailedAuthLimiter,
    shutdown: Shutdown,
    left: Notify,
}

impl ServerState {
    /// Waits until there are no connections. Only who is told of the end leaves for good.
    async fn wait_until_empty(&self) {
        loop {
            let left = self.left.notified();
            if self.connections.len() == 0 {
                return;
            }
            left.await;
        }
    }

    fn notify_connection_closed(&self) {
        if self.shutdown.is_triggered() {
            self.left.notify_waiters();
        }
    }
}

impl fmt::Debug for ServerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerState").field("connections", &self.connections).finish_non_exhaustive()
    }
}

/// What somebody is told for whom there is no room.
const fn rejection_bytes(protocol: Protocol) -> &'static [u8] {
    match protocol {
        Protocol::Http => {
            b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\n\
              connection: close\r\nretry-after: 1\r\ncontent-length: 134\r\n\r\n\
              {\"type\":\"about:blank\",\"title\":\"Too many connections\",\"status\":503,\"code\":\"overloaded\",\
              \"detail\":\"there is no room now; try again soon\"}"
        }
        Protocol::Resp => b"-UNAVAILABLE too many connections; try again soon\r\n",
    }
}

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionEnd {
    /// The client left.
    ClientClosed,
    /// Everything was said.
    Completed,
    /// The server ends.
    Draining,
    /// The client was cut off.
    Cut(CutReason),
}

impl ConnectionEnd {
    /// Why the server ended it, if it did.
    const fn cut(self) -> Option<CutReason> {
        match self {
            ConnectionEnd::ClientClosed | ConnectionEnd::Completed => None,
            ConnectionEnd::Draining => Some(CutReason::Draining),
            ConnectionEnd::Cut(reason) => Some(reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::problem::{Problem, ProblemCode};

    #[test]
    fn who_is_turned_away_gets_a_whole_answer() {
        let text = std::str::from_utf8(rejection_bytes(Protocol::Http)).expect("text");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.contains(&format!("content-length: {}", body.len())), "{}", body.len());
        let json: serde_json::Value = serde_json::from_str(body).expect("JSON");
        let problem =
            Problem::new(ProblemCode::Overloaded, "there is no room now; try again soon").into_response();
        assert_eq!(json, serde_json::from_slice::<serde_json::Value>(problem.body()).expect("JSON"));
    }
}
