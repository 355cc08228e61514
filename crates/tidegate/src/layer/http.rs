//! The layer for HTTP: refusals are 429s that say when to come back, and every answer says how much is left.
//!
//! [`limit`] makes a [`LimitLayer`] with answers that clients understand: `RateLimit-Policy` and `RateLimit` as in
//! draft-ietf-httpapi-ratelimit-headers-11, `Retry-After` in whole seconds, and a body of `application/problem+json`.
//! A lease, if the grant has one, goes along with the response's body and is given back when that has been sent, or
//! when the client is gone.
//!
//! Refused: finding out who the client is. Anybody can write a `Forwarded` or `X-Forwarded-For` field, and its leftmost
//! entry is the one that the client wrote: whoever counts by that counts by what the attacker likes. Count by who is
//! logged in, else by the peer's [`address_key`]; behind proxies, by the entry that the outermost proxy of *yours* wrote.

mod body;
pub mod client_key;
mod fields;

use std::net::IpAddr;
use std::sync::Arc;

use ::http::header::CONTENT_TYPE;
use ::http::{HeaderValue, Request, Response, StatusCode};
use bytes::Bytes;

use crate::layer::{Asking, Failure, LimitLayer, Mode};
use crate::limiter::{AcquireError, Limiter, Permit, Refused};
use crate::reply::{Detail, OrderError};

pub use body::HeldBody;
pub use client_key::{ClientKey, ForwardedFor, PeerAddress, PeerIp};
pub use fields::{
    RATE_LIMIT, RATE_LIMIT_POLICY, describe, describe_refusal, rate_limit, rate_limit_policy, retry_after,
};

/// A [`LimitLayer`] for requests with a body `B` to services that answer with a body `R`.
pub type HttpLimitLayer<B, R> = LimitLayer<Request<B>, Response<R>, Response<HeldBody<R>>>;

/// A layer that asks `ask` what a request is to be counted as, and answers by itself where it must: [`too_many_requests`]
/// to those that are denied, [`undecided`] where there is no decision.
pub fn limit<B, R, A: Into<Asking>>(
    limiter: Limiter,
    ask: impl Fn(&Request<B>) -> A + Send + Sync + 'static,
) -> HttpLimitLayer<B, R> {
    LimitLayer {
        limiter,
        mode: Mode::Refuse,
        detail: Detail::Readings,
        ask: Arc::new(move |request| ask(request).into()),
        respond: Arc::new(|mut response, permit| {
            if let Some(permit) = &permit {
                describe(response.headers_mut(), permit.readings(), permit.decided_at());
            }
            response.map(|body| HeldBody::holding(body, permit.and_then(Permit::into_lease)))
        }),
        refuse: Arc::new(|refused| too_many_requests(refused).map(HeldBody::telling)),
        fail: Arc::new(|error| Failure::Refuse(undecided(error).map(HeldBody::telling))),
    }
}

/// A layer that limits each client, found by [`PeerIp`] or [`ForwardedFor`].
///
/// The server has to report the peer's address: with the feature `axum`, serve with
/// `into_make_service_with_connect_info::<SocketAddr>()`; elsewhere insert a [`PeerAddress`] into the extensions of each
/// request. Without it, requests for a per-key limit are answered with 500.
///
/// ```
/// use tidegate::layer::http::{self, ForwardedFor, HttpLimitLayer, PeerIp};
/// # fn layers(limiter: tidegate::Limiter) -> Result<(), Box<dyn std::error::Error>> {
/// let direct: HttpLimitLayer<String, String> = http::limit_clients(limiter.clone(), "api", PeerIp);
/// let proxied: HttpLimitLayer<String, String> =
///     http::limit_clients(limiter, "api", ForwardedFor::trust(["10.0.0.0/8"])?);
/// # Ok(())
/// # }
/// ```
pub fn limit_clients<B, R>(
    limiter: Limiter,
    limit_id: impl Into<String>,
    key: impl ClientKey,
) -> HttpLimitLayer<B, R> {
    let limit_id = limit_id.into();
    limit(limiter, move |request: &Request<B>| match client_key::client_key(&key, request) {
        Some(client) => Asking::of(limit_id.clone(), client),
        // Without a key a per-key limit rejects the request: clients never share a key.
        None => Asking::of_all(limit_id.clone()),
    })
}

impl<B, R> HttpLimitLayer<B, R> {
    /// Replies those that are denied like this. The fields that say when to come back and how much is left are added,
    /// unless the answer has them.
    pub fn refusing_with<T: Into<Bytes>>(
        mut self,
        refuse: impl Fn(&Refused) -> Response<T> + Send + Sync + 'static,
    ) -> HttpLimitLayer<B, R> {
        self.refuse = Arc::new(move |refused| {
            let mut response = refuse(refused);
            describe_refusal(response.headers_mut(), refused);
            response.map(HeldBody::telling)
        });
        self
    }

    /// Replies like this when there is no decision, or lets the request through.
    pub fn failing_with<T: Into<Bytes>>(
        mut self,
        fail: impl Fn(&AcquireError) -> Failure<Response<T>> + Send + Sync + 'static,
    ) -> HttpLimitLayer<B, R> {
        self.fail = Arc::new(move |error| match fail(error) {
            Failure::Refuse(response) => Failure::Refuse(response.map(HeldBody::telling)),
            Failure::Admit => Failure::Admit,
        });
        self
    }
}

/// The answer to a request that was denied: 429, when to come back, how much is left, and which policy it was that
/// refused, as a problem of the type `quota-exceeded`; as one of the type `temporary-reduced-capacity` where the quota is not what was exceeded, but there is
/// no room to count another key.
pub fn too_many_requests(refused: &Refused) -> Response<String> {
    let violated = fields::policy_name(refused.limit(), refused.item(), refused.readings());
    let (kind, title, code) = if refused.is_degraded() {
        let title = "Request cannot be satisfied as there is no room to count another client";
        ("temporary-reduced-capacity", title, "no_room")
    } else {
        (
            "quota-exceeded",
            "Request cannot be satisfied as assigned quota has been exceeded",
            "quota_exceeded",
        )
    };
    let problem = serde_json::json!({
        "type": format!("https://iana.org/assignments/http-problem-types#{kind}"),
        "title": title,
        "status": 429,
        "code": code,
        "violated-policies": [violated],
    });
    let mut response = problem_response(StatusCode::TOO_MANY_REQUESTS, &problem);
    describe_refusal(response.headers_mut(), refused);
    response
}

/// The answer to a request about which there is no decision: 503 if the store could not answer, 400 for a key that no
/// store would take, 500 for limits that are not there. It does not say more than that.
pub fn undecided(error: &AcquireError) -> Response<String> {
    let (status, code) = match error {
        AcquireError::Unavailable(_) => (StatusCode::SERVICE_UNAVAILABLE, "store_unavailable"),
        AcquireError::Invalid(error @ OrderError::KeyTooLong { .. }) => {
            (StatusCode::BAD_REQUEST, error.code())
        }
        AcquireError::Invalid(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.code()),
        AcquireError::Refused(refused) => return too_many_requests(refused),
    };
    let problem = serde_json::json!({
        "type": "about:blank",
        "title": status.canonical_reason(),
        "status": status.as_u16(),
        "code": code,
    });
    problem_response(status, &problem)
}

fn problem_response(status: StatusCode, problem: &serde_json::Value) -> Response<String> {
    let mut response = Response::new(problem.to_string());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    response
}

/// The key of a peer's address. Of IPv6 it is the first half: a household has as many addresses as it likes in the
/// other.
///
/// ```
/// use tidegate::layer::http::address_key;
///
/// assert_eq!(address_key("192.0.2.7".parse()?), "192.0.2.7");
/// assert_eq!(address_key("::ffff:192.0.2.7".parse()?), "192.0.2.7");
/// assert_eq!(address_key("2001:db8:1:2:3:4:5:6".parse()?), "2001:db8:1:2::/64");
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
pub fn address_key(address: IpAddr) -> String {
    match address.to_canonical() {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            format!("{}/64", std::net::Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
    }
}
