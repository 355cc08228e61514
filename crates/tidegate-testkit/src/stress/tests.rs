//! Stress runs against stores with a planted defect. Each defect must be detected.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicUsize;

use tidegate::catalog::{ApplyError, Edit, EditOutcome, Origin, PutError, Watcher};
use tidegate::catalog::{Catalog, RemovalMode};
use tidegate::model::{Ask, Capacity, Hold, Intent, ItemSpec, LeaseId, LeaseTerm, Limit, Order, Policy};
use tidegate::reply::{Detail, OrderError, Outcome, Replies};
use tidegate::store::{Actual, MapStore, Settlement, Store, StoreReply};
use tidegate::store::{Capabilities, Usage};

use super::*;

/// A planted defect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StoreDefect {
    None,
    /// Peeks whether an order fits and charges it later, when it may no longer fit.
    ChecksThenCharges,
    /// Ignores the last ask of an order.
    DropsLastAsk,
    /// Charges the asks that fit and refuses the order.
    ChargesPartially,
    /// Grants one more than this limit allows.
    GrantsOneTooMany(&'static str),
    /// Ignores edits.
    IgnoresEdits,
    /// Reports a decision time before the call.
    BackdatesDecisions,
    /// Never returns from the hundredth order.
    Hangs,
}

/// A store with a planted defect.
struct DefectiveStore {
    inner: MapStore,
    defect: StoreDefect,
    asked: AtomicUsize,
}

impl DefectiveStore {
    fn decide(&self, order: &Order<'_>) -> Result<tidegate::reply::OrderReply, OrderError> {
        let submit = |order: Order<'_>| {
            let answers = self.inner.submit(&[order], Replies::new(Detail::Verdicts)).decided();
            answers.get(0).cloned().expect("one answer for one order")
        };
        let takes = order.intent == Intent::Acquire;
        match self.defect {
            StoreDefect::ChecksThenCharges if takes && order.hold == Hold::No => {
                let peeked = submit(Order { intent: Intent::Peek, ..*order })?;
                if !peeked.is_granted() || order.asks.iter().any(|ask| ask.limit_id == "slots") {
                    return submit(*order);
                }
                std::thread::yield_now();
                // A hold of zero can be settled to any cost, past the limit.
                let nothing: Vec<Ask<'_>> = order.asks.iter().map(|ask| Ask { count: 0, ..*ask }).collect();
                let held = submit(Order { hold: Hold::Yes, ..Order::acquire(&nothing) })?;
                let Outcome::Granted(Some(grant)) = &held.outcome else { return Ok(held) };
                let costs: Vec<_> = order.asks.iter().map(|ask| ask.count).collect();
                self.inner.settle(grant.lease, Actual::Each(&costs)).decided().expect("a cost for each");
                Ok(tidegate::reply::OrderReply { outcome: Outcome::Granted(None), ..held })
            }
            StoreDefect::DropsLastAsk if order.asks.len() > 1 => {
                submit(Order { asks: &order.asks[..order.asks.len() - 1], ..*order })
            }
            StoreDefect::ChargesPartially if takes && order.asks.len() > 1 => {
                let whole = submit(*order)?;
                if !whole.is_granted() {
                    for ask in order.asks.iter().filter(|ask| ask.limit_id != "slots") {
                        submit(Order::acquire(&[*ask]))?;
                    }
                }
                Ok(whole)
            }
            StoreDefect::BackdatesDecisions => {
                let answer = submit(*order)?;
                Ok(tidegate::reply::OrderReply {
                    at: Timestamp::from_ticks(answer.at.ticks() - 50 * STEP),
                    ..answer
                })
            }
            StoreDefect::Hangs if self.asked.fetch_add(1, Ordering::Relaxed) >= 100 => loop {
                std::thread::park();
            },
            _ => submit(*order),
        }
    }
}

impl Store for DefectiveStore {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn submit(&self, orders: &[Order<'_>], mut buffer: Replies) -> StoreReply<Replies> {
        if self.defect == StoreDefect::None || orders.len() > 1 {
            return self.inner.submit(orders, buffer);
        }
        buffer.clear();
        for order in orders {
            buffer.push(self.decide(order));
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
            // The dropped ask is not settled either.
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

impl Catalog for DefectiveStore {
    fn get(&self, id: &str) -> Option<Arc<Limit>> {
        self.inner.get(id)
    }

    fn list(&self) -> Vec<Arc<Limit>> {
        self.inner.list()
    }

    fn put(&self, mut spec: LimitSpec, expect: ExpectedVersion) -> Result<Arc<Limit>, PutError> {
        if self.defect == StoreDefect::GrantsOneTooMany(spec.id.as_str().to_owned().leak()) {
            spec.items.iter_mut().for_each(raise_by_one);
        }
        if self.defect == StoreDefect::IgnoresEdits && expect == ExpectedVersion::Present {
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

fn raise_by_one(item: &mut ItemSpec) {
    if let Capacity::AtMost(limit) = &mut item.limit {
        *limit += 1;
    }
    if let Policy::Bucket { burst: Some(burst), .. } = &mut item.policy {
        *burst += 1;
    }
}

/// Runs until a defect counts as undetected. What one run shows depends on how threads interleave, and the checker
/// reports only what is certain.
const MAX_RUNS: u64 = 12;

fn run_with_defect(defect: StoreDefect, keys: usize, operator: OperatorMode, seed: u64) -> StressReport {
    let new_store = |clock| -> Arc<dyn LimitStore> {
        Arc::new(DefectiveStore { inner: MapStore::new(clock, 1), defect, asked: AtomicUsize::new(0) })
    };
    let stall_timeout = Duration::from_millis(300);
    run_stress(new_store, StressPlan { orders: 1_500, stall_timeout, seed, ..StressPlan::of(keys, operator) })
}

#[track_caller]
fn assert_detected(defect: StoreDefect, keys: usize, operator: OperatorMode, fault: &str) {
    let accused = |report: &StressReport| report.faults.iter().any(|found| found.contains(fault));
    let found = (1..=MAX_RUNS).map(|seed| run_with_defect(defect, keys, operator, seed)).find(accused);
    assert!(found.is_some(), "{defect:?} went unnoticed in {MAX_RUNS} runs");
}

#[test]
fn correct_store_is_explained() {
    for operator in [OperatorMode::Off, OperatorMode::On] {
        run_with_defect(StoreDefect::None, 10, operator, 1).assert_explained();
    }
}

#[test]
fn check_then_charge_is_detected() {
    assert_detected(StoreDefect::ChecksThenCharges, 1, OperatorMode::Off, "allowed");
    assert_detected(StoreDefect::ChecksThenCharges, 10, OperatorMode::Off, "allowed");
}

#[test]
fn dropped_ask_is_detected() {
    assert_detected(StoreDefect::DropsLastAsk, 10, OperatorMode::Off, "granted");
    assert_detected(StoreDefect::DropsLastAsk, 10, OperatorMode::On, "granted");
}

#[test]
fn charge_of_refused_order_is_detected() {
    assert_detected(StoreDefect::ChargesPartially, 10, OperatorMode::Off, "stock");
    assert_detected(StoreDefect::ChargesPartially, 10, OperatorMode::On, "stock");
}

#[test]
fn one_grant_too_many_of_any_limit_is_detected() {
    for limit in ["stock", "rate", "turn", "hour", "slide", "slots"] {
        for keys in [1, 10] {
            assert_detected(
                StoreDefect::GrantsOneTooMany(limit),
                keys,
                OperatorMode::Off,
                &format!("{limit}: "),
            );
        }
        assert_detected(StoreDefect::GrantsOneTooMany(limit), 10, OperatorMode::On, &format!("{limit}: "));
    }
}

#[test]
fn ignored_edit_is_detected() {
    assert_detected(StoreDefect::IgnoresEdits, 10, OperatorMode::On, "allowed");
}

#[test]
fn decision_time_outside_call_is_detected() {
    assert_detected(StoreDefect::BackdatesDecisions, 10, OperatorMode::Off, "but requested from");
}

#[test]
fn deadlock_report_names_seed_and_thread_actions() {
    let panic =
        catch_unwind(AssertUnwindSafe(|| run_with_defect(StoreDefect::Hangs, 10, OperatorMode::On, 1)))
            .expect_err("it hangs");
    let message = panic.downcast_ref::<String>().expect("a message");
    assert!(message.contains("seed 1") && message.contains("client 3: Submitting"), "{message}");
    assert!(message.contains("operator: Waiting"), "{message}");
}

/// Without reported times nothing is proved exactly, and a correct store is still explained.
#[test]
fn unreported_decision_times_weaken_proof_only() {
    let new_store = |clock| -> Arc<dyn LimitStore> { Arc::new(MapStore::new(clock, 1)) };
    for operator in [OperatorMode::Off, OperatorMode::On] {
        let report = run_stress(
            new_store,
            StressPlan { times: DecisionTimes::Bracketed, orders: 500, ..StressPlan::of(10, operator) },
        );
        report.assert_explained();
        assert!(report.limits.iter().all(|limit| limit.proof == Some(ProofLevel::Unrefuted)));
    }
}
