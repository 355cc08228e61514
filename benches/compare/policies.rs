//! Every policy through its handle, as a multiple of the bucket's time.
//!
//! A hot key of a large limit is always granted, and its count is past any packed number of bits before the
//! measurement. A hot key of a small limit is refused, except by leases. Each row is compared with a bucket of the
//! same size, measured in alternation with it. The draws from a hundred thousand keys are granted, except by
//! `sliding 15 s`.

use std::time::Duration;

use serde_json::json;
use tidegate::{
    LimitRules, Rule, concurrency, day, hour, interval, minute, month, rules, sliding, total, week, year,
};
use tidegate_bench::{
    BenchSubject, BucketQuota, Keys, MeasurementPlan, Measurements, RequestMode, Tidegate, measure,
};

use crate::args::Args;
use crate::report::{BenchReport, TargetBound};

/// A limit that no run reaches, with [`CHARGED`] units per key before the measurement.
pub(crate) const LARGE: u32 = 1_000_000_000;
/// A limit that a hot key exceeds at once, and random keys never.
pub(crate) const SMALL: u32 = 1_000;
/// More units than a count of 16 bits holds.
pub(crate) const CHARGED: u64 = 150_000;

const DECISIONS: u64 = 200_000;
const KEYS: u64 = 100_000;
/// The most nanoseconds of a lease, acquired and given back.
const LEASE_NANOSECONDS: f64 = 100.0;

const LEASE: &str = "lease";
/// The policy, its limits, and its most time on a hot key as a multiple of the bucket's time.
const POLICIES: [(&str, &[u32], Option<f64>); 15] = [
    (BUCKET, &[LARGE, SMALL], None),
    ("minute", &[LARGE, SMALL], Some(2.0)),
    ("hour", &[LARGE, SMALL], Some(2.0)),
    ("day", &[LARGE, SMALL], Some(2.0)),
    ("week", &[LARGE, SMALL], Some(2.0)),
    ("month", &[LARGE, SMALL], Some(2.0)),
    ("year", &[LARGE, SMALL], Some(2.0)),
    ("interval", &[LARGE, SMALL], Some(2.0)),
    ("total", &[LARGE, SMALL], Some(2.0)),
    ("sliding 15 s", &[5], Some(2.0)),
    ("sliding 60 s", &[SMALL], Some(2.0)),
    ("bucket + day", &[LARGE, SMALL], Some(2.0)),
    ("minute + hour + day + month", &[LARGE, SMALL], Some(3.0)),
    (LEASE, &[LARGE], Some(6.0)),
    ("bucket + lease", &[LARGE], Some(6.0)),
];
pub(crate) const BUCKET: &str = "bucket";

const COLUMNS: [&str; 9] = [
    "policy",
    "limit",
    "hot, ns",
    "hot, granted %",
    "hot, times the bucket",
    "bar",
    "100k keys, ns",
    "100k keys, granted %",
    "100k keys, times the bucket",
];

/// The quota of a bucket with this limit.
pub(crate) fn quota(limit: u32) -> BucketQuota {
    let refill = if limit == LARGE { BucketQuota::FREE.refill } else { BucketQuota::LIVE.refill };
    BucketQuota { refill, burst: limit }
}

/// The rules of the policy with this name.
pub(crate) fn policy(name: &str, limit: u32) -> Option<LimitRules> {
    let bucket = || quota(limit).rule();
    let rules_of_items = match name {
        BUCKET => vec![bucket()],
        "minute" => vec![minute(limit)],
        "hour" => vec![hour(limit)],
        "day" => vec![day(limit)],
        "week" => vec![week(limit)],
        "month" => vec![month(limit)],
        "year" => vec![year(limit)],
        "interval" => vec![interval(limit, Duration::from_secs(3_600))],
        "total" => vec![total(limit)],
        "sliding 15 s" => vec![sliding(limit, Duration::from_secs(15))],
        "sliding 60 s" => vec![sliding(limit, Duration::from_secs(60))],
        "bucket + day" => vec![bucket(), day(limit)],
        "minute + hour + day + month" => vec![minute(limit), hour(limit), day(limit), month(limit)],
        LEASE => vec![concurrency(limit)],
        "bucket + lease" => vec![bucket(), concurrency(limit)],
        _ => return None,
    };
    Some(rules(rules_of_items.into_iter().map(Rule::per_key).collect::<Vec<_>>()))
}

pub(crate) fn run(args: &Args, report: &mut BenchReport) {
    report.table("Every policy through its handle, one thread", &COLUMNS);
    let draws = usize::try_from(args.effort.of(DECISIONS)).expect("it fits");
    let count = args.effort.of(KEYS);
    let many = (Keys::each(count), Keys::random(draws, count, 1));
    let hot = (Keys::hot(1), Keys::hot(draws));
    let buckets =
        [LARGE, SMALL].map(|limit| (limit, [&hot, &many].map(|keys| prepare(BUCKET, limit, &keys.0))));
    let rows =
        POLICIES.iter().flat_map(|&(name, limits, bar)| limits.iter().map(move |&limit| (name, limit, bar)));
    for (name, limit, bar) in rows {
        let size = if limit == LARGE { LARGE } else { SMALL };
        let (_, buckets) = buckets.iter().find(|bucket| bucket.0 == size).expect("there are two sizes");
        let measure_with = |bucket: &Tidegate, keys: &(Keys, Keys)| -> [Measurements; 2] {
            let subject = prepare(name, limit, &keys.0);
            let subjects: [&dyn BenchSubject; 2] = [bucket, &subject];
            let plan = MeasurementPlan {
                keys: vec![keys.1.clone()],
                mode: RequestMode::Singles,
                rounds: args.effort.rounds(),
                stopwatch: args.stopwatch,
            };
            measure(&subjects, &plan).try_into().expect("there are two subjects")
        };
        let [hot_bucket, hot] = measure_with(&buckets[0], &hot);
        let [many_bucket, many] = measure_with(&buckets[1], &many);
        let expected = if limit == LARGE { 100.0 } else { 0.0 };
        let granted = hot.granted_percent;
        assert!((granted - expected).abs() < 1.0, "{name}, {limit}: {granted} % granted");
        let ratio = hot.time_relative_to(&hot_bucket);
        let scenario = format!("{name}, limit {limit}, hot");
        let bar = bar.map(|bar| {
            let bound = TargetBound::AtMost(bar);
            let verdict = report.target(scenario.clone(), ratio, "times the bucket's time", bound);
            format!("{bar} ({verdict})")
        });
        if name == LEASE {
            report.target(scenario, hot.median(), "ns", TargetBound::AtMost(LEASE_NANOSECONDS));
        }
        let object = json!({
            "scenario": "policies",
            "policy": name,
            "limit": limit,
            "hot, ns": hot.median(),
            "hot, granted %": granted,
            "hot, times the bucket": ratio,
            "bar": bar,
            "100k keys, ns": many.median(),
            "100k keys, granted %": many.granted_percent,
            "100k keys, times the bucket": many.time_relative_to(&many_bucket),
        });
        report.row(&COLUMNS, &object);
    }
}

/// A subject with this policy and these keys.
fn prepare(name: &str, limit: u32, keys: &Keys) -> Tidegate {
    let subject = Tidegate::new(policy(name, limit).expect("every row names a policy"));
    let subject = subject.requesting(if limit == LARGE { CHARGED } else { 1 });
    subject.client().decide_singly(keys);
    subject.requesting(1)
}
