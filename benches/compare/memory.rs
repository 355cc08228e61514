//! Bytes per key: the growth of a process that only fills a store.

use serde_json::{Value, json};
use tidegate::clock::SystemClock;
use tidegate_bench::subjects::submit::{MAP, SubmitSubject};
use tidegate_bench::subjects::tidegate::{NAME, Tidegate};
use tidegate_bench::{BenchRule, BenchSubject, LimitScope, keys, process_stats};

use crate::args::Args;
use crate::peers::governor::{GovernorPeer, StringKeyGovernor};
use crate::peers::throttlecrab::Throttlecrab;
use crate::report::BenchReport;
use crate::targets::{BenchTarget, TargetBound, TargetMeasure};
use crate::{Failure, run_in_child};

/// The name of this scenario's child process.
pub(crate) const CHILD: &str = "memory";

/// Rows of one word.
const SHORT: Option<f64> = Some(32.0);
/// Logs of ten entries.
const LONG: Option<f64> = Some(96.0);

/// Subject, rule, number of keys, charges per key, and the target. Tables grow in steps, and the numbers of
/// keys fall into different parts of a step.
const CASES: &[(&str, &str, u64, u64, Option<f64>)] = &[
    (NAME, "bucket", 700_000, 1, SHORT),
    (NAME, "bucket", 1_000_000, 1, SHORT),
    (NAME, "bucket", 1_400_000, 1, SHORT),
    (NAME, "day", 700_000, 1, SHORT),
    (NAME, "day", 1_000_000, 1, SHORT),
    (NAME, "day", 1_400_000, 1, SHORT),
    (NAME, "interval", 700_000, 1, SHORT),
    (NAME, "interval", 1_000_000, 1, SHORT),
    (NAME, "interval", 1_400_000, 1, SHORT),
    (NAME, "sliding", 1_000_000, 1, None),
    (NAME, "sliding", 700_000, 10, LONG),
    (NAME, "sliding", 1_000_000, 10, LONG),
    (NAME, "sliding", 1_400_000, 10, LONG),
    (MAP, "bucket", 1_000_000, 1, None),
    ("governor", "bucket", 700_000, 1, None),
    ("governor", "bucket", 1_000_000, 1, None),
    ("governor", "bucket", 1_400_000, 1, None),
    ("governor (String)", "bucket", 1_000_000, 1, None),
    ("throttlecrab", "bucket", 1_000_000, 1, None),
];

pub(crate) fn run(args: &Args, report: &mut BenchReport) -> Result<(), Failure> {
    report.head("Bytes per key", &["subject", "rule", "keys", "charges", "bytes/key"]);
    for &(subject, rule, keys, charges, most) in CASES {
        let keys = args.effort.of(keys);
        let words = [subject.to_owned(), rule.to_owned(), keys.to_string(), charges.to_string()];
        let bytes = run_in_child(CHILD, &words)?.as_f64().ok_or("a child says how much it grew")?;
        let object = json!({
            "scenario": "memory", "subject": subject, "rule": rule, "keys": keys, "charges": charges, "bytes_per_key": bytes,
        });
        if let Some(most) = most {
            let scenario = format!("memory, {rule}, {keys} keys, charges each: {charges}");
            report.target(BenchTarget {
                scenario,
                measure: TargetMeasure::BytesPerKey,
                bound: TargetBound::AtMost(most),
                figure: bytes,
            });
        }
        let [subject, rule, keys, charges] = words;
        report.row(&[subject, rule, keys, charges, format!("{bytes:.1}")], &object);
    }
    Ok(())
}

/// Fills a store and reports the growth of this process per key.
pub(crate) fn child(case: &[String]) -> Result<Value, Failure> {
    let [name, rule, count, charges] = case else { return Err("a case has four words".into()) };
    let rule = BenchRule::named(rule).ok_or("no such rule")?;
    let (count, charges): (u64, u64) = (count.parse()?, charges.parse()?);
    let before = process_stats::resident_bytes();
    let subject: Box<dyn BenchSubject> = match name.as_str() {
        NAME => Box::new(Tidegate::new(SystemClock::new(), &[(rule, LimitScope::PerKey)])),
        MAP => Box::new(SubmitSubject::map(SystemClock::new(), rule)),
        "governor" => Box::new(GovernorPeer::new(rule)),
        "governor (String)" => Box::new(StringKeyGovernor::new(rule)),
        "throttlecrab" => Box::new(Throttlecrab::new(rule, usize::try_from(count)?)),
        _ => return Err("no such subject".into()),
    };
    let started = process_stats::wall_time();
    let mut client = subject.client();
    let mut key = String::new();
    for _ in 0..charges {
        for number in 0..count {
            keys::write(&mut key, number);
            client.decide(&key);
        }
    }
    let grown = process_stats::resident_bytes().saturating_sub(before);
    let elapsed = process_stats::wall_time().saturating_sub(started);
    if matches!(rule, BenchRule::Sliding(_)) && elapsed >= BenchRule::MINUTE {
        return Err(
            "filling it took longer than the window, so that less was remembered; run it again".into()
        );
    }
    if let Some(rows) = subject.rows().filter(|rows| *rows != count) {
        return Err(format!("{name} remembers {rows} keys of {count}").into());
    }
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let each = grown as f64 / count as f64;
    Ok(json!(each))
}
