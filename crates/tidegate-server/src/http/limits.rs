//! Limits: added, listed, looked at, replaced, removed.
//!
//! A limit's `ETag` is its version and a hash of what it says: the version alone begins anew when a limit is removed and
//! added again, and somebody who read the former one must not overwrite the other.

use std::sync::Arc;

use ::http::header::{ETAG, IF_MATCH, LOCATION};
use ::http::{HeaderValue, Response, StatusCode};
use bytes::Bytes;
use serde::Serialize;
use sha2::{Digest, Sha256};
use tidegate::activity;
use tidegate::catalog::{ApplyError, Origin, PutError};
use tidegate::store::Unavailable;
use tidegate::{Edit, EditOutcome, ExpectedVersion, Limit, LimitSpec, LimitStore, RemovalMode};
use tidegate_config::limits::RESERVED;

use super::overrides::MOST_TRIES;
use super::problem::{Code, Problem};
use super::query::Query;
use super::wire::limit::{self, LimitBody};
use super::{Api, Call, Reply, json, nothing};
use crate::resp::throttle::is_reserved;
use crate::tokens::hex;

/// How many limits a page has unless said.
const LIMITS_A_PAGE: usize = 100;
/// How many it may have.
const MOST_LIMITS_A_PAGE: usize = 1000;

impl<S: LimitStore + ?Sized> Api<S> {
    /// Adds a limit.
    pub(super) async fn add_limit(&self, call: &Call<'_>) -> Reply {
        let spec = limit::read(call.body)?;
        call.concerns(&spec.id)?;
        let limit = self.put(spec, ExpectedVersion::Absent).await?;
        let mut reply = shown(StatusCode::CREATED, &limit)?;
        let location = format!("/v1/limits/{}", limit.id().replace('/', "%2F"));
        if let Ok(location) = HeaderValue::try_from(location) {
            reply.headers_mut().insert(LOCATION, location);
        }
        Ok(reply)
    }

    /// A page of the limits that the pass covers. Those that `CL.THROTTLE` describes, which nobody has written and of which there may be
    /// thousands, are among them only if the prefix asks for them.
    pub(super) fn list_limits(&self, call: &Call<'_>) -> Reply {
        let query = Query::read(call.head, &["after", "limit", "prefix"])?;
        let size = page_size(query.get("limit"))?;
        let (after, prefix) = (query.get("after"), query.get("prefix").unwrap_or_default());
        let mut limits = self.store.list();
        limits.retain(|limit| {
            let id = limit.id();
            let meant = prefix.starts_with(RESERVED) || !is_reserved(id);
            meant && after.is_none_or(|after| id > after) && id.starts_with(prefix) && call.pass.covers(id)
        });
        let more = limits.len() > size;
        limits.truncate(size);
        let page = Page {
            next: limits.last().filter(|_| more).map(|limit| limit.id()),
            limits: limits.iter().map(|limit| LimitBody::of(limit.spec())).collect(),
        };
        let reply = json(StatusCode::OK, &page)?;
        let etag = format!("\"{}\"", fingerprint(reply.body()));
        Ok(tagged(reply, &etag))
    }

    /// One limit.
    pub(super) fn get_limit(&self, id: &str, call: &Call<'_>) -> Reply {
        call.concerns(id)?;
        let limit = self.known(id)?;
        shown(StatusCode::OK, &limit)
    }

    /// Replaces a limit; the counts of items that survive by name stay.
    pub(super) async fn set_limit(&self, id: &str, call: &Call<'_>) -> Reply {
        let mut tries = 0;
        loop {
            let current = self.changeable(id, call)?;
            let expect = expected(&current, call)?;
            let spec = limit::read_as(id, call.body)?;
            tries += 1;
            // Whoever replaces whatever is there still replaces only what was looked at: if a file has put it meanwhile, it is the file's.
            match self.put(spec, ExpectedVersion::Version(current.version())).await {
                Ok(limit) => return shown(StatusCode::OK, &limit),
                Err(PutError::Stale { .. }) if expect == ExpectedVersion::Present && tries < MOST_TRIES => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Removes a limit with its state.
    pub(super) async fn delete_limit(&self, id: &str, call: &Call<'_>) -> Reply {
        let current = self.changeable(id, call)?;
        expected(&current, call)?;
        match self.edited(Edit::Remove(id.to_owned(), RemovalMode::Forget)).await? {
            EditOutcome::Absent => Err(Problem::unknown_limit(id)),
            _ => Ok(nothing()),
        }
    }

    /// Puts a limit that is no file's.
    pub(super) async fn put(&self, spec: LimitSpec, expect: ExpectedVersion) -> Result<Arc<Limit>, PutError> {
        if let Some(flaw) =
            Some(&spec).filter(|spec| spec.id == activity::ID).and_then(activity::Rules::misfit)
        {
            return Err(PutError::Invalid(vec![flaw]));
        }
        let edited = self.edited(Edit::Put(spec, expect)).await?;
        edited.limit().map(Arc::clone).ok_or_else(unsaid)
    }

    /// Makes one edit, and waits until it is made for good. No worker waits for that.
    async fn edited(&self, edit: Edit) -> Result<EditOutcome, PutError> {
        let edited = self.heard(self.store.edit(vec![edit], Origin::Put)).await;
        let edited = match edited.map_err(PutError::Unavailable)? {
            Ok(edited) => edited.into_iter().next(),
            Err(ApplyError { refused }) => {
                return Err(refused.into_iter().next().map_or_else(unsaid, |(_, why)| why));
            }
        };
        self.written().await.map_err(PutError::Unavailable)?;
        edited.ok_or_else(unsaid)
    }

    /// The limit of this id.
    pub(super) fn known(&self, id: &str) -> Result<Arc<Limit>, Problem> {
        self.store.get(id).ok_or_else(|| Problem::unknown_limit(id))
    }

    /// The limit of this id, if it may be changed by whoever calls.
    pub(super) fn changeable(&self, id: &str, call: &Call<'_>) -> Result<Arc<Limit>, Problem> {
        call.concerns(id)?;
        let limit = self.known(id)?;
        if (self.is_from_file)(id) {
            let detail = format!("'{id}' is written in a file; change it there");
            return Err(Problem::new(Code::ManagedByFile, detail));
        }
        Ok(limit)
    }
}

/// What is said of a store that says nothing about an edit.
fn unsaid() -> PutError {
    PutError::Unavailable(Unavailable { reason: "the store did not say what became of an edit".to_owned() })
}

#[derive(Serialize)]
struct Page<'a> {
    limits: Vec<LimitBody<'a>>,
    next: Option<&'a str>,
}

fn page_size(written: Option<&str>) -> Result<usize, Problem> {
    let Some(written) = written else { return Ok(LIMITS_A_PAGE) };
    let size = written.parse().ok().filter(|size| (1..=MOST_LIMITS_A_PAGE).contains(size));
    size.ok_or_else(|| {
        Problem::bad_request(format!("limit must be a whole number from 1 to {MOST_LIMITS_A_PAGE}"))
    })
}

/// A limit as it is answered.
fn shown(status: StatusCode, limit: &Limit) -> Reply {
    Ok(tagged(json(status, &LimitBody::of(limit.spec()))?, &etag(limit)?))
}

/// The answer with an `ETag`.
pub(super) fn tagged(mut reply: Response<Bytes>, etag: &str) -> Response<Bytes> {
    if let Ok(etag) = HeaderValue::try_from(etag) {
        reply.headers_mut().insert(ETAG, etag);
    }
    reply
}

/// What stands for this version of this limit.
pub(super) fn etag(limit: &Limit) -> Result<String, Problem> {
    let said = json(StatusCode::OK, &LimitBody::of(limit.spec()))?;
    Ok(format!("\"{}-{}\"", limit.version(), fingerprint(said.body())))
}

fn fingerprint(text: &[u8]) -> String {
    hex(&Sha256::digest(text)[..8])
}

/// What the caller believes to be there, if `If-Match` says so.
pub(super) fn expected(current: &Limit, call: &Call<'_>) -> Result<ExpectedVersion, Problem> {
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
    Err(Problem::new(Code::StaleEtag, format!("the limit's ETag is {etag} by now; read it again")))
}
