//! Tasks of users: start, renew, end and watch.
//!
//! Paths name users and tasks; the limit behind them is `activity`, which the permissions must cover. A refusal is a problem response:
//! 429 for the user's window, 503 for the number of tasks. During a store outage no task starts, whatever the limit's `on_outage` says:
//! without the store there is no id to end the task by.

use ::http::StatusCode;
use ::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use ::http::{HeaderValue, Response};
use bytes::Bytes;
use serde_json::json;
use tidegate::activity::{ActivityError, ID, Reason};
use tidegate::limiter::Renewal;
use tidegate::model::{Ask, LeaseId};
use tidegate::store::LimitStore;

use super::events::EventStream;
use super::leases::unknown_lease;
use super::problem::{Problem, ProblemCode};
use super::query::Query;
use super::wire::activity::{ActivityStatusBody, StartedTaskBody, TaskTermBody};
use super::wire::{instant, read};
use super::{ApiCall, HandlerReply, HttpApi, Reply, json};

impl<S: LimitStore + ?Sized> HttpApi<S> {
    /// Whether a task of this user would be refused, and why.
    pub(super) async fn is_active(&self, user: &str, call: &ApiCall<'_>) -> Reply {
        check_call(call)?;
        let status = self.activity.is_active(user).await?;
        json(StatusCode::OK, &ActivityStatusBody::from(status))
    }

    /// Starts a task.
    pub(super) async fn set_active(&self, user: &str, call: &ApiCall<'_>) -> Result<HandlerReply, Problem> {
        check_call(call)?;
        let active = match self.activity.set_active_for(user, term(call)?.ttl()).await {
            Ok(active) => active,
            Err(ActivityError::Refused(refusal)) => {
                self.record_refusal(refusal.refused(), &[Ask::one(ID, Some(user.as_bytes()))]);
                let problem = Problem::from(ActivityError::Refused(refusal));
                return Ok(HandlerReply { granted: Some(false), ..problem.into_response().into() });
            }
            Err(error) => return Err(error.into()),
        };
        let begun = StartedTaskBody::of(active, self.tick);
        Ok(HandlerReply { granted: Some(true), ..json(StatusCode::CREATED, &begun)?.into() })
    }

    /// Extends a task.
    pub(super) async fn renew_active(&self, user: &str, id: &str, call: &ApiCall<'_>) -> Reply {
        check_call(call)?;
        let ttl = term(call)?.ttl();
        let id = LeaseId::parse(id).ok_or_else(unknown_lease)?;
        let Renewal::Until(at) = self.activity.renew(user, id, ttl).await? else {
            return Err(unknown_lease());
        };
        json(StatusCode::OK, &json!({"expires_at": instant::of(at, self.tick)}))
    }

    /// Ends a task, or all tasks of a user.
    pub(super) async fn remove_active(&self, user: &str, id: Option<&str>, call: &ApiCall<'_>) -> Reply {
        check_call(call)?;
        let removed = match id.map(LeaseId::parse) {
            None => self.activity.remove_active(user).await?,
            Some(Some(id)) => self.activity.remove(user, id).await?,
            // A malformed id names no task.
            Some(None) => 0,
        };
        json(StatusCode::OK, &json!({"removed": removed}))
    }

    /// Streams the events of a task until it ends.
    pub(super) async fn watch_active(
        &self,
        user: &str,
        id: &str,
        call: &ApiCall<'_>,
    ) -> Result<HandlerReply, Problem> {
        check_call(call)?;
        let full =
            |_| Problem::new(ProblemCode::Overloaded, "too many event streams are open; try again later");
        let slot = std::sync::Arc::clone(&self.streams).try_acquire_owned().map_err(full)?;
        let id = LeaseId::parse(id).ok_or_else(unknown_lease)?;
        let watching = self.activity.watch(user, id).await?.ok_or_else(unknown_lease)?;
        let mut response = Response::new(Bytes::new());
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        let events = EventStream::new(id, watching, self.tick, self.shutdown.clone(), slot);
        Ok(HandlerReply { events: Some(events), ..response.into() })
    }
}

/// Requires permission for activities and an empty query.
fn check_call(call: &ApiCall<'_>) -> Result<(), Problem> {
    call.require_limit(ID)?;
    Query::read(call.head, &[]).map(|_| ())
}

/// The body; defaults if it is empty.
fn term(call: &ApiCall<'_>) -> Result<TaskTermBody, Problem> {
    if call.body.is_empty() { Ok(TaskTermBody::default()) } else { read(call.body) }
}

impl From<ActivityError> for Problem {
    fn from(error: ActivityError) -> Problem {
        match error {
            ActivityError::Refused(refusal) => {
                let code = match refusal.reason {
                    Reason::UserWindow => ProblemCode::UserWindow,
                    Reason::Concurrency => ProblemCode::ActivityError,
                };
                Problem { retry_after: refusal.retry_after, ..Problem::new(code, refusal) }
            }
            ActivityError::BadUser(why) => Problem::bad_request(why),
            ActivityError::BadTtl(why) => Problem::new(ProblemCode::InvalidTtl, format!("ttl_ms {why}")),
            ActivityError::Misfit(_) => Problem::new(ProblemCode::InvalidLimit, error),
            ActivityError::Rejected(rejection) => rejection.into(),
            ActivityError::Unavailable(unavailable) => unavailable.into(),
            other => Problem::new(ProblemCode::StoreUnavailable, other),
        }
    }
}
