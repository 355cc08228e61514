//! Administrative operations on counts: reset and usage.

use std::sync::{Arc, PoisonError};

use tidegate_core::{AskTotals, DecisionRow, LeaseId, LeaseTerm, Per, Timestamp};

use super::StoreState;
use super::limit_table::{LimitTable, PublishTime};
use super::row_access::{MissingRow, with_row};
use super::row_epoch::EpochCause;
use crate::reply::OrderError;
use crate::store::Usage;
use crate::store::usage::usage;

impl StoreState {
    /// A limit that vanished from a file and may return.
    pub(super) fn retired(&self, id: &str) -> Option<Arc<LimitTable>> {
        let retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        retired.get(id).map(|(_, table)| Arc::clone(table))
    }

    fn known(&self, limit_id: &str) -> Result<Arc<LimitTable>, OrderError> {
        self.table(limit_id).ok_or_else(|| OrderError::UnknownLimit { limit_id: limit_id.to_owned() })
    }

    pub(super) fn reset(&self, limit_id: &str, key: Option<&[u8]>) -> Result<(), OrderError> {
        let _one_at_a_time = self.changing();
        let now = self.latest(self.clock.now());
        let table = self.known(limit_id)?;
        // The registry first: no settlement happens while the counts are reset.
        let mut registry = self.registry();
        let note = |at| {
            if let Some(journal) = self.journal.get() {
                journal.reset(table.generation, key.map(|key| (key, table.printer.print(key))), at);
            }
        };
        if key.is_some() {
            note(now);
            with_row(&table, key, now, MissingRow::Ignore, |epoch, _, row, _| {
                row.reset(&epoch.limit, Per::Key);
            });
        } else {
            let (draft, instant) = (table.draft(table.limit()), || self.latest(self.clock.now()));
            let crowd = table.begin_epoch(draft, EpochCause::Reset, PublishTime::Now, instant, note);
            table.drop_epochs_if(crowd);
        }
        // Charges before the reset cannot be refunded: they are not counted any more.
        for holding in registry.leases.holdings() {
            if *holding.limit_id == *limit_id && (key.is_none() || holding.key.as_deref() == key) {
                holding.void();
            }
        }
        Ok(())
    }

    pub(super) fn usage(&self, limit_id: &str, key: Option<&[u8]>) -> Result<Usage, OrderError> {
        let now = self.now();
        let table = self.known(limit_id)?;
        let looked = with_row(&table, key, now, MissingRow::Blank, |epoch, seat, row, now| {
            let now = row.last_charge_time().max(now);
            usage(&DecisionRow { limit: &epoch.limit, scope: seat, row, totals: AskTotals::default() }, now)
        });
        Ok(looked.unwrap_or(Usage { count: None, items: Vec::new() }))
    }

    pub(super) fn holders(&self, limit_id: &str, key: Option<&[u8]>) -> Result<Vec<LeaseTerm>, OrderError> {
        let now = self.now();
        let table = self.known(limit_id)?;
        let looked = with_row(&table, key, now, MissingRow::Ignore, |_, _, row, now| row.live_leases(now));
        Ok(looked.unwrap_or_default())
    }

    pub(super) fn held_until(&self, leases: &[LeaseId]) -> Vec<Option<Timestamp>> {
        let registry = self.registry();
        // Read here: the thread that had the registry before may have found a lease expired.
        let now = self.latest(self.clock.now());
        let held = registry.leases.held_until(leases);
        held.into_iter().map(|until| until.filter(|until| now < *until)).collect()
    }
}
