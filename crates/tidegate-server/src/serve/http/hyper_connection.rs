//! The general way: whatever HTTP allows, read by hyper.
//!
//! hyper takes a silence between two requests for a head that takes too long, does not end a connection of HTTP/2 that answers its
//! pings, and does not care whether an answer is taken. So its own clock is off, and how the client behaves is watched here
//! ([`Calls`]): half a head must become a whole one in time, a body too, and who asks for nothing is idle.

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

use super::response_body::Said;
use super::request_tracker::{Calls, Doing};
use super::http1_request::PREFACE;
use super::buffered_stream::Rest;
use crate::http::events::Events;
use crate::http::problem::{Code, Problem};
use crate::http::{Announced, LARGEST_BODY};
use crate::metrics::Cut;
use crate::serve::Over;
use crate::serve::bounds::{FAREWELL, LARGEST_HEAD, MOST_DISCARDED, MOST_FIELDS, MOST_STREAMS};
use crate::serve::deadline_watch::{Interruption, Midst, Watch};
use crate::serve::worker::Worker;
use crate::tokens::Who;

/// Replies everything that a client says from here on.
pub(super) async fn serve(stream: TcpStream, heard: Vec<u8>, address: IpAddr, worker: &Arc<Worker>) -> Over {
    let bounds = &worker.house.bounds;
    let version = if heard.starts_with(PREFACE) { Version::Second } else { Version::First };
    let calls = Arc::new(Calls::new());
    // Bytes of HTTP/2 are not the beginning of a request more often than they are.
    let begins = (version == Version::First).then(|| Arc::clone(&calls));
    let io = TokioIo::new(Rest::new(stream, heard, bounds.write, begins));
    let shared = (Arc::clone(worker), Arc::clone(&calls));
    let service = service_fn(move |request: Request<Incoming>| {
        let (worker, calls) = (Arc::clone(&shared.0), Arc::clone(&shared.1));
        async move {
            let open = calls.begin();
            let (response, events) = answer(request, address, &worker).await;
            Ok::<_, Infallible>(response.map(|whole| match events {
                Some(events) => Said::Pieces { events, _call: open },
                None => Said::Whole(Full::new(whole)),
            }))
        }
    });
    if version == Version::Second {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(MOST_STREAMS)
            .max_header_list_size(u32::try_from(LARGEST_HEAD).unwrap_or(u32::MAX))
            .keep_alive_interval(bounds.idle / 2)
            .keep_alive_timeout(bounds.write);
        let connection = builder.serve_connection(io, service);
        watched(connection, http2::Connection::graceful_shutdown, version, &calls, worker).await
    } else {
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(None)
            .max_buf_size(LARGEST_HEAD)
            .max_headers(MOST_FIELDS);
        let connection = builder.serve_connection(io, service);
        watched(connection, http1::Connection::graceful_shutdown, version, &calls, worker).await
    }
}

/// Which version of HTTP a connection speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    First,
    Second,
}

/// Waits for the end of a connection, and brings it about if the client takes too long or the server ends.
async fn watched<C: Future<Output = hyper::Result<()>>>(
    connection: C,
    end: impl Fn(Pin<&mut C>),
    version: Version,
    calls: &Calls,
    worker: &Worker,
) -> Over {
    let bounds = &worker.house.bounds;
    let mut connection = pin!(connection);
    let mut watch = Watch::new(&worker.house.ending, Instant::now(), bounds.idle);
    // Why the connection is about to end, and by when it has to.
    let mut leaving: Option<(Over, Instant)> = None;
    std::future::poll_fn(|cx| {
        loop {
            if let Poll::Ready(done) = connection.as_mut().poll(cx) {
                return Poll::Ready(leaving.map_or_else(|| over(&done), |(over, _)| over));
            }
            let (now, doing) = (Instant::now(), calls.doing());
            let (midst, due) = match (leaving, doing) {
                (Some((_, by)), _) => (Midst::Request, by),
                (None, Doing::Call) => (Midst::Nothing, now + bounds.idle),
                (None, Doing::Half(since)) => (Midst::Request, since + bounds.head()),
                (None, Doing::Nothing(since)) => (Midst::Nothing, since + bounds.idle),
            };
            watch.due(due);
            let interruption = ready!(watch.poll(cx, midst));
            leaving = match (interruption, leaving, doing) {
                (Interruption::Overdue, Some((over, _)), _) => return Poll::Ready(over),
                (Interruption::Overdue, None, Doing::Half(_)) => {
                    return Poll::Ready(Over::Cut(Cut::SlowRequest));
                }
                (Interruption::Overdue, None, _) if version == Version::First => {
                    return Poll::Ready(Over::Cut(Cut::Idle));
                }
                // A client of HTTP/2 is told, so that it does not begin a call while it is sent away.
                (Interruption::Overdue, None, _) => Some((Over::Cut(Cut::Idle), now + FAREWELL)),
                (Interruption::Ending, ..) => Some((Over::Ending, now + bounds.drain)),
            };
            end(connection.as_mut());
        }
    })
    .await
}

/// How a connection ended that nobody here ended.
fn over(done: &hyper::Result<()>) -> Over {
    let Err(error) = done else { return Over::Said };
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>());
    if source.is_some_and(|error| error.kind() == io::ErrorKind::TimedOut) {
        Over::Cut(Cut::SlowReader)
    } else if error.is_parse_too_large() {
        Over::Cut(Cut::TooLarge)
    } else if error.is_parse() {
        Over::Cut(Cut::Protocol)
    } else {
        Over::Left
    }
}

/// The answer to a request, and what follows it piece by piece.
async fn answer(
    request: Request<Incoming>,
    address: IpAddr,
    worker: &Worker,
) -> (Response<Bytes>, Option<Events>) {
    let (mut head, mut body) = request.into_parts();
    let (is_head, is_second) = (head.method == Method::HEAD, head.version == ::http::Version::HTTP_2);
    let patience = worker.house.bounds.request;
    let who = worker.house.who(&head.headers, address);
    // Whoever says how much is to come need not send it to hear that it is too much.
    let announced = body.size_hint().exact().filter(|length| *length > LARGEST_BODY as u64);
    if let Some(length) = announced {
        head.extensions.insert(Announced(length));
    }
    // What a stranger sends is not worth the memory: no answer to them depends on it.
    let is_wanted = announced.is_none() && matches!(who, Ok(Who::Known(_)));
    let wanted = async { if is_wanted { collected(&mut body).await } else { Some(Bytes::new()) } };
    let heard = tokio::time::timeout(patience, wanted).await;
    if is_second && !body.is_end_stream() {
        tokio::spawn(tokio::time::timeout(patience, discarded(body)));
    }
    let Ok(body) = heard else {
        let mut response =
            Problem::new(Code::RequestTimeout, "the body did not come in time").into_response();
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        return (response, None);
    };
    let Some(body) = body else { return (Problem::bad_request("the body is broken").into_response(), None) };
    let start = worker.stopwatch.raw();
    let mut answered = worker.house.answered_to(Request::from_parts(head, body), who).await;
    if worker.house.ending.is_told() && !is_second {
        // It may be answered before hyper is told of the end.
        answered.response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    worker.counts.http_answered(&answered, worker.since(start));
    match answered.events {
        None if is_head => (without_body(answered.response), None),
        // Nobody knows how long what comes piece by piece will be, and to `HEAD` none of it comes.
        events => (answered.response, events.filter(|_| !is_head)),
    }
}

/// What `HEAD` is answered: everything but the body. Of HTTP/1 hyper knows this by itself.
fn without_body(mut response: Response<Bytes>) -> Response<Bytes> {
    let body = std::mem::take(response.body_mut());
    response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
    response
}

/// The whole body, or as much of it as shows that it is too large. `None` if it makes no sense.
async fn collected(body: &mut Incoming) -> Option<Bytes> {
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.ok()?.into_data() {
            whole.extend_from_slice(&data);
        }
        if whole.len() > LARGEST_BODY {
            break;
        }
    }
    Some(whole.freeze())
}

/// Reads on for a while what nobody wants, while it is answered. Otherwise the call would be reset behind its answer, as HTTP/2
/// has it, and many clients take that for a failure and never look at the answer.
async fn discarded(mut body: Incoming) {
    let mut length = 0;
    while let Some(Ok(frame)) = body.frame().await {
        length += frame.data_ref().map_or(0, Bytes::len);
        if length > MOST_DISCARDED {
            break;
        }
    }
}
