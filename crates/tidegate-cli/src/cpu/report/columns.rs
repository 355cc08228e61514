//! Chart columns: samples aggregated to the width of the chart.
//!
//! ```text
//!   samples   ├──┼─┼──┼───┼  unobserved   ┼──┼─┤
//!   columns   │    │    │    │    │    │    │    │     each with mean, minimum and maximum
//! ```
//!
//! Usage between two samples is spread evenly. Aggregation is one pass over the samples.

use std::time::Duration;

use tidegate::budget::{Quota, Rate};
use tidegate::model::{Span, Timestamp};
use tidegate_cpu::journal::UsageSample;

use crate::cpu::format::at_most_all;

/// Aggregated usage of one column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ChartColumn {
    used: Quota,
    observed: Duration,
    unobserved: Duration,
    range: Option<(Rate, Rate)>,
    /// The limit at the end of the column, if observed.
    limit: Option<Rate>,
}

impl ChartColumn {
    /// The mean load of the observed time.
    pub(super) fn mean(&self) -> Option<Rate> {
        (!self.observed.is_zero()).then(|| self.used.rate_over(self.observed))
    }

    /// Minimum and maximum load.
    pub(super) fn range(&self) -> Option<(Rate, Rate)> {
        self.range
    }

    /// The unobserved time.
    pub(super) fn unobserved(&self) -> Duration {
        self.unobserved
    }

    /// Whether more than half of the column is unobserved.
    pub(super) fn is_mostly_unobserved(&self) -> bool {
        self.unobserved > self.observed
    }

    pub(super) fn limit(&self) -> Option<Rate> {
        self.limit
    }

    fn add(&mut self, rate: Option<Rate>, limit: Rate, time: Duration) {
        let Some(rate) = rate else {
            self.unobserved += time;
            return;
        };
        let (lowest, highest) = self.range.unwrap_or((rate, rate));
        self.range = Some((lowest.min(rate), highest.max(rate)));
        self.used = self.used.plus(rate.over(time));
        self.observed += time;
        self.limit = Some(limit);
    }
}

/// A time range in columns of equal length.
#[derive(Debug)]
pub(super) struct ChartColumns {
    from: Timestamp,
    to: Timestamp,
    columns: Vec<ChartColumn>,
    /// All columns in one.
    whole: ChartColumn,
    samples: u64,
}

impl ChartColumns {
    /// Aggregates samples.
    pub(super) fn of(samples: &[UsageSample], from: Timestamp, to: Timestamp, count: u32) -> ChartColumns {
        let columns = vec![ChartColumn::default(); usize::try_from(count.max(1)).unwrap_or(1)];
        let mut all = ChartColumns { from, to, columns, whole: ChartColumn::default(), samples: 0 };
        all.samples = samples.iter().filter(|sample| sample.at.wall >= from).count() as u64;
        for pair in samples.windows(2) {
            all.add(&pair[0], &pair[1]);
        }
        all
    }

    fn add(&mut self, before: &UsageSample, after: &UsageSample) {
        let rate = after.observed.then(|| {
            let steady = u64::try_from(after.at.monotonic.saturating_sub(before.at.monotonic)).unwrap_or(0);
            // Samples of older versions may exceed the machine's capacity.
            at_most_all(after.total.minus(before.total).rate_over(Duration::from_nanos(steady)))
        });
        let (start, end) = (before.at.wall.max(self.from), after.at.wall.min(self.to));
        if start >= end {
            return;
        }
        let time = |from: Timestamp, to: Timestamp| Duration::from_nanos(to.since(from).ticks());
        self.whole.add(rate, before.applied, time(start, end));
        let mut index = self.index(start);
        loop {
            let (first, last) = (self.begin(index), self.begin(index + 1));
            let Some(column) = self.columns.get_mut(index) else { return };
            column.add(rate, before.applied, time(first.max(start), last.min(end)));
            if last >= end {
                return;
            }
            index += 1;
        }
    }

    /// The index of the column of an instant.
    pub(super) fn index(&self, at: Timestamp) -> usize {
        let length = u128::from(self.to.since(self.from).ticks().max(1));
        let position = u128::from(at.since(self.from).ticks()) * self.columns.len() as u128 / length;
        let index = usize::try_from(position).unwrap_or(usize::MAX).min(self.columns.len());
        // Columns begin at whole nanoseconds, up to one before the exact position.
        if self.begin(index + 1) <= at { index + 1 } else { index }
    }

    /// The start of a column.
    fn begin(&self, index: usize) -> Timestamp {
        let length = u128::from(self.to.since(self.from).ticks());
        let offset = length * index as u128 / self.columns.len() as u128;
        self.from.plus(Span::from_ticks(u64::try_from(offset).unwrap_or(u64::MAX)))
    }

    pub(super) fn from(&self) -> Timestamp {
        self.from
    }

    pub(super) fn to(&self) -> Timestamp {
        self.to
    }

    pub(super) fn iter(&self) -> std::slice::Iter<'_, ChartColumn> {
        self.columns.iter()
    }

    pub(super) fn whole(&self) -> &ChartColumn {
        &self.whole
    }

    /// Number of samples in the range.
    pub(super) fn samples(&self) -> u64 {
        self.samples
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use tidegate::budget::BudgetTime;

    const SECOND: u64 = 1_000_000_000;

    /// Samples at these seconds, with the load in percent since the previous one, or `None` if unobserved. The limit
    /// is 40.
    pub(in super::super) fn samples(rows: &[(u64, Option<u32>)]) -> Vec<UsageSample> {
        let mut total = Quota::ZERO;
        let mut last = 0;
        let row = |&(second, used): &(u64, Option<u32>)| {
            let passed = Duration::from_secs(second - std::mem::replace(&mut last, second));
            total = total.plus(Rate::from_units(used.unwrap_or(0)).over(passed));
            UsageSample {
                at: BudgetTime {
                    wall: Timestamp::from_ticks(second * SECOND),
                    monotonic: i64::try_from(second * SECOND).expect("small"),
                },
                total,
                observed: used.is_some(),
                applied: Rate::from_units(40),
                counter: Duration::ZERO,
                counter_id: 0,
                target: tidegate_cpu::meter::TargetId::UNKNOWN,
                boot: 0,
                uptime: Duration::ZERO,
            }
        };
        rows.iter().map(row).collect()
    }

    fn at(second: u64) -> Timestamp {
        Timestamp::from_ticks(second * SECOND)
    }

    #[test]
    fn column_has_mean_and_range_of_its_samples() {
        let samples = samples(&[(0, None), (5, Some(10)), (10, Some(30)), (30, Some(50)), (40, None)]);
        let columns = ChartColumns::of(&samples, at(0), at(40), 4);
        let means: Vec<_> = columns.iter().map(ChartColumn::mean).collect();
        let units = |units| Some(Rate::from_units(units));
        assert_eq!(means, [units(20), units(50), units(50), None]);
        let ranges: Vec<_> = columns.iter().map(ChartColumn::range).collect();
        let range = |least, most| Some((Rate::from_units(least), Rate::from_units(most)));
        assert_eq!(ranges, [range(10, 30), range(50, 50), range(50, 50), None]);
        let mostly_unobserved: Vec<_> = columns.iter().map(ChartColumn::is_mostly_unobserved).collect();
        assert_eq!(mostly_unobserved, [false, false, false, true]);
        assert_eq!(columns.whole().unobserved(), Duration::from_secs(10));
        assert_eq!(columns.whole().mean(), Some(Rate::from_billionths(40 * SECOND)));
        assert_eq!(columns.samples(), 5);
    }

    #[test]
    fn load_is_capped_at_the_machine() {
        let samples = samples(&[(0, None), (5, Some(36_000)), (10, Some(50))]);
        let columns = ChartColumns::of(&samples, at(0), at(10), 2);
        let units = Rate::from_units;
        assert_eq!(columns.whole().range(), Some((units(50), units(100))));
        assert_eq!(columns.whole().mean(), Some(units(75)));
    }

    /// Usage is conserved, whatever the column length.
    #[test]
    fn usage_is_conserved_across_columns() {
        let rows: Vec<_> = (0..500_u64)
            .map(|number| (number * 7, Some(u32::try_from(number % 100).expect("small"))))
            .collect();
        let samples = samples(&rows);
        for (from, to, count) in [(0, 3493, 13), (100, 2999, 880), (5, 6, 880), (3493, 3493, 4)] {
            let columns = ChartColumns::of(&samples, at(from), at(to), count);
            let sum = |of: fn(&ChartColumn) -> Duration| columns.iter().map(of).sum::<Duration>();
            assert_eq!(sum(|column| column.observed), Duration::from_secs(to - from), "{from} {to}");
            let used = columns.iter().fold(Quota::ZERO, |sum, column| sum.plus(column.used));
            assert_eq!(used, columns.whole.used);
        }
    }
}
