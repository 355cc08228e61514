//! Document 000 over HTTP: who may begin a task, and tasks by their names.
//!
//! Paths speak of users and of their tasks; the limit behind them is called `activity`, and that is what a pass must cover. Whoever is refused
//! gets a problem here, because that is what callers of the document's module are used to: 429 for the window, 503 for the tasks.
//! While the store cannot answer nobody begins anything, whatever the limit says about outages: there would be no name to end it by.

use ::http::StatusCode;
use ::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use ::http::{HeaderValue, Response};
use bytes::Bytes;
use serde_json::json;
use tidegate::activity::{ActivityError, ID, Reason};
use tidegate::{Ask, LeaseId, LimitStore, Renewal};

use super::events::EventStream;
use super::leases::unknown_lease;
use super::problem::{Problem, ProblemCode};
use super::query::Query;
use super::wire::activity::{ActivityStatusBody, StartedTaskBody, TaskTermBody};
use super::wire::{instant, read};
use super::{ApiCall, HandlerReply, HttpApi, Reply, json};

impl<S: LimitStore + ?Sized> HttpApi<S> {
    /// Whether a task of this user would be refused, and by what.
    pub(super) async fn is_active(&self, user: &str, call: &ApiCall<'_>) -> Reply {
        check_call(call)?;
        let status = self.activity.is_active(user).await?;
        json(StatusCode::OK, &ActivityStatusBody::from(status))
    }

    /// Begins a task.
    pub(super) async fn set_active(&self, user: &str, call: &ApiCall<'_>) -> Result<HandlerReply, Problem> {
        check_call(call)?;
        let active = match self.activity.set_active_for(user, term(call)?.ttl()).await {
            Ok(active) => active,
            Err(ActivityError::Refused(refusal)) => {
                self.record_refusal(refusal.denial(), &[Ask::one(ID, Some(user.as_bytes()))]);
                let problem = Problem::from(ActivityError::Refused(refusal));
                return Ok(HandlerReply { granted: Some(false), ..problem.into_response().into() });
            }
            Err(error) => return Err(error.into()),
        };
        let begun = StartedTaskBody::of(active, self.tick);
        Ok(HandlerReply { granted: Some(true), ..json(StatusCode::CREATED, &begun)?.into() })
    }

    /// Keeps a task's place.
    pub(super) async fn renew_active(&self, user: &str, id: &str, call: &ApiCall<'_>) -> Reply {
        check_call(call)?;
        let ttl = term(call)?.ttl();
        let id = LeaseId::parse(id).ok_or_else(unknown_lease)?;
        match self.activity.renew(user, id, ttl).await? {
            Renewal::Until(at) => json(StatusCode::OK, &json!({"expires_at": instant::of(at, self.tick)})),
            Renewal::Gone => Err(unknown_lease()),
        }
    }

    /// Ends a task, or all tasks of a user.
    pub(super) async fn remove_active(&self, user: &str, id: Option<&str>, call: &ApiCall<'_>) -> Reply {
        check_call(call)?;
        let removed = match id.map(LeaseId::parse) {
            None => self.activity.remove_active(user).await?,
            Some(Some(id)) => self.activity.remove(user, id).await?,
            // No task is called that.
            Some(None) => 0,
        };
        json(StatusCode::OK, &json!({"removed": removed}))
    }

    /// Tells of a task until it is over.
    pub(super) async fn watch_active(
        &self,
        user: &str,
        id: &str,
        call: &ApiCall<'_>,
    ) -> Result<HandlerReply, Problem> {
        check_call(call)?;
        let full = |_| Problem::new(ProblemCode::Overloaded, "too many tasks are watched; try again later");
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

/// Checks that the pass is for activities, and that nothing is asked for beside what the path says.
fn check_call(call: &ApiCall<'_>) -> Result<(), Problem> {
    call.require_limit(ID)?;
    Query::read(call.head, &[]).map(|_| ())
}

/// What the body says; nothing if there is none.
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
        }
    }
}
