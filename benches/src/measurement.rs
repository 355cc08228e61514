//! Rounds: the subjects alternate, so that a disturbance affects all of them.
//!
//! ```text
//!   round 1   tidegate  governor  throttlecrab  pingora
//!   round 2             governor  throttlecrab  pingora  tidegate
//!   round 3                       throttlecrab  pingora  tidegate  governor
//! ```
//!
//! A figure is the median over the rounds. A ratio is the median of the ratios of each round, not the ratio
//! of the medians.

use std::sync::Barrier;
use std::time::Duration;

use crate::bench_subject::{BATCH, BenchSubject};
use crate::keys::Keys;
use crate::process_stats;

/// What is measured.
#[derive(Debug, Clone)]
pub struct MeasurementPlan {
    /// The keys of each thread. The number of lists is the number of threads.
    pub keys: Vec<Keys>,
    /// Single requests or batches.
    pub mode: RequestMode,
    /// The number of rounds.
    pub rounds: usize,
    /// The clock for the measurement.
    pub stopwatch: Stopwatch,
}

/// The clock for a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopwatch {
    /// Wall time, which includes the time of other programs.
    Wall,
    /// CPU time of the thread, which excludes other programs and sleeping before a lock.
    ThreadCpu,
}

impl Stopwatch {
    /// Reads the clock.
    fn read(self) -> Duration {
        match self {
            Stopwatch::Wall => process_stats::wall_time(),
            Stopwatch::ThreadCpu => process_stats::thread_time(),
        }
    }
}

/// How decisions are requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestMode {
    /// One at a time.
    Singles,
    /// In batches of sixteen. A subject without batches gets single requests.
    Batches,
    /// One at a time, with the latency of each call.
    Timed,
}

/// The latencies of single calls in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LatencyQuantiles {
    /// The median.
    pub p50: u64,
    /// The 99 % quantile.
    pub p99: u64,
    /// The 99.9 % quantile.
    pub p999: u64,
    /// The slowest call.
    pub max: u64,
}

impl LatencyQuantiles {
    fn of(mut latencies: Vec<u64>) -> LatencyQuantiles {
        latencies.sort_unstable();
        let last = latencies.len().saturating_sub(1);
        let at = |per_mille: usize| latencies.get(last * per_mille / 1_000).copied().unwrap_or(0);
        LatencyQuantiles { p50: at(500), p99: at(990), p999: at(999), max: at(1_000) }
    }
}

/// The measurements of one subject.
#[derive(Debug, Clone, PartialEq)]
pub struct Measurements {
    /// The subject's name.
    pub subject: &'static str,
    /// Nanoseconds per decision and thread, one value per round.
    pub rounds: Vec<f64>,
    /// The latencies of single calls over all threads, one value per round. Zero unless the plan is
    /// [`RequestMode::Timed`].
    pub latencies: Vec<LatencyQuantiles>,
    /// The percentage of granted decisions.
    pub granted_percent: f64,
}

impl Measurements {
    /// The median over the rounds.
    pub fn median(&self) -> f64 {
        quantile(&self.rounds, 0.5)
    }

    /// The lower and the upper quartile.
    pub fn quarters(&self) -> (f64, f64) {
        (quantile(&self.rounds, 0.25), quantile(&self.rounds, 0.75))
    }

    /// The median of each quantile over the rounds, and the slowest call of all rounds.
    pub fn latency(&self) -> LatencyQuantiles {
        let median = |pick: fn(&LatencyQuantiles) -> u64| {
            let mut rounds: Vec<u64> = self.latencies.iter().map(pick).collect();
            rounds.sort_unstable();
            rounds.get(rounds.len() / 2).copied().unwrap_or(0)
        };
        LatencyQuantiles {
            p50: median(|round| round.p50),
            p99: median(|round| round.p99),
            p999: median(|round| round.p999),
            max: self.latencies.iter().map(|round| round.max).max().unwrap_or(0),
        }
    }

    /// The decisions of this subject per decision of the other, compared round by round. Above 1 this one is
    /// faster.
    pub fn speedup_over(&self, other: &Measurements) -> f64 {
        other.time_relative_to(self)
    }

    /// The time of this subject relative to the other, compared round by round.
    pub fn time_relative_to(&self, other: &Measurements) -> f64 {
        let ratios: Vec<f64> =
            self.rounds.iter().zip(&other.rounds).map(|(ours, theirs)| ours / theirs).collect();
        quantile(&ratios, 0.5)
    }
}

/// Measures every subject. An additional first round warms up and is not counted.
pub fn measure(subjects: &[&dyn BenchSubject], plan: &MeasurementPlan) -> Vec<Measurements> {
    let mut all: Vec<Measurements> = subjects
        .iter()
        .map(|subject| {
            measure_round(*subject, plan);
            Measurements {
                subject: subject.name(),
                rounds: Vec::new(),
                latencies: Vec::new(),
                granted_percent: 0.0,
            }
        })
        .collect();
    for round in 0..plan.rounds {
        for place in 0..subjects.len() {
            let index = (round + place) % subjects.len();
            let turn = measure_round(subjects[index], plan);
            all[index].rounds.push(turn.nanoseconds);
            all[index].latencies.push(turn.latency);
            all[index].granted_percent = turn.granted_percent;
        }
    }
    all
}

/// The result of one subject in one round.
struct RoundResult {
    nanoseconds: f64,
    latency: LatencyQuantiles,
    granted_percent: f64,
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn measure_round(subject: &dyn BenchSubject, plan: &MeasurementPlan) -> RoundResult {
    let start = Barrier::new(plan.keys.len());
    let mode = match plan.mode {
        RequestMode::Batches if !subject.supports_batches() => RequestMode::Singles,
        mode => mode,
    };
    let run = &|(number, keys): (usize, &Keys)| {
        // Threads that share a processor alternate and do not contend.
        process_stats::stay_on_processor(number);
        let mut client = subject.client();
        let mut latencies = Vec::with_capacity(if mode == RequestMode::Timed { keys.len() } else { 0 });
        start.wait();
        let started = plan.stopwatch.read();
        let granted = match mode {
            RequestMode::Singles => client.decide_singly(keys),
            RequestMode::Batches => client.decide_in_batches(keys),
            RequestMode::Timed => client.decide_timed(keys, &mut latencies),
        };
        let elapsed = plan.stopwatch.read().saturating_sub(started);
        let decisions = match mode {
            RequestMode::Singles | RequestMode::Timed => keys.len(),
            RequestMode::Batches => keys.len() / BATCH * BATCH,
        } as f64;
        (elapsed.as_secs_f64() * 1e9 / decisions, granted as f64 * 100.0 / decisions, latencies)
    };
    let runs: Vec<(f64, f64, Vec<u64>)> = std::thread::scope(|scope| {
        let threads: Vec<_> = plan.keys.iter().enumerate().map(|one| scope.spawn(move || run(one))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a subject does not panic")).collect()
    });
    let threads = runs.len() as f64;
    RoundResult {
        nanoseconds: runs.iter().map(|run| run.0).sum::<f64>() / threads,
        granted_percent: runs.iter().map(|run| run.1).sum::<f64>() / threads,
        latency: LatencyQuantiles::of(runs.into_iter().flat_map(|run| run.2).collect()),
    }
}

/// The quantile of the values, interpolated.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an index into a short list"
)]
fn quantile(figures: &[f64], share: f64) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = share * sorted.len().saturating_sub(1) as f64;
    let (below, above) = (place.floor() as usize, place.ceil() as usize);
    match (sorted.get(below), sorted.get(above)) {
        (Some(low), Some(high)) => low + (high - low) * (place - place.floor()),
        _ => f64::NAN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(rounds: &[f64]) -> Measurements {
        let latencies = rounds.iter().map(|_| LatencyQuantiles::default()).collect();
        Measurements { subject: "x", rounds: rounds.to_vec(), latencies, granted_percent: 0.0 }
    }

    #[test]
    fn one_bad_round_moves_neither_the_median_nor_the_ratio() {
        let ours = figures(&[10.0, 11.0, 500.0, 10.0, 9.0]);
        let theirs = figures(&[20.0, 22.0, 1_000.0, 20.0, 18.0]);
        assert!((ours.median() - 10.0).abs() < 1e-9);
        assert!((ours.time_relative_to(&theirs) - 0.5).abs() < 1e-9);
        assert!((ours.speedup_over(&theirs) - 2.0).abs() < 1e-9);
    }

    #[test]
    fn quarters_lie_around_the_median() {
        let (low, high) = figures(&[5.0, 1.0, 3.0, 2.0, 4.0]).quarters();
        assert!((low - 2.0).abs() < 1e-9 && (high - 4.0).abs() < 1e-9);
        assert!(quantile(&[], 0.5).is_nan());
    }

    #[test]
    fn latency_quantiles_are_calls_that_happened() {
        let latency = LatencyQuantiles::of((1..=1_001).rev().collect());
        assert_eq!(latency, LatencyQuantiles { p50: 501, p99: 991, p999: 1_000, max: 1_001 });
        assert_eq!(LatencyQuantiles::of(Vec::new()), LatencyQuantiles::default());
    }

    #[test]
    fn latency_of_all_rounds_is_the_median_and_the_slowest_call() {
        let round = |p99, max| LatencyQuantiles { p50: 1, p99, p999: p99, max };
        let all = Measurements {
            latencies: vec![round(5, 9), round(700, 1_000), round(6, 8)],
            ..figures(&[1.0, 1.0, 1.0])
        };
        assert_eq!(all.latency(), round(6, 1_000));
    }
}
