//! One HTTP connection.
//!
//! Almost all requests are simple: HTTP/1.1, a short head, a body of known length, keep-alive. The fast path ([`http1_fast_path`]) reads
//! them from the worker's buffer and answers with one write. Anything else — chunked bodies, `Expect`, `Connection: close`, HTTP/2,
//! event streams, malformed input — is handed over to hyper with the bytes read so far and stays there ([`hyper_connection`]). Both
//! dispatch to the same [`HttpApi`](crate::http::HttpApi).
//!
//! The fast path accepts only what is unambiguous, so the full HTTP grammar lives in one place, hyper. See
//! `docs/decisions/0011-http1-fast-path.md`.

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

/// Serves a connection until either side closes it.
pub(super) async fn serve(stream: TcpStream, address: IpAddr, worker: Arc<ServerWorker>) -> ConnectionEnd {
    match http1_fast_path::serve(stream, address, &worker).await {
        http1_fast_path::FastPathExit::Ended(end) => end,
        // Boxed: few connections come here, and the future is large.
        http1_fast_path::FastPathExit::HandOver(stream, input) => {
            Box::pin(hyper_connection::serve(stream, input, address, &worker)).await
        }
    }
}

impl ServerState {
    /// Answers a request from this address.
    async fn respond(&self, request: Request<Bytes>, address: IpAddr) -> AnsweredRequest {
        let caller = self.identify_caller(request.headers(), address);
        self.respond_to(request, caller).await
    }

    /// Answers a request of this caller, or with 429 if the address failed to authenticate too often.
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

    /// The permissions of this `Authorization` header, if any are granted.
    fn authorize(&self, authorization: Option<&[u8]>) -> Option<Permissions> {
        if self.authenticator.allows_anonymous() {
            return Some(Permissions::all());
        }
        self.authenticator.authenticate(bearer(authorization?)?)
    }

    /// The caller of a request; or how long the address has to wait after too many failed attempts.
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
    let detail = "too many invalid tokens from this address";
    let mut response = Problem::new(ProblemCode::TooManyAttempts, detail).into_response();
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    response
}
