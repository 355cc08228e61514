//! The counts of a limit: read and reset.

use ::http::StatusCode;
use tidegate::store::LimitStore;

use super::query::Query;
use super::wire::read;
use super::wire::usage::{ResetBody, UsageBody};
use super::{ApiCall, HttpApi, Reply, json, no_content};

impl<S: LimitStore + ?Sized> HttpApi<S> {
    /// The counts of the whole limit or of one key.
    pub(super) async fn usage(&self, id: &str, call: &ApiCall<'_>) -> Reply {
        call.require_limit(id)?;
        let query = Query::read(call.head, &["limit_key"])?;
        let usage = self.resolve(self.store.usage(id, query.get("limit_key").map(str::as_bytes))).await??;
        json(StatusCode::OK, &UsageBody::of(usage, self.tick))
    }

    /// Resets the counts of one key, or of the whole limit if the body is empty.
    pub(super) async fn reset(&self, id: &str, call: &ApiCall<'_>) -> Reply {
        call.require_limit(id)?;
        let body: ResetBody<'_> = if call.body.is_empty() { ResetBody::default() } else { read(call.body)? };
        self.limiter.reset_async(id, body.limit_key.as_deref().map(str::as_bytes)).await?;
        Ok(no_content())
    }
}
