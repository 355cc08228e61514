//! The hot paths for `cargo xtask instructions`, which counts their instructions.
//!
//! Times on a shared machine vary, and instruction counts do not. A run executes one path and counts only
//! [`walk`]: all preparation precedes it. The clock stands still, or advances by a fixed step per read,
//! because sliding windows must slide. Without an argument the program lists the paths and their numbers of
//! decisions. `handle_` paths call a `Limiter` as programs do. `submit_` and `order_` paths call
//! `Store::submit` as servers do, the latter with four limits in one order.

#![allow(clippy::print_stdout, reason = "its result is its standard output")]
#![allow(clippy::print_stderr, reason = "errors go to standard error")]

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::clock::Clock;
use tidegate::model::{Precision, Timestamp};
use tidegate::store::memory::DEFAULT_CAPACITY;
use tidegate::{LimitRules, Rule, concurrency, day, hour, minute, month, rules, sliding};
use tidegate_bench::{BenchClient, BenchSubject, BucketQuota, Keys, RequestMode, Tidegate};

/// The number of counted decisions, a multiple of the batch size.
const DECISIONS: usize = 16 * 1024;
const MANY: u64 = 100_000;
/// A limit that no path reaches, and units that are charged before the counting: past any packed number of bits.
const LARGE: u32 = 1_000_000_000;
const CHARGED: u64 = 150_000;
/// Some time after the epoch, so that no window starts with the clock.
const START: u64 = 1_700_000_000_000_000_000;

/// A clock that advances by a step at each read, or stands still.
struct StepClock {
    step: u64,
    now: AtomicU64,
}

impl Clock for StepClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_ticks(self.now.fetch_add(self.step, Ordering::Relaxed))
    }

    fn may_go_back(&self) -> bool {
        false
    }
}

/// A path: the limits, the keys that are loaded before, and the requested keys.
struct HotPath {
    name: &'static str,
    limits: Vec<LimitRules>,
    loaded: Keys,
    /// The units that each loaded key is charged.
    units: u64,
    keys: Keys,
    mode: RequestMode,
    /// The clock step between decisions.
    step: Duration,
    /// The expected number of grants, which identifies the path.
    granted: usize,
}

impl HotPath {
    /// A path with single granted requests for one existing key.
    fn hot(name: &'static str, limits: Vec<LimitRules>) -> HotPath {
        let (loaded, keys, mode) = (Keys::hot(DECISIONS), Keys::hot(DECISIONS), RequestMode::Singles);
        HotPath { name, limits, loaded, units: 1, keys, mode, step: Duration::ZERO, granted: DECISIONS }
    }

    /// A path with one limit of these items per key, whose counts are large.
    fn counted(name: &'static str, items: Vec<Rule>) -> HotPath {
        HotPath { loaded: Keys::hot(1), units: CHARGED, ..HotPath::hot(name, per_key(items)) }
    }

    /// A path with random keys among many.
    fn among_many(name: &'static str, mode: RequestMode) -> HotPath {
        let keys = Keys::random(DECISIONS, MANY, 1);
        HotPath {
            loaded: Keys::each(MANY),
            keys,
            mode,
            ..HotPath::hot(name, per_key(vec![BucketQuota::LIVE.rule()]))
        }
    }

    /// A path with four limits, the last of them per key.
    fn four_limits(
        name: &'static str,
        [server, route, backend, client]: [Rule; 4],
        step: Duration,
    ) -> HotPath {
        let shared = [server, route, backend].map(rules);
        HotPath { step, ..HotPath::hot(name, [&shared[..], &per_key(vec![client])].concat()) }
    }
}

/// One limit with these items per key.
fn per_key(items: Vec<Rule>) -> Vec<LimitRules> {
    vec![rules(items.into_iter().map(Rule::per_key).collect::<Vec<_>>())]
}

/// Units in any second, as the gateway counts requests: exactly up to a thousand, above that in 64 parts.
fn per_second(limit: u32) -> Rule {
    let precision = if limit <= 1_000 { Precision::Exact } else { Precision::Bucketed };
    sliding(limit, Duration::from_secs(1)).precision(precision)
}

fn paths() -> Vec<HotPath> {
    let free = || BucketQuota::FREE.rule();
    let four = |rule: fn() -> Rule| [rule(), rule(), rule(), rule()];
    let (many, fast) = (|| per_second(900_000), Duration::from_micros(20));
    let (some, slow) = (|| per_second(1_000), Duration::from_millis(40));
    let windows = vec![minute(LARGE), hour(LARGE), day(LARGE), month(LARGE)];
    vec![
        HotPath::hot("handle_hot_granted", per_key(vec![free()])),
        HotPath {
            granted: 0,
            ..HotPath::hot("handle_hot_refused", per_key(vec![BucketQuota::SPENT.rule()]))
        },
        HotPath::among_many("handle_hit_among_100k", RequestMode::Singles),
        HotPath::among_many("handle_batch_of_16", RequestMode::Batches),
        HotPath {
            loaded: Keys::default(),
            keys: Keys::each(DECISIONS as u64),
            ..HotPath::hot("handle_insert_new_key", per_key(vec![BucketQuota::LIVE.rule()]))
        },
        HotPath::four_limits("handle_set_of_four", four(|| BucketQuota::FREE.rule()), Duration::ZERO),
        HotPath::counted("handle_day_hot", vec![day(LARGE)]),
        HotPath::counted("handle_two_items", vec![free(), day(LARGE)]),
        HotPath::counted("handle_four_items", windows),
        HotPath {
            // Two to four entries are in the window.
            step: Duration::from_secs(4),
            ..HotPath::hot("handle_sliding", per_key(vec![sliding(5, Duration::from_secs(15))]))
        },
        HotPath::hot("handle_lease", per_key(vec![concurrency(LARGE)])),
        HotPath::hot("submit_hot_granted", per_key(vec![free()])),
        HotPath::among_many("submit_batch_of_16", RequestMode::Batches),
        HotPath::four_limits("order_fixed", four(|| BucketQuota::FREE.rule()), fast),
        HotPath::four_limits("order_sliding", [many(), many(), many(), many()], fast),
        HotPath::four_limits("order_exact", [some(), some(), some(), per_second(30)], slow),
        HotPath {
            granted: 0,
            ..HotPath::four_limits("order_refused", [many(), per_second(1), many(), many()], fast)
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
    let step = u64::try_from(path.step.as_nanos()).unwrap_or(u64::MAX);
    let clock = StepClock { step, now: AtomicU64::new(START) };
    let limiter = Tidegate::in_memory(clock, DEFAULT_CAPACITY, path.limits.clone()).requesting(path.units);
    limiter.client().decide_singly(&path.loaded);
    let limiter = limiter.requesting(1);
    let subject = if path.name.starts_with("handle_") { limiter } else { limiter.through_submit() };
    let granted = walk(subject.client().as_mut(), path);
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
        RequestMode::Singles | RequestMode::Timed => client.decide_singly(&path.keys),
        RequestMode::Batches => client.decide_in_batches(&path.keys),
    }
}
