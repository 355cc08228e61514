//! The slowest decision on new keys, while a table grows and when a store is full.
//!
//! The CPU time of a thread includes interrupts and, on a virtual machine, time that the host takes. An empty
//! loop has pauses of milliseconds there. Three stores with the same secret and the same manual clock
//! therefore decide about the same keys and do the same work for each. The *median* of the three times is the
//! cost of a decision, and a pause in one of them does not count. governor places its keys at random, so that
//! its tables grow at different moments: it is measured alone, and its figures include the pauses.

use std::sync::Arc;

use serde_json::{Value, json};
use tidegate::clock::ManualClock;
use tidegate::rules;
use tidegate::store::memory::DEFAULT_CAPACITY;
use tidegate_bench::tidegate_subject::TIDEGATE;
use tidegate_bench::{BenchClient, BenchDecision, BenchSubject, BucketQuota, Tidegate, keys, process_stats};

use crate::args::Args;
use crate::peers::governor::{GOVERNOR, GovernorPeer};
use crate::report::{BenchReport, TargetBound};
use crate::{Failure, KEY_INTERVAL, NOON, flood, run_in_child};

/// The name of this scenario's child process.
pub(crate) const CHILD: &str = "slowest-decision";

/// The number of keys of a growing table.
const GROWTH_KEYS: u64 = 2_000_000;
/// The maximum number of keys of a flood. The store is full after one or two million.
const MAX_FLOOD_KEYS: u64 = 10_000_000;
const STORES: usize = 3;
/// The target for the slowest decision in milliseconds.
const MAX_MILLISECONDS: f64 = 1.0;

const GROWTH: &str = "growth";
/// The name of a flood, before its policy.
const FLOOD: &str = "flood, ";
const COLUMNS: [&str; 7] = ["scenario", "subject", "keys", "granted", "slowest", "99.99 %", "mean"];
const UNIT: &str = "nanoseconds of thread time";

/// Measures inserts into a table that grows from nothing.
pub(crate) fn growth(args: &Args, report: &mut BenchReport) -> Result<(), Failure> {
    report.table(&format!("One insert while a table grows, {UNIT}"), &COLUMNS);
    let keys = args.effort.of(GROWTH_KEYS);
    measure(GROWTH, TIDEGATE, keys, report)?;
    measure(GROWTH, GOVERNOR, keys, report)
}

/// Measures decisions of a flood.
pub(crate) fn flood(keys: u64, report: &mut BenchReport) -> Result<(), Failure> {
    report.table(&format!("One decision of such a flood, {UNIT}"), &COLUMNS);
    let names = flood::POLICIES.map(|policy| format!("{FLOOD}{policy}"));
    names.iter().try_for_each(|name| measure(name, TIDEGATE, keys.min(MAX_FLOOD_KEYS), report))
}

fn measure(scenario: &str, subject: &str, keys: u64, report: &mut BenchReport) -> Result<(), Failure> {
    let object = run_in_child(CHILD, &[scenario.to_owned(), subject.to_owned(), keys.to_string()])?;
    report.row(&COLUMNS, &object);
    if subject == TIDEGATE {
        let slowest = object["slowest"].as_f64().unwrap_or(f64::NAN) / 1e6;
        let scenario = format!("{scenario}, slowest decision");
        report.target(scenario, slowest, "ms", TargetBound::AtMost(MAX_MILLISECONDS));
    }
    Ok(())
}

/// Decides about new keys and reports the cost of a decision.
pub(crate) fn child(case: &[String]) -> Result<Value, Failure> {
    let [scenario, subject, keys] = case else { return Err("a case has three words".into()) };
    let clock = Arc::new(ManualClock::at(NOON));
    let subjects: Vec<Box<dyn BenchSubject>> = if subject == GOVERNOR {
        vec![Box::new(GovernorPeer::new(BucketQuota::LIVE))]
    } else {
        let (rule, capacity) = match scenario.as_str() {
            GROWTH => (BucketQuota::LIVE.rule(), DEFAULT_CAPACITY),
            name => {
                let policy = name.strip_prefix(FLOOD).ok_or("no such scenario")?;
                (flood::rule_of(policy)?, flood::CAPACITY)
            }
        };
        let limit = || vec![rules(rule.clone().per_key())];
        let store = || Tidegate::in_memory(Arc::clone(&clock), capacity, limit());
        (0..STORES).map(|_| -> Box<dyn BenchSubject> { Box::new(store()) }).collect()
    };
    let mut clients: Vec<Box<dyn BenchClient + '_>> =
        subjects.iter().map(|subject| subject.client()).collect();
    let count: u64 = keys.parse()?;
    let mut granted = 0_u64;
    let mut costs = Vec::with_capacity(usize::try_from(count)?);
    let mut key = String::new();
    for number in 0..count {
        clock.advance(KEY_INTERVAL);
        keys::write(&mut key, number);
        let mut times: Vec<(u64, BenchDecision)> =
            clients.iter_mut().map(|client| own_time(client.as_mut(), &key)).collect();
        granted += u64::from(times[0].1 == BenchDecision::Granted);
        if times.iter().any(|(_, decision)| *decision != times[0].1) {
            return Err(format!("equal stores disagree about key {number}").into());
        }
        times.sort_unstable_by_key(|(time, _)| *time);
        costs.push(times[times.len() / 2].0);
    }
    costs.sort_unstable();
    let last = costs.len().checked_sub(1).ok_or("there are no keys")?;
    Ok(json!({
        "scenario": scenario,
        "subject": subject,
        "keys": count,
        "granted": granted,
        "slowest": costs[last],
        "99.99 %": costs[last - costs.len() / 10_000],
        "mean": costs.iter().sum::<u64>() / count,
    }))
}

/// The CPU time of a decision in nanoseconds, and the decision.
fn own_time(client: &mut dyn BenchClient, key: &String) -> (u64, BenchDecision) {
    let started = process_stats::thread_time();
    let decision = client.decide(key);
    let time = process_stats::thread_time().saturating_sub(started);
    (u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), decision)
}
