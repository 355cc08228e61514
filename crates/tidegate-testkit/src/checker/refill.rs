//! What comes back of a bucket, at one rate or at several.
//!
//! One rate is reckoned in ticks, which is exact. Where edits changed it, a unit is cut into many parts, and what may have
//! come back is rounded up:
//!
//! ```text
//!   edits             ├──┤                 ├──┤
//!   rate     ─slow────┼──fast──────────────┼──┼─slow───      around an edit the faster one is believed
//! ```

use super::era::ItemEra;

/// Parts of a unit, where a bucket had several rates.
const PARTS: i128 = 1 << 40;

/// How much of a bucket came back by an instant, at the fastest rate that may have been in force.
pub(super) struct BucketRefill {
    /// What one unit is in these numbers: its ticks, or so many parts where there were several rates.
    pub(super) unit: i128,
    /// What rounding may have lost.
    pub(super) slack: i128,
    /// (from when, how much by then, ticks per unit), the latest last.
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

    /// How much came back by then.
    pub(super) fn by(&self, at: u64) -> i128 {
        let next = self.stretches.partition_point(|&(from, _, _)| from <= at);
        let (from, by, step) = self.stretches[next - 1];
        let passed = i128::from(at - from);
        let step = i128::from(step);
        // Rounded up; where there is one rate, a unit is its ticks, and there is nothing to round.
        by + (passed * self.unit + step - 1) / step
    }
}
