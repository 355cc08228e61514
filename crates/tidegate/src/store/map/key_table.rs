//! The rows of one limit, by key.
//!
//! Rows that became fresh are reclaimed by a hand that goes round the buckets of the hash table and looks at a few of them
//! for every row that is added: no sweep, no timer, and never more than about twice the rows that are needed.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};
use tidegate_core::{Limit, Per, Row, RowScope, Timestamp};

use crate::store::order_path::Room;

/// How many buckets the hand looks at when a row is added. Nearly half of them or more have a row, so it goes round
/// before the table could double.
const LOOKS_PER_INSERT: usize = 3;

/// An instant that no row waits for.
const NEVER: Timestamp = Timestamp::from_ticks(u64::MAX);

/// One key's row.
#[derive(Debug)]
struct Keyed {
    key: Key,
    row: Row,
}

/// The rows of one limit, by key. A *slot* is where a row lies until the next row is added.
#[derive(Debug, Default)]
pub(super) struct Table {
    hasher: DefaultHashBuilder,
    rows: HashTable<Keyed>,
    hand: usize,
    /// No row can have become fresh before this instant, as far as was known when a full table was last searched.
    full_until: Timestamp,
    elsewhere: Elsewhere,
}

/// The rows of a bounded limit that are not in its table, because it is an excerpt: those that are not fresh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Elsewhere {
    /// How many.
    pub rows: u64,
    /// When the first of them becomes fresh by time alone.
    pub freshens: Option<Timestamp>,
    /// Whether somebody holds something of one.
    pub is_held: bool,
}

impl Table {
    /// How many rows there are, fresh ones that were not noticed included.
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// There are these rows too.
    pub(super) fn beside(&mut self, elsewhere: Elsewhere) {
        self.elsewhere = elsewhere;
    }

    /// Adds a row for a key that has none, and looks at no other.
    pub(super) fn bring(&mut self, limit: &Limit, key: &[u8], row: Row, now: Timestamp) {
        if let Some(freshens) = row.evictable_at(limit, RowScope::from(limit.overrides(key)), now) {
            self.full_until = self.full_until.min(freshens);
        }
        let Table { hasher, rows, .. } = self;
        let keyed = Keyed { key: Key::new(key), row };
        rows.insert_unique(hasher.hash_one(key), keyed, |keyed| hasher.hash_one(keyed.key.bytes()));
    }

    /// The slot of a key.
    pub(super) fn find(&self, key: &[u8]) -> Option<usize> {
        self.rows.find_bucket_index(self.hasher.hash_one(key), |keyed| keyed.key.bytes() == key)
    }

    /// The row of a key.
    pub(super) fn get(&self, key: &[u8]) -> Option<&Row> {
        self.find(key).and_then(|slot| self.rows.get_bucket(slot)).map(|keyed| &keyed.row)
    }

    /// The row in a slot.
    pub(super) fn row(&mut self, slot: usize) -> &mut Row {
        &mut self.rows.get_bucket_mut(slot).expect("slots are used before rows are added").row
    }

    /// Every row with its key.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], &Row)> {
        self.rows.iter().map(|keyed| (keyed.key.bytes(), &keyed.row))
    }

    /// Every row with its key, to be changed.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&[u8], &mut Row)> {
        self.rows.iter_mut().map(|keyed| (keyed.key.bytes(), &mut keyed.row))
    }

    /// Adds a row for a key that has none.
    pub(super) fn insert(&mut self, limit: &Limit, key: &[u8], row: Row, now: Timestamp) {
        for _ in 0..LOOKS_PER_INSERT {
            self.hand = if self.hand + 1 < self.rows.num_buckets() { self.hand + 1 } else { 0 };
            self.drop_if_fresh(self.hand, limit, now);
        }
        self.bring(limit, key, row, now);
    }

    /// Zeroes every row, and keeps only those that still hold something.
    pub(super) fn reset(&mut self, limit: &Limit, now: Timestamp) {
        let Table { hasher, rows, .. } = self;
        rows.retain(|Keyed { key, row }| {
            row.reset(limit, Per::Key);
            !row.is_evictable(limit, RowScope::from(limit.overrides(key.bytes())), now)
        });
        rows.shrink_to_fit(|keyed| hasher.hash_one(keyed.key.bytes()));
    }

    fn drop_if_fresh(&mut self, slot: usize, limit: &Limit, now: Timestamp) {
        if let Ok(entry) = self.rows.get_bucket_entry(slot) {
            let Keyed { key, row } = entry.get();
            if row.is_evictable(limit, RowScope::from(limit.overrides(key.bytes())), now) {
                entry.remove();
            }
        }
    }

    /// Drops the fresh rows if this many more would be above `most`. Slots found before are no longer good.
    pub(super) fn make_room(&mut self, most: u64, more: u64, limit: &Limit, now: Timestamp) {
        if self.occupied() + more > most && self.full_until <= now {
            for slot in 0..self.rows.num_buckets() {
                self.drop_if_fresh(slot, limit, now);
            }
            let frees = self
                .iter()
                .filter_map(|(key, row)| row.evictable_at(limit, RowScope::from(limit.overrides(key)), now));
            self.full_until = frees.chain(self.elsewhere.freshens).min().unwrap_or(NEVER);
        }
    }

    /// Whether there is room for this many more rows, after [`Table::make_room`].
    pub(super) fn room(&self, most: u64, more: u64, now: Timestamp) -> Room {
        match self.full_until {
            _ if self.occupied() + more <= most => Room::Enough,
            NEVER if self.elsewhere.is_held => Room::NoneTillRelease,
            NEVER if self.iter().any(|(_, row)| row.is_held(now)) => Room::NoneTillRelease,
            NEVER => Room::None,
            until => Room::NoneUntil(until),
        }
    }

    /// How many rows there are, here and elsewhere.
    pub(super) fn occupied(&self) -> u64 {
        self.len() as u64 + self.elsewhere.rows
    }

    /// Something was given back, so that a row may be fresh sooner than was known.
    pub(super) fn may_have_room(&mut self) {
        self.full_until = Timestamp::EPOCH;
    }
}

/// A key's bytes: short ones lie in the table itself, which saves looking elsewhere for nearly all of them.
#[derive(Debug)]
enum Key {
    Short(u8, [u8; SHORT_KEY]),
    Long(Box<[u8]>),
}

/// The longest key that lies in the table.
const SHORT_KEY: usize = 22;

impl Key {
    fn new(key: &[u8]) -> Key {
        match u8::try_from(key.len()) {
            Ok(length) if key.len() <= SHORT_KEY => {
                let mut bytes = [0; SHORT_KEY];
                bytes[..key.len()].copy_from_slice(key);
                Key::Short(length, bytes)
            }
            _ => Key::Long(key.into()),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Key::Short(length, bytes) => &bytes[..usize::from(*length)],
            Key::Long(bytes) => bytes,
        }
    }
}
