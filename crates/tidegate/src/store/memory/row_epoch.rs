//! Row epochs: the rules under which rows are stored, and the conversion from one epoch to the next.
//!
//! An edit, a reset of a whole limit, and a start after a crash begin a new epoch. No row is changed then. Each leaf knows
//! the epoch of its rows. The next access under a later epoch converts the rows of the leaf first, as of the start of each
//! epoch. Therefore these operations take the same time for one key and for a million.

use std::sync::Arc;

use arrayvec::ArrayVec;
use hashbrown::HashMap;
use tidegate_core::{Item, Limit, LimitPhase, Per, Row, RowScope, State, Timestamp};

use super::fingerprint::Fingerprinter;
use super::full_rows::{FullRows, FullSlot};
use super::line::{MAX_ROW_WORDS, NO_TAG, RowWords, Shape, Tag};
use super::memory_budget::Budget;
use super::packed_item::{FULL, PackedItem, PackedKind};
use super::rule_snapshot::fits_snapshot;
use super::slab::Slab;

/// The scope of a key without overrides.
const NO_OVERRIDES: RowScope<'static> = RowScope::Key { overrides: &[] };

/// The first word of a row that an order is about to decide on. Only the thread with the leaf's lock changes it.
pub(super) const RESERVED: u64 = FULL | 1 << 40;

/// Why an epoch began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EpochCause {
    /// The limit was put.
    Put,
    /// Its counts were reset.
    Reset,
    /// Usage that no log has is assumed after a crash.
    Crash,
}

/// Where rows keep what does not fit their words.
pub(super) struct RowStore {
    pub(super) full: FullRows,
    pub(super) slab: Slab,
}

impl RowStore {
    pub(super) fn new() -> RowStore {
        RowStore { full: FullRows::new(), slab: Slab::new() }
    }
}

/// The rules under which rows are stored.
#[derive(Debug)]
pub(super) struct RowEpoch {
    /// From 1, without gaps.
    pub(super) number: u64,
    /// When it began.
    pub(super) at: Timestamp,
    pub(super) cause: EpochCause,
    pub(super) limit: Arc<Limit>,
    /// The columns in which the refusals of each item are counted.
    pub(super) columns: Box<[usize]>,
    all: RowLayout,
    key: RowLayout,
    /// The words that the row of all keys has room for.
    shared_words: usize,
    /// The keys with overrides.
    exceptions: HashMap<Tag, Box<[u8]>>,
    /// The usage of a key without a row: after a crash it may have used what no log has.
    assumed: Option<Row>,
    fits_snapshot: bool,
}

/// The words of a row's items.
#[derive(Debug, Clone, Default)]
pub(super) struct RowLayout {
    /// The index, the first word and the rules of each item. Empty if rows are always full.
    items: ArrayVec<(usize, PackedItem), MAX_ROW_WORDS>,
    shape: Shape,
}

impl RowLayout {
    /// The layout of a limit's rows, at most this many words wide.
    fn of(limit: &Limit, per: Per, columns: &[usize], max_words: usize, at: Timestamp) -> RowLayout {
        let (mut items, mut offset) = (ArrayVec::new(), 0);
        for (index, item) in limit.items().iter().enumerate().filter(|(_, item)| item.per() == per) {
            let column = columns.get(index).copied().unwrap_or_default();
            let packed = PackedItem::of(item, index, column, offset, limit.tick(), at);
            let Some(packed) = packed.filter(|_| !items.is_full()) else { return RowLayout::default() };
            items.push((index, packed));
            offset += packed.head.kind().words();
        }
        match Shape::for_words(offset).filter(|_| offset <= max_words) {
            Some(shape) => RowLayout { items, shape },
            None => RowLayout::default(),
        }
    }

    /// Whether rows fit words.
    pub(super) fn is_packed(&self) -> bool {
        !self.items.is_empty()
    }

    fn unpack(&self, words: &RowWords, slab: &Slab) -> Row {
        Row::from_states(self.items.iter().map(|(_, item)| item.state(item.words_of(words), slab)))
    }

    /// Frees the blocks of a packed row.
    fn free_blocks(&self, words: &RowWords, slab: &Slab, budget: &Budget) {
        for (_, item) in &self.items {
            if item.head.kind() == PackedKind::Sliding {
                item.sliding().free(slab, budget, item.words_of(words)[0]);
            }
        }
    }

    /// Packs the states of a row. The blocks of `former` are reused. `None` if a state does not fit; then they are freed.
    fn pack(&self, row: &Row, former: Option<&RowWords>, slab: &Slab, budget: &Budget) -> Option<RowWords> {
        let mut words = [0; MAX_ROW_WORDS];
        let mut fits = self.is_packed() && row.open_holds() == 0 && row.states().len() == self.items.len();
        for (state, (_, item)) in row.states().iter().zip(&self.items) {
            let own = match state {
                State::SlidingWindow(log) if item.head.kind() == PackedKind::Sliding => {
                    let before = former.map_or(0, |former| item.words_of(former)[0]);
                    if fits {
                        item.sliding().write(slab, budget, before, log).map(|word| [word, 0])
                    } else {
                        item.sliding().free(slab, budget, before);
                        None
                    }
                }
                state => item.pack(state),
            };
            fits &= own.is_some();
            item.put_words(&mut words, own.unwrap_or_default());
        }
        if !fits {
            self.free_blocks(&words, slab, budget);
        }
        fits.then_some(words)
    }
}

/// The items of a row at some instant.
pub(super) type CurrentItems = ArrayVec<PackedItem, MAX_ROW_WORDS>;

/// The parts of an epoch that can be prepared before it begins.
pub(super) struct EpochDraft {
    pub(super) limit: Arc<Limit>,
    columns: Box<[usize]>,
    exceptions: HashMap<Tag, Box<[u8]>>,
    /// The assumed usage of every key.
    pub(super) assumed: Option<Row>,
}

impl EpochDraft {
    pub(super) fn new(limit: Arc<Limit>, columns: Box<[usize]>, printer: &Fingerprinter) -> EpochDraft {
        let keys = limit.spec().overrides.iter().map(|own| own.key.as_slice());
        let exceptions = keys.map(|key| (printer.print(key), key.into())).collect();
        EpochDraft { limit, columns, exceptions, assumed: None }
    }
}

/// The words that the row of all keys of this limit needs.
pub(super) fn shared_words(limit: &Limit) -> usize {
    let words = |item: &Item| PackedKind::of(item.rule()).map_or(1, PackedKind::words);
    limit.items().iter().filter(|item| item.per() == Per::All).map(words).sum()
}

impl RowEpoch {
    /// The epoch after `former`. The row of all keys has room for `shared_words`.
    pub(super) fn of(
        draft: EpochDraft,
        number: u64,
        at: Timestamp,
        cause: EpochCause,
        former: Option<&RowEpoch>,
        shared_words: usize,
    ) -> RowEpoch {
        let EpochDraft { limit, columns, exceptions, assumed } = draft;
        let all = RowLayout::of(&limit, Per::All, &columns, shared_words, at);
        let key = RowLayout::of(&limit, Per::Key, &columns, MAX_ROW_WORDS, at);
        let mut epoch = RowEpoch {
            number,
            at,
            cause,
            limit,
            columns,
            all,
            key,
            shared_words,
            exceptions,
            assumed,
            fits_snapshot: false,
        };
        if let (None, Some(former)) = (&epoch.assumed, former)
            && let Some(mut assumed) = former.assumed.clone().filter(|_| cause != EpochCause::Reset)
        {
            epoch.convert(former, Per::Key, NO_TAG, &mut assumed);
            epoch.assumed = (!assumed.is_evictable(&epoch.limit, NO_OVERRIDES, at)).then_some(assumed);
        }
        epoch.fits_snapshot = fits_snapshot(&epoch);
        epoch
    }

    /// Whether there can be a snapshot of the rules.
    pub(super) fn fits_snapshot(&self) -> bool {
        self.fits_snapshot
    }

    /// The row of a key that has none.
    pub(super) fn new_row(&self) -> Row {
        self.assumed.clone().unwrap_or_else(|| Row::blank(&self.limit, Per::Key))
    }

    /// The assumed usage of a key without a row.
    pub(super) fn assumed(&self) -> Option<&Row> {
        self.assumed.as_ref()
    }

    /// Until when a key without a row is assumed to have used something.
    pub(super) fn assumed_until(&self, now: Timestamp) -> Option<Timestamp> {
        let assumed = self.assumed.as_ref()?;
        let until =
            assumed.evictable_at(&self.limit, NO_OVERRIDES, now).unwrap_or(Timestamp::from_ticks(u64::MAX));
        (until > now).then_some(until)
    }

    /// Whether a key's row can be dropped: a key without a row is the same.
    pub(super) fn is_evictable(&self, row: &Row, scope: RowScope<'_>, now: Timestamp) -> bool {
        row.is_evictable(&self.limit, scope, now)
            || self.assumed.as_ref().is_some_and(|assumed| assumed == row)
    }

    /// The layout of rows.
    pub(super) fn layout(&self, per: Per) -> &RowLayout {
        match per {
            Per::All => &self.all,
            Per::Key => &self.key,
        }
    }

    /// The shape of the rows of keys.
    pub(super) fn key_shape(&self) -> Shape {
        self.key.shape
    }

    /// Whether all rows have one word.
    pub(super) fn has_narrow_rows(&self) -> bool {
        self.shared_words == 1 && self.key.shape == Shape::Narrow
    }

    /// The rules of an item in words, at `now`.
    pub(super) fn packed_item(&self, index: usize, now: Timestamp) -> Option<PackedItem> {
        let item = self.limit.items().get(index)?;
        let (_, packed) = self.layout(item.per()).items.iter().find(|(own, _)| *own == index)?;
        let (column, offset) = (packed.head.column(), packed.head.offset());
        PackedItem::of(item, index, column, offset, self.limit.tick(), now)
    }

    /// The scope of the row with this tag.
    pub(super) fn scope(&self, per: Per, tag: Tag) -> RowScope<'_> {
        match per {
            Per::All => RowScope::All,
            Per::Key => {
                let key = if self.exceptions.is_empty() { None } else { self.exceptions.get(&tag) };
                RowScope::from(key.map_or(&[][..], |key| self.limit.overrides(key)))
            }
        }
    }

    fn has_exception(&self, per: Per, tag: Tag) -> bool {
        per == Per::Key && !self.exceptions.is_empty() && self.exceptions.contains_key(&tag)
    }

    /// Takes the row out that these words stand for. Its place stays reserved for it, until [`RowEpoch::store`],
    /// [`RowEpoch::restore`] or [`RowEpoch::free`]. Only under the lock of its line.
    pub(super) fn take(&self, per: Per, words: &RowWords, rows: &RowStore, budget: &Budget) -> Row {
        match words[0] {
            RESERVED => self.new_row(),
            _ => match full_slot(words) {
                Some(slot) => rows.full.take(per, slot, budget),
                None if self.layout(per).is_packed() => self.layout(per).unpack(words, &rows.slab),
                None => Row::blank(&self.limit, per),
            },
        }
    }

    /// A copy of the row that these words stand for. Only under the lock of its line.
    pub(super) fn copy(&self, per: Per, words: &RowWords, rows: &RowStore) -> Row {
        match full_slot(words) {
            Some(slot) => rows.full.look(slot, Row::clone),
            None if words[0] != RESERVED && self.layout(per).is_packed() => {
                self.layout(per).unpack(words, &rows.slab)
            }
            None => Row::blank(&self.limit, per),
        }
    }

    /// Stores a row that was taken out, and returns its words. Only under the lock of its line.
    pub(super) fn store(
        &self,
        per: Per,
        tag: Tag,
        former: &RowWords,
        row: Row,
        rows: &RowStore,
        budget: &Budget,
    ) -> RowWords {
        let layout = self.layout(per);
        let slot = full_slot(former);
        let packed_before = (slot.is_none() && former[0] != RESERVED).then_some(former);
        if row.states().is_empty() && row.open_holds() == 0 {
            // A limit without items of this kind.
            if let Some(slot) = slot {
                rows.full.free(slot);
            }
            return [0; MAX_ROW_WORDS];
        }
        if self.has_exception(per, tag) {
            if let Some(former) = packed_before {
                layout.free_blocks(former, &rows.slab, budget);
            }
        } else if let Some(words) = layout.pack(&row, packed_before, &rows.slab, budget) {
            if let Some(slot) = slot {
                rows.full.free(slot);
            }
            return words;
        }
        match slot {
            Some(slot) => {
                rows.full.put(per, slot, row, budget);
                *former
            }
            None => full_words(rows.full.insert(per, row, budget)),
        }
    }

    /// Stores a new row, and returns its words.
    pub(super) fn store_new(
        &self,
        per: Per,
        tag: Tag,
        row: Row,
        rows: &RowStore,
        budget: &Budget,
    ) -> RowWords {
        self.store(per, tag, &[0; MAX_ROW_WORDS], row, rows, budget)
    }

    /// Puts a row back that was taken out and has not changed: its words stay as they are.
    pub(super) fn restore(per: Per, words: &RowWords, row: Row, rows: &RowStore, budget: &Budget) {
        if let Some(slot) = full_slot(words) {
            rows.full.put(per, slot, row, budget);
        }
    }

    /// Frees the place of a row that was taken out.
    pub(super) fn free(&self, per: Per, words: &RowWords, rows: &RowStore, budget: &Budget) {
        match full_slot(words) {
            Some(slot) => rows.full.free(slot),
            None if words[0] != RESERVED => self.layout(per).free_blocks(words, &rows.slab, budget),
            None => {}
        }
    }

    /// Drops the row of these words. Only under the lock of its line.
    pub(super) fn drop_row(&self, words: &RowWords, rows: &RowStore, budget: &Budget) {
        if let Some(slot) = full_slot(words) {
            let _row = rows.full.take(Per::Key, slot, budget);
        }
        self.free(Per::Key, words, rows, budget);
    }

    /// The items of keys at `now`, with their calendar windows looked up.
    pub(super) fn items_at(&self, now: Timestamp) -> CurrentItems {
        self.key.items.iter().filter_map(|(index, _)| self.packed_item(*index, now)).collect()
    }

    /// When a key's row can be dropped. `None` if time alone does not suffice.
    pub(super) fn evictable_at(
        &self,
        tag: Tag,
        words: &RowWords,
        rows: &RowStore,
        now: Timestamp,
    ) -> Option<Timestamp> {
        self.evictable_at_by(&self.items_at(now), tag, words, rows, now)
    }

    /// The same for many rows, whose calendar windows are looked up once. The words may be torn unless the row is full.
    pub(super) fn evictable_at_by(
        &self,
        items: &CurrentItems,
        tag: Tag,
        words: &RowWords,
        rows: &RowStore,
        now: Timestamp,
    ) -> Option<Timestamp> {
        if words[0] == RESERVED {
            return None;
        }
        if let Some(slot) = full_slot(words) {
            let scope = self.scope(Per::Key, tag);
            return rows.full.look(slot, |row| row.evictable_at(&self.limit, scope, now));
        }
        let mut latest = Some(now);
        for item in items {
            let at = item.evictable_at(item.words_of(words), now, &rows.slab);
            latest = latest.zip(at).map(|(latest, at)| latest.max(at));
        }
        match self.limit.ends_at() {
            Some(end) => Some(latest.map_or(end, |at| at.min(end))),
            None => latest,
        }
    }

    /// Converts a row from the epoch before this one.
    pub(super) fn convert(&self, former: &RowEpoch, per: Per, tag: Tag, row: &mut Row) {
        match self.cause {
            EpochCause::Crash => {
                if let (Per::Key, Some(assumed)) = (per, &self.assumed) {
                    row.merge(assumed, &self.limit, per);
                }
            }
            EpochCause::Reset => row.reset(&self.limit, per),
            EpochCause::Put if former.limit.phase(self.at) == LimitPhase::After => {
                *row = Row::blank(&self.limit, per);
            }
            EpochCause::Put => {
                let (old, new) = (former.scope(per, tag), self.scope(per, tag));
                *row = row.migrate((&former.limit, old), (&self.limit, new), self.at);
            }
        }
    }
}

/// The slot of a row that is stored in full.
pub(super) fn full_slot(words: &RowWords) -> Option<FullSlot> {
    let is_full = words[0] & FULL != 0 && words[0] != RESERVED;
    is_full.then(|| FullSlot(u32::try_from(words[0] & u64::from(u32::MAX)).expect("32 bits")))
}

fn full_words(slot: FullSlot) -> RowWords {
    let mut words = [0; MAX_ROW_WORDS];
    words[0] = FULL | u64::from(slot.0);
    words
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests;
