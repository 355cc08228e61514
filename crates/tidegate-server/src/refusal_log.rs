//! A rate-limited log of refusals.
//!
//! Every refusal is recorded. Per second one per limit is logged, and at most [`MAX_LINES_PER_SECOND`] in total. The others are counted,
//! and the limit's next line contains their number. So operators see which limit refuses which keys, and a flood of refusals does not
//! become a flood of log lines.
//!
//! A refusal that is not logged costs a hash of the limit id and an addition: no clock reading, no lock, no allocation. The time is
//! that of the decision.
//!
//! [`TRACKED_LIMITS`] limits have their own slot. Further limits share one, and so do the described buckets of `CL.THROTTLE`, which clients
//! create.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::model::{Tick, Timestamp};

use crate::metrics::Protocol;
use crate::resp::described_buckets::{self, RESERVED_PREFIX};

/// The most log lines per second, all limits together.
pub const MAX_LINES_PER_SECOND: u64 = 10;

/// The most characters of a key in a log line.
pub const MAX_KEY_CHARS: usize = 64;

/// Number of limits with their own slot.
pub const TRACKED_LIMITS: usize = 4096;

/// Slots probed for a limit before it uses the shared one.
const PROBES: usize = 8;

/// Seconds without a log line after which a slot may be reused.
const STALE: u64 = 3600;

/// Bits of [`RefusalLog::lines`] that hold the count.
const COUNT_BITS: u32 = 8;

/// A refusal.
#[derive(Debug, Clone, Copy)]
pub struct RefusalEvent<'a> {
    /// The limit that refused.
    pub limit: &'a str,
    /// The binding item.
    /// The item of it that binds.
    pub item: &'a str,
    /// The refused key.
    pub key: Option<&'a [u8]>,
    /// The protocol of the request.
    pub protocol: Protocol,
    /// When it was decided.
    pub at: Timestamp,
}

/// A log line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusalLine<'a> {
    /// The limit that refused.
    pub limit: &'a str,
    /// The binding item.
    /// The item of it that binds.
    pub item: &'a str,
    /// The refused key with escapes, cut to [`MAX_KEY_CHARS`] characters.
    pub key: Option<String>,
    /// The protocol of the request.
    pub protocol: Protocol,
    /// Refusals of this limit since its last line that were not logged.
    pub left_out: u64,
}

/// Receives log lines.
pub trait RefusalSink: Send + Sync {
    /// Writes one line.
    fn line(&self, line: &RefusalLine<'_>);
}

/// Writes lines as `tracing` events of level info with the message `refused`.
#[derive(Debug, Clone, Copy, Default)]
struct TracingSink;

impl RefusalSink for TracingSink {
    fn line(&self, line: &RefusalLine<'_>) {
        let RefusalLine { limit, item, key, protocol, left_out } = line;
        tracing::info!(limit, item, key = key.as_deref(), door = protocol.word(), left_out, "refused");
    }
}

/// Selects the refusals to log.
pub struct RefusalLog {
    sink: Box<dyn RefusalSink>,
    hasher: RandomState,
    ticks_per_second: u64,
    /// The latest second with lines, and in the low bits their number.
    lines: AtomicU64,
    slots: Box<[LimitSlot]>,
    /// Shared by limits without a slot.
    shared: LimitSlot,
}

/// The log state of one limit.
#[derive(Debug, Default)]
struct LimitSlot {
    /// Hash of the limit id; 0 if free.
    owner: AtomicU64,
    /// Second of the last line.
    last_line_second: AtomicU64,
    /// Refusals since then that were not logged.
    left_out: AtomicU64,
}

impl RefusalLog {
    /// A log for decisions of a store with this tick; lines become `tracing` events.
    pub fn new(tick: Tick) -> RefusalLog {
        RefusalLog::with_sink(TracingSink, tick)
    }

    /// The same with another sink.
    pub fn with_sink(sink: impl RefusalSink + 'static, tick: Tick) -> RefusalLog {
        RefusalLog {
            sink: Box::new(sink),
            hasher: RandomState::new(),
            ticks_per_second: tick.span(Duration::from_secs(1)).ticks().max(1),
            lines: AtomicU64::new(0),
            slots: (0..TRACKED_LIMITS).map(|_| LimitSlot::default()).collect(),
            shared: LimitSlot::default(),
        }
    }

    /// Records a refusal.
    #[inline]
    pub fn record(&self, refusal: RefusalEvent<'_>) {
        // Seconds start at 1; 0 means no line yet.
        let second = refusal.at.ticks() / self.ticks_per_second + 1;
        let slot = self.slot(refusal.limit, second);
        let last = slot.last_line_second.load(Ordering::Relaxed);
        if second <= last || !self.has_lines_left(second) || !self.write_line(slot, last, second, refusal) {
            slot.left_out.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Logs a refusal unless another thread claimed this second. Returns whether it was logged.
    #[cold]
    fn write_line(&self, slot: &LimitSlot, last: u64, second: u64, refusal: RefusalEvent<'_>) -> bool {
        let claimed =
            slot.last_line_second.compare_exchange(last, second, Ordering::Relaxed, Ordering::Relaxed);
        let is_written = claimed.is_ok() && self.take_line(second);
        if is_written {
            let left_out = slot.left_out.swap(0, Ordering::Relaxed);
            let RefusalEvent { limit, item, key, protocol, at: _ } = refusal;
            self.sink.line(&RefusalLine { limit, item, key: key.map(printable), protocol, left_out });
        }
        is_written
    }

    fn has_lines_left(&self, second: u64) -> bool {
        after_line(self.lines.load(Ordering::Relaxed), second).is_some()
    }

    fn take_line(&self, second: u64) -> bool {
        let one_more = |lines| after_line(lines, second);
        self.lines.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
    }

    fn slot(&self, limit: &str, now: u64) -> &LimitSlot {
        let limit = if described_buckets::is_reserved(limit) { RESERVED_PREFIX } else { limit };
        let owner = self.hasher.hash_one(limit).max(1);
        let first = usize::try_from(owner % TRACKED_LIMITS as u64).unwrap_or_default();
        let near = || (first..first + PROBES).map(|place| &self.slots[place % TRACKED_LIMITS]);
        near()
            .find(|slot| slot.owner.load(Ordering::Relaxed) == owner)
            .or_else(|| near().find(|slot| slot.claim(owner, now)))
            .unwrap_or(&self.shared)
    }
}

impl fmt::Debug for RefusalLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RefusalLog").field("lines", &self.lines).finish_non_exhaustive()
    }
}

impl LimitSlot {
    /// Claims the slot for a limit if it is free or stale.
    fn claim(&self, owner: u64, now: u64) -> bool {
        let former = self.owner.load(Ordering::Relaxed);
        let is_free =
            former == 0 || self.last_line_second.load(Ordering::Relaxed).saturating_add(STALE) < now;
        if !is_free {
            return false;
        }
        let moved = self.owner.compare_exchange(former, owner, Ordering::Relaxed, Ordering::Relaxed);
        if moved.is_ok() && former != 0 {
            self.left_out.store(0, Ordering::Relaxed);
        }
        // Another thread may have claimed the slot for the same limit.
        moved.map_or_else(|now| now == owner, |_| true)
    }
}

/// [`RefusalLog::lines`] after one more line in this second; `None` at the bound. A late thread counts in the latest second, so that
/// overlapping seconds do not have more lines than one.
fn after_line(lines: u64, second: u64) -> Option<u64> {
    let (latest, count) = (lines >> COUNT_BITS, lines & ((1 << COUNT_BITS) - 1));
    if second > latest {
        Some(second << COUNT_BITS | 1)
    } else {
        (count < MAX_LINES_PER_SECOND).then_some(lines + 1)
    }
}

/// A key as printable text on one line.
fn printable(key: &[u8]) -> String {
    let mut text = String::new();
    let mut letters = 0;
    for chunk in key.utf8_chunks() {
        let valid = chunk.valid().chars().map(|letter| letter.escape_debug().to_string());
        let invalid = chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}"));
        for letter in valid.chain(invalid) {
            if letters == MAX_KEY_CHARS {
                text.push('…');
                return text;
            }
            text.push_str(&letter);
            letters += 1;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex, PoisonError};

    use super::*;

    /// Limit, key, protocol, left out.
    type CapturedLine = (String, Option<String>, Protocol, u64);

    #[derive(Clone, Default)]
    struct CapturedLines(Arc<Mutex<Vec<CapturedLine>>>);

    impl RefusalSink for CapturedLines {
        fn line(&self, line: &RefusalLine<'_>) {
            assert_eq!(line.item, "key/total");
            let lines_written = (line.limit.to_owned(), line.key.clone(), line.protocol, line.left_out);
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(lines_written);
        }
    }

    impl CapturedLines {
        fn take(&self) -> Vec<CapturedLine> {
            std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
        }

        /// Limits of the captured lines, and their counts of left out refusals.
        fn limits(&self) -> Vec<(String, u64)> {
            self.take().into_iter().map(|(limit, _, _, left_out)| (limit, left_out)).collect()
        }
    }

    fn refusals() -> (RefusalLog, CapturedLines) {
        let captured = CapturedLines::default();
        (RefusalLog::with_sink(captured.clone(), Tick::NANOSECOND), captured)
    }

    fn refuse(refusals: &RefusalLog, limit: &str, milliseconds: u64) {
        let at = Timestamp::from_ticks(milliseconds * 1_000_000);
        let key = Some(&b"ada"[..]);
        refusals.record(RefusalEvent { limit, item: "key/total", key, protocol: Protocol::Resp, at });
    }

    fn lines(expected: &[(&str, u64)]) -> Vec<(String, u64)> {
        expected.iter().map(|(limit, left_out)| ((*limit).to_owned(), *left_out)).collect()
    }

    #[test]
    fn limit_gets_one_line_per_second_with_the_count_of_left_out_refusals() {
        let (refusals, captured) = refusals();
        for milliseconds in [0, 1, 999] {
            refuse(&refusals, "a", milliseconds);
        }
        refuse(&refusals, "b", 999);
        assert_eq!(
            captured.take(),
            [
                ("a".to_owned(), Some("ada".to_owned()), Protocol::Resp, 0),
                ("b".to_owned(), Some("ada".to_owned()), Protocol::Resp, 0),
            ]
        );
        refuse(&refusals, "a", 1_000);
        refuse(&refusals, "a", 999);
        refuse(&refusals, "b", 7_000);
        refuse(&refusals, "a", 8_000);
        assert_eq!(captured.limits(), lines(&[("a", 2), ("b", 0), ("a", 1)]));
    }

    #[test]
    fn lines_per_second_are_bounded_over_all_limits() {
        let (refusals, captured) = refusals();
        for index in 0..MAX_LINES_PER_SECOND + 2 {
            refuse(&refusals, &index.to_string(), 500);
            refuse(&refusals, &index.to_string(), 500);
        }
        assert_eq!(captured.limits().len() as u64, MAX_LINES_PER_SECOND);
        // A late thread counts in the latest second.
        refuse(&refusals, "late", 1_000);
        refuse(&refusals, "11", 0);
        assert_eq!(captured.limits(), lines(&[("late", 0), ("11", 2)]));
        for index in 0..2 * MAX_LINES_PER_SECOND {
            refuse(&refusals, &format!("other {index}"), 1_000 * (index % 2));
        }
        assert_eq!(captured.limits().len() as u64, MAX_LINES_PER_SECOND - 2);
    }

    #[test]
    fn concurrent_refusals_are_all_logged_or_counted() {
        const EACH: u64 = 20_000;
        let (refusals, captured) = refusals();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..EACH).for_each(|index| refuse(&refusals, "a", index / 5)));
            }
        });
        refuse(&refusals, "a", 1_000_000);
        let lines_written = captured.limits();
        assert!(lines_written.len() <= 5, "four seconds and one more: {lines_written:?}");
        let in_all: u64 = lines_written.iter().map(|(_, left_out)| left_out + 1).sum();
        assert_eq!(in_all, 4 * EACH + 1);
    }

    #[test]
    fn described_buckets_share_one_slot() {
        let (refusals, captured) = refusals();
        for rate in 0..5 {
            refuse(&refusals, &format!("cl.throttle/{rate}/1/60"), 0);
        }
        refuse(&refusals, "cl.throttle/9/1/60", 1_000);
        assert_eq!(captured.limits(), lines(&[("cl.throttle/0/1/60", 0), ("cl.throttle/9/1/60", 4)]));
    }

    #[test]
    fn limits_beyond_the_slots_share_one_and_lose_no_count() {
        let (refusals, captured) = refusals();
        let limits = 4 * TRACKED_LIMITS;
        for index in 0..limits {
            refuse(&refusals, &index.to_string(), index as u64);
        }
        let lines_written = captured.limits();
        assert!(
            lines_written.len() as u64 <= MAX_LINES_PER_SECOND * (limits as u64 / 1_000 + 1),
            "{}",
            lines_written.len()
        );
        let shared = refusals.shared.left_out.load(Ordering::Relaxed);
        assert!(shared > 0, "some limits share a slot");
        // Stale slots are reused.
        let later = (STALE + 100) * 1_000;
        for index in 0..100 {
            refuse(&refusals, &format!("new {index}"), later);
        }
        assert_eq!(refusals.shared.left_out.load(Ordering::Relaxed), shared);
        assert!(captured.limits().iter().all(|(limit, left_out)| limit.starts_with("new") && *left_out == 0));
    }

    #[test]
    fn keys_are_escaped_and_cut() {
        assert_eq!(printable(b"ada"), "ada");
        assert_eq!(printable("新年".as_bytes()), "新年");
        assert_eq!(printable(b"a\nb\x1b[31m\xff\xfe\0"), "a\\nb\\u{1b}[31m\\xff\\xfe\\0");
        assert_eq!(printable("\u{202e}x".as_bytes()), "\\u{202e}x");
        let long = "é".repeat(MAX_KEY_CHARS);
        assert_eq!(printable(long.as_bytes()), long);
        assert_eq!(printable(format!("{long}é").as_bytes()), format!("{long}…"));
    }
}
