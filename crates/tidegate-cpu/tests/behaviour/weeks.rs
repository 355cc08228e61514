//! Simulated weeks: loads, gaps, restarts, clock changes and daylight saving time. Usage within the limit never exceeds the quota.

use std::time::Duration;

use proptest::prelude::*;
use tidegate::budget::{BudgetTime, Quota, Rate};
use tidegate_core::Timestamp;
use tidegate_cpu::journal::UsageSample;
use tidegate_cpu::runner::round_to_step;
use tidegate_cpu::simulation::Simulation;
use tidegate_cpu::{Governor, GovernorSettings, Observation};
use tidegate_testkit::test_scale::cases;

use super::{MIDNIGHT, after, settings};

const SECOND: i64 = 1_000_000_000;

/// The real usage, and the governor with its journal.
struct Scenario {
    governor: Governor,
    journal: Vec<UsageSample>,
    /// Real time, and the offset of the wall clock.
    now: i64,
    offset: i64,
    total: Quota,
    /// The total usage at points of real time.
    usage_history: Vec<(i64, Quota)>,
    window: i64,
    /// The usage and the elapsed real time of the current window.
    window_used: Quota,
    window_elapsed: Duration,
    /// The first point at which a trailing window may begin.
    first: usize,
}

impl Scenario {
    fn new(settings: GovernorSettings, begin: u64) -> Scenario {
        let window = i64::try_from(settings.schedule.nominal_length().as_nanos()).expect("a week");
        let at = BudgetTime { wall: Timestamp::from_ticks(begin), monotonic: 0 };
        let governor = Governor::new(settings, at);
        Scenario {
            window_elapsed: governor.account().elapsed(),
            governor,
            journal: Vec::new(),
            now: 0,
            offset: i64::try_from(begin).expect("this century"),
            total: Quota::ZERO,
            usage_history: vec![(0, Quota::ZERO)],
            window,
            window_used: Quota::ZERO,
            first: 0,
        }
    }

    fn budget_time(&self) -> BudgetTime {
        BudgetTime {
            wall: Timestamp::from_ticks((self.now + self.offset).unsigned_abs()),
            monotonic: self.now,
        }
    }

    /// Uses `rate` for some time and then takes a sample, observed or not.
    fn advance(&mut self, time: i64, rate: Rate, is_observed: bool) {
        // A step never crosses the end of a window.
        let left = self.governor.account().window().end.since(self.budget_time().wall).ticks();
        let time = time.min(i64::try_from(left).unwrap_or(i64::MAX)).max(1);
        let used = rate.over(Duration::from_nanos(time.unsigned_abs()));
        self.now += time;
        self.total = self.total.plus(used);
        self.usage_history.push((self.now, self.total));
        let current_window = self.governor.account().window();
        let now = self.budget_time();
        self.window_used = self.window_used.plus(used);
        self.window_elapsed += Duration::from_nanos(time.unsigned_abs());
        // A clock that is set back makes a window longer than nominal. Its average covers the real time.
        let allowed =
            self.governor.settings().terms.average.over(current_window.length().max(self.window_elapsed));
        assert!(self.window_used <= allowed, "{:?} of {allowed:?} in {current_window:?}", self.window_used);
        let outcome = self
            .governor
            .observe(now, if is_observed { Observation::Used(used) } else { Observation::Nothing });
        if self.governor.account().window() != current_window {
            (self.window_used, self.window_elapsed) = (Quota::ZERO, Duration::ZERO);
        }
        let observed_total = self.journal.last().map_or(Quota::ZERO, |last| last.total);
        self.journal.push(UsageSample {
            at: now,
            total: if is_observed { observed_total.plus(used) } else { observed_total },
            observed: is_observed,
            applied: outcome.applied,
            counter: Duration::ZERO,
            counter_id: 0,
            target: tidegate_cpu::meter::TargetId::UNKNOWN,
            boot: 0,
            uptime: Duration::ZERO,
        });
        self.check_trailing_windows();
    }

    /// Checks all trailing windows that ended since the last sample.
    fn check_trailing_windows(&mut self) {
        let allowed =
            self.governor.settings().terms.average.over(Duration::from_nanos(self.window.unsigned_abs()));
        if !self.governor.settings().guards {
            return;
        }
        let start = self.now - self.window;
        while self.usage_history.get(self.first + 1).is_some_and(|(at, _)| *at <= start) {
            self.first += 1;
            // This window ended since the last sample.
            let (began, before) = self.usage_history[self.first];
            let used = self.total_at(began + self.window).minus(before);
            assert!(used <= allowed, "{used:?} of {allowed:?} by {began}");
        }
        let used = self.total.minus(self.total_at(start.max(0)));
        assert!(used <= allowed, "{used:?} of {allowed:?} at {}", self.now);
    }

    fn total_at(&self, at: i64) -> Quota {
        let next = self.usage_history.partition_point(|point| point.0 <= at);
        let (before_at, before) = self.usage_history[next - 1];
        let Some((next_at, after)) = self.usage_history.get(next) else { return before };
        let used = after.minus(before).raw() * i128::from(at - before_at) / i128::from(next_at - before_at);
        before.plus(Quota::from_raw(used))
    }

    /// Kills the governor and resumes it from its journal.
    fn restart(&mut self) {
        let settings = self.governor.settings().clone();
        if let Some(again) = Governor::resume(settings, &self.journal) {
            self.governor = again;
        }
    }
}

/// An event of a scenario.
#[derive(Debug, Clone)]
enum ScenarioEvent {
    /// A load for a number of samples, `seconds` apart.
    Load {
        percent: u32,
        seconds: i64,
        looks: u32,
    },
    /// Minutes without a sample, with usage of at most the floor. The counter may contain that usage afterwards.
    Gap {
        minutes: i64,
        percent: u32,
        is_counted: bool,
    },
    /// A step of the wall clock in seconds.
    Step(i64),
    Restart,
}

fn events() -> impl Strategy<Value = ScenarioEvent> {
    let load = prop_oneof![Just(100u32), Just(0), 0u32..=100];
    prop_oneof![
        6 => (load, 1i64..=15, 1u32..2000).prop_map(|(percent, seconds, looks)| ScenarioEvent::Load { percent, seconds, looks }),
        1 => (1i64..600, 0u32..=10, any::<bool>()).prop_map(|(minutes, percent, is_counted)| ScenarioEvent::Gap { minutes, percent, is_counted }),
        1 => (-7200i64..7200).prop_map(ScenarioEvent::Step),
        1 => Just(ScenarioEvent::Restart),
    ]
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn usage_within_limit_never_exceeds_quota(
        hours in prop_oneof![Just(24u32), 1u32..=48],
        guards in any::<bool>(),
        zone in prop_oneof!["UTC", "America/New_York", "Australia/Lord_Howe"],
        start_hour in 0u8..24,
        // Dates around the changes of daylight saving time.
        begin in prop_oneof![Just(MIDNIGHT), Just(1_761_955_200_000_000_000), Just(1_741_406_400_000_000_000)],
        unobserved in prop_oneof!["limit", "zero"],
        events in prop::collection::vec(events(), 1..40),
    ) {
        let settings = settings(&format!(
            "rolling_window_hours: {hours}\ntrailing_guard: {guards}\ntime_zone: {zone}\nwindow_start_hour: {start_hour}\nunobserved: {unobserved}"
        ));
        let mut scenario = Scenario::new(settings, begin);
        for event in events {
            match event {
                ScenarioEvent::Load { percent, seconds, looks } => {
                    for _ in 0..looks {
                        let rate = Rate::from_units(percent).min(scenario.governor.applied());
                        scenario.advance(seconds * SECOND, rate, true);
                    }
                }
                ScenarioEvent::Gap { minutes, percent, is_counted } => {
                    // Unobserved usage is at most what the policy counts.
                    let rate = if is_counted || unobserved == "limit" { percent } else { 0 };
                    scenario.advance(minutes * 60 * SECOND, Rate::from_units(rate), is_counted);
                }
                ScenarioEvent::Step(seconds) => scenario.offset += seconds * SECOND,
                ScenarioEvent::Restart => scenario.restart(),
            }
        }
    }
}

/// The used share of the quota under unlimited demand, in hundredths of a percent.
fn utilisation(text: &str, days: u32) -> u64 {
    let mut simulation = Simulation::new(settings(text), Timestamp::from_ticks(MIDNIGHT));
    let end = MIDNIGHT + u64::from(days) * 86_400_000_000_000;
    simulation.run(Timestamp::from_ticks(end), Rate::from_units(100), |_, _, _| {});
    let (_, windows) = simulation.finish();
    let whole = windows.iter().filter(|window| window.is_whole);
    let (used, allowed) = whole.fold((0, 0), |(used, allowed), window| {
        assert!(window.used <= window.allowed, "{window:?}");
        (used + window.used.raw(), allowed + window.allowed.raw())
    });
    u64::try_from(used * 10_000 / allowed).expect("a part")
}

#[test]
fn unlimited_demand_uses_97_percent_of_quota() {
    for hours in [1, 6, 12, 24, 48, 168] {
        let used = utilisation(&format!("rolling_window_hours: {hours}\ntrailing_guard: false"), 14);
        assert!(used >= 9_700, "{hours} h: {used} of 10,000");
    }
}

#[test]
fn unlimited_demand_with_guard_uses_97_percent_of_quota() {
    for hours in [1, 6, 12, 24, 48] {
        let used = utilisation(&format!("rolling_window_hours: {hours}"), 14);
        assert!(used >= 9_700, "{hours} h: {used} of 10,000");
    }
}

/// The usage of the first whole window, in thousandths of a percent. The governor starts `late` seconds into the window before.
/// The load uses the limit less `lost` thousandths.
fn first_window_usage(unobserved: &str, late: u64, lost: u64) -> u64 {
    let text = "rolling_window: 120s\nmetrics_interval_seconds: 1\nadjust_interval_seconds: 1\nunobserved: ";
    let settings = settings(&format!("{text}{unobserved}"));
    let (window, second) = (Duration::from_secs(120), Duration::from_secs(1));
    let mut now = Duration::from_secs(late);
    let mut governor = Governor::new(settings, after(now));
    let mut whole = Quota::ZERO;
    while now < window * 2 {
        let enforced = round_to_step(governor.applied()).billionths();
        let used = Rate::from_billionths(enforced / 1000 * (1000 - lost)).over(second);
        if now >= window {
            whole = whole.plus(used);
        }
        now += second;
        governor.observe(after(now), Observation::Used(used));
    }
    whole.rate_over(window).billionths() / 1_000_000
}

/// A real run of two minutes ended at 28.45 % of 30 %. It began in the last quarter of a window, and the policy `zero` counted nothing
/// for the time before. The run used most of that quota there, so the trailing guard left only the floor until the last quarter of the
/// next window. The policies `limit` and `average` prevent this burst.
#[test]
fn first_whole_window_uses_quota_for_any_start() {
    for late in 0..120 {
        for lost in [0, 10, 30] {
            for unobserved in ["limit", "average"] {
                let used = first_window_usage(unobserved, late, lost);
                assert!((29_600..=29_700).contains(&used), "{unobserved}, {late} s, {lost}: {used}");
            }
            let used = first_window_usage("zero", late, lost);
            let least = if late <= 60 { 29_500 } else { 28_400 };
            assert!((least..=29_700).contains(&used), "zero, {late} s, {lost}: {used}");
        }
    }
}
