//! Problem responses (RFC 9457).
//!
//! Programs match `code`, which never changes; `detail` is for people. A refusal by a limit is an answer, not a problem.

use std::fmt;
use std::time::Duration;

use ::http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use ::http::{HeaderValue, Response, StatusCode};
use bytes::Bytes;
use serde::Serialize;
use tidegate::AcquireError;
use tidegate::catalog::PutError;
use tidegate::model::SpecError;
use tidegate::reply::OrderError;
use tidegate::store::Unavailable;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $word:literal, $status:ident, $title:literal;)+) => {
        /// The machine-readable code of a problem.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum ProblemCode { $($(#[$doc])* $name),+ }

        impl ProblemCode {
            /// All codes.
            pub const ALL: &'static [ProblemCode] = &[$(ProblemCode::$name),+];

            /// The code on the wire.
            pub const fn word(self) -> &'static str {
                match self { $(ProblemCode::$name => $word),+ }
            }

            /// The HTTP status.
            pub const fn status(self) -> StatusCode {
                match self { $(ProblemCode::$name => StatusCode::$status),+ }
            }

            const fn title(self) -> &'static str {
                match self { $(ProblemCode::$name => $title),+ }
            }
        }
    };
}

codes! {
    /// The request is malformed.
    BadRequest = "bad_request", BAD_REQUEST, "The request makes no sense";
    /// The caller is not authenticated.
    Unauthorized = "unauthorized", UNAUTHORIZED, "A token is needed";
    /// The token does not allow this.
    Forbidden = "forbidden", FORBIDDEN, "The token does not allow this";
    /// There is nothing at this path.
    NotFound = "not_found", NOT_FOUND, "There is nothing here";
    /// No limit has this id.
    UnknownLimit = "unknown_limit", NOT_FOUND, "No limit has this id";
    /// The path is known, but not with this method.
    MethodNotAllowed = "method_not_allowed", METHOD_NOT_ALLOWED, "This path does not know this method";
    /// A limit of this id already exists.
    LimitExists = "limit_exists", CONFLICT, "A limit of this id exists";
    /// The limit is managed by a settings file.
    ManagedByFile = "managed_by_file", CONFLICT, "The limit is managed by a file";
    /// The request id was used with other asks.
    RequestIdReused = "request_id_reused", CONFLICT, "The request id was used for something else";
    /// The lease has expired, was released, or never existed.
    UnknownLease = "unknown_lease", GONE, "The lease is gone";
    /// The limit has changed since it was read.
    StaleEtag = "stale_etag", PRECONDITION_FAILED, "The limit has changed";
    /// The body is too long.
    TooLarge = "too_large", PAYLOAD_TOO_LARGE, "The body is too large";
    /// Too many invalid tokens came from this address.
    TooManyAttempts = "too_many_attempts", TOO_MANY_REQUESTS, "Too many failed attempts";
    /// The user's request window is full.
    UserWindow = "user_window", TOO_MANY_REQUESTS, "The user's window is full";
    /// The maximum number of tasks is running.
    ActivityError = "ActivityError", SERVICE_UNAVAILABLE, "As many tasks are running as are allowed";
    /// The request took too long to arrive.
    RequestTimeout = "request_timeout", REQUEST_TIMEOUT, "The request took too long";
    /// The limit is invalid.
    InvalidLimit = "invalid_limit", UNPROCESSABLE_ENTITY, "The limit is not valid";
    /// The time to live of a task is out of range.
    InvalidTtl = "invalid_ttl", UNPROCESSABLE_ENTITY, "A task cannot have this time to live";
    /// The store is unavailable.
    StoreUnavailable = "store_unavailable", SERVICE_UNAVAILABLE, "The store cannot answer";
    /// The server is starting or shutting down.
    NotReady = "not_ready", SERVICE_UNAVAILABLE, "Not ready";
    /// Too many connections; sent by the listener before anything is read.
    Overloaded = "overloaded", SERVICE_UNAVAILABLE, "Too many connections";
}

/// An error of one field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FieldError {
    /// The path of the field: `items[2].burst`.
    pub field: String,
    /// What is wrong and what is allowed.
    pub message: String,
}

impl From<SpecError> for FieldError {
    fn from(flaw: SpecError) -> FieldError {
        FieldError { field: flaw.field, message: flaw.message }
    }
}

/// A problem response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The kind of problem.
    pub code: ProblemCode,
    /// What is wrong and what is allowed.
    pub detail: String,
    /// Errors of single fields, if there are several.
    pub errors: Vec<FieldError>,
    /// The allowed methods, after a wrong method.
    pub(super) allow: Option<&'static str>,
    /// Time until a retry can succeed, if known.
    pub(super) retry_after: Option<Duration>,
}

impl Problem {
    pub(crate) fn new(code: ProblemCode, detail: impl fmt::Display) -> Problem {
        Problem { code, detail: detail.to_string(), errors: Vec::new(), allow: None, retry_after: None }
    }

    pub(crate) fn bad_request(detail: impl fmt::Display) -> Problem {
        Problem::new(ProblemCode::BadRequest, detail)
    }

    pub(super) fn unknown_limit(id: &str) -> Problem {
        OrderError::UnknownLimit { limit_id: id.to_owned() }.into()
    }

    pub(super) fn of_fields(code: ProblemCode, errors: Vec<FieldError>) -> Problem {
        let detail = match errors.len() {
            1 => "1 error; see errors".to_owned(),
            many => format!("{many} errors; see errors"),
        };
        Problem { errors, ..Problem::new(code, detail) }
    }

    /// The problem as a response.
    pub fn into_response(self) -> Response<Bytes> {
        let status = self.code.status();
        let wire = ProblemBody {
            kind: "about:blank",
            title: self.code.title(),
            status: status.as_u16(),
            code: self.code.word(),
            detail: &self.detail,
            errors: &self.errors,
            retry_after_ms: self.retry_after.map(in_ms),
        };
        let body = serde_json::to_vec(&wire).unwrap_or_default();
        let mut response = Response::new(Bytes::from(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(allow) = self.allow {
            headers.insert(ALLOW, HeaderValue::from_static(allow));
        }
        if let Some(wait) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(in_ms(wait).div_ceil(1000)));
        }
        if self.code == ProblemCode::Unauthorized {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

#[derive(Serialize)]
struct ProblemBody<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    status: u16,
    code: &'static str,
    detail: &'a str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    errors: &'a [FieldError],
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
}

/// A wait in milliseconds, rounded up.
pub(super) fn in_ms(wait: Duration) -> u64 {
    u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

impl From<OrderError> for Problem {
    fn from(rejection: OrderError) -> Problem {
        let code = match rejection {
            OrderError::UnknownLimit { .. } => ProblemCode::UnknownLimit,
            OrderError::RequestIdReused => ProblemCode::RequestIdReused,
            _ => ProblemCode::BadRequest,
        };
        Problem::new(code, rejection)
    }
}

impl From<Unavailable> for Problem {
    fn from(_: Unavailable) -> Problem {
        // The reason may name hosts; it is logged, not sent.
        Problem::new(ProblemCode::StoreUnavailable, "the store cannot answer now; try again")
    }
}

impl From<AcquireError> for Problem {
    fn from(error: AcquireError) -> Problem {
        match error {
            AcquireError::Invalid(error) => error.into(),
            AcquireError::Unavailable(unavailable) => unavailable.into(),
            refused => Problem::new(ProblemCode::StoreUnavailable, refused),
        }
    }
}

impl From<PutError> for Problem {
    fn from(error: PutError) -> Problem {
        match error {
            PutError::Exists => Problem::new(ProblemCode::LimitExists, error),
            PutError::Unknown => Problem::new(ProblemCode::UnknownLimit, error),
            PutError::Stale { .. } => Problem::new(ProblemCode::StaleEtag, error),
            PutError::Unavailable(unavailable) => unavailable.into(),
            PutError::Invalid(flaws) => Problem::of_fields(
                ProblemCode::InvalidLimit,
                flaws.into_iter().map(FieldError::from).collect(),
            ),
            other => Problem::new(ProblemCode::InvalidLimit, other),
        }
    }
}
