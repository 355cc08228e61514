//! The HTTP API without its sockets: requests in, responses out.
//!
//! ```text
//!   Request ──▶ route ──▶ authorize ──▶ handler ──▶ Response
//!                 │          │            ├─ acquire, gate ────▶ Limiter ──▶ store
//!                 │          │            ├─ leases, usage ────▶ Limiter ──▶ store
//!                 │          │            ├─ activity, events ─▶ Activity ─▶ store
//!                 │          │            ├─ limits, overrides ─▶ Catalog
//!                 │          │            └─ metrics, index
//!                 └──────────┴─▶ problem
//! ```
//!
//! The listener reads a whole request, identifies the caller ([`crate::tokens::TokenTable`]) and passes both on. Nothing here reads a
//! clock, a socket or the environment, so tests compare requests and responses as text. Only `/metrics` reads `/proc/self`.
//!
//! A change is answered when the store's log is durable, inside the future of its own request. Other requests go on meanwhile. A client
//! that disconnects gets no answer, and its lease is released. A failed log and a lost reply of a remote store are both outages.
//!
//! A refusal is an answer with status 200. Only the gate, whose callers read nothing but the status, answers 429. A test keeps the
//! handlers and `openapi.json` in agreement.
//!
//! No web framework: there are 21 paths, and the order of checks (path, method, token, size, body) is part of the contract.

mod acquire;
mod activity;
mod compact_acquire;
pub mod decision_json;
pub mod events;
mod forward_auth;
mod index;
mod leases;
mod limits;
mod overrides;
pub mod problem;
mod query;
mod readiness;
mod route;
mod usage;
mod wire;

use std::fmt;
use std::sync::Arc;

use ::http::header::CONTENT_TYPE;
use ::http::request::Parts;
use ::http::{HeaderValue, Method, Request, Response, StatusCode};
use bytes::Bytes;
use serde::Serialize;
use tidegate::Limiter;
use tidegate::activity::Activity;
use tidegate::model::Tick;
use tidegate::store::{Capabilities, Survival, Unavailable, durable};
use tidegate::store::{LimitStore, StoreReply};
use tidegate_net::Shutdown;
use tokio::sync::Semaphore;

use crate::metrics::{self, ServerMetrics};
use crate::refusal_log::RefusalLog;
use crate::tokens::{Caller, Permissions, Role};
use events::{EventStream, MAX_EVENT_STREAMS};
use problem::{Problem, ProblemCode};
use route::ApiRoute;

pub(crate) use compact_acquire::{ACQUIRE_PATH, CompactAcquireBuffers};
pub use readiness::{Readiness, ReadinessState};
pub use route::RouteName;
pub use wire::limit::limit_as_json;

/// The longest request body.
pub const MAX_BODY_BYTES: usize = 1 << 20;

/// Request extension in place of a body that is too long and was not read; the declared length.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OversizedBody(pub(crate) u64);

/// The API description in `OpenAPI` 3.1.
pub const OPENAPI: &str = include_str!("http/openapi.json");

/// A response or a problem.
type Reply = Result<Response<Bytes>, Problem>;

/// Whether a limit is managed by a settings file.
type IsFromFile = Box<dyn Fn(&str) -> bool + Send + Sync>;

/// The HTTP API over a store and its limiter.
pub struct HttpApi<S: ?Sized> {
    limiter: Limiter,
    activity: Activity,
    /// Permits for event streams.
    streams: Arc<Semaphore>,
    readiness: Arc<Readiness>,
    is_from_file: IsFromFile,
    metrics: Arc<ServerMetrics>,
    refusal_log: Option<Arc<RefusalLog>>,
    /// On shutdown, waiting requests are answered immediately.
    shutdown: Shutdown,
    tick: Tick,
    survival: Survival,
    store: Arc<S>,
}

/// A response with what is counted about it.
#[derive(Debug)]
pub struct AnsweredRequest {
    /// The response.
    pub response: Response<Bytes>,
    /// The event stream behind the response, whose body is empty then.
    pub events: Option<EventStream>,
    /// The route of the request.
    pub route: RouteName,
    /// Whether the request was granted, if it decided anything; a peek does not.
    pub granted: Option<bool>,
}

/// The reply of a handler, and whether it granted.
struct HandlerReply {
    response: Response<Bytes>,
    events: Option<EventStream>,
    granted: Option<bool>,
}

impl From<Response<Bytes>> for HandlerReply {
    fn from(response: Response<Bytes>) -> HandlerReply {
        HandlerReply { response, events: None, granted: None }
    }
}

impl<S: LimitStore + ?Sized> HttpApi<S> {
    /// An API over this store and limiter. It is ready, and no limit is managed by a file.
    pub fn new(store: Arc<S>, limiter: Limiter) -> HttpApi<S> {
        let Capabilities { tick, survival, .. } = store.capabilities();
        let readiness = Arc::new(Readiness::new(ReadinessState::Ready));
        let metrics = Arc::new(ServerMetrics::new(1));
        let is_from_file: IsFromFile = Box::new(|_| false);
        let shutdown = Shutdown::default();
        let activity = Activity::of_store(limiter.clone());
        let streams = Arc::new(Semaphore::new(MAX_EVENT_STREAMS));
        HttpApi {
            limiter,
            activity,
            streams,
            readiness,
            is_from_file,
            metrics,
            refusal_log: None,
            shutdown,
            tick,
            survival,
            store,
        }
    }

    /// Renders these metrics on `/metrics`, besides those of the store.
    pub fn metrics(mut self, metrics: Arc<ServerMetrics>) -> HttpApi<S> {
        self.metrics = metrics;
        self
    }

    /// Reports this readiness on `/readyz`.
    pub fn readiness(mut self, readiness: Arc<Readiness>) -> HttpApi<S> {
        self.readiness = readiness;
        self
    }

    /// Refuses changes of limits that are managed by a file.
    pub fn from_file(mut self, is_from_file: impl Fn(&str) -> bool + Send + Sync + 'static) -> HttpApi<S> {
        self.is_from_file = Box::new(is_from_file);
        self
    }

    /// Uses this activity, of the same limiter, instead of one with default settings.
    pub fn activity(mut self, activity: Activity) -> HttpApi<S> {
        self.activity = activity;
        self
    }

    /// Logs refusals here.
    pub fn refusal_log(mut self, refusal_log: Arc<RefusalLog>) -> HttpApi<S> {
        self.refusal_log = Some(refusal_log);
        self
    }

    /// Answers waiting requests immediately on this shutdown.
    pub(crate) fn with_shutdown(mut self, shutdown: &Shutdown) -> HttpApi<S> {
        self.shutdown = shutdown.clone();
        self
    }

    /// Answers a request; an event stream is dropped.
    pub async fn call(&self, request: Request<Bytes>, from: Caller) -> Response<Bytes> {
        self.respond(request, from).await.response
    }

    /// Answers a request, with what is counted about it.
    pub async fn respond(&self, request: Request<Bytes>, from: Caller) -> AnsweredRequest {
        let (head, body) = request.into_parts();
        let (name, handled) = match ApiRoute::of(head.uri.path()) {
            Ok(route) => (route.name(), self.dispatch(&route, &head, &body, &from).await),
            Err(problem) => (RouteName::Unknown, Err(problem)),
        };
        let handled = handled.unwrap_or_else(|problem| problem.into_response().into());
        let HandlerReply { response, events, granted } = handled;
        AnsweredRequest { response, events, route: name, granted }
    }

    async fn dispatch(
        &self,
        route: &ApiRoute,
        head: &Parts,
        body: &[u8],
        from: &Caller,
    ) -> Result<HandlerReply, Problem> {
        let method = route.method(&head.method)?;
        if let Some(reply) = self.public_reply(route) {
            return reply.map(HandlerReply::from);
        }
        let permissions = authorize(from, route.required_role(method))?;
        let length =
            head.extensions.get::<OversizedBody>().map_or(body.len() as u64, |announced| announced.0);
        if length > MAX_BODY_BYTES as u64 {
            let detail = format!("a body has at most {MAX_BODY_BYTES} bytes, this one has {length}");
            return Err(Problem::new(ProblemCode::TooLarge, detail));
        }
        let call = ApiCall { head, method, body, permissions };
        match route {
            ApiRoute::Acquire => self.acquire(&call).await,
            ApiRoute::Gate(place) => Ok(self.gate(place.as_ref(), &call).await),
            ApiRoute::Activity(user) if *method == Method::POST => self.set_active(user, &call).await,
            ApiRoute::ActivityEvents(user, id) => self.watch_active(user, id, &call).await,
            _ => self.dispatch_plain(route, &call).await.map(HandlerReply::from),
        }
    }

    /// The reply of a public route.
    fn public_reply(&self, route: &ApiRoute) -> Option<Reply> {
        match route {
            ApiRoute::Index => Some(Ok(index::page())),
            ApiRoute::Health => Some(json(StatusCode::OK, &serde_json::json!({"status": "ok"}))),
            ApiRoute::Ready => Some(self.readiness.answer(self.store.outage())),
            ApiRoute::OpenApi => Some(Ok(json_text(StatusCode::OK, OPENAPI))),
            _ => None,
        }
    }

    /// Resolves a store's reply: waits for the log or for the remote store.
    async fn resolve<T>(&self, reply: StoreReply<T>) -> Result<T, Unavailable> {
        match reply {
            StoreReply::Now(reply) => Ok(reply),
            StoreReply::Durable(reply, lsn) => durable(&*self.store, lsn).await.map(|()| reply),
            StoreReply::Later(later) => later.await,
        }
    }

    /// Waits until the last change of limits is durable.
    async fn wait_durable(&self) -> Result<(), Unavailable> {
        match self.store.log_end() {
            Some(lsn) => durable(&*self.store, lsn).await,
            None => Ok(()),
        }
    }

    /// The metrics that the caller may read.
    fn metrics_page(&self, call: &ApiCall<'_>) -> Response<Bytes> {
        typed(metrics::CONTENT_TYPE, self.metrics.render_for(&self.limiter, call.permissions))
    }

    async fn dispatch_plain(&self, route: &ApiRoute, call: &ApiCall<'_>) -> Reply {
        match (route, call.method) {
            (ApiRoute::Metrics, _) => Ok(self.metrics_page(call)),
            (ApiRoute::Peek, _) => self.peek(call).await,
            (ApiRoute::Release, _) => self.release(call).await,
            (ApiRoute::Renew, _) => self.renew(call).await,
            (ApiRoute::Settle, _) => self.settle(call).await,
            (ApiRoute::Limits, &Method::POST) => self.add_limit(call).await,
            (ApiRoute::Limits, _) => self.list_limits(call),
            (ApiRoute::Limit(id), &Method::PUT) => self.set_limit(id, call).await,
            (ApiRoute::Limit(id), &Method::DELETE) => self.delete_limit(id, call).await,
            (ApiRoute::Limit(id), _) => self.get_limit(id, call),
            (ApiRoute::Reset(id), _) => self.reset(id, call).await,
            (ApiRoute::Usage(id), _) => self.usage(id, call).await,
            (ApiRoute::Override(id, key), &Method::PUT) => self.put_override(id, key, call).await,
            (ApiRoute::Override(id, key), _) => self.delete_override(id, key, call).await,
            (ApiRoute::Activity(user), &Method::DELETE) => self.remove_active(user, None, call).await,
            (ApiRoute::Activity(user), _) => self.is_active(user, call).await,
            (ApiRoute::ActivityOne(user, id), _) => self.remove_active(user, Some(id), call).await,
            (ApiRoute::ActivityRenew(user, id), _) => self.renew_active(user, id, call).await,
            (ApiRoute::Acquire | ApiRoute::Gate(_) | ApiRoute::ActivityEvents(..), _) => {
                Err(Problem::new(ProblemCode::NotFound, "handled with its decision"))
            }
            (ApiRoute::Index | ApiRoute::Health | ApiRoute::Ready | ApiRoute::OpenApi, _) => {
                Err(Problem::new(ProblemCode::NotFound, "handled before authentication"))
            }
        }
    }
}

impl<S: ?Sized> fmt::Debug for HttpApi<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpApi").field("limiter", &self.limiter).finish_non_exhaustive()
    }
}

/// An authenticated request. Its permissions may still not cover a limit.
struct ApiCall<'a> {
    head: &'a Parts,
    /// `HEAD` is treated as `GET`.
    method: &'a Method,
    body: &'a [u8],
    permissions: &'a Permissions,
}

impl ApiCall<'_> {
    /// Fails if the permissions do not cover this limit.
    fn require_limit(&self, limit_id: &str) -> Result<(), Problem> {
        if self.permissions.covers(limit_id) {
            return Ok(());
        }
        let detail = format!("this token is for limits whose ids begin with '{}'", self.permissions.prefix);
        Err(Problem::new(ProblemCode::Forbidden, detail))
    }
}

/// Whether a path needs no token; health checks must work without one.
pub(crate) fn is_public_path(path: &str) -> bool {
    ApiRoute::of(path).is_ok_and(|route| route.is_public())
}

/// The caller's permissions, if they include this role.
fn authorize(from: &Caller, needed: Role) -> Result<&Permissions, Problem> {
    let needed_word = needed.word();
    match from {
        Caller::Anonymous => {
            let detail = format!(
                "the token is missing or invalid; send 'Authorization: Bearer TOKEN' with a token of role {needed_word}"
            );
            Err(Problem::new(ProblemCode::Unauthorized, detail))
        }
        Caller::Authenticated(permissions) if permissions.allows(needed) => Ok(permissions),
        Caller::Authenticated(permissions) => {
            let detail = format!(
                "this request needs role {needed_word}, and the token has role {}",
                permissions.role.word()
            );
            Err(Problem::new(ProblemCode::Forbidden, detail))
        }
    }
}

fn json(status: StatusCode, body: &impl Serialize) -> Reply {
    let text = serde_json::to_vec(body)
        .map_err(|_| Problem::bad_request("the response cannot be encoded as JSON"))?;
    Ok(json_text(status, text))
}

fn json_text(status: StatusCode, text: impl Into<Bytes>) -> Response<Bytes> {
    let mut response = typed("application/json", text);
    *response.status_mut() = status;
    response
}

/// A response of this media type.
fn typed(media_type: &'static str, text: impl Into<Bytes>) -> Response<Bytes> {
    let mut response = Response::new(text.into());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}

fn no_content() -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}
