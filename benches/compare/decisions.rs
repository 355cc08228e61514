//! Nanoseconds per decision: one hot key, a million random keys, and four limits at once.
//!
//! With two threads the figure is the time of each thread per own decision. Twice as many decisions are made
//! in it.

use tidegate::clock::SystemClock;
use tidegate_bench::subjects::submit::{MAP, SUBMIT, SubmitSubject};
use tidegate_bench::subjects::tidegate::{NAME, Tidegate};
use tidegate_bench::{
    BenchRule, BenchSubject, Keys, LimitScope, MeasurementPlan, Measurements, RequestMode, measure,
};

use crate::args::Args;
use crate::peers::governor::GovernorPeer;
use crate::peers::pingora::Pingora;
use crate::peers::throttlecrab::Throttlecrab;
use crate::report::BenchReport;
use crate::targets::{BenchTarget, TargetBound, TargetMeasure};

const GOVERNOR: &str = "governor";
const PEERS: [&str; 3] = [GOVERNOR, "throttlecrab", "pingora-limits"];
const SUBJECTS: [&str; 6] = [NAME, SUBMIT, MAP, PEERS[0], PEERS[1], PEERS[2]];
const SHARED: [BenchRule; 3] = [BenchRule::FREE; 3];
const THREADS: [u64; 2] = [1, 2];

/// The number of decisions per thread and round.
const DECISIONS: u64 = 400_000;
const MANY_KEYS: u64 = 1_000_000;

/// The targets, by scenario and number of threads.
const TARGETS: &[(&str, usize, TargetMeasure, TargetBound)] = &[
    ("hot-granted", 1, TargetMeasure::SpeedupOverGovernor, TargetBound::AtLeast(1.5)),
    ("hot-granted, batches of 16", 1, TargetMeasure::SpeedupOverGovernor, TargetBound::AtLeast(2.0)),
    ("hot-refused", 2, TargetMeasure::SpeedupOverGovernor, TargetBound::AtLeast(3.0)),
    ("uniform", 2, TargetMeasure::SpeedupOverGovernor, TargetBound::AtLeast(2.2)),
    ("uniform, batches of 16", 2, TargetMeasure::SpeedupOverGovernor, TargetBound::AtLeast(5.0)),
    ("set-of-four, hot", 1, TargetMeasure::ShareOfGovernor, TargetBound::AtMost(0.5)),
    ("set-of-four, hot", 2, TargetMeasure::ShareOfGovernor, TargetBound::Below(1.0)),
    ("set-of-four, uniform", 1, TargetMeasure::ShareOfGovernor, TargetBound::AtMost(0.5)),
    ("set-of-four, uniform", 2, TargetMeasure::ShareOfGovernor, TargetBound::Below(1.0)),
];

pub(crate) fn run(args: &Args, report: &mut BenchReport) {
    if !["hot-granted", "hot-refused", "uniform", "set-of-four"].iter().any(|name| args.wants(name)) {
        return;
    }
    let ratios = PEERS.map(|peer| format!("as fast as {peer}"));
    let columns = ["scenario", "threads"].into_iter().chain(SUBJECTS);
    let columns: Vec<&str> = columns.chain(ratios.iter().map(String::as_str)).collect();
    report.head("Nanoseconds per decision, and how much faster Tidegate is than each peer", &columns);
    let mut bench = DecisionBench { args, report };
    bench.hot();
    bench.uniform();
    bench.sets();
}

struct DecisionBench<'a> {
    args: &'a Args,
    report: &'a mut BenchReport,
}

impl DecisionBench<'_> {
    fn hot(&mut self) {
        let decisions = self.decisions();
        let keys = || THREADS.map(|_| Keys::hot(decisions));
        if self.args.wants("hot-granted") {
            let mut subjects = all_subjects(BenchRule::FREE, 1_000);
            subjects.push(Box::new(SubmitSubject::memory(SystemClock::new(), BenchRule::FREE)));
            subjects.push(Box::new(SubmitSubject::map(SystemClock::new(), BenchRule::FREE)));
            self.measure("hot-granted", &subjects, &keys(), RequestMode::Singles, 100.0);
            self.measure("hot-granted, batches of 16", &subjects, &keys(), RequestMode::Batches, 100.0);
        }
        if self.args.wants("hot-refused") {
            let mut subjects = all_subjects(BenchRule::SPENT, 1_000);
            subjects.push(Box::new(SubmitSubject::map(SystemClock::new(), BenchRule::SPENT)));
            self.measure("hot-refused", &subjects, &keys(), RequestMode::Singles, 0.0);
        }
    }

    fn uniform(&mut self) {
        if !self.args.wants("uniform") {
            return;
        }
        let many = self.many();
        let mut subjects = all_subjects(BenchRule::LIVE, usize::try_from(many).expect("a million fits"));
        subjects.push(Box::new(SubmitSubject::memory(SystemClock::new(), BenchRule::LIVE)));
        load(&subjects, many);
        let keys = self.draws(many);
        self.measure("uniform", &subjects, &keys, RequestMode::Singles, 100.0);
        self.measure("uniform, batches of 16", &subjects, &keys, RequestMode::Batches, 100.0);
        check_rows(&subjects, many);
    }

    fn sets(&mut self) {
        if !self.args.wants("set-of-four") {
            return;
        }
        let of_four = |keyed| -> Vec<Box<dyn BenchSubject>> {
            let rules: Vec<_> = SHARED
                .iter()
                .map(|rule| (*rule, LimitScope::Shared))
                .chain([(keyed, LimitScope::PerKey)])
                .collect();
            vec![
                Box::new(Tidegate::new(SystemClock::new(), &rules)),
                Box::new(GovernorPeer::with_shared(&SHARED, keyed)),
            ]
        };
        let decisions = self.decisions();
        let hot = THREADS.map(|_| Keys::hot(decisions));
        self.measure("set-of-four, hot", &of_four(BenchRule::FREE), &hot, RequestMode::Singles, 100.0);
        let many = self.many();
        let uniform = of_four(BenchRule::LIVE);
        load(&uniform, many);
        self.measure("set-of-four, uniform", &uniform, &self.draws(many), RequestMode::Singles, 100.0);
        check_rows(&uniform, many);
    }

    /// Measures with one thread and with two. Panics if the percentage of grants is not as expected.
    fn measure(
        &mut self,
        name: &str,
        subjects: &[Box<dyn BenchSubject>],
        keys: &[Keys; 2],
        mode: RequestMode,
        granted: f64,
    ) {
        let subjects: Vec<&dyn BenchSubject> = subjects.iter().map(AsRef::as_ref).collect();
        for threads in 1..=keys.len() {
            let plan = MeasurementPlan {
                keys: keys[..threads].to_vec(),
                mode,
                rounds: self.args.effort.rounds(),
                stopwatch: self.args.stopwatch,
            };
            let all = measure(&subjects, &plan);
            for figures in &all {
                let off = (figures.granted_percent - granted).abs();
                assert!(off < 1.0, "{name}: {} granted {} %", figures.subject, figures.granted_percent);
            }
            self.report.figures(name, threads, &all, &SUBJECTS, &PEERS);
            self.targets(name, threads, &all);
        }
    }

    fn targets(&mut self, name: &str, threads: usize, all: &[Measurements]) {
        let of = |name: &str| all.iter().find(|figures| figures.subject == name);
        let (Some(ours), Some(governor)) = (of(NAME), of(GOVERNOR)) else { return };
        for &(_, _, measure, bound) in TARGETS.iter().filter(|target| target.0 == name && target.1 == threads)
        {
            let plural = if threads == 1 { "" } else { "s" };
            let scenario = format!("{name}, {threads} thread{plural}");
            self.report.target(BenchTarget::against_governor(scenario, measure, bound, ours, governor));
        }
    }

    fn decisions(&self) -> usize {
        usize::try_from(self.args.effort.of(DECISIONS)).expect("a few hundred thousand fit")
    }

    fn many(&self) -> u64 {
        self.args.effort.of(MANY_KEYS)
    }

    fn draws(&self, many: u64) -> [Keys; 2] {
        THREADS.map(|seed| Keys::random(self.decisions(), many, seed))
    }
}

/// Tidegate and every peer with one rule per key.
fn all_subjects(rule: BenchRule, keys: usize) -> Vec<Box<dyn BenchSubject>> {
    vec![
        Box::new(Tidegate::new(SystemClock::new(), &[(rule, LimitScope::PerKey)])),
        Box::new(GovernorPeer::new(rule)),
        Box::new(Throttlecrab::new(rule, keys)),
        Box::new(Pingora::new(rule)),
    ]
}

fn load(subjects: &[Box<dyn BenchSubject>], keys: u64) {
    let each = Keys::each(keys);
    for subject in subjects {
        subject.client().decide_singly(&each);
    }
    check_rows(subjects, keys);
}

/// Checks that each subject that reports its rows still has every key. Otherwise it had less work than
/// intended.
fn check_rows(subjects: &[Box<dyn BenchSubject>], keys: u64) {
    for subject in subjects {
        let rows = subject.rows().unwrap_or(keys);
        assert!(rows == keys, "{} remembers {rows} keys of {keys}", subject.name());
    }
}
