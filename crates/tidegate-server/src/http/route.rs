//! Paths: what is where, with which methods, and for whom.

use ::http::Method;

use super::problem::{Code, Problem};
use super::query::decoded;
use crate::tokens::Role;

/// What a path is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Route {
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
}

impl Route {
    /// The route of a path, its parts percent-decoded.
    pub(super) fn of(path: &str) -> Result<Route, Problem> {
        let parts: Vec<&str> = path.split('/').skip(1).collect();
        let text = |part: &str| decoded(part, "a part of the path");
        Ok(match parts[..] {
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
            _ => {
                return Err(Problem::new(Code::NotFound, "there is nothing at this path; see /openapi.json"));
            }
        })
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
            Route::Health | Route::Ready | Route::OpenApi | Route::Usage(_) => "GET, HEAD",
            Route::Acquire
            | Route::Peek
            | Route::Release
            | Route::Renew
            | Route::Settle
            | Route::Reset(_) => "POST",
            Route::Gate(_) => "",
            Route::Limits => "GET, HEAD, POST",
            Route::Limit(_) => "GET, HEAD, PUT, DELETE",
            Route::Override(..) => "PUT, DELETE",
        }
    }

    /// The least role that may do this.
    pub(super) fn needs(&self, method: &Method) -> Role {
        match self {
            Route::Health | Route::Ready | Route::OpenApi | Route::Peek | Route::Usage(_) => Role::Read,
            Route::Acquire | Route::Release | Route::Renew | Route::Settle | Route::Gate(_) => Role::Decide,
            Route::Limits | Route::Limit(_) if *method == Method::GET => Role::Read,
            Route::Limits | Route::Limit(_) | Route::Reset(_) | Route::Override(..) => Role::Admin,
        }
    }
}
