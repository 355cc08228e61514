//! The rows of one limit, by key.
//!
//! Evictable rows are reclaimed by a clock hand: each insertion checks a few buckets of the hash table. So there is no
//! sweep and no timer, and never more than about twice the rows that are needed.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};
use tidegate_core::{Limit, Per, Row, RowScope, Timestamp};

use crate::store::order_path::RowRoom;

/// Buckets checked per insertion. Nearly half of the buckets or more are occupied, so the hand completes a round before
/// the table could double.
const CHECKS_PER_INSERT: usize = 3;

/// An instant that never comes.
const NEVER: Timestamp = Timestamp::from_ticks(u64::MAX);

/// A key and its row.
#[derive(Debug)]
struct KeyedRow {
    key: InlineKey,
    row: Row,
}

/// The rows of one limit, by key. A slot is valid until the next insertion.
#[derive(Debug, Default)]
pub(super) struct KeyTable {
    hasher: DefaultHashBuilder,
    rows: HashTable<KeyedRow>,
    clock_hand: usize,
    /// No row becomes evictable before this instant, as known when a full table was last searched.
    full_until: Timestamp,
    elsewhere: UnloadedRows,
}

/// The non-evictable rows of a bounded limit outside of a working set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UnloadedRows {
    /// Their number.
    pub rows: u64,
    /// When the first of them becomes evictable by time alone.
    pub freshens: Option<Timestamp>,
    /// Whether one of them has held units.
    pub is_held: bool,
}

impl KeyTable {
    /// Number of rows, including evictable ones.
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Sets the rows outside of the working set.
    pub(super) fn set_unloaded(&mut self, elsewhere: UnloadedRows) {
        self.elsewhere = elsewhere;
    }

    /// Adds a row for a new key without checking other rows.
    pub(super) fn insert_unchecked(&mut self, limit: &Limit, key: &[u8], row: Row, now: Timestamp) {
        if let Some(freshens) = row.evictable_at(limit, RowScope::from(limit.overrides(key)), now) {
            self.full_until = self.full_until.min(freshens);
        }
        let KeyTable { hasher, rows, .. } = self;
        let keyed = KeyedRow { key: InlineKey::new(key), row };
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

    /// Every row with its key.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&[u8], &mut Row)> {
        self.rows.iter_mut().map(|keyed| (keyed.key.bytes(), &mut keyed.row))
    }

    /// Adds a row for a new key.
    pub(super) fn insert(&mut self, limit: &Limit, key: &[u8], row: Row, now: Timestamp) {
        for _ in 0..CHECKS_PER_INSERT {
            self.clock_hand =
                if self.clock_hand + 1 < self.rows.num_buckets() { self.clock_hand + 1 } else { 0 };
            self.drop_if_evictable(self.clock_hand, limit, now);
        }
        self.insert_unchecked(limit, key, row, now);
    }

    /// Zeroes every row and keeps only those with held units.
    pub(super) fn reset(&mut self, limit: &Limit, now: Timestamp) {
        let KeyTable { hasher, rows, .. } = self;
        rows.retain(|KeyedRow { key, row }| {
            row.reset(limit, Per::Key);
            !row.is_evictable(limit, RowScope::from(limit.overrides(key.bytes())), now)
        });
        rows.shrink_to_fit(|keyed| hasher.hash_one(keyed.key.bytes()));
    }

    fn drop_if_evictable(&mut self, slot: usize, limit: &Limit, now: Timestamp) {
        if let Ok(entry) = self.rows.get_bucket_entry(slot) {
            let KeyedRow { key, row } = entry.get();
            if row.is_evictable(limit, RowScope::from(limit.overrides(key.bytes())), now) {
                entry.remove();
            }
        }
    }

    /// Drops evictable rows if this many more would exceed `most`. Invalidates slots.
    pub(super) fn make_room(&mut self, most: u64, more: u64, limit: &Limit, now: Timestamp) {
        if self.occupied() + more > most && self.full_until <= now {
            for slot in 0..self.rows.num_buckets() {
                self.drop_if_evictable(slot, limit, now);
            }
            let frees = self
                .iter()
                .filter_map(|(key, row)| row.evictable_at(limit, RowScope::from(limit.overrides(key)), now));
            self.full_until = frees.chain(self.elsewhere.freshens).min().unwrap_or(NEVER);
        }
    }

    /// Whether there is room for this many more rows, after [`KeyTable::make_room`].
    pub(super) fn room(&self, most: u64, more: u64, now: Timestamp) -> RowRoom {
        match self.full_until {
            _ if self.occupied() + more <= most => RowRoom::Enough,
            NEVER if self.elsewhere.is_held => RowRoom::NoneUntilRelease,
            NEVER if self.iter().any(|(_, row)| row.is_held(now)) => RowRoom::NoneUntilRelease,
            NEVER => RowRoom::None,
            until => RowRoom::NoneUntil(until),
        }
    }

    /// Number of rows, inside and outside of the working set.
    pub(super) fn occupied(&self) -> u64 {
        self.len() as u64 + self.elsewhere.rows
    }

    /// Held units were released, so a row may be evictable sooner than known.
    pub(super) fn forget_full_until(&mut self) {
        self.full_until = Timestamp::EPOCH;
    }
}

/// The bytes of a key. Short keys are stored inline, which saves a cache miss.
#[derive(Debug)]
enum InlineKey {
    Short(u8, [u8; MAX_INLINE_KEY]),
    Long(Box<[u8]>),
}

/// Longest inline key.
const MAX_INLINE_KEY: usize = 22;

impl InlineKey {
    fn new(key: &[u8]) -> InlineKey {
        match u8::try_from(key.len()) {
            Ok(length) if key.len() <= MAX_INLINE_KEY => {
                let mut bytes = [0; MAX_INLINE_KEY];
                bytes[..key.len()].copy_from_slice(key);
                InlineKey::Short(length, bytes)
            }
            _ => InlineKey::Long(key.into()),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            InlineKey::Short(length, bytes) => &bytes[..usize::from(*length)],
            InlineKey::Long(bytes) => bytes,
        }
    }
}
