//! The HTTP door, without its sockets: requests in, responses out.
//!
//! ```text
//!   Request ──▶ route ──▶ who may? ──▶ handler ──▶ Response
//!                 │          │            ├─ decisions, gate ──▶ Limiter ──▶ store
//!                 │          │            ├─ leases, counts ───▶ Limiter ──▶ store
//!                 │          │            ├─ activity, events ─▶ Activity ─▶ store
//!                 │          │            ├─ limits, overrides ─▶ Catalog
//!                 │          │            └─ metrics, index
//!                 └──────────┴─▶ problem
//! ```
//!
//! Whoever listens reads a request whole, finds out who calls ([`crate::tokens::TokenTable`]), and hands both over. Nothing here
//! reads a clock, a socket or the environment, so every answer can be tested as a pair of texts. (Whoever asks for `/metrics` makes the
//! process look at itself.)
//!
//! Decided: what changed something is answered when the store's log is durable, inside the future of its own request. So others go on
//! meanwhile, whoever leaves is not answered and gives back their lease, and a log that fails is an outage like any other. Where somebody
//! else decides, or keeps the limits, their answer is waited for in the same way, and one that is lost is the same outage.
//!
//! Decided: a refusal is an answer with status 200; only the gate, whose callers look at nothing but the status, says 429.
//! What the handlers know and what `openapi.json` says is held together by a test.
//!
//! Refused: a framework of routes and extractors. There are twenty-one paths, and the order of checks (path, method, token,
//! size, body) is part of the contract.

mod acquire;
mod activity;
mod compact_acquire;
pub mod decision_json;
pub mod events;
mod gate;
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
use tidegate::activity::Activity;
use tidegate::store::{Capabilities, Survival, Unavailable, durable};
use tidegate::{LimitStore, Limiter, StoreReply, Tick};
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

/// The longest body that is read.
pub const MAX_BODY_BYTES: usize = 1 << 20;

/// Stands in a request for its body: it would have had so many bytes, and was not read because that is too many.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OversizedBody(pub(crate) u64);

/// What the door speaks, as `OpenAPI` 3.1.
pub const OPENAPI: &str = include_str!("http/openapi.json");

/// An answer, or why there is none.
type Reply = Result<Response<Bytes>, Problem>;

/// Whether the limit of this id is written in a file.
type IsFromFile = Box<dyn Fn(&str) -> bool + Send + Sync>;

/// The HTTP API of a store and its limiter.
pub struct HttpApi<S: ?Sized> {
    limiter: Limiter,
    activity: Activity,
    /// ListenConfig for those who watch activities.
    streams: Arc<Semaphore>,
    readiness: Arc<Readiness>,
    is_from_file: IsFromFile,
    metrics: Arc<ServerMetrics>,
    refusal_log: Option<Arc<RefusalLog>>,
    /// When nobody may wait in line any longer.
    shutdown: Shutdown,
    tick: Tick,
    survival: Survival,
    store: Arc<S>,
}

/// A request that was answered, and what is counted of it.
#[derive(Debug)]
pub struct AnsweredRequest {
    /// What is sent back.
    pub response: Response<Bytes>,
    /// What follows it, piece by piece; the response has no body of its own then.
    pub events: Option<EventStream>,
    /// What the path was about.
    pub route: RouteName,
    /// If an order was decided: whether it was granted. A look decides nothing.
    pub granted: Option<bool>,
}

/// What a handler says, and whether that is a grant or a refusal.
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
    /// The API of this store, asked through this limiter of it. It is ready, and no limit is from a file.
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

    /// Tells on `/metrics` what is counted here, beside what the store counts.
    pub fn metrics(mut self, metrics: Arc<ServerMetrics>) -> HttpApi<S> {
        self.metrics = metrics;
        self
    }

    /// Says on `/readyz` what is said here.
    pub fn readiness(mut self, readiness: Arc<Readiness>) -> HttpApi<S> {
        self.readiness = readiness;
        self
    }

    /// Does not change the limits of which this says that they are from a file.
    pub fn from_file(mut self, is_from_file: impl Fn(&str) -> bool + Send + Sync + 'static) -> HttpApi<S> {
        self.is_from_file = Box::new(is_from_file);
        self
    }

    /// Replies for this activity, of the same limiter, instead of one with the document's numbers.
    pub fn activity(mut self, activity: Activity) -> HttpApi<S> {
        self.activity = activity;
        self
    }

    /// Tells these of every refusal.
    pub fn refusal_log(mut self, refusal_log: Arc<RefusalLog>) -> HttpApi<S> {
        self.refusal_log = Some(refusal_log);
        self
    }

    /// Replies those who wait in line as things stand when the end is handled.
    pub(crate) fn with_shutdown(mut self, shutdown: &Shutdown) -> HttpApi<S> {
        self.shutdown = shutdown.clone();
        self
    }

    /// Replies a request. What would follow it piece by piece is left out.
    pub async fn call(&self, request: Request<Bytes>, from: Caller) -> Response<Bytes> {
        self.respond(request, from).await.response
    }

    /// Replies a request, and says what there is to count of it.
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

    /// What everybody may see.
    fn public_reply(&self, route: &ApiRoute) -> Option<Reply> {
        match route {
            ApiRoute::Index => Some(Ok(index::page())),
            ApiRoute::Health => Some(json(StatusCode::OK, &serde_json::json!({"status": "ok"}))),
            ApiRoute::Ready => Some(self.readiness.answer(self.store.trouble())),
            ApiRoute::OpenApi => Some(Ok(json_text(StatusCode::OK, OPENAPI))),
            _ => None,
        }
    }

    /// What this store says, when it may be handled.
    async fn resolve<T>(&self, reply: StoreReply<T>) -> Result<T, Unavailable> {
        match reply {
            StoreReply::Now(reply) => Ok(reply),
            StoreReply::Durable(reply, lsn) => durable(&*self.store, lsn).await.map(|()| reply),
            StoreReply::Later(later) => later.await,
        }
    }

    /// The limits were changed: waits until that is durable.
    async fn wait_durable(&self) -> Result<(), Unavailable> {
        match self.store.tip() {
            Some(lsn) => durable(&*self.store, lsn).await,
            None => Ok(()),
        }
    }

    /// What happened so far, as far as the caller may see it.
    fn metrics_page(&self, call: &ApiCall<'_>) -> Response<Bytes> {
        typed(metrics::CONTENT_TYPE, self.metrics.render_for(&self.limiter, call.permissions))
    }

    async fn dispatch_plain(&self, route: &ApiRoute, call: &ApiCall<'_>) -> Reply {
        match (route, call.method) {
            (ApiRoute::ServerMetrics, _) => Ok(self.metrics_page(call)),
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
                Err(Problem::new(ProblemCode::NotFound, "answered with what was decided"))
            }
            (ApiRoute::Index | ApiRoute::Health | ApiRoute::Ready | ApiRoute::OpenApi, _) => {
                Err(Problem::new(ProblemCode::NotFound, "answered before anybody is asked for a token"))
            }
        }
    }
}

impl<S: ?Sized> fmt::Debug for HttpApi<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpApi").field("limiter", &self.limiter).finish_non_exhaustive()
    }
}

/// A request that may be answered, if the limit is one that the permissions covers.
struct ApiCall<'a> {
    head: &'a Parts,
    /// `GET` for `HEAD` too.
    method: &'a Method,
    body: &'a [u8],
    permissions: &'a Permissions,
}

impl ApiCall<'_> {
    /// Checks that the permissions is for this limit.
    fn require_limit(&self, limit_id: &str) -> Result<(), Problem> {
        if self.permissions.covers(limit_id) {
            return Ok(());
        }
        let detail = format!("this token is for limits whose ids begin with '{}'", self.permissions.prefix);
        Err(Problem::new(ProblemCode::Forbidden, detail))
    }
}

/// Whether everybody may see what is at this path: whoever asks if a server is well must be handled.
pub(crate) fn is_public_path(path: &str) -> bool {
    ApiRoute::of(path).is_ok_and(|route| route.is_public())
}

/// The permissions of somebody who may do what needs this role.
fn authorize(from: &Caller, needed: Role) -> Result<&Permissions, Problem> {
    let needed_word = needed.word();
    match from {
        Caller::Anonymous => {
            let detail = format!(
                "no token came that is known here; send 'Authorization: Bearer TOKEN' with one of the role {needed_word}"
            );
            Err(Problem::new(ProblemCode::Unauthorized, detail))
        }
        Caller::Authenticated(permissions) if permissions.allows(needed) => Ok(permissions),
        Caller::Authenticated(permissions) => {
            let detail =
                format!("this needs the role {needed_word}, and the token has {}", permissions.role.word());
            Err(Problem::new(ProblemCode::Forbidden, detail))
        }
    }
}

fn json(status: StatusCode, body: &impl Serialize) -> Reply {
    let text = serde_json::to_vec(body).map_err(|_| Problem::bad_request("this cannot be said in JSON"))?;
    Ok(json_text(status, text))
}

fn json_text(status: StatusCode, text: impl Into<Bytes>) -> Response<Bytes> {
    let mut response = typed("application/json", text);
    *response.status_mut() = status;
    response
}

/// Something of this media type.
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
