//! Paths: what is where, with which methods, and for whom.

use ::http::Method;

use super::problem::{Code, Problem};
use super::query::decoded;
use crate::tokens::Role;

macro_rules! route_names {
    ($($(#[$doc:meta])* $name:ident = $template:literal;)+) => {
        /// A route without what is particular about one path: what metrics tell apart.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum RouteName { $($(#[$doc])* $name),+ }

        impl RouteName {
            /// Every route.
            pub const ALL: &'static [RouteName] = &[$(RouteName::$name),+];

            /// Its template, as in `openapi.json`.
            pub const fn template(self) -> &'static str {
                match self { $(RouteName::$name => $template),+ }
            }
        }
    };
}

route_names! {
    /// The first page.
    Index = "/";
    /// Whether the process is alive.
    Health = "/healthz";
    /// Whether it may be sent requests.
    Ready = "/readyz";
    /// What the door speaks.
    OpenApi = "/openapi.json";
    /// What happened so far.
    Metrics = "/metrics";
    /// Take.
    Acquire = "/v1/acquire";
    /// Look.
    Peek = "/v1/peek";
    /// Give a lease back.
    Release = "/v1/release";
    /// Move a lease's end.
    Renew = "/v1/renew";
    /// Correct a held charge.
    Settle = "/v1/settle";
    /// Take one, with the limit and the key in the query.
    GateQuery = "/v1/gate";
    /// Take one, with the limit and the key in the path.
    Gate = "/v1/gate/{id}/{key}";
    /// All limits.
    Limits = "/v1/limits";
    /// One limit.
    Limit = "/v1/limits/{id}";
    /// Zero its counts.
    Reset = "/v1/limits/{id}/reset";
    /// Look at its counts.
    Usage = "/v1/limits/{id}/usage";
    /// An exception of it.
    Override = "/v1/limits/{id}/overrides/{key}";
    /// Whether a user may begin a task; begin one; end them all.
    Activity = "/v1/activity/{user}";
    /// End a task.
    ActivityOne = "/v1/activity/{user}/{active_id}";
    /// Keep a task's place.
    ActivityRenew = "/v1/activity/{user}/{active_id}/renew";
    /// What becomes of a task.
    ActivityEvents = "/v1/activity/{user}/{active_id}/events";
    /// There is nothing at the path, or it was not understood.
    Unknown = "other";
}

/// What a path is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Route {
    Index,
    Metrics,
    Health,
    Ready,
    OpenApi,
    Acquire,
    Peek,
    Release,
    Renew,
    Settle,
    /// With the limit's id and the key, or with both in the query.
    Gate(Option<(String, String)>),
    Limits,
    Limit(String),
    Reset(String),
    Usage(String),
    /// Of a limit, for a key.
    Override(String, String),
    /// Of a user.
    Activity(String),
    /// Of a user, a task.
    ActivityOne(String, String),
    ActivityRenew(String, String),
    ActivityEvents(String, String),
}

impl Route {
    /// The route of a path, its parts percent-decoded.
    pub(super) fn of(path: &str) -> Result<Route, Problem> {
        let parts: Vec<&str> = path.split('/').skip(1).collect();
        let text = |part: &str| decoded(part, "a part of the path");
        Ok(match parts[..] {
            [""] => Route::Index,
            ["metrics"] => Route::Metrics,
            ["healthz"] => Route::Health,
            ["readyz"] => Route::Ready,
            ["openapi.json"] => Route::OpenApi,
            ["v1", "acquire"] => Route::Acquire,
            ["v1", "peek"] => Route::Peek,
            ["v1", "release"] => Route::Release,
            ["v1", "renew"] => Route::Renew,
            ["v1", "settle"] => Route::Settle,
            ["v1", "gate"] => Route::Gate(None),
            ["v1", "gate", id, key] => Route::Gate(Some((text(id)?, text(key)?))),
            ["v1", "limits"] => Route::Limits,
            ["v1", "limits", id] if !id.is_empty() => Route::Limit(text(id)?),
            ["v1", "limits", id, "reset"] => Route::Reset(text(id)?),
            ["v1", "limits", id, "usage"] => Route::Usage(text(id)?),
            ["v1", "limits", id, "overrides", key] => Route::Override(text(id)?, text(key)?),
            ["v1", "activity", user] if !user.is_empty() => Route::Activity(text(user)?),
            ["v1", "activity", user, id, ref rest @ ..] if !user.is_empty() && !id.is_empty() => {
                let (user, id) = (text(user)?, text(id)?);
                match rest {
                    [] => Route::ActivityOne(user, id),
                    ["renew"] => Route::ActivityRenew(user, id),
                    ["events"] => Route::ActivityEvents(user, id),
                    _ => return Err(nothing_here()),
                }
            }
            _ => return Err(nothing_here()),
        })
    }

    /// Its name.
    pub(super) fn name(&self) -> RouteName {
        match self {
            Route::Index => RouteName::Index,
            Route::Metrics => RouteName::Metrics,
            Route::Health => RouteName::Health,
            Route::Ready => RouteName::Ready,
            Route::OpenApi => RouteName::OpenApi,
            Route::Acquire => RouteName::Acquire,
            Route::Peek => RouteName::Peek,
            Route::Release => RouteName::Release,
            Route::Renew => RouteName::Renew,
            Route::Settle => RouteName::Settle,
            Route::Gate(None) => RouteName::GateQuery,
            Route::Gate(Some(_)) => RouteName::Gate,
            Route::Limits => RouteName::Limits,
            Route::Limit(_) => RouteName::Limit,
            Route::Reset(_) => RouteName::Reset,
            Route::Usage(_) => RouteName::Usage,
            Route::Override(..) => RouteName::Override,
            Route::Activity(_) => RouteName::Activity,
            Route::ActivityOne(..) => RouteName::ActivityOne,
            Route::ActivityRenew(..) => RouteName::ActivityRenew,
            Route::ActivityEvents(..) => RouteName::ActivityEvents,
        }
    }

    /// The method as it is answered (`HEAD` like `GET`), if the path knows it.
    pub(super) fn method<'m>(&self, method: &'m Method) -> Result<&'m Method, Problem> {
        let allow = self.allow();
        let known = |name: &str| allow.split(", ").any(|each| each == name);
        match *method {
            _ if allow.is_empty() => Ok(method),
            Method::HEAD if known("GET") => Ok(&Method::GET),
            _ if known(method.as_str()) => Ok(method),
            _ => Err(Problem {
                allow: Some(allow),
                ..Problem::new(Code::MethodNotAllowed, format!("the methods of this path are {allow}"))
            }),
        }
    }

    /// The methods of the path, as in an `Allow` field; none are named where any will do.
    fn allow(&self) -> &'static str {
        match self {
            Route::Index
            | Route::Metrics
            | Route::Health
            | Route::Ready
            | Route::OpenApi
            | Route::Usage(_)
            | Route::ActivityEvents(..) => "GET, HEAD",
            Route::Acquire
            | Route::Peek
            | Route::Release
            | Route::Renew
            | Route::Settle
            | Route::Reset(_)
            | Route::ActivityRenew(..) => "POST",
            Route::Activity(_) => "GET, HEAD, POST, DELETE",
            Route::ActivityOne(..) => "DELETE",
            Route::Gate(_) => "",
            Route::Limits => "GET, HEAD, POST",
            Route::Limit(_) => "GET, HEAD, PUT, DELETE",
            Route::Override(..) => "PUT, DELETE",
        }
    }

    /// Whether everybody may see it, whatever tokens they show.
    pub(super) fn is_open(&self) -> bool {
        matches!(self, Route::Index | Route::Health | Route::Ready | Route::OpenApi)
    }

    /// The least role that may do this.
    pub(super) fn needs(&self, method: &Method) -> Role {
        match self {
            Route::Index
            | Route::Metrics
            | Route::Health
            | Route::Ready
            | Route::OpenApi
            | Route::Peek
            | Route::Usage(_)
            | Route::ActivityEvents(..) => Role::Read,
            Route::Limits | Route::Limit(_) | Route::Activity(_) if *method == Method::GET => Role::Read,
            Route::Acquire
            | Route::Release
            | Route::Renew
            | Route::Settle
            | Route::Gate(_)
            | Route::Activity(_)
            | Route::ActivityOne(..)
            | Route::ActivityRenew(..) => Role::Decide,
            Route::Limits | Route::Limit(_) | Route::Reset(_) | Route::Override(..) => Role::Admin,
        }
    }
}

fn nothing_here() -> Problem {
    Problem::new(Code::NotFound, "there is nothing at this path; see /openapi.json")
}
