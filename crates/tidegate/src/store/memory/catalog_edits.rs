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

use super::limit_table::{EpochCount, LimitTable, PublishTime};
use super::row_epoch::{EpochCause, EpochDraft, shared_words};
use super::{LeaseRegistry, StoreState};
use crate::catalog::{
    ApplyError, Edit, EditOutcome, ExpectedVersion, PutError, RETIREMENT, RemovalMode, check_each,
};
use crate::store::journal::{LeaseHolding, Origin};

/// A checked edit of one limit.
enum Checked {
    /// No limit has this id.
    Add(Arc<Limit>),
    /// The limit has this definition already.
    Keep(Arc<LimitTable>, Arc<Limit>),
    /// The limit exists, or returns from retirement.
    Put(Next),
    Remove(Option<Leaver>, RemovalMode),
}

/// A limit to remove.
struct Leaver {
    table: Arc<LimitTable>,
    limit: Arc<Limit>,
}

/// The next version of a limit, or the same one if the limit only returns.
struct Next {
    table: Arc<LimitTable>,
    former: Arc<Limit>,
    limit: Arc<Limit>,
    comes_back: bool,
}

impl Next {
    fn is_new(&self) -> bool {
        self.limit.version() != self.former.version()
    }
}

/// A prepared edit.
enum Ready {
    Add(Arc<Limit>, Arc<LimitTable>),
    Keep(Arc<Limit>),
    Put(Next, Option<EpochDraft>),
    Remove(Option<Leaver>, RemovalMode),
}

impl StoreState {
    pub(super) fn put(&self, spec: LimitSpec, expect: ExpectedVersion) -> Result<EditOutcome, PutError> {
        let now = self.latest(self.clock.now());
        self.forget_retired(now);
        let next = match self.check(spec, expect)? {
            Checked::Add(limit) => {
                let table = self.newcomer(&limit, now);
                self.note_put(&table, &limit, now);
                self.limits.write().unwrap_or_else(PoisonError::into_inner).insert(limit.id().into(), table);
                return Ok(EditOutcome::Added(limit));
            }
            Checked::Put(next) => next,
            Checked::Keep(table, limit) => {
                self.hand_over(&table, &limit, Origin::Put, now);
                return Ok(EditOutcome::Unchanged(limit));
            }
            Checked::Remove(..) => return Err(PutError::Unknown),
        };
        next.table.set_origin(Origin::Put);
        if next.is_new() {
            let draft = next.table.draft(Arc::clone(&next.limit));
            let mut registry = self.registry();
            let instant = || self.latest(self.clock.now());
            let note = |at| self.note_put(&next.table, &next.limit, at);
            let crowd = next.table.begin_epoch(draft, EpochCause::Put, PublishTime::Now, instant, note);
            if next.former.phase(now) == LimitPhase::After {
                void(&mut registry, |id| *id == *next.table.id);
            }
            drop(registry);
            next.table.drop_epochs_if(crowd);
        }
        if next.comes_back {
            if !next.is_new() {
                self.note_put(&next.table, &next.limit, now);
            }
            self.retired.lock().unwrap_or_else(PoisonError::into_inner).remove(&next.table.id);
            next.table.refresh(now);
            let mut limits = self.limits.write().unwrap_or_else(PoisonError::into_inner);
            limits.insert(next.table.id.clone(), next.table);
            return Ok(EditOutcome::Added(next.limit));
        }
        Ok(EditOutcome::Replaced(next.limit))
    }

    pub(super) fn remove(&self, id: &str, parting: RemovalMode) -> Option<Arc<Limit>> {
        let now = self.latest(self.clock.now());
        self.note_remove(&*self.table(id)?, parting, now);
        let (id, table) = self.limits.write().unwrap_or_else(PoisonError::into_inner).remove_entry(id)?;
        table.retire();
        let limit = table.limit();
        match parting {
            RemovalMode::Forget => self.registry().leases.forget(&HashSet::from([table.generation])),
            RemovalMode::Retire => {
                let until = self.retirement(now);
                self.retired.lock().unwrap_or_else(PoisonError::into_inner).insert(id, (until, table));
            }
        }
        Some(limit)
    }

    /// Makes one edit that does not come from a file. It locks only its limit.
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
        // The rest changes no reply and may take its time.
        for table in &aftermath.changed {
            table.refresh(self.latest(self.clock.now()));
        }
        if !aftermath.gone.is_empty() {
            let gone = aftermath.gone.iter().map(|table| table.generation).collect();
            self.registry().leases.forget(&gone);
        }
        for table in &aftermath.crowded {
            table.drop_epochs_if(EpochCount::TooMany);
        }
        Ok(applied)
    }

    /// Checks a limit to put and makes its next version.
    fn check(&self, spec: LimitSpec, expect: ExpectedVersion) -> Result<Checked, PutError> {
        let current = self.table(&spec.id);
        let comes_back = current.is_none();
        expect.meets(current.as_ref().map(|table| table.limit().version()))?;
        let Some(table) = current.or_else(|| self.retired(&spec.id)) else {
            return Limit::new(spec, self.tick)
                .map(|limit| Checked::Add(Arc::new(limit)))
                .map_err(PutError::Invalid);
        };
        let former = table.limit();
        let limit = match *former.spec() == spec {
            true if !comes_back => return Ok(Checked::Keep(table, former)),
            true => Arc::clone(&former),
            false => Arc::new(former.next_version(spec).map_err(PutError::Invalid)?),
        };
        Ok(Checked::Put(Next { table, former, limit, comes_back }))
    }

    /// Prepares an edit, as far as that does not block decisions.
    fn made_ready(&self, checked: Checked, origin: Origin, now: Timestamp) -> Ready {
        match checked {
            Checked::Add(limit) => {
                let table = self.newcomer(&limit, now);
                table.set_origin(origin);
                self.note_put(&table, &limit, now);
                Ready::Add(limit, table)
            }
            Checked::Keep(table, limit) => {
                self.hand_over(&table, &limit, origin, now);
                Ready::Keep(limit)
            }
            Checked::Put(next) => {
                let draft = next.is_new().then(|| next.table.draft(Arc::clone(&next.limit)));
                Ready::Put(next, draft)
            }
            Checked::Remove(leaver, parting) => Ready::Remove(leaver, parting),
        }
    }

    /// Publishes prepared edits while no order finds its limits. All other work is done before or after.
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
        let mut registry = self.registry();
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        for step in ready {
            applied.push(match step {
                Ready::Add(limit, table) => {
                    limits.insert(table.id.clone(), table);
                    EditOutcome::Added(limit)
                }
                Ready::Keep(limit) => EditOutcome::Unchanged(limit),
                Ready::Put(Next { table, former, limit, comes_back }, draft) => {
                    table.set_origin(origin);
                    if draft.is_none() {
                        self.note_put(&table, &limit, now);
                    }
                    if let Some(draft) = draft {
                        if former.phase(now) == LimitPhase::After {
                            over.insert(table.id.clone());
                        }
                        let note = |at| self.note_put(&table, &limit, at);
                        let crowd =
                            table.begin_epoch(draft, EpochCause::Put, PublishTime::Later, instant, note);
                        if crowd == EpochCount::TooMany {
                            aftermath.crowded.push(Arc::clone(&table));
                        }
                    }
                    aftermath.former.push(former);
                    aftermath.changed.push(Arc::clone(&table));
                    if comes_back {
                        retired.remove(&table.id);
                        limits.insert(table.id.clone(), table);
                        EditOutcome::Added(limit)
                    } else {
                        EditOutcome::Replaced(limit)
                    }
                }
                Ready::Remove(None, _) => EditOutcome::Absent,
                Ready::Remove(Some(Leaver { table, limit }), parting) => {
                    self.note_remove(&table, parting, now);
                    limits.remove(&table.id);
                    table.retire();
                    match parting {
                        RemovalMode::Forget => aftermath.gone.push(table),
                        RemovalMode::Retire => {
                            retired.insert(table.id.clone(), (until, table));
                        }
                    }
                    EditOutcome::Removed(limit)
                }
            });
        }
        if !over.is_empty() {
            void(&mut registry, |id| over.contains(id));
        }
        applied
    }

    /// Tells the log about a definition before the first decision under it.
    fn note_put(&self, table: &LimitTable, limit: &Arc<Limit>, at: Timestamp) {
        if let Some(journal) = self.journal.get() {
            journal.put(&table.text(limit, at));
        }
    }

    /// Tells the log about a removal.
    fn note_remove(&self, table: &LimitTable, parting: RemovalMode, now: Timestamp) {
        if let Some(journal) = self.journal.get() {
            journal.remove(table.generation, parting, self.retirement(now));
        }
    }

    /// An unchanged limit may get another origin.
    fn hand_over(&self, table: &LimitTable, limit: &Arc<Limit>, origin: Origin, now: Timestamp) {
        if table.origin() != origin {
            table.set_origin(origin);
            self.note_put(table, limit, now);
        }
    }

    /// The limit to remove.
    fn leaver(&self, id: &str) -> Option<Leaver> {
        self.table(id).map(|table| Leaver { limit: table.limit(), table })
    }

    /// The table of a new limit.
    fn newcomer(&self, limit: &Arc<Limit>, now: Timestamp) -> Arc<LimitTable> {
        let generation = self.generations.fetch_add(1, Ordering::Relaxed) + 1;
        let fence = self.highest_fence.load(Ordering::Relaxed);
        let place = self.shared_lines.row(shared_words(limit));
        Arc::new(LimitTable::new(limit, generation, fence, self.secret, &self.budget, place, now))
    }

    /// The instant until which a limit that vanishes from a file now may return.
    fn retirement(&self, now: Timestamp) -> Timestamp {
        now.plus(self.tick.span(RETIREMENT))
    }

    /// Drops limits that vanished from a file too long ago.
    fn forget_retired(&self, now: Timestamp) {
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        let gone = retired.extract_if(|_, (forgotten_at, _)| *forgotten_at <= now);
        let gone: HashSet<u64> = gone.map(|(_, (_, table))| table.generation).collect();
        drop(retired);
        if !gone.is_empty() {
            self.registry().leases.forget(&gone);
        }
    }
}

/// Work that is left when decisions go on.
#[derive(Default)]
struct Aftermath {
    /// Limits whose snapshots have to be written.
    changed: Vec<Arc<LimitTable>>,
    /// Former definitions. They are dropped outside the locks.
    former: Vec<Arc<Limit>>,
    /// Limits with too many epochs.
    crowded: Vec<Arc<LimitTable>>,
    /// Deleted limits.
    gone: Vec<Arc<LimitTable>>,
}

/// Charges to limits that had ended cannot be refunded: their rows were dropped.
fn void(registry: &mut LeaseRegistry, was_over: impl Fn(&str) -> bool) {
    void_holdings(registry.leases.holdings(), was_over);
}

/// Voids holdings of such limits.
pub(super) fn void_holdings<'h>(
    holdings: impl Iterator<Item = &'h mut LeaseHolding>,
    was_over: impl Fn(&str) -> bool,
) {
    for holding in holdings.filter(|holding| was_over(&holding.limit_id)) {
        holding.void();
        holding.pins = false;
    }
}
