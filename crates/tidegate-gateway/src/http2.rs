//! HTTP/2 connections. hyper handles the framing; requests go to endpoints end HTTP/1, gRPC calls end HTTP/2.
//!
//! ```text
//!   stream ──▶ hyper ──▶ handle_request ──▶ route, limits ──▶ endpoint ──▶ RelayedResponse ──▶ hyper ──▶ stream
//! ```
//!
//! A request counts when its head arrives; a reset does not refund it. hyper bounds the streams that are reset before the
//! gateway sees them ([`MAX_RESET`]) and closes the connection beyond that.

mod headers;
mod pending_call;
mod request_body;
mod response_body;
mod upstream_call;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::time::Instant;

use crate::buffers::ReadBuffer;
use crate::client_connection::ClientConnection;
use crate::deadline::{ConnectionActivity, ConnectionDeadline, Interruption};
use crate::handshake::{ClientStream, PrefixedStream};
use crate::http1::CLOSE_TIMEOUT;
use crate::local_reply::LocalReply;
use crate::request_log::RequestRecord;
use crate::wire::{MAX_HEAD_BYTES, WireError};
use crate::worker::ClientConnectionEnd;
use pending_call::PendingCall;
pub(crate) use response_body::ActiveResponses;
use response_body::Http2ResponseBody;
pub(crate) use upstream_call::Http2Pool;
use upstream_call::{CallOutcome, UpstreamCall};

/// The maximum number of concurrent streams per connection.
const MAX_STREAMS: u32 = 128;
/// The maximum number of pending reset streams per connection.
const MAX_RESET: usize = 20;
/// The interval of PING frames to idle clients.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);
/// The maximum number of response bytes buffered for a slow client.
const MAX_SEND_BUFFER: usize = 256 * 1024;

/// Serves a connection.
pub(crate) async fn serve<S: ClientStream>(
    stream: S,
    arrived: ReadBuffer,
    client: ClientConnection,
) -> ClientConnectionEnd {
    let idle = client.worker.config().spec.server.idle_timeout;
    let mut deadline = ConnectionDeadline::new(&client.worker.state.shutdown, Instant::now(), idle);
    let client = Arc::new(client);
    let open = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&open);
    let carrier = Arc::clone(&client);
    let service = service_fn(move |request| {
        let call = OpenCallGuard::new(&counted);
        let client = Arc::clone(&client);
        async move { Ok::<_, Infallible>(handle_request(request, client, call).await) }
    });
    let connection = builder().serve_connection(TokioIo::new(PrefixedStream::new(arrived, stream)), service);
    let mut connection = std::pin::pin!(connection);
    let mut ends: Option<(ClientConnectionEnd, Instant)> = None;
    let mut was_busy = false;
    std::future::poll_fn(|cx| {
        loop {
            if let Poll::Ready(done) = connection.as_mut().poll(cx) {
                return Poll::Ready(ends.map_or_else(|| connection_end(&done), |(end, _)| end));
            }
            let now = Instant::now();
            let is_busy = open.load(Ordering::Acquire) > 0;
            if is_busy != was_busy && ends.is_none() {
                was_busy = is_busy;
                deadline.set_timeout(now, if is_busy { Duration::MAX } else { idle });
            }
            if ends.is_none() && carrier.has_reached_client_limit() {
                // Active calls complete; new ones need a new connection.
                deadline.set_timeout(now, Duration::MAX);
                ends = Some((ClientConnectionEnd::Completed, now));
                connection.as_mut().graceful_shutdown();
                continue;
            }
            let activity = if ends.is_some() { ConnectionActivity::Busy } else { ConnectionActivity::Idle };
            match (deadline.poll(cx, activity), ends) {
                (Poll::Pending, _) | (Poll::Ready(Interruption::ShuttingDown), Some(_)) => {
                    return Poll::Pending;
                }
                (Poll::Ready(Interruption::TimedOut), Some((end, _))) => return Poll::Ready(end),
                (Poll::Ready(Interruption::TimedOut), None) => {
                    deadline.set_timeout(now, CLOSE_TIMEOUT);
                    ends = Some((ClientConnectionEnd::Idle, now));
                }
                (Poll::Ready(Interruption::ShuttingDown), None) => {
                    // Active calls complete; the worker enforces the drain timeout.
                    deadline.set_timeout(now, Duration::MAX);
                    ends = Some((ClientConnectionEnd::ShuttingDown, now));
                }
            }
            connection.as_mut().graceful_shutdown();
        }
    })
    .await
}

/// Answers the first requests with the refusal and closes the connection.
pub(crate) async fn reject_connection<S: ClientStream>(stream: PrefixedStream<S>, reply: LocalReply) {
    let request_count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&request_count);
    let service = service_fn(move |request: Request<Incoming>| {
        counted.fetch_add(1, Ordering::AcqRel);
        let response = local_response(reply, is_grpc(request.headers()));
        async move { Ok::<_, Infallible>(response) }
    });
    let connection = builder().serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let mut is_ending = false;
    let _result = std::future::poll_fn(|cx| {
        loop {
            if let Poll::Ready(done) = connection.as_mut().poll(cx) {
                return Poll::Ready(done);
            }
            if is_ending || request_count.load(Ordering::Acquire) == 0 {
                return Poll::Pending;
            }
            is_ending = true;
            connection.as_mut().graceful_shutdown();
        }
    })
    .await;
}

fn builder() -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_pending_accept_reset_streams(MAX_RESET)
        .max_local_error_reset_streams(MAX_RESET)
        .max_header_list_size(u32::try_from(MAX_HEAD_BYTES).unwrap_or(u32::MAX))
        .max_send_buf_size(MAX_SEND_BUFFER)
        .keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_INTERVAL);
    builder
}

fn connection_end(done: &hyper::Result<()>) -> ClientConnectionEnd {
    match done {
        Ok(()) => ClientConnectionEnd::Completed,
        Err(error) => {
            let source = std::error::Error::source(error);
            let is_the_sockets =
                source.is_some_and(|source| source.downcast_ref::<std::io::Error>().is_some());
            if is_the_sockets || error.is_closed() || error.is_incomplete_message() {
                ClientConnectionEnd::ClientClosed
            } else {
                ClientConnectionEnd::Protocol
            }
        }
    }
}

/// Counts an active call while it exists.
#[derive(Debug)]
struct OpenCallGuard(Arc<AtomicUsize>);

impl OpenCallGuard {
    fn new(count: &Arc<AtomicUsize>) -> OpenCallGuard {
        count.fetch_add(1, Ordering::AcqRel);
        OpenCallGuard(Arc::clone(count))
    }
}

impl Drop for OpenCallGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A response from the gateway itself.
fn local_response(reply: LocalReply, is_grpc: bool) -> Response<Http2ResponseBody> {
    let (status, headers, body) = reply.parts(is_grpc);
    let mut response = Response::new(Http2ResponseBody::Local(Bytes::from(body.into_owned()).into()));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

fn is_grpc(headers: &HeaderMap) -> bool {
    let value = headers.get(http::header::CONTENT_TYPE);
    value.is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}

/// Handles one request.
async fn handle_request(
    request: Request<Incoming>,
    client: Arc<ClientConnection>,
    open: OpenCallGuard,
) -> Response<Http2ResponseBody> {
    let worker = Arc::clone(&client.worker);
    let config = worker.config();
    let is_grpc = is_grpc(request.headers());
    let (mut head, body) = request.into_parts();
    let logged = headers::LoggedFields::from_head(&head);
    let request_target = match headers::target(&head) {
        Ok(target) => target,
        Err(error) => {
            let reply = LocalReply::Invalid(error);
            RequestRecord::new(client.peer, "HTTP/2.0", worker.now()).finish_with_reply(
                &worker,
                &logged.summary(),
                reply,
            );
            return local_response(reply, is_grpc);
        }
    };
    let name = config.spec.server.client_header.as_deref().and_then(|name| {
        let mut values = head.headers.get_all(name).iter();
        values.next().filter(|_| values.next().is_none())
    });
    let forwarded: Vec<&[u8]> =
        head.headers.get_all("x-forwarded-for").iter().map(http::HeaderValue::as_bytes).collect();
    let request_client =
        client.identify(&config, forwarded.into_iter(), name.map(http::HeaderValue::as_bytes));
    let mut record = RequestRecord::new(request_client.address, "HTTP/2.0", worker.now());
    let target = config.find_target(&request_target.host, &request_target.path).cloned();
    let admitted = match &target {
        None => Err(LocalReply::NoRoute),
        Some(target) => {
            record.set_target(target);
            client.admit(target, &request_client)
        }
    };
    record.set_client(&worker, &request_client, admitted.as_ref().err().copied());
    let most = config.spec.server.max_body;
    let too_large = hyper::body::Body::size_hint(&body).lower() > most;
    let admitted =
        admitted.and(if too_large { Err(LocalReply::Invalid(WireError::BodyTooLarge)) } else { Ok(()) });
    let (Some(target), Ok(())) = (target, admitted) else {
        let reply = admitted.err().unwrap_or(LocalReply::NoRoute);
        record.finish_with_reply(&worker, &logged.summary(), reply);
        return local_response(reply, is_grpc);
    };
    headers::rewrite_for_upstream(&mut head, &request_target, &client.forwarding_info(&config), is_grpc);
    let max_wait = config.spec.server.body_timeout;
    let upload = request_body::Http2RequestBody::new(body, most, worker.now());
    let progress = upload.progress();
    let pending = PendingCall::new(record, logged, Arc::clone(&worker), progress);
    let call = UpstreamCall { head, body: upload, body_timeout: max_wait, target, is_grpc, pending };
    match call.run(&worker).await {
        CallOutcome::Answered { response, upstream, in_flight, pending } => {
            let (mut head, body) = response.into_parts();
            headers::remove_hop_fields(&mut head.headers);
            head.version = http::Version::HTTP_2;
            let completion = response_body::ResponseCompletion { upstream, in_flight, pending, open };
            let relayed =
                response_body::RelayedResponse::shared(body, head.status.as_u16(), max_wait, completion);
            Response::from_parts(head, Http2ResponseBody::Relayed(relayed))
        }
        CallOutcome::Failed { reply, pending } => {
            pending.finish_with_reply(reply);
            local_response(reply, is_grpc)
        }
    }
}
