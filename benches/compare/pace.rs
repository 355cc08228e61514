//! The slowest decision of a flood: what the store costs, told from what the machine does meanwhile.
//!
//! A thread's own time also counts what was done behind its back: interrupts, and on a virtual machine whatever its host takes for
//! others. A loop that does nothing has pauses of milliseconds there. So the flood is decided by three stores with the same secret
//! and the same clock, which is set by hand: they do the same work for the same key. The *middle* of their three times is what a
//! decision takes, and a pause in one of them does not count.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate::clock::ManualClock;
use tidegate::model::Timestamp;
use tidegate_bench::subjects::tidegate::Tidegate;
use tidegate_bench::{Asker, Reach, Rule, Said, keys, machine};

use crate::bars::{Bar, Measure, Need};
use crate::flood::{ROOM, RULES, rule_of};
use crate::report::Report;
use crate::{Failure, in_a_child};

/// What this scenario's child is called.
pub(crate) const CHILD: &str = "pace";

/// The most keys that it takes to see everything: the store is full after a million or two.
const MOST_KEYS: u64 = 10_000_000;
/// Noon of some day, so that none ends meanwhile.
const NOON: Timestamp = Timestamp::from_ticks((19_000 * 86_400 + 43_200) * 1_000_000_000);
/// How long after the key before it each key comes.
const APART: Duration = Duration::from_micros(1);
const STORES: usize = 3;
/// What the slowest decision may take, in milliseconds.
const SLOWEST: f64 = 1.0;

const COLUMNS: [(&str, &str); 6] = [
    ("rule", "rule"),
    ("keys", "keys"),
    ("granted", "granted"),
    ("slowest_own_ns", "slowest of all"),
    ("slowest_middle_ns", "slowest, middle of three"),
    ("mean_own_ns", "mean"),
];

pub(crate) fn run(keys: u64, report: &mut Report) -> Result<(), Failure> {
    let keys = keys.min(MOST_KEYS);
    let head = "One decision of such a flood, by three stores alike, nanoseconds of own time";
    report.head(head, &COLUMNS.map(|column| column.1));
    for rule in RULES {
        let object = in_a_child(CHILD, &[rule.to_owned(), keys.to_string()])?;
        let cells = COLUMNS.map(|(name, _)| match &object[name] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        });
        report.row(&cells, &object);
        report.bar(Bar {
            scenario: format!("flood, {rule}, slowest decision"),
            measure: Measure::Milliseconds,
            need: Need::AtMost(SLOWEST),
            figure: object["slowest_middle_ns"].as_f64().unwrap_or(f64::NAN) / 1e6,
        });
    }
    Ok(())
}

/// Floods three stores at once, and says what a decision took.
pub(crate) fn child(case: &[String]) -> Result<Value, Failure> {
    let [rule, keys] = case else { return Err("a case has two words".into()) };
    let (kind, count): (Rule, u64) = (rule_of(rule)?, keys.parse()?);
    let clock = Arc::new(ManualClock::at(NOON));
    let stores: [Tidegate; STORES] =
        std::array::from_fn(|_| Tidegate::capped(Arc::clone(&clock), &[(kind, Reach::PerKey)], ROOM));
    let mut askers = stores.each_ref().map(|store| store.asker_of(0));
    let (mut granted, mut slowest, mut slowest_middle, mut sum) = (0, 0, 0, 0);
    let mut key = String::new();
    for number in 0..count {
        clock.advance(APART);
        keys::write(&mut key, number);
        let mut times = askers.each_mut().map(|asker| own_time(asker.as_mut(), &key));
        granted += u64::from(times[0].1 == Said::Granted);
        if times.iter().any(|(_, said)| *said != times[0].1) {
            return Err(format!("three stores alike disagree about key {number}").into());
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

/// What a decision took of this thread's own time, in nanoseconds, and what was said.
fn own_time(asker: &mut dyn Asker, key: &str) -> (u64, Said) {
    let began = machine::thread_time();
    let said = asker.ask(key);
    let time = machine::thread_time().saturating_sub(began);
    (u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), said)
}
