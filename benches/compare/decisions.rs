//! Nanoseconds for a decision: one key that everybody wants, a million that nobody wants twice, four limits at once.
//!
//! With two threads the figure is what each of them spends on one of its own decisions: twice the decisions are made in it.

use tidegate::SystemClock;
use tidegate_bench::subjects::tidegate::{NAME, Tidegate};
use tidegate_bench::{Keys, Plan, Reach, Rule, Shape, Subject, measure};

use crate::args::Args;
use crate::peers::governor::Governor;
use crate::peers::pingora::Pingora;
use crate::peers::throttlecrab::Throttlecrab;
use crate::report::Report;

const PEERS: [&str; 3] = ["governor", "throttlecrab", "pingora-limits"];
const SHARED: [Rule; 3] = [Rule::FREE; 3];
const THREADS: [u64; 2] = [1, 2];

/// How many decisions a thread makes in a round.
const DECISIONS: u64 = 400_000;
const MANY_KEYS: u64 = 1_000_000;

pub(crate) fn run(args: &Args, report: &mut Report) {
    let [first, second, third] = PEERS;
    let columns: Vec<String> = ["scenario", "threads", NAME, first, second, third]
        .into_iter()
        .map(str::to_owned)
        .chain(PEERS.iter().map(|peer| format!("to {peer}")))
        .collect();
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    report.head("Nanoseconds per decision, and Tidegate's share of each peer's", &columns);
    let bench = Bench { args, report };
    bench.hot();
    bench.uniform();
    bench.sets();
}

struct Bench<'a> {
    args: &'a Args,
    report: &'a Report,
}

impl Bench<'_> {
    fn hot(&self) {
        let decisions = self.decisions();
        let keys = || THREADS.map(|_| Keys::hot(decisions));
        if self.args.wants("hot-granted") {
            let subjects = everybody(Rule::FREE, 1_000);
            self.measure("hot-granted", &subjects, &keys(), Shape::Singles, Some(100.0));
            self.measure("hot-granted, batches of 16", &subjects, &keys(), Shape::Batches, Some(100.0));
        }
        if self.args.wants("hot-refused") {
            let subjects = everybody(Rule::SPENT, 1_000);
            self.measure("hot-refused", &subjects, &keys(), Shape::Singles, Some(0.0));
        }
    }

    fn uniform(&self) {
        if !self.args.wants("uniform") {
            return;
        }
        let many = self.args.effort.of(MANY_KEYS);
        let subjects = everybody(Rule::PLENTY, usize::try_from(many).expect("a million fits"));
        load(&subjects, many);
        let keys = self.draws(many);
        self.measure("uniform", &subjects, &keys, Shape::Singles, None);
        self.measure("uniform, batches of 16", &subjects, &keys, Shape::Batches, None);
    }

    fn sets(&self) {
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
        let hot = of_four(Rule::FREE);
        self.measure(
            "set-of-four, hot",
            &hot,
            &THREADS.map(|_| Keys::hot(decisions)),
            Shape::Singles,
            Some(100.0),
        );
        let many = self.args.effort.of(MANY_KEYS);
        let uniform = of_four(Rule::PLENTY);
        load(&uniform, many);
        self.measure("set-of-four, uniform", &uniform, &self.draws(many), Shape::Singles, Some(100.0));
    }

    /// Measures with one thread and with two; `granted` in a hundred, or it was not what was meant.
    fn measure(
        &self,
        name: &str,
        subjects: &[Box<dyn Subject>],
        keys: &[Keys; 2],
        shape: Shape,
        granted: Option<f64>,
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
                let off = granted.map_or(0.0, |granted| (figures.granted_percent - granted).abs());
                assert!(off < 1.0, "{name}: {} granted {} %", figures.subject, figures.granted_percent);
            }
            let columns: Vec<&str> = [NAME].into_iter().chain(PEERS).collect();
            self.report.figures(name, threads, &all, &columns);
        }
    }

    fn decisions(&self) -> usize {
        usize::try_from(self.args.effort.of(DECISIONS)).expect("a few hundred thousand fit")
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
}
