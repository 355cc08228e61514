//! A worker: a thread with its own runtime that accepts and serves connections.
//!
//! Workers share the store and no other memory that is written often. A connection stays on the worker that accepted it, so serving
//! it wakes no other thread.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tidegate_net::accept_connections;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;

use super::bounds::LINGER_TIMEOUT;
use super::busy_poll::BusyPoll;
use super::coarse_clock::CoarseClock;
use super::connection_limit::ConnectionSlot;
use super::reply_writer::close_with_linger;
use super::{ServerState, http, rejection_bytes, resp};
use crate::metrics::{Protocol, WorkerMetrics};

/// State shared by the connections of one worker.
#[derive(Debug)]
pub(super) struct ServerWorker {
    pub(super) state: Arc<ServerState>,
    pub(super) clock: Arc<CoarseClock>,
    pub(super) metrics: Arc<WorkerMetrics>,
    pub(super) busy_poll: BusyPoll,
    /// Measures durations for metrics and busy polling; no decision depends on it.
    pub(super) timer: quanta::Clock,
}

impl ServerWorker {
    /// Nanoseconds since `start`, a value of [`quanta::Clock::raw`].
    pub(super) fn since(&self, start: u64) -> u64 {
        self.timer.delta_as_nanos(start, self.timer.raw())
    }
}

/// The sockets that a worker accepts from.
#[derive(Debug)]
pub(super) struct WorkerListeners {
    pub(super) http: Option<std::net::TcpListener>,
    pub(super) resp: Option<std::net::TcpListener>,
}

/// Runs until the shutdown is triggered and the last connection has ended, or the drain time has passed.
pub(super) fn run(
    state: Arc<ServerState>,
    metrics: Arc<WorkerMetrics>,
    listeners: WorkerListeners,
) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (clock, busy_poll, timer) = (CoarseClock::new(), BusyPoll::default(), quanta::Clock::new());
        let worker = Arc::new(ServerWorker { state, clock, metrics, busy_poll, timer });
        tokio::spawn(Arc::clone(&worker.clock).run());
        let http = listeners.http.map(TcpListener::from_std).transpose()?;
        let resp = listeners.resp.map(TcpListener::from_std).transpose()?;
        let protocols = [(Protocol::Http, http), (Protocol::Resp, resp)];
        let accepting: Vec<_> = protocols
            .into_iter()
            .filter_map(|(protocol, listener)| listener.map(|listener| (protocol, listener)))
            .map(|(protocol, listener)| tokio::spawn(accept(listener, protocol, Arc::clone(&worker))))
            .collect();
        for each in accepting {
            // The task ends on shutdown. If it panicked, the other protocols and workers go on.
            let _joined = each.await;
        }
        worker.state.finish_connections().await;
        Ok(())
    })
}

/// Accepts connections until the shutdown.
async fn accept(listener: TcpListener, protocol: Protocol, worker: Arc<ServerWorker>) {
    let admit = |stream, address| admit(stream, address, protocol, &worker);
    let failed = |error: &io::Error| {
        tracing::warn!(door = protocol.word(), %error, "cannot accept connections; trying again");
    };
    accept_connections(&listener, &worker.state.shutdown, admit, failed).await;
}

fn admit(stream: TcpStream, address: SocketAddr, protocol: Protocol, worker: &Arc<ServerWorker>) {
    // Replies are written whole; Nagle's algorithm would only delay them.
    let _best_effort = stream.set_nodelay(true);
    if let Some(slot) = worker.state.connections.try_acquire() {
        worker.metrics.opened(protocol);
        tokio::spawn(serve_connection(stream, address, protocol, Arc::clone(worker), slot));
        return;
    }
    worker.metrics.refused_connection(protocol);
    if let Some(slot) = worker.state.rejections.try_acquire() {
        tokio::spawn(reject(stream, protocol, slot));
    }
}

async fn serve_connection(
    stream: TcpStream,
    address: SocketAddr,
    protocol: Protocol,
    worker: Arc<ServerWorker>,
    slot: ConnectionSlot,
) {
    let guard = ConnectionGuard { worker: Arc::clone(&worker), protocol, slot: Some(slot) };
    let end = match protocol {
        Protocol::Http => http::serve(stream, address.ip(), worker).await,
        Protocol::Resp => resp::serve(stream, address.ip(), worker).await,
    };
    if let Some(reason) = end.cut() {
        guard.worker.metrics.cut(protocol, reason);
    }
    tracing::debug!(door = protocol.word(), peer = %address, end = ?end, "connection closed");
}

/// Uncounts the connection on drop, also after a panic.
struct ConnectionGuard {
    worker: Arc<ServerWorker>,
    protocol: Protocol,
    slot: Option<ConnectionSlot>,
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.worker.metrics.closed(self.protocol);
        // Free the slot before the notification: the waiter reads the number of open connections.
        drop(self.slot.take());
        self.worker.state.notify_connection_closed();
    }
}

/// Sends an error to a client over the connection limit and closes the connection.
async fn reject(mut stream: TcpStream, protocol: Protocol, slot: ConnectionSlot) {
    let triggered = tokio::time::timeout(LINGER_TIMEOUT, stream.write_all(rejection_bytes(protocol))).await;
    if matches!(triggered, Ok(Ok(()))) {
        close_with_linger(stream).await;
    }
    drop(slot);
}
