//! What operators do: put and remove limits, reset counts, look at them.

use std::sync::Arc;

use hashbrown::HashSet;
use tidegate_core::{AskTotals, DecisionRow, LeaseTerm, Limit, LimitPhase, LimitSpec, Per, Row, RowScope};

use super::Inner;
use super::map_limit::Tenant;
use crate::catalog::{
    ApplyError, Edit, EditOutcome, ExpectedVersion, PutError, RETIREMENT, RemovalMode, check_each,
};
use crate::reply::OrderError;
use crate::store::Usage;
use crate::store::usage::usage;

impl Inner {
    pub(super) fn reset(&mut self, limit_id: &str, key: Option<&[u8]>) -> Result<(), OrderError> {
        let tenant = self.limits.get_mut(limit_id);
        let tenant = tenant.ok_or_else(|| OrderError::UnknownLimit { limit_id: limit_id.to_owned() })?;
        let limit = Arc::clone(&tenant.limit);
        tenant.table.may_have_room();
        if key.is_some() {
            if let Some(row) = tenant.row(key) {
                row.reset(&limit, Per::Key);
            }
        } else {
            tenant.all.reset(&limit, Per::All);
            tenant.table.reset(&limit, self.latest);
        }
        // What was charged before cannot be given back: it is no longer counted.
        for holding in self.leases.holdings() {
            if *holding.limit_id == *limit_id && (key.is_none() || holding.key.as_deref() == key) {
                holding.void();
            }
        }
        Ok(())
    }

    pub(super) fn usage(&mut self, limit_id: &str, key: Option<&[u8]>) -> Result<Usage, OrderError> {
        let now = self.latest;
        let tenant = self.limits.get_mut(limit_id);
        let tenant = tenant.ok_or_else(|| OrderError::UnknownLimit { limit_id: limit_id.to_owned() })?;
        tenant.drop_if_ended(now);
        let limit = Arc::clone(&tenant.limit);
        let per = if key.is_some() { Per::Key } else { Per::All };
        let mut blank = Row::blank(&limit, per);
        let row = tenant.row(key).unwrap_or(&mut blank);
        let seat = key.map_or(RowScope::All, |key| RowScope::from(limit.overrides(key)));
        Ok(usage(&DecisionRow { limit: &limit, scope: seat, row, totals: AskTotals::default() }, now))
    }

    pub(super) fn holders(
        &mut self,
        limit_id: &str,
        key: Option<&[u8]>,
    ) -> Result<Vec<LeaseTerm>, OrderError> {
        let now = self.latest;
        let tenant = self.limits.get_mut(limit_id);
        let tenant = tenant.ok_or_else(|| OrderError::UnknownLimit { limit_id: limit_id.to_owned() })?;
        tenant.drop_if_ended(now);
        Ok(tenant.row(key).map(|row| row.live_leases(now)).unwrap_or_default())
    }

    pub(super) fn put(&mut self, spec: LimitSpec, expect: ExpectedVersion) -> Result<Arc<Limit>, PutError> {
        self.forget_retired();
        let limit = self.next(spec, expect)?;
        self.install(&limit);
        Ok(limit)
    }

    pub(super) fn apply(&mut self, edits: Vec<Edit>) -> Result<Vec<EditOutcome>, ApplyError> {
        enum Checked {
            Put(Arc<Limit>),
            Remove(String, RemovalMode),
        }
        self.forget_retired();
        let checked = check_each(edits, |edit| match edit {
            Edit::Put(spec, expect) => self.next(spec, expect).map(Checked::Put),
            Edit::Remove(id, parting) => Ok(Checked::Remove(id, parting)),
        })?;
        let applied = checked.into_iter().map(|checked| match checked {
            Checked::Put(limit) => self.install(&limit),
            Checked::Remove(id, parting) => {
                self.remove(&id, parting).map_or(EditOutcome::Absent, EditOutcome::Removed)
            }
        });
        Ok(applied.collect())
    }

    /// Forgets limits that vanished from a file too long ago to come back as they were.
    fn forget_retired(&mut self) {
        let now = self.latest;
        let gone = self.retired.extract_if(|_, (forgotten_at, _)| *forgotten_at <= now);
        let gone = gone.map(|(_, (_, tenant))| tenant.generation).collect();
        self.leases.forget(&gone);
    }

    /// The limit that is to be put: the one that stands if it says the same, or its next version.
    fn next(&self, spec: LimitSpec, expect: ExpectedVersion) -> Result<Arc<Limit>, PutError> {
        let current = self.limits.get(&*spec.id);
        expect.meets(current.map(|tenant| tenant.limit.version()))?;
        let standing = current.or_else(|| self.retired.get(&*spec.id).map(|(_, tenant)| tenant));
        let next = match standing {
            None => Limit::new(spec, self.tick),
            Some(standing) if *standing.limit.spec() == spec => return Ok(Arc::clone(&standing.limit)),
            Some(standing) => standing.limit.next_version(spec),
        };
        next.map(Arc::new).map_err(PutError::Invalid)
    }

    /// Puts a limit that was made by [`Inner::next`].
    fn install(&mut self, limit: &Arc<Limit>) -> EditOutcome {
        let now = self.latest;
        let id: Box<str> = limit.id().into();
        let was_there = self.limits.contains_key(&id);
        if let Some((_, tenant)) = self.retired.remove(&id) {
            self.limits.insert(id.clone(), tenant);
        }
        let Some(tenant) = self.limits.get_mut(&id) else {
            self.generations += 1;
            let tenant = Tenant::new(Arc::clone(limit), self.generations, self.highest_fence);
            self.limits.insert(id, tenant);
            return EditOutcome::Added(Arc::clone(limit));
        };
        let is_new = tenant.limit.version() != limit.version();
        if is_new {
            let was_over = tenant.limit.phase(now) == LimitPhase::After;
            tenant.drop_if_ended(now);
            tenant.adopt(Arc::clone(limit), now);
            if was_over {
                // Its state was dropped; what was charged to it cannot be given back by what begins now.
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

    pub(super) fn remove(&mut self, id: &str, parting: RemovalMode) -> Option<Arc<Limit>> {
        let (id, tenant) = self.limits.remove_entry(id)?;
        let limit = Arc::clone(&tenant.limit);
        match parting {
            RemovalMode::Forget => self.leases.forget(&HashSet::from([tenant.generation])),
            RemovalMode::Retire => {
                self.retired.insert(id, (self.latest.plus(self.tick.span(RETIREMENT)), tenant));
            }
        }
        Some(limit)
    }
}
