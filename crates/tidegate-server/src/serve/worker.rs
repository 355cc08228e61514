//! A worker: a thread with a runtime of its own, that accepts connections and answers them.
//!
//! Workers share the store and nothing else that is written often. A connection stays with the worker that accepted it, so what it
//! does needs no other thread to wake.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tidegate_net::listen::is_connection_error;
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

/// How long a worker waits when the system has no more sockets to give.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);

/// What the connections of one worker share.
#[derive(Debug)]
pub(super) struct ServerWorker {
    pub(super) state: Arc<ServerState>,
    pub(super) clock: Arc<CoarseClock>,
    pub(super) metrics: Arc<WorkerMetrics>,
    pub(super) busy_poll: BusyPoll,
    /// For how long things take; nothing is decided by it.
    pub(super) timer: quanta::Clock,
}

impl ServerWorker {
    /// Nanoseconds since `start`, which [`quanta::Clock::raw`] said.
    pub(super) fn since(&self, start: u64) -> u64 {
        self.timer.delta_as_nanos(start, self.timer.raw())
    }
}

/// What a worker listens on.
#[derive(Debug)]
pub(super) struct WorkerListeners {
    pub(super) http: Option<std::net::TcpListener>,
    pub(super) resp: Option<std::net::TcpListener>,
}

/// Works until the server ends and the last connection is over, or has had its time.
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
            // It ends when it is triggered to; if it panicked, the other protocols and workers go on.
            let _ended = each.await;
        }
        let drain = worker.state.bounds.drain;
        let _in_time = tokio::time::timeout(drain, worker.state.wait_until_empty()).await;
        Ok(())
    })
}

/// Lets in who comes, until the server ends.
async fn accept(listener: TcpListener, protocol: Protocol, worker: Arc<ServerWorker>) {
    let shutdown = worker.state.shutdown.clone();
    let mut triggered = std::pin::pin!(shutdown.triggered());
    loop {
        let mut arrival = std::pin::pin!(listener.accept());
        let accepted = std::future::poll_fn(|cx| {
            if triggered.as_mut().poll(cx).is_ready() {
                return std::task::Poll::Ready(None);
            }
            arrival.as_mut().poll(cx).map(Some)
        });
        match accepted.await {
            None => return,
            Some(Ok((stream, address))) => admit(stream, address, protocol, &worker),
            Some(Err(error)) if is_connection_error(&error) => {}
            Some(Err(error)) => {
                tracing::warn!(door = protocol.word(), %error, "cannot accept connections; trying again");
                tokio::time::sleep(ACCEPT_BACKOFF).await;
            }
        }
    }
}

fn admit(stream: TcpStream, address: SocketAddr, protocol: Protocol, worker: &Arc<ServerWorker>) {
    // Replies are small and whole; waiting for more to say would only make them late.
    let _as_it_is = stream.set_nodelay(true);
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

/// That somebody is here. However they leave, also by a panic, they are not counted any more.
struct ConnectionGuard {
    worker: Arc<ServerWorker>,
    protocol: Protocol,
    slot: Option<ConnectionSlot>,
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.worker.metrics.closed(self.protocol);
        // First the place is free, then others are triggered: they look how many are left.
        drop(self.slot.take());
        self.worker.state.notify_connection_closed();
    }
}

/// Tells somebody for whom there is no room that this is so.
async fn reject(mut stream: TcpStream, protocol: Protocol, slot: ConnectionSlot) {
    let triggered = tokio::time::timeout(LINGER_TIMEOUT, stream.write_all(rejection_bytes(protocol))).await;
    if matches!(triggered, Ok(Ok(()))) {
        close_with_linger(stream).await;
    }
    drop(slot);
}
