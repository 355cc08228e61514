//! The runner: samples of fake counters, restarts, counter changes and clock changes.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::budget::Rate;
use tidegate_cpu::clock::ClockReading;
use tidegate_cpu::enforcer::{EnforceError, Enforcer};
use tidegate_cpu::journal::SampleJournal;
use tidegate_cpu::meter::{CounterId, Meter, MeterError, MeterReading, TargetId};
use tidegate_cpu::runner::{recent, round_to_step};
use tidegate_cpu::{GovernorSettings, Runner};

use super::{after, settings};

const CORES: u32 = 4;
const MINUTE: Duration = Duration::from_secs(60);

/// A meter with a reading that the test sets.
#[derive(Clone)]
struct FakeMeter(Arc<Mutex<MeterReading>>);

impl FakeMeter {
    fn new() -> FakeMeter {
        FakeMeter(Arc::new(Mutex::new(MeterReading {
            used: Duration::ZERO,
            counter_id: CounterId::of(&[b"first"]),
            target: TargetId::of(&[b"host"]),
            age: None,
        })))
    }

    /// Adds CPU time of all cores together.
    fn add_usage(&self, time: Duration) {
        self.0.lock().expect("no panic").used += time;
    }

    fn set(&self, reading: MeterReading) {
        *self.0.lock().expect("no panic") = reading;
    }
}

impl Meter for FakeMeter {
    fn read(&mut self) -> Result<MeterReading, MeterError> {
        Ok(*self.0.lock().expect("no panic"))
    }
}

/// An enforcer that records the last limit.
#[derive(Clone, Default)]
struct RecordingEnforcer(Arc<Mutex<Option<Rate>>>);

impl RecordingEnforcer {
    fn now(&self) -> Option<Rate> {
        *self.0.lock().expect("no panic")
    }
}

impl Enforcer for RecordingEnforcer {
    fn apply(&mut self, limit: Rate) -> Result<(), EnforceError> {
        *self.0.lock().expect("no panic") = Some(limit);
        Ok(())
    }

    fn restore(&mut self) -> Result<(), EnforceError> {
        *self.0.lock().expect("no panic") = None;
        Ok(())
    }
}

fn at(minutes: u64) -> ClockReading {
    let time = MINUTE * u32::try_from(minutes).expect("some days");
    ClockReading { wall: after(time).wall, uptime: time, boot: 1 }
}

struct RunnerFixture {
    folder: tempfile::TempDir,
    counter: FakeMeter,
    limit: RecordingEnforcer,
    settings: GovernorSettings,
}

impl RunnerFixture {
    fn new(text: &str) -> RunnerFixture {
        RunnerFixture {
            folder: tempfile::tempdir().expect("a folder"),
            counter: FakeMeter::new(),
            limit: RecordingEnforcer::default(),
            settings: settings(text),
        }
    }

    fn start(&self, part: Option<&FakeMeter>, now: ClockReading) -> Runner {
        let folder: &Path = self.folder.path();
        let samples = recent(folder, &self.settings, now).expect("it is there");
        let journal = SampleJournal::open(folder, self.settings.retention).expect("a journal");
        let part = part.map(|part| Box::new(part.clone()) as Box<dyn Meter>);
        let enforcer = Box::new(self.limit.clone());
        let meter = Box::new(self.counter.clone());
        Runner::start(self.settings.clone(), (journal, &samples), CORES, meter, part, enforcer, now)
            .unwrap_or_else(|error| panic!("{error}"))
    }
}

/// Rounds down to twentieths of a percentage point.
fn round_down(rate: Rate) -> Rate {
    Rate::from_billionths(rate.billionths() / 50_000_000 * 50_000_000)
}

/// The reading of another counter.
fn other_target_reading(used: Duration, age: Option<Duration>) -> MeterReading {
    MeterReading { used, counter_id: CounterId::of(&[b"second"]), target: TargetId::of(&[b"another"]), age }
}

fn used_minutes(runner: &mut Runner) -> i128 {
    runner.governor().account().used().billionth_minutes() / 1_000_000_000
}

fn sample_at(runner: &mut Runner, now: ClockReading) -> Rate {
    runner.sample(now).unwrap_or_else(|error| panic!("{error}")).applied
}

#[test]
fn core_time_counts_as_percent_of_machine() {
    let fixture = RunnerFixture::new("unobserved: zero");
    let mut runner = fixture.start(None, at(0));
    // Two of four cores for a minute.
    fixture.counter.add_usage(MINUTE * 2);
    let applied = sample_at(&mut runner, at(1));
    assert_eq!(used_minutes(&mut runner), 50);
    assert_eq!(fixture.limit.now(), Some(round_down(applied)));
    let (_, kept) = runner.finish().unwrap_or_else(|error| panic!("{error}"));
    kept.expect("room on the disk");
    assert_eq!(fixture.limit.now(), None, "the limit is lifted");
}

#[test]
fn limit_in_force_is_less_than_a_tenth_of_a_point_lower() {
    for limit in (1..100_000_000_000).step_by(7_654_321).map(Rate::from_billionths) {
        let below = limit.billionths() - round_to_step(limit).billionths();
        assert!(below < 100_000_000, "{limit:?}");
    }
    assert_eq!(round_to_step(Rate::from_billionths(27_731_546_964)), Rate::from_billionths(27_700_000_000));
    assert_eq!(round_to_step(Rate::from_billionths(49_999_999)), Rate::from_billionths(49_999_999));
}

/// The counter continues without a governor, so a restart misses no usage.
#[test]
fn restart_keeps_counted_usage() {
    let fixture = RunnerFixture::new("unobserved: limit\nreserve_percent: 0");
    let mut runner = fixture.start(None, at(0));
    fixture.counter.add_usage(MINUTE * 40);
    sample_at(&mut runner, at(10));
    let applied = fixture.limit.now();
    drop(runner);
    // An hour without a governor, one core busy.
    fixture.counter.add_usage(MINUTE * 60);
    let mut runner = fixture.start(None, at(70));
    assert_eq!(used_minutes(&mut runner), 1000 + 1500);
    assert!(fixture.limit.now().is_some() && fixture.limit.now() <= applied);
    let unseen = runner.governor().account().unobserved_for();
    assert_eq!(unseen, Duration::ZERO);
}

/// A new counter does not contain the usage since the last sample, so the policy decides.
#[test]
fn unobserved_time_counts_by_policy() {
    for (policy, expected) in [("limit", 1800), ("zero", 0)] {
        let fixture = RunnerFixture::new(&format!("unobserved: {policy}\nreserve_percent: 0"));
        drop(fixture.start(None, at(0)));
        fixture.counter.set(other_target_reading(MINUTE * 999, None));
        let mut runner = fixture.start(None, at(60));
        assert_eq!(used_minutes(&mut runner), expected, "{policy}");
        // Later usage is observed.
        fixture.counter.add_usage(MINUTE * 4);
        sample_at(&mut runner, at(61));
        assert_eq!(used_minutes(&mut runner), expected + 100);
    }
}

/// After a reboot the counter covers the time since the boot. Only the time before is unobserved.
#[test]
fn counter_after_reboot_covers_time_since_boot() {
    let fixture = RunnerFixture::new("unobserved: limit\nreserve_percent: 0");
    drop(fixture.start(None, at(0)));
    let target = TargetId::of(&[b"host"]);
    fixture.counter.set(MeterReading { target, ..other_target_reading(MINUTE * 20, Some(MINUTE * 20)) });
    let now = ClockReading { uptime: MINUTE * 20, boot: 2, ..at(60) };
    let mut runner = fixture.start(None, now);
    assert_eq!(used_minutes(&mut runner), 30 * 40 + 500, "forty minutes by policy, then one core of four");
    drop(runner);
    fixture.counter.add_usage(MINUTE * 4);
    let mut runner = fixture.start(None, ClockReading { uptime: MINUTE * 21, boot: 2, ..at(61) });
    assert_eq!(used_minutes(&mut runner), 30 * 40 + 600);
}

/// The counter of another target does not contain the usage of this target without a governor.
#[test]
fn counter_of_other_target_does_not_charge_past_usage() {
    for (age, now) in [
        (MINUTE * 5000, at(60)),
        (MINUTE * 20, at(60)),
        (MINUTE * 20, ClockReading { uptime: MINUTE * 20, boot: 2, ..at(60) }),
    ] {
        let fixture = RunnerFixture::new("unobserved: limit\nreserve_percent: 0");
        drop(fixture.start(None, at(0)));
        let first = *fixture.counter.0.lock().expect("no panic");
        fixture.counter.set(other_target_reading(MINUTE * 70, Some(age)));
        let mut runner = fixture.start(None, now);
        assert_eq!(used_minutes(&mut runner), 30 * 60, "an hour by policy, {age:?}");
        drop(runner);
        // Back to the first target, as with one directory for two targets.
        fixture.counter.set(MeterReading { used: MINUTE * 400, age: Some(MINUTE * 5000), ..first });
        let back = ClockReading { uptime: now.uptime + MINUTE * 60, boot: now.boot, ..at(120) };
        let mut runner = fixture.start(None, back);
        assert_eq!(used_minutes(&mut runner), 30 * 120, "two hours by policy, {age:?}");
    }
}

/// A reading above the capacity of the machine is capped and reported as surplus.
#[test]
fn usage_above_machine_capacity_is_capped() {
    let fixture = RunnerFixture::new("unobserved: zero\nreserve_percent: 0\ntrailing_guard: false");
    let mut runner = fixture.start(None, at(0));
    fixture.counter.add_usage(MINUTE * 4000);
    sample_at(&mut runner, at(1));
    assert_eq!(used_minutes(&mut runner), 100);
    assert!(runner.discarded_usage().is_some());
    sample_at(&mut runner, at(2));
    assert!(
        used_minutes(&mut runner) <= 102 && runner.discarded_usage().is_none(),
        "{}",
        used_minutes(&mut runner)
    );
    drop(runner);
    fixture.counter.add_usage(MINUTE * 4000);
    let mut runner = fixture.start(None, at(3));
    assert!(used_minutes(&mut runner) <= 202, "{}", used_minutes(&mut runner));
}

/// Usage that did not fit into one sample counts in the next one.
#[test]
fn late_usage_counts_in_next_sample() {
    let fixture = RunnerFixture::new("unobserved: zero\nreserve_percent: 0\nmax_load_percent: 100");
    let mut runner = fixture.start(None, at(0));
    fixture.counter.add_usage(MINUTE * 4 + Duration::from_secs(2));
    sample_at(&mut runner, at(1));
    assert_eq!(used_minutes(&mut runner), 100);
    assert_eq!(runner.discarded_usage(), None);
    fixture.counter.add_usage(Duration::from_secs(4 * 60 - 2));
    sample_at(&mut runner, at(2));
    assert_eq!(used_minutes(&mut runner), 200);
}

/// The limit of the target excludes the usage of other processes.
#[test]
fn usage_of_others_reduces_limit() {
    let fixture = RunnerFixture::new("unobserved: zero\nreserve_percent: 0");
    let command = FakeMeter::new();
    let mut runner = fixture.start(Some(&command), at(0));
    // Others use a tenth of the machine, the command a fifth.
    fixture.counter.add_usage(MINUTE * 4 * 30 / 100);
    command.add_usage(MINUTE * 4 * 20 / 100);
    let applied = sample_at(&mut runner, at(1));
    assert_eq!(fixture.limit.now(), Some(round_down(applied.minus(Rate::from_units(10)))));
    // Others use the whole machine: the target keeps one percent.
    fixture.counter.add_usage(MINUTE * 4);
    sample_at(&mut runner, at(2));
    assert_eq!(fixture.limit.now(), Some(Rate::from_units(1)));
}

/// A change of the wall clock changes neither usage nor durations.
#[test]
fn wall_clock_change_keeps_trailing_usage() {
    let fixture = RunnerFixture::new("unobserved: zero\nreserve_percent: 0");
    let mut runner = fixture.start(None, at(600));
    for minute in 1..=10u64 {
        fixture.counter.add_usage(MINUTE);
        let wall = at(if minute % 2 == 0 { 600 + minute } else { 540 + minute }).wall;
        sample_at(&mut runner, ClockReading { wall, ..at(600 + minute) });
    }
    assert_eq!(used_minutes(&mut runner), 250);
    let account = runner.governor().account();
    assert_eq!(account.trailing_used().billionth_minutes() / 1_000_000_000, 250);
    let began = account.now().monotonic;
    drop(runner);
    let mut runner = fixture.start(None, at(611));
    assert_eq!(runner.governor().account().now().monotonic - began, 60_000_000_000);
}
