//! Snapshot of a limit's rules that decisions read without a lock.
//!
//! If the states of a limit fit words, a decision does not need the limit itself. The snapshot holds the rules and the
//! instants between which they hold, for example until the end of the calendar window. It is written rarely and read by
//! every decision, so it is a seqlock: readers write nothing and start again if a write happened meanwhile.

#![expect(clippy::inline_always, reason = "these functions are parts of a decision of 20 ns")]

use arrayvec::ArrayVec;
use tidegate_core::{LimitPhase, Mode, Per, Timestamp};

use super::line::Shape;
use super::packed_item::{ItemHead, PACKED_ITEM_WORDS, PackedItem};
use super::row_epoch::RowEpoch;
use super::sync::{AtomicU64, Ordering, fence};

/// The most items of a limit whose rules fit a snapshot.
pub(super) const MAX_SNAPSHOT_ITEMS: usize = if cfg!(tidegate_loom) { 2 } else { 10 };

const EPOCH: usize = 0;
const FROM: usize = 1;
const LENGTH: usize = 2;
const ITEMS: usize = 3;
const ENDS: usize = ITEMS + MAX_SNAPSHOT_ITEMS * PACKED_ITEM_WORDS;
const WORDS: usize = ENDS + 1;

/// The number of items, in the head of the first item.
const COUNT: u32 = 16;
/// Some keys have an override, or are assumed to have used something that no log has.
const HAS_EXCEPTIONS: u64 = 1 << 20;
/// The limit has an end.
const HAS_END: u64 = 1 << 21;
const SHAPE: u32 = 22;
/// There are items that count each key alone.
const COUNTS_KEYS: u64 = 1 << 24;
/// There are items that count all keys together.
const COUNTS_ALL: u64 = 1 << 25;
/// All rows have one word.
const HAS_NARROW_ROWS: u64 = 1 << 26;

/// The flags of a limit, beside the head of its first item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LimitHead(u64);

impl LimitHead {
    /// The head of the first item.
    #[inline(always)]
    pub(super) fn first(self) -> ItemHead {
        ItemHead(self.0)
    }

    /// The number of items, at most [`MAX_SNAPSHOT_ITEMS`].
    #[inline(always)]
    pub(super) fn items(self) -> usize {
        ((self.0 >> COUNT & 0b1111) as usize).min(MAX_SNAPSHOT_ITEMS)
    }

    /// Whether a key without a row may differ from a blank one.
    #[inline(always)]
    pub(super) fn has_exceptions(self) -> bool {
        self.0 & HAS_EXCEPTIONS != 0
    }

    /// Whether the limit ends, so that a promised instant is checked a second time.
    #[inline(always)]
    pub(super) fn has_end(self) -> bool {
        self.0 & HAS_END != 0
    }

    #[inline(always)]
    pub(super) fn counts_keys(self) -> bool {
        self.0 & COUNTS_KEYS != 0
    }

    #[inline(always)]
    pub(super) fn counts_all(self) -> bool {
        self.0 & COUNTS_ALL != 0
    }

    /// Whether the row of a key and the row of all keys have one word each.
    #[inline(always)]
    pub(super) fn has_narrow_rows(self) -> bool {
        self.0 & HAS_NARROW_ROWS != 0
    }

    /// The shape of the rows of keys.
    #[inline(always)]
    pub(super) fn shape(self) -> Shape {
        Shape::from_code(self.0 >> SHAPE & 0b11)
    }
}

/// Whether an epoch can have a snapshot at all, whatever the time is.
pub(super) fn fits_snapshot(epoch: &RowEpoch) -> bool {
    let limit = &epoch.limit;
    let fits = |per| limit.items().iter().all(|item| item.per() != per) || epoch.layout(per).is_packed();
    limit.mode() == Mode::Enforce
        && (1..=MAX_SNAPSHOT_ITEMS).contains(&limit.items().len())
        && fits(Per::All)
        && fits(Per::Key)
}

/// The words of an epoch's snapshot at `now`. `None` if it has none now.
fn words_of(epoch: &RowEpoch, now: Timestamp) -> Option<[u64; WORDS]> {
    let limit = &epoch.limit;
    if !epoch.fits_snapshot() || limit.phase(now) != LimitPhase::Open {
        return None;
    }
    let mut items: ArrayVec<PackedItem, MAX_SNAPSHOT_ITEMS> = ArrayVec::new();
    for index in 0..limit.items().len() {
        items.push(epoch.packed_item(index, now)?);
    }
    let mut from = limit.starts_at().unwrap_or_default().max(epoch.at);
    let mut until = limit.ends_at().unwrap_or(Timestamp::from_ticks(u64::MAX));
    for (start, end) in items.iter().filter_map(PackedItem::window) {
        (from, until) = (from.max(start), until.min(end));
    }
    let assumed_until = limit.needs_key().then(|| epoch.assumed_until(now)).flatten();
    until = assumed_until.map_or(until, |end| until.min(end));
    let flag = |is: bool, flag: u64| if is { flag } else { 0 };
    let any = |per| items.iter().any(|item| item.head.is_of_key() == (per == Per::Key));
    let flags = flag(!limit.spec().overrides.is_empty() || assumed_until.is_some(), HAS_EXCEPTIONS)
        | flag(limit.ends_at().is_some(), HAS_END)
        | flag(any(Per::Key), COUNTS_KEYS)
        | flag(any(Per::All), COUNTS_ALL)
        | flag(epoch.has_narrow_rows(), HAS_NARROW_ROWS)
        | epoch.key_shape().code() << SHAPE
        | (items.len() as u64) << COUNT;
    let mut words = [0; WORDS];
    words[EPOCH] = epoch.number;
    words[FROM] = from.ticks();
    words[LENGTH] = until.since(from).ticks();
    words[ENDS] = limit.ends_at().unwrap_or(Timestamp::from_ticks(u64::MAX)).ticks();
    for (place, item) in words[ITEMS..ENDS].chunks_mut(PACKED_ITEM_WORDS).zip(&items) {
        place.copy_from_slice(&item.words());
    }
    words[ITEMS] |= flags;
    Some(words)
}

/// The rules of one limit. A decision on one item reads the first cache line only.
#[repr(C, align(64))]
#[derive(Debug)]
pub(super) struct RuleSnapshot {
    /// Odd during a write.
    sequence: AtomicU64,
    words: [AtomicU64; WORDS],
}

/// The words of a snapshot, read one by one. They belong together if [`SnapshotReader::is_current`] says so afterwards.
#[derive(Debug, Clone, Copy)]
pub(super) struct SnapshotReader<'a> {
    snapshot: &'a RuleSnapshot,
    sequence: u64,
}

impl RuleSnapshot {
    pub(super) fn new() -> RuleSnapshot {
        RuleSnapshot { sequence: AtomicU64::new(0), words: std::array::from_fn(|_| AtomicU64::new(0)) }
    }

    #[inline(always)]
    pub(super) fn read(&self) -> SnapshotReader<'_> {
        SnapshotReader { snapshot: self, sequence: self.sequence.load(Ordering::Acquire) }
    }

    /// Whether the snapshot of this epoch is outdated at `now` and a new one would hold.
    pub(super) fn is_outdated(&self, epoch: &RowEpoch, now: Timestamp) -> bool {
        let reader = self.read();
        let holds = reader.is_valid_at(now) && reader.epoch() == epoch.number && reader.is_current();
        !holds && words_of(epoch, now).is_some()
    }

    /// Writes the snapshot of an epoch, or none if it has none now. One thread at a time.
    pub(super) fn publish(&self, epoch: &RowEpoch, now: Timestamp) {
        self.write(&words_of(epoch, now).unwrap_or([0; WORDS]));
    }

    /// Removes the snapshot. One thread at a time.
    pub(super) fn clear(&self) {
        let mut words = self.words.each_ref().map(|word| word.load(Ordering::Relaxed));
        (words[EPOCH], words[LENGTH]) = (0, 0);
        self.write(&words);
    }

    fn write(&self, words: &[u64; WORDS]) {
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(1), Ordering::Relaxed);
        // A reader that sees a new word sees a new sequence.
        fence(Ordering::Release);
        for (place, word) in self.words.iter().zip(words) {
            if place.load(Ordering::Relaxed) != *word {
                place.store(*word, Ordering::Relaxed);
            }
        }
        self.sequence.store(sequence.wrapping_add(2), Ordering::Release);
    }
}

impl SnapshotReader<'_> {
    /// Whether the words that were read belong together and are still the rules.
    ///
    /// If this holds while a row is locked, the decision comes before the next edit, and before the instant of that edit.
    #[inline(always)]
    pub(super) fn is_current(&self) -> bool {
        // Orders the loads of the words before this one.
        fence(Ordering::Acquire);
        // An odd sequence never becomes current.
        self.snapshot.sequence.load(Ordering::Relaxed) == self.sequence & !1
    }

    /// Whether the rules hold at `now`.
    #[inline(always)]
    pub(super) fn is_valid_at(&self, now: Timestamp) -> bool {
        now.ticks().wrapping_sub(self.word(FROM)) < self.word(LENGTH)
    }

    /// The epoch of the rules.
    #[inline(always)]
    pub(super) fn epoch(&self) -> u64 {
        self.word(EPOCH)
    }

    #[inline(always)]
    pub(super) fn head(&self) -> LimitHead {
        LimitHead(self.word(ITEMS))
    }

    /// An item, in written order. It must be below [`LimitHead::items`].
    #[inline(always)]
    pub(super) fn item(&self, index: usize) -> PackedItem {
        let first = ITEMS + index.min(MAX_SNAPSHOT_ITEMS - 1) * PACKED_ITEM_WORDS;
        PackedItem::from_words(std::array::from_fn(|word| self.word(first + word)))
    }

    /// The end of the limit, or the end of time.
    pub(super) fn ends_at(&self) -> Timestamp {
        Timestamp::from_ticks(self.word(ENDS))
    }

    #[inline(always)]
    fn word(&self, index: usize) -> u64 {
        self.snapshot.words[index].load(Ordering::Relaxed)
    }
}
