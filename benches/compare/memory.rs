//! Bytes for each key that is remembered: how much a process grows that does nothing else.
//!
//! Every case is measured in a process of its own, this program started again: what one store gave back to the allocator
//! must not be room for the next.

use std::process::Command;

use serde_json::json;
use tidegate::SystemClock;
use tidegate_bench::subjects::tidegate::{NAME, Tidegate};
use tidegate_bench::{Reach, Rule, Subject, keys, machine};

use crate::Failure;
use crate::args::{Args, CHILD};
use crate::peers::governor::{Governor, GovernorOfText};
use crate::peers::throttlecrab::Throttlecrab;
use crate::report::Report;

/// Who, under which rule, for how many keys, with how many charges each.
const CASES: &[(&str, &str, u64, u64)] = &[
    (NAME, "bucket", 700_000, 1),
    (NAME, "bucket", 1_000_000, 1),
    (NAME, "bucket", 1_400_000, 1),
    (NAME, "day", 700_000, 1),
    (NAME, "day", 1_000_000, 1),
    (NAME, "day", 1_400_000, 1),
    (NAME, "interval", 1_000_000, 1),
    (NAME, "sliding", 1_000_000, 1),
    (NAME, "sliding", 1_000_000, 10),
    ("governor", "bucket", 700_000, 1),
    ("governor", "bucket", 1_000_000, 1),
    ("governor", "bucket", 1_400_000, 1),
    ("governor (String)", "bucket", 1_000_000, 1),
    ("throttlecrab", "bucket", 1_000_000, 1),
];

pub(crate) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    report.head("Bytes per key", &["subject", "rule", "keys", "charges", "bytes/key"]);
    for &(subject, rule, keys, charges) in CASES {
        let keys = args.effort.of(keys);
        let words = [subject.to_owned(), rule.to_owned(), keys.to_string(), charges.to_string()];
        let child = Command::new(std::env::current_exe()?).arg(CHILD).args(&words).output()?;
        if !child.status.success() {
            return Err(String::from_utf8_lossy(&child.stderr).trim().to_owned().into());
        }
        let bytes: f64 = String::from_utf8_lossy(&child.stdout).trim().parse()?;
        let [subject, rule, keys, charges] = words;
        let object = json!({
            "scenario": "memory", "subject": subject, "rule": rule, "keys": keys, "charges": charges, "bytes_per_key": bytes,
        });
        report.row(&[subject, rule, keys, charges, format!("{bytes:.1}")], &object);
    }
    Ok(())
}

/// Fills a store and says how much this process grew for each key.
pub(crate) fn child(case: &[String]) -> Result<(), Failure> {
    let [name, rule, count, charges] = case else { return Err("a case has four words".into()) };
    let rule = Rule::named(rule).ok_or("no such rule")?;
    let (count, charges): (u64, u64) = (count.parse()?, charges.parse()?);
    let before = machine::resident_bytes();
    let subject: Box<dyn Subject> = match name.as_str() {
        NAME => Box::new(Tidegate::new(SystemClock::new(), &[(rule, Reach::PerKey)])),
        "governor" => Box::new(Governor::new(rule)),
        "governor (String)" => Box::new(GovernorOfText::new(rule)),
        "throttlecrab" => Box::new(Throttlecrab::new(rule, usize::try_from(count)?)),
        _ => return Err("no such subject".into()),
    };
    let mut asker = subject.asker();
    let mut key = String::new();
    for _ in 0..charges {
        for number in 0..count {
            keys::write(&mut key, number);
            asker.ask(&key);
        }
    }
    let grown = machine::resident_bytes().saturating_sub(before);
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let each = grown as f64 / count as f64;
    println!("{each}");
    Ok(())
}
