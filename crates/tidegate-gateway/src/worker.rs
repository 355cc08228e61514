//! A worker: a thread with its own runtime that accepts and serves connections.
//!
//! Workers share the limits and the configuration snapshot. A connection, and the endpoint connections it uses, stay with
//! the worker that accepted it.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::time::Instant;

use crate::access_log::AccessLogBuffer;
use crate::config_snapshot::ConfigSnapshot;
use crate::endpoints::UpstreamEndpoint;
use crate::gateway::{ClientSlot, GatewayState};
use crate::handshake;
use crate::health_probe;
use crate::http1_pool::Http1Pool;
use crate::http2::{ActiveResponses, Http2Pool};
use crate::metrics::{DisconnectReason, UpstreamFailure, WorkerCounters};

/// The maximum number of unsent bytes in a client's socket.
const MAX_UNSENT_BYTES: u32 = 128 * 1024;
/// How often idle connections are checked.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// How often buffered access log lines are sent.
const FLUSH_INTERVAL: Duration = Duration::from_millis(100);

/// The state shared by the connections of one worker.
pub(crate) struct GatewayWorker {
    pub(crate) state: Arc<GatewayState>,
    pub(crate) http1_pool: Http1Pool,
    pub(crate) http2_pool: Http2Pool,
    /// The active HTTP/2 responses.
    pub(crate) active_responses: ActiveResponses,
    /// The access log buffer, if the access log is enabled.
    pub(crate) access_log: Option<AccessLogBuffer>,
    pub(crate) metrics: Arc<WorkerCounters>,
    /// The cached snapshot and its generation.
    config: Mutex<(u64, Arc<ConfigSnapshot>)>,
}

impl GatewayWorker {
    /// The current snapshot.
    pub(crate) fn config(&self) -> Arc<ConfigSnapshot> {
        let mut known = self.config.lock().unwrap_or_else(PoisonError::into_inner);
        if known.0 != self.state.generation() {
            *known = self.state.config();
        }
        Arc::clone(&known.1)
    }

    /// The current time.
    #[expect(clippy::unused_self, reason = "callers read the time through the worker")]
    pub(crate) fn now(&self) -> Instant {
        Instant::now()
    }

    /// The time since the gateway started.
    pub(crate) fn uptime(&self) -> Duration {
        self.state.started.elapsed()
    }

    /// Counts and logs a failure of an endpoint.
    pub(crate) fn record_upstream_failure(
        &self,
        endpoint: &UpstreamEndpoint,
        failure: UpstreamFailure,
        why: &dyn fmt::Display,
    ) {
        self.metrics.count_upstream_failure(failure);
        tracing::debug!(endpoint = endpoint.authority(), failure = failure.as_str(), %why, "an endpoint failed");
    }
}

impl fmt::Debug for GatewayWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatewayWorker").finish_non_exhaustive()
    }
}

/// Runs until the gateway shuts down and all connections are closed or the drain timeout has passed.
pub(crate) fn run_worker(
    state: Arc<GatewayState>,
    listener: std::net::TcpListener,
    number: usize,
) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let worker: io::Result<Arc<GatewayWorker>> = runtime.block_on(async {
        let config = Mutex::new(state.config());
        let metrics = state.metrics.worker(number);
        let access_log =
            state.access_log.clone().map(|access_log| AccessLogBuffer::new(access_log, Arc::clone(&metrics)));
        let (http1_pool, http2_pool, active_responses) =
            (Http1Pool::default(), Http2Pool::default(), ActiveResponses::default());
        let worker = Arc::new(GatewayWorker {
            state,
            http1_pool,
            http2_pool,
            active_responses,
            access_log,
            metrics,
            config,
        });
        tokio::spawn(sweep_idle(Arc::clone(&worker)));
        tokio::spawn(flush_access_log(Arc::clone(&worker)));
        if number == 0 {
            tokio::spawn(health_probe::run(Arc::clone(&worker)));
        }
        let listener = TcpListener::from_std(listener)?;
        accept_connections(listener, &worker).await;
        worker.state.finish_connections(worker.config().drain_timeout()).await;
        Ok(worker)
    });
    let worker = worker?;
    // Dropping the runtime cuts off the remaining connections and logs their requests.
    drop(runtime);
    if let Some(access_log) = &worker.access_log {
        access_log.flush();
    }
    Ok(())
}

async fn sweep_idle(worker: Arc<GatewayWorker>) {
    loop {
        tokio::time::sleep(SWEEP_INTERVAL).await;
        worker.http1_pool.sweep(worker.now());
        worker.active_responses.sweep(worker.now());
        worker.http2_pool.sweep(worker.now());
    }
}

async fn flush_access_log(worker: Arc<GatewayWorker>) {
    while let Some(access_log) = &worker.access_log {
        tokio::time::sleep(FLUSH_INTERVAL).await;
        access_log.flush();
    }
}

/// Accepts connections until the gateway shuts down.
async fn accept_connections(listener: TcpListener, worker: &Arc<GatewayWorker>) {
    let spawn = |stream, address| spawn_connection(stream, address, worker);
    let failed = |error: &io::Error| tracing::warn!(%error, "cannot accept connections; trying again");
    tidegate_net::accept_connections(&listener, &worker.state.shutdown, spawn, failed).await;
    // Connections in the kernel's queue would be reset with the socket. Serve them.
    let mut waiting = std::future::poll_fn(|cx| Poll::Ready(listener.poll_accept(cx)));
    while let Poll::Ready(Ok((stream, address))) = (&mut waiting).await {
        spawn_connection(stream, address, worker);
    }
}

fn spawn_connection(stream: TcpStream, address: SocketAddr, worker: &Arc<GatewayWorker>) {
    // Responses are written at once; Nagle's algorithm would only delay them.
    let _best_effort = stream.set_nodelay(true);
    // With a large socket buffer, a slow client seems to read nothing for a long time and then a lot at once.
    let _best_effort = SockRef::from(&stream).set_tcp_notsent_lowat(MAX_UNSENT_BYTES);
    let Some(slot) = worker.state.reserve_slot() else {
        worker.metrics.count_refused_connection();
        return;
    };
    let present = OpenConnectionGuard { worker: Arc::clone(worker), slot: Some(slot) };
    worker.metrics.count_accepted();
    tokio::spawn(async move {
        let end = handshake::serve_connection(stream, address, &present.worker).await;
        if let Some(reason) = end.disconnect_reason() {
            present.worker.metrics.count_disconnect(reason);
        }
        tracing::debug!(peer = %address, ?end, "connection ended");
    });
}

/// An open connection in the metrics. It is removed on drop, also after a panic.
struct OpenConnectionGuard {
    worker: Arc<GatewayWorker>,
    slot: Option<ClientSlot>,
}

impl Drop for OpenConnectionGuard {
    fn drop(&mut self) {
        self.worker.metrics.count_closed();
        drop(self.slot.take());
    }
}

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClientConnectionEnd {
    /// The client closed it.
    ClientClosed,
    /// Everything was sent.
    Completed,
    /// The gateway is shutting down.
    ShuttingDown,
    /// The idle timeout passed.
    Idle,
    /// The head of a request took too long.
    SlowHead,
    /// A body took too long.
    SlowBody,
    /// The client did not read the response in time.
    SlowReader,
    /// The client violated the protocol.
    Protocol,
    /// The request was too large.
    TooLarge,
    /// An endpoint failed during a response.
    Upstream,
    /// The connection was refused by a limit.
    Refused,
}

impl ClientConnectionEnd {
    /// The reason for the metrics, if the gateway closed it.
    const fn disconnect_reason(self) -> Option<DisconnectReason> {
        match self {
            ClientConnectionEnd::ClientClosed
            | ClientConnectionEnd::Completed
            | ClientConnectionEnd::Refused => None,
            ClientConnectionEnd::ShuttingDown => Some(DisconnectReason::Draining),
            ClientConnectionEnd::Idle => Some(DisconnectReason::Idle),
            ClientConnectionEnd::SlowHead => Some(DisconnectReason::SlowHeader),
            ClientConnectionEnd::SlowBody => Some(DisconnectReason::SlowBody),
            ClientConnectionEnd::SlowReader => Some(DisconnectReason::SlowReader),
            ClientConnectionEnd::Protocol => Some(DisconnectReason::Protocol),
            ClientConnectionEnd::TooLarge => Some(DisconnectReason::TooLarge),
            ClientConnectionEnd::Upstream => Some(DisconnectReason::Upstream),
        }
    }

    /// Whether to close gracefully, so that the client can read the last response.
    pub(crate) const fn needs_graceful_close(self) -> bool {
        matches!(
            self,
            ClientConnectionEnd::Completed
                | ClientConnectionEnd::SlowHead
                | ClientConnectionEnd::SlowBody
                | ClientConnectionEnd::TooLarge
                | ClientConnectionEnd::Protocol
                | ClientConnectionEnd::Refused
        )
    }
}
