//! Nanoseconds per decision beside the peers, which have only token buckets.
//!
//! | scenario | requests |
//! |---|---|
//! | `hot-granted`, `hot-refused` | one key |
//! | `uniform` | random keys of a million |
//! | `batches` | batches of 16 random keys of a hundred thousand |
//! | `set-of-four` | three shared limits and one per key, together |
//! | `contended` | one key, four threads, the latency of single calls |
//!
//! With two threads the figure is the time of each thread per own decision. Twice as many decisions are made
//! in it.

use serde_json::{Map, Value, json};
use tidegate::{day, rules};
use tidegate_bench::tidegate_subject::{MAP, SUBMIT, TIDEGATE};
use tidegate_bench::{
    BenchSubject, BucketQuota, Keys, MeasurementPlan, Measurements, RequestMode, Tidegate, measure,
};

use crate::args::Args;
use crate::peers::governor::{GOVERNOR, GovernorPeer};
use crate::peers::pingora::{PINGORA, Pingora};
use crate::peers::throttlecrab::{THROTTLECRAB, Throttlecrab};
use crate::report::{BenchReport, TargetBound};

const PEERS: [&str; 3] = [GOVERNOR, THROTTLECRAB, PINGORA];
const RATIOS: [&str; 3] = ["as fast as governor", "as fast as throttlecrab", "as fast as pingora-limits"];
const COLUMNS: [&str; 11] = [
    "scenario",
    "threads",
    TIDEGATE,
    SUBMIT,
    MAP,
    GOVERNOR,
    THROTTLECRAB,
    PINGORA,
    RATIOS[0],
    RATIOS[1],
    RATIOS[2],
];
const LATENCY_COLUMNS: [&str; 7] = ["scenario", "threads", "subject", "p50", "p99", "p99.9", "max"];

/// The number of decisions per thread and round.
const DECISIONS: u64 = 400_000;
const MILLION: u64 = 1_000_000;
const HUNDRED_THOUSAND: u64 = 100_000;
/// The threads of `contended`, twice the processors of the machine that the targets are for.
const CONTENDING_THREADS: usize = 4;

const SPEEDUP: &str = "times as fast as governor";
const TIME_SHARE: &str = "of governor's time";
/// The targets, by scenario and number of threads.
const TARGETS: [(&str, usize, &str, TargetBound); 9] = [
    ("hot-granted", 1, SPEEDUP, TargetBound::AtLeast(1.4)),
    ("hot-granted", 2, SPEEDUP, TargetBound::AtLeast(1.7)),
    ("hot-refused", 2, SPEEDUP, TargetBound::AtLeast(4.0)),
    ("uniform", 2, SPEEDUP, TargetBound::AtLeast(3.5)),
    ("batches", 1, SPEEDUP, TargetBound::AtLeast(2.5)),
    ("set-of-four, hot", 1, TIME_SHARE, TargetBound::AtMost(0.75)),
    ("set-of-four, hot", 2, TIME_SHARE, TargetBound::AtMost(0.75)),
    ("set-of-four, uniform", 1, TIME_SHARE, TargetBound::AtMost(0.75)),
    ("set-of-four, uniform", 2, TIME_SHARE, TargetBound::AtMost(0.75)),
];

type Subjects = Vec<Box<dyn BenchSubject>>;

pub(crate) fn run(args: &Args, report: &mut BenchReport) {
    let mut bench = DecisionBench { args, report };
    if ["hot-granted", "hot-refused", "uniform", "batches", "set-of-four"].iter().any(|name| args.wants(name))
    {
        let title = "Nanoseconds per decision, and how much faster Tidegate is than each peer";
        bench.report.table(title, &COLUMNS);
        bench.hot();
        bench.many_keys();
        bench.sets();
    }
    if args.wants("contended") {
        bench.report.table("Latency of single calls for one key, nanoseconds", &LATENCY_COLUMNS);
        bench.contended();
    }
}

struct DecisionBench<'a> {
    args: &'a Args,
    report: &'a mut BenchReport,
}

impl DecisionBench<'_> {
    fn hot(&mut self) {
        let keys = [1, 2].map(|_| Keys::hot(self.decisions()));
        if self.args.wants("hot-granted") {
            self.measure(
                "hot-granted",
                &all_subjects(BucketQuota::FREE, 1_000),
                &keys,
                RequestMode::Singles,
                100.0,
            );
        }
        if self.args.wants("hot-refused") {
            self.measure(
                "hot-refused",
                &all_subjects(BucketQuota::SPENT, 1_000),
                &keys,
                RequestMode::Singles,
                0.0,
            );
        }
    }

    fn many_keys(&mut self) {
        let cases =
            [("uniform", MILLION, RequestMode::Singles), ("batches", HUNDRED_THOUSAND, RequestMode::Batches)];
        for (name, keys, mode) in cases.into_iter().filter(|case| self.args.wants(case.0)) {
            let count = self.args.effort.of(keys);
            let subjects = all_subjects(BucketQuota::LIVE, usize::try_from(count).expect("a million fits"));
            load(&subjects, count);
            self.measure(name, &subjects, &self.draws(count), mode, 100.0);
            check_rows(&subjects, count);
        }
    }

    fn sets(&mut self) {
        if !self.args.wants("set-of-four") {
            return;
        }
        let of_four = |keyed: BucketQuota| -> Subjects {
            let shared = [BucketQuota::FREE; 3];
            let limits =
                || [&shared.map(|quota| rules(quota.rule()))[..], &[rules(keyed.rule().per_key())]].concat();
            vec![
                Box::new(Tidegate::of(limits())),
                Box::new(Tidegate::of(limits()).through_submit()),
                Box::new(GovernorPeer::with_shared(&shared, keyed)),
            ]
        };
        let hot = [1, 2].map(|_| Keys::hot(self.decisions()));
        self.measure("set-of-four, hot", &of_four(BucketQuota::FREE), &hot, RequestMode::Singles, 100.0);
        let count = self.args.effort.of(MILLION);
        let uniform = of_four(BucketQuota::LIVE);
        load(&uniform, count);
        self.measure("set-of-four, uniform", &uniform, &self.draws(count), RequestMode::Singles, 100.0);
        check_rows(&uniform, count);
    }

    fn contended(&mut self) {
        let keys = vec![Keys::hot(self.decisions() / 4); CONTENDING_THREADS];
        let bucket = Tidegate::new(BucketQuota::FREE.rule().per_key());
        let windows = Tidegate::new(day(1_000_000_000).per_key());
        let governor = GovernorPeer::new(BucketQuota::FREE);
        let subjects: [(&str, &dyn BenchSubject); 3] =
            [("tidegate bucket", &bucket), ("tidegate day", &windows), ("governor", &governor)];
        let plan = self.plan(keys, RequestMode::Timed);
        let all = measure(&subjects.map(|subject| subject.1), &plan);
        for ((name, _), measurements) in subjects.into_iter().zip(all) {
            check_grants("contended", &measurements, 100.0);
            let latency = measurements.latency();
            let object = json!({
                "scenario": "contended", "threads": CONTENDING_THREADS, "subject": name, "p50": latency.p50,
                "p99": latency.p99, "p99.9": latency.p999, "max": latency.max,
            });
            self.report.row(&LATENCY_COLUMNS, &object);
        }
    }

    /// Measures with one thread and with two. Panics if the percentage of grants is not as expected.
    fn measure(
        &mut self,
        name: &str,
        subjects: &Subjects,
        keys: &[Keys; 2],
        mode: RequestMode,
        granted: f64,
    ) {
        let subjects: Vec<&dyn BenchSubject> = subjects.iter().map(AsRef::as_ref).collect();
        for threads in 1..=keys.len() {
            let all = measure(&subjects, &self.plan(keys[..threads].to_vec(), mode));
            for measurements in &all {
                check_grants(name, measurements, granted);
            }
            self.report.row(&COLUMNS, &object(name, threads, &all));
            self.judge(name, threads, &all);
        }
    }

    fn judge(&mut self, name: &str, threads: usize, all: &[Measurements]) {
        let of = |name: &str| all.iter().find(|measurements| measurements.subject == name);
        let (Some(ours), Some(governor)) = (of(TIDEGATE), of(GOVERNOR)) else { return };
        for (_, _, measure, bound) in
            TARGETS.into_iter().filter(|target| target.0 == name && target.1 == threads)
        {
            let plural = if threads == 1 { "" } else { "s" };
            let figure = if measure == SPEEDUP {
                ours.speedup_over(governor)
            } else {
                ours.time_relative_to(governor)
            };
            self.report.target(format!("{name}, {threads} thread{plural}"), figure, measure, bound);
        }
    }

    fn plan(&self, keys: Vec<Keys>, mode: RequestMode) -> MeasurementPlan {
        MeasurementPlan { keys, mode, rounds: self.args.effort.rounds(), stopwatch: self.args.stopwatch }
    }

    fn decisions(&self) -> usize {
        usize::try_from(self.args.effort.of(DECISIONS)).expect("a few hundred thousand fit")
    }

    fn draws(&self, keys: u64) -> [Keys; 2] {
        [1, 2].map(|seed| Keys::random(self.decisions(), keys, seed))
    }
}

/// A row of the table: the times of all subjects, and Tidegate's speedup over each peer.
fn object(name: &str, threads: usize, all: &[Measurements]) -> Value {
    let mut object = Map::new();
    object.insert("scenario".to_owned(), json!(name));
    object.insert("threads".to_owned(), json!(threads));
    for measurements in all {
        let (low, high) = measurements.quarters();
        let median = measurements.median();
        let spread = (high - low) / 2.0 / median * 100.0;
        object.insert(measurements.subject.to_owned(), json!({ "ns": median, "spread_percent": spread }));
        if let Some(peer) = PEERS.iter().position(|peer| *peer == measurements.subject) {
            object.insert(RATIOS[peer].to_owned(), json!(all[0].speedup_over(measurements)));
        }
    }
    Value::Object(object)
}

/// Tidegate through each interface, and every peer, with one rule per key.
fn all_subjects(quota: BucketQuota, keys: usize) -> Subjects {
    vec![
        Box::new(Tidegate::new(quota.rule().per_key())),
        Box::new(Tidegate::new(quota.rule().per_key()).through_submit()),
        Box::new(Tidegate::map(quota.rule().per_key())),
        Box::new(GovernorPeer::new(quota)),
        Box::new(Throttlecrab::new(quota, keys)),
        Box::new(Pingora::new(quota)),
    ]
}

fn load(subjects: &Subjects, keys: u64) {
    let each = Keys::each(keys);
    for subject in subjects {
        subject.client().decide_singly(&each);
    }
    check_rows(subjects, keys);
}

/// Checks that each subject that reports its rows still has every key. Otherwise it had less work than
/// intended.
fn check_rows(subjects: &Subjects, keys: u64) {
    for subject in subjects {
        let rows = subject.rows().unwrap_or(keys);
        assert!(rows == keys, "{} has {rows} rows for {keys} keys", subject.name());
    }
}

fn check_grants(scenario: &str, measurements: &Measurements, granted: f64) {
    let Measurements { subject, granted_percent, .. } = measurements;
    assert!((granted_percent - granted).abs() < 1.0, "{scenario}: {subject} granted {granted_percent} %");
}
