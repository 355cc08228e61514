//! Tidegate through its public interfaces.
//!
//! | subject | interface |
//! |---|---|
//! | `tidegate` | [`Limiter`] over the memory store: handles and [`Limiter::all`], as programs call it |
//! | `tidegate submit` | [`Store::submit`](tidegate::store::Store::submit) of the memory store, as servers call it |
//! | `tidegate map` | the same of the map store, the reference |

use std::sync::Arc;

use tidegate::clock::{Clock, SystemClock};
use tidegate::limiter::{AcquireError, LimitHandle, Limiter, LimiterBuilder, Permit};
use tidegate::model::{Ask, Order, Per};
use tidegate::reply::{OrderError, OrderReply, Replies};
use tidegate::rule::IntoRules;
use tidegate::store::memory::DEFAULT_CAPACITY;
use tidegate::store::{LimitStore, MapStore, Memory};
use tidegate::{LimitRules, rules};

use crate::bench_subject::{BATCH, BenchClient, BenchDecision, BenchSubject};

/// The name of the memory store through handles.
pub const TIDEGATE: &str = "tidegate";
/// The name of the memory store through `submit`.
pub const SUBMIT: &str = "tidegate submit";
/// The name of the map store through `submit`.
pub const MAP: &str = "tidegate map";

/// A fixed secret, so that rows are at the same places in every run.
const SECRET: [u64; 2] = [0x0123_4567_89ab_cdef, 0x0fed_cba9_8765_4321];

/// A limiter with one limit, or with four that are requested together.
pub struct Tidegate {
    name: &'static str,
    limiter: Limiter,
    handles: Vec<LimitHandle>,
    /// The units of each request.
    units: u64,
}

impl Tidegate {
    /// A memory store with one limit.
    pub fn new(limit: impl IntoRules) -> Tidegate {
        Tidegate::of(vec![rules(limit)])
    }

    /// A memory store with several limits.
    pub fn of(limits: Vec<LimitRules>) -> Tidegate {
        Tidegate::in_memory(SystemClock::new(), DEFAULT_CAPACITY, limits)
    }

    /// A memory store with this clock and memory budget.
    pub fn in_memory(
        clock: impl Clock + 'static,
        capacity_bytes: usize,
        limits: Vec<LimitRules>,
    ) -> Tidegate {
        let memory = Memory { capacity_bytes, secret: SECRET };
        Tidegate::build(TIDEGATE, Limiter::builder().clock(clock).memory(memory), limits)
    }

    /// The map store with one limit.
    pub fn map(limit: impl IntoRules) -> Tidegate {
        let store = Arc::new(MapStore::new(SystemClock::new(), 7));
        Tidegate::build(MAP, Limiter::builder().store(store), vec![rules(limit)])
    }

    /// The same limiter, of which each request takes this many units.
    pub fn requesting(self, units: u64) -> Tidegate {
        Tidegate { units, ..self }
    }

    /// The same store, requested through `submit`.
    pub fn through_submit(self) -> Tidegate {
        Tidegate { name: SUBMIT, ..self }
    }

    fn build(name: &'static str, builder: LimiterBuilder, limits: Vec<LimitRules>) -> Tidegate {
        let ids: Vec<String> = (0..limits.len()).map(|index| format!("limit-{index}")).collect();
        let builder = ids.iter().zip(limits).fold(builder, |builder, (id, rules)| builder.limit(id, rules));
        let limiter = builder.build().unwrap_or_else(|error| panic!("invalid limits: {error}"));
        let handle = |id: &String| limiter.limit(id).expect("the limit was just added");
        let handles = ids.iter().map(handle).collect();
        Tidegate { name, limiter, handles, units: 1 }
    }

    /// A client of one of the limits through its handle.
    pub fn handle_client(&self, limit: usize) -> Box<dyn BenchClient + '_> {
        Box::new(HandleClient(&self.handles[limit]))
    }

    /// A client of one of the limits through `submit`, which also reports degraded decisions.
    pub fn submit_client(&self, limit: usize) -> Box<dyn BenchClient + '_> {
        let limit_id = self.handles[limit].limit_id();
        Box::new(SubmitClient { store: self.limiter.store(), limit_id, replies: None })
    }

    /// The usage of the first item of a limit by a key.
    pub fn used(&self, limit: usize, key: &str) -> u64 {
        let limit_id = self.handles[limit].limit_id();
        let usage = self.limiter.store().usage(limit_id, Some(key.as_bytes())).now();
        usage.expect("the limit exists").items.first().map_or(0, |item| item.current_count)
    }

    /// The number of rows of a limit.
    pub fn rows_of(&self, limit: usize) -> Option<u64> {
        self.limiter.observe(self.handles[limit].limit_id())?.rows
    }

    /// The memory that the store reports.
    pub fn bytes(&self) -> usize {
        self.limiter.store().size().map_or(0, |size| size.bytes)
    }

    fn four_handles(&self) -> &[LimitHandle; 4] {
        self.handles.as_array().expect("a subject requests one limit or four")
    }

    fn four_limit_client(&self) -> FourLimitClient<'_> {
        let store = self.limiter.store();
        let has_key_item = |limit_id: &str| {
            let limit = store.get(limit_id).expect("the limit exists");
            limit.items().iter().any(|item| item.per() == Per::Key)
        };
        let limits = self.four_handles().each_ref().map(|handle| {
            let limit_id = handle.limit_id();
            (limit_id, has_key_item(limit_id))
        });
        FourLimitClient { store, limits, replies: None }
    }
}

impl BenchSubject for Tidegate {
    fn name(&self) -> &'static str {
        self.name
    }

    fn client(&self) -> Box<dyn BenchClient + '_> {
        match (self.name, self.handles.len()) {
            (TIDEGATE, 1) if self.units > 1 => {
                Box::new(UnitsClient { handle: &self.handles[0], units: self.units })
            }
            (TIDEGATE, 1) => self.handle_client(0),
            (TIDEGATE, _) => Box::new(SetClient { limiter: &self.limiter, handles: self.four_handles() }),
            (_, 1) => self.submit_client(0),
            _ => Box::new(self.four_limit_client()),
        }
    }

    fn supports_batches(&self) -> bool {
        self.handles.len() == 1
    }

    fn rows(&self) -> Option<u64> {
        self.rows_of(self.handles.len() - 1)
    }
}

/// Requests one limit. A lease is given back at once, because the permit is dropped.
struct HandleClient<'a>(&'a LimitHandle);

impl BenchClient for HandleClient<'_> {
    #[inline]
    fn decide(&mut self, key: &String) -> BenchDecision {
        decision_of(&self.0.try_acquire(key))
    }

    #[inline]
    fn decide_batch(&mut self, keys: &[&String]) -> usize {
        let results = self.0.try_acquire_batch(keys);
        results.iter().filter(|result| decision_of(result) == BenchDecision::Granted).count()
    }
}

/// Requests several units of one limit.
struct UnitsClient<'a> {
    handle: &'a LimitHandle,
    units: u64,
}

impl BenchClient for UnitsClient<'_> {
    fn decide(&mut self, key: &String) -> BenchDecision {
        decision_of(&self.handle.of(key).count(self.units).try_acquire())
    }
}

/// Requests four limits, all or nothing.
struct SetClient<'a> {
    limiter: &'a Limiter,
    handles: &'a [LimitHandle; 4],
}

impl BenchClient for SetClient<'_> {
    #[inline]
    fn decide(&mut self, key: &String) -> BenchDecision {
        let requests = self.handles.each_ref().map(|handle| handle.of(key));
        decision_of(&self.limiter.all(requests).try_acquire())
    }
}

#[inline]
fn decision_of(result: &Result<Permit, AcquireError>) -> BenchDecision {
    match result {
        Ok(_) => BenchDecision::Granted,
        Err(AcquireError::Refused(_)) => BenchDecision::Refused,
        Err(error) => panic!("the benchmark sent an invalid request: {error}"),
    }
}

/// Requests one limit through `submit`.
struct SubmitClient<'a> {
    store: &'a dyn LimitStore,
    limit_id: &'a str,
    /// The buffer, which moves through the store and back. Taking it leaves nothing to drop.
    replies: Option<Replies>,
}

impl SubmitClient<'_> {
    fn ask<'k>(&'k self, key: &'k str) -> [Ask<'k>; 1] {
        [Ask::one(self.limit_id, Some(key.as_bytes()))]
    }
}

impl BenchClient for SubmitClient<'_> {
    #[inline]
    fn decide(&mut self, key: &String) -> BenchDecision {
        let buffer = self.replies.take().unwrap_or_default();
        let replies = self.store.submit(&[Order::acquire(&self.ask(key))], buffer).now();
        decision_of_reply(self.replies.insert(replies).get(0))
    }

    fn decide_batch(&mut self, keys: &[&String]) -> usize {
        let keys: &[&String; BATCH] = keys.as_array().expect("a batch is full");
        let buffer = self.replies.take().unwrap_or_default();
        let asks = keys.map(|key| self.ask(key));
        let orders = asks.each_ref().map(|ask| Order::acquire(ask));
        let replies = self.store.submit(&orders, buffer).now();
        let granted = |reply: &&Result<OrderReply, OrderError>| {
            decision_of_reply(Some(reply)) == BenchDecision::Granted
        };
        self.replies.insert(replies).iter().filter(granted).count()
    }
}

/// Requests four limits in one order, as the gateway does.
struct FourLimitClient<'a> {
    store: &'a dyn LimitStore,
    /// The ids, and whether the limit has items per key.
    limits: [(&'a str, bool); 4],
    replies: Option<Replies>,
}

impl BenchClient for FourLimitClient<'_> {
    #[inline]
    fn decide(&mut self, key: &String) -> BenchDecision {
        let asks = self.limits.map(|(limit_id, keyed)| Ask::one(limit_id, keyed.then_some(key.as_bytes())));
        let buffer = self.replies.take().unwrap_or_default();
        let replies = self.store.submit(&[Order::acquire(&asks)], buffer).now();
        decision_of_reply(self.replies.insert(replies).get(0))
    }
}

fn decision_of_reply(reply: Option<&Result<OrderReply, OrderError>>) -> BenchDecision {
    match reply {
        Some(Ok(reply)) if reply.degraded && reply.is_granted() => BenchDecision::DegradedGrant,
        Some(Ok(reply)) if reply.degraded => BenchDecision::DegradedRefusal,
        Some(Ok(reply)) => BenchDecision::of(reply.is_granted()),
        Some(Err(error)) => panic!("the benchmark sent an invalid request: {error}"),
        None => panic!("a store replies to every order"),
    }
}

#[cfg(test)]
mod tests {
    use tidegate::concurrency;

    use super::*;
    use crate::bucket_quota::BucketQuota;
    use crate::keys::Keys;

    const KEY: &str = "u00000012345";

    #[test]
    fn every_interface_counts_each_key_alone() {
        let rule = || BucketQuota::SPENT.rule().per_key();
        for subject in [Tidegate::new(rule()), Tidegate::new(rule()).through_submit(), Tidegate::map(rule())]
        {
            let mut client = subject.client();
            assert_eq!(client.decide_singly(&Keys::hot(7)), 5, "{}", subject.name());
            assert_eq!(client.decide_in_batches(&Keys::each(32)), 32, "{}", subject.name());
            assert_eq!(client.decide(&KEY.to_owned()), BenchDecision::Refused);
            assert_eq!(subject.used(0, KEY), 5);
            assert!(subject.rows().is_none_or(|rows| rows == 33), "{}", subject.name());
        }
    }

    #[test]
    fn four_limits_are_granted_together_or_not_charged() {
        let shared =
            [BucketQuota::LIVE, BucketQuota::SPENT, BucketQuota::LIVE].map(|quota| rules(quota.rule()));
        let limits = || [shared.to_vec(), vec![rules(BucketQuota::LIVE.rule().per_key())]].concat();
        for subject in [Tidegate::of(limits()), Tidegate::of(limits()).through_submit()] {
            assert_eq!(subject.client().decide_singly(&Keys::each(100)), 5, "{}", subject.name());
            assert_eq!(subject.rows(), Some(5), "{}", subject.name());
        }
    }

    #[test]
    fn lease_is_given_back_after_each_decision() {
        let subject = Tidegate::new(concurrency(1).per_key());
        assert_eq!(subject.client().decide_singly(&Keys::hot(3)), 3);
        assert_eq!(subject.used(0, KEY), 0);
    }

    #[test]
    fn units_are_charged_at_once() {
        let subject = Tidegate::new(BucketQuota::FREE.rule().per_key()).requesting(150_000);
        assert_eq!(subject.client().decide(&KEY.to_owned()), BenchDecision::Granted);
        assert_eq!(subject.used(0, KEY), 150_000);
    }
}
