//! Refusals in the log: a sample of who was refused by what, however many there are.
//!
//! Doors tell every refusal. One for each limit and second becomes a line of the log, and [`MOST_LINES`] in all; the rest is counted, and
//! the limit's next line says how many there were. So an operator sees at once which limit refuses whom, and a flood of refusals,
//! which is when a limiter earns its keep, does not become a flood of lines.
//!
//! Decided: what is not logged costs a hash of the limit's id and an addition. Time is the instant of the decision, so there is no
//! clock to read; there is no lock, and nothing is allocated.
//!
//! Decided: [`TRACKED_LIMITS`] limits have a count of their own. Those beyond share one, and so do the described buckets of
//! `CL.THROTTLE`, which come and go with what clients say.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::{Tick, Timestamp};

use crate::metrics::DoorName;
use crate::resp::described_buckets::{self, RESERVED};

/// The most lines in a second, all limits together.
pub const MOST_LINES: u64 = 10;

/// The most letters of a key that are told.
pub const LONGEST_KEY: usize = 64;

/// How many limits have a count of their own.
pub const TRACKED_LIMITS: usize = 4096;

/// How many places are looked at for a limit before it has to share.
const PROBES: usize = 8;

/// A limit that had no line for so many seconds gives its place to another.
const STALE: u64 = 3600;

/// The bits of [`Refusals::lines`] that count.
const COUNT_BITS: u32 = 8;

/// Somebody was refused.
#[derive(Debug, Clone, Copy)]
pub struct Refusal<'a> {
    /// The limit that refused.
    pub limit: &'a str,
    /// The item of it that binds.
    pub item: &'a str,
    /// Who was refused.
    pub key: Option<&'a [u8]>,
    /// Where they came in.
    pub door: DoorName,
    /// When it was decided.
    pub at: Timestamp,
}

/// A line for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line<'a> {
    /// The limit that refused.
    pub limit: &'a str,
    /// The item of it that binds.
    pub item: &'a str,
    /// Who was refused, with escapes for what cannot be printed, and not for longer than [`LONGEST_KEY`] letters.
    pub key: Option<String>,
    /// Where they came in.
    pub door: DoorName,
    /// How many refusals of this limit had no line since its last one.
    pub left_out: u64,
}

/// Where lines go.
pub trait Sink: Send + Sync {
    /// One line.
    fn line(&self, line: &Line<'_>);
}

/// Writes lines as `tracing` events of level info, called `refused`.
#[derive(Debug, Clone, Copy, Default)]
struct Log;

impl Sink for Log {
    fn line(&self, line: &Line<'_>) {
        let Line { limit, item, key, door, left_out } = line;
        tracing::info!(limit, item, key = key.as_deref(), door = door.word(), left_out, "refused");
    }
}

/// Chooses which refusals are told.
pub struct Refusals {
    sink: Box<dyn Sink>,
    hasher: RandomState,
    ticks_per_second: u64,
    /// The latest second with lines, and in the lowest bits how many it had.
    lines: AtomicU64,
    slots: Box<[Slot]>,
    /// Of all limits that have none of their own.
    shared: Slot,
}

/// What is known of the refusals of one limit.
#[derive(Debug, Default)]
struct Slot {
    /// Which limit it is; 0 if none.
    owner: AtomicU64,
    /// The second of its last line.
    told: AtomicU64,
    /// How many refusals had no line since.
    left_out: AtomicU64,
}

impl Refusals {
    /// For decisions of a store with this tick. Lines become `tracing` events.
    pub fn new(tick: Tick) -> Refusals {
        Refusals::to(Log, tick)
    }

    /// The same, with lines that go elsewhere.
    pub fn to(sink: impl Sink + 'static, tick: Tick) -> Refusals {
        Refusals {
            sink: Box::new(sink),
            hasher: RandomState::new(),
            ticks_per_second: tick.span(Duration::from_secs(1)).ticks().max(1),
            lines: AtomicU64::new(0),
            slots: (0..TRACKED_LIMITS).map(|_| Slot::default()).collect(),
            shared: Slot::default(),
        }
    }

    /// Somebody was refused.
    #[inline]
    pub fn refused(&self, refusal: Refusal<'_>) {
        // No second is 0, which is when everybody's last line was.
        let second = refusal.at.ticks() / self.ticks_per_second + 1;
        let slot = self.slot(refusal.limit, second);
        let told = slot.told.load(Ordering::Relaxed);
        if second <= told || !self.has_lines_left(second) || !self.tell(slot, told, second, refusal) {
            slot.left_out.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Tells it, unless another thread is faster; whether it was told.
    #[cold]
    fn tell(&self, slot: &Slot, told: u64, second: u64, refusal: Refusal<'_>) -> bool {
        let claimed = slot.told.compare_exchange(told, second, Ordering::Relaxed, Ordering::Relaxed);
        let is_told = claimed.is_ok() && self.take_line(second);
        if is_told {
            let left_out = slot.left_out.swap(0, Ordering::Relaxed);
            let Refusal { limit, item, key, door, at: _ } = refusal;
            self.sink.line(&Line { limit, item, key: key.map(legible), door, left_out });
        }
        is_told
    }

    fn has_lines_left(&self, second: u64) -> bool {
        after_one_more(self.lines.load(Ordering::Relaxed), second).is_some()
    }

    fn take_line(&self, second: u64) -> bool {
        let one_more = |lines| after_one_more(lines, second);
        self.lines.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
    }

    fn slot(&self, limit: &str, now: u64) -> &Slot {
        let limit = if described_buckets::is_reserved(limit) { RESERVED } else { limit };
        let owner = self.hasher.hash_one(limit).max(1);
        let first = usize::try_from(owner % TRACKED_LIMITS as u64).unwrap_or_default();
        let near = || (first..first + PROBES).map(|place| &self.slots[place % TRACKED_LIMITS]);
        near()
            .find(|slot| slot.owner.load(Ordering::Relaxed) == owner)
            .or_else(|| near().find(|slot| slot.move_in(owner, now)))
            .unwrap_or(&self.shared)
    }
}

impl fmt::Debug for Refusals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refusals").field("lines", &self.lines).finish_non_exhaustive()
    }
}

impl Slot {
    /// Becomes this limit's, if it is nobody's or its owner was not heard of for long.
    fn move_in(&self, owner: u64, now: u64) -> bool {
        let former = self.owner.load(Ordering::Relaxed);
        let is_free = former == 0 || self.told.load(Ordering::Relaxed).saturating_add(STALE) < now;
        if !is_free {
            return false;
        }
        let moved = self.owner.compare_exchange(former, owner, Ordering::Relaxed, Ordering::Relaxed);
        if moved.is_ok() && former != 0 {
            self.left_out.store(0, Ordering::Relaxed);
        }
        // Another thread may have done the same for the same limit.
        moved.map_or_else(|now| now == owner, |_| true)
    }
}

/// What [`Refusals::lines`] is after one more line in this second, if it may have one. A thread that comes late counts in the latest
/// second, so that two seconds that overlap do not have more lines than one.
fn after_one_more(lines: u64, second: u64) -> Option<u64> {
    let (latest, count) = (lines >> COUNT_BITS, lines & ((1 << COUNT_BITS) - 1));
    if second > latest { Some(second << COUNT_BITS | 1) } else { (count < MOST_LINES).then_some(lines + 1) }
}

/// A key as people can read it, on one line.
fn legible(key: &[u8]) -> String {
    let mut said = String::new();
    let mut letters = 0;
    for chunk in key.utf8_chunks() {
        let valid = chunk.valid().chars().map(|letter| letter.escape_debug().to_string());
        let invalid = chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}"));
        for letter in valid.chain(invalid) {
            if letters == LONGEST_KEY {
                said.push('…');
                return said;
            }
            said.push_str(&letter);
            letters += 1;
        }
    }
    said
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex, PoisonError};

    use super::*;

    /// Limit, key, door, left out.
    type Told = (String, Option<String>, DoorName, u64);

    #[derive(Clone, Default)]
    struct Paper(Arc<Mutex<Vec<Told>>>);

    impl Sink for Paper {
        fn line(&self, line: &Line<'_>) {
            assert_eq!(line.item, "key/total");
            let told = (line.limit.to_owned(), line.key.clone(), line.door, line.left_out);
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(told);
        }
    }

    impl Paper {
        fn take(&self) -> Vec<Told> {
            std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
        }

        /// Which limits were told, and how many refusals each left out.
        fn limits(&self) -> Vec<(String, u64)> {
            self.take().into_iter().map(|(limit, _, _, left_out)| (limit, left_out)).collect()
        }
    }

    fn refusals() -> (Refusals, Paper) {
        let paper = Paper::default();
        (Refusals::to(paper.clone(), Tick::NANOSECOND), paper)
    }

    fn refuse(refusals: &Refusals, limit: &str, milliseconds: u64) {
        let at = Timestamp::from_ticks(milliseconds * 1_000_000);
        let key = Some(&b"ada"[..]);
        refusals.refused(Refusal { limit, item: "key/total", key, door: DoorName::Resp, at });
    }

    fn lines(expected: &[(&str, u64)]) -> Vec<(String, u64)> {
        expected.iter().map(|(limit, left_out)| ((*limit).to_owned(), *left_out)).collect()
    }

    #[test]
    fn a_limit_has_one_line_in_a_second_and_the_next_says_what_was_left_out() {
        let (refusals, paper) = refusals();
        for milliseconds in [0, 1, 999] {
            refuse(&refusals, "a", milliseconds);
        }
        refuse(&refusals, "b", 999);
        assert_eq!(
            paper.take(),
            [
                ("a".to_owned(), Some("ada".to_owned()), DoorName::Resp, 0),
                ("b".to_owned(), Some("ada".to_owned()), DoorName::Resp, 0),
            ]
        );
        refuse(&refusals, "a", 1_000);
        refuse(&refusals, "a", 999);
        refuse(&refusals, "b", 7_000);
        refuse(&refusals, "a", 8_000);
        assert_eq!(paper.limits(), lines(&[("a", 2), ("b", 0), ("a", 1)]));
    }

    #[test]
    fn all_limits_together_have_so_many_lines_in_a_second() {
        let (refusals, paper) = refusals();
        for index in 0..MOST_LINES + 2 {
            refuse(&refusals, &index.to_string(), 500);
            refuse(&refusals, &index.to_string(), 500);
        }
        assert_eq!(paper.limits().len() as u64, MOST_LINES);
        // A thread that is late does not get a second of its own.
        refuse(&refusals, "late", 1_000);
        refuse(&refusals, "11", 0);
        assert_eq!(paper.limits(), lines(&[("late", 0), ("11", 2)]));
        for index in 0..2 * MOST_LINES {
            refuse(&refusals, &format!("other {index}"), 1_000 * (index % 2));
        }
        assert_eq!(paper.limits().len() as u64, MOST_LINES - 2);
    }

    #[test]
    fn threads_lose_no_refusal() {
        const EACH: u64 = 20_000;
        let (refusals, paper) = refusals();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..EACH).for_each(|index| refuse(&refusals, "a", index / 5)));
            }
        });
        refuse(&refusals, "a", 1_000_000);
        let told = paper.limits();
        assert!(told.len() <= 5, "four seconds and one more: {told:?}");
        let in_all: u64 = told.iter().map(|(_, left_out)| left_out + 1).sum();
        assert_eq!(in_all, 4 * EACH + 1);
    }

    #[test]
    fn described_buckets_are_one_limit_here() {
        let (refusals, paper) = refusals();
        for rate in 0..5 {
            refuse(&refusals, &format!("cl.throttle/{rate}/1/60"), 0);
        }
        refuse(&refusals, "cl.throttle/9/1/60", 1_000);
        assert_eq!(paper.limits(), lines(&[("cl.throttle/0/1/60", 0), ("cl.throttle/9/1/60", 4)]));
    }

    #[test]
    fn too_many_limits_share_and_nothing_is_lost() {
        let (refusals, paper) = refusals();
        let crowd = 4 * TRACKED_LIMITS;
        for index in 0..crowd {
            refuse(&refusals, &index.to_string(), index as u64);
        }
        let told = paper.limits();
        assert!(told.len() as u64 <= MOST_LINES * (crowd as u64 / 1_000 + 1), "{}", told.len());
        let shared = refusals.shared.left_out.load(Ordering::Relaxed);
        assert!(shared > 0, "some had to share");
        // When those of long ago are forgotten, there is room again.
        let later = (STALE + 100) * 1_000;
        for index in 0..100 {
            refuse(&refusals, &format!("new {index}"), later);
        }
        assert_eq!(refusals.shared.left_out.load(Ordering::Relaxed), shared);
        assert!(paper.limits().iter().all(|(limit, left_out)| limit.starts_with("new") && *left_out == 0));
    }

    #[test]
    fn keys_are_told_on_one_line_and_not_for_long() {
        assert_eq!(legible(b"ada"), "ada");
        assert_eq!(legible("新年".as_bytes()), "新年");
        assert_eq!(legible(b"a\nb\x1b[31m\xff\xfe\0"), "a\\nb\\u{1b}[31m\\xff\\xfe\\0");
        assert_eq!(legible("\u{202e}x".as_bytes()), "\\u{202e}x");
        let long = "é".repeat(LONGEST_KEY);
        assert_eq!(legible(long.as_bytes()), long);
        assert_eq!(legible(format!("{long}é").as_bytes()), format!("{long}…"));
    }
}
