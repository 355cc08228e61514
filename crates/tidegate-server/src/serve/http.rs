//! One HTTP connection.
//!
//! Almost every request is plain: HTTP/1.1, a short head, a body whose length is known, a connection that stays. Such requests are
//! read out of the worker's buffer and answered with one write (`plain.rs`). As soon as a client says something else — chunks,
//! `Expect`, `Connection: close`, HTTP/2, an answer that comes piece by piece, anything malformed — the connection is handed over to hyper as it is, with the bytes
//! that were read, and stays there (`general.rs`). Both ask the same [`Api`](crate::http::Api).
//!
//! Decided: what is read here is only what cannot be misunderstood, so that there is one place that knows all of HTTP and it is
//! not ours. See `docs/decisions/0011-plain-requests-have-a-lane.md`.

mod response_body;
mod request_tracker;
mod hyper_connection;
mod http1_fast_path;
mod http1_request;
mod buffered_stream;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ::http::header::{AUTHORIZATION, RETRY_AFTER};
use ::http::{HeaderMap, HeaderValue, Request, Response};
use bytes::Bytes;
use tokio::net::TcpStream;

use super::worker::Worker;
use super::{House, Over};
use crate::http::problem::{Code, Problem};
use crate::http::{Answered, RouteName, is_open_to_all};
use crate::tokens::{Pass, Who, bearer};

/// Replies a client until either side has enough.
pub(super) async fn serve(stream: TcpStream, address: IpAddr, worker: Arc<Worker>) -> Over {
    match http1_fast_path::serve(stream, address, &worker).await {
        http1_fast_path::Exit::Over(over) => over,
        // Few come here, and what they need is large; nobody else should have to make room for it.
        http1_fast_path::Exit::General(stream, heard) => Box::pin(hyper_connection::serve(stream, heard, address, &worker)).await,
    }
}

impl House {
    /// Replies a request from there.
    async fn answered(&self, request: Request<Bytes>, address: IpAddr) -> Answered {
        let who = self.who(request.headers(), address);
        self.answered_to(request, who).await
    }

    /// Replies a request of somebody, or tells them that they showed wrong tokens too often.
    async fn answered_to(&self, request: Request<Bytes>, who: Result<Who, Duration>) -> Answered {
        match who {
            Ok(who) => self.api.respond(request, who).await,
            Err(_) if is_open_to_all(request.uri().path()) => self.api.respond(request, Who::Stranger).await,
            Err(wait) => {
                let response = too_often(wait);
                Answered { response, events: None, route: RouteName::Unknown, granted: None }
            }
        }
    }

    /// What somebody may do who sends this `Authorization` field, if it is plain that they may do something.
    fn pass(&self, authorization: Option<&[u8]>) -> Option<Pass> {
        if self.doorman.is_open() {
            return Some(Pass::everything());
        }
        self.doorman.admit(bearer(authorization?)?)
    }

    /// Who sends these fields from there; or how long somebody has to wait who showed wrong tokens too often.
    fn who(&self, fields: &HeaderMap, address: IpAddr) -> Result<Who, Duration> {
        if self.doorman.is_open() {
            return Ok(Who::Known(Pass::everything()));
        }
        let Some(token) = fields.get(AUTHORIZATION).and_then(|field| bearer(field.as_bytes())) else {
            return Ok(Who::Stranger);
        };
        match self.doorman.admit(token) {
            Some(pass) => Ok(Who::Known(pass)),
            None => self.attempts.failed(address).map_or(Ok(Who::Stranger), Err),
        }
    }
}

fn too_often(wait: Duration) -> Response<Bytes> {
    let detail = "too many wrong tokens came from this address";
    let mut response = Problem::new(Code::TooManyAttempts, detail).into_response();
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    response
}
