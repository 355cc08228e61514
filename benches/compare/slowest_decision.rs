//! The slowest decision of a flood, separated from disturbances by the machine.
//!
//! The CPU time of a thread includes interrupts and, on a virtual machine, time that the host takes. An empty
//! loop has pauses of milliseconds there. Three stores with the same secret and the same manual clock
//! therefore process the flood and do the same work for each key. The *median* of the three times is the cost
//! of a decision, and a pause in one of them does not count.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate::clock::ManualClock;
use tidegate::model::Timestamp;
use tidegate_bench::subjects::tidegate::Tidegate;
use tidegate_bench::{BenchClient, BenchDecision, BenchRule, LimitScope, keys, process_stats};

use crate::flood::{CAPACITY, RULES, rule_of};
use crate::report::BenchReport;
use crate::targets::{BenchTarget, TargetBound, TargetMeasure};
use crate::{Failure, run_in_child};

/// The name of this scenario's child process.
pub(crate) const CHILD: &str = "pace";

/// The maximum number of keys. The store is full after one or two million.
const MAX_KEYS: u64 = 10_000_000;
/// Noon, so that no day ends during the run.
const NOON: Timestamp = Timestamp::from_ticks((19_000 * 86_400 + 43_200) * 1_000_000_000);
/// The interval between two keys.
const KEY_INTERVAL: Duration = Duration::from_micros(1);
const STORES: usize = 3;
/// The target for the slowest decision in milliseconds.
const MAX_MILLISECONDS: f64 = 1.0;

const COLUMNS: [(&str, &str); 6] = [
    ("rule", "rule"),
    ("keys", "keys"),
    ("granted", "granted"),
    ("slowest_own_ns", "slowest of all"),
    ("slowest_middle_ns", "slowest, middle of three"),
    ("mean_own_ns", "mean"),
];

pub(crate) fn run(keys: u64, report: &mut BenchReport) -> Result<(), Failure> {
    let keys = keys.min(MAX_KEYS);
    let head = "One decision of such a flood, in three equal stores, nanoseconds of thread time";
    report.head(head, &COLUMNS.map(|column| column.1));
    for rule in RULES {
        let object = run_in_child(CHILD, &[rule.to_owned(), keys.to_string()])?;
        let cells = COLUMNS.map(|(name, _)| match &object[name] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        });
        report.row(&cells, &object);
        report.target(BenchTarget {
            scenario: format!("flood, {rule}, slowest decision"),
            measure: TargetMeasure::Milliseconds,
            bound: TargetBound::AtMost(MAX_MILLISECONDS),
            figure: object["slowest_middle_ns"].as_f64().unwrap_or(f64::NAN) / 1e6,
        });
    }
    Ok(())
}

/// Floods three stores and reports the cost of a decision.
pub(crate) fn child(case: &[String]) -> Result<Value, Failure> {
    let [rule, keys] = case else { return Err("a case has two words".into()) };
    let (kind, count): (BenchRule, u64) = (rule_of(rule)?, keys.parse()?);
    let clock = Arc::new(ManualClock::at(NOON));
    let stores: [Tidegate; STORES] = std::array::from_fn(|_| {
        Tidegate::capped(Arc::clone(&clock), &[(kind, LimitScope::PerKey)], CAPACITY)
    });
    let mut clients = stores.each_ref().map(|store| store.client_for(0));
    let (mut granted, mut slowest, mut slowest_middle, mut sum) = (0, 0, 0, 0);
    let mut key = String::new();
    for number in 0..count {
        clock.advance(KEY_INTERVAL);
        keys::write(&mut key, number);
        let mut times = clients.each_mut().map(|client| own_time(client.as_mut(), &key));
        granted += u64::from(times[0].1 == BenchDecision::Granted);
        if times.iter().any(|(_, decision)| *decision != times[0].1) {
            return Err(format!("three equal stores disagree about key {number}").into());
        }
        times.sort_unstable_by_key(|(time, _)| *time);
        slowest = times[STORES - 1].0.max(slowest);
        slowest_middle = times[STORES / 2].0.max(slowest_middle);
        sum += times.iter().map(|(time, _)| time).sum::<u64>();
    }
    Ok(json!({
        "scenario": "pace",
        "rule": rule,
        "keys": count,
        "granted": granted,
        "slowest_own_ns": slowest,
        "slowest_middle_ns": slowest_middle,
        "mean_own_ns": sum / (count * STORES as u64).max(1),
    }))
}

/// The CPU time of a decision in nanoseconds, and the decision.
fn own_time(client: &mut dyn BenchClient, key: &str) -> (u64, BenchDecision) {
    let started = process_stats::thread_time();
    let decision = client.decide(key);
    let time = process_stats::thread_time().saturating_sub(started);
    (u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), decision)
}
