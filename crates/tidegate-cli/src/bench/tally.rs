//! Counts of one run. Each thread counts alone; the counts are merged.

use std::collections::BTreeMap;
use std::time::Duration;

use super::latency_histogram::LatencyHistogram;

/// Maximum number of distinct reasons.
const MAX_REASONS: usize = 8;
/// Collects all further reasons.
const OTHERS: &str = "other reasons";

/// Counts of a number of requests.
#[derive(Debug, Clone)]
pub(super) struct LoadTally {
    /// Duration of the run.
    pub(super) lasted: Duration,
    pub(super) granted: u64,
    pub(super) refused: u64,
    /// Requests without a decision, and failed connection attempts.
    pub(super) failed: u64,
    /// Failed requests that may have been granted: no reply arrived.
    pub(super) unanswered: u64,
    /// Decisions before the end of the run; only these count for the rate.
    pub(super) in_time: u64,
    /// Grants per key.
    pub(super) by_key: Vec<u32>,
    pub(super) latencies: LatencyHistogram,
    pub(super) reasons: FailureReasons,
}

impl LoadTally {
    /// An empty tally for this number of keys.
    pub(super) fn new(keys: usize, lasted: Duration) -> LoadTally {
        LoadTally {
            lasted,
            granted: 0,
            refused: 0,
            failed: 0,
            unanswered: 0,
            in_time: 0,
            by_key: vec![0; keys],
            latencies: LatencyHistogram::default(),
            reasons: FailureReasons::default(),
        }
    }

    /// Counts a grant.
    pub(super) fn grant(&mut self, key: usize) {
        self.granted += 1;
        self.by_key[key] = self.by_key[key].saturating_add(1);
    }

    /// Counts failures with a reason.
    pub(super) fn fail(&mut self, why: &str, count: u64) {
        self.failed += count;
        self.reasons.add(why, count);
    }

    /// Adds the counts of another thread.
    pub(super) fn merge(&mut self, other: &LoadTally) {
        self.granted += other.granted;
        self.refused += other.refused;
        self.failed += other.failed;
        self.unanswered += other.unanswered;
        self.in_time += other.in_time;
        for (mine, theirs) in self.by_key.iter_mut().zip(&other.by_key) {
            *mine = mine.saturating_add(*theirs);
        }
        self.latencies.merge(&other.latencies);
        self.reasons.merge(&other.reasons);
    }

    /// Number of decisions.
    pub(super) const fn decided(&self) -> u64 {
        self.granted + self.refused
    }

    /// Decisions per second.
    pub(super) fn rate(&self) -> u64 {
        let rate = u128::from(self.in_time) * 1_000_000_000 / self.lasted.as_nanos().max(1);
        u64::try_from(rate).unwrap_or(u64::MAX)
    }
}

/// Failure reasons with their counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct FailureReasons(BTreeMap<String, u64>);

impl FailureReasons {
    /// Counts a reason.
    pub(super) fn add(&mut self, why: &str, count: u64) {
        if count == 0 {
            return;
        }
        if let Some(known) = self.0.get_mut(why) {
            *known += count;
            return;
        }
        let why = if self.0.len() < MAX_REASONS { why } else { OTHERS };
        *self.0.entry(why.to_owned()).or_default() += count;
    }

    /// Adds the reasons of another thread.
    pub(super) fn merge(&mut self, other: &FailureReasons) {
        for (why, count) in &other.0 {
            self.add(why, *count);
        }
    }

    /// All reasons, the most frequent first.
    pub(super) fn sorted(&self) -> Vec<(&str, u64)> {
        let mut all: Vec<_> = self.0.iter().map(|(why, count)| (&**why, *count)).collect();
        all.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_tallies_equal_one_tally() {
        let (mut one, mut other) =
            (LoadTally::new(3, Duration::from_secs(2)), LoadTally::new(3, Duration::from_secs(2)));
        one.grant(0);
        one.grant(2);
        other.grant(2);
        other.refused = 4;
        (one.in_time, other.in_time) = (2, 5);
        other.fail("reset", 3);
        one.merge(&other);
        assert_eq!((one.granted, one.refused, one.failed, one.decided()), (3, 4, 3, 7));
        assert_eq!(one.by_key, [1, 0, 2]);
        assert_eq!(one.rate(), 3, "late decisions are not part of the rate");
    }

    #[test]
    fn reasons_are_bounded_and_counts_are_kept() {
        let mut reasons = FailureReasons::default();
        for number in 0..100 {
            reasons.add(&format!("reason {number}"), 1);
        }
        reasons.add("reason 0", 5);
        reasons.add("never", 0);
        let sorted = reasons.sorted();
        assert_eq!(sorted.len(), MAX_REASONS + 1);
        assert_eq!(sorted[..2], [(OTHERS, 92), ("reason 0", 6)]);
        assert_eq!(sorted.iter().map(|(_, count)| count).sum::<u64>(), 105);
    }
}
