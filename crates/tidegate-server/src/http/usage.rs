//! Counts: looked at, and zeroed.

use ::http::StatusCode;
use tidegate::LimitStore;

use super::query::Query;
use super::wire::read;
use super::wire::usage::{CurrentData, Reset};
use super::{Api, Call, Reply, json, nothing};

impl<S: LimitStore + ?Sized> Api<S> {
    /// What is counted for the activity, or for one key.
    pub(super) async fn usage(&self, id: &str, call: &Call<'_>) -> Reply {
        call.concerns(id)?;
        let query = Query::read(call.head, &["limit_key"])?;
        let usage = self.heard(self.store.usage(id, query.get("limit_key").map(str::as_bytes))).await??;
        json(StatusCode::OK, &CurrentData::of(usage, self.tick))
    }

    /// Zeroes the counts of one key, or everything of the limit. An empty body is for everything.
    pub(super) async fn reset(&self, id: &str, call: &Call<'_>) -> Reply {
        call.concerns(id)?;
        let body: Reset<'_> = if call.body.is_empty() { Reset::default() } else { read(call.body)? };
        self.limiter.reset_async(id, body.limit_key.as_deref().map(str::as_bytes)).await?;
        Ok(nothing())
    }
}
