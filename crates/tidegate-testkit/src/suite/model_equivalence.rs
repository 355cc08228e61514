//! Generated histories: a store answers like the reference model.

use std::collections::BTreeSet;

use proptest::strategy::Strategy;
use proptest::test_runner::{TestCaseError, TestRunner};
use tidegate::catalog::ExpectedVersion;
use tidegate::model::{Ask, Hold, Order};
use tidegate::reply::Outcome;
use tidegate::store::{Actual, Settlement};
use tidegate_core::{Amount, Intent, LeaseId, LeaseTerm, LimitSpec, Tick, Timestamp};

use super::StoreFixture;
use crate::history::{History, ReplayReply, SystemUnderTest, replay};
use crate::reference_model::{ModelReading, ModelRefusal, OwnedAsk};
use crate::test_scale;

/// Replays generated histories against fresh stores and the reference model.
///
/// # Panics
/// If a store answers otherwise. The message contains the shortest history that shows it.
pub fn check_equivalence(
    new_store: impl Fn(Tick) -> StoreFixture,
    histories: impl Strategy<Value = History>,
    cases: u32,
) {
    let outcome = TestRunner::new(test_scale::cases(cases)).run(&histories, |history| {
        let replayed = replay(&history, &mut StoreUnderTest::new(new_store(history.tick)));
        replayed.map(drop).map_err(TestCaseError::fail)
    });
    if let Err(difference) = outcome {
        panic!("{difference}");
    }
}

/// A store in the role of the system under test.
pub struct StoreUnderTest {
    fixture: StoreFixture,
    /// Settled holds. A store repeats the reply to a repeated settlement, where the model says that the lease is gone.
    settled: BTreeSet<LeaseId>,
}

impl StoreUnderTest {
    /// Wraps the store of this fixture.
    pub fn new(fixture: StoreFixture) -> StoreUnderTest {
        StoreUnderTest { fixture, settled: BTreeSet::new() }
    }

    /// The store at an instant.
    fn at(&self, now: Timestamp) -> &StoreFixture {
        self.fixture.clock.set(now);
        &self.fixture
    }
}

impl SystemUnderTest for StoreUnderTest {
    fn put(&mut self, spec: &LimitSpec, now: Timestamp) -> bool {
        self.at(now).store.put(spec.clone(), ExpectedVersion::Anything).is_ok()
    }

    fn order(&mut self, intent: Intent, asks: &[OwnedAsk], hold: bool, now: Timestamp) -> ReplayReply {
        let asks: Vec<Ask<'_>> = asks
            .iter()
            .map(|ask| Ask { limit_id: &ask.limit_id, key: ask.key.as_deref(), count: ask.count })
            .collect();
        let hold = if hold { Hold::Yes } else { Hold::No };
        let (answer, readings) = self
            .at(now)
            .submit(Order { intent, hold, ..Order::acquire(&asks) })
            .expect("histories are sensible");
        let degraded = answer.degraded;
        let (refusal, lease) = match answer.outcome {
            Outcome::Granted(grant) => {
                (None, grant.map(|grant| LeaseTerm { lease: grant.lease, expires_at: grant.expires_at }))
            }
            Outcome::Denied(denied) => {
                let item = denied.item_name().to_owned();
                (Some(ModelRefusal { limit_id: denied.limit.id().to_owned(), item, wait: denied.wait }), None)
            }
        };
        let readings = readings
            .iter()
            .map(|each| ModelReading {
                limit_id: each.limit.id().to_owned(),
                item: each.limit.items()[each.item].name().to_owned(),
                capacity: each.reading.capacity,
                used: each.reading.used,
                remaining: each.reading.remaining,
                resets_at: each.reading.resets_at,
            })
            .collect();
        ReplayReply { refusal, readings, lease, degraded }
    }

    fn settle(&mut self, lease: LeaseId, actual: Amount, now: Timestamp) -> bool {
        let settled =
            self.at(now).store.settle(lease, Actual::Every(actual)).decided() == Ok(Settlement::Settled);
        settled && self.settled.insert(lease)
    }

    fn release(&mut self, lease: LeaseId, now: Timestamp) -> bool {
        self.at(now).store.release(lease).decided()
    }

    fn renew(&mut self, lease: LeaseId, expires_at: Timestamp, now: Timestamp) -> bool {
        let store = &self.at(now).store;
        let ttl = store.capabilities().tick.duration(expires_at.since(now));
        store.renew(lease, Some(ttl)).decided().expect("histories are sensible").is_some()
    }

    fn reset(&mut self, limit_id: &str, key: Option<&[u8]>, now: Timestamp) {
        self.at(now).store.reset(limit_id, key).decided().expect("a known limit");
    }

    /// A store drops fresh rows on its own.
    fn forget(&mut self, _now: Timestamp) {}
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::strategy::ValueTree;
    use tidegate::clock::ManualClock;
    use tidegate::store::MapStore;

    use super::*;
    use crate::history::over_capacity_histories;

    fn new_store(tick: Tick) -> StoreFixture {
        let clock = Arc::new(ManualClock::ticking(tick, Timestamp::EPOCH));
        StoreFixture::new(MapStore::new(Arc::clone(&clock), 7), clock)
    }

    /// Histories of full limits do fill them.
    #[test]
    fn crowded_limits_are_crowded() {
        let mut runner = TestRunner::deterministic();
        let mut refused = 0;
        for _ in 0..200 {
            let history = over_capacity_histories().new_tree(&mut runner).expect("a history").current();
            let replayed = replay(&history, &mut StoreUnderTest::new(new_store(history.tick)));
            refused += replayed.expect("the store answers like the model").degraded;
        }
        assert!(refused > 50, "{refused} in 200 histories");
    }
}
