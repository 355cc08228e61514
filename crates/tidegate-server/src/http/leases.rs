//! Leases by their ids: given back, renewed, settled.
//!
//! An id that no store would give out is a lease that is gone, like any other that is not there.
//!
//! A lease's id is a secret of whoever was granted it and says nothing about its limits, so a pass's prefix is not
//! asked here.

use ::http::StatusCode;
use tidegate::limiter::Renewal;
use tidegate::model::LeaseId;
use tidegate::store::{Actual, LimitStore, Settlement};

use super::problem::{Code, Problem};
use super::wire::lease::{Release, Renew, Settle, Spent};
use super::wire::{instant, read};
use super::{Api, Call, Reply, json};

impl<S: LimitStore + ?Sized> Api<S> {
    /// Gives a lease back, once.
    pub(super) async fn release(&self, call: &Call<'_>) -> Reply {
        let body: Release<'_> = read(call.body)?;
        let released = match body.lease() {
            Some(lease) => self.limiter.release_async(lease).await?,
            None => false,
        };
        json(StatusCode::OK, &serde_json::json!({"released": released}))
    }

    /// Moves a lease's end.
    pub(super) async fn renew(&self, call: &Call<'_>) -> Reply {
        let body: Renew<'_> = read(call.body)?;
        match self.limiter.renew_async(known(body.lease())?, body.ttl()).await? {
            Renewal::Until(at) => {
                let expires_at = instant::of(at, self.tick);
                json(StatusCode::OK, &serde_json::json!({"expires_at": expires_at}))
            }
            Renewal::Gone => Err(gone()),
        }
    }

    /// Corrects a held charge to its true cost, then gives it back.
    pub(super) async fn settle(&self, call: &Call<'_>) -> Reply {
        let body: Settle<'_> = read(call.body)?;
        let actual = match &body.actual {
            Spent::Every(amount) => Actual::Every(*amount),
            Spent::Each(amounts) => Actual::Each(amounts),
        };
        match self.limiter.settle_async(known(body.lease())?, actual).await? {
            Settlement::Settled => json(StatusCode::OK, &serde_json::json!({"settled": true})),
            Settlement::Gone => Err(gone()),
        }
    }
}

fn known(lease: Option<LeaseId>) -> Result<LeaseId, Problem> {
    lease.ok_or_else(gone)
}

pub(super) fn gone() -> Problem {
    let detail = "the lease was given back, has lapsed, or was never granted";
    Problem::new(Code::UnknownLease, detail)
}
