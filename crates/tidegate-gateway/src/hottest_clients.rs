//! The hottest clients: a Space-Saving sketch with a fixed number of slots.
//!
//! ```text
//!   request ──▶ client tracked? ──yes──▶ increment
//!                  │ no
//!                  ├─ free slot ───▶ track
//!                  └─ no free slot ▶ replace the client with the lowest count; its count becomes the error of the new one
//! ```
//!
//! The count of a client is a lower bound. Its error is what it may have done before it was tracked. Every client that makes
//! more than one of [`CAPACITY`] requests is among the [`CAPACITY`] tracked clients.
//!
//! A hash table finds a slot and a heap finds the lowest count, so each update takes a few comparisons. All memory is
//! allocated at the start.

use std::fmt::Write as _;
use std::hash::BuildHasher as _;
use std::net::{Ipv4Addr, Ipv6Addr};

use arrayvec::ArrayVec;
use hashbrown::{DefaultHashBuilder, HashMap, HashTable};

use crate::client_key::{MAX_NAME_BYTES, NAMED, V4, V6};

/// The number of tracked clients.
pub const CAPACITY: usize = 256;

/// The maximum length of a key.
const MAX_KEY_BYTES: usize = MAX_NAME_BYTES + 1;

/// The sketch of one worker.
#[derive(Debug, Clone)]
pub struct TopClients {
    tracked: Vec<TrackedClient>,
    /// Slots as a binary min-heap by upper bound.
    heap: Vec<usize>,
    /// Slots by client.
    table: HashTable<usize>,
    hasher: DefaultHashBuilder,
    /// The maximum count that an untracked client may have.
    untracked_max: u64,
}

#[derive(Debug, Clone, Default)]
struct TrackedClient {
    client: ArrayVec<u8, MAX_KEY_BYTES>,
    hash: u64,
    /// The position in the heap.
    heap_index: usize,
    admitted: u64,
    refused: u64,
    error: u64,
}

impl TrackedClient {
    /// The count that is certain.
    fn observed(&self) -> u64 {
        self.admitted + self.refused
    }

    /// The highest possible count.
    fn upper_bound(&self) -> u64 {
        self.observed() + self.error
    }

    /// Halves the counts. Remainders move to the error, so that the order of upper bounds is kept.
    fn halve(&mut self) {
        let odd = self.admitted % 2 + self.refused % 2;
        self.error = (self.error + odd).div_ceil(2);
        self.admitted /= 2;
        self.refused /= 2;
    }
}

/// A client with its counts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HottestClient {
    /// The key of the client.
    pub client: Vec<u8>,
    /// The number of admitted requests.
    pub admitted: u64,
    /// The number of refused requests.
    pub refused: u64,
    /// How many more requests it may have made.
    pub error: u64,
}

impl Default for TopClients {
    fn default() -> TopClients {
        TopClients::new()
    }
}

impl TopClients {
    /// Creates an empty sketch.
    pub fn new() -> TopClients {
        TopClients {
            tracked: Vec::with_capacity(CAPACITY),
            heap: Vec::with_capacity(CAPACITY),
            // Twice the capacity, so that repeated removal and insertion never grows the table.
            table: HashTable::with_capacity(2 * CAPACITY),
            hasher: DefaultHashBuilder::default(),
            untracked_max: 0,
        }
    }

    /// Records a request of a client. Bytes beyond the maximum key length are ignored.
    pub fn record(&mut self, client: &[u8], refused: bool) {
        let client = &client[..client.len().min(MAX_KEY_BYTES)];
        let hash = self.hasher.hash_one(client);
        let known = self.table.find(hash, |slot| self.tracked[*slot].client[..] == *client);
        let slot = match known {
            Some(slot) => *slot,
            None => self.track(client, hash),
        };
        let slot = &mut self.tracked[slot];
        slot.admitted += u64::from(!refused);
        slot.refused += u64::from(refused);
        let heap_index = slot.heap_index;
        self.sift_down(heap_index);
    }

    /// Halves all counts, so that older requests weigh less.
    pub fn halve(&mut self) {
        self.untracked_max = self.untracked_max.div_ceil(2);
        let untracked_max = &mut self.untracked_max;
        self.tracked.retain_mut(|slot| {
            slot.halve();
            let is_kept = slot.observed() > 0 || slot.error > 1;
            if !is_kept {
                *untracked_max = slot.error.max(*untracked_max);
            }
            is_kept
        });
        self.table.clear();
        self.heap.clear();
        for slot in 0..self.tracked.len() {
            self.insert(slot);
        }
    }

    /// The number of tracked clients.
    pub fn len(&self) -> usize {
        self.tracked.len()
    }

    /// Whether no client is tracked.
    pub fn is_empty(&self) -> bool {
        self.tracked.is_empty()
    }

    /// Assigns a slot to a new client.
    fn track(&mut self, client: &[u8], hash: u64) -> usize {
        let mut new = TrackedClient { hash, error: self.untracked_max, ..TrackedClient::default() };
        // The caller has truncated the key, so it fits.
        new.client.extend(client.iter().copied());
        if self.tracked.len() < CAPACITY {
            let slot = self.tracked.len();
            self.tracked.push(new);
            self.insert(slot);
            return slot;
        }
        let slot = self.heap[0];
        let old = &mut self.tracked[slot];
        if let Ok(entry) = self.table.find_entry(old.hash, |other| *other == slot) {
            entry.remove();
        }
        self.untracked_max = old.upper_bound().max(self.untracked_max);
        new.error = self.untracked_max;
        *old = new;
        let tracked = &self.tracked;
        self.table.insert_unique(hash, slot, |other| tracked[*other].hash);
        slot
    }

    /// Adds a new slot to the table and the heap.
    fn insert(&mut self, slot: usize) {
        let tracked = &self.tracked;
        self.table.insert_unique(tracked[slot].hash, slot, |other| tracked[*other].hash);
        let mut heap_index = self.heap.len();
        self.heap.push(slot);
        self.tracked[slot].heap_index = heap_index;
        while heap_index > 0 {
            let above = (heap_index - 1) / 2;
            if self.count_at(above) <= self.count_at(heap_index) {
                break;
            }
            self.swap(above, heap_index);
            heap_index = above;
        }
    }

    /// Moves a slot with an increased count down the heap.
    fn sift_down(&mut self, mut heap_index: usize) {
        loop {
            let below =
                [2 * heap_index + 1, 2 * heap_index + 2].into_iter().filter(|below| *below < self.heap.len());
            let Some(least) = below.min_by_key(|below| self.count_at(*below)) else { return };
            if self.count_at(heap_index) <= self.count_at(least) {
                return;
            }
            self.swap(heap_index, least);
            heap_index = least;
        }
    }

    /// The upper bound of the slot at a heap position.
    fn count_at(&self, heap_index: usize) -> u64 {
        self.tracked[self.heap[heap_index]].upper_bound()
    }

    fn swap(&mut self, one: usize, other: usize) {
        self.heap.swap(one, other);
        self.tracked[self.heap[one]].heap_index = one;
        self.tracked[self.heap[other]].heap_index = other;
    }
}

/// Merges the sketches of all workers and returns up to `max` clients, hottest first.
pub fn merge_top_clients<'h>(
    all: impl IntoIterator<Item = &'h TopClients>,
    max: usize,
) -> Vec<HottestClient> {
    let mut untracked_max = 0;
    // Each client with its counts, and with the sum of `untracked_max` of the sketches that track it.
    let mut sums: HashMap<&[u8], (HottestClient, u64)> = HashMap::new();
    for sketch in all {
        untracked_max += sketch.untracked_max;
        for slot in sketch.tracked.iter().filter(|slot| slot.observed() > 0) {
            let (sum, tracked_error) = sums.entry(&slot.client).or_default();
            sum.admitted += slot.admitted;
            sum.refused += slot.refused;
            sum.error += slot.error;
            *tracked_error += sketch.untracked_max;
        }
    }
    let mut hottest: Vec<HottestClient> = sums
        .into_iter()
        .map(|(client, (sum, tracked_error))| HottestClient {
            client: client.to_vec(),
            error: sum.error + (untracked_max - tracked_error),
            ..sum
        })
        .collect();
    hottest.sort_unstable_by(|one, other| {
        let observed = |each: &HottestClient| each.admitted + each.refused;
        observed(other).cmp(&observed(one)).then_with(|| one.client.cmp(&other.client))
    });
    hottest.truncate(max);
    hottest
}

/// Formats a client key: `203.0.113.9`, `2001:db8::/64`, `name:ada`.
pub fn format_client(client: &[u8]) -> String {
    match client {
        [V4, octets @ ..] if octets.len() == 4 => {
            let mut address = [0; 4];
            address.copy_from_slice(octets);
            Ipv4Addr::from(address).to_string()
        }
        [V6, octets @ ..] if octets.len() == 8 => {
            let mut address = [0; 16];
            address[..8].copy_from_slice(octets);
            format!("{}/64", Ipv6Addr::from(address))
        }
        [NAMED, name @ ..] => format!("name:{}", escape_controls(name)),
        other => format!("bytes:{}", escape_controls(other)),
    }
}

/// Escapes control characters.
fn escape_controls(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for letter in String::from_utf8_lossy(bytes).chars() {
        if letter.is_control() {
            // Writing to a `String` never fails.
            let _never_fails = write!(text, "\\x{:02x}", u32::from(letter));
        } else {
            text.push(letter);
        }
    }
    text
}
