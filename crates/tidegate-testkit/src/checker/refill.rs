//! Refill of a bucket at one or several rates.
//!
//! One rate is counted in ticks, which is exact. Where edits changed the rate, a unit is split into many parts, and the
//! refill is rounded up:
//!
//! ```text
//!   edits             ├──┤                 ├──┤
//!   rate     ─slow────┼──fast──────────────┼──┼─slow───      around an edit the faster rate counts
//! ```

use super::era::ItemEra;

/// Parts of a unit for a bucket with several rates.
const PARTS: i128 = 1 << 40;

/// Refill of a bucket up to an instant, at the fastest rate that may have been in force.
pub(super) struct BucketRefill {
    /// One unit in these numbers: its ticks, or `PARTS` if there are several rates.
    pub(super) unit: i128,
    /// Upper bound of the rounding error.
    pub(super) slack: i128,
    /// Start, refill up to the start, ticks per unit. Sorted by start.
    stretches: Vec<(u64, i128, u64)>,
}

impl BucketRefill {
    pub(super) fn new(era: &ItemEra<'_>) -> BucketRefill {
        let steps = era.steps();
        if let [step] = steps[..] {
            return BucketRefill { unit: i128::from(step), slack: 0, stretches: vec![(0, 0, step)] };
        }
        let mut turns: Vec<u64> =
            era.terms.iter().flat_map(|term| [term.from, term.to.saturating_add(1)]).collect();
        turns.push(0);
        turns.sort_unstable();
        turns.dedup();
        let mut refill = BucketRefill { unit: PARTS, slack: 2, stretches: Vec::with_capacity(turns.len()) };
        for from in turns {
            let by = if refill.stretches.is_empty() { 0 } else { refill.by(from) };
            let fastest = era.in_force(from, from).map(|term| steps[term]).min();
            refill.stretches.push((from, by, fastest.unwrap_or(steps[0])));
        }
        refill
    }

    /// Refill up to this instant.
    pub(super) fn by(&self, at: u64) -> i128 {
        let next = self.stretches.partition_point(|&(from, _, _)| from <= at);
        let (from, by, step) = self.stretches[next - 1];
        let passed = i128::from(at - from);
        let step = i128::from(step);
        // Rounds up. With one rate a unit is its ticks, and nothing is rounded.
        by + (passed * self.unit + step - 1) / step
    }
}
