//! Eviction: rows that say no more than a missing row give up their places. If there is none, the caller learns when a row
//! becomes evictable. It runs under the leaf's lock.

use tidegate_core::{Per, Timestamp};

use super::super::line::{self, LOCKED, Line, NO_TAG, RowWords, Tag};
use super::super::row_epoch::{CurrentItems, RESERVED, full_slot};
use super::super::sync::pause;
use super::{FailedSearch, LeafContext, LeafState, LockedLeaf, NEVER, ROWS_PER_INSERTION, RowRoom, SMALL};

/// The result of an attempt to evict the row in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Eviction {
    /// The slot was empty.
    Empty,
    /// The slot is empty now.
    Evicted,
    /// The row is evictable from this instant on.
    Until(Timestamp),
    /// A decision on the line is under way.
    Busy,
}

impl LockedLeaf<'_> {
    /// Evicts all evictable rows, if there may be any. A large leaf is not searched at each insertion.
    pub(in crate::store::memory) fn evict_if_due(&mut self, context: LeafContext<'_>) {
        self.leaf.header.raise(context.now);
        self.state.insertions += 1;
        let due = self.state.rows <= SMALL || self.state.insertions * ROWS_PER_INSERTION >= self.state.rows;
        if due && self.state.evictable_from <= context.now {
            self.evict(context);
        }
    }

    /// Evicts every evictable row, and learns when the next one will be evictable.
    fn evict(&mut self, context: LeafContext<'_>) {
        self.state.insertions = 0;
        let items = context.epoch.items_at(context.now);
        let (mut next, rows) = (NEVER, self.state.shape.rows());
        for line in self.leaf.each_line() {
            for slot in 0..rows {
                let mut turn = 0;
                let evictable_at = loop {
                    match self.evict_if_fresh(line, slot, context, &items) {
                        Eviction::Empty | Eviction::Evicted => break NEVER,
                        Eviction::Until(at) => break at,
                        Eviction::Busy => pause(&mut turn),
                    }
                };
                next = next.min(evictable_at);
            }
        }
        self.state.evictable_from = next;
    }

    /// Evicts the row in a slot if it is evictable. A row that stays is only read: its lock would be most of the work.
    pub(super) fn evict_if_fresh(
        &mut self,
        line: &Line,
        slot: usize,
        context: LeafContext<'_>,
        items: &CurrentItems,
    ) -> Eviction {
        let LeafContext { epoch, rows, budget, now } = context;
        let (shape, control) = (self.state.shape, line.control());
        let seen = line.seen();
        let tag = line.tag(shape, slot);
        if tag == NO_TAG {
            return Eviction::Empty;
        }
        if seen & LOCKED != 0 {
            return Eviction::Busy;
        }
        let words = line.read(shape, slot);
        if words[0] == RESERVED {
            return Eviction::Until(NEVER);
        }
        // A full row can be read only under the lock.
        let is_full = full_slot(&words).is_some();
        if is_full && !line::try_lock(control, seen) {
            return Eviction::Busy;
        }
        let evictable_at = epoch.evictable_at_by(items, tag, &words, rows, now).unwrap_or(NEVER);
        if evictable_at > now {
            if is_full {
                line::unlock_unchanged(control, seen);
            } else if !line::is_unchanged(control, seen) {
                return Eviction::Busy;
            }
            return Eviction::Until(evictable_at);
        }
        if !is_full && !line::try_lock(control, seen) {
            return Eviction::Busy;
        }
        epoch.drop_row(&words, rows, budget);
        line.place(shape, slot, NO_TAG, &RowWords::default());
        line::unlock(control, seen);
        self.state.rows -= 1;
        budget.give_row();
        Eviction::Evicted
    }

    /// Evicts the evictable rows of the nearest line within reach of a tag that has any. Returns whether it has. If not, it
    /// is known when there will be room.
    pub(super) fn evict_near(&mut self, tag: Tag, context: LeafContext<'_>) -> bool {
        if self.state.evictable_from > context.now || self.state.failed_search(tag, context.now).is_some() {
            return false;
        }
        let (leaf, rows) = (self.leaf, self.state.shape.rows());
        let items = context.epoch.items_at(context.now);
        let mut next = NEVER;
        for line in leaf.within_reach(tag) {
            let mut evicted = false;
            for slot in 0..rows {
                match self.evict_if_fresh(line, slot, context, &items) {
                    Eviction::Evicted => evicted = true,
                    Eviction::Until(at) => next = next.min(at),
                    // A row that is being decided on is soon not evictable.
                    Eviction::Empty | Eviction::Busy => {}
                }
            }
            if evicted {
                return true;
            }
        }
        if next == NEVER {
            // No row here becomes evictable, but others may.
            self.evict(context);
        } else {
            self.state.searched = Some(FailedSearch { tag, at: context.now, next });
        }
        false
    }

    /// When there may be room for a row that found none now.
    pub(super) fn no_room(&mut self, tag: Tag, context: LeafContext<'_>) -> RowRoom {
        let (known, now) = (self.state.evictable_from, context.now);
        let next = if known > now { known } else { self.state.failed_search(tag, now).unwrap_or(known) };
        match next {
            NEVER if context.rows.full.is_held(now) => RowRoom::NoneUntilRelease,
            NEVER => RowRoom::None,
            until => RowRoom::NoneUntil(until.max(now)),
        }
    }

    /// Whether a row can be dropped at `now`, and drops it. Its line is locked, and stays so.
    pub(in crate::store::memory) fn vacate_if_evictable(
        &mut self,
        place: &super::RowPlace<'_>,
        tag: Tag,
        row: &tidegate_core::Row,
        words: &RowWords,
        context: LeafContext<'_>,
    ) -> bool {
        let LeafContext { epoch, rows, budget, now } = context;
        let is_evictable = epoch.is_evictable(row, epoch.scope(Per::Key, tag), now);
        if is_evictable {
            epoch.free(Per::Key, words, rows, budget);
            self.vacate(place, budget);
        }
        is_evictable
    }
}

impl LeafState {
    /// When the first row within reach of a tag is evictable, if a search at this instant found none.
    fn failed_search(&self, tag: Tag, now: Timestamp) -> Option<Timestamp> {
        self.searched.filter(|last| last.tag == tag && last.at == now).map(|last| last.next)
    }
}
