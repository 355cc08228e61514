//! Simulated weeks: loads, gaps, restarts, clocks that are put right, summer time. Whoever obeys is never over.

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

/// What really happened, and what a governor knows of it.
struct World {
    governor: Governor,
    journal: Vec<UsageSample>,
    /// Real time, and how far the wall clock is from it.
    now: i64,
    offset: i64,
    total: Quota,
    /// Everything that was used, in real time.
    truth: Vec<(i64, Quota)>,
    window: i64,
    /// What was used in the present window, as the governor divides time, and how much of it has really passed.
    tile_used: Quota,
    tile_time: Duration,
    /// The first point of the truth that a window may begin at.
    first: usize,
}

impl World {
    fn new(settings: GovernorSettings, begin: u64) -> World {
        let window = i64::try_from(settings.schedule.nominal_length().as_nanos()).expect("a week");
        let at = BudgetTime { wall: Timestamp::from_ticks(begin), monotonic: 0 };
        let governor = Governor::new(settings, at);
        World {
            tile_time: governor.account().elapsed(),
            governor,
            journal: Vec::new(),
            now: 0,
            offset: i64::try_from(begin).expect("this century"),
            total: Quota::ZERO,
            truth: vec![(0, Quota::ZERO)],
            window,
            tile_used: Quota::ZERO,
            first: 0,
        }
    }

    fn moment(&self) -> BudgetTime {
        BudgetTime {
            wall: Timestamp::from_ticks((self.now + self.offset).unsigned_abs()),
            monotonic: self.now,
        }
    }

    /// So much is used for some time, and then somebody looks, or cannot tell.
    fn pass(&mut self, time: i64, rate: Rate, is_seen: bool) {
        // Nobody sleeps through the end of a window.
        let left = self.governor.account().window().end.since(self.moment().wall).ticks();
        let time = time.min(i64::try_from(left).unwrap_or(i64::MAX)).max(1);
        let used = rate.over(Duration::from_nanos(time.unsigned_abs()));
        self.now += time;
        self.total = self.total.plus(used);
        self.truth.push((self.now, self.total));
        let tile = self.governor.account().window();
        let moment = self.moment();
        self.tile_used = self.tile_used.plus(used);
        self.tile_time += Duration::from_nanos(time.unsigned_abs());
        // A clock that is put back makes a window longer than it says: its average is over the time that it really has.
        let allowed = self.governor.settings().terms.average.over(tile.length().max(self.tile_time));
        assert!(self.tile_used <= allowed, "{:?} of {allowed:?} in {tile:?}", self.tile_used);
        let look = self
            .governor
            .observe(moment, if is_seen { Observation::Used(used) } else { Observation::Nothing });
        if self.governor.account().window() != tile {
            (self.tile_used, self.tile_time) = (Quota::ZERO, Duration::ZERO);
        }
        let seen_total = self.journal.last().map_or(Quota::ZERO, |last| last.total);
        self.journal.push(UsageSample {
            at: moment,
            total: if is_seen { seen_total.plus(used) } else { seen_total },
            observed: is_seen,
            applied: look.applied,
            counter: Duration::ZERO,
            counter_id: 0,
            target: tidegate_cpu::meter::TargetId::UNKNOWN,
            boot: 0,
            uptime: Duration::ZERO,
        });
        self.check_trail();
    }

    /// No window that ends now, or ended since the last look, was over.
    fn check_trail(&mut self) {
        let allowed =
            self.governor.settings().terms.average.over(Duration::from_nanos(self.window.unsigned_abs()));
        if !self.governor.settings().guards {
            return;
        }
        let start = self.now - self.window;
        while self.truth.get(self.first + 1).is_some_and(|(at, _)| *at <= start) {
            self.first += 1;
            // The window that began there ended since the last look.
            let (began, before) = self.truth[self.first];
            let used = self.total_at(began + self.window).minus(before);
            assert!(used <= allowed, "{used:?} of {allowed:?} by {began}");
        }
        let used = self.total.minus(self.total_at(start.max(0)));
        assert!(used <= allowed, "{used:?} of {allowed:?} at {}", self.now);
    }

    fn total_at(&self, at: i64) -> Quota {
        let next = self.truth.partition_point(|point| point.0 <= at);
        let (before_at, before) = self.truth[next - 1];
        let Some((next_at, after)) = self.truth.get(next) else { return before };
        let used = after.minus(before).raw() * i128::from(at - before_at) / i128::from(next_at - before_at);
        before.plus(Quota::from_raw(used))
    }

    /// Somebody kills the governor, and it goes on from its journal.
    fn restart(&mut self) {
        let settings = self.governor.settings().clone();
        if let Some(again) = Governor::resume(settings, &self.journal) {
            self.governor = again;
        }
    }
}

/// What happens next.
#[derive(Debug, Clone)]
enum Event {
    /// A load for some looks, so many seconds apart.
    Load {
        percent: u32,
        seconds: i64,
        looks: u32,
    },
    /// Nobody looks for some minutes, and the floor is used at most; whether the counter tells of it afterwards.
    Gap {
        minutes: i64,
        percent: u32,
        is_told: bool,
    },
    /// The wall clock is put right, by so many seconds.
    Step(i64),
    Restart,
}

fn events() -> impl Strategy<Value = Event> {
    let load = prop_oneof![Just(100u32), Just(0), 0u32..=100];
    prop_oneof![
        6 => (load, 1i64..=15, 1u32..2000).prop_map(|(percent, seconds, looks)| Event::Load { percent, seconds, looks }),
        1 => (1i64..600, 0u32..=10, any::<bool>()).prop_map(|(minutes, percent, is_told)| Event::Gap { minutes, percent, is_told }),
        1 => (-7200i64..7200).prop_map(Event::Step),
        1 => Just(Event::Restart),
    ]
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn nobody_who_obeys_is_over(
        hours in prop_oneof![Just(24u32), 1u32..=48],
        guards in any::<bool>(),
        zone in prop_oneof!["UTC", "America/New_York", "Australia/Lord_Howe"],
        start_hour in 0u8..24,
        // Around the nights in which clocks change.
        begin in prop_oneof![Just(MIDNIGHT), Just(1_761_955_200_000_000_000), Just(1_741_406_400_000_000_000)],
        unobserved in prop_oneof!["limit", "zero"],
        events in prop::collection::vec(events(), 1..40),
    ) {
        let settings = settings(&format!(
            "rolling_window_hours: {hours}\ntrailing_guard: {guards}\ntime_zone: {zone}\nwindow_start_hour: {start_hour}\nunobserved: {unobserved}"
        ));
        let mut world = World::new(settings, begin);
        for event in events {
            match event {
                Event::Load { percent, seconds, looks } => {
                    for _ in 0..looks {
                        let rate = Rate::from_units(percent).min(world.governor.applied());
                        world.pass(seconds * SECOND, rate, true);
                    }
                }
                Event::Gap { minutes, percent, is_told } => {
                    // What nobody sees is not more than it counts as.
                    let rate = if is_told || unobserved == "limit" { percent } else { 0 };
                    world.pass(minutes * 60 * SECOND, Rate::from_units(rate), is_told);
                }
                Event::Step(seconds) => world.offset += seconds * SECOND,
                Event::Restart => world.restart(),
            }
        }
    }
}

/// What is used of the quota when everything is used that is allowed.
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
fn endless_demand_uses_nearly_all_of_it() {
    for hours in [1, 6, 12, 24, 48, 168] {
        let used = utilisation(&format!("rolling_window_hours: {hours}\ntrailing_guard: false"), 14);
        assert!(used >= 9_700, "{hours} h: {used} of 10,000");
    }
}

#[test]
fn endless_demand_under_guard_uses_most_of_it() {
    for hours in [1, 6, 12, 24, 48] {
        let used = utilisation(&format!("rolling_window_hours: {hours}"), 14);
        assert!(used >= 9_700, "{hours} h: {used} of 10,000");
    }
}

/// What the first whole window uses, in thousandths of a percent, if a governor begins so many seconds into the one before and everything is
/// used that is allowed, less so many thousandths of it.
fn after_a_part(unobserved: &str, late: u64, lost: u64) -> u64 {
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

/// A real run of two minutes ended at 28.45 % of 30 %: it had begun in the last quarter of a window of which nothing was known and nothing counted
/// (`zero`), had used most of that window's quota there, and the trailing guard left it the floor until the last quarter of the next one,
/// in which no ceiling is high enough. Where what is not known counts as it does by default, no such burst comes to be.
#[test]
fn the_first_whole_window_is_nearly_used_up_whenever_it_began() {
    for late in 0..120 {
        for lost in [0, 10, 30] {
            for unobserved in ["limit", "average"] {
                let used = after_a_part(unobserved, late, lost);
                assert!((29_600..=29_700).contains(&used), "{unobserved}, {late} s, {lost}: {used}");
            }
            let used = after_a_part("zero", late, lost);
            let least = if late <= 60 { 29_500 } else { 28_400 };
            assert!((least..=29_700).contains(&used), "zero, {late} s, {lost}: {used}");
        }
    }
}
