//! Walks over all rows of a store during decisions.
//!
//! A walk blocks decisions only while it copies one leaf. Rows are from different instants, each after the start of the
//! walk. The walk together with all notes since its start is complete.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};

use tidegate_core::{Item, LeaseId, Limit, Per, Row, Timestamp, UsageRecord};

use super::MemoryStore;
use super::leaf::{Leaf, Spread};
use super::limit_table::LimitTable;
use super::restore::Counters;
use super::row_epoch::{RESERVED, RowEpoch};
use crate::store::journal::{LeaseAction, LeaseNote, Tag, Text};

/// The number of leases or request ids that are copied at a time.
const DEEDS_AT_A_TIME: usize = 256;

/// A part of a store's state.
#[derive(Debug)]
pub enum Sight<'a> {
    /// Numbers that must never be used twice.
    Counters(Counters),
    /// A limit. It comes before its rows.
    Limit {
        /// Its definition.
        text: Text<'a>,
        /// The instant until which it may return, if it vanished from a file.
        retired_until: Option<Timestamp>,
    },
    /// The assumed usage of keys without a row, by item.
    Ghost {
        /// The generation of the limit.
        generation: u64,
        /// The version of the limit.
        version: u32,
        /// The usage.
        traces: &'a [(usize, UsageRecord)],
    },
    /// The size of the leaf whose rows follow. A restore creates the leaf first, because rows come in the order of their tags.
    Leaf {
        /// The generation of the limit.
        generation: u64,
        /// The size.
        spread: Spread,
    },
    /// A row.
    Row {
        /// The generation of the limit.
        generation: u64,
        /// The definition under which the row was written.
        limit: &'a Limit,
        /// The key of the row. `None` for the row of all keys.
        key: Option<Tag>,
        /// The usage by item.
        traces: &'a [(usize, UsageRecord)],
    },
    /// A lease, a settlement or a request id.
    LeaseNote(&'a LeaseNote),
}

/// Receives the parts of a store. An error ends the walk.
pub type See<'s, E> = &'s mut dyn FnMut(Sight<'_>) -> Result<(), E>;

/// While it is held, no limit is put, removed or reset.
#[must_use = "it is over when this is dropped"]
pub struct Unchanging<'a> {
    _alone: MutexGuard<'a, ()>,
}

impl std::fmt::Debug for Unchanging<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unchanging").finish_non_exhaustive()
    }
}

impl MemoryStore {
    /// Waits for edits in progress, and blocks edits until the result is dropped. Decisions continue.
    pub fn unchanging(&self) -> Unchanging<'_> {
        Unchanging { _alone: self.state.changing() }
    }

    /// Visits the whole state. Rows are named by fingerprints, so only a store made by [`Restore`](super::Restore) can be
    /// restored from them.
    pub fn walk<E>(&self, see: See<'_, E>) -> Result<(), E> {
        let shared = &self.state;
        see(Sight::Counters(self.counters()))?;
        // A limit that moves from one list to the other meanwhile would be in neither.
        let unchanging = self.unchanging();
        let mut tables: Vec<_> = shared.limits().values().map(|table| (Arc::clone(table), None)).collect();
        let retired = shared.retired.lock().unwrap_or_else(PoisonError::into_inner);
        tables.extend(retired.values().map(|(until, table)| (Arc::clone(table), Some(*until))));
        drop((retired, unchanging));
        for (table, retired_until) in &tables {
            self.walk_limit(table, *retired_until, see)?;
        }
        self.walk_desk(see)?;
        // Everything created since has numbers above the first ones.
        see(Sight::Counters(self.counters()))
    }

    fn counters(&self) -> Counters {
        let registry = self.state.registry();
        Counters {
            generations: self.state.generations.load(Ordering::Relaxed),
            highest_fence: self.state.highest_fence.load(Ordering::Relaxed),
            granted_leases: registry.granted_leases,
            deeds: registry.deeds,
        }
    }

    fn walk_limit<E>(
        &self,
        table: &LimitTable,
        retired_until: Option<Timestamp>,
        see: See<'_, E>,
    ) -> Result<(), E> {
        let now = self.state.now();
        let shown = table.epoch();
        see(Sight::Limit { text: table.text(&shown.limit, shown.at), retired_until })?;
        let generation = table.generation;
        let mut traces = Vec::new();
        if let Some(assumed) = shown.assumed() {
            trace_row(&shown.limit, Per::Key, assumed, &mut traces);
            see(Sight::Ghost { generation, version: shown.limit.version(), traces: &traces })?;
        }
        let mut walk = Walk { table, retired_until, shown, now, traces, see };
        let (epoch, row) = all_row(table);
        walk.turn_to(epoch)?;
        walk.row(None, &row)?;
        table.root().map_or(Ok(()), |root| walk.leaf(root))
    }

    fn walk_desk<E>(&self, see: See<'_, E>) -> Result<(), E> {
        let (leases, settled, requests) = {
            let registry = self.state.registry();
            let leases: Vec<LeaseId> = registry.leases.ids().collect();
            let settled: Vec<(LeaseId, Timestamp)> = registry.leases.settled().collect();
            let requests: Vec<Box<[u8]>> = registry.requests.ids().map(Into::into).collect();
            (leases, settled, requests)
        };
        let now = self.state.now();
        for some in leases.chunks(DEEDS_AT_A_TIME) {
            let registry = self.state.registry();
            // The lease as it is now includes every action so far.
            let serial = registry.deeds;
            let granted = |id: &LeaseId| {
                let lease = registry.leases.get(*id).filter(|lease| lease.expires_at > now)?.clone();
                Some(LeaseNote { serial, what: LeaseAction::Granted { id: *id, lease, fences: Vec::new() } })
            };
            let deeds: Vec<LeaseNote> = some.iter().filter_map(granted).collect();
            drop(registry);
            deeds.iter().try_for_each(|deed| see(Sight::LeaseNote(deed)))?;
        }
        for (id, until) in settled.into_iter().filter(|(_, until)| *until > now) {
            see(Sight::LeaseNote(&LeaseNote { serial: 0, what: LeaseAction::Settled { id, until } }))?;
        }
        for some in requests.chunks(DEEDS_AT_A_TIME) {
            let mut registry = self.state.registry();
            let mut deeds = Vec::new();
            for id in some {
                if let Some(grant) = registry.requests.get(id, now).filter(|grant| grant.until > now) {
                    let what = LeaseAction::Remembered { id: id.clone(), grant: grant.clone() };
                    deeds.push(LeaseNote { serial: 0, what });
                }
            }
            drop(registry);
            deeds.iter().try_for_each(|deed| see(Sight::LeaseNote(deed)))?;
        }
        Ok(())
    }
}

/// The state of a walk through the rows of a limit.
struct Walk<'w, 's, E> {
    table: &'w LimitTable,
    retired_until: Option<Timestamp>,
    /// The epoch of the last definition.
    shown: Arc<RowEpoch>,
    now: Timestamp,
    traces: Vec<(usize, UsageRecord)>,
    see: See<'s, E>,
}

impl<E> Walk<'_, '_, E> {
    /// Visits every definition since the last one, because rows may have been charged under any of them. While the epoch of the
    /// last one is held, no later one is dropped.
    fn turn_to(&mut self, epoch: Arc<RowEpoch>) -> Result<(), E> {
        for next in self.table.epochs_between(self.shown.number, epoch.number) {
            if next.limit.version() != self.shown.limit.version() {
                let text = self.table.text(&next.limit, next.at);
                (self.see)(Sight::Limit { text, retired_until: self.retired_until })?;
                self.shown = next;
            }
        }
        self.shown = epoch;
        Ok(())
    }

    fn leaf(&mut self, leaf: &Leaf) -> Result<(), E> {
        let copied = if leaf.is_branch() { None } else { copy_leaf(self.table, leaf) };
        let Some((epoch, rows)) = copied else {
            return leaf.children().iter().try_for_each(|child| self.leaf(child));
        };
        self.turn_to(epoch)?;
        let (shown, now) = (Arc::clone(&self.shown), self.now);
        let says_something =
            |(tag, row): &&(Tag, Row)| !shown.is_evictable(row, shown.scope(Per::Key, *tag), now);
        let count = rows.iter().filter(says_something).count();
        if let Some((tag, _)) = rows.iter().find(says_something) {
            let generation = self.table.generation;
            (self.see)(Sight::Leaf { generation, spread: leaf.spread(*tag, count) })?;
        }
        rows.iter().filter(says_something).try_for_each(|(tag, row)| self.row(Some(*tag), row))
    }

    fn row(&mut self, key: Option<Tag>, row: &Row) -> Result<(), E> {
        let limit = &self.shown.limit;
        trace_row(limit, if key.is_none() { Per::All } else { Per::Key }, row, &mut self.traces);
        if self.traces.is_empty() {
            return Ok(());
        }
        (self.see)(Sight::Row { generation: self.table.generation, limit, key, traces: &self.traces })
    }
}

/// A copy of the row of all keys.
fn all_row(table: &LimitTable) -> (Arc<RowEpoch>, Row) {
    let mut locked = table.all.lock();
    let epoch = table.epoch();
    locked.convert(table, &epoch);
    let (seen, words) = locked.lock_row();
    let row = epoch.copy(Per::All, &words, &table.rows);
    locked.unlock_row(seen, &words);
    (epoch, row)
}

/// The rows of a leaf and their epoch.
type CopiedRows = (Arc<RowEpoch>, Vec<(Tag, Row)>);

/// A copy of the rows of a leaf. `None` if they have moved to the next level.
fn copy_leaf(table: &LimitTable, leaf: &Leaf) -> Option<CopiedRows> {
    let mut locked = leaf.lock();
    let epoch = table.epoch();
    table.convert_leaf(&mut locked, &epoch);
    if leaf.is_branch() {
        return None;
    }
    let mut rows = Vec::new();
    locked.each_row(|tag, words| {
        if words[0] != RESERVED {
            rows.push((tag, epoch.copy(Per::Key, words, &table.rows)));
        }
    });
    Some((epoch, rows))
}

/// The usage of a row, by item.
fn trace_row(limit: &Limit, per: Per, row: &Row, traces: &mut Vec<(usize, UsageRecord)>) {
    traces.clear();
    let own = |(_, item): &(usize, &Item)| item.per() == per;
    for (index, item) in limit.items().iter().enumerate().filter(own) {
        UsageRecord::for_each(item.rule(), row.state(item), |trace| traces.push((index, trace)));
    }
}
