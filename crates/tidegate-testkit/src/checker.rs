//! The history checker: many asked at once; was more granted than the definition allows?
//!
//! Whoever asked knows only when it asked and when it heard. The decision fell somewhere between:
//!
//! ```text
//!   A  start ├──────── decided somewhere in here ────────┤ end
//!   B              ├────────────────┤
//!   window   ├──────────────────────────────────────────────┤   A and B are both inside, wherever they were decided
//! ```
//!
//! A grant is *certainly* inside an interval if the whole of its own is. The checker adds up only what is certain, so a
//! [`Violation`] is a proof: no choice of decision times explains it. The other way round it is exact only if the store
//! reports when it decided ([`Entry::at`]); [`Proof`] says which of the two was shown.
//!
//! Decided: it looks at one limit whose text did not change, at enforced limits only, and leaves keys with exceptions
//! alone. It is quadratic and keeps no state of its own; it is meant to be read.

use std::collections::BTreeMap;
use std::fmt;

use tidegate_core::{
    Amount, Capacity, Charge, ItemSpec, LimitSpec, Mode, Per, Policy, Tick, Timestamp, Unit,
};

use crate::civil::Almanac;

/// One order as its asker saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// When it was asked.
    pub start: Timestamp,
    /// When the answer was heard.
    pub end: Timestamp,
    /// When the store says it decided.
    pub at: Option<Timestamp>,
    /// For whom.
    pub key: Option<Vec<u8>>,
    /// For how much; what was given back later is taken off.
    pub count: Amount,
    /// Whether it was granted.
    pub granted: bool,
    /// The earliest instant at which held units may have come back: when their release was asked for, or their lease
    /// lapsed. `None` is one time to live after the earliest grant.
    pub returned: Option<Timestamp>,
}

impl Entry {
    /// A grant of `count` that the store says it decided `at`.
    pub fn granted_at(at: Timestamp, key: Option<&[u8]>, count: Amount) -> Entry {
        Entry::granted_within(at, at, key, count)
    }

    /// A grant of `count`, decided at some instant from `start` to `end`.
    pub fn granted_within(start: Timestamp, end: Timestamp, key: Option<&[u8]>, count: Amount) -> Entry {
        let key = key.map(<[u8]>::to_vec);
        Entry { start, end, at: None, key, count, granted: true, returned: None }
    }

    fn earliest(&self) -> u64 {
        self.at.unwrap_or(self.start).ticks()
    }

    fn latest(&self) -> u64 {
        self.at.unwrap_or(self.end).ticks()
    }

    fn is_inside(&self, from: u64, to: u64) -> bool {
        from <= self.earliest() && self.latest() <= to
    }
}

/// What was recorded about one limit.
#[derive(Debug, Clone)]
pub struct Record {
    /// The limit, as it was all the time.
    pub spec: LimitSpec,
    /// How finely time was kept.
    pub tick: Tick,
    /// Every order.
    pub entries: Vec<Entry>,
}

/// What was shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// No interval admitted more than the definition allows: every decision time is known.
    Exact,
    /// Nothing that was seen contradicts it.
    Unrefuted,
}

/// More was granted than can be explained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The item.
    pub item: String,
    /// Whose, if it counts keys alone.
    pub key: Option<Vec<u8>>,
    /// The first instant of the interval.
    pub from: Timestamp,
    /// The last instant of it.
    pub to: Timestamp,
    /// What was certainly admitted in it.
    pub admitted: u128,
    /// What the definition allows there.
    pub allowed: u128,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = self.key.as_ref().map(|key| format!(" of {}", String::from_utf8_lossy(key)));
        write!(
            f,
            "{}{}: {} admitted in [{}, {}], {} allowed",
            self.item,
            whose.unwrap_or_default(),
            self.admitted,
            self.from.ticks(),
            self.to.ticks(),
            self.allowed
        )
    }
}

impl std::error::Error for Violation {}

/// Whether a record can be explained.
pub fn check(record: &Record) -> Result<Proof, Violation> {
    if record.spec.mode == Mode::Enforce {
        for item in &record.spec.items {
            let Capacity::AtMost(limit) = item.limit else { continue };
            for (key, grants) in groups(record, item) {
                let allowed = Allowance { record, item, limit, grants };
                if let Some((from, to, admitted, allowed)) = allowed.exceeded() {
                    let (from, to) = (Timestamp::from_ticks(from), Timestamp::from_ticks(to));
                    return Err(Violation { item: item.effective_name(), key, from, to, admitted, allowed });
                }
            }
        }
    }
    let exact = record.entries.iter().all(|entry| !entry.granted || entry.earliest() == entry.latest());
    Ok(if exact { Proof::Exact } else { Proof::Unrefuted })
}

/// The grants that an item counts together, earliest first.
fn groups<'a>(record: &'a Record, item: &ItemSpec) -> BTreeMap<Option<Vec<u8>>, Vec<&'a Entry>> {
    let name = item.effective_name();
    let mut groups: BTreeMap<Option<Vec<u8>>, Vec<&Entry>> = BTreeMap::new();
    for entry in record.entries.iter().filter(|entry| entry.granted) {
        let key = if item.per == Per::Key { entry.key.clone() } else { None };
        let excepted =
            record.spec.overrides.iter().any(|other| other.item == name && Some(&other.key) == key.as_ref());
        if !excepted {
            groups.entry(key).or_default().push(entry);
        }
    }
    for grants in groups.values_mut() {
        grants.sort_by_key(|grant| (grant.earliest(), grant.latest()));
    }
    groups
}

/// What one item allows one key, and what it was granted.
struct Allowance<'a> {
    record: &'a Record,
    item: &'a ItemSpec,
    limit: Amount,
    grants: Vec<&'a Entry>,
}

/// An interval, what was admitted in it, and what was allowed.
type Excess = (u64, u64, u128, u128);

impl Allowance<'_> {
    fn exceeded(&self) -> Option<Excess> {
        let ticks = |duration| self.record.tick.span(duration).ticks();
        match self.item.policy {
            Policy::Total => self.over(0, u64::MAX, self.limit),
            Policy::Calendar(unit) => self.over_in_a_unit(unit),
            Policy::Interval { window } => self.over_in_an_interval(ticks(window)),
            Policy::Sliding { window, .. } => {
                let from = |grant: &&Entry| grant.earliest();
                let mut starts = self.grants.iter().map(from);
                starts.find_map(|from| self.over(from, from.saturating_add(ticks(window)), self.limit))
            }
            Policy::Bucket { window, burst } => self.over_a_rate(ticks(window), burst.unwrap_or(self.limit)),
            Policy::Concurrency { ttl } => self.over_at_once(ticks(ttl)),
        }
    }

    fn weight(&self, grant: &Entry) -> u128 {
        let by_default = match self.item.policy {
            Policy::Concurrency { .. } => Charge::Ask,
            _ => Charge::Count,
        };
        match self.item.charge.unwrap_or(by_default) {
            Charge::Count => u128::from(grant.count),
            Charge::Ask => u128::from(grant.count.min(1)),
        }
    }

    /// What was certainly admitted from `from` to `to`, both included.
    fn certain(&self, from: u64, to: u64) -> u128 {
        let inside = self.grants.iter().filter(|grant| grant.is_inside(from, to));
        inside.map(|grant| self.weight(grant)).sum()
    }

    fn over(&self, from: u64, to: u64, limit: Amount) -> Option<Excess> {
        let (admitted, allowed) = (self.certain(from, to), u128::from(limit));
        (admitted > allowed).then_some((from, to, admitted, allowed))
    }

    fn over_in_a_unit(&self, unit: Unit) -> Option<Excess> {
        let mut almanac = Almanac::new(unit, &self.record.spec.time_zone, self.record.spec.week_start);
        let per_second = self.record.tick.per_second();
        self.grants.iter().find_map(|grant| {
            let second =
                i64::try_from(grant.earliest() / per_second).expect("tests stay before the end of time");
            let (start, end) = almanac.around(second);
            let ticks = |second: i64| u64::try_from(second).expect("not before 1970") * per_second;
            self.over(ticks(start), ticks(end) - 1, self.limit)
        })
    }

    /// Windows hang from the first hit after the one before. Where every instant is known they are rebuilt. Otherwise
    /// two things are certain: after a pause as long as a window the next hit opens one, and any stretch shorter than a
    /// window meets at most two.
    fn over_in_an_interval(&self, window: u64) -> Option<Excess> {
        let mut latest: Option<u64> = None;
        let known = self.grants.iter().all(|grant| grant.earliest() == grant.latest());
        for grant in &self.grants {
            let first = grant.earliest();
            let opens = latest.is_none_or(|latest| first >= latest.saturating_add(window));
            let excess = if opens { self.over(first, first + (window - 1), self.limit) } else { None };
            let excess =
                excess.or_else(|| self.over(first, first + (window - 1), self.limit.saturating_mul(2)));
            if excess.is_some() {
                return excess;
            }
            latest = match latest {
                // The window that is open hangs from its first hit, which is known.
                Some(opened) if known && !opens => Some(opened),
                _ => latest.max(Some(grant.latest())),
            };
        }
        None
    }

    /// From any instant to any later one: no more than a burst and what came back between.
    fn over_a_rate(&self, window: u64, burst: Amount) -> Option<Excess> {
        let step = u128::from(window.div_ceil(self.limit.max(1)).max(1));
        let burst = if self.limit == 0 { 0 } else { u128::from(burst) };
        let mut by_end = self.grants.clone();
        by_end.sort_by_key(|grant| grant.latest());
        for first in &self.grants {
            let from = first.earliest();
            let mut admitted = 0;
            for grant in by_end.iter().filter(|grant| grant.earliest() >= from) {
                admitted += self.weight(grant);
                let to = grant.latest();
                let refilled = u128::from(to - from);
                if admitted * step > refilled + burst * step {
                    return Some((from, to, admitted, burst + refilled / step));
                }
            }
        }
        None
    }

    fn over_at_once(&self, ttl: u64) -> Option<Excess> {
        let returned = |grant: &Entry| {
            grant.returned.map_or_else(|| grant.earliest().saturating_add(ttl), Timestamp::ticks)
        };
        self.grants.iter().find_map(|grant| {
            let at = grant.latest();
            let holding = self.grants.iter().filter(|other| other.latest() <= at && at < returned(other));
            let held: u128 = holding.map(|other| self.weight(other)).sum();
            let allowed = u128::from(self.limit);
            (held > allowed).then_some((at, at, held, allowed))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidegate_core::Precision;

    use super::*;

    const WINDOW: Duration = Duration::from_millis(10);

    fn ms(ms: u64) -> Timestamp {
        Timestamp::from_ticks(ms)
    }

    fn record(policy: Policy, limit: Amount, entries: Vec<Entry>) -> Record {
        let spec = LimitSpec::named("x").with(ItemSpec::of(policy, limit));
        Record { spec, tick: Tick::MILLISECOND, entries }
    }

    fn at(times: &[u64]) -> Vec<Entry> {
        times.iter().map(|&at| Entry::granted_at(ms(at), None, 1)).collect()
    }

    fn within(times: &[(u64, u64)]) -> Vec<Entry> {
        times.iter().map(|&(start, end)| Entry::granted_within(ms(start), ms(end), None, 1)).collect()
    }

    #[track_caller]
    fn refuted(policy: Policy, limit: Amount, entries: Vec<Entry>, from: u64, to: u64, admitted: u128) {
        let violation = check(&record(policy, limit, entries)).expect_err("it was planted");
        assert_eq!(
            (violation.from, violation.to, violation.admitted),
            (ms(from), ms(to), admitted),
            "{violation}"
        );
    }

    #[track_caller]
    fn explained(policy: Policy, limit: Amount, entries: Vec<Entry>, proof: Proof) {
        assert_eq!(check(&record(policy, limit, entries)), Ok(proof));
    }

    const SLIDING: Policy = Policy::Sliding { window: WINDOW, precision: Precision::Exact };

    #[test]
    fn a_total_is_a_sum_whenever_it_was() {
        explained(Policy::Total, 2, within(&[(0, 9), (3, 4)]), Proof::Unrefuted);
        let violation =
            check(&record(Policy::Total, 2, within(&[(0, 9), (3, 4), (5, 99)]))).expect_err("planted");
        assert_eq!((violation.admitted, violation.allowed), (3, 2));
    }

    #[test]
    fn a_sliding_window_is_closed() {
        explained(SLIDING, 1, at(&[0, 11]), Proof::Exact);
        refuted(SLIDING, 1, at(&[0, 10]), 0, 10, 2);
    }

    #[test]
    fn what_may_have_been_decided_outside_is_not_held_against_anybody() {
        explained(SLIDING, 1, within(&[(0, 3), (8, 14)]), Proof::Unrefuted);
        refuted(SLIDING, 1, within(&[(0, 3), (8, 10)]), 0, 10, 2);
    }

    #[test]
    fn a_reported_time_is_believed() {
        let mut entries = within(&[(0, 3), (8, 14)]);
        entries[0].at = Some(ms(3));
        entries[1].at = Some(ms(13));
        refuted(SLIDING, 1, entries, 3, 13, 2);
    }

    #[test]
    fn an_interval_hangs_from_its_first_hit() {
        let interval = Policy::Interval { window: WINDOW };
        explained(interval, 2, at(&[0, 9, 10, 19]), Proof::Exact);
        refuted(interval, 2, at(&[0, 9, 9, 10]), 0, 9, 3);
        // After a pause the next hit opens a window, whenever exactly it was.
        refuted(interval, 1, within(&[(0, 2), (12, 14), (15, 17)]), 12, 21, 2);
        // Two windows may meet inside a stretch, three may not.
        explained(interval, 1, within(&[(0, 5), (7, 12)]), Proof::Unrefuted);
        refuted(interval, 1, within(&[(0, 5), (7, 12), (8, 13), (9, 14)]), 7, 16, 3);
    }

    #[test]
    fn a_calendar_unit_is_civil() {
        let second = Policy::Calendar(Unit::Second);
        explained(second, 1, at(&[999, 1000]), Proof::Exact);
        explained(second, 1, within(&[(900, 1000), (950, 999)]), Proof::Unrefuted);
        refuted(second, 1, at(&[1000, 1999]), 1000, 1999, 2);
    }

    #[test]
    fn a_bucket_gives_a_burst_and_its_rate() {
        let bucket = Policy::Bucket { window: WINDOW, burst: Some(3) };
        // One unit in five milliseconds.
        explained(bucket, 2, at(&[0, 0, 0, 5, 10]), Proof::Exact);
        refuted(bucket, 2, at(&[0, 0, 0, 5, 9]), 0, 9, 5);
        explained(bucket, 2, within(&[(0, 0), (0, 0), (0, 0), (0, 5)]), Proof::Unrefuted);
        refuted(bucket, 2, within(&[(0, 0), (0, 0), (0, 0), (0, 4)]), 0, 4, 4);
    }

    #[test]
    fn held_units_overlap_only_where_they_certainly_do() {
        let concurrency = Policy::Concurrency { ttl: WINDOW };
        let mut entries = within(&[(0, 2), (3, 5)]);
        refuted(concurrency, 1, entries.clone(), 5, 5, 2);
        entries[0].returned = Some(ms(4));
        explained(concurrency, 1, entries, Proof::Unrefuted);
        // One time to live after the earliest grant the units may be free.
        explained(concurrency, 1, within(&[(0, 2), (3, 10)]), Proof::Unrefuted);
    }

    #[test]
    fn refusals_shadows_and_exceptions_admit_nothing() {
        let mut entries = at(&[0, 0]);
        entries[1].granted = false;
        explained(SLIDING, 1, entries, Proof::Exact);
        let mut shadow = record(SLIDING, 1, at(&[0, 0]));
        shadow.spec.mode = Mode::Shadow;
        assert_eq!(check(&shadow), Ok(Proof::Exact));
    }

    #[test]
    fn keys_are_counted_alone_or_together_as_written() {
        let two = |per: Per| {
            let entries = [b"a", b"b"].map(|key| Entry::granted_at(ms(0), Some(key), 1)).to_vec();
            let mut record = record(SLIDING, 1, entries);
            record.spec.items[0].per = per;
            record
        };
        assert_eq!(check(&two(Per::Key)), Ok(Proof::Exact));
        assert!(check(&two(Per::All)).is_err());
    }
}
