//! A flood: more keys than a store has room for, once with rows that need not be kept and once with rows that must be.
//!
//! Beside it somebody asks another limit of the same store, whose keys were there before. It must not notice.

use serde_json::json;
use tidegate::SystemClock;
use tidegate_bench::subjects::tidegate::{NAME, Tidegate};
use tidegate_bench::{Asker, Reach, Rule, Said, keys, machine};

use crate::args::Args;
use crate::report::Report;

const ROOM: u64 = 64 << 20;
/// The other limit is asked once in so many decisions.
const SELDOM: u64 = 1_000;
/// How many keys the other limit has.
const NEIGHBOURS: u64 = 100;

const COLUMNS: [&str; 11] = [
    "rule",
    "keys",
    "granted",
    "refused",
    "degraded",
    "of these granted",
    "slowest, µs",
    "slowest, own time, µs",
    "ns/decision",
    "grown, MiB",
    "neighbours refused",
];

pub(crate) fn run(args: &Args, report: &mut Report) {
    let keys = args.effort.of(args.flood_keys);
    report.head(&format!("{keys} keys against {} MiB, {NAME}", ROOM >> 20), &COLUMNS);
    for (name, rule) in [("bucket, fresh in 0.1 s", Rule::BRIEF), ("day", Rule::Day(1_000))] {
        let tally = Tally::of(rule, keys);
        report.row(&tally.cells(name, keys), &tally.object(name, keys));
    }
}

/// What was said, and what it cost.
#[derive(Debug, Default)]
struct Tally {
    granted: u64,
    refused: u64,
    /// Answered by rule, because there was no room to remember.
    degraded: u64,
    degraded_granted: u64,
    neighbours_refused: u64,
    slowest_ns: u64,
    slowest_own_ns: u64,
    mean_ns: u64,
    grown_bytes: u64,
}

impl Tally {
    fn of(rule: Rule, keys: u64) -> Tally {
        let before = machine::resident_bytes();
        let store =
            Tidegate::capped(SystemClock::new(), &[(rule, Reach::PerKey), (Rule::FREE, Reach::PerKey)], ROOM);
        let (mut flood, mut neighbour) = (store.asker_of(0), store.asker_of(1));
        let mut tally = Tally::default();
        (0..NEIGHBOURS).for_each(|number| tally.ask_neighbour(neighbour.as_mut(), number));
        let began = machine::wall_time();
        let mut key = String::new();
        for number in 0..keys {
            keys::write(&mut key, number);
            tally.ask(flood.as_mut(), &key);
            if number % SELDOM == 0 {
                tally.ask_neighbour(neighbour.as_mut(), number / SELDOM % NEIGHBOURS);
            }
        }
        tally.mean_ns =
            u64::try_from(machine::wall_time().saturating_sub(began).as_nanos() / u128::from(keys.max(1)))
                .unwrap_or(u64::MAX);
        tally.grown_bytes = machine::resident_bytes().saturating_sub(before);
        tally
    }

    fn ask(&mut self, asker: &mut dyn Asker, key: &str) {
        let (began, began_own) = (machine::wall_time(), machine::thread_time());
        let said = asker.ask(key);
        let own = machine::thread_time().saturating_sub(began_own);
        let wall = machine::wall_time().saturating_sub(began);
        self.slowest_ns = self.slowest_ns.max(u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX));
        self.slowest_own_ns = self.slowest_own_ns.max(u64::try_from(own.as_nanos()).unwrap_or(u64::MAX));
        match said {
            Said::Granted => self.granted += 1,
            Said::Refused => self.refused += 1,
            Said::GrantedByRule => {
                self.degraded += 1;
                self.degraded_granted += 1;
            }
            Said::RefusedByRule => self.degraded += 1,
        }
    }

    fn ask_neighbour(&mut self, asker: &mut dyn Asker, number: u64) {
        let mut key = String::new();
        keys::write(&mut key, number);
        self.neighbours_refused += u64::from(asker.ask(&key) != Said::Granted);
    }

    fn cells(&self, name: &str, keys: u64) -> Vec<String> {
        let figures = [
            keys,
            self.granted,
            self.refused,
            self.degraded,
            self.degraded_granted,
            self.slowest_ns / 1_000,
            self.slowest_own_ns / 1_000,
            self.mean_ns,
            self.grown_bytes >> 20,
            self.neighbours_refused,
        ];
        [name.to_owned()].into_iter().chain(figures.map(|figure| figure.to_string())).collect()
    }

    fn object(&self, name: &str, keys: u64) -> serde_json::Value {
        json!({
            "scenario": "flood",
            "subject": NAME,
            "rule": name,
            "keys": keys,
            "granted": self.granted,
            "refused": self.refused,
            "degraded": self.degraded,
            "degraded_granted": self.degraded_granted,
            "slowest_ns": self.slowest_ns,
            "slowest_own_ns": self.slowest_own_ns,
            "ns_per_decision": self.mean_ns,
            "grown_bytes": self.grown_bytes,
            "neighbours_refused": self.neighbours_refused,
        })
    }
}
