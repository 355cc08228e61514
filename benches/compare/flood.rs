//! A flood: more keys than a store has room for, with short-lived rows and with rows that must be kept.
//!
//! | policy | expected |
//! |---|---|
//! | `bucket`, expires in 0.1 s | all keys are granted, a key over its limit is refused, and no decision is degraded |
//! | `day` | new keys are refused in degraded mode once the store is full; earlier keys are still counted exactly |
//!
//! [`crate::slowest_decision`] measures the slowest decision separately.
//!
//! Meanwhile another limit of the same store is requested with existing and new keys, and must not be
//! affected. Handles do not report degraded decisions. One request in a thousand uses `submit`, which does.

use serde_json::{Value, json};
use tidegate::clock::{Clock, SystemClock};
use tidegate::{Rule, day, rules};
use tidegate_bench::{BenchClient, BenchDecision, BucketQuota, Tidegate, keys, process_stats};

use crate::report::{BenchReport, TargetBound};
use crate::{Failure, run_in_child};

/// The name of this scenario's child process.
pub(crate) const CHILD: &str = "flood";

/// The policies of the flooded limit.
pub(crate) const POLICIES: [&str; 2] = ["bucket", "day"];

pub(crate) const CAPACITY: usize = 64 << 20;
/// The allowed growth of the process besides the rows: code, stacks, the allocator.
const BESIDE_ROWS: usize = 4 << 20;
/// The maximum of it without rows, and the per-thread memory for moving rows, in MiB.
const MAX_UNREPORTED: f64 = 1.0;
/// The interval of the other checks in decisions.
const SAMPLE_EVERY: u64 = 1_000;
/// The number of keys of the other limit before the flood.
const NEIGHBORS: u64 = 100;
/// The number of early keys that are requested again.
const EARLY: u64 = 1_000;
/// The daily limit of each key.
const PER_DAY: u32 = 20;
const NANOSECONDS_A_DAY: u64 = 86_400_000_000_000;

const FLOODED: usize = 0;
const OTHER: usize = 1;

const COLUMNS: [&str; 14] = [
    "policy",
    "keys",
    "granted",
    "refused",
    "sampled",
    "degraded",
    "rows",
    "slowest, ns",
    "slowest, own time, ns",
    "ns per decision",
    "grown, bytes",
    "reported, bytes",
    "wrong",
    "neighbors refused",
];

pub(crate) fn run(keys: u64, report: &mut BenchReport) -> Result<(), Failure> {
    report.table(&format!("{keys} keys against {} MiB", CAPACITY >> 20), &COLUMNS);
    for policy in POLICIES {
        let object = run_in_child(CHILD, &[policy.to_owned(), keys.to_string()])?;
        report.row(&COLUMNS, &object);
        judge(policy, &object, report);
    }
    crate::slowest_decision::flood(keys, report)
}

/// The rule of the flooded policy with this name.
pub(crate) fn rule_of(policy: &str) -> Result<Rule, Failure> {
    match policy {
        "bucket" => Ok(BucketQuota::BRIEF.rule()),
        "day" => Ok(day(PER_DAY)),
        _ => Err("no such policy".into()),
    }
}

fn judge(policy: &str, object: &Value, report: &mut BenchReport) {
    let figure = |name: &str| object[name].as_f64().unwrap_or(f64::NAN);
    let mib = 1_048_576.0;
    let most = u32::try_from((CAPACITY + BESIDE_ROWS) >> 20).map_or(f64::NAN, f64::from);
    let mut at_most = |what: &str, bound, figure, measure| {
        report.target(format!("flood, {policy}, {what}"), figure, measure, TargetBound::AtMost(bound));
    };
    at_most("memory", most, figure("grown, bytes") / mib, "MiB grown");
    let unreported = (figure("grown, bytes") - figure("reported, bytes")) / mib;
    at_most("memory that the store does not report", MAX_UNREPORTED, unreported, "MiB grown");
    at_most("wrong answers", 0.0, figure("wrong"), "decisions");
    at_most("neighbors refused", 0.0, figure("neighbors refused"), "decisions");
    if policy == "bucket" {
        at_most("refused or degraded", 0.0, figure("refused"), "decisions");
    } else {
        at_most("degraded grants", 0.0, figure("degraded grants"), "decisions");
    }
}

/// Floods a store and reports its decisions and costs.
pub(crate) fn child(case: &[String]) -> Result<Value, Failure> {
    let [policy, keys] = case else { return Err("a case has two words".into()) };
    let rule = rule_of(policy)?;
    let retention = if policy == "bucket" { Retention::Short } else { Retention::Day };
    let count: u64 = keys.parse()?;
    let (clock, before) = (SystemClock::new(), process_stats::resident_bytes());
    let day = || clock.now().ticks() / NANOSECONDS_A_DAY;
    let first_day = day();
    let limits = [rule, BucketQuota::LIVE.rule()].map(|rule| rules(rule.per_key())).to_vec();
    let store = Tidegate::in_memory(SystemClock::new(), CAPACITY, limits);
    let mut tally = FloodTally::default();
    let started = process_stats::wall_time();
    FloodRun::over(&store, retention, &mut tally).run(count);
    let elapsed = process_stats::wall_time().saturating_sub(started);
    if retention == Retention::Day && day() != first_day {
        return Err("the day ended meanwhile, and the counts with it; run it again".into());
    }
    Ok(json!({
        "scenario": "flood",
        "policy": policy,
        "keys": count,
        "granted": tally.granted,
        "refused": tally.refused,
        "sampled": tally.sampled,
        "degraded": tally.degraded,
        "degraded grants": tally.degraded_granted,
        "rows": store.rows_of(FLOODED),
        "slowest, ns": tally.slowest_ns,
        "slowest, own time, ns": tally.slowest_own_ns,
        "ns per decision": nanoseconds(elapsed) / count.max(1),
        "grown, bytes": process_stats::peak_resident_bytes().saturating_sub(before),
        "reported, bytes": store.bytes(),
        "wrong": tally.wrong,
        "neighbors refused": tally.neighbors_refused,
    }))
}

/// How long the rows of the flooded limit must be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Retention {
    Short,
    Day,
}

/// The decisions and costs of a flood.
#[derive(Debug, Default)]
struct FloodTally {
    granted: u64,
    refused: u64,
    /// Requests through `submit`, which reports degraded decisions.
    sampled: u64,
    degraded: u64,
    degraded_granted: u64,
    /// Decisions or counts that are wrong.
    wrong: u64,
    neighbors_refused: u64,
    slowest_ns: u64,
    slowest_own_ns: u64,
}

struct FloodRun<'a> {
    store: &'a Tidegate,
    retention: Retention,
    handle: Box<dyn BenchClient + 'a>,
    submit_client: Box<dyn BenchClient + 'a>,
    neighbor: Box<dyn BenchClient + 'a>,
    /// The number of requests for each early key.
    early: Vec<u64>,
    tally: &'a mut FloodTally,
    key: String,
}

impl<'a> FloodRun<'a> {
    fn over(store: &'a Tidegate, retention: Retention, tally: &'a mut FloodTally) -> FloodRun<'a> {
        FloodRun {
            store,
            retention,
            handle: store.handle_client(FLOODED),
            submit_client: store.submit_client(FLOODED),
            neighbor: store.handle_client(OTHER),
            early: Vec::new(),
            tally,
            key: String::new(),
        }
    }

    fn run(&mut self, count: u64) {
        (0..NEIGHBORS).for_each(|number| self.decide_neighbor(number));
        for number in 0..count {
            let sampled = number % SAMPLE_EVERY == 0;
            let started = process_stats::wall_time();
            self.decide(number, sampled);
            if number < EARLY && self.retention == Retention::Day {
                self.early.push(1);
            }
            if !sampled {
                continue;
            }
            let turn = number / SAMPLE_EVERY;
            match self.retention {
                Retention::Short => self.exhaust(started),
                Retention::Day => self.decide_early(turn % EARLY),
            }
            self.decide_neighbor(turn % NEIGHBORS);
            self.decide_neighbor(NEIGHBORS + turn);
        }
        self.check_early();
    }

    /// Requests a new key and measures the time.
    fn decide(&mut self, number: u64, sampled: bool) {
        keys::write(&mut self.key, number);
        let client = if sampled { &mut self.submit_client } else { &mut self.handle };
        let (started, started_own) = (process_stats::wall_time(), process_stats::thread_time());
        let decision = client.decide(&self.key);
        let own = process_stats::thread_time().saturating_sub(started_own);
        let wall = process_stats::wall_time().saturating_sub(started);
        let tally = &mut *self.tally;
        tally.slowest_ns = tally.slowest_ns.max(nanoseconds(wall));
        tally.slowest_own_ns = tally.slowest_own_ns.max(nanoseconds(own));
        tally.sampled += u64::from(sampled);
        tally.degraded +=
            u64::from(matches!(decision, BenchDecision::DegradedGrant | BenchDecision::DegradedRefusal));
        tally.degraded_granted += u64::from(decision == BenchDecision::DegradedGrant);
        match decision {
            BenchDecision::Granted | BenchDecision::DegradedGrant => tally.granted += 1,
            BenchDecision::Refused | BenchDecision::DegradedRefusal => tally.refused += 1,
        }
    }

    /// Requests the present key until it must be used up. Units that return meanwhile are granted as well.
    fn exhaust(&mut self, started: std::time::Duration) {
        let BucketQuota { refill, burst } = BucketQuota::BRIEF;
        let granted =
            (0..burst).filter(|_| self.handle.decide(&self.key) == BenchDecision::Granted).count() as u64 + 1;
        let elapsed = process_stats::wall_time().saturating_sub(started);
        let came_back = nanoseconds(elapsed) / nanoseconds(refill) + 1;
        let most = u64::from(burst) + if elapsed < refill { 0 } else { came_back };
        self.tally.wrong += u64::from(!(u64::from(burst)..=most).contains(&granted));
    }

    /// Requests a key that existed before the store was full.
    fn decide_early(&mut self, number: u64) {
        let Some(requested) = usize::try_from(number).ok().and_then(|number| self.early.get_mut(number))
        else {
            return;
        };
        *requested += 1;
        let expected = BenchDecision::of(*requested <= u64::from(PER_DAY));
        keys::write(&mut self.key, number);
        self.tally.wrong += u64::from(self.handle.decide(&self.key) != expected);
    }

    /// Checks the exact counts of early keys.
    fn check_early(&mut self) {
        for (number, requested) in (0..).zip(&self.early) {
            keys::write(&mut self.key, number);
            let used = self.store.used(FLOODED, &self.key);
            self.tally.wrong += u64::from(used != (*requested).min(PER_DAY.into()));
        }
    }

    fn decide_neighbor(&mut self, number: u64) {
        keys::write(&mut self.key, number);
        self.tally.neighbors_refused += u64::from(self.neighbor.decide(&self.key) != BenchDecision::Granted);
    }
}

fn nanoseconds(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
