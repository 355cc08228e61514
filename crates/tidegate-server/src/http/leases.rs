//! Leases by id: release, renew, settle.
//!
//! A malformed id is treated like the id of an expired lease.
//!
//! A lease id is a secret of its holder and does not name its limits, so the prefix of the permissions is not checked.

use ::http::StatusCode;
use tidegate::limiter::Renewal;
use tidegate::model::LeaseId;
use tidegate::store::{Actual, LimitStore, Settlement};

use super::problem::{Problem, ProblemCode};
use super::wire::lease::{ActualCost, ReleaseBody, RenewBody, SettleBody};
use super::wire::{instant, read};
use super::{ApiCall, HttpApi, Reply, json};

impl<S: LimitStore + ?Sized> HttpApi<S> {
    /// Releases a lease.
    pub(super) async fn release(&self, call: &ApiCall<'_>) -> Reply {
        let body: ReleaseBody<'_> = read(call.body)?;
        let released = match body.lease() {
            Some(lease) => self.limiter.release_async(lease).await?,
            None => false,
        };
        json(StatusCode::OK, &serde_json::json!({"released": released}))
    }

    /// Moves the expiry of a lease.
    pub(super) async fn renew(&self, call: &ApiCall<'_>) -> Reply {
        let body: RenewBody<'_> = read(call.body)?;
        let lease = require_lease(body.lease())?;
        let Renewal::Until(at) = self.limiter.renew_async(lease, body.ttl()).await? else {
            return Err(unknown_lease());
        };
        json(StatusCode::OK, &serde_json::json!({"expires_at": instant::of(at, self.tick)}))
    }

    /// Corrects a held charge to its actual cost, then releases the lease.
    pub(super) async fn settle(&self, call: &ApiCall<'_>) -> Reply {
        let body: SettleBody<'_> = read(call.body)?;
        let actual = match &body.actual {
            ActualCost::Every(amount) => Actual::Every(*amount),
            ActualCost::Each(amounts) => Actual::Each(amounts),
        };
        let lease = require_lease(body.lease())?;
        if self.limiter.settle_async(lease, actual).await? != Settlement::Settled {
            return Err(unknown_lease());
        }
        json(StatusCode::OK, &serde_json::json!({"settled": true}))
    }
}

fn require_lease(lease: Option<LeaseId>) -> Result<LeaseId, Problem> {
    lease.ok_or_else(unknown_lease)
}

pub(super) fn unknown_lease() -> Problem {
    let detail = "the lease was released, has expired, or never existed";
    Problem::new(ProblemCode::UnknownLease, detail)
}
