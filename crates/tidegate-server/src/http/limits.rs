//! Limits: create, list, read, replace, delete.
//!
//! The `ETag` of a limit is its version and a hash of its content. The version alone restarts when a limit is removed and added again,
//! and a client that read the old limit must not overwrite the new one.

use std::sync::Arc;

use ::http::header::{ETAG, IF_MATCH, LOCATION};
use ::http::{HeaderValue, Response, StatusCode};
use bytes::Bytes;
use serde::Serialize;
use sha2::{Digest, Sha256};
use tidegate::activity;
use tidegate::catalog::{ApplyError, Origin, PutError};
use tidegate::catalog::{Edit, EditOutcome, ExpectedVersion, RemovalMode};
use tidegate::model::{Limit, LimitSpec};
use tidegate::store::LimitStore;
use tidegate::store::Unavailable;

use super::overrides::MAX_EDIT_ATTEMPTS;
use super::problem::{Problem, ProblemCode};
use super::query::Query;
use super::wire::limit::{self, LimitBody};
use super::{ApiCall, HttpApi, Reply, json, no_content};
use crate::resp::described_buckets::is_reserved;
use crate::tokens::hex;

/// Default number of limits per page.
const DEFAULT_PAGE_SIZE: usize = 100;
/// Maximum number of limits per page.
const MAX_PAGE_SIZE: usize = 1000;

impl<S: LimitStore + ?Sized> HttpApi<S> {
    /// Creates a limit.
    pub(super) async fn add_limit(&self, call: &ApiCall<'_>) -> Reply {
        let spec = limit::read(call.body)?;
        call.require_limit(&spec.id)?;
        let limit = self.put(spec, ExpectedVersion::Absent).await?;
        let mut reply = limit_reply(StatusCode::CREATED, &limit)?;
        let location = format!("/v1/limits/{}", limit.id().replace('/', "%2F"));
        if let Ok(location) = HeaderValue::try_from(location) {
            reply.headers_mut().insert(LOCATION, location);
        }
        Ok(reply)
    }

    /// A page of the limits that the permissions cover. Described buckets of `CL.THROTTLE`, of which there may be thousands, are
    /// listed only if the prefix asks for them.
    pub(super) fn list_limits(&self, call: &ApiCall<'_>) -> Reply {
        let query = Query::read(call.head, &["after", "limit", "prefix"])?;
        let size = page_size(query.get("limit"))?;
        let (after, prefix) = (query.get("after"), query.get("prefix").unwrap_or_default());
        let mut limits = self.store.list();
        limits.retain(|limit| {
            let id = limit.id();
            let is_listed = prefix.starts_with(tidegate_config::limits::RESERVED) || !is_reserved(id);
            is_listed
                && after.is_none_or(|after| id > after)
                && id.starts_with(prefix)
                && call.permissions.covers(id)
        });
        let more = limits.len() > size;
        limits.truncate(size);
        let page = LimitPage {
            next: limits.last().filter(|_| more).map(|limit| limit.id()),
            limits: limits.iter().map(|limit| LimitBody::of(limit.spec())).collect(),
        };
        let reply = json(StatusCode::OK, &page)?;
        let etag = format!("\"{}\"", fingerprint(reply.body()));
        Ok(with_etag(reply, &etag))
    }

    /// Returns one limit.
    pub(super) fn get_limit(&self, id: &str, call: &ApiCall<'_>) -> Reply {
        call.require_limit(id)?;
        let limit = self.require_known(id)?;
        limit_reply(StatusCode::OK, &limit)
    }

    /// Replaces a limit; counts of items with the same name are kept.
    pub(super) async fn set_limit(&self, id: &str, call: &ApiCall<'_>) -> Reply {
        let mut tries = 0;
        loop {
            let current = self.editable_limit(id, call)?;
            let expect = expected_version(&current, call)?;
            let spec = limit::read_as(id, call.body)?;
            tries += 1;
            // Replace only the version that was checked: a file may have taken the limit over meanwhile.
            match self.put(spec, ExpectedVersion::Version(current.version())).await {
                Ok(limit) => return limit_reply(StatusCode::OK, &limit),
                Err(PutError::Stale { .. })
                    if expect == ExpectedVersion::Present && tries < MAX_EDIT_ATTEMPTS => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Removes a limit and its state.
    pub(super) async fn delete_limit(&self, id: &str, call: &ApiCall<'_>) -> Reply {
        let current = self.editable_limit(id, call)?;
        expected_version(&current, call)?;
        match self.edit(Edit::Remove(id.to_owned(), RemovalMode::Forget)).await? {
            EditOutcome::Absent => Err(Problem::unknown_limit(id)),
            _ => Ok(no_content()),
        }
    }

    /// Puts a limit after checking the rules of the activity limit.
    pub(super) async fn put(&self, spec: LimitSpec, expect: ExpectedVersion) -> Result<Arc<Limit>, PutError> {
        if let Some(flaw) =
            Some(&spec).filter(|spec| spec.id == activity::ID).and_then(activity::ActivityRules::misfit)
        {
            return Err(PutError::Invalid(vec![flaw]));
        }
        let edited = self.edit(Edit::Put(spec, expect)).await?;
        edited.limit().map(Arc::clone).ok_or_else(missing_edit_outcome)
    }

    /// Makes one edit and waits until it is durable, without blocking the worker.
    async fn edit(&self, edit: Edit) -> Result<EditOutcome, PutError> {
        let edited = self.resolve(self.store.edit(vec![edit], Origin::Put)).await;
        let edited = match edited.map_err(PutError::Unavailable)? {
            Ok(edited) => edited.into_iter().next(),
            Err(ApplyError { refused }) => {
                return Err(refused.into_iter().next().map_or_else(missing_edit_outcome, |(_, why)| why));
            }
        };
        self.wait_durable().await.map_err(PutError::Unavailable)?;
        edited.ok_or_else(missing_edit_outcome)
    }

    /// The limit of this id.
    pub(super) fn require_known(&self, id: &str) -> Result<Arc<Limit>, Problem> {
        self.store.get(id).ok_or_else(|| Problem::unknown_limit(id))
    }

    /// The limit of this id, if the caller may change it.
    pub(super) fn editable_limit(&self, id: &str, call: &ApiCall<'_>) -> Result<Arc<Limit>, Problem> {
        call.require_limit(id)?;
        let limit = self.require_known(id)?;
        if (self.is_from_file)(id) {
            let detail = format!("'{id}' is managed by a settings file; change it there");
            return Err(Problem::new(ProblemCode::ManagedByFile, detail));
        }
        Ok(limit)
    }
}

/// The error if a store returns no outcome for an edit.
fn missing_edit_outcome() -> PutError {
    PutError::Unavailable(Unavailable { reason: "the store did not say what became of an edit".to_owned() })
}

#[derive(Serialize)]
struct LimitPage<'a> {
    limits: Vec<LimitBody<'a>>,
    next: Option<&'a str>,
}

fn page_size(text: Option<&str>) -> Result<usize, Problem> {
    let Some(text) = text else { return Ok(DEFAULT_PAGE_SIZE) };
    let size = text.parse().ok().filter(|size| (1..=MAX_PAGE_SIZE).contains(size));
    size.ok_or_else(|| {
        Problem::bad_request(format!("limit must be a whole number from 1 to {MAX_PAGE_SIZE}"))
    })
}

/// The response with a limit.
fn limit_reply(status: StatusCode, limit: &Limit) -> Reply {
    Ok(with_etag(json(status, &LimitBody::of(limit.spec()))?, &etag(limit)?))
}

/// Adds an `ETag` to a response.
pub(super) fn with_etag(mut reply: Response<Bytes>, etag: &str) -> Response<Bytes> {
    if let Ok(etag) = HeaderValue::try_from(etag) {
        reply.headers_mut().insert(ETAG, etag);
    }
    reply
}

/// The `ETag` of a limit.
pub(super) fn etag(limit: &Limit) -> Result<String, Problem> {
    let body = json(StatusCode::OK, &LimitBody::of(limit.spec()))?;
    Ok(format!("\"{}-{}\"", limit.version(), fingerprint(body.body())))
}

fn fingerprint(text: &[u8]) -> String {
    hex(&Sha256::digest(text)[..8])
}

/// The version that `If-Match` requires.
pub(super) fn expected_version(current: &Limit, call: &ApiCall<'_>) -> Result<ExpectedVersion, Problem> {
    let mut fields = call.head.headers.get_all(IF_MATCH).iter().peekable();
    if fields.peek().is_none() {
        return Ok(ExpectedVersion::Present);
    }
    let etag = etag(current)?;
    let listed = |field: &HeaderValue| {
        let field = field.to_str().unwrap_or_default();
        field.split(',').map(str::trim).any(|each| each == "*" || each == etag)
    };
    if fields.any(listed) {
        return Ok(ExpectedVersion::Version(current.version()));
    }
    Err(Problem::new(ProblemCode::StaleEtag, format!("the limit's current ETag is {etag}; read it again")))
}
