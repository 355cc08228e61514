//! Trees that are stopped for a part of the time.

use std::time::Duration;

use rustix::process::Signal;
use tidegate_core::budget::Rate;
use tidegate_cpu::cgroups::FilesystemRoots;
use tidegate_cpu::enforcer::{EnforceError, Enforcer, SignalEnforcer};
use tidegate_cpu::meter::{Meter, TreeMeter, cores};
use tidegate_cpu::watchdog::{CpuWatchdog, Undo};

use crate::fixture::{Folder, Kernel, Troop, eventually, now, pass, percent, percent_of};

struct Bench {
    _folder: Folder,
    guardian: CpuWatchdog,
    troop: Troop,
    signals: SignalEnforcer,
}

impl Bench {
    fn new(troop: Troop) -> Bench {
        let folder = Folder::new();
        let guardian = CpuWatchdog::journal_only(folder.path()).expect("the directory can be written");
        let signals =
            SignalEnforcer::new(&FilesystemRoots::default(), troop.pid(), &guardian).expect("it is ours");
        Bench { _folder: folder, guardian, troop, signals }
    }

    /// What was used of so many cores in a while, in percent.
    fn used(&self, busy: u32) -> u128 {
        let mut meter = TreeMeter::new(&FilesystemRoots::default(), self.troop.pid()).expect("it is there");
        let (began, first) = (now(), meter.read().expect("it can be read"));
        pass(Duration::from_secs(3));
        let last = meter.read().expect("it can be read");
        percent(last.since(&first).expect("it is the same tree"), began.elapsed(), busy)
    }
}

#[test]
fn all_cores_are_kept_under_the_limit() {
    let busy = cores().min(2);
    let mut bench = Bench::new(Troop::busy(busy));
    bench.signals.apply(percent_of(busy, 30)).expect("it is ours");
    let used = bench.used(busy);
    assert!((1..=35).contains(&used), "{used} % instead of 30 %");
    bench.signals.restore().expect("everybody can go on");
    assert_eq!(bench.troop.stopped(), 0);
    assert_eq!(bench.guardian.pending_undos(), []);
}

#[test]
fn what_counts_is_what_is_used() {
    // One is busy where two could be: it runs for twice as long as two would.
    let mut bench = Bench::new(Troop::busy(1));
    bench.signals.apply(percent_of(2, 30)).expect("it is ours");
    let used = bench.used(1);
    assert!((1..=66).contains(&used), "{used} % instead of 60 %");
}

#[test]
fn children_are_limited_as_they_come() {
    let mut bench =
        Bench::new(Troop::run("while :; do ( i=0; while [ $i -lt 2000 ]; do i=$((i+1)); done ); done"));
    bench.signals.apply(percent_of(1, 20)).expect("it is ours");
    let used = bench.used(1);
    assert!((1..=27).contains(&used), "{used} % instead of 20 %");
    let open = bench.guardian.pending_undos().len();
    assert!(open <= 8, "{open} are noted, and most of them have ended");
    bench.signals.restore().expect("everybody can go on");
    eventually("nobody is stopped", || bench.troop.stopped() == 0);
    assert_eq!(bench.guardian.pending_undos(), []);
}

#[test]
fn nothing_stops_everybody_and_all_stops_nobody() {
    let mut bench = Bench::new(Troop::busy(2));
    bench.signals.apply(Rate::ZERO).expect("it is ours");
    eventually("both are stopped", || bench.troop.stopped() == 2);
    let undo = |process| Undo::Continue { process };
    let mut expected: Vec<Undo> = bench.troop.members().into_iter().map(|stat| undo(stat.process)).collect();
    expected.sort_by_key(|undo| format!("{undo:?}"));
    let mut open = bench.guardian.pending_undos();
    open.sort_by_key(|undo| format!("{undo:?}"));
    assert_eq!(open, expected, "how to undo it is noted");
    // Somebody else continues one of them: it is stopped again.
    bench.troop.signal(Signal::CONT);
    eventually("both are stopped", || bench.troop.stopped() == 2);
    bench.signals.apply(Rate::from_units(100)).expect("it is ours");
    eventually("nobody is stopped", || bench.troop.stopped() == 0);
    bench.signals.apply(Rate::ZERO).expect("it is ours");
    eventually("both are stopped", || bench.troop.stopped() == 2);
    drop(bench.signals);
    assert_eq!(bench.troop.stopped(), 0, "dropping it restores too");
}

#[test]
fn who_was_stopped_by_somebody_else_stays_so() {
    let troop = Troop::run("( exec sleep 1000 ) & while :; do :; done");
    eventually("both are there", || troop.members().len() == 2);
    let sleeper =
        troop.members().into_iter().find(|stat| stat.process.pid != troop.pid()).expect("there are two");
    let raw =
        i32::try_from(sleeper.process.pid).ok().and_then(rustix::process::Pid::from_raw).expect("a number");
    rustix::process::kill_process(raw, Signal::STOP).expect("it is ours");
    eventually("one is stopped", || troop.stopped() == 1);
    let mut bench = Bench::new(troop);
    bench.signals.apply(percent_of(1, 30)).expect("it is ours");
    let undo = |pid: u32| move |undo: &Undo| matches!(undo, Undo::Continue { process } if process.pid == pid);
    eventually("the other one is stopped", || {
        bench.guardian.pending_undos().iter().any(undo(bench.troop.pid()))
    });
    assert!(!bench.guardian.pending_undos().iter().any(undo(sleeper.process.pid)));
    bench.signals.restore().expect("everybody can go on");
    assert_eq!(bench.troop.stopped(), 1);
}

#[test]
fn the_end_of_the_tree_is_told() {
    let mut bench = Bench::new(Troop::run("sleep 1000"));
    bench.signals.apply(Rate::from_units(1)).expect("it is ours");
    bench.troop.signal(Signal::KILL);
    for stat in bench.troop.members() {
        let raw =
            i32::try_from(stat.process.pid).ok().and_then(rustix::process::Pid::from_raw).expect("a number");
        let _killed = rustix::process::kill_process(raw, Signal::KILL);
    }
    let mut end = None;
    eventually("it is told", || {
        end = bench.signals.apply(Rate::from_units(1)).err();
        end.is_some()
    });
    assert!(matches!(end, Some(EnforceError::Gone { .. })), "{end:?}");
    bench.signals.restore().expect("there is nothing to do");
}

#[test]
fn whom_nobody_may_stop_is_not_stopped() {
    let folder = Folder::new();
    let guardian = CpuWatchdog::journal_only(folder.path()).expect("the directory can be written");
    for pid in [1, std::process::id()] {
        let error =
            SignalEnforcer::new(&FilesystemRoots::default(), pid, &guardian).expect_err("it is protected");
        assert!(matches!(error, EnforceError::Protected { .. }), "{error}");
    }
    // Programs are known by their names, and a tree by whoever is in it.
    let sshd = folder.path().join("sshd");
    std::fs::copy("/bin/sleep", &sshd).expect("there is room");
    let lone = Troop::run(&format!("exec {} 1000", sshd.display()));
    let around = Troop::run(&format!("{} 1000 & wait", sshd.display()));
    let is_there = |troop: &Troop| troop.members().iter().any(|stat| stat.name == "sshd");
    for troop in [&lone, &around] {
        eventually("it is there", || is_there(troop));
        let error = SignalEnforcer::new(&FilesystemRoots::default(), troop.pid(), &guardian)
            .expect_err("it is protected");
        assert!(matches!(error, EnforceError::Protected { .. }), "{error}");
        assert!(error.to_string().contains("(sshd)"), "{error}");
    }
    let error = SignalEnforcer::new(&Kernel::bare().roots, 77, &guardian).expect_err("there is none");
    assert!(matches!(error, EnforceError::Gone { pid: 77 }), "{error}");
}
