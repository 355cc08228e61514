//! Eviction: fresh rows give up their places. If there is none, the caller learns when a row becomes fresh. It runs under
//! the leaf's lock.

use tidegate_core::Timestamp;

use super::super::sync::pause;
use super::{
    EMPTY, HELD, Inner, Line, Means, NEVER, NoRoom, Ordering, Owned, ROWS_A_TURN, SLOTS, SMALL, Searched,
    Tag, cache_line,
};

impl Owned<'_> {
    /// Forgets fresh rows, if there may be any. A large leaf is not searched for one of them at every turn.
    pub(in crate::store::memory) fn drop_fresh_if_due(&mut self, means: Means<'_>) {
        self.leaf.stamp.raise(means.now);
        self.inner.turns += 1;
        let due = self.inner.rows <= SMALL || self.inner.turns * ROWS_A_TURN >= self.inner.rows;
        if due && self.inner.fresh_from <= means.now {
            self.drop_fresh(means);
        }
    }

    /// Forgets every fresh row, and learns when the next will be.
    pub(super) fn drop_fresh(&mut self, means: Means<'_>) {
        self.inner.turns = 0;
        let mut next = NEVER;
        for page in self.leaf.pages_in_use() {
            page.bring_near();
            for line in &page.0 {
                for slot in 0..SLOTS {
                    next = next.min(self.drop_if_fresh(line, slot, means));
                }
            }
        }
        self.inner.fresh_from = next;
    }

    /// Forgets the row in a slot if it is fresh, or says when it will be. One that stays is only looked at: to take it would be most of
    /// the work.
    fn drop_if_fresh(&mut self, line: &Line, slot: usize, means: Means<'_>) -> Timestamp {
        let cell = line.cell(slot);
        let mut turn = 0;
        loop {
            let word = cell.load(Ordering::Relaxed);
            if word == EMPTY {
                return NEVER;
            }
            if word & HELD == 0 {
                let freshens = means.edition.freshens(line.tag(slot), word, &self.inner.shelf, means.now);
                match freshens.unwrap_or(NEVER) {
                    at if at > means.now => return at,
                    _ if cache_line::take(cell, word) => {
                        self.inner.forget(word, means.budget);
                        cache_line::give_back(cell, EMPTY);
                        return NEVER;
                    }
                    _ => {}
                }
            }
            // Somebody is deciding on it.
            pause(&mut turn);
        }
    }

    /// Forgets the fresh rows of the nearest line within reach of a tag that has any. Whether it has; if not, it is known
    /// when there will be room.
    pub(super) fn drop_fresh_near(&mut self, tag: Tag, means: Means<'_>) -> bool {
        if self.inner.fresh_from > means.now || self.inner.searched_in_vain(tag, means.now).is_some() {
            return false;
        }
        let mut next = NEVER;
        for line in self.leaf.within_reach(tag) {
            let mut dropped = false;
            for slot in 0..SLOTS {
                let cell = line.cell(slot);
                let word = cell.load(Ordering::Relaxed);
                // Rows that are being decided on are not fresh for long.
                if word == EMPTY || word & HELD != 0 {
                    continue;
                }
                let freshens = means.edition.freshens(line.tag(slot), word, &self.inner.shelf, means.now);
                match freshens.unwrap_or(NEVER) {
                    at if at > means.now => next = next.min(at),
                    _ if cache_line::take(cell, word) => {
                        self.inner.forget(word, means.budget);
                        cache_line::give_back(cell, EMPTY);
                        dropped = true;
                    }
                    _ => {}
                }
            }
            if dropped {
                return true;
            }
        }
        if next == NEVER {
            // Nothing here will ever be fresh, but somewhere else there may be.
            self.drop_fresh(means);
        } else {
            self.inner.searched = Some(Searched { tag, at: means.now, next });
        }
        false
    }

    /// When there may be room again for a row that found none at this instant.
    pub(in crate::store::memory) fn no_room(&mut self, tag: Tag, now: Timestamp) -> NoRoom {
        let known = self.inner.fresh_from;
        let next = if known > now { known } else { self.inner.searched_in_vain(tag, now).unwrap_or(known) };
        match next {
            NEVER if self.inner.shelf.is_held(now) => NoRoom::NoneUntilRelease,
            NEVER => NoRoom::None,
            until => NoRoom::NoneUntil(until.max(now)),
        }
    }
}

impl Inner {
    /// When the first row within reach of a tag will be fresh, if they were searched at this instant and none was.
    pub(super) fn searched_in_vain(&self, tag: Tag, now: Timestamp) -> Option<Timestamp> {
        self.searched.filter(|last| last.tag == tag && last.at == now).map(|last| last.next)
    }
}
