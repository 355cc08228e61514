//! The hottest clients: who asks most, found among any number of them with a memory that does not grow.
//!
//! ```text
//!   seen ──▶ known? ──yes──▶ one more
//!              │ no
//!              ├─ there is room ──▶ a new line
//!              └─ there is none ──▶ takes the line of whoever has least, and as its error what that one had
//! ```
//!
//! What is told of a client is what was certainly seen of it. What it may have done beyond that, before it had a line, is its error. Of
//! [`LINES`] lines at least those clients have one that make more than one of [`LINES`] requests, whatever the others do.
//!
//! A line is found by its hash and has a place in a heap, so that each call costs a few comparisons. Nothing is allocated but at
//! the beginning.

use std::fmt::Write as _;
use std::hash::BuildHasher as _;
use std::net::{Ipv4Addr, Ipv6Addr};

use arrayvec::ArrayVec;
use hashbrown::{DefaultHashBuilder, HashMap, HashTable};

use crate::client::{LONGEST_NAME, NAMED, V4, V6};

/// How many clients are watched.
pub const LINES: usize = 256;

/// The most bytes by which a client is told from others.
const LONGEST: usize = LONGEST_NAME + 1;

/// Who asked most, as one worker saw it.
#[derive(Debug, Clone)]
pub struct Hot {
    lines: Vec<Line>,
    /// The lines by how much they have, the least first: no line has more than those at twice its place and one or two beyond.
    heap: Vec<usize>,
    /// The lines by their clients.
    table: HashTable<usize>,
    hasher: DefaultHashBuilder,
    /// The most that somebody without a line may have been seen.
    unlisted: u64,
}

#[derive(Debug, Clone, Default)]
struct Line {
    client: ArrayVec<u8, LONGEST>,
    hash: u64,
    /// Where it is in the heap.
    place: usize,
    admitted: u64,
    refused: u64,
    error: u64,
}

impl Line {
    /// What was certainly seen.
    fn seen(&self) -> u64 {
        self.admitted + self.refused
    }

    /// What may have been seen at most.
    fn most(&self) -> u64 {
        self.seen() + self.error
    }

    /// Half of it, of which nothing is lost: who had more has no less afterwards.
    fn fade(&mut self) {
        let odd = self.admitted % 2 + self.refused % 2;
        self.error = (self.error + odd).div_ceil(2);
        self.admitted /= 2;
        self.refused /= 2;
    }
}

/// A client that asks much.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hottest {
    /// The bytes of its key.
    pub client: Vec<u8>,
    /// How many of its requests were let through.
    pub admitted: u64,
    /// How many were refused.
    pub refused: u64,
    /// How many more it may have made.
    pub error: u64,
}

impl Default for Hot {
    fn default() -> Hot {
        Hot::new()
    }
}

impl Hot {
    /// Nobody so far.
    pub fn new() -> Hot {
        Hot {
            lines: Vec::with_capacity(LINES),
            heap: Vec::with_capacity(LINES),
            // Twice as many, so that removing and adding for ever never needs more.
            table: HashTable::with_capacity(2 * LINES),
            hasher: DefaultHashBuilder::default(),
            unlisted: 0,
        }
    }

    /// A client made a request. Of a client with more bytes than any key has, the first count.
    pub fn seen(&mut self, client: &[u8], refused: bool) {
        let client = &client[..client.len().min(LONGEST)];
        let hash = self.hasher.hash_one(client);
        let known = self.table.find(hash, |line| self.lines[*line].client[..] == *client);
        let line = match known {
            Some(line) => *line,
            None => self.write_down(client, hash),
        };
        let line = &mut self.lines[line];
        line.admitted += u64::from(!refused);
        line.refused += u64::from(refused);
        let place = line.place;
        self.sink(place);
    }

    /// Halves everything, so that what is long ago weighs less and less. What cannot be halved is no longer certain.
    pub fn fade(&mut self) {
        self.unlisted = self.unlisted.div_ceil(2);
        let unlisted = &mut self.unlisted;
        self.lines.retain_mut(|line| {
            line.fade();
            let is_left = line.seen() > 0 || line.error > 1;
            if !is_left {
                *unlisted = line.error.max(*unlisted);
            }
            is_left
        });
        self.table.clear();
        self.heap.clear();
        for line in 0..self.lines.len() {
            self.list(line);
        }
    }

    /// How much is known.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Whether nobody was seen.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// A line for a client that has none.
    fn write_down(&mut self, client: &[u8], hash: u64) -> usize {
        let mut new = Line { hash, error: self.unlisted, ..Line::default() };
        // It was cut to what fits.
        new.client.extend(client.iter().copied());
        if self.lines.len() < LINES {
            let line = self.lines.len();
            self.lines.push(new);
            self.list(line);
            return line;
        }
        let line = self.heap[0];
        let old = &mut self.lines[line];
        if let Ok(entry) = self.table.find_entry(old.hash, |other| *other == line) {
            entry.remove();
        }
        self.unlisted = old.most().max(self.unlisted);
        new.error = self.unlisted;
        *old = new;
        let lines = &self.lines;
        self.table.insert_unique(hash, line, |other| lines[*other].hash);
        line
    }

    /// Puts a line that is new into the table and the heap.
    fn list(&mut self, line: usize) {
        let lines = &self.lines;
        self.table.insert_unique(lines[line].hash, line, |other| lines[*other].hash);
        let mut place = self.heap.len();
        self.heap.push(line);
        self.lines[line].place = place;
        while place > 0 {
            let above = (place - 1) / 2;
            if self.at(above) <= self.at(place) {
                break;
            }
            self.swap(above, place);
            place = above;
        }
    }

    /// Moves a line that has more than before down the heap.
    fn sink(&mut self, mut place: usize) {
        loop {
            let below = [2 * place + 1, 2 * place + 2].into_iter().filter(|below| *below < self.heap.len());
            let Some(least) = below.min_by_key(|below| self.at(*below)) else { return };
            if self.at(place) <= self.at(least) {
                return;
            }
            self.swap(place, least);
            place = least;
        }
    }

    /// What the line at a place of the heap has.
    fn at(&self, place: usize) -> u64 {
        self.lines[self.heap[place]].most()
    }

    fn swap(&mut self, one: usize, other: usize) {
        self.heap.swap(one, other);
        self.lines[self.heap[one]].place = one;
        self.lines[self.heap[other]].place = other;
    }
}

/// The clients of which most was seen by all of these together, at most so many, the hottest first.
pub fn hottest<'h>(all: impl IntoIterator<Item = &'h Hot>, most: usize) -> Vec<Hottest> {
    let mut unlisted = 0;
    // With what those who have a line for them do not know of those who have none.
    let mut sums: HashMap<&[u8], (Hottest, u64)> = HashMap::new();
    for hot in all {
        unlisted += hot.unlisted;
        for line in hot.lines.iter().filter(|line| line.seen() > 0) {
            let (sum, listed) = sums.entry(&line.client).or_default();
            sum.admitted += line.admitted;
            sum.refused += line.refused;
            sum.error += line.error;
            *listed += hot.unlisted;
        }
    }
    let mut hottest: Vec<Hottest> = sums
        .into_iter()
        .map(|(client, (sum, listed))| Hottest {
            client: client.to_vec(),
            error: sum.error + (unlisted - listed),
            ..sum
        })
        .collect();
    hottest.sort_unstable_by(|one, other| {
        let seen = |each: &Hottest| each.admitted + each.refused;
        seen(other).cmp(&seen(one)).then_with(|| one.client.cmp(&other.client))
    });
    hottest.truncate(most);
    hottest
}

/// The bytes of a client's key in words: `203.0.113.9`, `2001:db8::/64`, `name:ada`.
pub fn show_client(client: &[u8]) -> String {
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
        [NAMED, name @ ..] => format!("name:{}", plain(name)),
        other => format!("bytes:{}", plain(other)),
    }
}

/// Text without anything that moves a terminal.
fn plain(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for letter in String::from_utf8_lossy(bytes).chars() {
        if letter.is_control() {
            // A string takes everything.
            let _never_fails = write!(text, "\\x{:02x}", u32::from(letter));
        } else {
            text.push(letter);
        }
    }
    text
}
