//! What came of the questions of one shift: counted by each thread alone, and added up.

use std::collections::BTreeMap;
use std::time::Duration;

use super::latency_histogram::LatencyHistogram;

/// How many reasons are told apart.
const MAX_REASONS: usize = 8;
/// The name of all others.
const OTHERS: &str = "other reasons";

/// What came of some questions.
#[derive(Debug, Clone)]
pub(super) struct LoadTally {
    /// How long was asked.
    pub(super) lasted: Duration,
    pub(super) granted: u64,
    pub(super) refused: u64,
    /// Questions that have no decision, and connections that could not be had.
    pub(super) failed: u64,
    /// Of those that failed, the ones that may have been granted all the same.
    pub(super) unanswered: u64,
    /// Decisions that came before time was up: only these make a rate.
    pub(super) in_time: u64,
    /// What each key was granted.
    pub(super) by_key: Vec<u32>,
    pub(super) latencies: LatencyHistogram,
    pub(super) reasons: FailureReasons,
}

impl LoadTally {
    /// Nothing yet, of so many keys.
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

    /// This key was granted something.
    pub(super) fn grant(&mut self, key: usize) {
        self.granted += 1;
        self.by_key[key] = self.by_key[key].saturating_add(1);
    }

    /// So many questions failed for this reason.
    pub(super) fn fail(&mut self, why: &str, count: u64) {
        self.failed += count;
        self.reasons.add(why, count);
    }

    /// And what somebody else has counted.
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

    /// How many were decided.
    pub(super) const fn decided(&self) -> u64 {
        self.granted + self.refused
    }

    /// Decisions in a second.
    pub(super) fn rate(&self) -> u64 {
        let rate = u128::from(self.in_time) * 1_000_000_000 / self.lasted.as_nanos().max(1);
        u64::try_from(rate).unwrap_or(u64::MAX)
    }
}

/// Why questions failed, and how many for each reason.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct FailureReasons(BTreeMap<String, u64>);

impl FailureReasons {
    /// So many more for this reason.
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

    /// And those of somebody else.
    pub(super) fn merge(&mut self, other: &FailureReasons) {
        for (why, count) in &other.0 {
            self.add(why, *count);
        }
    }

    /// The most frequent first.
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
    fn two_threads_count_as_one() {
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
        assert_eq!(one.rate(), 3, "only what came in time is a rate");
    }

    #[test]
    fn reasons_are_few_and_none_is_lost() {
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
