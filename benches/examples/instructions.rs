//! The hot paths for `cargo xtask instructions`, which counts their instructions.
//!
//! Times on a shared machine vary, and instruction counts do not. A run executes one path and counts only
//! [`walk`]: all preparation precedes it. The clock stands still, or advances by a fixed step per read,
//! because sliding windows must slide. Without an argument the program lists the paths and their numbers of
//! decisions.

#![allow(clippy::print_stdout, reason = "its result is its standard output")]
#![allow(clippy::print_stderr, reason = "errors go to standard error")]

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::clock::Clock;
use tidegate::model::Timestamp;
use tidegate_bench::subjects::submit::{FourLimitOrders, SubmitSubject};
use tidegate_bench::subjects::tidegate::Tidegate;
use tidegate_bench::{BenchClient, BenchRule, BenchSubject, Keys, LimitScope, RequestMode};

/// The number of counted decisions, a multiple of the batch size.
const DECISIONS: usize = 16 * 1024;
const MANY: u64 = 100_000;

/// The interface of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallPath {
    /// Through the handles of the memory store.
    Handle,
    /// Through `submit`.
    Submit,
    /// Through `submit`, with four limits in one order.
    FourLimitOrder,
}

/// A clock that stands still and takes almost no instructions.
struct FixedClock;

impl Clock for FixedClock {
    fn now(&self) -> Timestamp {
        // Some time after the epoch, so that no window starts with the clock.
        Timestamp::from_ticks(1_700_000_000_000_000_000)
    }

    fn may_go_back(&self) -> bool {
        false
    }
}

/// A clock that advances by a step at each read.
struct StepClock {
    step: u64,
    now: AtomicU64,
}

impl StepClock {
    fn new(step: Duration) -> StepClock {
        let step = u64::try_from(step.as_nanos()).unwrap_or(u64::MAX);
        StepClock { step, now: AtomicU64::new(FixedClock.now().ticks()) }
    }
}

impl Clock for StepClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_ticks(self.now.fetch_add(self.step, Ordering::Relaxed))
    }

    fn may_go_back(&self) -> bool {
        false
    }
}

/// A path: the rules, the keys that are loaded before, the requested keys, and the interface.
struct HotPath {
    name: &'static str,
    rules: Vec<(BenchRule, LimitScope)>,
    loaded: Keys,
    keys: Keys,
    mode: RequestMode,
    call_path: CallPath,
    /// The clock step between decisions.
    step: Duration,
    /// The expected number of grants, which identifies the path.
    granted: usize,
}

impl HotPath {
    /// A path with single granted requests for one existing key.
    fn hot(name: &'static str, rules: Vec<(BenchRule, LimitScope)>) -> HotPath {
        let keys = Keys::hot(DECISIONS);
        let (mode, call_path) = (RequestMode::Singles, CallPath::Handle);
        let step = Duration::ZERO;
        HotPath { name, rules, loaded: keys.clone(), keys, mode, call_path, step, granted: DECISIONS }
    }

    /// A path with four limits in one order, the last of them per key.
    fn four_limits(name: &'static str, rules: [BenchRule; 4], step: Duration) -> HotPath {
        let [server, route, backend, client] = rules;
        let shared = [server, route, backend].map(|rule| (rule, LimitScope::Shared));
        HotPath {
            call_path: CallPath::FourLimitOrder,
            step,
            ..HotPath::hot(name, [&shared[..], &per_key(client)].concat())
        }
    }

    /// A path with random keys among many.
    fn among_many(name: &'static str, mode: RequestMode) -> HotPath {
        let keys = Keys::random(DECISIONS, MANY, 1);
        HotPath { loaded: Keys::each(MANY), keys, mode, ..HotPath::hot(name, per_key(BenchRule::LIVE)) }
    }
}

fn per_key(rule: BenchRule) -> Vec<(BenchRule, LimitScope)> {
    vec![(rule, LimitScope::PerKey)]
}

fn paths() -> [HotPath; 12] {
    let four = [vec![(BenchRule::FREE, LimitScope::Shared); 3], per_key(BenchRule::FREE)].concat();
    let new = Keys::each(DECISIONS as u64);
    let (many, fast) = (BenchRule::PerSecond(900_000), Duration::from_micros(20));
    let (some, slow) = (BenchRule::PerSecond(1_000), Duration::from_millis(40));
    [
        HotPath::hot("hot_granted", per_key(BenchRule::FREE)),
        HotPath { granted: 0, ..HotPath::hot("hot_refused", per_key(BenchRule::SPENT)) },
        HotPath::among_many("hit_among_100k", RequestMode::Singles),
        HotPath::among_many("batch_of_16", RequestMode::Batches),
        HotPath::hot("set_of_four", four),
        HotPath {
            call_path: CallPath::Submit,
            ..HotPath::hot("submit_hot_granted", per_key(BenchRule::FREE))
        },
        HotPath {
            call_path: CallPath::Submit,
            ..HotPath::among_many("submit_batch_of_16", RequestMode::Batches)
        },
        HotPath {
            loaded: Keys::default(),
            keys: new,
            ..HotPath::hot("insert_new_key", per_key(BenchRule::LIVE))
        },
        HotPath::four_limits("order_fixed", [BenchRule::FREE; 4], fast),
        HotPath::four_limits("order_sliding", [many; 4], fast),
        HotPath::four_limits("order_exact", [some, some, some, BenchRule::PerSecond(30)], slow),
        HotPath {
            granted: 0,
            ..HotPath::four_limits("order_refused", [many, BenchRule::PerSecond(1), many, many], fast)
        },
    ]
}

fn main() -> ExitCode {
    let Some(wanted) = std::env::args().nth(1) else {
        for path in paths() {
            println!("{} {DECISIONS}", path.name);
        }
        return ExitCode::SUCCESS;
    };
    match paths().iter().find(|path| path.name == wanted).map(run_path) {
        Some(Ok(())) => ExitCode::SUCCESS,
        Some(Err(failure)) => report_failure(&failure),
        None => report_failure("no such path"),
    }
}

fn report_failure(failure: &str) -> ExitCode {
    eprintln!("instructions: {failure}");
    ExitCode::FAILURE
}

/// Prepares and runs a path.
fn run_path(path: &HotPath) -> Result<(), String> {
    let subject: Box<dyn BenchSubject> = match (path.call_path, path.rules.as_slice()) {
        (CallPath::Submit, [(rule, LimitScope::PerKey)]) => {
            Box::new(SubmitSubject::memory(FixedClock, *rule))
        }
        (CallPath::FourLimitOrder, rules) => {
            let orders = FourLimitOrders::memory(StepClock::new(path.step), rules);
            Box::new(orders.ok_or("an order must have four limits")?)
        }
        (CallPath::Submit, _) => return Err("submit uses only one limit".to_owned()),
        (CallPath::Handle, rules) => Box::new(Tidegate::new(FixedClock, rules)),
    };
    let mut client = subject.client();
    client.decide_singly(&path.loaded);
    let granted = walk(client.as_mut(), path);
    if granted == path.granted {
        Ok(())
    } else {
        Err(format!("{}: {granted} were granted in place of {}", path.name, path.granted))
    }
}

/// The counted part.
#[inline(never)]
fn walk(client: &mut dyn BenchClient, path: &HotPath) -> usize {
    match path.mode {
        RequestMode::Singles => client.decide_singly(&path.keys),
        RequestMode::Batches => client.decide_in_batches(&path.keys),
    }
}
