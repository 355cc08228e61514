//! Latency histogram in nanoseconds: exact below 128, within 1/128 above.
//!
//! ```text
//!   value    0 .. 127   128 .. 255   256 .. 511   512 .. 1023   …
//!   slots    128 of 1   128 of 1     128 of 2     128 of 4      …
//! ```
//!
//! A quantile is the upper bound of its slot, but at most the largest recorded value, so it is never too small.

/// Slots per doubling.
const SLOTS_PER_ROW: usize = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 7;
/// Rows: one for the values below the first doubling, and one per doubling of a 64-bit number.
const ROWS: usize = (u64::BITS - SLOT_BITS + 1) as usize;

/// Number of replies by latency.
#[derive(Debug, Clone)]
pub(super) struct LatencyHistogram {
    counts: Vec<u64>,
    total: u64,
    largest: u64,
}

impl Default for LatencyHistogram {
    fn default() -> LatencyHistogram {
        LatencyHistogram { counts: vec![0; ROWS * SLOTS_PER_ROW], total: 0, largest: 0 }
    }
}

impl LatencyHistogram {
    /// Adds a latency.
    pub(super) fn record(&mut self, nanoseconds: u64) {
        self.counts[slot(nanoseconds)] += 1;
        self.total += 1;
        self.largest = self.largest.max(nanoseconds);
    }

    /// Adds another histogram.
    pub(super) fn merge(&mut self, other: &LatencyHistogram) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.total += other.total;
        self.largest = self.largest.max(other.largest);
    }

    /// The latency quantile in permille; 0 if nothing was recorded.
    pub(super) fn within(&self, permille: u64) -> u64 {
        let wanted = u128::from(self.total) * u128::from(permille);
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if *count > 0 && u128::from(seen) * 1000 >= wanted {
                return top(index).min(self.largest);
            }
        }
        self.largest
    }

    /// The largest latency.
    pub(super) const fn largest(&self) -> u64 {
        self.largest
    }
}

/// The slot of a value.
fn slot(value: u64) -> usize {
    let shift = (u64::BITS - value.leading_zeros()).saturating_sub(SLOT_BITS + 1);
    // Above 127 the leading bit selects the row, and the bits after it select the slot.
    let digits = usize::try_from(value >> shift).unwrap_or(usize::MAX);
    shift as usize * SLOTS_PER_ROW + digits
}

/// Upper bound of a slot.
fn top(index: usize) -> u64 {
    let shift = (index / SLOTS_PER_ROW).saturating_sub(1);
    let digits = (index - shift * SLOTS_PER_ROW) as u64;
    (((u128::from(digits) + 1) << shift) - 1).try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_within_the_bounds_of_its_slot() {
        let mut values: Vec<u64> = (0..5000).collect();
        values.extend((12..64).flat_map(|bit| [(1 << bit) - 1, 1 << bit, (1 << bit) + 12_345]));
        values.extend([u64::MAX - 1, u64::MAX]);
        for value in values {
            let index = slot(value);
            assert!(index < ROWS * SLOTS_PER_ROW, "{value}");
            let (top, below) = (top(index), index.checked_sub(1).map_or(0, |below| top(below) + 1));
            assert!((below..=top).contains(&value), "{value} in {below}..={top}");
            assert!(top - value <= value / 128, "{value} is shown as {top}");
        }
    }

    #[test]
    fn slots_are_in_order_without_gaps() {
        for index in 1..ROWS * SLOTS_PER_ROW {
            assert_eq!(slot(top(index - 1).saturating_add(1)), index, "{index}");
        }
    }

    #[test]
    fn quantile_is_never_too_small() {
        let mut latencies = LatencyHistogram::default();
        for value in 1..=1000 {
            latencies.record(value * 1000);
        }
        for (permille, exact) in [(500, 500_000), (990, 990_000), (999, 999_000), (1000, 1_000_000)] {
            let shown = latencies.within(permille);
            assert!((exact..=exact + exact / 128).contains(&shown), "{permille}: {shown}");
        }
        assert_eq!(latencies.within(0), top(slot(1000)));
        assert_eq!(latencies.within(1000), latencies.largest());
    }

    #[test]
    fn quantile_of_empty_histogram_is_zero() {
        assert_eq!(LatencyHistogram::default().within(500), 0);
    }

    #[test]
    fn merged_histograms_equal_one_histogram() {
        let (mut one, mut other, mut both) = Default::default();
        for value in 0..10_000_u64 {
            let value = value * value;
            let part = if value % 3 == 0 { &mut one } else { &mut other };
            LatencyHistogram::record(part, value);
            LatencyHistogram::record(&mut both, value);
        }
        one.merge(&other);
        assert_eq!((one.counts, one.total, one.largest), (both.counts, both.total, both.largest));
    }
}
