//! The listener of the management port: one thread, one request per connection, and bounds on all resources.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, ORIGIN};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tidegate_net::{Shutdown, accept_connections, listen};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::{HALF_LIFE, ManagedGateway, ManagementResponse, respond};

/// The maximum number of connections. Further ones are closed without a response.
pub const MAX_CONNECTIONS: usize = 64;
/// The maximum time for everything on one connection.
pub const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum accepted body size.
pub const MAX_BODY_BYTES: usize = 64 * 1024;
/// The maximum head size.
const MAX_HEAD_BYTES: usize = 16 * 1024;
/// How much of a body that is too large is discarded, so that the client can read the response.
const MAX_DISCARDED_BYTES: usize = 1024 * 1024;
/// How long active responses may take during shutdown.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// An open management port. Dropping it closes the port.
#[derive(Debug)]
pub struct ManagementPort {
    address: SocketAddr,
    shutdown: Shutdown,
    thread: Option<JoinHandle<()>>,
}

impl ManagementPort {
    /// The listen address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for ManagementPort {
    fn drop(&mut self) {
        self.shutdown.trigger();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has closed the port too.
            let _result = thread.join();
        }
    }
}

/// Checks that the port can be opened, before the gateway starts.
pub fn check(address: SocketAddr) -> io::Result<()> {
    listen(address, 1).map(drop)
}

/// Opens the port and serves it on its own thread until the result is dropped.
pub fn start(address: SocketAddr, gateway: Arc<dyn ManagedGateway>) -> io::Result<ManagementPort> {
    let socket = listen(address, 1)?.pop().ok_or_else(|| io::Error::other("no socket was made"))?;
    let address = socket.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let shutdown = Shutdown::default();
    let until = shutdown.clone();
    let thread = std::thread::Builder::new().name("management".to_owned()).spawn(move || {
        runtime.block_on(serve(socket, gateway, until));
    })?;
    Ok(ManagementPort { address, shutdown, thread: Some(thread) })
}

async fn serve(socket: std::net::TcpListener, gateway: Arc<dyn ManagedGateway>, shutdown: Shutdown) {
    let listener = match TcpListener::from_std(socket) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "the management port cannot be served");
            return;
        }
    };
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let halved = Arc::clone(&gateway);
    let halving = tokio::spawn(async move {
        let mut halving = interval(HALF_LIFE);
        halving.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first tick is immediate.
        halving.tick().await;
        loop {
            halving.tick().await;
            halved.metrics().halve_client_counts();
        }
    });
    let admit = |stream, _| {
        if let Ok(slot) = Arc::clone(&slots).try_acquire_owned() {
            tokio::spawn(serve_connection(stream, Arc::clone(&gateway), slot));
        }
    };
    let failed = |error: &io::Error| {
        tracing::warn!(%error, "the management port cannot accept connections; trying again");
    };
    accept_connections(&listener, &shutdown, admit, failed).await;
    halving.abort();
    drop(listener);
    let all_slots = u32::try_from(MAX_CONNECTIONS).unwrap_or(u32::MAX);
    let _in_time = timeout(CLOSE_TIMEOUT, slots.acquire_many(all_slots)).await;
}

/// Serves one request.
async fn serve_connection(stream: TcpStream, gateway: Arc<dyn ManagedGateway>, slot: OwnedSemaphorePermit) {
    let service = service_fn(move |request: Request<Incoming>| {
        let gateway = Arc::clone(&gateway);
        async move { Ok::<_, Infallible>(handle_request(request, &*gateway).await) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).keep_alive(false).header_read_timeout(CONNECTION_TIMEOUT);
    builder.max_buf_size(MAX_HEAD_BYTES);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    // A timeout or an invalid request only costs the client its response.
    let _result = timeout(CONNECTION_TIMEOUT, connection).await;
    drop(slot);
}

async fn handle_request(request: Request<Incoming>, gateway: &dyn ManagedGateway) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let page = if head.method == Method::POST && head.headers.contains_key(ORIGIN) {
        ManagementResponse::foreign_origin()
    } else if is_small(body).await {
        respond(head.method.as_str(), head.uri.path(), gateway)
    } else {
        ManagementResponse::too_large()
    };
    let mut response = Response::new(Full::new(Bytes::from(page.body)));
    *response.status_mut() = StatusCode::from_u16(page.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(page.content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(allow) = page.allow {
        headers.insert(ALLOW, HeaderValue::from_static(allow));
    }
    response
}

/// Reads and discards a body. Returns whether its size was acceptable. A broken body counts with the bytes
/// received.
async fn is_small(mut body: Incoming) -> bool {
    let mut length = 0;
    while let Some(Ok(frame)) = body.frame().await {
        length += frame.data_ref().map_or(0, Bytes::len);
        if length > MAX_DISCARDED_BYTES {
            break;
        }
    }
    length <= MAX_BODY_BYTES
}
