//! The memory store of Tidegate through its handles.

use tidegate::clock::Clock;
use tidegate::model::Verdict;
use tidegate::reply::OrderError;
use tidegate::store::memory::DEFAULT_CAPACITY;
use tidegate::store::memory::{MemoryHandle, MemoryHandleSet};
use tidegate::store::{Memory, MemoryStore, Store};

use super::put;
use super::submit::SubmitClient;
use crate::bench_subject::{BATCH, BenchClient, BenchDecision, BenchSubject};
use crate::rule::{BenchRule, LimitScope};

/// The name in the tables.
pub const NAME: &str = "tidegate";

/// A fixed secret, so that rows are at the same places in every run.
const SECRET: [u64; 2] = [0x0123_4567_89ab_cdef, 0x0fed_cba9_8765_4321];

/// The scopes of the limits in a set.
const SET_SCOPES: [LimitScope; 4] =
    [LimitScope::Shared, LimitScope::Shared, LimitScope::Shared, LimitScope::PerKey];

/// Creates a memory store of this many bytes.
pub(super) fn memory(clock: impl Clock + 'static, bytes: usize) -> MemoryStore {
    MemoryStore::new(clock, Memory { capacity_bytes: bytes, secret: SECRET })
}

/// A store whose limits are requested together.
#[derive(Debug)]
pub struct Tidegate {
    store: MemoryStore,
    limits: Vec<(String, LimitScope)>,
}

impl Tidegate {
    /// Creates a store with one limit per rule. Every decision requests all of them.
    pub fn new(clock: impl Clock + 'static, rules: &[(BenchRule, LimitScope)]) -> Tidegate {
        Tidegate::capped(clock, rules, DEFAULT_CAPACITY)
    }

    /// Creates such a store with a memory budget.
    pub fn capped(clock: impl Clock + 'static, rules: &[(BenchRule, LimitScope)], bytes: usize) -> Tidegate {
        let store = memory(clock, bytes);
        let ids = put(&store, rules);
        Tidegate { store, limits: ids.into_iter().zip(rules.iter().map(|rule| rule.1)).collect() }
    }

    /// A client for one of several limits.
    pub fn client_for(&self, limit: usize) -> Box<dyn BenchClient + '_> {
        Box::new(HandleClient(self.store.handle(&self.limits[limit].0).expect("it was put")))
    }

    /// A client through `submit`, which also reports degraded decisions.
    pub fn submit_client_for(&self, limit: usize) -> Box<dyn BenchClient + '_> {
        Box::new(SubmitClient::new(&self.store, &self.limits[limit].0))
    }

    /// The usage of a limit by a key.
    pub fn used(&self, limit: usize, key: &str) -> u64 {
        let usage = self.store.usage(&self.limits[limit].0, Some(key.as_bytes())).now();
        usage.expect("it was put").items.first().map_or(0, |item| item.current_count)
    }

    /// The number of rows of a limit.
    pub fn rows_of(&self, limit: usize) -> u64 {
        self.store.observe(&self.limits[limit].0).map_or(0, |seen| seen.rows.unwrap_or(0))
    }

    /// The memory that the store reports.
    pub fn bytes(&self) -> usize {
        self.store.bytes()
    }
}

impl BenchSubject for Tidegate {
    fn name(&self) -> &'static str {
        NAME
    }

    fn client(&self) -> Box<dyn BenchClient + '_> {
        if self.limits.len() == 1 {
            return self.client_for(0);
        }
        let ids: Vec<&str> = self.limits.iter().map(|(id, _)| id.as_str()).collect();
        let reaches: Vec<LimitScope> = self.limits.iter().map(|(_, reach)| *reach).collect();
        assert_eq!(reaches, SET_SCOPES, "the only set that is requested for");
        Box::new(HandleSetClient(self.store.handle_set(&ids).expect("they were put")))
    }

    fn supports_batches(&self) -> bool {
        true
    }

    fn rows(&self) -> Option<u64> {
        Some(self.rows_of(self.limits.len() - 1))
    }
}

/// Requests one limit.
struct HandleClient(MemoryHandle);

impl BenchClient for HandleClient {
    #[inline]
    fn decide(&mut self, key: &str) -> BenchDecision {
        decision_of(self.0.try_acquire(key.as_bytes(), 1))
    }

    #[inline]
    fn decide_batch(&mut self, keys: &[&str]) -> usize {
        let Some(keys) = keys.first_chunk::<BATCH>() else { return 0 };
        let mut verdicts = [Verdict::Granted; BATCH];
        if let Err(rejection) = self.0.try_batch(&keys.map(str::as_bytes), 1, &mut verdicts) {
            reject(&rejection);
        }
        verdicts.iter().filter(|verdict| **verdict == Verdict::Granted).count()
    }
}

/// Requests several limits, all or nothing.
struct HandleSetClient(MemoryHandleSet);

impl BenchClient for HandleSetClient {
    #[inline]
    fn decide(&mut self, key: &str) -> BenchDecision {
        decision_of(self.0.try_acquire(&[None, None, None, Some(key.as_bytes())]))
    }
}

#[inline]
fn decision_of(verdict: Result<Verdict, OrderError>) -> BenchDecision {
    match verdict {
        Ok(verdict) => BenchDecision::of(verdict == Verdict::Granted),
        Err(rejection) => reject(&rejection),
    }
}

#[cold]
fn reject(rejection: &OrderError) -> ! {
    panic!("the benchmark sent an invalid request: {rejection}")
}

#[cfg(test)]
mod tests {
    use tidegate::clock::ManualClock;
    use tidegate::model::Timestamp;

    use super::*;
    use crate::keys::Keys;

    fn clock() -> ManualClock {
        ManualClock::at(Timestamp::EPOCH)
    }

    #[test]
    fn one_limit_counts_each_key_alone() {
        let subject = Tidegate::new(clock(), &[(BenchRule::SPENT, LimitScope::PerKey)]);
        let mut client = subject.client();
        assert_eq!(client.decide_singly(&Keys::hot(7)), 5);
        assert_eq!(client.decide_in_batches(&Keys::each(32)), 32);
        assert_eq!(client.decide("u00000012345"), BenchDecision::Refused);
        assert_eq!(subject.submit_client_for(0).decide("u00000012345"), BenchDecision::Refused);
        assert_eq!((subject.used(0, "u00000012345"), subject.rows()), (5, Some(33)));
    }

    #[test]
    fn a_set_is_granted_by_all_or_charged_by_none() {
        let shared = [
            (BenchRule::LIVE, LimitScope::Shared),
            (BenchRule::SPENT, LimitScope::Shared),
            (BenchRule::LIVE, LimitScope::Shared),
        ];
        let subject =
            Tidegate::new(clock(), &[&shared[..], &[(BenchRule::LIVE, LimitScope::PerKey)]].concat());
        assert_eq!(subject.client().decide_singly(&Keys::each(100)), 5);
    }
}
