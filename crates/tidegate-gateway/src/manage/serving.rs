//! The sockets of the management port: one thread, one request for each connection, and bounds on everything.

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
use tidegate_net::{Shutdown, listen};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::{Behind, HALF_LIFE, Page, answer};

/// The most connections at a time; others are closed without a word.
pub const MOST_VISITORS: usize = 64;
/// How long everything may take that happens on one connection.
pub const LONGEST_VISIT: Duration = Duration::from_secs(10);
/// The longest body that is read.
pub const LARGEST_BODY: usize = 64 * 1024;
/// The longest head that is read.
const LARGEST_HEAD: usize = 16 * 1024;
/// How much of a body that is too large is thrown away, so that whoever sends it hears so.
const MOST_DISCARDED: usize = 1024 * 1024;
/// How long to wait when the system has no more sockets to give.
const SHORTAGE: Duration = Duration::from_millis(50);
/// How long those who are being answered have at the end.
const FAREWELL: Duration = Duration::from_secs(1);

/// A management port that is open. It closes when this is dropped.
#[derive(Debug)]
pub struct Managed {
    address: SocketAddr,
    ending: Shutdown,
    thread: Option<JoinHandle<()>>,
}

impl Managed {
    /// Where it is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Managed {
    fn drop(&mut self) {
        self.ending.trigger();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has closed the port too.
            let _over = thread.join();
        }
    }
}

/// Whether the port could be opened now, for those who want to know before anybody is served.
pub fn check(address: SocketAddr) -> io::Result<()> {
    listen(address, 1).map(drop)
}

/// Opens the port and answers on a thread of its own, until what is returned is dropped.
pub fn start(address: SocketAddr, behind: Arc<dyn Behind>) -> io::Result<Managed> {
    let socket = listen(address, 1)?.pop().ok_or_else(|| io::Error::other("no socket was made"))?;
    let address = socket.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ending = Shutdown::default();
    let until = ending.clone();
    let thread = std::thread::Builder::new().name("management".to_owned()).spawn(move || {
        runtime.block_on(serve(socket, behind, until));
    })?;
    Ok(Managed { address, ending, thread: Some(thread) })
}

async fn serve(socket: std::net::TcpListener, behind: Arc<dyn Behind>, ending: Shutdown) {
    let listener = match TcpListener::from_std(socket) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "the management port cannot be served");
            return;
        }
    };
    let seats = Arc::new(Semaphore::new(MOST_VISITORS));
    let mut fading = interval(HALF_LIFE);
    fading.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first comes at once.
    fading.tick().await;
    loop {
        tokio::select! {
            biased;
            () = ending.triggered() => break,
            _ = fading.tick() => behind.numbers().fade(),
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    if let Ok(seat) = Arc::clone(&seats).try_acquire_owned() {
                        tokio::spawn(attend(stream, Arc::clone(&behind), seat));
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "the management port cannot accept connections; trying again");
                    sleep(SHORTAGE).await;
                }
            },
        }
    }
    drop(listener);
    let everybody = u32::try_from(MOST_VISITORS).unwrap_or(u32::MAX);
    let _in_time = timeout(FAREWELL, seats.acquire_many(everybody)).await;
}

/// Replies one request.
async fn attend(stream: TcpStream, behind: Arc<dyn Behind>, seat: OwnedSemaphorePermit) {
    let service = service_fn(move |request: Request<Incoming>| {
        let behind = Arc::clone(&behind);
        async move { Ok::<_, Infallible>(respond(request, &*behind).await) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).keep_alive(false).header_read_timeout(LONGEST_VISIT);
    builder.max_buf_size(LARGEST_HEAD);
    let visit = builder.serve_connection(TokioIo::new(stream), service);
    // Whoever takes too long, or makes no sense, has lost nothing but its own answer.
    let _over = timeout(LONGEST_VISIT, visit).await;
    drop(seat);
}

async fn respond(request: Request<Incoming>, behind: &dyn Behind) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let page = if head.method == Method::POST && head.headers.contains_key(ORIGIN) {
        Page::foreign()
    } else if is_small(body).await {
        answer(head.method.as_str(), head.uri.path(), behind)
    } else {
        Page::too_large()
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

/// Reads a body and throws it away; whether it is no longer than it may be. One that breaks off is none to wait for.
async fn is_small(mut body: Incoming) -> bool {
    let mut length = 0;
    while let Some(Ok(frame)) = body.frame().await {
        length += frame.data_ref().map_or(0, Bytes::len);
        if length > MOST_DISCARDED {
            break;
        }
    }
    length <= LARGEST_BODY
}
