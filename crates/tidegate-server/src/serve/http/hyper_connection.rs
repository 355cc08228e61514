//! A connection served by hyper: the full HTTP/1.1 and HTTP/2.
//!
//! hyper's header timeout also counts the silence between two requests, its HTTP/2 server keeps a connection as long as pings are
//! answered, and it has no write timeout. So its timeouts are off. [`RequestTracker`] and [`DeadlineWatch`] enforce the bounds: a head and a
//! body must be complete in time, and a connection without requests is idle.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Poll, ready};

use ::http::header::{CONNECTION, CONTENT_LENGTH};
use ::http::{HeaderValue, Method, Request, Response};
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::buffered_stream::BufferedStream;
use super::http1_request::PREFACE;
use super::request_tracker::{ClientPhase, RequestTracker};
use super::response_body::ResponseBody;
use crate::http::events::EventStream;
use crate::http::problem::{Problem, ProblemCode};
use crate::http::{MAX_BODY_BYTES, OversizedBody};
use crate::metrics::CutReason;
use crate::serve::ConnectionEnd;
use crate::serve::bounds::{
    LINGER_TIMEOUT, MAX_DISCARDED_BODY, MAX_HEAD_BYTES, MAX_HEADER_FIELDS, MAX_HTTP2_STREAMS,
};
use crate::serve::deadline_watch::{DeadlineWatch, RequestPhase, WaitInterrupt};
use crate::serve::worker::ServerWorker;
use crate::tokens::Caller;

/// Serves all further requests of a connection.
pub(super) async fn serve(
    stream: TcpStream,
    input: Vec<u8>,
    address: IpAddr,
    worker: &Arc<ServerWorker>,
) -> ConnectionEnd {
    let bounds = &worker.state.bounds;
    let version = if input.starts_with(PREFACE) { HttpVersion::Http2 } else { HttpVersion::Http1 };
    let tracker = Arc::new(RequestTracker::new());
    // Bytes of HTTP/2 are rarely the beginning of a request, so they are not tracked.
    let begins = (version == HttpVersion::Http1).then(|| Arc::clone(&tracker));
    let io = TokioIo::new(BufferedStream::new(stream, input, bounds.write, begins));
    let shared = (Arc::clone(worker), Arc::clone(&tracker));
    let service = service_fn(move |request: Request<Incoming>| {
        let (worker, tracker) = (Arc::clone(&shared.0), Arc::clone(&shared.1));
        async move {
            let open = tracker.begin();
            let (response, events) = answer(request, address, &worker).await;
            Ok::<_, Infallible>(response.map(|whole| match events {
                Some(events) => ResponseBody::Stream { events, _request: open },
                None => ResponseBody::Whole(Full::new(whole)),
            }))
        }
    });
    if version == HttpVersion::Http2 {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_HTTP2_STREAMS)
            .max_header_list_size(u32::try_from(MAX_HEAD_BYTES).unwrap_or(u32::MAX))
            .keep_alive_interval(bounds.idle / 2)
            .keep_alive_timeout(bounds.write);
        let connection = builder.serve_connection(io, service);
        supervise(connection, http2::Connection::graceful_shutdown, version, &tracker, worker).await
    } else {
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(None)
            .max_buf_size(MAX_HEAD_BYTES)
            .max_headers(MAX_HEADER_FIELDS);
        let connection = builder.serve_connection(io, service);
        supervise(connection, http1::Connection::graceful_shutdown, version, &tracker, worker).await
    }
}

/// The HTTP version of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HttpVersion {
    Http1,
    Http2,
}

/// Waits for the end of a connection, and ends it when a deadline passes or the server shuts down.
async fn supervise<C: Future<Output = hyper::Result<()>>>(
    connection: C,
    end: impl Fn(Pin<&mut C>),
    version: HttpVersion,
    tracker: &RequestTracker,
    worker: &ServerWorker,
) -> ConnectionEnd {
    let bounds = &worker.state.bounds;
    let mut connection = pin!(connection);
    let mut watch = DeadlineWatch::new(&worker.state.shutdown, Instant::now(), bounds.idle);
    // Why the connection is closing, and its last deadline.
    let mut closing: Option<(ConnectionEnd, Instant)> = None;
    std::future::poll_fn(|cx| {
        loop {
            if let Poll::Ready(done) = connection.as_mut().poll(cx) {
                return Poll::Ready(closing.map_or_else(|| end_of(&done), |(end, _)| end));
            }
            let (now, client) = (Instant::now(), tracker.phase());
            let (phase, deadline) = match (closing, client) {
                (Some((_, by)), _) => (RequestPhase::InRequest, by),
                (None, ClientPhase::InRequest) => (RequestPhase::Idle, now + bounds.idle),
                (None, ClientPhase::PartialHead(since)) => (RequestPhase::InRequest, since + bounds.head()),
                (None, ClientPhase::Idle(since)) => (RequestPhase::Idle, since + bounds.idle),
            };
            watch.set_deadline(deadline);
            let interruption = ready!(watch.poll(cx, phase));
            closing = match (interruption, closing, client) {
                (WaitInterrupt::DeadlinePassed, Some((end, _)), _) => return Poll::Ready(end),
                (WaitInterrupt::DeadlinePassed, None, ClientPhase::PartialHead(_)) => {
                    return Poll::Ready(ConnectionEnd::Cut(CutReason::SlowRequest));
                }
                (WaitInterrupt::DeadlinePassed, None, _) if version == HttpVersion::Http1 => {
                    return Poll::Ready(ConnectionEnd::Cut(CutReason::Idle));
                }
                // An HTTP/2 client gets a GOAWAY, so that it does not start a request on a closing connection.
                (WaitInterrupt::DeadlinePassed, None, _) => {
                    Some((ConnectionEnd::Cut(CutReason::Idle), now + LINGER_TIMEOUT))
                }
                (WaitInterrupt::Shutdown, ..) => Some((ConnectionEnd::Draining, now + bounds.drain)),
            };
            end(connection.as_mut());
        }
    })
    .await
}

/// How a connection ended that the server did not end.
fn end_of(done: &hyper::Result<()>) -> ConnectionEnd {
    let Err(error) = done else { return ConnectionEnd::Completed };
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>());
    if source.is_some_and(|error| error.kind() == io::ErrorKind::TimedOut) {
        ConnectionEnd::Cut(CutReason::SlowReader)
    } else if error.is_parse_too_large() {
        ConnectionEnd::Cut(CutReason::TooLarge)
    } else if error.is_parse() {
        ConnectionEnd::Cut(CutReason::Protocol)
    } else {
        ConnectionEnd::ClientClosed
    }
}

/// The response to a request, and the event stream behind it.
async fn answer(
    request: Request<Incoming>,
    address: IpAddr,
    worker: &ServerWorker,
) -> (Response<Bytes>, Option<EventStream>) {
    let (mut head, mut body) = request.into_parts();
    let (is_head, is_http2) = (head.method == Method::HEAD, head.version == ::http::Version::HTTP_2);
    let timeout = worker.state.bounds.request;
    let caller = worker.state.identify_caller(&head.headers, address);
    // A declared length over the bound is refused without reading the body.
    let declared = body.size_hint().exact().filter(|length| *length > MAX_BODY_BYTES as u64);
    if let Some(length) = declared {
        head.extensions.insert(OversizedBody(length));
    }
    // The response to an unauthenticated caller does not depend on the body, so it is not buffered.
    let is_wanted = declared.is_none() && matches!(caller, Ok(Caller::Authenticated(_)));
    let wanted = async { if is_wanted { collect_body(&mut body).await } else { Some(Bytes::new()) } };
    let input = tokio::time::timeout(timeout, wanted).await;
    if is_http2 && !body.is_end_stream() {
        tokio::spawn(tokio::time::timeout(timeout, discard_body(body)));
    }
    let Ok(body) = input else {
        let mut response =
            Problem::new(ProblemCode::RequestTimeout, "the body did not come in time").into_response();
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        return (response, None);
    };
    let Some(body) = body else {
        return (Problem::bad_request("the body cannot be read").into_response(), None);
    };
    let start = worker.timer.raw();
    let mut answered = worker.state.respond_to(Request::from_parts(head, body), caller).await;
    if worker.state.shutdown.is_triggered() && !is_http2 {
        // The response may be sent before hyper learns of the shutdown.
        answered.response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    worker.metrics.http_answered(&answered, worker.since(start));
    match answered.events {
        None if is_head => (strip_body(answered.response), None),
        // An event stream has no known length, and `HEAD` gets none of it.
        events => (answered.response, events.filter(|_| !is_head)),
    }
}

/// Replaces the body by its length for `HEAD` over HTTP/2. For HTTP/1 hyper does this.
fn strip_body(mut response: Response<Bytes>) -> Response<Bytes> {
    let body = std::mem::take(response.body_mut());
    response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
    response
}

/// Reads the body, or as much as shows that it is too large. `None` if it is malformed.
async fn collect_body(body: &mut Incoming) -> Option<Bytes> {
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.ok()?.into_data() {
            whole.extend_from_slice(&data);
        }
        if whole.len() > MAX_BODY_BYTES {
            break;
        }
    }
    Some(whole.freeze())
}

/// Reads and discards the rest of an unwanted body while the response is sent. Otherwise HTTP/2 resets the stream behind the response,
/// which many clients report as a failure without reading the response.
async fn discard_body(mut body: Incoming) {
    let mut length = 0;
    while let Some(Ok(frame)) = body.frame().await {
        length += frame.data_ref().map_or(0, Bytes::len);
        if length > MAX_DISCARDED_BODY {
            break;
        }
    }
}
