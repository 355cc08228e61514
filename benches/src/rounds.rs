//! Rounds: every subject in turn, again and again, so that what disturbs one disturbs all.
//!
//! ```text
//!   round 1   tidegate  governor  throttlecrab  pingora
//!   round 2             governor  throttlecrab  pingora  tidegate
//!   round 3                       throttlecrab  pingora  tidegate  governor
//! ```
//!
//! A figure is the median over the rounds; a ratio is the median of the ratios of each round, not the ratio of the medians.

use std::sync::Barrier;
use std::time::Duration;

use crate::keys::Keys;
use crate::machine;
use crate::subject::{BATCH, Subject};

/// What is asked, by how many.
#[derive(Debug, Clone)]
pub struct Plan {
    /// What each thread asks for; as many threads as there are lists.
    pub keys: Vec<Keys>,
    /// One at a time, or in batches.
    pub shape: Shape,
    /// How often every subject has its turn.
    pub rounds: usize,
    /// How time is taken.
    pub watch: Watch,
}

/// How time is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watch {
    /// By a stopwatch, which also counts while somebody else has the processor.
    Wall,
    /// The thread's own time, which counts neither that nor sleeping before a lock.
    Own,
}

impl Watch {
    /// Now, from some beginning.
    fn read(self) -> Duration {
        match self {
            Watch::Wall => machine::wall_time(),
            Watch::Own => machine::thread_time(),
        }
    }
}

/// How decisions are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// One at a time.
    Singles,
    /// Sixteen at a time; a subject that knows no batches is asked one at a time.
    Batches,
}

/// What was measured of one subject.
#[derive(Debug, Clone, PartialEq)]
pub struct Figures {
    /// The subject's name.
    pub subject: &'static str,
    /// Nanoseconds that a thread spends on a decision, one figure for each round.
    pub rounds: Vec<f64>,
    /// How many in a hundred were granted.
    pub granted_percent: f64,
}

impl Figures {
    /// The figure in the middle.
    pub fn median(&self) -> f64 {
        quantile(&self.rounds, 0.5)
    }

    /// The quarter points: half of the rounds lie between them.
    pub fn quarters(&self) -> (f64, f64) {
        (quantile(&self.rounds, 0.25), quantile(&self.rounds, 0.75))
    }

    /// How often this subject decides while the other decides once, measured round by round: above 1 it is the faster one.
    pub fn as_fast_as(&self, other: &Figures) -> f64 {
        other.relative_to(self)
    }

    /// How long this subject takes for each nanosecond of the other, measured round by round.
    pub fn relative_to(&self, other: &Figures) -> f64 {
        let ratios: Vec<f64> =
            self.rounds.iter().zip(&other.rounds).map(|(ours, theirs)| ours / theirs).collect();
        quantile(&ratios, 0.5)
    }
}

/// Measures every subject by the plan. A first round, which is not counted, warms everything up.
pub fn measure(subjects: &[&dyn Subject], plan: &Plan) -> Vec<Figures> {
    let mut all: Vec<Figures> = subjects
        .iter()
        .map(|subject| {
            turn(*subject, plan);
            Figures { subject: subject.name(), rounds: Vec::new(), granted_percent: 0.0 }
        })
        .collect();
    for round in 0..plan.rounds {
        for place in 0..subjects.len() {
            let index = (round + place) % subjects.len();
            let turn = turn(subjects[index], plan);
            all[index].rounds.push(turn.nanoseconds);
            all[index].granted_percent = turn.granted_percent;
        }
    }
    all
}

/// What one subject did in one round.
struct Turn {
    nanoseconds: f64,
    granted_percent: f64,
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn turn(subject: &dyn Subject, plan: &Plan) -> Turn {
    let start = Barrier::new(plan.keys.len());
    let shape = if subject.knows_batches() { plan.shape } else { Shape::Singles };
    let run = &|(number, keys): (usize, &Keys)| {
        // Two threads that the system has put on one processor take turns, and are not in each other's way at all.
        machine::stay_on_processor(number);
        let mut asker = subject.asker();
        start.wait();
        let began = plan.watch.read();
        let granted = match shape {
            Shape::Singles => asker.singles(keys),
            Shape::Batches => asker.batches(keys),
        };
        let elapsed = plan.watch.read().saturating_sub(began);
        let decisions = match shape {
            Shape::Singles => keys.len(),
            Shape::Batches => keys.len() / BATCH * BATCH,
        } as f64;
        (elapsed.as_secs_f64() * 1e9 / decisions, granted as f64 * 100.0 / decisions)
    };
    let runs: Vec<(f64, f64)> = std::thread::scope(|scope| {
        let threads: Vec<_> = plan.keys.iter().enumerate().map(|one| scope.spawn(move || run(one))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a subject does not panic")).collect()
    });
    let mean = |pick: fn(&(f64, f64)) -> f64| runs.iter().map(pick).sum::<f64>() / runs.len() as f64;
    Turn { nanoseconds: mean(|run| run.0), granted_percent: mean(|run| run.1) }
}

/// The figure below which this share of the figures lies, between the two nearest ones if need be.
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

    fn figures(rounds: &[f64]) -> Figures {
        Figures { subject: "x", rounds: rounds.to_vec(), granted_percent: 0.0 }
    }

    #[test]
    fn one_bad_round_moves_neither_the_median_nor_the_ratio() {
        let ours = figures(&[10.0, 11.0, 500.0, 10.0, 9.0]);
        let theirs = figures(&[20.0, 22.0, 1_000.0, 20.0, 18.0]);
        assert!((ours.median() - 10.0).abs() < 1e-9);
        assert!((ours.relative_to(&theirs) - 0.5).abs() < 1e-9);
        assert!((ours.as_fast_as(&theirs) - 2.0).abs() < 1e-9);
    }

    #[test]
    fn quarters_lie_around_the_median() {
        let (low, high) = figures(&[5.0, 1.0, 3.0, 2.0, 4.0]).quarters();
        assert!((low - 2.0).abs() < 1e-9 && (high - 4.0).abs() < 1e-9);
        assert!(quantile(&[], 0.5).is_nan());
    }
}
