//! Paths: what is where, with which methods, and for whom.

use ::http::Method;

use super::problem::{Problem, ProblemCode};
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
    ServerMetrics = "/metrics";
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
pub(super) enum ApiRoute {
    Index,
    ServerMetrics,
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

impl ApiRoute {
    /// The route of a path, its parts percent-decoded.
    pub(super) fn of(path: &str) -> Result<ApiRoute, Problem> {
        let parts: Vec<&str> = path.split('/').skip(1).collect();
        let text = |part: &str| decoded(part, "a part of the path");
        Ok(match parts[..] {
            [""] => ApiRoute::Index,
            ["metrics"] => ApiRoute::ServerMetrics,
            ["healthz"] => ApiRoute::Health,
            ["readyz"] => ApiRoute::Ready,
            ["openapi.json"] => ApiRoute::OpenApi,
            ["v1", "acquire"] => ApiRoute::Acquire,
            ["v1", "peek"] => ApiRoute::Peek,
            ["v1", "release"] => ApiRoute::Release,
            ["v1", "renew"] => ApiRoute::Renew,
            ["v1", "settle"] => ApiRoute::Settle,
            ["v1", "gate"] => ApiRoute::Gate(None),
            ["v1", "gate", id, key] => ApiRoute::Gate(Some((text(id)?, text(key)?))),
            ["v1", "limits"] => ApiRoute::Limits,
            ["v1", "limits", id] if !id.is_empty() => ApiRoute::Limit(text(id)?),
            ["v1", "limits", id, "reset"] => ApiRoute::Reset(text(id)?),
            ["v1", "limits", id, "usage"] => ApiRoute::Usage(text(id)?),
            ["v1", "limits", id, "overrides", key] => ApiRoute::Override(text(id)?, text(key)?),
            ["v1", "activity", user] if !user.is_empty() => ApiRoute::Activity(text(user)?),
            ["v1", "activity", user, id, ref rest @ ..] if !user.is_empty() && !id.is_empty() => {
                let (user, id) = (text(user)?, text(id)?);
                match rest {
                    [] => ApiRoute::ActivityOne(user, id),
                    ["renew"] => ApiRoute::ActivityRenew(user, id),
                    ["events"] => ApiRoute::ActivityEvents(user, id),
                    _ => return Err(not_found()),
                }
            }
            _ => return Err(not_found()),
        })
    }

    /// Its name.
    pub(super) fn name(&self) -> RouteName {
        match self {
            ApiRoute::Index => RouteName::Index,
            ApiRoute::ServerMetrics => RouteName::ServerMetrics,
            ApiRoute::Health => RouteName::Health,
            ApiRoute::Ready => RouteName::Ready,
            ApiRoute::OpenApi => RouteName::OpenApi,
            ApiRoute::Acquire => RouteName::Acquire,
            ApiRoute::Peek => RouteName::Peek,
            ApiRoute::Release => RouteName::Release,
            ApiRoute::Renew => RouteName::Renew,
            ApiRoute::Settle => RouteName::Settle,
            ApiRoute::Gate(None) => RouteName::GateQuery,
            ApiRoute::Gate(Some(_)) => RouteName::Gate,
            ApiRoute::Limits => RouteName::Limits,
            ApiRoute::Limit(_) => RouteName::Limit,
            ApiRoute::Reset(_) => RouteName::Reset,
            ApiRoute::Usage(_) => RouteName::Usage,
            ApiRoute::Override(..) => RouteName::Override,
            ApiRoute::Activity(_) => RouteName::Activity,
            ApiRoute::ActivityOne(..) => RouteName::ActivityOne,
            ApiRoute::ActivityRenew(..) => RouteName::ActivityRenew,
            ApiRoute::ActivityEvents(..) => RouteName::ActivityEvents,
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
                ..Problem::new(ProblemCode::MethodNotAllowed, format!("the methods of this path are {allow}"))
            }),
        }
    }

    /// The methods of the path, as in an `Allow` field; none are named where any will do.
    fn allow(&self) -> &'static str {
        match self {
            ApiRoute::Index
            | ApiRoute::ServerMetrics
            | ApiRoute::Health
            | ApiRoute::Ready
            | ApiRoute::OpenApi
            | ApiRoute::Usage(_)
            | ApiRoute::ActivityEvents(..) => "GET, HEAD",
            ApiRoute::Acquire
            | ApiRoute::Peek
            | ApiRoute::Release
            | ApiRoute::Renew
            | ApiRoute::Settle
            | ApiRoute::Reset(_)
            | ApiRoute::ActivityRenew(..) => "POST",
            ApiRoute::Activity(_) => "GET, HEAD, POST, DELETE",
            ApiRoute::ActivityOne(..) => "DELETE",
            ApiRoute::Gate(_) => "",
            ApiRoute::Limits => "GET, HEAD, POST",
            ApiRoute::Limit(_) => "GET, HEAD, PUT, DELETE",
            ApiRoute::Override(..) => "PUT, DELETE",
        }
    }

    /// Whether everybody may see it, whatever tokens they show.
    pub(super) fn is_public(&self) -> bool {
        matches!(self, ApiRoute::Index | ApiRoute::Health | ApiRoute::Ready | ApiRoute::OpenApi)
    }

    /// The least role that may do this.
    pub(super) fn required_role(&self, method: &Method) -> Role {
        match self {
            ApiRoute::Index
            | ApiRoute::ServerMetrics
            | ApiRoute::Health
            | ApiRoute::Ready
            | ApiRoute::OpenApi
            | ApiRoute::Peek
            | ApiRoute::Usage(_)
            | ApiRoute::ActivityEvents(..) => Role::Read,
            ApiRoute::Limits | ApiRoute::Limit(_) | ApiRoute::Activity(_) if *method == Method::GET => {
                Role::Read
            }
            ApiRoute::Acquire
            | ApiRoute::Release
            | ApiRoute::Renew
            | ApiRoute::Settle
            | ApiRoute::Gate(_)
            | ApiRoute::Activity(_)
            | ApiRoute::ActivityOne(..)
            | ApiRoute::ActivityRenew(..) => Role::Decide,
            ApiRoute::Limits | ApiRoute::Limit(_) | ApiRoute::Reset(_) | ApiRoute::Override(..) => {
                Role::Admin
            }
        }
    }
}

fn not_found() -> Problem {
    Problem::new(ProblemCode::NotFound, "there is nothing at this path; see /openapi.json")
}
