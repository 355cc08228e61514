//! The duty cycle: the part of every period in which a process tree may run.
//!
//! The account measures CPU time, not running time. It is credited with the limit for all time that passes and charged with all measured
//! usage. The tree runs until the balance would be used up at its recent pace.
//!
//! ```text
//!   limit 30 % of 2 cores = 120 ms in 200 ms
//!     one core busy:    pace 1 ──▶ runs 120, stopped 80
//!     both cores busy:  pace 2 ──▶ runs 60, stopped 140
//!     stopped late:     used 180 ──▶ 60 in debt ──▶ the next period is shorter
//! ```
//!
//! A tree that was not stopped used all that it wanted, so it saves at most one period. A stopped tree may have been stopped too early or
//! continued too late, so it saves up to one *span* and gets that time later.
//!
//! A period is as short as its cost allows. Stopping and continuing costs a wakeup, a scan, and two signals for each process. The thread
//! measures its own CPU time, and the period is long enough to keep this below a thousandth of a core.
//!
//! Periods and savings are limited to a span, a small part of the window. Savings used at the end of a window come on top of the remaining
//! budget and must be smaller than the reserve.

use std::time::Duration;

use tidegate_core::budget::Rate;

use super::WHOLE;

/// Bounds of a period.
const MIN_PERIOD: Duration = Duration::from_millis(100);
const MAX_PERIOD: Duration = Duration::from_secs(1);
/// Ratio of a period to its cost: overhead is a sixteenth of a percent of a core.
const PERIOD_PER_COST: u32 = 1600;
/// Cost of a period before the first measurement.
const INITIAL_COST: Duration = Duration::from_micros(125);
/// Spans per window. With a limit of 90 %, one span is 0.15 points of the average.
const SPANS_PER_WINDOW: u32 = 600;
/// A shorter run is not worth its signals. The time is saved for later.
const MIN_RUN: Duration = Duration::from_millis(5);
/// Minimum pace, in thousandths of a core: an idle tree may become busy at once.
const MIN_PACE: u64 = 100;
/// Thousandths.
const THOUSAND: u64 = 1000;

/// An account of CPU time.
#[derive(Debug)]
pub(super) struct DutyCycle {
    cores: u32,
    limit: Rate,
    /// CPU time that may be used, in nanoseconds. Negative values are debt.
    balance: i128,
    /// Recent usage while running, in thousandths of a core.
    pace: u64,
    /// Recent cost of stopping and continuing the tree once.
    cost: Duration,
    /// Maximum period and maximum savings.
    span: Duration,
}

impl DutyCycle {
    pub(super) fn new(cores: u32, limit: Rate) -> DutyCycle {
        let span = MIN_PERIOD;
        // Assume full usage before the first measurement.
        DutyCycle { cores, limit, balance: 0, pace: u64::from(cores) * THOUSAND, cost: INITIAL_COST, span }
    }

    pub(super) fn set_limit(&mut self, limit: Rate) {
        self.limit = limit;
    }

    /// Sets the length of the averaging window.
    pub(super) fn set_window(&mut self, window: Duration) {
        self.span = (window / SPANS_PER_WINDOW).clamp(MIN_PERIOD, MAX_PERIOD);
    }

    /// Whether the tree may run all the time.
    pub(super) fn is_free(&self) -> bool {
        u128::from(self.limit.billionths()) >= WHOLE
    }

    /// Length of a period.
    pub(super) fn period(&self) -> Duration {
        self.cost.saturating_mul(PERIOD_PER_COST).clamp(MIN_PERIOD, self.span)
    }

    /// Records the CPU time that one period cost.
    pub(super) fn record_cost(&mut self, spent: Duration) {
        self.cost = (self.cost * 7 + spent.min(MAX_PERIOD)) / 8;
    }

    /// Records elapsed time, the running part of it, and the usage.
    pub(super) fn account(&mut self, passed: Duration, ran: Duration, used: Duration) {
        let nanos = |time: Duration| i128::try_from(time.as_nanos()).unwrap_or(i128::MAX);
        let credit = self.credit(passed);
        let was_stopped = ran.saturating_add(MIN_RUN) < passed;
        let max_balance = self.max_balance(if was_stopped { self.span } else { self.period() });
        self.balance = self.balance.saturating_add(credit).saturating_sub(nanos(used)).min(max_balance);
        if ran >= MIN_RUN {
            let measured = used.as_nanos().saturating_mul(u128::from(THOUSAND)) / ran.as_nanos().max(1);
            let max_pace = u64::from(self.cores) * THOUSAND;
            let measured =
                u64::try_from(measured).unwrap_or(max_pace).clamp(MIN_PACE.min(max_pace), max_pace);
            // Adopt a higher pace at once and a lower one slowly: the measurement is coarse.
            self.pace = measured.max((self.pace * 3 + measured) / 4);
        }
    }

    /// How long the tree may run in the next period.
    pub(super) fn run(&self) -> Duration {
        if self.is_free() {
            return self.period();
        }
        let affordable = self.balance.max(0) * i128::from(THOUSAND) / i128::from(self.pace.max(1));
        let affordable = Duration::from_nanos(u64::try_from(affordable).unwrap_or(u64::MAX));
        if affordable < MIN_RUN { Duration::ZERO } else { affordable.min(self.period()) }
    }

    /// Maximum savings: the limit over this time, but at least one shortest run.
    fn max_balance(&self, time: Duration) -> i128 {
        let shortest = MIN_RUN.as_nanos() * u128::from(self.pace) / u128::from(THOUSAND);
        self.credit(time).max(i128::try_from(shortest).unwrap_or(i128::MAX))
    }

    /// CPU time that the limit allows in this time.
    fn credit(&self, time: Duration) -> i128 {
        let nanos = time.as_nanos().saturating_mul(u128::from(self.cores));
        i128::try_from(nanos.saturating_mul(u128::from(self.limit.billionths())) / WHOLE).unwrap_or(i128::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first period, before its cost is measured.
    const PERIOD: Duration = Duration::from_millis(200);

    /// An account with a window of a day.
    fn duty(cores: u32, limit: u32) -> DutyCycle {
        let mut duty = DutyCycle::new(cores, Rate::from_units(limit));
        duty.set_window(Duration::from_secs(86_400));
        duty
    }

    /// Simulates a tree with a load in thousandths of a core, measured in ticks of 10 ms. Returns its running time and its usage.
    fn simulate(limit: u32, cores: u32, load: impl Fn(u32) -> u64, periods: u32) -> (Duration, Duration) {
        let mut duty = duty(cores, limit);
        let (mut ran, mut used, mut counted) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        for period in 0..periods {
            let run = duty.run();
            ran += run;
            used += run * u32::try_from(load(period)).expect("a small number") / 1000;
            let measured =
                Duration::from_millis(u64::try_from(used.as_millis()).expect("a short time") / 10 * 10);
            duty.account(PERIOD, run, measured.saturating_sub(counted));
            counted = measured;
        }
        (ran, used)
    }

    /// A part of the whole, in percent.
    fn percent(part: Duration, whole: Duration) -> u128 {
        part.as_nanos() * 100 / whole.as_nanos()
    }

    #[test]
    fn one_busy_core_of_two_at_thirty_percent_runs_for_sixty_percent() {
        let (ran, used) = simulate(30, 2, |_| 1000, 600);
        assert!((58..=60).contains(&percent(ran, PERIOD * 600)), "{ran:?}");
        assert!(percent(used, PERIOD * 600 * 2) <= 30, "{used:?}");
    }

    #[test]
    fn two_busy_cores_of_two_at_thirty_percent_run_for_thirty_percent() {
        let (ran, used) = simulate(30, 2, |_| 2000, 600);
        assert!((29..=30).contains(&percent(ran, PERIOD * 600)), "{ran:?}");
        assert!(percent(used, PERIOD * 600 * 2) <= 30, "{used:?}");
    }

    #[test]
    fn tree_below_its_limit_is_not_stopped() {
        let (ran, _) = simulate(30, 2, |_| 500, 600);
        assert!(percent(ran, PERIOD * 600) >= 98, "{ran:?}");
    }

    #[test]
    fn tree_with_changing_load_stays_below_the_limit() {
        // Alternate between idle and full load, with several durations.
        for length in [1, 2, 7, 40] {
            let (_, used) = simulate(20, 2, |period| if period / length % 2 == 0 { 0 } else { 2000 }, 1200);
            let allowed = PERIOD * 1200 * 2 / 5;
            assert!(used <= allowed + PERIOD * 2, "{length}: {used:?}");
        }
    }

    #[test]
    fn small_limit_is_kept_by_rare_runs() {
        let (_, used) = simulate(1, 2, |_| 2000, 6000);
        let whole = PERIOD * 6000 * 2;
        assert!(used <= whole / 100, "{used:?}");
        assert!(used >= whole / 125, "{used:?}");
    }

    #[test]
    fn zero_limit_never_runs_and_full_limit_always_runs() {
        assert_eq!(simulate(0, 2, |_| 2000, 100).0, Duration::ZERO);
        assert_eq!(simulate(100, 2, |_| 2000, 100).0, PERIOD * 100);
    }

    #[test]
    fn overestimated_pace_is_compensated_later() {
        // Other load on the machine leaves mostly one and a half cores, and sometimes both.
        let load =
            |period: u32| if period.is_multiple_of(5) { 2000 } else { 1300 + u64::from(period % 7) * 60 };
        let (_, used) = simulate(30, 2, load, 1200);
        let whole = PERIOD * 1200 * 2;
        assert!(percent(used * 100, whole) <= 3000, "{used:?}");
        assert!(percent(used * 100, whole) >= 2960, "{used:?}");
    }

    #[test]
    fn late_continue_is_compensated_later() {
        let mut duty = duty(2, 30);
        let (mut passed, mut used) = (Duration::ZERO, Duration::ZERO);
        for period in 0..1200_u32 {
            let run = duty.run();
            // On a busy machine, every third wakeup is late.
            let late = if period.is_multiple_of(3) { PERIOD } else { Duration::ZERO };
            duty.account(PERIOD + late, run, run * 2);
            passed += PERIOD + late;
            used += run * 2;
        }
        assert!((2960..=3000).contains(&percent(used * 100, passed * 2)), "{used:?} of {passed:?}");
    }

    #[test]
    fn idle_tree_saves_at_most_one_period() {
        let mut duty = duty(2, 30);
        for _ in 0..100 {
            let run = duty.run();
            duty.account(PERIOD, run, Duration::ZERO);
        }
        assert_eq!(duty.balance, duty.credit(PERIOD));
    }

    #[test]
    fn period_overhead_is_below_a_thousandth_of_a_core() {
        let mut duty = duty(2, 30);
        assert_eq!(duty.period(), PERIOD);
        for (cost, period) in [(1, 100), (60, 100), (125, 200), (300, 480), (5000, 1000)] {
            (0..200).for_each(|_| duty.record_cost(Duration::from_micros(cost)));
            assert_eq!(duty.period().as_millis().div_ceil(10) * 10, period, "{cost}");
        }
    }

    #[test]
    fn savings_are_smaller_than_the_reserve_of_the_window() {
        for window in [60, 120, 600, 86_400] {
            let window = Duration::from_secs(window);
            let mut duty = DutyCycle::new(2, Rate::from_units(90));
            duty.set_window(window);
            for _ in 0..100 {
                duty.record_cost(Duration::from_millis(10));
                duty.account(window, Duration::ZERO, Duration::ZERO);
            }
            // One percent of a limit of thirty.
            let reserve = window * 2 * 3 / 1000;
            assert!(duty.balance <= i128::try_from(reserve.as_nanos()).expect("days"), "{window:?}");
            assert!(duty.period() <= window / 600, "{window:?}");
        }
    }

    #[test]
    fn late_stop_is_paid_back() {
        let mut duty = duty(2, 30);
        duty.account(PERIOD, PERIOD, PERIOD * 2);
        let mut stopped = 0;
        while duty.run().is_zero() {
            duty.account(PERIOD, Duration::ZERO, Duration::ZERO);
            stopped += 1;
        }
        // The debt is 280 ms. Each period credits 120 ms, and the balance must cover a short run.
        assert_eq!(stopped, 3);
    }
}
