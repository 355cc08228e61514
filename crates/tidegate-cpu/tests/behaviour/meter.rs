//! Counters that only rise.

use std::fs;
use std::time::Duration;

use rustix::process::getpid;
use tidegate_cpu::cgroups::{CgroupError, FilesystemRoots};
use tidegate_cpu::meter::{CgroupMeter, HostMeter, Meter, MeterError, TreeMeter};
use tidegate_cpu::processes::{ProcessState, ticks};

use crate::fixture::{CounterId, Kernel, RealCgroup, Troop, eventually, real_cgroups, real_proc};

#[test]
fn the_machine_counts_work_and_nothing_else() {
    let kernel = Kernel::bare();
    let mut meter = HostMeter::new(&kernel.roots).expect("it can be read");
    let first = meter.read().expect("it can be read");
    // Neither idle nor waiting nor stolen, and guests once.
    assert_eq!(first.used, ticks(100 + 20 + 30 + 4 + 6));
    assert_eq!(first.age, Some(Duration::from_millis(5_000_250)));
    // However late the next one comes, nothing is lost.
    kernel.put("proc/stat", "cpu  1000100 20 30 9999 9999 4 6 9999 11 1\ncpu0 1\ncpu1 1\n");
    let second = meter.read().expect("it can be read");
    assert_eq!(second.since(&first), Some(ticks(1_000_000)));
    // It never says less.
    kernel.put("proc/stat", "cpu  1 20 30 9999 9999 4 6 9999 11 1\ncpu0 1\ncpu1 1\n");
    assert_eq!(meter.read().expect("it can be read").used, second.used);
}

#[test]
fn another_boot_is_another_life() {
    let kernel = Kernel::bare();
    let read = || HostMeter::new(&kernel.roots).and_then(|mut meter| meter.read()).expect("it can be read");
    let before = read();
    assert_eq!(read().counter_id, before.counter_id, "a governor that starts anew goes on");
    kernel.put("proc/sys/kernel/random/boot_id", "99999999-2222-3333-4444-555555555555\n");
    assert_eq!(read().since(&before), None);
}

#[test]
fn this_machine_can_be_read() {
    let mut meter = HostMeter::new(&FilesystemRoots::default()).expect("this is Linux");
    let first = meter.read().expect("it can be read");
    let troop = Troop::busy(1);
    eventually("the machine is busy", || meter.read().expect("it can be read").used > first.used);
    drop(troop);
    let last = meter.read().expect("it can be read");
    assert_eq!(last.counter_id, first.counter_id);
    assert!(last.age >= first.age);
}

#[test]
fn a_file_that_makes_no_sense_is_an_error() {
    let kernel = Kernel::bare();
    kernel.put("proc/stat", "intr 1 2 3\n");
    let mut meter = HostMeter::new(&kernel.roots).expect("it can be opened");
    let error = meter.read().expect_err("that is not a counter");
    assert!(matches!(&error, MeterError::Unreadable { path } if path.ends_with("proc/stat")), "{error}");
}

#[track_caller]
fn says(kernel: &Kernel, path: &str, nanos: u64) {
    let mut meter = CgroupMeter::new(&kernel.roots, path.as_ref()).expect("it is there");
    let first = meter.read().expect("it can be read");
    assert_eq!(first.used, Duration::from_nanos(nanos), "{path}");
    assert_eq!(meter.read().expect("it can be read").since(&first), Some(Duration::ZERO));
}

#[test]
fn cgroups_of_both_versions_are_read() {
    let two = Kernel::two();
    two.cgroup_two("a.slice");
    two.put("cgroup/a.slice/cpu.stat", "usage_usec 1500\nuser_usec 1000\nsystem_usec 500\nnr_periods 0\n");
    says(&two, "a.slice", 1_500_000);
    says(&two, "/a.slice", 1_500_000);
    for (limits, counts) in [("cpu", "cpuacct"), ("cpu,cpuacct", "cpu,cpuacct")] {
        let one = Kernel::one(limits, counts);
        one.put(&format!("cgroup/{limits}/a/cgroup.procs"), "");
        one.put(&format!("cgroup/{counts}/a/cgroup.procs"), "");
        one.put(&format!("cgroup/{counts}/a/cpuacct.usage"), "987654321\n");
        says(&one, "a", 987_654_321);
        for tree in [limits, counts] {
            let whole = one.path(&format!("cgroup/{tree}/a"));
            says(&one, whole.to_str().expect("it is text"), 987_654_321);
        }
    }
}

#[test]
fn on_machines_with_both_versions_the_one_that_limits_is_used() {
    let kernel = Kernel::one("cpu", "cpuacct");
    for tree in ["cpu", "cpuacct"] {
        kernel.put(&format!("cgroup/{tree}/a/cgroup.procs"), "");
    }
    kernel.put("cgroup/cpuacct/a/cpuacct.usage", "5\n");
    kernel.put("cgroup/unified/cgroup.controllers", "hugetlb\n");
    kernel.put("cgroup/unified/a/cgroup.procs", "");
    kernel.put("cgroup/unified/a/cpu.stat", "usage_usec 7\n");
    let used = || {
        CgroupMeter::new(&kernel.roots, "a".as_ref())
            .and_then(|mut meter| meter.read())
            .expect("it is there")
            .used
    };
    assert_eq!(used(), Duration::from_nanos(5));
    kernel.put("cgroup/unified/cgroup.controllers", "cpu hugetlb\n");
    assert_eq!(used(), Duration::from_micros(7));
}

#[test]
fn what_is_not_a_cgroup_is_told() {
    let kernel = Kernel::two();
    kernel.put("cgroup/plain/file", "");
    let error = |path: &str| match CgroupMeter::new(&kernel.roots, path.as_ref()) {
        Err(MeterError::Cgroup(error)) => error,
        other => panic!("{path}: {other:?}"),
    };
    assert!(matches!(error("missing"), CgroupError::Missing { path } if path.ends_with("cgroup/missing")));
    assert!(matches!(error("plain"), CgroupError::NotACgroup { .. }));
    assert!(matches!(error("plain/file"), CgroupError::NotACgroup { .. }));
    assert!(matches!(error("a/../../proc"), CgroupError::Outside { .. }));
    let one = Kernel::one("cpu", "cpuacct");
    one.put("cgroup/memory/a/cgroup.procs", "");
    let other_tree = CgroupMeter::new(&one.roots, &one.path("cgroup/memory/a"));
    assert!(matches!(other_tree, Err(MeterError::Cgroup(CgroupError::Outside { .. }))), "{other_tree:?}");
    let none = Kernel::bare();
    none.put("cgroup/memory/cgroup.procs", "");
    let without = CgroupMeter::new(&none.roots, "a".as_ref());
    assert!(matches!(without, Err(MeterError::Cgroup(CgroupError::NoController { .. }))), "{without:?}");
}

#[test]
fn a_cgroup_that_is_made_anew_has_another_life() {
    let Some((roots, hierarchy)) = real_cgroups() else { return };
    let cgroup = RealCgroup::new(&hierarchy, "anew");
    let mut meter = CgroupMeter::new(&roots, cgroup.name.as_ref()).expect("it is there");
    let troop = Troop::busy(1);
    cgroup.take(&troop);
    let first = meter.read().expect("it can be read");
    eventually("it is used", || {
        meter.read().expect("it can be read").since(&first) > Some(Duration::from_millis(20))
    });
    drop(troop);
    let before = meter.read().expect("it can be read");
    for folder in cgroup.folders() {
        eventually("it is empty", || fs::remove_dir(&folder).is_ok());
    }
    let gone = meter.read().expect_err("it is gone");
    assert!(matches!(gone, MeterError::Cgroup(CgroupError::Missing { .. })), "{gone}");
    for folder in cgroup.folders() {
        fs::create_dir(folder).expect("it can be made");
    }
    let after = meter.read().expect("it is there again");
    assert_eq!(after.since(&before), None);
    assert!(after.used < before.used);
}

/// A tree below process 100 in a directory, and what its meter says, in ticks.
struct Grove {
    kernel: Kernel,
    meter: TreeMeter,
}

impl Grove {
    fn new(root: &CounterId<'_>) -> Grove {
        let kernel = Kernel::bare();
        kernel.stat(100, root);
        let meter = TreeMeter::new(&kernel.roots, 100).expect("it is there");
        Grove { kernel, meter }
    }

    /// The same with a keeper, process 99.
    fn kept(root: &CounterId<'_>) -> Grove {
        let kernel = Kernel::bare();
        kernel.stat(99, &CounterId { own: 7, started: 40, ..CounterId::default() });
        kernel.stat(100, &CounterId { parent: 99, ..*root });
        let meter = TreeMeter::with_subreaper(&kernel.roots, 100, Some(99)).expect("it is there");
        Grove { kernel, meter }
    }

    #[track_caller]
    fn says(&mut self, expected: u64) {
        assert_eq!(self.meter.read().expect("it is there").used, ticks(expected));
    }
}

#[test]
fn a_tree_is_everybody_in_it() {
    let mut grove = Grove::new(&CounterId { own: 10, reaped: 7, started: 50, ..CounterId::default() });
    grove.says(17);
    grove.kernel.stat(101, &CounterId { parent: 100, own: 5, started: 60, ..CounterId::default() });
    grove.kernel.stat(102, &CounterId { parent: 101, own: 3, started: 70, ..CounterId::default() });
    grove.kernel.stat(200, &CounterId { parent: 1, own: 1000, started: 60, ..CounterId::default() });
    grove.says(25);
}

#[test]
fn who_was_asked_for_by_its_parent_is_counted_once() {
    let mut grove = Grove::new(&CounterId { own: 10, started: 50, ..CounterId::default() });
    grove.kernel.stat(101, &CounterId { parent: 100, own: 5, started: 60, ..CounterId::default() });
    grove.kernel.stat(102, &CounterId { parent: 101, own: 3, started: 70, ..CounterId::default() });
    grove.says(18);
    // 102 used 4 in the end, 101 asked for it and used 9 itself, and 100 asked for that one.
    grove.kernel.ended(102);
    grove.kernel.ended(101);
    grove.kernel.stat(100, &CounterId { own: 10, reaped: 13, started: 50, ..CounterId::default() });
    grove.says(23);
}

#[test]
fn who_ended_in_the_middle_of_a_look_is_counted_once() {
    let mut grove = Grove::new(&CounterId { own: 10, started: 50, ..CounterId::default() });
    grove.kernel.stat(101, &CounterId { parent: 100, own: 5, started: 60, ..CounterId::default() });
    grove.says(15);
    // The parent was read before, the child after its end.
    grove.kernel.ended(101);
    grove.says(15);
    grove.kernel.stat(100, &CounterId { own: 10, reaped: 6, started: 50, ..CounterId::default() });
    grove.says(16);
}

#[test]
fn who_nobody_asked_for_is_not_forgotten() {
    let mut grove = Grove::new(&CounterId { own: 10, started: 50, ..CounterId::default() });
    grove.kernel.stat(101, &CounterId { parent: 100, own: 500, started: 60, ..CounterId::default() });
    grove.says(510);
    grove.kernel.ended(101);
    grove.says(510);
    grove.says(510);
    grove.kernel.stat(100, &CounterId { own: 12, reaped: 3, started: 50, ..CounterId::default() });
    grove.says(515);
}

#[test]
fn orphans_stay_in_the_tree() {
    let mut grove = Grove::new(&CounterId { own: 10, started: 50, ..CounterId::default() });
    grove.kernel.stat(101, &CounterId { parent: 100, started: 60, ..CounterId::default() });
    grove.kernel.stat(102, &CounterId { parent: 101, own: 3, started: 70, ..CounterId::default() });
    grove.says(13);
    grove.kernel.ended(101);
    grove.kernel.ended(100);
    grove.kernel.stat(102, &CounterId { parent: 1, own: 30, started: 70, ..CounterId::default() });
    grove.says(40);
    grove.kernel.ended(102);
    let gone = grove.meter.read().expect_err("nobody is left");
    assert!(matches!(gone, MeterError::Gone { pid: 100 }), "{gone}");
}

#[test]
fn who_was_born_and_orphaned_unseen_is_found_by_its_session() {
    let mut grove = Grove::new(&CounterId { own: 10, session: 100, started: 50, ..CounterId::default() });
    grove
        .kernel
        .stat(102, &CounterId { parent: 1, session: 100, own: 3, started: 70, ..CounterId::default() });
    grove.says(13);
    // Also when the leader ends, as long as there is anybody.
    grove.kernel.ended(100);
    grove
        .kernel
        .stat(103, &CounterId { parent: 1, session: 100, own: 4, started: 80, ..CounterId::default() });
    grove.says(17);
}

#[test]
fn who_comes_to_the_keeper_is_in_the_tree() {
    let mut grove = Grove::kept(&CounterId { own: 10, started: 50, ..CounterId::default() });
    grove.says(10);
    // Born, orphaned and in a session of its own before anybody looked.
    grove
        .kernel
        .stat(150, &CounterId { parent: 99, session: 149, own: 4, started: 60, ..CounterId::default() });
    grove.says(14);
    // It ended; so did somebody whom nobody has ever seen.
    grove.kernel.ended(150);
    grove.kernel.stat(99, &CounterId { own: 8, reaped: 6 + 20, started: 40, ..CounterId::default() });
    grove.says(36);
    // In the end there is nobody, and everything is known. What the keeper does itself is not counted.
    grove.kernel.ended(100);
    grove.kernel.stat(99, &CounterId { own: 30, reaped: 26 + 12, started: 40, ..CounterId::default() });
    grove.says(38);
    grove.kernel.ended(99);
    let gone = grove.meter.read().expect_err("nobody is left");
    assert!(matches!(gone, MeterError::Gone { pid: 100 }), "{gone}");
}

#[test]
fn who_came_to_the_keeper_in_the_end_is_counted_once() {
    let family = || {
        let mut grove = Grove::kept(&CounterId { own: 10, started: 50, ..CounterId::default() });
        grove.kernel.stat(101, &CounterId { parent: 100, own: 5, started: 60, ..CounterId::default() });
        grove.kernel.stat(102, &CounterId { parent: 101, own: 500, started: 70, ..CounterId::default() });
        grove.says(515);
        grove.kernel.ended(101);
        grove.kernel.ended(102);
        grove
    };
    // 100 asked for 101, which had not asked for 102: that was the keeper, later.
    let mut grove = family();
    grove
        .kernel
        .stat(100, &CounterId { parent: 99, own: 10, reaped: 6, started: 50, ..CounterId::default() });
    grove.kernel.stat(99, &CounterId { own: 7, reaped: 501, started: 40, ..CounterId::default() });
    grove.says(517);
    // The keeper was looked at before it had asked.
    let mut grove = family();
    grove
        .kernel
        .stat(100, &CounterId { parent: 99, own: 10, reaped: 6, started: 50, ..CounterId::default() });
    grove.says(515);
    grove.kernel.stat(99, &CounterId { own: 7, reaped: 501, started: 40, ..CounterId::default() });
    grove.says(517);
    // Everybody was asked for by its parent.
    let mut grove = family();
    grove
        .kernel
        .stat(100, &CounterId { parent: 99, own: 10, reaped: 507, started: 50, ..CounterId::default() });
    grove.says(517);
}

/// A look costs little when nothing was started on the machine.
#[test]
fn new_ones_are_looked_for_when_somebody_was_started() {
    let kernel = Kernel::bare();
    kernel.put("proc/loadavg", "0.10 0.20 0.30 1/99 100\n");
    kernel.stat(100, &CounterId { own: 10, started: 50, ..CounterId::default() });
    let meter = TreeMeter::new(&kernel.roots, 100).expect("it is there");
    let mut grove = Grove { kernel, meter };
    // Twice more after the last number was given: who has it may not be there yet.
    grove.says(10);
    grove.kernel.stat(101, &CounterId { parent: 100, own: 5, started: 60, ..CounterId::default() });
    grove.says(15);
    grove.kernel.stat(102, &CounterId { parent: 100, own: 3, started: 70, ..CounterId::default() });
    grove.says(15);
    grove.kernel.put("proc/loadavg", "0.10 0.20 0.30 1/99 102\n");
    grove.says(18);
    // Whatever the numbers say, in the end everybody is found.
    grove.says(18);
    grove.kernel.stat(103, &CounterId { parent: 100, own: 2, started: 80, ..CounterId::default() });
    grove.says(18);
    let found = (0..20).any(|_| grove.meter.read().expect("it is there").used == ticks(20));
    assert!(found);
}

#[test]
fn a_number_that_was_given_again_is_not_the_same_process() {
    let mut grove = Grove::new(&CounterId { own: 10, started: 50, ..CounterId::default() });
    grove.kernel.stat(101, &CounterId { parent: 100, own: 5, started: 60, ..CounterId::default() });
    grove.says(15);
    grove.kernel.stat(101, &CounterId { parent: 1, own: 1000, started: 99, ..CounterId::default() });
    grove.says(15);
    grove.kernel.stat(100, &CounterId { own: 1000, started: 99, ..CounterId::default() });
    let gone = grove.meter.read().expect_err("it is another one");
    assert!(matches!(gone, MeterError::Gone { pid: 100 }), "{gone}");
    let read = TreeMeter::new(&grove.kernel.roots, 100).and_then(|mut meter| meter.read());
    let other = Grove::new(&CounterId { own: 10, started: 50, ..CounterId::default() })
        .meter
        .read()
        .expect("it is there");
    assert_eq!(read.expect("it is there").since(&other), None);
}

#[test]
fn nobody_is_an_error() {
    let error = TreeMeter::new(&Kernel::bare().roots, 77).expect_err("there is none");
    assert_eq!(error.to_string(), "there is no process 77; it has ended, or the number is wrong");
}

/// Hundreds of children that live for a moment: the counter never goes back, and in the end it says what the kernel says.
#[test]
fn a_storm_of_short_lives_is_counted_exactly() {
    let burn = "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done";
    let troop = Troop::run(&format!(
        "n=0; while [ $n -lt 150 ]; do ( {burn} ); ( {burn} ) & n=$((n+1)); [ $((n % 8)) -eq 0 ] && wait; done; wait"
    ));
    let mut meter = TreeMeter::new(&FilesystemRoots::default(), troop.pid()).expect("it is there");
    let mut last = Duration::ZERO;
    let proc = real_proc();
    let mut whole = None;
    eventually("it ends", || {
        let used = meter.read().expect("its end is not asked for").used;
        assert!(used >= last, "{used:?} after {last:?}");
        last = used;
        let stat = proc.stat(troop.pid()).expect("it can be read").expect("its end is not asked for");
        whole = (stat.state == ProcessState::Ended).then(|| ticks(stat.own + stat.reaped));
        whole.is_some()
    });
    let whole = whole.expect("it ended");
    let said = meter.read().expect("its end is not asked for").used;
    assert!(whole > Duration::from_millis(200), "{whole:?} is too little to prove anything");
    assert!(said <= whole + whole / 20 && said + whole / 20 >= whole, "{said:?} instead of {whole:?}");
}

#[test]
fn this_process_has_an_age() {
    let pid = u32::try_from(getpid().as_raw_nonzero().get()).expect("it is a number");
    let reading = TreeMeter::new(&FilesystemRoots::default(), pid)
        .and_then(|mut meter| meter.read())
        .expect("it is there");
    assert!(reading.age.expect("it is known") < Duration::from_secs(24 * 3600));
}
