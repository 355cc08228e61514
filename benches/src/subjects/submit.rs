//! Tidegate through [`Store::submit`], the interface of servers, batches of orders and stores without
//! handles.

use tidegate::clock::Clock;
use tidegate::model::{Ask, Order};
use tidegate::reply::{Detail, OrderError, OrderReply, Replies};
use tidegate::store::memory::DEFAULT_CAPACITY;
use tidegate::store::{MapStore, MemoryStore, Store};

use super::put;
use super::tidegate::memory;
use crate::bench_subject::{BATCH, BenchClient, BenchDecision, BenchSubject};
use crate::rule::{BenchRule, LimitScope};

/// The name of the memory store through `submit`.
pub const SUBMIT: &str = "tidegate submit";
/// The name of the map store.
pub const MAP: &str = "tidegate map";

/// A store with one limit.
pub struct SubmitSubject<S> {
    name: &'static str,
    store: S,
    limit_id: String,
}

impl SubmitSubject<MemoryStore> {
    /// The memory store with one rule per key.
    pub fn memory(clock: impl Clock + 'static, rule: BenchRule) -> SubmitSubject<MemoryStore> {
        let store = memory(clock, DEFAULT_CAPACITY);
        let limit_id = put(&store, &[(rule, LimitScope::PerKey)]).remove(0);
        SubmitSubject { name: SUBMIT, store, limit_id }
    }
}

impl SubmitSubject<MapStore> {
    /// The map store with one rule per key.
    pub fn map(clock: impl Clock + 'static, rule: BenchRule) -> SubmitSubject<MapStore> {
        let store = MapStore::new(clock, 7);
        let limit_id = put(&store, &[(rule, LimitScope::PerKey)]).remove(0);
        SubmitSubject { name: MAP, store, limit_id }
    }
}

impl<S: Store> BenchSubject for SubmitSubject<S> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn client(&self) -> Box<dyn BenchClient + '_> {
        Box::new(SubmitClient::new(&self.store, &self.limit_id))
    }

    fn supports_batches(&self) -> bool {
        true
    }
}

/// The memory store with four limits in one order, as in the gateway.
pub struct FourLimitOrders {
    store: MemoryStore,
    limit_ids: [String; 4],
    keyed: [bool; 4],
}

impl FourLimitOrders {
    /// The memory store with four rules, or `None` for another number.
    pub fn memory(clock: impl Clock + 'static, rules: &[(BenchRule, LimitScope)]) -> Option<FourLimitOrders> {
        let store = memory(clock, DEFAULT_CAPACITY);
        let limit_ids = put(&store, rules).try_into().ok()?;
        let keyed = std::array::from_fn(|index| rules[index].1 == LimitScope::PerKey);
        Some(FourLimitOrders { store, limit_ids, keyed })
    }
}

impl BenchSubject for FourLimitOrders {
    fn name(&self) -> &'static str {
        SUBMIT
    }

    fn client(&self) -> Box<dyn BenchClient + '_> {
        Box::new(FourLimitClient { subject: self, answers: None })
    }
}

struct FourLimitClient<'a> {
    subject: &'a FourLimitOrders,
    answers: Option<Replies>,
}

impl BenchClient for FourLimitClient<'_> {
    fn decide(&mut self, key: &str) -> BenchDecision {
        let FourLimitOrders { store, limit_ids, keyed } = self.subject;
        let key = |index: usize| keyed[index].then_some(key.as_bytes());
        let asks: [Ask<'_>; 4] = std::array::from_fn(|index| Ask::one(&limit_ids[index], key(index)));
        let buffer = self.answers.take().unwrap_or_default();
        let answers = self.answers.insert(store.submit(&[Order::acquire(&asks)], buffer).now());
        decision_of(answers.get(0))
    }
}

/// Requests one limit through `submit`.
pub(super) struct SubmitClient<'a, S> {
    store: &'a S,
    limit_id: &'a str,
    /// Moves through the store and back.
    answers: Option<Replies>,
}

impl<'a, S: Store> SubmitClient<'a, S> {
    pub(super) fn new(store: &'a S, limit_id: &'a str) -> SubmitClient<'a, S> {
        SubmitClient { store, limit_id, answers: Some(Replies::new(Detail::Verdicts)) }
    }

    fn submit(&mut self, orders: &[Order<'_>]) -> &Replies {
        let buffer = self.answers.take().unwrap_or_default();
        self.answers.insert(self.store.submit(orders, buffer).now())
    }
}

impl<S: Store> BenchClient for SubmitClient<'_, S> {
    #[inline]
    fn decide(&mut self, key: &str) -> BenchDecision {
        let ask = [Ask::one(self.limit_id, Some(key.as_bytes()))];
        decision_of(self.submit(&[Order::acquire(&ask)]).get(0))
    }

    fn decide_batch(&mut self, keys: &[&str]) -> usize {
        let Some(keys) = keys.first_chunk::<BATCH>() else { return 0 };
        let asks: [[Ask<'_>; 1]; BATCH] = keys.map(|key| [Ask::one(self.limit_id, Some(key.as_bytes()))]);
        let orders: [Order<'_>; BATCH] = std::array::from_fn(|index| Order::acquire(&asks[index]));
        self.submit(&orders)
            .iter()
            .filter(|answer| decision_of(Some(answer)) == BenchDecision::Granted)
            .count()
    }
}

fn decision_of(answer: Option<&Result<OrderReply, OrderError>>) -> BenchDecision {
    match answer {
        Some(Ok(answer)) if answer.degraded && answer.is_granted() => BenchDecision::DegradedGrant,
        Some(Ok(answer)) if answer.degraded => BenchDecision::DegradedRefusal,
        Some(Ok(answer)) => BenchDecision::of(answer.is_granted()),
        Some(Err(rejection)) => panic!("the benchmark sent an invalid request: {rejection}"),
        None => panic!("a store answers every order"),
    }
}

#[cfg(test)]
mod tests {
    use tidegate::clock::ManualClock;
    use tidegate::model::Timestamp;

    use super::*;
    use crate::keys::Keys;

    #[test]
    fn both_stores_count_each_key_alone() {
        let clock = || ManualClock::at(Timestamp::EPOCH);
        let (memory, map) =
            (SubmitSubject::memory(clock(), BenchRule::SPENT), SubmitSubject::map(clock(), BenchRule::SPENT));
        let subjects: [&dyn BenchSubject; 2] = [&memory, &map];
        for subject in subjects {
            let mut client = subject.client();
            assert_eq!(client.decide_singly(&Keys::hot(7)), 5);
            assert_eq!(client.decide_in_batches(&Keys::each(32)), 32);
            assert_eq!(client.decide("u00000012345"), BenchDecision::Refused);
        }
    }
}
