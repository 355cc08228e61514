//! Bytes for each key that is remembered: how much a process grows that does nothing else.

use serde_json::{Value, json};
use tidegate::clock::SystemClock;
use tidegate_bench::subjects::submit::{MAP, Submit};
use tidegate_bench::subjects::tidegate::{NAME, Tidegate};
use tidegate_bench::{Reach, Rule, Subject, keys, machine};

use crate::args::Args;
use crate::bars::{Bar, Measure, Need};
use crate::peers::governor::{Governor, GovernorOfText};
use crate::peers::throttlecrab::Throttlecrab;
use crate::report::Report;
use crate::{Failure, in_a_child};

/// What this scenario's child is called.
pub(crate) const CHILD: &str = "memory";

/// Rows that are one word.
const SHORT: Option<f64> = Some(32.0);
/// Logs of ten.
const LONG: Option<f64> = Some(96.0);

/// Who, under which rule, for how many keys, with how many charges each, and what it may take. Tables grow in steps; the
/// numbers of keys lie differently in them.
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

pub(crate) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    report.head("Bytes per key", &["subject", "rule", "keys", "charges", "bytes/key"]);
    for &(subject, rule, keys, charges, most) in CASES {
        let keys = args.effort.of(keys);
        let words = [subject.to_owned(), rule.to_owned(), keys.to_string(), charges.to_string()];
        let bytes = in_a_child(CHILD, &words)?.as_f64().ok_or("a child says how much it grew")?;
        let object = json!({
            "scenario": "memory", "subject": subject, "rule": rule, "keys": keys, "charges": charges, "bytes_per_key": bytes,
        });
        if let Some(most) = most {
            let scenario = format!("memory, {rule}, {keys} keys, charges each: {charges}");
            report.bar(Bar {
                scenario,
                measure: Measure::BytesPerKey,
                need: Need::AtMost(most),
                figure: bytes,
            });
        }
        let [subject, rule, keys, charges] = words;
        report.row(&[subject, rule, keys, charges, format!("{bytes:.1}")], &object);
    }
    Ok(())
}

/// Fills a store and says how much this process grew for each key.
pub(crate) fn child(case: &[String]) -> Result<Value, Failure> {
    let [name, rule, count, charges] = case else { return Err("a case has four words".into()) };
    let rule = Rule::named(rule).ok_or("no such rule")?;
    let (count, charges): (u64, u64) = (count.parse()?, charges.parse()?);
    let before = machine::resident_bytes();
    let subject: Box<dyn Subject> = match name.as_str() {
        NAME => Box::new(Tidegate::new(SystemClock::new(), &[(rule, Reach::PerKey)])),
        MAP => Box::new(Submit::map(SystemClock::new(), rule)),
        "governor" => Box::new(Governor::new(rule)),
        "governor (String)" => Box::new(GovernorOfText::new(rule)),
        "throttlecrab" => Box::new(Throttlecrab::new(rule, usize::try_from(count)?)),
        _ => return Err("no such subject".into()),
    };
    let began = machine::wall_time();
    let mut asker = subject.asker();
    let mut key = String::new();
    for _ in 0..charges {
        for number in 0..count {
            keys::write(&mut key, number);
            asker.ask(&key);
        }
    }
    let grown = machine::resident_bytes().saturating_sub(before);
    let elapsed = machine::wall_time().saturating_sub(began);
    if matches!(rule, Rule::Sliding(_)) && elapsed >= Rule::MINUTE {
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
