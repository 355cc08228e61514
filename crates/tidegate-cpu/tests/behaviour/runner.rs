//! One look after another, over restarts, with counters that are ours.

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

/// A counter that says what it is told to.
#[derive(Clone)]
struct KernelFile(Arc<Mutex<MeterReading>>);

impl KernelFile {
    fn new() -> KernelFile {
        KernelFile(Arc::new(Mutex::new(MeterReading {
            used: Duration::ZERO,
            counter_id: CounterId::of(&[b"first"]),
            target: TargetId::of(&[b"host"]),
            age: None,
        })))
    }

    /// All cores together use this much more.
    fn use_up(&self, time: Duration) {
        self.0.lock().expect("no panic").used += time;
    }

    fn set(&self, reading: MeterReading) {
        *self.0.lock().expect("no panic") = reading;
    }
}

impl Meter for KernelFile {
    fn read(&mut self) -> Result<MeterReading, MeterError> {
        Ok(*self.0.lock().expect("no panic"))
    }
}

/// Remembers the last limit.
#[derive(Clone, Default)]
struct Limit(Arc<Mutex<Option<Rate>>>);

impl Limit {
    fn now(&self) -> Option<Rate> {
        *self.0.lock().expect("no panic")
    }
}

impl Enforcer for Limit {
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

struct WatchdogState {
    folder: tempfile::TempDir,
    counter: KernelFile,
    limit: Limit,
    settings: GovernorSettings,
}

impl WatchdogState {
    fn new(text: &str) -> WatchdogState {
        WatchdogState {
            folder: tempfile::tempdir().expect("a folder"),
            counter: KernelFile::new(),
            limit: Limit::default(),
            settings: settings(text),
        }
    }

    fn start(&self, part: Option<&KernelFile>, now: ClockReading) -> Runner {
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

/// In twentieths of a point, rounded down.
fn stepped(rate: Rate) -> Rate {
    Rate::from_billionths(rate.billionths() / 50_000_000 * 50_000_000)
}

/// What another counter says.
fn another(used: Duration, age: Option<Duration>) -> MeterReading {
    MeterReading { used, counter_id: CounterId::of(&[b"second"]), target: TargetId::of(&[b"another"]), age }
}

fn used(runner: &mut Runner) -> i128 {
    runner.governor().account().used().billionth_minutes() / 1_000_000_000
}

fn look(runner: &mut Runner, now: ClockReading) -> Rate {
    runner.sample(now).unwrap_or_else(|error| panic!("{error}")).applied
}

#[test]
fn time_of_all_cores_is_percents_of_the_machine() {
    let desk = WatchdogState::new("unobserved: zero");
    let mut runner = desk.start(None, at(0));
    // Two of four cores for a minute.
    desk.counter.use_up(MINUTE * 2);
    let applied = look(&mut runner, at(1));
    assert_eq!(used(&mut runner), 50);
    assert_eq!(desk.limit.now(), Some(stepped(applied)));
    let (_, kept) = runner.finish().unwrap_or_else(|error| panic!("{error}"));
    kept.expect("room on the disk");
    assert_eq!(desk.limit.now(), None, "the limit is lifted");
}

#[test]
fn what_is_in_force_is_less_than_a_tenth_of_a_point_below_the_limit() {
    for limit in (1..100_000_000_000).step_by(7_654_321).map(Rate::from_billionths) {
        let below = limit.billionths() - round_to_step(limit).billionths();
        assert!(below < 100_000_000, "{limit:?}");
    }
    assert_eq!(round_to_step(Rate::from_billionths(27_731_546_964)), Rate::from_billionths(27_700_000_000));
    assert_eq!(round_to_step(Rate::from_billionths(49_999_999)), Rate::from_billionths(49_999_999));
}

/// The counter has it all, however long nobody looked.
#[test]
fn a_restart_loses_nothing_that_was_counted() {
    let desk = WatchdogState::new("unobserved: limit\nreserve_percent: 0");
    let mut runner = desk.start(None, at(0));
    desk.counter.use_up(MINUTE * 40);
    look(&mut runner, at(10));
    let applied = desk.limit.now();
    drop(runner);
    // An hour without a governor, one core busy.
    desk.counter.use_up(MINUTE * 60);
    let mut runner = desk.start(None, at(70));
    assert_eq!(used(&mut runner), 1000 + 1500);
    assert!(desk.limit.now().is_some() && desk.limit.now() <= applied);
    let unseen = runner.governor().account().unobserved_for();
    assert_eq!(unseen, Duration::ZERO);
}

/// Another counter does not know what the first would have said.
#[test]
fn what_no_counter_knows_counts_by_policy() {
    for (policy, expected) in [("limit", 1800), ("zero", 0)] {
        let desk = WatchdogState::new(&format!("unobserved: {policy}\nreserve_percent: 0"));
        drop(desk.start(None, at(0)));
        desk.counter.set(another(MINUTE * 999, None));
        let mut runner = desk.start(None, at(60));
        assert_eq!(used(&mut runner), expected, "{policy}");
        // From here on it is known.
        desk.counter.use_up(MINUTE * 4);
        look(&mut runner, at(61));
        assert_eq!(used(&mut runner), expected + 100);
    }
}

/// A machine that was started again counts from its start, and only the time before that is unknown.
#[test]
fn a_counter_that_began_meanwhile_is_believed_from_there_on() {
    let desk = WatchdogState::new("unobserved: limit\nreserve_percent: 0");
    drop(desk.start(None, at(0)));
    let target = TargetId::of(&[b"host"]);
    desk.counter.set(MeterReading { target, ..another(MINUTE * 20, Some(MINUTE * 20)) });
    let now = ClockReading { uptime: MINUTE * 20, boot: 2, ..at(60) };
    let mut runner = desk.start(None, now);
    assert_eq!(used(&mut runner), 30 * 40 + 500, "forty minutes by policy, then one core of four");
    drop(runner);
    desk.counter.use_up(MINUTE * 4);
    let mut runner = desk.start(None, ClockReading { uptime: MINUTE * 21, boot: 2, ..at(61) });
    assert_eq!(used(&mut runner), 30 * 40 + 600);
}

/// A counter of something else has counted since long before, or for something else: it says nothing of the time without a governor.
#[test]
fn the_counter_of_another_target_is_not_charged_for_the_past() {
    for (age, now) in [
        (MINUTE * 5000, at(60)),
        (MINUTE * 20, at(60)),
        (MINUTE * 20, ClockReading { uptime: MINUTE * 20, boot: 2, ..at(60) }),
    ] {
        let desk = WatchdogState::new("unobserved: limit\nreserve_percent: 0");
        drop(desk.start(None, at(0)));
        let first = *desk.counter.0.lock().expect("no panic");
        desk.counter.set(another(MINUTE * 70, Some(age)));
        let mut runner = desk.start(None, now);
        assert_eq!(used(&mut runner), 30 * 60, "an hour by policy, {age:?}");
        drop(runner);
        // And back again, as who governs two with one directory does.
        desk.counter.set(MeterReading { used: MINUTE * 400, age: Some(MINUTE * 5000), ..first });
        let back = ClockReading { uptime: now.uptime + MINUTE * 60, boot: now.boot, ..at(120) };
        let mut runner = desk.start(None, back);
        assert_eq!(used(&mut runner), 30 * 120, "two hours by policy, {age:?}");
    }
}

/// Whatever a counter says: a machine does no more than all it can, and somebody is told.
#[test]
fn no_time_counts_as_more_than_all_of_the_machine() {
    let desk = WatchdogState::new("unobserved: zero\nreserve_percent: 0\ntrailing_guard: false");
    let mut runner = desk.start(None, at(0));
    desk.counter.use_up(MINUTE * 4000);
    look(&mut runner, at(1));
    assert_eq!(used(&mut runner), 100);
    assert!(runner.discarded_usage().is_some());
    look(&mut runner, at(2));
    assert!(used(&mut runner) <= 102 && runner.discarded_usage().is_none(), "{}", used(&mut runner));
    drop(runner);
    desk.counter.use_up(MINUTE * 4000);
    let mut runner = desk.start(None, at(3));
    assert!(used(&mut runner) <= 202, "{}", used(&mut runner));
}

/// A counter that ticks late loses nothing: what did not fit into a look is in the next one.
#[test]
fn what_is_counted_late_counts_in_the_next_look() {
    let desk = WatchdogState::new("unobserved: zero\nreserve_percent: 0\nmax_load_percent: 100");
    let mut runner = desk.start(None, at(0));
    desk.counter.use_up(MINUTE * 4 + Duration::from_secs(2));
    look(&mut runner, at(1));
    assert_eq!(used(&mut runner), 100);
    assert_eq!(runner.discarded_usage(), None);
    desk.counter.use_up(Duration::from_secs(4 * 60 - 2));
    look(&mut runner, at(2));
    assert_eq!(used(&mut runner), 200);
}

/// What is limited gets what the others leave.
#[test]
fn others_are_taken_off() {
    let desk = WatchdogState::new("unobserved: zero\nreserve_percent: 0");
    let command = KernelFile::new();
    let mut runner = desk.start(Some(&command), at(0));
    // Others use a tenth of the machine, the command a fifth.
    desk.counter.use_up(MINUTE * 4 * 30 / 100);
    command.use_up(MINUTE * 4 * 20 / 100);
    let applied = look(&mut runner, at(1));
    assert_eq!(desk.limit.now(), Some(stepped(applied.minus(Rate::from_units(10)))));
    // Others use everything: something is left all the same.
    desk.counter.use_up(MINUTE * 4);
    look(&mut runner, at(2));
    assert_eq!(desk.limit.now(), Some(Rate::from_units(1)));
}

/// A clock that is put back or forward changes neither what was used nor for how long.
#[test]
fn clocks_that_are_set_change_nothing_on_the_trail() {
    let desk = WatchdogState::new("unobserved: zero\nreserve_percent: 0");
    let mut runner = desk.start(None, at(600));
    for minute in 1..=10u64 {
        desk.counter.use_up(MINUTE);
        let wall = at(if minute % 2 == 0 { 600 + minute } else { 540 + minute }).wall;
        look(&mut runner, ClockReading { wall, ..at(600 + minute) });
    }
    assert_eq!(used(&mut runner), 250);
    let account = runner.governor().account();
    assert_eq!(account.trailing_used().billionth_minutes() / 1_000_000_000, 250);
    let began = account.now().monotonic;
    drop(runner);
    let mut runner = desk.start(None, at(611));
    assert_eq!(runner.governor().account().now().monotonic - began, 60_000_000_000);
}
