//! Asking an endpoint: by HTTP/1 on a connection that is kept afterwards, or by HTTP/2 on one that many share.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashbrown::HashMap;
use http::request::Parts;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use super::pending_call::Pending;
use super::request_body::{Late, Patience, Upload};
use crate::config_snapshot::Way;
use crate::deadline::later;
use crate::endpoints::{Endpoint, Held};
use crate::local_reply::Answer;
use crate::metrics::Failure;
use crate::upstream::{connect, unconnected};
use crate::wire::{Flaw, LARGEST_HEAD, MOST_FIELDS};
use crate::worker::Worker;

/// How many endpoints, or connections to them, are tried for one request.
const MOST_TRIES: u32 = 3;
/// How often an endpoint that says nothing is asked whether it is still there.
const ASK_EVERY: Duration = Duration::from_secs(30);

/// A request that may go to an endpoint.
pub(super) struct Call {
    pub(super) head: Parts,
    pub(super) body: Upload,
    /// How long the body may stand still.
    pub(super) body_timeout: Duration,
    pub(super) way: Arc<Way>,
    pub(super) is_grpc: bool,
    pub(super) pending: Pending,
}

/// What became of it.
pub(super) enum Fate {
    Answered { response: Response<Incoming>, line: Line, held: Held, pending: Pending },
    Failed { answer: Answer, pending: Pending },
}

/// The connection that a response comes by.
pub(super) enum Line {
    /// Alone on it: it can be kept when the response is whole.
    First { sender: http1::SendRequest<Upload>, keep: Arc<AtomicBool>, is_last: bool },
    /// With others.
    Second,
}

impl Line {
    /// The response is whole.
    pub(super) fn keep(self) {
        if let Line::First { sender, keep, is_last } = self {
            keep.store(!is_last, Ordering::Release);
            drop(sender);
        }
    }
}

/// Connections of HTTP/2 to endpoints, by their ids.
#[derive(Debug, Default)]
pub(crate) struct Seconds {
    open: Mutex<HashMap<u64, Shared>>,
}

/// One of them.
#[derive(Debug)]
struct Shared {
    sender: http2::SendRequest<Upload>,
    /// How long it is kept unused, and until when.
    patience: Duration,
    until: Instant,
}

impl Seconds {
    fn open(&self) -> MutexGuard<'_, HashMap<u64, Shared>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, endpoint: &Endpoint, now: Instant) -> Option<http2::SendRequest<Upload>> {
        let mut open = self.open();
        let shared = open.get_mut(&endpoint.id()).filter(|shared| !shared.sender.is_closed())?;
        shared.until = later(now, shared.patience);
        Some(shared.sender.clone())
    }

    fn put(&self, endpoint: &Endpoint, sender: http2::SendRequest<Upload>, now: Instant, patience: Duration) {
        self.open().insert(endpoint.id(), Shared { sender, patience, until: later(now, patience) });
    }

    fn forget(&self, endpoint: &Endpoint) {
        self.open().remove(&endpoint.id());
    }

    /// Lets go of those that nobody has used for too long, such as those to endpoints that are gone. Calls under way are finished.
    pub(crate) fn sweep(&self, now: Instant) {
        self.open().retain(|_, shared| now < shared.until && !shared.sender.is_closed());
    }
}

/// How one try ended.
enum Tried {
    Answered(Response<Incoming>, Line),
    /// Nobody has heard of it: here it is again.
    Unsent(Request<Upload>, io::Error),
    Broken(Failure, String),
    /// The client is to blame.
    Faulty(Answer),
}

impl Call {
    /// Asks endpoints until one answers, as far as that is safe.
    pub(super) async fn ask(self, worker: &Arc<Worker>) -> Fate {
        let Call { head, body, body_timeout, way, is_grpc, mut pending } = self;
        let patience = body.patience(way.backend.response_timeout, body_timeout);
        let is_harmless = body.is_empty() && head.method.is_idempotent();
        let again = is_harmless.then(|| head.clone());
        let mut request = Request::from_parts(head, body);
        let mut tried: Vec<Arc<Endpoint>> = Vec::new();
        let mut failure = Answer::Nobody;
        for tries in 1..=MOST_TRIES {
            let Some(endpoint) = way.backend.pick(worker.uptime(), &tried) else { break };
            pending.tried(&endpoint, tries);
            let held = endpoint.hold();
            let (is_kept, outcome) = if is_grpc {
                by_second(worker, &way, &endpoint, request, &patience).await
            } else {
                by_first(worker, &way, &endpoint, request, &patience).await
            };
            match outcome {
                Tried::Answered(response, line) => return Fate::Answered { response, line, held, pending },
                Tried::Unsent(unsent, error) => {
                    request = unsent;
                    let (answer, is_theirs) = unconnected(&error);
                    failure = answer;
                    if !is_kept {
                        if is_theirs {
                            worker.trouble(&endpoint, Failure::Connect, &error);
                            endpoint.failed(worker.uptime());
                        }
                        tried.push(endpoint);
                    }
                }
                Tried::Faulty(answer) => return Fate::Failed { answer, pending },
                Tried::Broken(trouble, why) => {
                    worker.trouble(&endpoint, trouble, &why);
                    failure = if trouble == Failure::Timeout { Answer::Late } else { Answer::Failed };
                    let Some(head) = again.clone().filter(|_| trouble == Failure::Closed) else { break };
                    request = Request::from_parts(head, Upload::default());
                    if !is_kept {
                        tried.push(endpoint);
                    }
                }
            }
        }
        Fate::Failed { answer: failure, pending }
    }
}

/// By HTTP/1, alone on a connection. Whether the connection was there before.
async fn by_first(
    worker: &Arc<Worker>,
    way: &Way,
    endpoint: &Arc<Endpoint>,
    request: Request<Upload>,
    patience: &Patience,
) -> (bool, Tried) {
    let kept = worker.pool.take(endpoint);
    let is_kept = kept.is_some();
    let stream = match kept {
        Some(stream) => stream,
        None => match connect(endpoint, way.backend.connect_timeout).await {
            Ok(stream) => {
                endpoint.connected();
                stream
            }
            Err(error) => return (is_kept, Tried::Unsent(request, error)),
        },
    };
    let keep = Arc::new(AtomicBool::new(false));
    let mut sender = match first(worker, way, endpoint, stream, &keep).await {
        Ok(sender) => sender,
        Err(error) => return (is_kept, Tried::Unsent(request, io::Error::other(error))),
    };
    let tried = match patience.wait(sender.try_send_request(request)).await {
        Ok(Ok(response)) => {
            let is_last = is_last(&response);
            Tried::Answered(response, Line::First { sender, keep, is_last })
        }
        Ok(Err(mut error)) => match error.take_message() {
            Some(request) => Tried::Unsent(request, io::Error::other(error.into_error())),
            None => broken(error.error(), patience),
        },
        Err(late) => late_by(late),
    };
    (is_kept, tried)
}

async fn first(
    worker: &Arc<Worker>,
    way: &Way,
    endpoint: &Arc<Endpoint>,
    stream: TcpStream,
    keep: &Arc<AtomicBool>,
) -> hyper::Result<http1::SendRequest<Upload>> {
    let mut builder = http1::Builder::new();
    builder.max_headers(MOST_FIELDS).max_buf_size(LARGEST_HEAD);
    let (sender, mut connection) = builder.handshake(TokioIo::new(stream)).await?;
    let (worker, endpoint, keep) = (Arc::clone(worker), Arc::clone(endpoint), Arc::clone(keep));
    let patience = way.backend.idle_timeout;
    tokio::spawn(async move {
        let ended = std::future::poll_fn(|cx| connection.poll_without_shutdown(cx)).await;
        let parts = connection.into_parts();
        if ended.is_ok() && keep.load(Ordering::Acquire) && parts.read_buf.is_empty() {
            worker.pool.keep(&endpoint, parts.io.into_inner(), worker.now(), patience);
        }
    });
    Ok(sender)
}

/// By HTTP/2, on a connection with others. Whether the connection was there before.
async fn by_second(
    worker: &Arc<Worker>,
    way: &Way,
    endpoint: &Arc<Endpoint>,
    request: Request<Upload>,
    patience: &Patience,
) -> (bool, Tried) {
    let kept = worker.seconds.get(endpoint, worker.now());
    let is_kept = kept.is_some();
    let mut sender = match kept {
        Some(sender) => sender,
        None => match second(way, endpoint).await {
            Ok(sender) => {
                endpoint.connected();
                worker.seconds.put(endpoint, sender.clone(), worker.now(), way.backend.idle_timeout);
                sender
            }
            Err(error) => return (is_kept, Tried::Unsent(request, error)),
        },
    };
    let tried = match patience.wait(sender.try_send_request(request)).await {
        Ok(Ok(response)) => Tried::Answered(response, Line::Second),
        Ok(Err(mut error)) => {
            worker.seconds.forget(endpoint);
            match error.take_message() {
                Some(request) => Tried::Unsent(request, io::Error::other(error.into_error())),
                None => broken(error.error(), patience),
            }
        }
        Err(late) => late_by(late),
    };
    (is_kept, tried)
}

async fn second(way: &Way, endpoint: &Endpoint) -> io::Result<http2::SendRequest<Upload>> {
    let stream = connect(endpoint, way.backend.connect_timeout).await?;
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.timer(TokioTimer::new()).keep_alive_interval(ASK_EVERY).keep_alive_timeout(ASK_EVERY);
    let shaken = timeout(way.backend.connect_timeout, builder.handshake(TokioIo::new(stream)));
    let (sender, connection) =
        shaken.await.map_err(|_| io::ErrorKind::TimedOut)?.map_err(io::Error::other)?;
    tokio::spawn(connection);
    Ok(sender)
}

/// What it means that nothing came in time.
fn late_by(whom: Late) -> Tried {
    match whom {
        Late::Client => Tried::Faulty(Answer::Slow),
        Late::Endpoint => Tried::Broken(Failure::Timeout, "it took too long".to_owned()),
    }
}

fn broken(error: &hyper::Error, patience: &Patience) -> Tried {
    if patience.is_too_large() {
        return Tried::Faulty(Answer::Flawed(Flaw::LargeBody));
    }
    let trouble = if error.is_parse() { Failure::Protocol } else { Failure::Closed };
    Tried::Broken(trouble, error.to_string())
}

/// Whether an endpoint says nothing more on this connection.
fn is_last(response: &Response<Incoming>) -> bool {
    let values = response.headers().get_all(http::header::CONNECTION);
    response.version() != http::Version::HTTP_11
        || crate::wire::header_fields::names(values.iter().map(http::HeaderValue::as_bytes), b"close")
}
