//! Overrides: exceptions for single keys.
//!
//! An override is part of its limit, so a change makes a new version of the limit. Concurrent changes of one limit all succeed: the slower
//! one retries on top of the other. After [`MAX_EDIT_ATTEMPTS`] attempts, each possibly a round trip, it fails with a stale version.

use std::sync::Arc;

use ::http::StatusCode;
use tidegate::catalog::ExpectedVersion;
use tidegate::catalog::PutError;
use tidegate::model::{Limit, LimitSpec};
use tidegate::store::LimitStore;

use super::limits::{etag, expected_version, with_etag};
use super::problem::{Problem, ProblemCode};
use super::query::Query;
use super::wire::limit::OverrideBody;
use super::wire::override_body::{self, OverrideRemovalBody};
use super::wire::read;
use super::{ApiCall, HttpApi, Reply, json, no_content};

/// How often an edit is retried while others change the same limit.
pub(super) const MAX_EDIT_ATTEMPTS: usize = 64;

impl<S: LimitStore + ?Sized> HttpApi<S> {
    /// Puts the override of an item for a key, replacing an existing one.
    pub(super) async fn put_override(&self, id: &str, key: &str, call: &ApiCall<'_>) -> Reply {
        let change = |spec: &mut LimitSpec| {
            let put = override_body::read(spec, key, call.body)?;
            spec.overrides.retain(|each| !(each.key == put.key && each.item == put.item));
            spec.overrides.push(put.clone());
            Ok(put)
        };
        let (limit, put) = self.edit_overrides(id, call, change).await?;
        Ok(with_etag(json(StatusCode::OK, &OverrideBody::of(&put))?, &etag(&limit)?))
    }

    /// Removes the overrides of a key, or only that of one item: `?item=`, or `item` in the body.
    pub(super) async fn delete_override(&self, id: &str, key: &str, call: &ApiCall<'_>) -> Reply {
        let query = Query::read(call.head, &["item"])?;
        let body: OverrideRemovalBody =
            if call.body.is_empty() { OverrideRemovalBody::default() } else { read(call.body)? };
        let item = query.get("item").or(body.item.as_deref());
        let change = |spec: &mut LimitSpec| {
            let before = spec.overrides.len();
            spec.overrides
                .retain(|each| each.key != key.as_bytes() || item.is_some_and(|item| each.item != item));
            if spec.overrides.len() < before { Ok(()) } else { Err(unknown_override(key)) }
        };
        self.edit_overrides(id, call, change).await?;
        Ok(no_content())
    }

    /// Edits a limit; retries if it was changed meanwhile.
    async fn edit_overrides<T>(
        &self,
        id: &str,
        call: &ApiCall<'_>,
        change: impl Fn(&mut LimitSpec) -> Result<T, Problem>,
    ) -> Result<(Arc<Limit>, T), Problem> {
        let mut tries = 0;
        loop {
            let current = self.editable_limit(id, call)?;
            expected_version(&current, call)?;
            let mut spec = current.spec().clone();
            let changed = change(&mut spec)?;
            tries += 1;
            match self.put(spec, ExpectedVersion::Version(current.version())).await {
                Ok(limit) => return Ok((limit, changed)),
                Err(PutError::Stale { .. }) if tries < MAX_EDIT_ATTEMPTS => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn unknown_override(key: &str) -> Problem {
    Problem::new(ProblemCode::NotFound, format!("there is no such override for '{}'", key.escape_debug()))
}
