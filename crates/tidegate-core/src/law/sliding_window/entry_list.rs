//! A list of log entries that grows at its end and shrinks at its front.
//!
//! Most keys have one or two charges in their window. Those entries are stored inline, without an allocation or a second
//! cache miss. Longer lists are on the heap. Expired entries are skipped there and removed once they outnumber the rest,
//! which is cheaper than a move for each entry. The list always derefs to one contiguous slice.

use std::ops::{Deref, DerefMut};

use super::LogEntry;

/// The inline entries. Two take no more space than a `Vec`.
const INLINE_CAPACITY: usize = 2;

/// Log entries, oldest first.
#[derive(Debug, Clone)]
pub(super) enum EntryList {
    Inline {
        length: u8,
        entries: [LogEntry; INLINE_CAPACITY],
    },
    Heap {
        /// The number of removed entries at the front.
        skipped: usize,
        entries: Vec<LogEntry>,
    },
}

impl Default for EntryList {
    fn default() -> EntryList {
        EntryList::Inline { length: 0, entries: [LogEntry::default(); INLINE_CAPACITY] }
    }
}

impl Deref for EntryList {
    type Target = [LogEntry];

    #[inline]
    fn deref(&self) -> &[LogEntry] {
        match self {
            EntryList::Inline { length, entries } => &entries[..usize::from(*length)],
            EntryList::Heap { skipped, entries } => &entries[*skipped..],
        }
    }
}

impl DerefMut for EntryList {
    #[inline]
    fn deref_mut(&mut self) -> &mut [LogEntry] {
        match self {
            EntryList::Inline { length, entries } => &mut entries[..usize::from(*length)],
            EntryList::Heap { skipped, entries } => &mut entries[*skipped..],
        }
    }
}

impl EntryList {
    /// Adds an entry at the end.
    pub(super) fn push(&mut self, entry: LogEntry) {
        match self {
            EntryList::Inline { length, entries } if usize::from(*length) < INLINE_CAPACITY => {
                entries[usize::from(*length)] = entry;
                *length += 1;
            }
            EntryList::Inline { entries, .. } => {
                let mut heap = Vec::with_capacity(2 * INLINE_CAPACITY);
                heap.extend_from_slice(entries);
                heap.push(entry);
                *self = EntryList::Heap { skipped: 0, entries: heap };
            }
            EntryList::Heap { entries, .. } => entries.push(entry),
        }
    }

    /// Removes all entries and keeps the allocation.
    pub(super) fn clear(&mut self) {
        match self {
            EntryList::Inline { length, .. } => *length = 0,
            EntryList::Heap { skipped, entries } => {
                *skipped = 0;
                entries.clear();
            }
        }
    }

    /// Removes entries from the front.
    pub(super) fn drop_front(&mut self, count: usize) {
        match self {
            EntryList::Inline { length, entries } => {
                entries.copy_within(count..usize::from(*length), 0);
                *length -= u8::try_from(count).expect("no more than there are");
            }
            EntryList::Heap { skipped, entries } => {
                *skipped += count;
                if *skipped == entries.len() {
                    *self = EntryList::default();
                } else if *skipped > entries.len() / 2 {
                    entries.drain(..*skipped);
                    *skipped = 0;
                }
            }
        }
    }

    /// Removes one entry.
    pub(super) fn remove(&mut self, index: usize) {
        match self {
            EntryList::Inline { length, entries } => {
                entries.copy_within(index + 1..usize::from(*length), index);
                *length -= 1;
            }
            EntryList::Heap { skipped, entries } => {
                entries.remove(*skipped + index);
                if *skipped == entries.len() {
                    *self = EntryList::default();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Timestamp;

    /// Random operations give the same entries as a expected vector.
    #[test]
    fn random_operations_match_a_vector() {
        let (mut list, mut expected) = (EntryList::default(), Vec::new());
        let mut random = 1u64;
        for step in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let pick = usize::try_from(random >> 40).expect("24 bits");
            match pick % 5 {
                _ if expected.is_empty() => {
                    list.push(entry(step));
                    expected.push(entry(step));
                }
                0..=2 => {
                    list.push(entry(step));
                    expected.push(entry(step));
                }
                3 => {
                    let count = pick % (expected.len() + 1);
                    list.drop_front(count);
                    expected.drain(..count);
                }
                _ => {
                    list.remove(pick % expected.len());
                    expected.remove(pick % expected.len());
                }
            }
            assert_eq!(*list, *expected, "after step {step}");
        }
    }

    fn entry(step: u64) -> LogEntry {
        LogEntry { at: Timestamp::from_ticks(step), sum: step }
    }
}
