//! Catalog edits: put and remove limits, one at a time or many at once.
//!
//! An edit has two steps. The first validates it and prepares all new data, without changes and without blocking
//! decisions. The second publishes the result. A single edit locks only its limit. A batch of edits locks the limit map,
//! so that no order sees a part of the batch. The lock is held only while the prepared data is published. No row is
//! changed then: rows are converted to the new epoch at their next access.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use hashbrown::HashSet;
use tidegate_core::{Limit, LimitPhase, LimitSpec, Timestamp};

use super::limit_table::{Brief, Crowd, Tenant};
use super::row_epoch::{Because, Draft};
use super::{Desk, Shared};
use crate::catalog::{
    ApplyError, Edit, EditOutcome, ExpectedVersion, PutError, RETIREMENT, RemovalMode, check_each,
};
use crate::store::journal::{LeaseHolding, Origin};

/// An edit of one limit that was checked.
enum Checked {
    /// Nobody has this id.
    Add(Arc<Limit>),
    /// The limit says this already.
    Keep(Arc<Tenant>, Arc<Limit>),
    /// The limit is there, or comes back out of retirement.
    Put(Next),
    Remove(Option<Leaver>, RemovalMode),
}

/// A limit that goes.
struct Leaver {
    tenant: Arc<Tenant>,
    limit: Arc<Limit>,
}

/// The next version of a limit, or the same if it only comes back.
struct Next {
    tenant: Arc<Tenant>,
    former: Arc<Limit>,
    limit: Arc<Limit>,
    comes_back: bool,
}

impl Next {
    fn is_new(&self) -> bool {
        self.limit.version() != self.former.version()
    }
}

/// An edit for which everything is ready.
enum Ready {
    Add(Arc<Limit>, Arc<Tenant>),
    Keep(Arc<Limit>),
    Put(Next, Option<Draft>),
    Remove(Option<Leaver>, RemovalMode),
}

impl Shared {
    pub(super) fn put(&self, spec: LimitSpec, expect: ExpectedVersion) -> Result<EditOutcome, PutError> {
        let now = self.latest(self.clock.now());
        self.forget_retired(now);
        let next = match self.check(spec, expect)? {
            Checked::Add(limit) => {
                let tenant = self.newcomer(&limit, now);
                self.note_put(&tenant, &limit, now);
                self.limits.write().unwrap_or_else(PoisonError::into_inner).insert(limit.id().into(), tenant);
                return Ok(EditOutcome::Added(limit));
            }
            Checked::Put(next) => next,
            Checked::Keep(tenant, limit) => {
                self.hand_over(&tenant, &limit, Origin::Put, now);
                return Ok(EditOutcome::Unchanged(limit));
            }
            Checked::Remove(..) => return Err(PutError::Unknown),
        };
        next.tenant.belongs_to(Origin::Put);
        if next.is_new() {
            let draft = next.tenant.draft(Arc::clone(&next.limit));
            let mut desk = self.desk();
            let instant = || self.latest(self.clock.now());
            let note = |at| self.note_put(&next.tenant, &next.limit, at);
            let crowd = next.tenant.announce(draft, Because::Put, Brief::Now, instant, note);
            if next.former.phase(now) == LimitPhase::After {
                void(&mut desk, |id| *id == *next.tenant.id);
            }
            drop(desk);
            next.tenant.catch_up_if(crowd);
        }
        if next.comes_back {
            if !next.is_new() {
                self.note_put(&next.tenant, &next.limit, now);
            }
            self.retired.lock().unwrap_or_else(PoisonError::into_inner).remove(&next.tenant.id);
            next.tenant.refresh(now);
            let mut limits = self.limits.write().unwrap_or_else(PoisonError::into_inner);
            limits.insert(next.tenant.id.clone(), next.tenant);
            return Ok(EditOutcome::Added(next.limit));
        }
        Ok(EditOutcome::Replaced(next.limit))
    }

    pub(super) fn remove(&self, id: &str, parting: RemovalMode) -> Option<Arc<Limit>> {
        let now = self.latest(self.clock.now());
        self.note_remove(&*self.tenant(id)?, parting, now);
        let (id, tenant) = self.limits.write().unwrap_or_else(PoisonError::into_inner).remove_entry(id)?;
        tenant.retire();
        let limit = tenant.limit();
        match parting {
            RemovalMode::Forget => self.desk().leases.forget(&HashSet::from([tenant.generation])),
            RemovalMode::Retire => {
                let until = self.retirement(now);
                self.retired.lock().unwrap_or_else(PoisonError::into_inner).insert(id, (until, tenant));
            }
        }
        Some(limit)
    }

    /// Makes one edit of somebody who is no file: with the lock of that limit alone.
    pub(super) fn edit(&self, edit: Edit) -> Result<EditOutcome, ApplyError> {
        match edit {
            Edit::Put(spec, expect) => {
                let id = spec.id.clone();
                self.put(spec, expect).map_err(|why| ApplyError { refused: vec![(id, why)] })
            }
            Edit::Remove(id, parting) => {
                Ok(self.remove(&id, parting).map_or(EditOutcome::Absent, EditOutcome::Removed))
            }
        }
    }

    pub(super) fn apply(&self, edits: Vec<Edit>, origin: Origin) -> Result<Vec<EditOutcome>, ApplyError> {
        let now = self.latest(self.clock.now());
        self.forget_retired(now);
        let checked = check_each(edits, |edit| match edit {
            Edit::Put(spec, expect) => self.check(spec, expect),
            Edit::Remove(id, parting) => Ok(Checked::Remove(self.leaver(&id), parting)),
        })?;
        let ready: Vec<Ready> =
            checked.into_iter().map(|checked| self.made_ready(checked, origin, now)).collect();
        let mut aftermath = Aftermath::default();
        let applied = self.hang_up(ready, origin, now, &mut aftermath);
        // What is left concerns nobody's answers, and may take its time.
        for tenant in &aftermath.changed {
            tenant.refresh(self.latest(self.clock.now()));
        }
        if !aftermath.gone.is_empty() {
            let gone = aftermath.gone.iter().map(|tenant| tenant.generation).collect();
            self.desk().leases.forget(&gone);
        }
        for tenant in &aftermath.crowded {
            tenant.catch_up_if(Crowd::TooMany);
        }
        Ok(applied)
    }

    /// Checks a limit that is to be put, and makes its next version.
    fn check(&self, spec: LimitSpec, expect: ExpectedVersion) -> Result<Checked, PutError> {
        let current = self.tenant(&spec.id);
        let comes_back = current.is_none();
        expect.meets(current.as_ref().map(|tenant| tenant.limit().version()))?;
        let Some(tenant) = current.or_else(|| self.retired(&spec.id)) else {
            return Limit::new(spec, self.tick)
                .map(|limit| Checked::Add(Arc::new(limit)))
                .map_err(PutError::Invalid);
        };
        let former = tenant.limit();
        let limit = match *former.spec() == spec {
            true if !comes_back => return Ok(Checked::Keep(tenant, former)),
            true => Arc::clone(&former),
            false => Arc::new(former.next_version(spec).map_err(PutError::Invalid)?),
        };
        Ok(Checked::Put(Next { tenant, former, limit, comes_back }))
    }

    /// Makes what an edit needs, as far as it can be made before anybody has to wait for it.
    fn made_ready(&self, checked: Checked, origin: Origin, now: Timestamp) -> Ready {
        match checked {
            Checked::Add(limit) => {
                let tenant = self.newcomer(&limit, now);
                tenant.belongs_to(origin);
                self.note_put(&tenant, &limit, now);
                Ready::Add(limit, tenant)
            }
            Checked::Keep(tenant, limit) => {
                self.hand_over(&tenant, &limit, origin, now);
                Ready::Keep(limit)
            }
            Checked::Put(next) => {
                let draft = next.is_new().then(|| next.tenant.draft(Arc::clone(&next.limit)));
                Ready::Put(next, draft)
            }
            Checked::Remove(leaver, parting) => Ready::Remove(leaver, parting),
        }
    }

    /// Puts everything where others find it, while nobody decides by id. Nothing is made, compiled or dropped here that could be before
    /// or after.
    fn hang_up(
        &self,
        ready: Vec<Ready>,
        origin: Origin,
        now: Timestamp,
        aftermath: &mut Aftermath,
    ) -> Vec<EditOutcome> {
        let mut applied = Vec::with_capacity(ready.len());
        let mut over = HashSet::new();
        let until = self.retirement(now);
        let instant = || self.latest(self.clock.now());
        let mut limits = self.limits.write().unwrap_or_else(PoisonError::into_inner);
        let mut desk = self.desk();
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        for step in ready {
            applied.push(match step {
                Ready::Add(limit, tenant) => {
                    limits.insert(tenant.id.clone(), tenant);
                    EditOutcome::Added(limit)
                }
                Ready::Keep(limit) => EditOutcome::Unchanged(limit),
                Ready::Put(Next { tenant, former, limit, comes_back }, draft) => {
                    tenant.belongs_to(origin);
                    if draft.is_none() {
                        self.note_put(&tenant, &limit, now);
                    }
                    if let Some(draft) = draft {
                        if former.phase(now) == LimitPhase::After {
                            over.insert(tenant.id.clone());
                        }
                        let note = |at| self.note_put(&tenant, &limit, at);
                        let crowd = tenant.announce(draft, Because::Put, Brief::Later, instant, note);
                        if crowd == Crowd::TooMany {
                            aftermath.crowded.push(Arc::clone(&tenant));
                        }
                    }
                    aftermath.former.push(former);
                    aftermath.changed.push(Arc::clone(&tenant));
                    if comes_back {
                        retired.remove(&tenant.id);
                        limits.insert(tenant.id.clone(), tenant);
                        EditOutcome::Added(limit)
                    } else {
                        EditOutcome::Replaced(limit)
                    }
                }
                Ready::Remove(None, _) => EditOutcome::Absent,
                Ready::Remove(Some(Leaver { tenant, limit }), parting) => {
                    self.note_remove(&tenant, parting, now);
                    limits.remove(&tenant.id);
                    tenant.retire();
                    match parting {
                        RemovalMode::Forget => aftermath.gone.push(tenant),
                        RemovalMode::Retire => {
                            retired.insert(tenant.id.clone(), (until, tenant));
                        }
                    }
                    EditOutcome::Removed(limit)
                }
            });
        }
        if !over.is_empty() {
            void(&mut desk, |id| over.contains(id));
        }
        applied
    }

    /// Tells whoever keeps a log that a limit says this, before anybody is decided on by it.
    fn note_put(&self, tenant: &Tenant, limit: &Arc<Limit>, at: Timestamp) {
        if let Some(journal) = self.journal.get() {
            journal.put(&tenant.text(limit, at));
        }
    }

    /// The same of a limit that goes.
    fn note_remove(&self, tenant: &Tenant, parting: RemovalMode, now: Timestamp) {
        if let Some(journal) = self.journal.get() {
            journal.remove(tenant.generation, parting, self.retirement(now));
        }
    }

    /// A limit that stays as it is may be somebody else's from now on.
    fn hand_over(&self, tenant: &Tenant, limit: &Arc<Limit>, origin: Origin, now: Timestamp) {
        if tenant.origin() != origin {
            tenant.belongs_to(origin);
            self.note_put(tenant, limit, now);
        }
    }

    /// The limit of this id, which is to go.
    fn leaver(&self, id: &str) -> Option<Leaver> {
        self.tenant(id).map(|tenant| Leaver { limit: tenant.limit(), tenant })
    }

    /// A limit that has never been here.
    fn newcomer(&self, limit: &Arc<Limit>, now: Timestamp) -> Arc<Tenant> {
        let generation = self.generations.fetch_add(1, Ordering::Relaxed) + 1;
        let fence = self.highest_fence.load(Ordering::Relaxed);
        let place = self.gallery.place();
        Arc::new(Tenant::new(limit, generation, fence, self.secret, &self.budget, place, now))
    }

    /// Until when a limit that vanishes from a file now may come back as it was.
    fn retirement(&self, now: Timestamp) -> Timestamp {
        now.plus(self.tick.span(RETIREMENT))
    }

    /// Forgets limits that vanished from a file too long ago to come back as they were.
    fn forget_retired(&self, now: Timestamp) {
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        let gone = retired.extract_if(|_, (forgotten_at, _)| *forgotten_at <= now);
        let gone: HashSet<u64> = gone.map(|(_, (_, tenant))| tenant.generation).collect();
        drop(retired);
        if !gone.is_empty() {
            self.desk().leases.forget(&gone);
        }
    }
}

/// What is left to do when everybody may decide again.
#[derive(Default)]
struct Aftermath {
    /// Limits whose briefs are to be written.
    changed: Vec<Arc<Tenant>>,
    /// What limits were; somebody has to drop them.
    former: Vec<Arc<Limit>>,
    /// Limits that have too many editions now.
    crowded: Vec<Arc<Tenant>>,
    /// Limits that were deleted.
    gone: Vec<Arc<Tenant>>,
}

/// What was charged to limits that were over cannot be given back by what begins now: their state was dropped.
fn void(desk: &mut Desk, was_over: impl Fn(&str) -> bool) {
    void_holdings(desk.leases.holdings(), was_over);
}

/// The same for some holdings.
pub(super) fn void_holdings<'h>(
    holdings: impl Iterator<Item = &'h mut LeaseHolding>,
    was_over: impl Fn(&str) -> bool,
) {
    for holding in holdings.filter(|holding| was_over(&holding.limit_id)) {
        holding.void();
        holding.pins = false;
    }
}
