//! Administrative operations on counts: reset and usage.

use std::sync::{Arc, PoisonError};

use tidegate_core::{AskTotals, DecisionRow, LeaseId, LeaseTerm, Per, Timestamp};

use super::Shared;
use super::insert::{Missing, with_row};
use super::limit_table::{Brief, Tenant};
use super::row_epoch::Because;
use crate::reply::OrderError;
use crate::store::Usage;
use crate::store::usage::usage;

impl Shared {
    /// A limit that vanished from a file and may come back.
    pub(super) fn retired(&self, id: &str) -> Option<Arc<Tenant>> {
        let retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        retired.get(id).map(|(_, tenant)| Arc::clone(tenant))
    }

    fn known(&self, limit_id: &str) -> Result<Arc<Tenant>, OrderError> {
        self.tenant(limit_id).ok_or_else(|| OrderError::UnknownLimit { limit_id: limit_id.to_owned() })
    }

    pub(super) fn reset(&self, limit_id: &str, key: Option<&[u8]>) -> Result<(), OrderError> {
        let _one_at_a_time = self.changing();
        let now = self.latest(self.clock.now());
        let tenant = self.known(limit_id)?;
        // The desk first: nothing is settled while what it was charged to goes.
        let mut desk = self.desk();
        let note = |at| {
            if let Some(journal) = self.journal.get() {
                journal.reset(tenant.generation, key.map(|key| (key, tenant.printer.print(key))), at);
            }
        };
        if key.is_some() {
            note(now);
            with_row(&tenant, key, now, Missing::Ignored, |edition, _, row, _| {
                row.reset(&edition.limit, Per::Key);
            });
        } else {
            let (draft, instant) = (tenant.draft(tenant.limit()), || self.latest(self.clock.now()));
            let crowd = tenant.announce(draft, Because::Reset, Brief::Now, instant, note);
            tenant.catch_up_if(crowd);
        }
        // What was charged before cannot be given back: it is no longer counted.
        for holding in desk.leases.holdings() {
            if *holding.limit_id == *limit_id && (key.is_none() || holding.key.as_deref() == key) {
                holding.void();
            }
        }
        Ok(())
    }

    pub(super) fn usage(&self, limit_id: &str, key: Option<&[u8]>) -> Result<Usage, OrderError> {
        let now = self.now();
        let tenant = self.known(limit_id)?;
        let looked = with_row(&tenant, key, now, Missing::Blank, |edition, seat, row, now| {
            let now = row.last_charge_time().max(now);
            usage(&DecisionRow { limit: &edition.limit, scope: seat, row, totals: AskTotals::default() }, now)
        });
        Ok(looked.unwrap_or(Usage { count: None, items: Vec::new() }))
    }

    pub(super) fn holders(&self, limit_id: &str, key: Option<&[u8]>) -> Result<Vec<LeaseTerm>, OrderError> {
        let now = self.now();
        let tenant = self.known(limit_id)?;
        let looked = with_row(&tenant, key, now, Missing::Ignored, |_, _, row, now| row.live_leases(now));
        Ok(looked.unwrap_or_default())
    }

    pub(super) fn held_until(&self, leases: &[LeaseId]) -> Vec<Option<Timestamp>> {
        let desk = self.desk();
        // Not before: who had the desk while we waited for it may have found a lease lapsed.
        let now = self.latest(self.clock.now());
        let held = desk.leases.held_until(leases);
        held.into_iter().map(|until| until.filter(|until| now < *until)).collect()
    }
}
