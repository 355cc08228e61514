//! Listeners and worker threads for HTTP and RESP.
//!
//! ```text
//!   worker 1: socket ─ accept ─┬─ http::serve ──▶ HttpApi ─────┐
//!                              └─ resp::serve ──▶ RespSession ─┼──▶ store
//!   worker 2: socket ─ accept ─┬─ …                            │
//!                              └─ …  ──────────────────────────┘
//! ```
//!
//! There are as many workers as cores. Each is a thread with its own single-threaded runtime, sockets and buffers. Decisions of local
//! stores are made inside the poll that read the request: no queue, channel or lock lies between a socket and the store.
//!
//! Every client is bounded in number, size and time ([`ConnectionBounds`]). A client over a bound gets an error if possible and is
//! disconnected; other clients are not affected.
//!
//! Signals and files are not handled here. The caller triggers the shutdown.

pub mod bounds;
mod busy_poll;
mod coarse_clock;
mod connection_limit;
mod deadline_watch;
mod failed_auth_limiter;
mod graceful_shutdown;
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

use tidegate::store::LimitStore;
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

/// The handlers that a server dispatches to.
pub struct ServerHandlers {
    /// Handles HTTP requests.
    pub api: HttpApi<dyn LimitStore>,
    /// Handles RESP commands.
    pub resp: RespService,
    /// Checks tokens of HTTP clients. The same one that `resp` uses.
    pub authenticator: Arc<dyn Authenticator>,
    /// Where workers count requests and connections. The same metrics that `api` renders.
    pub metrics: Arc<ServerMetrics>,
}

/// Listen addresses and number of workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenConfig {
    /// HTTP listen address; `None` disables HTTP.
    pub http: Option<SocketAddr>,
    /// RESP listen address; `None` disables RESP.
    pub resp: Option<SocketAddr>,
    /// Number of worker threads; at least one is started.
    pub workers: usize,
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    http: Option<SocketAddr>,
    resp: Option<SocketAddr>,
    state: Arc<ServerState>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

/// Why a server cannot start.
#[derive(Debug)]
pub enum StartError {
    /// The address cannot be bound.
    Address {
        /// The address.
        address: SocketAddr,
        /// The error of the system.
        error: io::Error,
    },
    /// A thread cannot be started.
    Thread(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Address { address, error } if error.kind() == io::ErrorKind::AddrInUse => {
                write!(
                    f,
                    "cannot listen at {address}: the address is in use; stop the other process or choose another address"
                )
            }
            StartError::Address { address, error } => write!(f, "cannot listen at {address}: {error}"),
            StartError::Thread(error) => write!(f, "cannot start a thread: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

impl Server {
    /// Binds the sockets and starts the workers.
    pub fn start(
        service: ServerHandlers,
        config: &ListenConfig,
        bounds: ConnectionBounds,
    ) -> Result<Server, StartError> {
        let workers = config.workers.max(1);
        let sockets = |address: Option<SocketAddr>| match address {
            None => Ok(Vec::new()),
            Some(address) => listen(address, workers).map_err(|error| StartError::Address { address, error }),
        };
        let (http, resp) = (sockets(config.http)?, sockets(config.resp)?);
        let local_address =
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
            connection_closed: Notify::new(),
        });
        let metrics = service.metrics;
        let mut server = Server {
            http: local_address(&http),
            resp: local_address(&resp),
            state,
            threads: Vec::with_capacity(workers),
        };
        let (mut http, mut resp) = (http.into_iter(), resp.into_iter());
        for number in 0..workers {
            let listeners = WorkerListeners { http: http.next(), resp: resp.next() };
            let (state, counts) = (Arc::clone(&server.state), metrics.worker(number));
            let thread = std::thread::Builder::new().name(format!("worker-{number}"));
            match thread.spawn(move || worker::run(state, counts, listeners)) {
                Ok(handle) => server.threads.push(handle),
                // Dropping the server shuts the started workers down.
                Err(error) => return Err(StartError::Thread(error)),
            }
        }
        Ok(server)
    }

    /// The bound HTTP address.
    pub fn http(&self) -> Option<SocketAddr> {
        self.http
    }

    /// The bound RESP address.
    pub fn resp(&self) -> Option<SocketAddr> {
        self.resp
    }

    /// Number of open connections.
    pub fn connections(&self) -> usize {
        self.state.connections.len()
    }
}

/// State shared by all workers.
pub(crate) struct ServerState {
    api: HttpApi<dyn LimitStore>,
    resp: Arc<RespService>,
    authenticator: Arc<dyn Authenticator>,
    connections: ConnectionLimit,
    rejections: ConnectionLimit,
    bounds: ConnectionBounds,
    failed_auths: FailedAuthLimiter,
    shutdown: Shutdown,
    connection_closed: Notify,
}

impl fmt::Debug for ServerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerState").field("connections", &self.connections).finish_non_exhaustive()
    }
}

/// The reply to a client over the connection limit.
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
    /// The client closed it.
    ClientClosed,
    /// The last reply was sent.
    Completed,
    /// The server shuts down.
    Draining,
    /// The server disconnected the client.
    Cut(CutReason),
}

impl ConnectionEnd {
    /// Why the server ended the connection, if it did.
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
    fn rejection_of_http_client_is_a_complete_problem_response() {
        let text = std::str::from_utf8(rejection_bytes(Protocol::Http)).expect("text");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.contains(&format!("content-length: {}", body.len())), "{}", body.len());
        let json: serde_json::Value = serde_json::from_str(body).expect("JSON");
        let problem =
            Problem::new(ProblemCode::Overloaded, "there is no room now; try again soon").into_response();
        assert_eq!(json, serde_json::from_slice::<serde_json::Value>(problem.body()).expect("JSON"));
    }
}
