//! For how much of every period a tree may run.
//!
//! What counts is what it has used, not for how long it was allowed to. An account is credited with the limit for all time that passes, and
//! charged with everything that is measured; the tree runs until what is in it would be used up at the pace of late.
//!
//! ```text
//!   limit 30 % of 2 cores = 120 ms in 200 ms
//!     one core busy:    pace 1 ──▶ runs 120, stopped 80
//!     both cores busy:  pace 2 ──▶ runs 60, stopped 140
//!     it was late:      used 180 ──▶ 60 in debt ──▶ the next period is shorter
//! ```
//!
//! Who was not stopped has used what it wanted, and saves up no more than a period. Who was stopped would have used the rest: its pace was
//! overrated, or it was continued late, and it gets that later.
//!
//! A period is as short as it may be. To stop and continue costs sleeping, waking, reading and two signals for each process; who does it says what
//! it used itself, and the period is so long that this is less than a thousandth of a core.
//!
//! Neither a period nor what is saved up is longer than a *span*, a small part of the window: what is used at the end of a window and was
//! saved up before comes on top of what the budget has left for it, and must be less than the reserve.

use std::time::Duration;

use tidegate_core::budget::Rate;

use super::WHOLE;

/// The shortest and the longest time in which a tree is stopped and continued once.
const SHORTEST_PERIOD: Duration = Duration::from_millis(100);
const LONGEST_PERIOD: Duration = Duration::from_secs(1);
/// How many times longer than what it costs a period is: a sixteenth of a percent of a core is spent.
const DEARNESS: u32 = 1600;
/// What a period costs, until it is known.
const USUAL_COST: Duration = Duration::from_micros(125);
/// What part of a window a span is: with 90 % of the machine allowed, 0.15 points of the average.
const SPANS: u32 = 600;
/// A run shorter than this is not worth its signals; it is saved up.
const SHORTEST_RUN: Duration = Duration::from_millis(5);
/// The slowest pace that is reckoned with, in thousandths of a core: a tree that was idle may not be for long.
const SLOWEST: u64 = 100;
/// Thousandths.
const THOUSAND: u64 = 1000;

/// An account of CPU time.
#[derive(Debug)]
pub(super) struct DutyCycle {
    cores: u32,
    limit: Rate,
    /// Nanoseconds of CPU time that may be used; less than zero is debt.
    balance: i128,
    /// Thousandths of a core that it uses while it runs, of late.
    pace: u64,
    /// What it costs to stop and continue it once, of late.
    cost: Duration,
    /// The longest period, and for how long is saved up.
    span: Duration,
}

impl DutyCycle {
    pub(super) fn new(cores: u32, limit: Rate) -> DutyCycle {
        let span = SHORTEST_PERIOD;
        // Until it is known better, it uses everything.
        DutyCycle { cores, limit, balance: 0, pace: u64::from(cores) * THOUSAND, cost: USUAL_COST, span }
    }

    pub(super) fn set_limit(&mut self, limit: Rate) {
        self.limit = limit;
    }

    /// The average is kept over a window of this length.
    pub(super) fn set_window(&mut self, window: Duration) {
        self.span = (window / SPANS).clamp(SHORTEST_PERIOD, LONGEST_PERIOD);
    }

    /// Whether it may run all the time.
    pub(super) fn is_free(&self) -> bool {
        u128::from(self.limit.billionths()) >= WHOLE
    }

    /// How long a period is.
    pub(super) fn period(&self) -> Duration {
        self.cost.saturating_mul(DEARNESS).clamp(SHORTEST_PERIOD, self.span)
    }

    /// What a period has cost whoever stops and continues it.
    pub(super) fn spend(&mut self, spent: Duration) {
        self.cost = (self.cost * 7 + spent.min(LONGEST_PERIOD)) / 8;
    }

    /// Time has passed, of which it ran a part, and used something.
    pub(super) fn account(&mut self, passed: Duration, ran: Duration, used: Duration) {
        let nanos = |time: Duration| i128::try_from(time.as_nanos()).unwrap_or(i128::MAX);
        let credit = self.credit(passed);
        let was_stopped = ran.saturating_add(SHORTEST_RUN) < passed;
        let most = self.most(if was_stopped { self.span } else { self.period() });
        self.balance = self.balance.saturating_add(credit).saturating_sub(nanos(used)).min(most);
        if ran >= SHORTEST_RUN {
            let seen = used.as_nanos().saturating_mul(u128::from(THOUSAND)) / ran.as_nanos().max(1);
            let most = u64::from(self.cores) * THOUSAND;
            let seen = u64::try_from(seen).unwrap_or(most).clamp(SLOWEST.min(most), most);
            // Faster is believed at once, slower only by and by: the measure is coarse.
            self.pace = seen.max((self.pace * 3 + seen) / 4);
        }
    }

    /// For how long it may run in the next period.
    pub(super) fn run(&self) -> Duration {
        if self.is_free() {
            return self.period();
        }
        let affordable = self.balance.max(0) * i128::from(THOUSAND) / i128::from(self.pace.max(1));
        let affordable = Duration::from_nanos(u64::try_from(affordable).unwrap_or(u64::MAX));
        if affordable < SHORTEST_RUN { Duration::ZERO } else { affordable.min(self.period()) }
    }

    /// The most that is saved up: for so long, or for the shortest run.
    fn most(&self, time: Duration) -> i128 {
        let shortest = SHORTEST_RUN.as_nanos() * u128::from(self.pace) / u128::from(THOUSAND);
        self.credit(time).max(i128::try_from(shortest).unwrap_or(i128::MAX))
    }

    /// What the limit allows in this time.
    fn credit(&self, time: Duration) -> i128 {
        let nanos = time.as_nanos().saturating_mul(u128::from(self.cores));
        i128::try_from(nanos.saturating_mul(u128::from(self.limit.billionths())) / WHOLE).unwrap_or(i128::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first period: what it costs is not known.
    const PERIOD: Duration = Duration::from_millis(200);

    /// One with a window of a day.
    fn duty(cores: u32, limit: u32) -> DutyCycle {
        let mut duty = DutyCycle::new(cores, Rate::from_units(limit));
        duty.set_window(Duration::from_secs(86_400));
        duty
    }

    /// Runs a tree that uses so many thousandths of a core, as measured in ticks of 10 ms; how long it ran and what it used, of so many periods.
    fn simulate(limit: u32, cores: u32, load: impl Fn(u32) -> u64, periods: u32) -> (Duration, Duration) {
        let mut duty = duty(cores, limit);
        let (mut ran, mut used, mut seen) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        for period in 0..periods {
            let run = duty.run();
            ran += run;
            used += run * u32::try_from(load(period)).expect("a small number") / 1000;
            let measured =
                Duration::from_millis(u64::try_from(used.as_millis()).expect("a short time") / 10 * 10);
            duty.account(PERIOD, run, measured.saturating_sub(seen));
            seen = measured;
        }
        (ran, used)
    }

    /// A part of the whole, in percent.
    fn percent(part: Duration, whole: Duration) -> u128 {
        part.as_nanos() * 100 / whole.as_nanos()
    }

    #[test]
    fn one_of_two_cores_at_thirty_percent_is_stopped_for_forty() {
        let (ran, used) = simulate(30, 2, |_| 1000, 600);
        assert!((58..=60).contains(&percent(ran, PERIOD * 600)), "{ran:?}");
        assert!(percent(used, PERIOD * 600 * 2) <= 30, "{used:?}");
    }

    #[test]
    fn two_of_two_cores_at_thirty_percent_are_stopped_for_seventy() {
        let (ran, used) = simulate(30, 2, |_| 2000, 600);
        assert!((29..=30).contains(&percent(ran, PERIOD * 600)), "{ran:?}");
        assert!(percent(used, PERIOD * 600 * 2) <= 30, "{used:?}");
    }

    #[test]
    fn who_uses_less_is_not_stopped() {
        let (ran, _) = simulate(30, 2, |_| 500, 600);
        assert!(percent(ran, PERIOD * 600) >= 98, "{ran:?}");
    }

    #[test]
    fn who_changes_pace_stays_under_the_limit() {
        // From idle to everything and back, as fast as it can be noticed.
        for length in [1, 2, 7, 40] {
            let (_, used) = simulate(20, 2, |period| if period / length % 2 == 0 { 0 } else { 2000 }, 1200);
            let allowed = PERIOD * 1200 * 2 / 5;
            assert!(used <= allowed + PERIOD * 2, "{length}: {used:?}");
        }
    }

    #[test]
    fn small_limits_are_kept_by_rare_runs() {
        let (_, used) = simulate(1, 2, |_| 2000, 6000);
        let whole = PERIOD * 6000 * 2;
        assert!(used <= whole / 100, "{used:?}");
        assert!(used >= whole / 125, "{used:?}");
    }

    #[test]
    fn nothing_is_nothing_and_all_is_all() {
        assert_eq!(simulate(0, 2, |_| 2000, 100).0, Duration::ZERO);
        assert_eq!(simulate(100, 2, |_| 2000, 100).0, PERIOD * 100);
    }

    #[test]
    fn who_is_slower_than_it_seemed_gets_the_rest_later() {
        // Others use the cores too, so that both are had now and then and mostly one and a half.
        let load =
            |period: u32| if period.is_multiple_of(5) { 2000 } else { 1300 + u64::from(period % 7) * 60 };
        let (_, used) = simulate(30, 2, load, 1200);
        let whole = PERIOD * 1200 * 2;
        assert!(percent(used * 100, whole) <= 3000, "{used:?}");
        assert!(percent(used * 100, whole) >= 2960, "{used:?}");
    }

    #[test]
    fn who_is_continued_late_gets_the_rest_later() {
        let mut duty = duty(2, 30);
        let (mut passed, mut used) = (Duration::ZERO, Duration::ZERO);
        for period in 0..1200_u32 {
            let run = duty.run();
            // The machine is busy: every third time somebody wakes up much later.
            let late = if period.is_multiple_of(3) { PERIOD } else { Duration::ZERO };
            duty.account(PERIOD + late, run, run * 2);
            passed += PERIOD + late;
            used += run * 2;
        }
        assert!((2960..=3000).contains(&percent(used * 100, passed * 2)), "{used:?} of {passed:?}");
    }

    #[test]
    fn who_rests_saves_up_no_more_than_a_period() {
        let mut duty = duty(2, 30);
        for _ in 0..100 {
            let run = duty.run();
            duty.account(PERIOD, run, Duration::ZERO);
        }
        assert_eq!(duty.balance, duty.credit(PERIOD));
    }

    #[test]
    fn periods_are_so_long_that_they_cost_less_than_a_thousandth_of_a_core() {
        let mut duty = duty(2, 30);
        assert_eq!(duty.period(), PERIOD);
        for (cost, period) in [(1, 100), (60, 100), (125, 200), (300, 480), (5000, 1000)] {
            (0..200).for_each(|_| duty.spend(Duration::from_micros(cost)));
            assert_eq!(duty.period().as_millis().div_ceil(10) * 10, period, "{cost}");
        }
    }

    #[test]
    fn what_is_saved_up_is_less_than_the_reserve_of_the_window() {
        for window in [60, 120, 600, 86_400] {
            let window = Duration::from_secs(window);
            let mut duty = DutyCycle::new(2, Rate::from_units(90));
            duty.set_window(window);
            for _ in 0..100 {
                duty.spend(Duration::from_millis(10));
                duty.account(window, Duration::ZERO, Duration::ZERO);
            }
            // One percent of a limit of thirty.
            let reserve = window * 2 * 3 / 1000;
            assert!(duty.balance <= i128::try_from(reserve.as_nanos()).expect("days"), "{window:?}");
            assert!(duty.period() <= window / 600, "{window:?}");
        }
    }

    #[test]
    fn being_late_is_paid_back() {
        let mut duty = duty(2, 30);
        duty.account(PERIOD, PERIOD, PERIOD * 2);
        let mut stopped = 0;
        while duty.run().is_zero() {
            duty.account(PERIOD, Duration::ZERO, Duration::ZERO);
            stopped += 1;
        }
        // 280 ms of debt at 120 ms a period, and enough for a short run.
        assert_eq!(stopped, 3);
    }
}
