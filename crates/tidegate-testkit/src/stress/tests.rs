//! Storms that must be noticed: stores that are nearly right.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicUsize;

use tidegate::catalog::{ApplyError, Edit, EditOutcome, Origin, PutError, Watcher};
use tidegate::store::{Capabilities, Usage};
use tidegate::{
    Actual, Ask, Capacity, Catalog, Detail, Hold, Intent, ItemSpec, LeaseId, LeaseTerm, Limit, MapStore,
    Order, OrderError, Outcome, Policy, RemovalMode, Replies, Settlement, Store, StoreReply,
};

use super::*;

/// What is wrong with a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    Nothing,
    /// It looks whether an order fits and charges it later, when it may not fit any more.
    LooksThenCharges,
    /// It forgets the last ask of a set.
    ForgetsTheLastAsk,
    /// It takes what fits of a set and then refuses the set.
    TakesWhatFits,
    /// It grants one more than this limit allows.
    IsGenerousWith(&'static str),
    /// It does not hear of edits.
    IgnoresEdits,
    /// It decides at an instant that was over before it was asked.
    LivesInThePast,
    /// It never answers the hundredth order.
    Hangs,
}

/// A store with a flaw.
struct Flawed {
    inner: MapStore,
    flaw: Flaw,
    asked: AtomicUsize,
}

impl Flawed {
    fn answer(&self, order: &Order<'_>) -> Result<tidegate::Answer, OrderError> {
        let submit = |order: Order<'_>| {
            let answers = self.inner.submit(&[order], Replies::new(Detail::Verdicts)).decided();
            answers.get(0).cloned().expect("one answer for one order")
        };
        let takes = order.intent == Intent::Acquire;
        match self.flaw {
            Flaw::LooksThenCharges if takes && order.hold == Hold::No => {
                let looked = submit(Order { intent: Intent::Peek, ..*order })?;
                if !looked.is_granted() || order.asks.iter().any(|ask| ask.limit_id == "slots") {
                    return submit(*order);
                }
                std::thread::yield_now();
                // A hold of nothing is settled to any cost, past the limit if it must be.
                let nothing: Vec<Ask<'_>> = order.asks.iter().map(|ask| Ask { count: 0, ..*ask }).collect();
                let held = submit(Order { hold: Hold::Yes, ..Order::acquire(&nothing) })?;
                let Outcome::Granted(Some(grant)) = &held.outcome else { return Ok(held) };
                let costs: Vec<_> = order.asks.iter().map(|ask| ask.count).collect();
                self.inner.settle(grant.lease, Actual::Each(&costs)).decided().expect("a cost for each");
                Ok(tidegate::Answer { outcome: Outcome::Granted(None), ..held })
            }
            Flaw::ForgetsTheLastAsk if order.asks.len() > 1 => {
                submit(Order { asks: &order.asks[..order.asks.len() - 1], ..*order })
            }
            Flaw::TakesWhatFits if takes && order.asks.len() > 1 => {
                let whole = submit(*order)?;
                if !whole.is_granted() {
                    for ask in order.asks.iter().filter(|ask| ask.limit_id != "slots") {
                        submit(Order::acquire(&[*ask]))?;
                    }
                }
                Ok(whole)
            }
            Flaw::LivesInThePast => {
                let answer = submit(*order)?;
                Ok(tidegate::Answer { at: Timestamp::from_ticks(answer.at.ticks() - 50 * STEP), ..answer })
            }
            Flaw::Hangs if self.asked.fetch_add(1, Ordering::Relaxed) >= 100 => loop {
                std::thread::park();
            },
            _ => submit(*order),
        }
    }
}

impl Store for Flawed {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn submit(&self, orders: &[Order<'_>], mut buffer: Replies) -> StoreReply<Replies> {
        if self.flaw == Flaw::Nothing || orders.len() > 1 {
            return self.inner.submit(orders, buffer);
        }
        buffer.clear();
        for order in orders {
            buffer.push(self.answer(order));
        }
        StoreReply::Now(buffer)
    }

    fn release(&self, lease: LeaseId) -> StoreReply<bool> {
        self.inner.release(lease)
    }

    fn renew(
        &self,
        lease: LeaseId,
        ttl: Option<Duration>,
    ) -> StoreReply<Result<Option<Timestamp>, OrderError>> {
        self.inner.renew(lease, ttl)
    }

    fn settle(&self, lease: LeaseId, actual: Actual<'_>) -> StoreReply<Result<Settlement, OrderError>> {
        match (actual, self.inner.settle(lease, actual)) {
            // What was forgotten is not settled either.
            (Actual::Each([costs @ .., _]), StoreReply::Now(Err(_))) => {
                self.inner.settle(lease, Actual::Each(costs))
            }
            (_, settled) => settled,
        }
    }

    fn reset(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<(), OrderError>> {
        self.inner.reset(limit_id, key)
    }

    fn usage(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<Usage, OrderError>> {
        self.inner.usage(limit_id, key)
    }

    fn holders(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<Vec<LeaseTerm>, OrderError>> {
        self.inner.holders(limit_id, key)
    }

    fn held_until(&self, leases: &[LeaseId]) -> StoreReply<Vec<Option<Timestamp>>> {
        self.inner.held_until(leases)
    }
}

impl Catalog for Flawed {
    fn get(&self, id: &str) -> Option<Arc<Limit>> {
        self.inner.get(id)
    }

    fn list(&self) -> Vec<Arc<Limit>> {
        self.inner.list()
    }

    fn put(&self, mut spec: LimitSpec, expect: ExpectedVersion) -> Result<Arc<Limit>, PutError> {
        if self.flaw == Flaw::IsGenerousWith(spec.id.as_str().to_owned().leak()) {
            spec.items.iter_mut().for_each(one_more);
        }
        if self.flaw == Flaw::IgnoresEdits && expect == ExpectedVersion::Present {
            return Ok(self.inner.get(&spec.id).expect("it was put at first"));
        }
        self.inner.put(spec, expect)
    }

    fn remove(&self, id: &str, parting: RemovalMode) -> bool {
        self.inner.remove(id, parting)
    }

    fn apply(&self, edits: Vec<Edit>) -> Result<Vec<EditOutcome>, ApplyError> {
        self.inner.apply(edits)
    }

    fn edit(&self, edits: Vec<Edit>, origin: Origin) -> StoreReply<Result<Vec<EditOutcome>, ApplyError>> {
        self.inner.edit(edits, origin)
    }

    fn watch(&self, watcher: Watcher) {
        self.inner.watch(watcher);
    }
}

fn one_more(item: &mut ItemSpec) {
    if let Capacity::AtMost(limit) = &mut item.limit {
        *limit += 1;
    }
    if let Policy::Bucket { burst: Some(burst), .. } = &mut item.policy {
        *burst += 1;
    }
}

/// How many storms a flaw may pass before it counts as unnoticed: what one of them shows depends on who came when, and the checker
/// accuses nobody of what is not certain.
const STORMS: u64 = 12;

fn noticed(flaw: Flaw, keys: usize, operator: OperatorMode, seed: u64) -> StressReport {
    let bench = |clock| -> Arc<dyn LimitStore> {
        Arc::new(Flawed { inner: MapStore::new(clock, 1), flaw, asked: AtomicUsize::new(0) })
    };
    let stall_timeout = Duration::from_millis(300);
    run_stress(bench, StressPlan { orders: 1_500, stall_timeout, seed, ..StressPlan::of(keys, operator) })
}

#[track_caller]
fn caught(flaw: Flaw, keys: usize, operator: OperatorMode, fault: &str) {
    let accused = |report: &StressReport| report.faults.iter().any(|found| found.contains(fault));
    let found = (1..=STORMS).map(|seed| noticed(flaw, keys, operator, seed)).find(accused);
    assert!(found.is_some(), "{flaw:?} went unnoticed in {STORMS} storms");
}

#[test]
fn a_store_without_a_flaw_is_left_alone() {
    for operator in [OperatorMode::Off, OperatorMode::On] {
        noticed(Flaw::Nothing, 10, operator, 1).assert_explained();
    }
}

#[test]
fn looking_and_then_charging_is_caught() {
    caught(Flaw::LooksThenCharges, 1, OperatorMode::Off, "allowed");
    caught(Flaw::LooksThenCharges, 10, OperatorMode::Off, "allowed");
}

#[test]
fn a_forgotten_ask_is_caught() {
    caught(Flaw::ForgetsTheLastAsk, 10, OperatorMode::Off, "granted");
    caught(Flaw::ForgetsTheLastAsk, 10, OperatorMode::On, "granted");
}

#[test]
fn a_refusal_that_charges_is_caught() {
    caught(Flaw::TakesWhatFits, 10, OperatorMode::Off, "stock");
    caught(Flaw::TakesWhatFits, 10, OperatorMode::On, "stock");
}

#[test]
fn one_too_many_of_any_limit_is_caught() {
    for limit in ["stock", "rate", "turn", "hour", "slide", "slots"] {
        for keys in [1, 10] {
            caught(Flaw::IsGenerousWith(limit), keys, OperatorMode::Off, &format!("{limit}: "));
        }
        caught(Flaw::IsGenerousWith(limit), 10, OperatorMode::On, &format!("{limit}: "));
    }
}

#[test]
fn an_edit_that_is_not_heard_is_caught() {
    caught(Flaw::IgnoresEdits, 10, OperatorMode::On, "allowed");
}

#[test]
fn a_decision_outside_of_its_call_is_caught() {
    caught(Flaw::LivesInThePast, 10, OperatorMode::Off, "but asked from");
}

#[test]
fn a_deadlock_names_its_seed_and_who_is_where() {
    let panic = catch_unwind(AssertUnwindSafe(|| noticed(Flaw::Hangs, 10, OperatorMode::On, 1)))
        .expect_err("it hangs");
    let story = panic.downcast_ref::<String>().expect("a story");
    assert!(story.contains("seed 1") && story.contains("asker 3: Submitting"), "{story}");
    assert!(story.contains("operator: Waiting"), "{story}");
}

/// Nothing is proved exactly from what was heard alone, and nothing is held against a store that is right.
#[test]
fn a_store_may_keep_its_times_to_itself() {
    let bench = |clock| -> Arc<dyn LimitStore> { Arc::new(MapStore::new(clock, 1)) };
    for operator in [OperatorMode::Off, OperatorMode::On] {
        let report = run_stress(
            bench,
            StressPlan { times: DecisionTimes::Bracketed, orders: 500, ..StressPlan::of(10, operator) },
        );
        report.assert_explained();
        assert!(report.limits.iter().all(|limit| limit.proof == Some(ProofLevel::Unrefuted)));
    }
}
