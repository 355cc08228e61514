//! A subject of a benchmark: a rate limiter that decides about keys.
//!
//! The loops are default methods of [`BenchClient`], so that the compiler instantiates them together with
//! each subject's `decide`. A whole run costs one virtual call, and a decision costs none.

use quanta::Clock;

use crate::keys::Keys;

/// The number of decisions in a batch.
pub const BATCH: usize = 16;

/// A rate limiter that is measured.
pub trait BenchSubject: Sync {
    /// The name in the tables.
    fn name(&self) -> &'static str;

    /// Creates a client for one thread.
    fn client(&self) -> Box<dyn BenchClient + '_>;

    /// Whether the subject decides about several keys at once. Otherwise a batch becomes single requests.
    fn supports_batches(&self) -> bool {
        false
    }

    /// The number of keys with state, if the subject reports it.
    fn rows(&self) -> Option<u64> {
        None
    }
}

/// The decision of a subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BenchDecision {
    /// The request is granted.
    Granted,
    /// The request is refused.
    Refused,
    /// There was no room for a row, and the request was granted in degraded mode.
    DegradedGrant,
    /// There was no room for a row, and the request was refused in degraded mode.
    DegradedRefusal,
}

impl BenchDecision {
    /// Granted or refused.
    pub fn of(granted: bool) -> BenchDecision {
        if granted { BenchDecision::Granted } else { BenchDecision::Refused }
    }
}

/// Sends requests to a subject from one thread.
#[expect(clippy::ptr_arg, reason = "governor takes the owned key")]
pub trait BenchClient {
    /// Requests one unit for a key.
    fn decide(&mut self, key: &String) -> BenchDecision;

    /// Requests one unit for each key of a batch. Returns the number of grants.
    fn decide_batch(&mut self, keys: &[&String]) -> usize {
        keys.iter().filter(|key| self.decide(key) == BenchDecision::Granted).count()
    }

    /// Requests one unit for every key, one by one. Returns the number of grants.
    fn decide_singly(&mut self, keys: &Keys) -> usize {
        keys.iter().filter(|key| self.decide(key) == BenchDecision::Granted).count()
    }

    /// Requests one unit for every key, one by one, and appends the latency of each call in nanoseconds. A call
    /// is timed from the end of the call before it, so that the counter is read once per call. Returns the
    /// number of grants.
    fn decide_timed(&mut self, keys: &Keys, latencies: &mut Vec<u64>) -> usize {
        let clock = Clock::new();
        let (mut granted, mut before) = (0, clock.raw());
        for key in keys.iter() {
            granted += usize::from(self.decide(key) == BenchDecision::Granted);
            let after = clock.raw();
            latencies.push(clock.delta_as_nanos(before, after));
            before = after;
        }
        granted
    }

    /// Requests one unit for every key, in batches. Returns the number of grants.
    fn decide_in_batches(&mut self, keys: &Keys) -> usize {
        let (mut granted, mut keys) = (0, keys.iter());
        while let Some(first) = keys.next() {
            let mut batch = [first; BATCH];
            for place in &mut batch[1..] {
                let Some(key) = keys.next() else { return granted };
                *place = key;
            }
            granted += self.decide_batch(&batch);
        }
        granted
    }
}
