//! Stress runs: many threads against one store, and a record that must be explained.
//!
//! ```text
//!   8 clients   orders of 1 to 4 asks, singly and in batches; leases taken, renewed, released, settled, abandoned
//!   1 operator  edits numbers and windows, removes and restores items, resets keys and whole limits
//!   1 watchdog  fails the run when no thread makes progress
//! ```
//!
//! Each thread logs when it called the store, when the call returned, and what it returned. After the run the logs of
//! each limit are merged and given to the [`checker`](crate::checker), which finds grants that no order of events
//! explains. Exact facts are compared exactly: a total equals the sum of its grants, held units are back after release,
//! and windows are empty after they end.
//!
//! Reading the clock advances it, so a run does not depend on the speed of the machine. The random numbers are seeded:
//! a plan submits the same orders each time, though threads may interleave differently.

mod audit;
mod client;
mod operator;
mod rng;
mod watchdog;
mod workload;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use tidegate::catalog::ExpectedVersion;
use tidegate::clock::Clock;
use tidegate::model::{LimitSpec, Timestamp};
use tidegate::store::LimitStore;

use crate::checker::ProofLevel;
use crate::test_scale;

use client::StressClient;
use operator::Operator;
use watchdog::{StressWatchdog, ThreadProgress};

/// Number of client threads.
pub const CLIENTS: usize = 8;

/// A run without progress for this long is reported as a deadlock.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// The operator acts once per this many orders.
const ORDERS_PER_OPERATOR_ACTION: usize = 12;

/// Parameters of a stress run.
#[derive(Debug, Clone)]
pub struct StressPlan {
    /// Seed of the random numbers.
    pub seed: u64,
    /// Number of keys. Half of all orders use the first few of them.
    pub keys: usize,
    /// Number of orders per client.
    pub orders: usize,
    /// Whether limits are edited and reset during the run.
    pub operator: OperatorMode,
    /// Which decision times the checker uses.
    pub times: DecisionTimes,
    /// A run without progress for this long is reported as a deadlock.
    pub stall_timeout: Duration,
}

/// Whether limits are edited and reset during the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperatorMode {
    /// Limits stay as they are.
    Off,
    /// An operator thread edits and resets all limits but one.
    On,
}

/// Which decision times the checker uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecisionTimes {
    /// The times that the store reports. The store must never decide before an instant it has seen.
    Reported,
    /// Only that the decision fell between call and return. Nothing is proved exactly then.
    Bracketed,
}

impl StressPlan {
    /// A run with this many keys and the usual length, or a longer one if `TIDEGATE_LONG` is set.
    pub fn of(keys: usize, operator: OperatorMode) -> StressPlan {
        let orders = test_scale::scaled(4_000);
        StressPlan {
            seed: 1,
            keys,
            orders,
            operator,
            times: DecisionTimes::Reported,
            stall_timeout: STALL_TIMEOUT,
        }
    }
}

/// Result of a stress run.
#[derive(Debug, Clone)]
pub struct StressReport {
    /// Seed of the random numbers.
    pub seed: u64,
    /// Results of each limit.
    pub limits: Vec<LimitFindings>,
    /// Number of leases granted.
    pub leases: usize,
    /// Everything that cannot be explained.
    pub faults: Vec<String>,
}

/// Results of one limit.
#[derive(Debug, Clone)]
pub struct LimitFindings {
    /// Id of the limit.
    pub limit_id: String,
    /// Number of rows that were granted something.
    pub granted: usize,
    /// Number of orders that this limit refused as the binding one.
    pub refused: usize,
    /// Number of edits.
    pub edits: usize,
    /// Number of resets.
    pub resets: usize,
    /// What the record proves; `None` if it cannot be explained.
    pub proof: Option<ProofLevel>,
}

impl StressReport {
    /// Panics unless everything is explained and every limit both granted and refused.
    ///
    /// # Panics
    /// If the store granted or counted something that cannot be explained.
    #[track_caller]
    pub fn assert_explained(&self) {
        assert!(self.faults.is_empty(), "{self}");
        for limit in &self.limits {
            assert!(limit.granted > 0 && limit.refused > 0, "{} was not tried\n{self}", limit.limit_id);
        }
    }
}

impl fmt::Display for StressReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "stress run with seed {}: {} leases", self.seed, self.leases)?;
        for limit in &self.limits {
            writeln!(
                f,
                "  {}: {} granted, {} refused, {} edits, {} resets, {:?}",
                limit.limit_id, limit.granted, limit.refused, limit.edits, limit.resets, limit.proof
            )?;
        }
        self.faults.iter().try_for_each(|fault| writeln!(f, "  {fault}"))
    }
}

/// A clock that advances by a millisecond each time it is read.
#[derive(Debug)]
pub struct SteppingClock(AtomicU64);

/// Nanoseconds per reading.
const STEP: u64 = 1_000_000;

impl SteppingClock {
    /// A clock that starts at this instant.
    pub fn at(start: Timestamp) -> SteppingClock {
        SteppingClock(AtomicU64::new(start.ticks()))
    }

    /// Advances the clock without reading it.
    pub fn skip(&self, duration: Duration) {
        let ticks = u64::try_from(duration.as_nanos()).expect("tests stay before the end of time");
        self.0.fetch_add(ticks, Ordering::SeqCst);
    }
}

impl Clock for SteppingClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_ticks(self.0.fetch_add(STEP, Ordering::SeqCst))
    }
}

/// What the threads of a run share.
struct StressContext {
    store: Arc<dyn LimitStore>,
    clock: Arc<SteppingClock>,
    plan: StressPlan,
    /// The limits before any edit.
    limits: Vec<LimitSpec>,
}

/// Runs the plan against a fresh store. `new_store` makes the store, which must use the given clock.
///
/// # Panics
/// If no thread makes progress for the plan's stall timeout, or if a thread panics.
pub fn run_stress(
    new_store: impl FnOnce(Arc<SteppingClock>) -> Arc<dyn LimitStore>,
    plan: StressPlan,
) -> StressReport {
    let clock = Arc::new(SteppingClock::at(workload::START));
    let store = new_store(Arc::clone(&clock));
    let limits = workload::limits(&plan);
    for spec in &limits {
        store.put(spec.clone(), ExpectedVersion::Absent).expect("the limits of a storm are valid");
    }
    let context = Arc::new(StressContext { store, clock, plan, limits });
    let mut watchdog = StressWatchdog::new(context.plan.seed, context.plan.stall_timeout);
    let (requests, requested) = mpsc::channel();
    let askers: Vec<_> = (0..CLIENTS)
        .map(|index| {
            let (context, requests) = (Arc::clone(&context), requests.clone());
            watchdog.spawn(&format!("client {index}"), move |progress| {
                StressClient::new(&context, index).run(progress, &|order| {
                    if order % ORDERS_PER_OPERATOR_ACTION == index {
                        // Without an operator the receiver is closed.
                        let _no_operator = requests.send(());
                    }
                })
            })
        })
        .collect();
    drop(requests);
    let operator = (context.plan.operator == OperatorMode::On).then(|| {
        let context = Arc::clone(&context);
        watchdog.spawn("operator", move |progress| Operator::new(&context).run(progress, requested))
    });
    watchdog.watch();
    let client_logs = askers.into_iter().map(watchdog::join).collect();
    let operator_log = operator.map(watchdog::join).unwrap_or_default();
    audit::audit(&context, client_logs, operator_log)
}

/// Defines one test per stress run. `$new_store` is a function that makes a fresh store from an `Arc<SteppingClock>`.
#[macro_export]
macro_rules! stress_suite {
    ($new_store:path) => {
        $crate::stress_suite!($new_store:
            orders_on_one_row_are_explained 1 Off, orders_on_ten_rows_are_explained 10 Off, orders_on_ten_thousand_rows_are_explained 10_000 Off,
            edits_and_orders_on_one_row_are_explained 1 On, edits_and_orders_on_ten_rows_are_explained 10 On,
            edits_and_orders_on_ten_thousand_rows_are_explained 10_000 On,
        );
    };
    ($new_store:path: $($name:ident $keys:literal $operator:ident,)*) => {
        $(
            #[test]
            fn $name() {
                for seed in 1..=4 {
                    let plan = $crate::stress::StressPlan::of($keys, $crate::stress::OperatorMode::$operator);
                    $crate::stress::run_stress($new_store, $crate::stress::StressPlan { seed, ..plan }).assert_explained();
                }
            }
        )*
    };
}

#[cfg(test)]
mod tests;
