//! Storms: many threads against one store, and a record that must be explained.
//!
//! ```text
//!   8 askers    sets of 1 to 4 asks in any order, singly and in batches; leases taken, renewed, released, settled, lost
//!   1 operator  edits numbers and windows, strikes items out and writes them back, resets keys and whole limits
//!   1 watchdog  nobody may stand still
//! ```
//!
//! Everybody keeps a log: when they asked, when they heard, what they were told. When all is quiet the diaries of each
//! limit are laid side by side and handed to the [`checker`](crate::checker), which finds grants that no order of events
//! explains. Whatever can be said exactly is then said exactly: what a total counts is the sum of what was granted, so a
//! refused order left nothing behind; what was held has come back; what comes back by itself is back.
//!
//! Time passes by looking at the clock, so that a storm does not depend on how fast the machine is. Its rng are seeded: the
//! same plan throws the same orders, though threads may meet differently.

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

use tidegate::{Clock, ExpectedVersion, LimitSpec, LimitStore, Timestamp};

use crate::checker::ProofLevel;
use crate::test_scale;

use client::StressClient;
use operator::Operator;
use watchdog::{ThreadProgress, Watchdog};

/// How many threads ask.
pub const CLIENTS: usize = 8;

/// How long nobody may finish anything before it is called a deadlock.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// After how many orders the operator does something.
const ORDERS_PER_OPERATOR_ACTION: usize = 12;

/// What a storm is like.
#[derive(Debug, Clone)]
pub struct StressPlan {
    /// What the rng begin with.
    pub seed: u64,
    /// How many keys ask. Half of all orders are for the first few of them.
    pub keys: usize,
    /// How many orders each asker has.
    pub orders: usize,
    /// Whether somebody changes the limits meanwhile.
    pub operator: OperatorMode,
    /// Which decision times are believed.
    pub times: DecisionTimes,
    /// How long nobody may finish anything before it is called a deadlock.
    pub stall_timeout: Duration,
}

/// Whether somebody changes the limits meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperatorMode {
    /// Nobody does.
    Off,
    /// An operator edits and resets all but one of them.
    On,
}

/// Which decision times are believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecisionTimes {
    /// Those that the store reports. It must never decide before an instant it has seen.
    Reported,
    /// None: an order was decided while its asker waited for it. Nothing is proved exactly then.
    Bracketed,
}

impl StressPlan {
    /// A storm of this many keys in the usual length, or a longer one if `TIDEGATE_LONG` is set.
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

/// What came of a storm.
#[derive(Debug, Clone)]
pub struct StressReport {
    /// The rng it began with.
    pub seed: u64,
    /// Each limit in turn.
    pub limits: Vec<LimitFindings>,
    /// How many leases were granted.
    pub leases: usize,
    /// Everything that cannot be explained.
    pub faults: Vec<String>,
}

/// What was found out about one limit.
#[derive(Debug, Clone)]
pub struct LimitFindings {
    /// Its id.
    pub limit_id: String,
    /// How many rows were granted something.
    pub granted: usize,
    /// How many orders it refused, as the one that binds.
    pub refused: usize,
    /// How often its text was changed.
    pub edits: usize,
    /// How often it was reset.
    pub resets: usize,
    /// What the record shows, if it can be explained.
    pub proof: Option<ProofLevel>,
}

impl StressReport {
    /// Panics unless everything can be explained and every limit was really tried.
    ///
    /// # Panics
    /// If the store is not what it should be.
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
        writeln!(f, "storm with seed {}: {} leases", self.seed, self.leases)?;
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

/// A clock on which a millisecond passes whenever somebody looks.
#[derive(Debug)]
pub struct SteppingClock(AtomicU64);

/// How much time passes.
const STEP: u64 = 1_000_000;

impl SteppingClock {
    /// A clock that begins here.
    pub fn at(begins: Timestamp) -> SteppingClock {
        SteppingClock(AtomicU64::new(begins.ticks()))
    }

    /// Lets time pass without anybody looking.
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

/// What everybody in a storm shares.
struct StressContext {
    store: Arc<dyn LimitStore>,
    clock: Arc<SteppingClock>,
    plan: StressPlan,
    /// The limits as they are at first.
    limits: Vec<LimitSpec>,
}

/// Lets a storm loose on a fresh store and says what came of it. `bench` makes the store; it must go by the clock it is
/// given.
///
/// # Panics
/// If nobody gets anywhere for as long as the plan is patient, or a thread panics.
pub fn run_stress(
    bench: impl FnOnce(Arc<SteppingClock>) -> Arc<dyn LimitStore>,
    plan: StressPlan,
) -> StressReport {
    let clock = Arc::new(SteppingClock::at(workload::BEGINS));
    let store = bench(Arc::clone(&clock));
    let limits = workload::limits(&plan);
    for spec in &limits {
        store.put(spec.clone(), ExpectedVersion::Absent).expect("the limits of a storm are valid");
    }
    let context = Arc::new(StressContext { store, clock, plan, limits });
    let mut watchdog = Watchdog::new(context.plan.seed, context.plan.stall_timeout);
    let (deeds, ordered) = mpsc::channel();
    let askers: Vec<_> = (0..CLIENTS)
        .map(|index| {
            let (context, deeds) = (Arc::clone(&context), deeds.clone());
            watchdog.spawn(&format!("asker {index}"), move |progress| {
                StressClient::new(&context, index).work(progress, &|turn| {
                    if turn % ORDERS_PER_OPERATOR_ACTION == index {
                        // Nobody listens where there is no operator.
                        let _unheard = deeds.send(());
                    }
                })
            })
        })
        .collect();
    drop(deeds);
    let operator = (context.plan.operator == OperatorMode::On).then(|| {
        let context = Arc::clone(&context);
        watchdog.spawn("operator", move |progress| Operator::new(&context).work(progress, ordered))
    });
    watchdog.watch();
    let diaries = askers.into_iter().map(watchdog::join).collect();
    let deeds = operator.map(watchdog::join).unwrap_or_default();
    audit::close(&context, diaries, deeds)
}

/// Makes one test per storm. `$bench` is a function that makes a fresh store from an `Arc<SteppingClock>`.
#[macro_export]
macro_rules! stress_suite {
    ($bench:path) => {
        $crate::stress_suite!($bench:
            one_row 1 Off, ten_rows 10 Off, ten_thousand_rows 10_000 Off,
            one_row_with_an_operator 1 On, ten_rows_with_an_operator 10 On,
            ten_thousand_rows_with_an_operator 10_000 On,
        );
    };
    ($bench:path: $($name:ident $keys:literal $operator:ident,)*) => {
        $(
            #[test]
            fn $name() {
                for seed in 1..=4 {
                    let plan = $crate::stress::StressPlan::of($keys, $crate::stress::OperatorMode::$operator);
                    $crate::stress::run_stress($bench, $crate::stress::StressPlan { seed, ..plan }).assert_explained();
                }
            }
        )*
    };
}

#[cfg(test)]
mod tests;
