//! The slowest insert while a table grows.
//!
//! Wall time includes the time of other programs. The CPU time of the thread does not and shows the cost of
//! the table. Reading it takes a system call, which is part of every figure.

use std::time::Duration;

use serde_json::json;
use tidegate::clock::SystemClock;
use tidegate_bench::subjects::tidegate::Tidegate;
use tidegate_bench::{BenchRule, BenchSubject, LimitScope, keys, process_stats};

use crate::args::Args;
use crate::peers::governor::GovernorPeer;
use crate::report::BenchReport;

const KEYS: u64 = 2_000_000;

pub(crate) fn run(args: &Args, report: &mut BenchReport) {
    let count = args.effort.of(KEYS);
    let columns = ["subject", "keys", "slowest", "99.99 %", "slowest, own time", "99.99 %, own time"];
    report.head("One insert while a table grows from nothing, microseconds", &columns);
    let tidegate = Tidegate::new(SystemClock::new(), &[(BenchRule::LIVE, LimitScope::PerKey)]);
    let governor = GovernorPeer::new(BenchRule::LIVE);
    let subjects: [&dyn BenchSubject; 2] = [&tidegate, &governor];
    for subject in subjects {
        let (wall, own) = inserts(subject, count);
        let figures = [last(&wall), rare(&wall), last(&own), rare(&own)];
        let object = json!({
            "scenario": "growth",
            "subject": subject.name(),
            "keys": count,
            "slowest_ns": figures[0],
            "p9999_ns": figures[1],
            "slowest_own_ns": figures[2],
            "p9999_own_ns": figures[3],
        });
        let [slowest, p9999, slowest_own, p9999_own] = figures.map(microseconds);
        report.row(
            &[subject.name().to_owned(), count.to_string(), slowest, p9999, slowest_own, p9999_own],
            &object,
        );
    }
}

/// The duration of each insert, sorted: in wall time and in CPU time.
fn inserts(subject: &dyn BenchSubject, count: u64) -> (Vec<u64>, Vec<u64>) {
    let mut client = subject.client();
    let room = usize::try_from(count).expect("a few million fit");
    let (mut wall, mut own) = (Vec::with_capacity(room), Vec::with_capacity(room));
    let mut key = String::new();
    for number in 0..count {
        keys::write(&mut key, number);
        let (started, started_own) = (process_stats::wall_time(), process_stats::thread_time());
        client.decide(&key);
        let (ended, ended_own) = (process_stats::wall_time(), process_stats::thread_time());
        wall.push(nanoseconds(ended.saturating_sub(started)));
        own.push(nanoseconds(ended_own.saturating_sub(started_own)));
    }
    assert!(subject.rows().is_none_or(|rows| rows == count), "every key is remembered");
    wall.sort_unstable();
    own.sort_unstable();
    (wall, own)
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn last(sorted: &[u64]) -> u64 {
    sorted.last().copied().unwrap_or(0)
}

/// The 99.99 % quantile.
fn rare(sorted: &[u64]) -> u64 {
    sorted.get(sorted.len() - 1 - sorted.len() / 10_000).copied().unwrap_or(0)
}

#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
fn microseconds(nanoseconds: u64) -> String {
    format!("{:.1}", nanoseconds as f64 / 1_000.0)
}
