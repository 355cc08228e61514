//! Operator calls: put and remove limits, reset counts, read usage.

use std::sync::Arc;

use hashbrown::HashSet;
use tidegate_core::{AskTotals, DecisionRow, LeaseTerm, Limit, LimitPhase, LimitSpec, Per, Row, RowScope};

use super::MapState;
use super::map_limit::MapLimit;
use crate::catalog::{
    ApplyError, Edit, EditOutcome, ExpectedVersion, PutError, RETIREMENT, RemovalMode, check_each,
};
use crate::reply::OrderError;
use crate::store::Usage;
use crate::store::usage::usage;

impl MapState {
    pub(super) fn reset(&mut self, limit_id: &str, key: Option<&[u8]>) -> Result<(), OrderError> {
        let entry = self.limits.get_mut(limit_id);
        let entry = entry.ok_or_else(|| OrderError::UnknownLimit { limit_id: limit_id.to_owned() })?;
        let limit = Arc::clone(&entry.limit);
        entry.table.forget_full_until();
        if key.is_some() {
            if let Some(row) = entry.row(key) {
                row.reset(&limit, Per::Key);
            }
        } else {
            entry.all.reset(&limit, Per::All);
            entry.table.reset(&limit, self.latest);
        }
        // Earlier charges are no longer counted, so they are not refunded.
        for holding in self.leases.holdings() {
            if *holding.limit_id == *limit_id && (key.is_none() || holding.key.as_deref() == key) {
                holding.void();
            }
        }
        Ok(())
    }

    pub(super) fn usage(&mut self, limit_id: &str, key: Option<&[u8]>) -> Result<Usage, OrderError> {
        let now = self.latest;
        let entry = self.limits.get_mut(limit_id);
        let entry = entry.ok_or_else(|| OrderError::UnknownLimit { limit_id: limit_id.to_owned() })?;
        entry.drop_if_ended(now);
        let limit = Arc::clone(&entry.limit);
        let per = if key.is_some() { Per::Key } else { Per::All };
        let mut blank = Row::blank(&limit, per);
        let row = entry.row(key).unwrap_or(&mut blank);
        let seat = key.map_or(RowScope::All, |key| RowScope::from(limit.overrides(key)));
        Ok(usage(&DecisionRow { limit: &limit, scope: seat, row, totals: AskTotals::default() }, now))
    }

    pub(super) fn holders(
        &mut self,
        limit_id: &str,
        key: Option<&[u8]>,
    ) -> Result<Vec<LeaseTerm>, OrderError> {
        let now = self.latest;
        let entry = self.limits.get_mut(limit_id);
        let entry = entry.ok_or_else(|| OrderError::UnknownLimit { limit_id: limit_id.to_owned() })?;
        entry.drop_if_ended(now);
        Ok(entry.row(key).map(|row| row.live_leases(now)).unwrap_or_default())
    }

    pub(super) fn put(&mut self, spec: LimitSpec, expect: ExpectedVersion) -> Result<Arc<Limit>, PutError> {
        self.forget_retired();
        let limit = self.next_version(spec, expect)?;
        self.put_version(&limit);
        Ok(limit)
    }

    pub(super) fn apply(&mut self, edits: Vec<Edit>) -> Result<Vec<EditOutcome>, ApplyError> {
        enum CheckedMapEdit {
            Put(Arc<Limit>),
            Remove(String, RemovalMode),
        }
        self.forget_retired();
        let checked = check_each(edits, |edit| match edit {
            Edit::Put(spec, expect) => self.next_version(spec, expect).map(CheckedMapEdit::Put),
            Edit::Remove(id, mode) => Ok(CheckedMapEdit::Remove(id, mode)),
        })?;
        let applied = checked.into_iter().map(|checked| match checked {
            CheckedMapEdit::Put(limit) => self.put_version(&limit),
            CheckedMapEdit::Remove(id, mode) => {
                self.remove(&id, mode).map_or(EditOutcome::Absent, EditOutcome::Removed)
            }
        });
        Ok(applied.collect())
    }

    /// Forgets limits whose retirement has ended.
    fn forget_retired(&mut self) {
        let now = self.latest;
        let gone = self.retired.extract_if(|_, (forgotten_at, _)| *forgotten_at <= now);
        let gone = gone.map(|(_, (_, entry))| entry.generation).collect();
        self.leases.forget(&gone);
    }

    /// The version to put: the current one if the definition is equal, else the next one.
    fn next_version(&self, spec: LimitSpec, expect: ExpectedVersion) -> Result<Arc<Limit>, PutError> {
        let current = self.limits.get(&*spec.id);
        expect.meets(current.map(|entry| entry.limit.version()))?;
        let standing = current.or_else(|| self.retired.get(&*spec.id).map(|(_, entry)| entry));
        let next = match standing {
            None => Limit::new(spec, self.tick),
            Some(standing) if *standing.limit.spec() == spec => return Ok(Arc::clone(&standing.limit)),
            Some(standing) => standing.limit.next_version(spec),
        };
        next.map(Arc::new).map_err(PutError::Invalid)
    }

    /// Puts the version made by [`MapState::next`].
    fn put_version(&mut self, limit: &Arc<Limit>) -> EditOutcome {
        let now = self.latest;
        let id: Box<str> = limit.id().into();
        let was_there = self.limits.contains_key(&id);
        if let Some((_, entry)) = self.retired.remove(&id) {
            self.limits.insert(id.clone(), entry);
        }
        let Some(entry) = self.limits.get_mut(&id) else {
            self.generations += 1;
            let entry = MapLimit::new(Arc::clone(limit), self.generations, self.highest_fence);
            self.limits.insert(id, entry);
            return EditOutcome::Added(Arc::clone(limit));
        };
        let is_new = entry.limit.version() != limit.version();
        if is_new {
            let was_over = entry.limit.phase(now) == LimitPhase::After;
            entry.drop_if_ended(now);
            entry.adopt(Arc::clone(limit), now);
            if was_over {
                // The counts were dropped at the end of the limit, so earlier charges are not refunded.
                for holding in self.leases.holdings().filter(|holding| holding.limit_id == id) {
                    holding.void();
                    holding.pins = false;
                }
            }
        }
        match (was_there, is_new) {
            (false, _) => EditOutcome::Added(Arc::clone(limit)),
            (true, true) => EditOutcome::Replaced(Arc::clone(limit)),
            (true, false) => EditOutcome::Unchanged(Arc::clone(limit)),
        }
    }

    pub(super) fn remove(&mut self, id: &str, mode: RemovalMode) -> Option<Arc<Limit>> {
        let (id, entry) = self.limits.remove_entry(id)?;
        let limit = Arc::clone(&entry.limit);
        match mode {
            RemovalMode::Forget => self.leases.forget(&HashSet::from([entry.generation])),
            RemovalMode::Retire => {
                self.retired.insert(id, (self.latest.plus(self.tick.span(RETIREMENT)), entry));
            }
        }
        Some(limit)
    }
}
