//! A block of the slab that holds the entries of a sliding log as a ring.

use tidegate_core::Amount;

use super::super::slab::{Block, CLASSES, Slab};
use super::super::sync::{AtomicU64, Ordering};
use super::{IN_BLOCK, PAYLOAD};

/// Words of a block before its ring.
const HEADER: usize = 4;
pub(super) const HEAD_AND_COUNT: usize = 0;
const TOTAL: usize = 1;
const LAST_TIME: usize = 2;
const BASE: usize = 3;

/// Entries in the largest block.
pub(super) const MAX_ENTRIES: u64 = (8 << (CLASSES - 1)) - HEADER as u64;
/// A block and a copy of its header.
#[derive(Clone, Copy)]
pub(super) struct Ring<'s> {
    pub(super) header: &'s [AtomicU64],
    pub(super) slots: &'s [AtomicU64],
    pub(super) count_bits: u32,
    /// The slot of the first entry, below `slots.len()`.
    pub(super) head: usize,
    /// The number of entries, at most `slots.len()`.
    pub(super) count: usize,
    pub(super) total: Amount,
    pub(super) last_time: u64,
    pub(super) base: u64,
}

impl<'s> Ring<'s> {
    /// The ring of a block. `None` if the value is not a block or the header is from a torn read.
    #[inline]
    pub(super) fn open(slab: &'s Slab, block: Block, count_bits: u32) -> Option<Ring<'s>> {
        let (header, slots) = slab.words(block).split_at_checked(HEADER)?;
        let load = |index: usize| header[index].load(Ordering::Relaxed);
        let head_and_count = load(HEAD_AND_COUNT);
        let (head, count) = ((head_and_count >> 32) as usize, (head_and_count & 0xffff_ffff) as usize);
        let is_ring = head < slots.len() && 0 < count && count <= slots.len();
        is_ring.then(|| {
            let (total, last_time, base) = (load(TOTAL), load(LAST_TIME), load(BASE));
            Ring { header, slots, count_bits, head, count, total, last_time, base }
        })
    }

    /// A ring without entries in a block.
    pub(super) fn empty(
        slab: &'s Slab,
        block: Block,
        count_bits: u32,
        last_time: u64,
        base: u64,
    ) -> Option<Ring<'s>> {
        let (header, slots) = slab.words(block).split_at_checked(HEADER)?;
        Some(Ring { header, slots, count_bits, head: 0, count: 0, total: 0, last_time, base })
    }

    /// The slot of entry `index`, which is below `slots.len()`.
    #[inline]
    pub(super) fn slot(&self, index: usize) -> &'s AtomicU64 {
        let slot = self.head + index;
        &self.slots[if slot < self.slots.len() { slot } else { slot - self.slots.len() }]
    }

    /// Entry `index` as (instant, units).
    #[inline]
    pub(super) fn entry(&self, index: usize) -> (u64, Amount) {
        let entry = self.slot(index).load(Ordering::Relaxed);
        (self.base.saturating_add(entry >> self.count_bits), entry & max_units(self.count_bits))
    }

    pub(super) fn first(&self) -> (u64, Amount) {
        self.entry(0)
    }

    pub(super) fn last(&self) -> (u64, Amount) {
        self.entry(self.count.saturating_sub(1))
    }

    pub(super) fn entries(self) -> impl Iterator<Item = (u64, Amount)> {
        (0..self.count).map(move |index| self.entry(index))
    }

    /// Sets entry `index`. The instant is not before the base and not too late for it.
    pub(super) fn set_entry(&self, index: usize, at: u64, units: Amount) {
        let entry = at.saturating_sub(self.base) << self.count_bits | units;
        self.slot(index).store(entry, Ordering::Relaxed);
    }

    /// Adds entries for an amount at an instant. There is room for them.
    pub(super) fn append(&mut self, at: u64, amount: Amount) {
        let mut rest = amount;
        while rest > 0 {
            let units = rest.min(max_units(self.count_bits));
            self.set_entry(self.count, at, units);
            self.count += 1;
            rest -= units;
        }
        self.total = self.total.saturating_add(amount);
    }

    /// Removes entries with this many units from the front. Others remain.
    pub(super) fn drop_front(&mut self, entries: usize, units: Amount) {
        self.head += entries;
        if self.head >= self.slots.len() {
            self.head -= self.slots.len();
        }
        self.count -= entries;
        self.total = self.total.saturating_sub(units);
    }

    /// Changes the base of all entries.
    pub(super) fn rebase(&mut self, base: u64) {
        let former = *self;
        self.base = base;
        for index in 0..self.count {
            let (at, units) = former.entry(index);
            self.set_entry(index, at, units);
        }
    }

    pub(super) fn store_header(&self) {
        let store = |index: usize, word: u64| self.header[index].store(word, Ordering::Relaxed);
        store(HEAD_AND_COUNT, (self.head as u64) << 32 | self.count as u64);
        store(TOTAL, self.total);
        store(LAST_TIME, self.last_time);
        store(BASE, self.base);
    }
}

/// The most units of one entry.
#[inline]
pub(super) const fn max_units(count_bits: u32) -> Amount {
    (1 << count_bits) - 1
}

/// The class of the smallest block for this many entries, if one is large enough.
pub(super) fn class_for(entries: u64) -> Option<u32> {
    let units = entries.saturating_add(HEADER as u64).div_ceil(8);
    (entries <= MAX_ENTRIES).then(|| units.next_power_of_two().trailing_zeros())
}

/// Whether a block of this class suits so many entries: it has room for all and is not much too large. A log grows to the
/// next class when it is full, and shrinks when it would fill less than half of a smaller class.
pub(super) fn suits(class: u32, entries: u64) -> bool {
    class_for(entries).is_some_and(|smallest| (smallest..=roomy_class(entries)).contains(&class))
}

/// The class of the smallest block with room for twice as many entries.
pub(super) fn roomy_class(entries: u64) -> u32 {
    class_for(entries.saturating_mul(2)).unwrap_or(CLASSES - 1)
}

/// The block of a word, or none.
pub(super) fn block_of(word: u64) -> Block {
    if word & IN_BLOCK == 0 { Block::NONE } else { Block::from_bits(word & PAYLOAD) }
}

pub(super) fn word_of(block: Block) -> u64 {
    IN_BLOCK | block.bits()
}
