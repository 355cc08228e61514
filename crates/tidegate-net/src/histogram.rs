//! Lock-free histograms with fixed bucket bounds.

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::metrics_page::{MetricFamily, MetricLabel};

/// Bucket bounds of request durations in nanoseconds: from 1 µs to 10 s, three per power of ten.
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

/// Adds to a counter of one thread or worker; zero costs nothing.
#[inline]
pub fn add_to(count: &AtomicU64, more: u64) {
    if more > 0 {
        count.fetch_add(more, Ordering::Relaxed);
    }
}

/// Counts of values per bucket. Bucket `i` holds values above bound `i - 1` and up to bound `i`.
#[derive(Debug)]
pub struct Histogram<const N: usize> {
    buckets: [AtomicU64; N],
    above: AtomicU64,
    sum: AtomicU64,
}

impl<const N: usize> Default for Histogram<N> {
    fn default() -> Histogram<N> {
        Histogram {
            buckets: std::array::from_fn(|_| AtomicU64::new(0)),
            above: AtomicU64::new(0),
            sum: AtomicU64::new(0),
        }
    }
}

impl<const N: usize> Histogram<N> {
    /// Counts one value.
    #[inline]
    pub fn observe(&self, bounds: &[u64; N], value: u64) {
        let bucket = bounds.partition_point(|&bound| bound < value);
        self.buckets.get(bucket).unwrap_or(&self.above).fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
    }
}

/// The sum of histograms with the same bounds.
#[derive(Debug)]
pub struct HistogramSum<const N: usize> {
    buckets: [u64; N],
    above: u64,
    sum: u64,
}

impl<const N: usize> HistogramSum<N> {
    /// Adds these histograms up.
    pub fn of<'a>(histograms: impl Iterator<Item = &'a Histogram<N>>) -> HistogramSum<N> {
        let mut sum = HistogramSum { buckets: [0; N], above: 0, sum: 0 };
        for histogram in histograms {
            for (total, each) in sum.buckets.iter_mut().zip(&histogram.buckets) {
                *total += each.load(Ordering::Relaxed);
            }
            sum.above += histogram.above.load(Ordering::Relaxed);
            sum.sum = sum.sum.wrapping_add(histogram.sum.load(Ordering::Relaxed));
        }
        sum
    }

    /// Writes the samples with these labels; `format` formats a bound or a sum. `_count` is computed from the buckets, so the two
    /// agree while other threads count.
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
        for (bound, more) in bounds.iter().zip(self.buckets) {
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
    fn duration_buckets_range_from_a_microsecond_to_ten_seconds() {
        assert_eq!(DURATION_BUCKETS[..5], [1_000, 2_500, 5_000, 10_000, 25_000]);
        assert_eq!(DURATION_BUCKETS.last(), Some(&10_000_000_000));
        assert!(DURATION_BUCKETS.is_sorted());
    }

    #[test]
    fn value_on_a_bound_is_counted_in_that_bucket() {
        let (one, other) = (Histogram::<2>::default(), Histogram::<2>::default());
        for value in [0, 10, 11, 20] {
            one.observe(&[10, 20], value);
        }
        other.observe(&[10, 20], 21);
        let sum = HistogramSum::of([&one, &other].into_iter());
        assert_eq!((sum.buckets, sum.above, sum.sum), ([2, 2], 1, 62));
    }
}
