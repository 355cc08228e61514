//! Routes: paths, methods and required roles.

use ::http::Method;

use super::problem::{Problem, ProblemCode};
use super::query::decoded;
use crate::tokens::Role;

macro_rules! route_names {
    ($($(#[$doc:meta])* $name:ident = $template:literal;)+) => {
        /// A route without its parameters, as metrics label it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum RouteName { $($(#[$doc])* $name),+ }

        impl RouteName {
            /// All routes.
            pub const ALL: &'static [RouteName] = &[$(RouteName::$name),+];

            /// The path template, as in `openapi.json`.
            pub const fn template(self) -> &'static str {
                match self { $(RouteName::$name => $template),+ }
            }
        }
    };
}

route_names! {
    /// The landing page.
    Index = "/";
    /// Liveness.
    Health = "/healthz";
    /// Readiness.
    Ready = "/readyz";
    /// The API description.
    OpenApi = "/openapi.json";
    /// Metrics.
    Metrics = "/metrics";
    /// Acquire.
    Acquire = "/v1/acquire";
    /// Peek.
    Peek = "/v1/peek";
    /// Release a lease.
    Release = "/v1/release";
    /// Renew a lease.
    Renew = "/v1/renew";
    /// Settle a lease.
    Settle = "/v1/settle";
    /// Acquire one unit; limit and key in the query.
    GateQuery = "/v1/gate";
    /// Acquire one unit; limit and key in the path.
    Gate = "/v1/gate/{id}/{key}";
    /// All limits.
    Limits = "/v1/limits";
    /// One limit.
    Limit = "/v1/limits/{id}";
    /// Reset the counts of a limit.
    Reset = "/v1/limits/{id}/reset";
    /// The counts of a limit.
    Usage = "/v1/limits/{id}/usage";
    /// An override of a limit.
    Override = "/v1/limits/{id}/overrides/{key}";
    /// Whether a user may start a task; start one; end all.
    Activity = "/v1/activity/{user}";
    /// End a task.
    ActivityOne = "/v1/activity/{user}/{active_id}";
    /// Extend a task.
    ActivityRenew = "/v1/activity/{user}/{active_id}/renew";
    /// The events of a task.
    ActivityEvents = "/v1/activity/{user}/{active_id}/events";
    /// No such path, or an unreadable request.
    Unknown = "other";
}

/// A parsed path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ApiRoute {
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
    /// Limit id and key, or `None` if they are in the query.
    Gate(Option<(String, String)>),
    Limits,
    Limit(String),
    Reset(String),
    Usage(String),
    /// Limit id and key.
    Override(String, String),
    /// User.
    Activity(String),
    /// User and task id.
    ActivityOne(String, String),
    ActivityRenew(String, String),
    ActivityEvents(String, String),
}

impl ApiRoute {
    /// Parses a path and percent-decodes its parts.
    pub(super) fn of(path: &str) -> Result<ApiRoute, Problem> {
        let parts: Vec<&str> = path.split('/').skip(1).collect();
        let text = |part: &str| decoded(part, "a part of the path");
        Ok(match parts[..] {
            [""] => ApiRoute::Index,
            ["metrics"] => ApiRoute::Metrics,
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

    /// The route without parameters.
    pub(super) fn name(&self) -> RouteName {
        match self {
            ApiRoute::Index => RouteName::Index,
            ApiRoute::Metrics => RouteName::Metrics,
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

    /// Checks the method; `HEAD` becomes `GET`.
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

    /// The methods for an `Allow` header; empty if any is accepted.
    fn allow(&self) -> &'static str {
        match self {
            ApiRoute::Index
            | ApiRoute::Metrics
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

    /// Whether the route needs no token.
    pub(super) fn is_public(&self) -> bool {
        matches!(self, ApiRoute::Index | ApiRoute::Health | ApiRoute::Ready | ApiRoute::OpenApi)
    }

    /// The least role for this route and method.
    pub(super) fn required_role(&self, method: &Method) -> Role {
        match self {
            ApiRoute::Index
            | ApiRoute::Metrics
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
