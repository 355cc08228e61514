//! One HTTP connection.
//!
//! Almost every request is plain: HTTP/1.1, a short head, a body whose length is known, a connection that stays. Such requests are
//! read out of the worker's buffer and respond with one write (`plain.rs`). As soon as a client says something else — chunks,
//! `Expect`, `Connection: close`, HTTP/2, an answer that comes piece by piece, anything malformed — the connection is handed over to hyper as it is, with the bytes
//! that were read, and stays there (`general.rs`). Both ask the same [`HttpApi`](crate::http::HttpApi).
//!
//! Decided: what is read here is only what cannot be misunderstood, so that there is one place that knows all of HTTP and it is
//! not ours. See `docs/decisions/0011-plain-requests-have-a-lane.md`.

mod buffered_stream;
mod http1_fast_path;
mod http1_request;
mod hyper_connection;
mod request_tracker;
mod response_body;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ::http::header::{AUTHORIZATION, RETRY_AFTER};
use ::http::{HeaderMap, HeaderValue, Request, Response};
use bytes::Bytes;
use tokio::net::TcpStream;

use super::worker::ServerWorker;
use super::{ConnectionEnd, ServerState};
use crate::http::problem::{Problem, ProblemCode};
use crate::http::{AnsweredRequest, RouteName, is_public_path};
use crate::tokens::{Caller, Permissions, bearer};

/// Replies a client until either side has enough.
pub(super) async fn serve(stream: TcpStream, address: IpAddr, worker: Arc<ServerWorker>) -> ConnectionEnd {
    match http1_fast_path::serve(stream, address, &worker).await {
        http1_fast_path::FastPathExit::Ended(end) => end,
        // Few come here, and what they need is large; nobody else should have to make room for it.
        http1_fast_path::FastPathExit::HandOver(stream, input) => {
            Box::pin(hyper_connection::serve(stream, input, address, &worker)).await
        }
    }
}

impl ServerState {
    /// Replies a request from there.
    async fn respond(&self, request: Request<Bytes>, address: IpAddr) -> AnsweredRequest {
        let caller = self.identify_caller(request.headers(), address);
        self.respond_to(request, caller).await
    }

    /// Replies a request of somebody, or tells them that they showed wrong tokens too often.
    async fn respond_to(&self, request: Request<Bytes>, caller: Result<Caller, Duration>) -> AnsweredRequest {
        match caller {
            Ok(caller) => self.api.respond(request, caller).await,
            Err(_) if is_public_path(request.uri().path()) => {
                self.api.respond(request, Caller::Anonymous).await
            }
            Err(wait) => {
                let response = too_many_attempts(wait);
                AnsweredRequest { response, events: None, route: RouteName::Unknown, granted: None }
            }
        }
    }

    /// What somebody may do caller sends this `Authorization` field, if it is plain that they may do something.
    fn authorize(&self, authorization: Option<&[u8]>) -> Option<Permissions> {
        if self.authenticator.allows_anonymous() {
            return Some(Permissions::all());
        }
        self.authenticator.authenticate(bearer(authorization?)?)
    }

    /// Caller sends these fields from there; or how long somebody has to wait caller showed wrong tokens too often.
    fn identify_caller(&self, fields: &HeaderMap, address: IpAddr) -> Result<Caller, Duration> {
        if self.authenticator.allows_anonymous() {
            return Ok(Caller::Authenticated(Permissions::all()));
        }
        let Some(token) = fields.get(AUTHORIZATION).and_then(|field| bearer(field.as_bytes())) else {
            return Ok(Caller::Anonymous);
        };
        match self.authenticator.authenticate(token) {
            Some(permissions) => Ok(Caller::Authenticated(permissions)),
            None => self.failed_auths.record_failure(address).map_or(Ok(Caller::Anonymous), Err),
        }
    }
}

fn too_many_attempts(wait: Duration) -> Response<Bytes> {
    let detail = "too many wrong tokens came from this address";
    let mut response = Problem::new(ProblemCode::TooManyAttempts, detail).into_response();
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    response
}
