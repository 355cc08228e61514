//! The layer for HTTP: refused requests get a 429 with `Retry-After`, and every response reports what is left.
//!
//! [`limit`] makes a [`LimitLayer`] with standard responses: `RateLimit-Policy` and `RateLimit` as in
//! draft-ietf-httpapi-ratelimit-headers-11, `Retry-After` in whole seconds, and a body of `application/problem+json`.
//! The lease of a grant travels with the response body. It is given back when the body has been sent or the client has
//! disconnected.
//!
//! [`limit`] does not guess the client. Any client can send `Forwarded` or `X-Forwarded-For`, and the leftmost entry is
//! the one that the client wrote, so counting by it lets an attacker choose the key. Count by the authenticated user,
//! else by the [`address_key`] of the peer. Behind your own proxies, use [`ForwardedFor`].

mod body;
mod client_address;
mod fields;
mod ip_network;

use std::net::IpAddr;
use std::sync::Arc;

use ::http::header::CONTENT_TYPE;
use ::http::{HeaderValue, Request, Response, StatusCode};
use bytes::Bytes;

use crate::layer::{FailureAction, LimitLayer, Mode, RequestLimits};
use crate::limiter::{AcquireError, Limiter, Permit, Refused};
use crate::reply::{Detail, OrderError};

pub use body::HeldBody;
pub use client_address::{ClientAddress, ForwardedFor, PeerAddress, PeerIp};
pub use fields::{
    RATE_LIMIT, RATE_LIMIT_POLICY, describe, describe_refusal, rate_limit, rate_limit_policy, retry_after,
};
pub use ip_network::{IpNetwork, IpNetworkError};

/// A [`LimitLayer`] for requests with a body `B` to services that answer with a body `R`.
pub type HttpLimitLayer<B, R> = LimitLayer<Request<B>, Response<R>, Response<HeldBody<R>>>;

/// Creates a layer. `ask` maps a request to its limits. Refused requests get [`too_many_requests`], requests without a
/// decision [`undecided`].
pub fn limit<B, R, A: Into<RequestLimits>>(
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
            response.map(|body| HeldBody::with_lease(body, permit.and_then(Permit::into_lease)))
        }),
        refuse: Arc::new(|refused| too_many_requests(refused).map(HeldBody::text)),
        fail: Arc::new(|error| FailureAction::Refuse(undecided(error).map(HeldBody::text))),
    }
}

/// Creates a layer that limits each client, found by [`PeerIp`] or [`ForwardedFor`].
///
/// The server has to report the peer's address. With the feature `axum`, serve with
/// `into_make_service_with_connect_info::<SocketAddr>()`; elsewhere insert a [`PeerAddress`] into the extensions of
/// each request. Without it, requests for a per-key limit get a 500.
///
/// To count a request by its client and by another limit at once, use [`limit`] with [`RequestLimits::of_client`].
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
    key: impl ClientAddress,
) -> HttpLimitLayer<B, R> {
    let limit_id = limit_id.into();
    limit(limiter, move |request: &Request<B>| RequestLimits::of_client(limit_id.clone(), &key, request))
}

impl<B, R> HttpLimitLayer<B, R> {
    /// Sets the response to refused requests. `Retry-After` and the `RateLimit` fields are added unless the response
    /// has them.
    pub fn refusing_with<T: Into<Bytes>>(
        mut self,
        refuse: impl Fn(&Refused) -> Response<T> + Send + Sync + 'static,
    ) -> HttpLimitLayer<B, R> {
        self.refuse = Arc::new(move |refused| {
            let mut response = refuse(refused);
            describe_refusal(response.headers_mut(), refused);
            response.map(HeldBody::text)
        });
        self
    }

    /// Sets the response to requests without a decision, or admits them.
    pub fn failing_with<T: Into<Bytes>>(
        mut self,
        fail: impl Fn(&AcquireError) -> FailureAction<Response<T>> + Send + Sync + 'static,
    ) -> HttpLimitLayer<B, R> {
        self.fail = Arc::new(move |error| match fail(error) {
            FailureAction::Refuse(response) => FailureAction::Refuse(response.map(HeldBody::text)),
            FailureAction::Admit => FailureAction::Admit,
        });
        self
    }
}

/// The response to a refused request: 429 with `Retry-After`, the `RateLimit` fields, and a problem that names the
/// violated policy. The problem type is `quota-exceeded`, or `temporary-reduced-capacity` if there is no room to count
/// another key.
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

/// The response to a request without a decision: 503 if the store could not answer, 400 for an invalid key, 500 for an
/// unknown limit. It reveals no other detail.
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

/// The key of a peer's address. An IPv6 address is reduced to its /64, because one subscriber can use any address in
/// it.
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
