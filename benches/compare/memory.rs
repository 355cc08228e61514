//! Bytes per key: the growth of a process that only fills a store.
//!
//! The clock stands at noon and advances by a microsecond per request, so that no window ends meanwhile.

use std::sync::Arc;

use serde_json::{Value, json};
use tidegate::clock::ManualClock;
use tidegate::store::memory::DEFAULT_CAPACITY;
use tidegate_bench::tidegate_subject::{MAP, TIDEGATE};
use tidegate_bench::{BenchSubject, Tidegate, keys, process_stats};

use crate::args::Args;
use crate::peers::governor::{GOVERNOR, GovernorPeer};
use crate::peers::throttlecrab::{THROTTLECRAB, Throttlecrab};
use crate::policies::{BUCKET, CHARGED, LARGE, SMALL, policy, quota};
use crate::report::{BenchReport, TargetBound};
use crate::{Failure, KEY_INTERVAL, NOON, run_in_child};

/// The name of this scenario's child process.
pub(crate) const CHILD: &str = "memory";

const COLUMNS: [&str; 6] = ["subject", "policy", "limit", "keys", "hits", "bytes per key"];

/// Tables grow in steps, and these numbers of keys fall into different parts of a step.
const STEPS: [u64; 3] = [700_000, MILLION, 1_400_000];
const MILLION: u64 = 1_000_000;

const ONE_ITEM: [&str; 9] = [BUCKET, "minute", "hour", "day", "week", "month", "year", "interval", "total"];
const TWO_ITEMS: &str = "bucket + day";
const FOUR_ITEMS: &str = "minute + hour + day + month";
const SLIDING: &str = "sliding 60 s";

/// A store to fill. A large limit is charged many units at once.
struct MemoryCase {
    subject: &'static str,
    policy: &'static str,
    limit: u32,
    keys: u64,
    hits: u64,
    bar: Option<f64>,
}

fn cases() -> Vec<MemoryCase> {
    let mut cases = Vec::new();
    let mut add = |subject, policy, limit, keys, hits, bar| {
        cases.push(MemoryCase { subject, policy, limit, keys, hits, bar });
    };
    for policy in ONE_ITEM {
        add(TIDEGATE, policy, SMALL, MILLION, 1, Some(32.0));
        add(TIDEGATE, policy, LARGE, MILLION, 1, Some(32.0));
    }
    for keys in STEPS.into_iter().filter(|keys| *keys != MILLION) {
        add(TIDEGATE, BUCKET, SMALL, keys, 1, Some(32.0));
        add(TIDEGATE, "day", LARGE, keys, 1, Some(32.0));
    }
    for (policy, bar) in [(TWO_ITEMS, 50.0), (FOUR_ITEMS, 100.0)] {
        add(TIDEGATE, policy, SMALL, MILLION, 1, Some(bar));
        add(TIDEGATE, policy, LARGE, MILLION, 1, Some(bar));
    }
    for (hits, bar) in [(1, 36.0), (4, 100.0), (10, 240.0)] {
        for keys in STEPS {
            add(TIDEGATE, SLIDING, 10, keys, hits, Some(bar));
        }
    }
    for keys in STEPS {
        add(GOVERNOR, BUCKET, SMALL, keys, 1, None);
    }
    add(MAP, BUCKET, SMALL, MILLION, 1, None);
    add(THROTTLECRAB, BUCKET, SMALL, MILLION, 1, None);
    cases
}

pub(crate) fn run(args: &Args, report: &mut BenchReport) -> Result<(), Failure> {
    report.table("Bytes per key", &COLUMNS);
    for MemoryCase { subject, policy, limit, keys, hits, bar } in cases() {
        let keys = args.effort.of(keys);
        let words = [subject, policy].map(str::to_owned).into_iter();
        let words: Vec<String> =
            words.chain([u64::from(limit), keys, hits].map(|number| number.to_string())).collect();
        let bytes = run_in_child(CHILD, &words)?.as_f64().ok_or("a child reports how much it grew")?;
        let object = json!({
            "scenario": "memory", "subject": subject, "policy": policy, "limit": limit, "keys": keys, "hits": hits,
            "bytes per key": bytes,
        });
        report.row(&COLUMNS, &object);
        if let Some(bar) = bar {
            let scenario = format!("memory, {policy}, limit {limit}, {keys} keys, {hits} hits");
            report.target(scenario, bytes, "bytes per key", TargetBound::AtMost(bar));
        }
    }
    Ok(())
}

/// Fills a store and reports the growth of this process per key.
pub(crate) fn child(case: &[String]) -> Result<Value, Failure> {
    let [name, policy_name, limit, count, hits] = case else { return Err("a case has five words".into()) };
    let (limit, count, hits): (u32, u64, u64) = (limit.parse()?, count.parse()?, hits.parse()?);
    let clock = Arc::new(ManualClock::at(NOON));
    let before = process_stats::resident_bytes();
    let subject: Box<dyn BenchSubject> = match name.as_str() {
        TIDEGATE => {
            let rules = policy(policy_name, limit).ok_or("no such policy")?;
            let tidegate = Tidegate::in_memory(Arc::clone(&clock), DEFAULT_CAPACITY, vec![rules]);
            Box::new(tidegate.requesting(if limit == LARGE { CHARGED } else { 1 }))
        }
        MAP => Box::new(Tidegate::map(quota(limit).rule().per_key())),
        GOVERNOR => Box::new(GovernorPeer::new(quota(limit))),
        THROTTLECRAB => Box::new(Throttlecrab::new(quota(limit), usize::try_from(count)?)),
        _ => return Err("no such subject".into()),
    };
    let mut client = subject.client();
    let mut key = String::new();
    for _ in 0..hits {
        for number in 0..count {
            clock.advance(KEY_INTERVAL);
            keys::write(&mut key, number);
            client.decide(&key);
        }
    }
    let grown = process_stats::resident_bytes().saturating_sub(before);
    if let Some(rows) = subject.rows().filter(|rows| *rows != count) {
        return Err(format!("{name} has {rows} rows for {count} keys").into());
    }
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let each = grown as f64 / count as f64;
    Ok(json!(each))
}
