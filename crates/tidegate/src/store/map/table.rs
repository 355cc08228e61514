//! The rows of one limit, by key.
//!
//! Rows live in numbered slots; a hash index finds the slot of a key. Rows that became fresh are reclaimed by a hand
//! that goes round the slots and looks at two of them for every row that is added: no sweep, no timer, and never more
//! than about twice the rows that are needed.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};
use tidegate_core::{Limit, Row, Seat, Timestamp};

/// How many slots the hand looks at when a row is added.
const LOOKS_PER_INSERT: usize = 2;

/// An instant that no row waits for.
const NEVER: Timestamp = Timestamp::from_ticks(u64::MAX);

/// Whether a bounded table has room for another row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    /// It has.
    Enough,
    /// Not before this instant, when a row becomes fresh.
    NoneUntil(Timestamp),
    /// Time alone will not make any.
    None,
}

/// One key's row.
#[derive(Debug)]
struct Keyed {
    key: Box<[u8]>,
    row: Row,
}

/// The rows of one limit, by key.
#[derive(Debug, Default)]
pub(super) struct Table {
    hasher: DefaultHashBuilder,
    index: HashTable<usize>,
    slots: Vec<Option<Keyed>>,
    vacant: Vec<usize>,
    hand: usize,
    /// No row can have become fresh before this instant, as far as was known when a full table was last searched.
    full_until: Timestamp,
}

impl Table {
    /// How many rows there are, fresh ones that were not noticed included.
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// The slot of a key.
    pub(super) fn find(&self, key: &[u8]) -> Option<usize> {
        let hash = self.hasher.hash_one(key);
        self.index.find(hash, |&slot| self.key(slot) == key).copied()
    }

    fn key(&self, slot: usize) -> &[u8] {
        self.slots[slot].as_ref().map_or(&[], |keyed| &keyed.key)
    }

    /// The row in a slot that [`Table::find`] or [`Table::insert`] returned.
    pub(super) fn row(&mut self, slot: usize) -> &mut Row {
        let keyed = self.slots[slot].as_mut();
        &mut keyed.expect("slots are used while their row is there").row
    }

    /// Every row with its key.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], &Row)> {
        self.slots.iter().flatten().map(|keyed| (&*keyed.key, &keyed.row))
    }

    /// Every row with its key, to be changed.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&[u8], &mut Row)> {
        self.slots.iter_mut().flatten().map(|keyed| (&*keyed.key, &mut keyed.row))
    }

    /// Adds a row for a key that has none.
    pub(super) fn insert(&mut self, limit: &Limit, key: &[u8], row: Row, now: Timestamp) {
        self.turn_hand(limit, now);
        let keyed = Keyed { key: key.into(), row };
        let slot = self.vacant.pop().unwrap_or(self.slots.len());
        if slot == self.slots.len() {
            self.slots.push(Some(keyed));
        } else {
            self.slots[slot] = Some(keyed);
        }
        let hash = self.hasher.hash_one(key);
        self.index.insert_unique(hash, slot, |&slot| {
            self.hasher.hash_one(self.slots[slot].as_ref().map_or(&[][..], |keyed| &keyed.key))
        });
    }

    /// Looks at the next slots and drops the rows that are fresh.
    fn turn_hand(&mut self, limit: &Limit, now: Timestamp) {
        for _ in 0..LOOKS_PER_INSERT.min(self.slots.len()) {
            self.hand = if self.hand + 1 < self.slots.len() { self.hand + 1 } else { 0 };
            self.drop_if_fresh(self.hand, limit, now);
        }
    }

    fn drop_if_fresh(&mut self, slot: usize, limit: &Limit, now: Timestamp) {
        let Some(keyed) = &self.slots[slot] else { return };
        if !keyed.row.is_fresh(limit, Seat::from(limit.overrides(&keyed.key)), now) {
            return;
        }
        let hash = self.hasher.hash_one(&*keyed.key);
        if let Ok(entry) = self.index.find_entry(hash, |&other| other == slot) {
            entry.remove();
        }
        self.slots[slot] = None;
        self.vacant.push(slot);
    }

    /// Whether one more row would be above `most`, all fresh ones dropped.
    pub(super) fn room(&mut self, most: u64, limit: &Limit, now: Timestamp) -> Room {
        if self.len() as u64 >= most && self.full_until <= now {
            for slot in 0..self.slots.len() {
                self.drop_if_fresh(slot, limit, now);
            }
            let frees = self
                .iter()
                .filter_map(|(key, row)| row.freshens(limit, Seat::from(limit.overrides(key)), now));
            self.full_until = frees.min().unwrap_or(NEVER);
        }
        match self.full_until {
            _ if (self.len() as u64) < most => Room::Enough,
            NEVER => Room::None,
            until => Room::NoneUntil(until),
        }
    }

    /// Something was given back, so that a row may be fresh sooner than was known.
    pub(super) fn may_have_room(&mut self) {
        self.full_until = Timestamp::EPOCH;
    }
}
