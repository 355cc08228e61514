//! How long things take and how large they are: counts between fixed bounds.

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::metrics_page::{MetricFamily, MetricLabel};

/// The bounds of what requests take, in nanoseconds: from a microsecond to ten seconds, three to each power of ten.
pub const DURATION_BUCKETS: [u64; 22] = {
    let mut bounds = [0; 22];
    let (mut index, mut power) = (0, 1_000);
    while index < bounds.len() {
        bounds[index] = match index % 3 {
            0 => power,
            1 => power / 2 * 5,
            _ => power * 5,
        };
        if index % 3 == 2 {
            power *= 10;
        }
        index += 1;
    }
    bounds
};

/// How many values were at most as large as each of `N` bounds, and above the one before.
#[derive(Debug)]
pub struct Histogram<const N: usize> {
    within: [AtomicU64; N],
    above: AtomicU64,
    sum: AtomicU64,
}

impl<const N: usize> Default for Histogram<N> {
    fn default() -> Histogram<N> {
        Histogram {
            within: std::array::from_fn(|_| AtomicU64::new(0)),
            above: AtomicU64::new(0),
            sum: AtomicU64::new(0),
        }
    }
}

impl<const N: usize> Histogram<N> {
    /// One more value.
    #[inline]
    pub fn observe(&self, bounds: &[u64; N], value: u64) {
        let place = bounds.partition_point(|&bound| bound < value);
        self.within.get(place).unwrap_or(&self.above).fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
    }
}

/// Histograms with the same bounds, added up.
#[derive(Debug)]
pub struct HistogramSum<const N: usize> {
    within: [u64; N],
    above: u64,
    sum: u64,
}

impl<const N: usize> HistogramSum<N> {
    /// The sum of these.
    pub fn of<'a>(histograms: impl Iterator<Item = &'a Histogram<N>>) -> HistogramSum<N> {
        let mut sum = HistogramSum { within: [0; N], above: 0, sum: 0 };
        for histogram in histograms {
            for (total, each) in sum.within.iter_mut().zip(&histogram.within) {
                *total += each.load(Ordering::Relaxed);
            }
            sum.above += histogram.above.load(Ordering::Relaxed);
            sum.sum = sum.sum.wrapping_add(histogram.sum.load(Ordering::Relaxed));
        }
        sum
    }

    /// Writes it with these labels; `say` puts a bound or a sum into words. The count is that of the buckets, so that the two always
    /// agree, also while others count.
    pub fn write<S: Display>(
        &self,
        family: &mut MetricFamily<'_>,
        labels: &[MetricLabel<'_>],
        bounds: &[u64; N],
        format: impl Fn(u64) -> S,
    ) {
        let mut count = 0;
        let mut bucket = |bound: &str, more: u64| {
            count += more;
            let labels: Vec<MetricLabel<'_>> = labels.iter().copied().chain([("le", bound)]).collect();
            family.sample_with_suffix("_bucket", &labels, count);
        };
        for (bound, more) in bounds.iter().zip(self.within) {
            bucket(&format(*bound).to_string(), more);
        }
        bucket("+Inf", self.above);
        family.sample_with_suffix("_sum", labels, format(self.sum));
        family.sample_with_suffix("_count", labels, count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_bounded_from_a_microsecond_to_ten_seconds() {
        assert_eq!(DURATION_BUCKETS[..5], [1_000, 2_500, 5_000, 10_000, 25_000]);
        assert_eq!(DURATION_BUCKETS.last(), Some(&10_000_000_000));
        assert!(DURATION_BUCKETS.is_sorted());
    }

    #[test]
    fn a_value_on_a_bound_is_within_it() {
        let (one, other) = (Histogram::<2>::default(), Histogram::<2>::default());
        for value in [0, 10, 11, 20] {
            one.observe(&[10, 20], value);
        }
        other.observe(&[10, 20], 21);
        let sum = HistogramSum::of([&one, &other].into_iter());
        assert_eq!((sum.within, sum.above, sum.sum), ([2, 2], 1, 62));
    }
}
