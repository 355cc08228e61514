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
//! Whoever listens reads a request whole, finds out who calls ([`crate::tokens::Tokens`]), and hands both over. Nothing here
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

mod activity;
mod compact_acquire;
mod usage;
pub mod decision_json;
mod acquire;
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
use tidegate_net::Ending;
use tokio::sync::Semaphore;

use crate::metrics::{self, Metrics};
use crate::refusal_log::Refusals;
use crate::tokens::{Pass, Role, Who};
use events::{Events, MOST_EVENT_STREAMS};
use problem::{Code, Problem};
use route::Route;

pub(crate) use compact_acquire::{Counter, PATH as BID_PATH};
pub use readiness::{Readiness, State};
pub use route::RouteName;
pub use wire::limit::limit_as_json;

/// The longest body that is read.
pub const LARGEST_BODY: usize = 1 << 20;

/// Stands in a request for its body: it would have had so many bytes, and was not read because that is too many.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Announced(pub(crate) u64);

/// What the door speaks, as `OpenAPI` 3.1.
pub const OPENAPI: &str = include_str!("http/openapi.json");

/// An answer, or why there is none.
type Reply = Result<Response<Bytes>, Problem>;

/// Whether the limit of this id is written in a file.
type IsFromFile = Box<dyn Fn(&str) -> bool + Send + Sync>;

/// The HTTP API of a store and its limiter.
pub struct Api<S: ?Sized> {
    limiter: Limiter,
    activity: Activity,
    /// Places for those who watch activities.
    streams: Arc<Semaphore>,
    readiness: Arc<Readiness>,
    is_from_file: IsFromFile,
    metrics: Arc<Metrics>,
    refusals: Option<Arc<Refusals>>,
    /// When nobody may wait in line any longer.
    ending: Ending,
    tick: Tick,
    survival: Survival,
    store: Arc<S>,
}

/// A request that was answered, and what is counted of it.
#[derive(Debug)]
pub struct Answered {
    /// What is sent back.
    pub response: Response<Bytes>,
    /// What follows it, piece by piece; the response has no body of its own then.
    pub events: Option<Events>,
    /// What the path was about.
    pub route: RouteName,
    /// If an order was decided: whether it was granted. A look decides nothing.
    pub granted: Option<bool>,
}

/// What a handler says, and whether that is a grant or a refusal.
struct Told {
    response: Response<Bytes>,
    events: Option<Events>,
    granted: Option<bool>,
}

impl From<Response<Bytes>> for Told {
    fn from(response: Response<Bytes>) -> Told {
        Told { response, events: None, granted: None }
    }
}

impl<S: LimitStore + ?Sized> Api<S> {
    /// The API of this store, asked through this limiter of it. It is ready, and no limit is from a file.
    pub fn new(store: Arc<S>, limiter: Limiter) -> Api<S> {
        let Capabilities { tick, survival, .. } = store.capabilities();
        let readiness = Arc::new(Readiness::new(State::Ready));
        let metrics = Arc::new(Metrics::new(1));
        let is_from_file: IsFromFile = Box::new(|_| false);
        let ending = Ending::default();
        let activity = Activity::of_store(limiter.clone());
        let streams = Arc::new(Semaphore::new(MOST_EVENT_STREAMS));
        Api {
            limiter,
            activity,
            streams,
            readiness,
            is_from_file,
            metrics,
            refusals: None,
            ending,
            tick,
            survival,
            store,
        }
    }

    /// Tells on `/metrics` what is counted here, beside what the store counts.
    pub fn metrics(mut self, metrics: Arc<Metrics>) -> Api<S> {
        self.metrics = metrics;
        self
    }

    /// Says on `/readyz` what is said here.
    pub fn readiness(mut self, readiness: Arc<Readiness>) -> Api<S> {
        self.readiness = readiness;
        self
    }

    /// Does not change the limits of which this says that they are from a file.
    pub fn from_file(mut self, is_from_file: impl Fn(&str) -> bool + Send + Sync + 'static) -> Api<S> {
        self.is_from_file = Box::new(is_from_file);
        self
    }

    /// Replies for this activity, of the same limiter, instead of one with the document's numbers.
    pub fn activity(mut self, activity: Activity) -> Api<S> {
        self.activity = activity;
        self
    }

    /// Tells these of every refusal.
    pub fn refusals(mut self, refusals: Arc<Refusals>) -> Api<S> {
        self.refusals = Some(refusals);
        self
    }

    /// Replies those who wait in line as things stand when the end is told.
    pub(crate) fn ends_with(mut self, ending: &Ending) -> Api<S> {
        self.ending = ending.clone();
        self
    }

    /// Replies a request. What would follow it piece by piece is left out.
    pub async fn call(&self, request: Request<Bytes>, from: Who) -> Response<Bytes> {
        self.respond(request, from).await.response
    }

    /// Replies a request, and says what there is to count of it.
    pub async fn respond(&self, request: Request<Bytes>, from: Who) -> Answered {
        let (head, body) = request.into_parts();
        let (name, told) = match Route::of(head.uri.path()) {
            Ok(route) => (route.name(), self.answer(&route, &head, &body, &from).await),
            Err(problem) => (RouteName::Unknown, Err(problem)),
        };
        let told = told.unwrap_or_else(|problem| problem.into_response().into());
        let Told { response, events, granted } = told;
        Answered { response, events, route: name, granted }
    }

    async fn answer(&self, route: &Route, head: &Parts, body: &[u8], from: &Who) -> Result<Told, Problem> {
        let method = route.method(&head.method)?;
        if let Some(open) = self.open(route) {
            return open.map(Told::from);
        }
        let pass = admitted(from, route.needs(method))?;
        let length = head.extensions.get::<Announced>().map_or(body.len() as u64, |announced| announced.0);
        if length > LARGEST_BODY as u64 {
            let detail = format!("a body has at most {LARGEST_BODY} bytes, this one has {length}");
            return Err(Problem::new(Code::TooLarge, detail));
        }
        let call = Call { head, method, body, pass };
        match route {
            Route::Acquire => self.acquire(&call).await,
            Route::Gate(place) => Ok(self.gate(place.as_ref(), &call).await),
            Route::Activity(user) if *method == Method::POST => self.set_active(user, &call).await,
            Route::ActivityEvents(user, id) => self.watch_active(user, id, &call).await,
            _ => self.route(route, &call).await.map(Told::from),
        }
    }

    /// What everybody may see.
    fn open(&self, route: &Route) -> Option<Reply> {
        match route {
            Route::Index => Some(Ok(index::page())),
            Route::Health => Some(json(StatusCode::OK, &serde_json::json!({"status": "ok"}))),
            Route::Ready => Some(self.readiness.answer(self.store.trouble())),
            Route::OpenApi => Some(Ok(json_text(StatusCode::OK, OPENAPI))),
            _ => None,
        }
    }

    /// What this store says, when it may be told.
    async fn heard<T>(&self, spoken: StoreReply<T>) -> Result<T, Unavailable> {
        match spoken {
            StoreReply::Now(reply) => Ok(reply),
            StoreReply::Durable(reply, lsn) => durable(&*self.store, lsn).await.map(|()| reply),
            StoreReply::Later(later) => later.await,
        }
    }

    /// The limits were changed: waits until that is durable.
    async fn written(&self) -> Result<(), Unavailable> {
        match self.store.tip() {
            Some(lsn) => durable(&*self.store, lsn).await,
            None => Ok(()),
        }
    }

    /// What happened so far, as far as the caller may see it.
    fn measured(&self, call: &Call<'_>) -> Response<Bytes> {
        typed(metrics::CONTENT_TYPE, self.metrics.render_for(&self.limiter, call.pass))
    }

    async fn route(&self, route: &Route, call: &Call<'_>) -> Reply {
        match (route, call.method) {
            (Route::Metrics, _) => Ok(self.measured(call)),
            (Route::Peek, _) => self.peek(call).await,
            (Route::Release, _) => self.release(call).await,
            (Route::Renew, _) => self.renew(call).await,
            (Route::Settle, _) => self.settle(call).await,
            (Route::Limits, &Method::POST) => self.add_limit(call).await,
            (Route::Limits, _) => self.list_limits(call),
            (Route::Limit(id), &Method::PUT) => self.set_limit(id, call).await,
            (Route::Limit(id), &Method::DELETE) => self.delete_limit(id, call).await,
            (Route::Limit(id), _) => self.get_limit(id, call),
            (Route::Reset(id), _) => self.reset(id, call).await,
            (Route::Usage(id), _) => self.usage(id, call).await,
            (Route::Override(id, key), &Method::PUT) => self.put_override(id, key, call).await,
            (Route::Override(id, key), _) => self.delete_override(id, key, call).await,
            (Route::Activity(user), &Method::DELETE) => self.remove_active(user, None, call).await,
            (Route::Activity(user), _) => self.is_active(user, call).await,
            (Route::ActivityOne(user, id), _) => self.remove_active(user, Some(id), call).await,
            (Route::ActivityRenew(user, id), _) => self.renew_active(user, id, call).await,
            (Route::Acquire | Route::Gate(_) | Route::ActivityEvents(..), _) => {
                Err(Problem::new(Code::NotFound, "answered with what was decided"))
            }
            (Route::Index | Route::Health | Route::Ready | Route::OpenApi, _) => {
                Err(Problem::new(Code::NotFound, "answered before anybody is asked for a token"))
            }
        }
    }
}

impl<S: ?Sized> fmt::Debug for Api<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api").field("limiter", &self.limiter).finish_non_exhaustive()
    }
}

/// A request that may be answered, if the limit is one that the pass covers.
struct Call<'a> {
    head: &'a Parts,
    /// `GET` for `HEAD` too.
    method: &'a Method,
    body: &'a [u8],
    pass: &'a Pass,
}

impl Call<'_> {
    /// Checks that the pass is for this limit.
    fn concerns(&self, limit_id: &str) -> Result<(), Problem> {
        if self.pass.covers(limit_id) {
            return Ok(());
        }
        let detail = format!("this token is for limits whose ids begin with '{}'", self.pass.prefix);
        Err(Problem::new(Code::Forbidden, detail))
    }
}

/// Whether everybody may see what is at this path: whoever asks if a server is well must be told.
pub(crate) fn is_open_to_all(path: &str) -> bool {
    Route::of(path).is_ok_and(|route| route.is_open())
}

/// The pass of somebody who may do what needs this role.
fn admitted(from: &Who, needed: Role) -> Result<&Pass, Problem> {
    let needed_word = needed.word();
    match from {
        Who::Stranger => {
            let detail = format!(
                "no token came that is known here; send 'Authorization: Bearer TOKEN' with one of the role {needed_word}"
            );
            Err(Problem::new(Code::Unauthorized, detail))
        }
        Who::Known(pass) if pass.may(needed) => Ok(pass),
        Who::Known(pass) => {
            let detail = format!("this needs the role {needed_word}, and the token has {}", pass.role.word());
            Err(Problem::new(Code::Forbidden, detail))
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

fn nothing() -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}
