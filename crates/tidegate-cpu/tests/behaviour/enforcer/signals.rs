//! Duty cycling of process trees with stop signals.

use std::time::Duration;

use rustix::process::Signal;
use tidegate_core::budget::Rate;
use tidegate_cpu::cgroups::FilesystemRoots;
use tidegate_cpu::enforcer::{EnforceError, Enforcer, SignalEnforcer};
use tidegate_cpu::meter::{Meter, TreeMeter, cores};
use tidegate_cpu::watchdog::{CpuWatchdog, Undo};

use crate::fixture::{
    FakeKernel, ProcessGroup, TempFolder, let_time_pass, now, percent_used, rate_of_cores, wait_until,
};

struct SignalFixture {
    _folder: TempFolder,
    watchdog: CpuWatchdog,
    group: ProcessGroup,
    signals: SignalEnforcer,
}

impl SignalFixture {
    fn new(group: ProcessGroup) -> SignalFixture {
        let folder = TempFolder::new();
        let watchdog = CpuWatchdog::journal_only(folder.path()).expect("the directory can be written");
        let signals =
            SignalEnforcer::new(&FilesystemRoots::default(), group.pid(), &watchdog).expect("it is ours");
        SignalFixture { _folder: folder, watchdog, group, signals }
    }

    /// The usage of `busy` cores during three seconds, in percent.
    fn used(&self, busy: u32) -> u128 {
        let mut meter = TreeMeter::new(&FilesystemRoots::default(), self.group.pid()).expect("it is there");
        let (began, first) = (now(), meter.read().expect("it can be read"));
        let_time_pass(Duration::from_secs(3));
        let last = meter.read().expect("it can be read");
        percent_used(last.since(&first).expect("it is the same tree"), began.elapsed(), busy)
    }
}

#[test]
fn busy_tree_stays_under_limit() {
    let busy = cores().min(2);
    let mut fixture = SignalFixture::new(ProcessGroup::spawn_busy(busy));
    fixture.signals.apply(rate_of_cores(busy, 30)).expect("it is ours");
    let used = fixture.used(busy);
    assert!((1..=35).contains(&used), "{used} % instead of 30 %");
    fixture.signals.restore().expect("all processes can continue");
    assert_eq!(fixture.group.stopped_count(), 0);
    assert_eq!(fixture.watchdog.pending_undos(), []);
}

#[test]
fn limit_counts_used_cores_only() {
    // One busy process may run twice as long as two.
    let mut fixture = SignalFixture::new(ProcessGroup::spawn_busy(1));
    fixture.signals.apply(rate_of_cores(2, 30)).expect("it is ours");
    let used = fixture.used(1);
    assert!((1..=66).contains(&used), "{used} % instead of 60 %");
}

#[test]
fn new_children_are_limited() {
    let mut fixture = SignalFixture::new(ProcessGroup::spawn(
        "while :; do ( i=0; while [ $i -lt 2000 ]; do i=$((i+1)); done ); done",
    ));
    fixture.signals.apply(rate_of_cores(1, 20)).expect("it is ours");
    let used = fixture.used(1);
    assert!((1..=27).contains(&used), "{used} % instead of 20 %");
    let open = fixture.watchdog.pending_undos().len();
    assert!(open <= 8, "{open} undos are recorded, and most processes have ended");
    fixture.signals.restore().expect("all processes can continue");
    wait_until("no process is stopped", || fixture.group.stopped_count() == 0);
    assert_eq!(fixture.watchdog.pending_undos(), []);
}

#[test]
fn zero_limit_stops_all_and_full_limit_continues_all() {
    let mut fixture = SignalFixture::new(ProcessGroup::spawn_busy(2));
    fixture.signals.apply(Rate::ZERO).expect("it is ours");
    wait_until("both are stopped", || fixture.group.stopped_count() == 2);
    let undo = |process| Undo::Continue { process };
    let mut expected: Vec<Undo> =
        fixture.group.members().into_iter().map(|stat| undo(stat.process)).collect();
    expected.sort_by_key(|undo| format!("{undo:?}"));
    let mut open = fixture.watchdog.pending_undos();
    open.sort_by_key(|undo| format!("{undo:?}"));
    assert_eq!(open, expected, "the undo is recorded");
    // A process that something else continues is stopped again.
    fixture.group.signal(Signal::CONT);
    wait_until("both are stopped", || fixture.group.stopped_count() == 2);
    fixture.signals.apply(Rate::from_units(100)).expect("it is ours");
    wait_until("no process is stopped", || fixture.group.stopped_count() == 0);
    fixture.signals.apply(Rate::ZERO).expect("it is ours");
    wait_until("both are stopped", || fixture.group.stopped_count() == 2);
    drop(fixture.signals);
    assert_eq!(fixture.group.stopped_count(), 0, "dropping it restores too");
}

#[test]
fn process_stopped_by_others_stays_stopped() {
    let group = ProcessGroup::spawn("( exec sleep 1000 ) & while :; do :; done");
    wait_until("both are there", || group.members().len() == 2);
    let sleeper =
        group.members().into_iter().find(|stat| stat.process.pid != group.pid()).expect("there are two");
    let raw =
        i32::try_from(sleeper.process.pid).ok().and_then(rustix::process::Pid::from_raw).expect("a number");
    rustix::process::kill_process(raw, Signal::STOP).expect("it is ours");
    wait_until("one is stopped", || group.stopped_count() == 1);
    let mut fixture = SignalFixture::new(group);
    fixture.signals.apply(rate_of_cores(1, 30)).expect("it is ours");
    let undo = |pid: u32| move |undo: &Undo| matches!(undo, Undo::Continue { process } if process.pid == pid);
    wait_until("the other one is stopped", || {
        fixture.watchdog.pending_undos().iter().any(undo(fixture.group.pid()))
    });
    assert!(!fixture.watchdog.pending_undos().iter().any(undo(sleeper.process.pid)));
    fixture.signals.restore().expect("all processes can continue");
    assert_eq!(fixture.group.stopped_count(), 1);
}

#[test]
fn apply_after_end_of_tree_returns_gone() {
    let mut fixture = SignalFixture::new(ProcessGroup::spawn("sleep 1000"));
    fixture.signals.apply(Rate::from_units(1)).expect("it is ours");
    fixture.group.signal(Signal::KILL);
    for stat in fixture.group.members() {
        let raw =
            i32::try_from(stat.process.pid).ok().and_then(rustix::process::Pid::from_raw).expect("a number");
        let _killed = rustix::process::kill_process(raw, Signal::KILL);
    }
    let mut end = None;
    wait_until("the end is reported", || {
        end = fixture.signals.apply(Rate::from_units(1)).err();
        end.is_some()
    });
    assert!(matches!(end, Some(EnforceError::Gone { .. })), "{end:?}");
    fixture.signals.restore().expect("there is nothing to do");
}

#[test]
fn protected_processes_are_rejected() {
    let folder = TempFolder::new();
    let watchdog = CpuWatchdog::journal_only(folder.path()).expect("the directory can be written");
    for pid in [1, std::process::id()] {
        let error =
            SignalEnforcer::new(&FilesystemRoots::default(), pid, &watchdog).expect_err("it is protected");
        assert!(matches!(error, EnforceError::Protected { .. }), "{error}");
    }
    // Programs are protected by name, and so are trees that contain them.
    let sshd = folder.path().join("sshd");
    std::fs::copy("/bin/sleep", &sshd).expect("there is room");
    let lone = ProcessGroup::spawn(&format!("exec {} 1000", sshd.display()));
    let around = ProcessGroup::spawn(&format!("{} 1000 & wait", sshd.display()));
    let is_there = |group: &ProcessGroup| group.members().iter().any(|stat| stat.name == "sshd");
    for group in [&lone, &around] {
        wait_until("it is there", || is_there(group));
        let error = SignalEnforcer::new(&FilesystemRoots::default(), group.pid(), &watchdog)
            .expect_err("it is protected");
        assert!(matches!(error, EnforceError::Protected { .. }), "{error}");
        assert!(error.to_string().contains("(sshd)"), "{error}");
    }
    let error =
        SignalEnforcer::new(&FakeKernel::without_cgroups().roots, 77, &watchdog).expect_err("there is none");
    assert!(matches!(error, EnforceError::Gone { pid: 77 }), "{error}");
}
