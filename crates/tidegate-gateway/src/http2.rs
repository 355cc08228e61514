//! HTTP/2: hyper speaks it with clients; requests go to endpoints by HTTP/1, and calls of gRPC by HTTP/2.
//!
//! ```text
//!   stream ──▶ hyper ──▶ call ──▶ way, limits ──▶ endpoint ──▶ Relayed ──▶ hyper ──▶ stream
//! ```
//!
//! A request counts when its head is here; whoever resets it gets nothing back. Streams that are reset before anybody looked at them are
//! bounded by hyper ([`MOST_RESET`]), which then ends the connection.

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

use crate::buffers::Buffer;
use crate::client_connection::Guest;
use crate::deadline::{Interruption, Midst, Pace};
use crate::handshake::{Begun, Stream};
use crate::http1::FAREWELL;
use crate::local_reply::Answer;
use crate::request_log::Story;
use crate::wire::{Flaw, LARGEST_HEAD};
use crate::worker::Over;
use pending_call::Pending;
pub(crate) use response_body::Responses;
use response_body::Said;
pub(crate) use upstream_call::Seconds;
use upstream_call::{Call, Fate};

/// The most calls that may be open at once on one connection.
const MOST_STREAMS: u32 = 128;
/// The most calls of one connection that may be reset before anybody has looked at them.
const MOST_RESET: usize = 20;
/// How often a client that says nothing is asked whether it is still there.
const ASK_EVERY: Duration = Duration::from_secs(30);
/// How much of a response may be on its way to a client that does not take it.
const MOST_UNTAKEN: usize = 256 * 1024;

/// Serves a connection.
pub(crate) async fn serve<S: Stream>(stream: S, arrived: Buffer, guest: Guest) -> Over {
    let idle = guest.worker.site().spec.server.idle_timeout;
    let mut pace = Pace::new(&guest.worker.house.ending, Instant::now(), idle);
    let guest = Arc::new(guest);
    let open = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&open);
    let carrier = Arc::clone(&guest);
    let service = service_fn(move |request| {
        let call = Open::new(&counted);
        let guest = Arc::clone(&guest);
        async move { Ok::<_, Infallible>(answer(request, guest, call).await) }
    });
    let connection = builder().serve_connection(TokioIo::new(Begun::new(arrived, stream)), service);
    let mut connection = std::pin::pin!(connection);
    let mut ends: Option<(Over, Instant)> = None;
    let mut was_busy = false;
    std::future::poll_fn(|cx| {
        loop {
            if let Poll::Ready(done) = connection.as_mut().poll(cx) {
                return Poll::Ready(ends.map_or_else(|| over(&done), |(over, _)| over));
            }
            let now = Instant::now();
            let is_busy = open.load(Ordering::Acquire) > 0;
            if is_busy != was_busy && ends.is_none() {
                was_busy = is_busy;
                pace.within(now, if is_busy { Duration::MAX } else { idle });
            }
            if ends.is_none() && carrier.has_carried_enough() {
                // Calls under way are finished; others come by another connection.
                pace.within(now, Duration::MAX);
                ends = Some((Over::Said, now));
                connection.as_mut().graceful_shutdown();
                continue;
            }
            let midst = if ends.is_some() { Midst::Something } else { Midst::Nothing };
            match (pace.poll(cx, midst), ends) {
                (Poll::Pending, _) | (Poll::Ready(Interruption::Ending), Some(_)) => return Poll::Pending,
                (Poll::Ready(Interruption::Overdue), Some((over, _))) => return Poll::Ready(over),
                (Poll::Ready(Interruption::Overdue), None) => {
                    pace.within(now, FAREWELL);
                    ends = Some((Over::Idle, now));
                }
                (Poll::Ready(Interruption::Ending), None) => {
                    // Calls under way are finished; the worker knows how long that may take.
                    pace.within(now, Duration::MAX);
                    ends = Some((Over::Ending, now));
                }
            }
            connection.as_mut().graceful_shutdown();
        }
    })
    .await
}

/// Tells whoever asks for something that there is no room, and ends the connection.
pub(crate) async fn turn_away<S: Stream>(stream: Begun<S>, answer: Answer) {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let service = service_fn(move |request: Request<Incoming>| {
        counted.fetch_add(1, Ordering::AcqRel);
        let response = own(answer, is_grpc(request.headers()));
        async move { Ok::<_, Infallible>(response) }
    });
    let connection = builder().serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let mut is_ending = false;
    let _over = std::future::poll_fn(|cx| {
        loop {
            if let Poll::Ready(done) = connection.as_mut().poll(cx) {
                return Poll::Ready(done);
            }
            if is_ending || asked.load(Ordering::Acquire) == 0 {
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
        .max_concurrent_streams(MOST_STREAMS)
        .max_pending_accept_reset_streams(MOST_RESET)
        .max_local_error_reset_streams(MOST_RESET)
        .max_header_list_size(u32::try_from(LARGEST_HEAD).unwrap_or(u32::MAX))
        .max_send_buf_size(MOST_UNTAKEN)
        .keep_alive_interval(ASK_EVERY)
        .keep_alive_timeout(ASK_EVERY);
    builder
}

fn over(done: &hyper::Result<()>) -> Over {
    match done {
        Ok(()) => Over::Said,
        Err(error) => {
            let source = std::error::Error::source(error);
            let is_the_sockets =
                source.is_some_and(|source| source.downcast_ref::<std::io::Error>().is_some());
            if is_the_sockets || error.is_closed() || error.is_incomplete_message() {
                Over::Left
            } else {
                Over::Protocol
            }
        }
    }
}

/// A call that is under way.
#[derive(Debug)]
struct Open(Arc<AtomicUsize>);

impl Open {
    fn new(count: &Arc<AtomicUsize>) -> Open {
        count.fetch_add(1, Ordering::AcqRel);
        Open(Arc::clone(count))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// An answer of the gateway itself.
fn own(answer: Answer, is_grpc: bool) -> Response<Said> {
    let (status, headers, body) = answer.parts(is_grpc);
    let mut response = Response::new(Said::Whole(Bytes::from(body.into_owned()).into()));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

fn is_grpc(headers: &HeaderMap) -> bool {
    let value = headers.get(http::header::CONTENT_TYPE);
    value.is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}

/// Replies a request.
async fn answer(request: Request<Incoming>, guest: Arc<Guest>, open: Open) -> Response<Said> {
    let worker = Arc::clone(&guest.worker);
    let site = worker.site();
    let is_grpc = is_grpc(request.headers());
    let (mut head, body) = request.into_parts();
    let kept = headers::Kept::of(&head);
    let target = match headers::target(&head) {
        Ok(target) => target,
        Err(flaw) => {
            let answer = Answer::Flawed(flaw);
            Story::new(guest.peer, "HTTP/2.0", worker.now()).answered(&worker, &kept.asked(), answer);
            return own(answer, is_grpc);
        }
    };
    let name = site.spec.server.client_header.as_deref().and_then(|name| {
        let mut values = head.headers.get_all(name).iter();
        values.next().filter(|_| values.next().is_none())
    });
    let forwarded: Vec<&[u8]> =
        head.headers.get_all("x-forwarded-for").iter().map(http::HeaderValue::as_bytes).collect();
    let sender = guest.sender(&site, forwarded.into_iter(), name.map(http::HeaderValue::as_bytes));
    let mut story = Story::new(sender.address, "HTTP/2.0", worker.now());
    let way = site.find(&target.host, &target.path).cloned();
    let admitted = match &way {
        None => Err(Answer::NoRoute),
        Some(way) => {
            story.goes(way);
            guest.ask(way, &sender)
        }
    };
    story.is_from(&worker, &sender, admitted.as_ref().err().copied());
    let most = site.spec.server.max_body;
    let too_large = hyper::body::Body::size_hint(&body).lower() > most;
    let admitted = admitted.and(if too_large { Err(Answer::Flawed(Flaw::LargeBody)) } else { Ok(()) });
    let (Some(way), Ok(())) = (way, admitted) else {
        let answer = admitted.err().unwrap_or(Answer::NoRoute);
        story.answered(&worker, &kept.asked(), answer);
        return own(answer, is_grpc);
    };
    headers::prepare(&mut head, &target, &guest.forwarded(&site), is_grpc);
    let patience = site.spec.server.body_timeout;
    let upload = request_body::Upload::new(body, most, worker.now());
    let progress = upload.progress();
    let pending = Pending::new(story, kept, Arc::clone(&worker), progress);
    let call = Call { head, body: upload, body_timeout: patience, way, is_grpc, pending };
    match call.ask(&worker).await {
        Fate::Answered { response, line, held, pending } => {
            let (mut head, body) = response.into_parts();
            headers::cleanse(&mut head.headers);
            head.version = http::Version::HTTP_2;
            let ending = response_body::Ending { line, held, pending, open };
            let relayed = response_body::Relayed::shared(body, head.status.as_u16(), patience, ending);
            Response::from_parts(head, Said::Relayed(relayed))
        }
        Fate::Failed { answer, pending } => {
            pending.answered(answer);
            own(answer, is_grpc)
        }
    }
}
