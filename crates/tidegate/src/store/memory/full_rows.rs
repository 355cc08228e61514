//! Rows in the core's form, for rows that do not fit words.
//!
//! A key with an override, a row with open holds, leases or refunds, and a row of more items than a line has words for are
//! stored as a core [`Row`] in a slot of this slab. The row's words hold the index of the slot. The control word of the
//! row's line guards the slot. The mutex of the slot is never contended: it only makes the access safe.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use tidegate_core::{Per, Row, Timestamp};

use super::memory_budget::Budget;

/// Slots in a chunk.
const CHUNK: usize = 32;
/// Chunks in the first page of the directory. Each page has twice as many as the one before.
const FIRST_PAGE: usize = 8;
/// Pages in the directory. They name more slots than 32 bits can.
const PAGES: usize = 24;
/// Slots that one search for a held row visits.
const MOST_SEARCHED: usize = 1 << 10;
/// The memory of a chunk, with what the allocator adds.
pub(super) const CHUNK_BYTES: usize = CHUNK * size_of::<Mutex<Row>>() + 16;

type Chunk = Box<[Mutex<Row>]>;
type Page = Box<[OnceLock<Chunk>]>;

/// The rows of one limit that do not fit words.
pub(super) struct FullRows {
    pages: [OnceLock<Page>; PAGES],
    free: Mutex<FreeSlots>,
    /// The number of rows of keys with open holds or leases, including expired leases.
    held: AtomicUsize,
    /// The slot of the row of all keys, if it is stored in full.
    all: AtomicUsize,
    /// The slot of a row that was held when it was last looked at.
    last_held: AtomicUsize,
}

/// The free slots.
#[derive(Default)]
struct FreeSlots {
    list: Vec<u32>,
    chunks: usize,
}

/// The index of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FullSlot(pub(super) u32);

impl FullRows {
    pub(super) fn new() -> FullRows {
        FullRows {
            pages: [const { OnceLock::new() }; PAGES],
            free: Mutex::default(),
            held: AtomicUsize::new(0),
            all: AtomicUsize::new(usize::MAX),
            last_held: AtomicUsize::new(0),
        }
    }

    /// Stores a row in a free slot.
    pub(super) fn insert(&self, per: Per, row: Row, budget: &Budget) -> FullSlot {
        let slot = {
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            if free.list.is_empty() {
                let first = free.chunks * CHUNK;
                self.add_chunk(free.chunks);
                free.chunks += 1;
                budget.take_anyway(CHUNK_BYTES);
                free.list.extend((first..first + CHUNK).rev().map(|index| {
                    u32::try_from(index).expect("the directory has fewer slots than 32 bits can name")
                }));
            }
            FullSlot(free.list.pop().expect("a chunk was added"))
        };
        self.put(per, slot, row, budget);
        slot
    }

    /// Whether another row can be stored without another chunk.
    pub(super) fn has_free_slot(&self) -> bool {
        !self.free.lock().unwrap_or_else(PoisonError::into_inner).list.is_empty()
    }

    /// Takes a row out. Its slot stays reserved until [`FullRows::put`] or [`FullRows::free`].
    pub(super) fn take(&self, per: Per, slot: FullSlot, budget: &Budget) -> Row {
        let row = std::mem::take(&mut *self.slot(slot));
        budget.give(heap_bytes(&row));
        if per == Per::Key && row.is_held(Timestamp::EPOCH) {
            self.held.fetch_sub(1, Ordering::Relaxed);
        }
        row
    }

    /// Puts a row back.
    pub(super) fn put(&self, per: Per, slot: FullSlot, row: Row, budget: &Budget) {
        budget.take_anyway(heap_bytes(&row));
        if per == Per::Key && row.is_held(Timestamp::EPOCH) {
            self.held.fetch_add(1, Ordering::Relaxed);
        }
        let index = slot.0 as usize;
        if per == Per::All {
            self.all.store(index, Ordering::Relaxed);
        } else if self.all.load(Ordering::Relaxed) == index {
            // The slot was given back and belongs to a key now.
            self.all.store(usize::MAX, Ordering::Relaxed);
        }
        *self.slot(slot) = row;
    }

    /// Frees a slot whose row was taken out.
    pub(super) fn free(&self, slot: FullSlot) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).list.push(slot.0);
    }

    /// Looks at a row.
    pub(super) fn look<T>(&self, slot: FullSlot, look: impl FnOnce(&Row) -> T) -> T {
        look(&self.slot(slot))
    }

    /// Whether a row of a key has open holds or leases at `now`. In a large slab that is only searched in part, a row with an
    /// expired lease may count.
    pub(super) fn is_held(&self, now: Timestamp) -> bool {
        let slots = CHUNK * self.free.lock().unwrap_or_else(PoisonError::into_inner).chunks;
        if self.held.load(Ordering::Relaxed) == 0 || slots == 0 {
            return false;
        }
        let first = self.last_held.load(Ordering::Relaxed);
        for step in 0..slots.min(MOST_SEARCHED) {
            let index = (first + step) % slots;
            let slot = FullSlot(u32::try_from(index).expect("slots have 32 bits"));
            if index != self.all.load(Ordering::Relaxed) && self.look(slot, |row| row.is_held(now)) {
                self.last_held.store(index, Ordering::Relaxed);
                return true;
            }
        }
        self.last_held.store(first + MOST_SEARCHED.min(slots), Ordering::Relaxed);
        slots > MOST_SEARCHED
    }

    fn add_chunk(&self, index: usize) {
        let (page, place) = locate(index);
        let chunks = || (0..FIRST_PAGE << page).map(|_| OnceLock::new()).collect();
        self.pages[page].get_or_init(chunks)[place]
            .get_or_init(|| (0..CHUNK).map(|_| Mutex::default()).collect());
    }

    fn slot(&self, slot: FullSlot) -> MutexGuard<'_, Row> {
        let index = slot.0 as usize;
        let (page, place) = locate(index / CHUNK);
        let chunk = self.pages[page].get().and_then(|page| page[place].get());
        let slots = chunk.expect("slots are given out after their chunk was added");
        slots[index % CHUNK].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The page of a chunk, and its place there.
fn locate(chunk: usize) -> (usize, usize) {
    let page = (chunk / FIRST_PAGE + 1).ilog2() as usize;
    (page, chunk - FIRST_PAGE * ((1 << page) - 1))
}

/// The heap memory of a row, about, in bytes.
fn heap_bytes(row: &Row) -> usize {
    row.memory_bytes() - size_of::<Row>()
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use tidegate_core::State;
    use tidegate_core::law::lifetime_total::TotalCount;

    use super::*;

    fn row(holds: u32) -> Row {
        let mut row = Row::of(State::LifetimeTotal(TotalCount::default()));
        (0..holds).for_each(|_| row.add_hold());
        row
    }

    #[test]
    fn held_row_in_former_slot_of_shared_row_is_found() {
        let (rows, budget, now) = (FullRows::new(), Budget::new(1 << 20), Timestamp::EPOCH);
        let shared = rows.insert(Per::All, row(1), &budget);
        assert!(!rows.is_held(now), "the row of all keys frees no key's place");
        rows.take(Per::All, shared, &budget);
        rows.free(shared);
        let own = rows.insert(Per::Key, row(1), &budget);
        assert_eq!(own, shared, "the slot is used again");
        assert!(rows.is_held(now));
    }

    #[test]
    fn released_row_is_not_held() {
        let (rows, budget, now) = (FullRows::new(), Budget::new(1 << 20), Timestamp::EPOCH);
        let slots: Vec<FullSlot> = (0..100).map(|_| rows.insert(Per::Key, row(1), &budget)).collect();
        for slot in slots {
            assert!(rows.is_held(now));
            rows.take(Per::Key, slot, &budget);
            rows.put(Per::Key, slot, row(0), &budget);
        }
        assert!(!rows.is_held(now));
    }
}
