//! Nanoseconds for a decision: one key that everybody wants, a million that nobody wants twice, four limits at once.
//!
//! With two threads the figure is what each of them spends on one of its own decisions: twice the decisions are made in it.

use tidegate::clock::SystemClock;
use tidegate_bench::subjects::submit::{MAP, SUBMIT, Submit};
use tidegate_bench::subjects::tidegate::{NAME, Tidegate};
use tidegate_bench::{Figures, Keys, Plan, Reach, Rule, Shape, Subject, measure};

use crate::args::Args;
use crate::bars::{Bar, Measure, Need};
use crate::peers::governor::Governor;
use crate::peers::pingora::Pingora;
use crate::peers::throttlecrab::Throttlecrab;
use crate::report::Report;

const GOVERNOR: &str = "governor";
const PEERS: [&str; 3] = [GOVERNOR, "throttlecrab", "pingora-limits"];
const SUBJECTS: [&str; 6] = [NAME, SUBMIT, MAP, PEERS[0], PEERS[1], PEERS[2]];
const SHARED: [Rule; 3] = [Rule::FREE; 3];
const THREADS: [u64; 2] = [1, 2];

/// How many decisions a thread makes in a round.
const DECISIONS: u64 = 400_000;
const MANY_KEYS: u64 = 1_000_000;

/// What must be reached, by scenario and number of threads.
const BARS: &[(&str, usize, Measure, Need)] = &[
    ("hot-granted", 1, Measure::AsFastAsGovernor, Need::AtLeast(1.5)),
    ("hot-granted, batches of 16", 1, Measure::AsFastAsGovernor, Need::AtLeast(2.0)),
    ("hot-refused", 2, Measure::AsFastAsGovernor, Need::AtLeast(3.0)),
    ("uniform", 2, Measure::AsFastAsGovernor, Need::AtLeast(2.2)),
    ("uniform, batches of 16", 2, Measure::AsFastAsGovernor, Need::AtLeast(5.0)),
    ("set-of-four, hot", 1, Measure::ShareOfGovernor, Need::AtMost(0.5)),
    ("set-of-four, hot", 2, Measure::ShareOfGovernor, Need::Below(1.0)),
    ("set-of-four, uniform", 1, Measure::ShareOfGovernor, Need::AtMost(0.5)),
    ("set-of-four, uniform", 2, Measure::ShareOfGovernor, Need::Below(1.0)),
];

pub(crate) fn run(args: &Args, report: &mut Report) {
    if !["hot-granted", "hot-refused", "uniform", "set-of-four"].iter().any(|name| args.wants(name)) {
        return;
    }
    let ratios = PEERS.map(|peer| format!("as fast as {peer}"));
    let columns = ["scenario", "threads"].into_iter().chain(SUBJECTS);
    let columns: Vec<&str> = columns.chain(ratios.iter().map(String::as_str)).collect();
    report.head("Nanoseconds per decision, and how much faster Tidegate is than each peer", &columns);
    let mut bench = Bench { args, report };
    bench.hot();
    bench.uniform();
    bench.sets();
}

struct Bench<'a> {
    args: &'a Args,
    report: &'a mut Report,
}

impl Bench<'_> {
    fn hot(&mut self) {
        let decisions = self.decisions();
        let keys = || THREADS.map(|_| Keys::hot(decisions));
        if self.args.wants("hot-granted") {
            let mut subjects = everybody(Rule::FREE, 1_000);
            subjects.push(Box::new(Submit::memory(SystemClock::new(), Rule::FREE)));
            subjects.push(Box::new(Submit::map(SystemClock::new(), Rule::FREE)));
            self.measure("hot-granted", &subjects, &keys(), Shape::Singles, 100.0);
            self.measure("hot-granted, batches of 16", &subjects, &keys(), Shape::Batches, 100.0);
        }
        if self.args.wants("hot-refused") {
            let mut subjects = everybody(Rule::SPENT, 1_000);
            subjects.push(Box::new(Submit::map(SystemClock::new(), Rule::SPENT)));
            self.measure("hot-refused", &subjects, &keys(), Shape::Singles, 0.0);
        }
    }

    fn uniform(&mut self) {
        if !self.args.wants("uniform") {
            return;
        }
        let many = self.many();
        let mut subjects = everybody(Rule::LIVE, usize::try_from(many).expect("a million fits"));
        subjects.push(Box::new(Submit::memory(SystemClock::new(), Rule::LIVE)));
        load(&subjects, many);
        let keys = self.draws(many);
        self.measure("uniform", &subjects, &keys, Shape::Singles, 100.0);
        self.measure("uniform, batches of 16", &subjects, &keys, Shape::Batches, 100.0);
        check_rows(&subjects, many);
    }

    fn sets(&mut self) {
        if !self.args.wants("set-of-four") {
            return;
        }
        let of_four = |keyed| -> Vec<Box<dyn Subject>> {
            let rules: Vec<_> =
                SHARED.iter().map(|rule| (*rule, Reach::Shared)).chain([(keyed, Reach::PerKey)]).collect();
            vec![
                Box::new(Tidegate::new(SystemClock::new(), &rules)),
                Box::new(Governor::behind(&SHARED, keyed)),
            ]
        };
        let decisions = self.decisions();
        let hot = THREADS.map(|_| Keys::hot(decisions));
        self.measure("set-of-four, hot", &of_four(Rule::FREE), &hot, Shape::Singles, 100.0);
        let many = self.many();
        let uniform = of_four(Rule::LIVE);
        load(&uniform, many);
        self.measure("set-of-four, uniform", &uniform, &self.draws(many), Shape::Singles, 100.0);
        check_rows(&uniform, many);
    }

    /// Measures with one thread and with two; `granted` in a hundred, or it was not what was meant.
    fn measure(
        &mut self,
        name: &str,
        subjects: &[Box<dyn Subject>],
        keys: &[Keys; 2],
        shape: Shape,
        granted: f64,
    ) {
        let subjects: Vec<&dyn Subject> = subjects.iter().map(AsRef::as_ref).collect();
        for threads in 1..=keys.len() {
            let plan = Plan {
                keys: keys[..threads].to_vec(),
                shape,
                rounds: self.args.effort.rounds(),
                watch: self.args.watch,
            };
            let all = measure(&subjects, &plan);
            for figures in &all {
                let off = (figures.granted_percent - granted).abs();
                assert!(off < 1.0, "{name}: {} granted {} %", figures.subject, figures.granted_percent);
            }
            self.report.figures(name, threads, &all, &SUBJECTS, &PEERS);
            self.bars(name, threads, &all);
        }
    }

    fn bars(&mut self, name: &str, threads: usize, all: &[Figures]) {
        let of = |name: &str| all.iter().find(|figures| figures.subject == name);
        let (Some(ours), Some(governor)) = (of(NAME), of(GOVERNOR)) else { return };
        for &(_, _, measure, need) in BARS.iter().filter(|bar| bar.0 == name && bar.1 == threads) {
            let plural = if threads == 1 { "" } else { "s" };
            let scenario = format!("{name}, {threads} thread{plural}");
            self.report.bar(Bar::beside(scenario, measure, need, ours, governor));
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

/// Tidegate and every peer under one rule for each key.
fn everybody(rule: Rule, keys: usize) -> Vec<Box<dyn Subject>> {
    vec![
        Box::new(Tidegate::new(SystemClock::new(), &[(rule, Reach::PerKey)])),
        Box::new(Governor::new(rule)),
        Box::new(Throttlecrab::new(rule, keys)),
        Box::new(Pingora::new(rule)),
    ]
}

fn load(subjects: &[Box<dyn Subject>], keys: u64) {
    let each = Keys::each(keys);
    for subject in subjects {
        subject.asker().singles(&each);
    }
    check_rows(subjects, keys);
}

/// Whoever says how much it remembers still remembers every key, or it was measured with less to do than was meant.
fn check_rows(subjects: &[Box<dyn Subject>], keys: u64) {
    for subject in subjects {
        let rows = subject.rows().unwrap_or(keys);
        assert!(rows == keys, "{} remembers {rows} keys of {keys}", subject.name());
    }
}
