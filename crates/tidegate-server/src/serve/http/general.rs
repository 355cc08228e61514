//! The general way: whatever HTTP allows, read by hyper.

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use ::http::header::{CONNECTION, CONTENT_LENGTH};
use ::http::{HeaderValue, Method, Request, Response};
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tidegate_core::order::LONGEST_PATIENCE;
use tokio::net::TcpStream;

use super::rest::Rest;
use crate::http::LARGEST_BODY;
use crate::http::problem::{Code, Problem};
use crate::metrics::Cut;
use crate::serve::Over;
use crate::serve::bounds::{LARGEST_HEAD, MOST_DISCARDED, MOST_STREAMS};
use crate::serve::worker::Worker;

/// What every HTTP/2 connection begins with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n";

/// How long a connection may be silent between two requests; hyper does not tell this from a head that takes too long.
const BETWEEN_REQUESTS: Duration = Duration::from_secs(30);

/// Answers everything that a client says from here on.
pub(super) async fn serve(stream: TcpStream, heard: Vec<u8>, address: IpAddr, worker: &Arc<Worker>) -> Over {
    let bounds = &worker.house.bounds;
    let is_second = heard.starts_with(PREFACE);
    // Who waits in line says nothing meanwhile.
    let silence = bounds.idle.max(LONGEST_PATIENCE + Duration::from_secs(5));
    let io = TokioIo::new(Rest::new(stream, heard, silence, bounds.write));
    let shared = Arc::clone(worker);
    let service = service_fn(move |request: Request<Incoming>| {
        let worker = Arc::clone(&shared);
        async move { Ok::<_, Infallible>(answer(request, address, &worker).await.map(Full::new)) }
    });
    let ending = worker.house.ending.clone();
    macro_rules! until_the_end {
        ($connection:expr) => {{
            let mut connection = pin!($connection);
            tokio::select! {
                done = connection.as_mut() => done,
                () = ending.told() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            }
        }};
    }
    let done = if is_second {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(MOST_STREAMS)
            .max_header_list_size(u32::try_from(LARGEST_HEAD).unwrap_or(u32::MAX))
            .keep_alive_interval(bounds.idle / 2)
            .keep_alive_timeout(bounds.write);
        until_the_end!(builder.serve_connection(io, service))
    } else {
        let mut builder = http1::Builder::new();
        let head = bounds.head().max(BETWEEN_REQUESTS);
        builder.timer(TokioTimer::new()).header_read_timeout(head).max_buf_size(4 * LARGEST_HEAD);
        until_the_end!(builder.serve_connection(io, service))
    };
    match done {
        Ok(()) => Over::Said,
        Err(error) if error.is_timeout() => Over::Cut(Cut::SlowRequest),
        Err(_) => Over::Left,
    }
}

async fn answer(request: Request<Incoming>, address: IpAddr, worker: &Worker) -> Response<Bytes> {
    let (head, body) = request.into_parts();
    let is_head = head.method == Method::HEAD;
    let Ok(body) = tokio::time::timeout(worker.house.bounds.request, collected(body)).await else {
        let mut response =
            Problem::new(Code::RequestTimeout, "the body did not come in time").into_response();
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        return response;
    };
    let Some(body) = body else { return Problem::bad_request("the body is broken").into_response() };
    let start = worker.stopwatch.raw();
    let answered = worker.house.answered(Request::from_parts(head, body), address).await;
    worker.counts.http_answered(&answered, worker.since(start));
    if is_head { without_body(answered.response) } else { answered.response }
}

/// What `HEAD` is answered: everything but the body. Of HTTP/1 hyper knows this by itself.
fn without_body(mut response: Response<Bytes>) -> Response<Bytes> {
    let body = std::mem::take(response.body_mut());
    response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
    response
}

/// The whole body, or as much of it as shows that it is too large. `None` if it makes no sense.
///
/// What is too large is not kept, and yet read on for a while: many clients do not look at an answer before they have said
/// everything, and take it for an error if nobody listens any more.
async fn collected(mut body: Incoming) -> Option<Bytes> {
    let mut whole = BytesMut::new();
    let mut discarded = 0;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.ok()?.into_data() else { continue };
        if whole.len() <= LARGEST_BODY {
            whole.extend_from_slice(&data);
        } else if discarded < MOST_DISCARDED {
            discarded += data.len();
        } else {
            break;
        }
    }
    Some(whole.freeze())
}
