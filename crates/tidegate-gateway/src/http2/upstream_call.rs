//! Sends a call to an endpoint: over an exclusive HTTP/1 connection that is pooled afterwards, or over a
//! shared HTTP/2 connection.

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

use super::pending_call::PendingCall;
use super::request_body::{Http2RequestBody, LateParty, ResponseTimeout};
use crate::config_snapshot::RouteTarget;
use crate::deadline::deadline_after;
use crate::endpoints::{InFlightGuard, UpstreamEndpoint};
use crate::local_reply::LocalReply;
use crate::metrics::UpstreamFailure;
use crate::upstream_connect::{classify_connect_error, connect};
use crate::wire::{MAX_FIELDS, MAX_HEAD_BYTES, WireError};
use crate::worker::GatewayWorker;

/// The maximum number of endpoints or connections tried for one request.
const MAX_ATTEMPTS: u32 = 3;
/// The interval of PING frames to idle endpoints.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);

/// A request that is admitted and will be forwarded.
pub(super) struct UpstreamCall {
    pub(super) head: Parts,
    pub(super) body: Http2RequestBody,
    /// How long the body may make no progress.
    pub(super) body_timeout: Duration,
    pub(super) target: Arc<RouteTarget>,
    pub(super) is_grpc: bool,
    pub(super) pending: PendingCall,
}

/// The result of a call.
pub(super) enum CallOutcome {
    Answered {
        response: Response<Incoming>,
        upstream: UpstreamHandle,
        in_flight: InFlightGuard,
        pending: PendingCall,
    },
    Failed {
        reply: LocalReply,
        pending: PendingCall,
    },
}

/// The connection that carries a response.
pub(super) enum UpstreamHandle {
    /// Exclusive. It can be pooled when the response is complete.
    Http1 { sender: http1::SendRequest<Http2RequestBody>, keep: Arc<AtomicBool>, is_last: bool },
    /// Shared with other calls.
    Http2,
}

impl UpstreamHandle {
    /// Releases the connection after a complete response.
    pub(super) fn release(self) {
        if let UpstreamHandle::Http1 { sender, keep, is_last } = self {
            keep.store(!is_last, Ordering::Release);
            drop(sender);
        }
    }
}

/// HTTP/2 connections to endpoints, by endpoint id.
#[derive(Debug, Default)]
pub(crate) struct Http2Pool {
    open: Mutex<HashMap<u64, PooledHttp2Connection>>,
}

/// One shared connection.
#[derive(Debug)]
struct PooledHttp2Connection {
    sender: http2::SendRequest<Http2RequestBody>,
    /// How long it stays unused in the pool.
    max_wait: Duration,
    until: Instant,
}

impl Http2Pool {
    fn open(&self) -> MutexGuard<'_, HashMap<u64, PooledHttp2Connection>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, endpoint: &UpstreamEndpoint, now: Instant) -> Option<http2::SendRequest<Http2RequestBody>> {
        let mut open = self.open();
        let shared = open.get_mut(&endpoint.id()).filter(|shared| !shared.sender.is_closed())?;
        shared.until = deadline_after(now, shared.max_wait);
        Some(shared.sender.clone())
    }

    fn put(
        &self,
        endpoint: &UpstreamEndpoint,
        sender: http2::SendRequest<Http2RequestBody>,
        now: Instant,
        max_wait: Duration,
    ) {
        self.open().insert(
            endpoint.id(),
            PooledHttp2Connection { sender, max_wait, until: deadline_after(now, max_wait) },
        );
    }

    fn forget(&self, endpoint: &UpstreamEndpoint) {
        self.open().remove(&endpoint.id());
    }

    /// Removes connections that are unused for too long, such as those to removed endpoints. Active calls
    /// complete.
    pub(crate) fn sweep(&self, now: Instant) {
        self.open().retain(|_, shared| now < shared.until && !shared.sender.is_closed());
    }
}

/// The result of one attempt.
enum AttemptOutcome {
    Answered(Response<Incoming>, UpstreamHandle),
    /// The request was not sent and is returned.
    Unsent(Request<Http2RequestBody>, io::Error),
    Failed(UpstreamFailure, String),
    /// The client caused the failure.
    Rejected(LocalReply),
}

impl UpstreamCall {
    /// Tries endpoints until one answers, as long as a retry is safe.
    pub(super) async fn run(self, worker: &Arc<GatewayWorker>) -> CallOutcome {
        let UpstreamCall { head, body, body_timeout, target, is_grpc, mut pending } = self;
        let max_wait = body.response_timeout(target.backend.response_timeout, body_timeout);
        let is_idempotent = body.is_empty() && head.method.is_idempotent();
        let retry_head = is_idempotent.then(|| head.clone());
        let mut request = Request::from_parts(head, body);
        let mut tried: Vec<Arc<UpstreamEndpoint>> = Vec::new();
        let mut failure = LocalReply::NoEndpoint;
        for attempts in 1..=MAX_ATTEMPTS {
            let Some(endpoint) = target.backend.pick(worker.uptime(), &tried) else { break };
            pending.set_endpoint(&endpoint, attempts);
            let in_flight = endpoint.begin_request();
            let (is_pooled, outcome) = if is_grpc {
                call_http2(worker, &target, &endpoint, request, &max_wait).await
            } else {
                call_http1(worker, &target, &endpoint, request, &max_wait).await
            };
            match outcome {
                AttemptOutcome::Answered(response, upstream) => {
                    return CallOutcome::Answered { response, upstream, in_flight, pending };
                }
                AttemptOutcome::Unsent(unsent, error) => {
                    request = unsent;
                    let (reply, is_endpoint_fault) = classify_connect_error(&error);
                    failure = reply;
                    if !is_pooled {
                        if is_endpoint_fault {
                            worker.record_upstream_failure(&endpoint, UpstreamFailure::Connect, &error);
                            endpoint.record_connect_failure(worker.uptime());
                        }
                        tried.push(endpoint);
                    }
                }
                AttemptOutcome::Rejected(reply) => return CallOutcome::Failed { reply, pending },
                AttemptOutcome::Failed(failure_kind, why) => {
                    worker.record_upstream_failure(&endpoint, failure_kind, &why);
                    failure = if failure_kind == UpstreamFailure::Timeout {
                        LocalReply::GatewayTimeout
                    } else {
                        LocalReply::BadGateway
                    };
                    let Some(head) = retry_head.clone().filter(|_| failure_kind == UpstreamFailure::Closed)
                    else {
                        break;
                    };
                    request = Request::from_parts(head, Http2RequestBody::default());
                    if !is_pooled {
                        tried.push(endpoint);
                    }
                }
            }
        }
        CallOutcome::Failed { reply: failure, pending }
    }
}

/// Calls over HTTP/1. Also returns whether the connection came from the pool.
async fn call_http1(
    worker: &Arc<GatewayWorker>,
    target: &RouteTarget,
    endpoint: &Arc<UpstreamEndpoint>,
    request: Request<Http2RequestBody>,
    max_wait: &ResponseTimeout,
) -> (bool, AttemptOutcome) {
    let pooled = worker.http1_pool.take(endpoint);
    let is_pooled = pooled.is_some();
    let stream = match pooled {
        Some(stream) => stream,
        None => match connect(endpoint, target.backend.connect_timeout).await {
            Ok(stream) => {
                endpoint.record_connect();
                stream
            }
            Err(error) => return (is_pooled, AttemptOutcome::Unsent(request, error)),
        },
    };
    let keep = Arc::new(AtomicBool::new(false));
    let mut sender = match handshake_http1(worker, target, endpoint, stream, &keep).await {
        Ok(sender) => sender,
        Err(error) => return (is_pooled, AttemptOutcome::Unsent(request, io::Error::other(error))),
    };
    let tried = match max_wait.wait(sender.try_send_request(request)).await {
        Ok(Ok(response)) => {
            let is_last = is_last(&response);
            AttemptOutcome::Answered(response, UpstreamHandle::Http1 { sender, keep, is_last })
        }
        Ok(Err(mut error)) => match error.take_message() {
            Some(request) => AttemptOutcome::Unsent(request, io::Error::other(error.into_error())),
            None => error_outcome(error.error(), max_wait),
        },
        Err(late) => timeout_outcome(late),
    };
    (is_pooled, tried)
}

async fn handshake_http1(
    worker: &Arc<GatewayWorker>,
    target: &RouteTarget,
    endpoint: &Arc<UpstreamEndpoint>,
    stream: TcpStream,
    keep: &Arc<AtomicBool>,
) -> hyper::Result<http1::SendRequest<Http2RequestBody>> {
    let mut builder = http1::Builder::new();
    builder.max_headers(MAX_FIELDS).max_buf_size(MAX_HEAD_BYTES);
    let (sender, mut connection) = builder.handshake(TokioIo::new(stream)).await?;
    let (worker, endpoint, keep) = (Arc::clone(worker), Arc::clone(endpoint), Arc::clone(keep));
    let max_wait = target.backend.idle_timeout;
    tokio::spawn(async move {
        let ended = std::future::poll_fn(|cx| connection.poll_without_shutdown(cx)).await;
        let parts = connection.into_parts();
        if ended.is_ok() && keep.load(Ordering::Acquire) && parts.read_buf.is_empty() {
            worker.http1_pool.keep(&endpoint, parts.io.into_inner(), worker.now(), max_wait);
        }
    });
    Ok(sender)
}

/// Calls over HTTP/2. Also returns whether the connection came from the pool.
async fn call_http2(
    worker: &Arc<GatewayWorker>,
    target: &RouteTarget,
    endpoint: &Arc<UpstreamEndpoint>,
    request: Request<Http2RequestBody>,
    max_wait: &ResponseTimeout,
) -> (bool, AttemptOutcome) {
    let pooled = worker.http2_pool.get(endpoint, worker.now());
    let is_pooled = pooled.is_some();
    let mut sender = match pooled {
        Some(sender) => sender,
        None => match connect_http2(target, endpoint).await {
            Ok(sender) => {
                endpoint.record_connect();
                worker.http2_pool.put(endpoint, sender.clone(), worker.now(), target.backend.idle_timeout);
                sender
            }
            Err(error) => return (is_pooled, AttemptOutcome::Unsent(request, error)),
        },
    };
    let tried = match max_wait.wait(sender.try_send_request(request)).await {
        Ok(Ok(response)) => AttemptOutcome::Answered(response, UpstreamHandle::Http2),
        Ok(Err(mut error)) => {
            worker.http2_pool.forget(endpoint);
            match error.take_message() {
                Some(request) => AttemptOutcome::Unsent(request, io::Error::other(error.into_error())),
                None => error_outcome(error.error(), max_wait),
            }
        }
        Err(late) => timeout_outcome(late),
    };
    (is_pooled, tried)
}

async fn connect_http2(
    target: &RouteTarget,
    endpoint: &UpstreamEndpoint,
) -> io::Result<http2::SendRequest<Http2RequestBody>> {
    let stream = connect(endpoint, target.backend.connect_timeout).await?;
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_INTERVAL);
    let handshake = timeout(target.backend.connect_timeout, builder.handshake(TokioIo::new(stream)));
    let (sender, connection) =
        handshake.await.map_err(|_| io::ErrorKind::TimedOut)?.map_err(io::Error::other)?;
    tokio::spawn(connection);
    Ok(sender)
}

/// Maps a timeout to an outcome.
fn timeout_outcome(party: LateParty) -> AttemptOutcome {
    match party {
        LateParty::Client => AttemptOutcome::Rejected(LocalReply::RequestTimeout),
        LateParty::Endpoint => {
            AttemptOutcome::Failed(UpstreamFailure::Timeout, "the endpoint did not answer in time".to_owned())
        }
    }
}

fn error_outcome(error: &hyper::Error, max_wait: &ResponseTimeout) -> AttemptOutcome {
    if max_wait.is_too_large() {
        return AttemptOutcome::Rejected(LocalReply::Invalid(WireError::BodyTooLarge));
    }
    let failure_kind = if error.is_parse() { UpstreamFailure::Protocol } else { UpstreamFailure::Closed };
    AttemptOutcome::Failed(failure_kind, error.to_string())
}

/// Whether the endpoint will close the connection after this response.
fn is_last(response: &Response<Incoming>) -> bool {
    let values = response.headers().get_all(http::header::CONNECTION);
    response.version() != http::Version::HTTP_11
        || crate::wire::header_fields::list_contains(values.iter().map(http::HeaderValue::as_bytes), b"close")
}
