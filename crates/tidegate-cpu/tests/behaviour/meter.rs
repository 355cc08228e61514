//! Meters of CPU time: the machine, cgroups and process trees.

use std::fs;
use std::time::Duration;

use rustix::process::getpid;
use tidegate_cpu::cgroups::{CgroupError, FilesystemRoots};
use tidegate_cpu::meter::{CgroupMeter, HostMeter, Meter, MeterError, TreeMeter};
use tidegate_cpu::processes::{ProcessState, ticks};

use crate::fixture::{FakeKernel, FakeStat, ProcessGroup, RealCgroup, real_cgroups, real_proc, wait_until};

#[test]
fn host_meter_counts_busy_time_only() {
    let kernel = FakeKernel::without_cgroups();
    let mut meter = HostMeter::new(&kernel.roots).expect("it can be read");
    let first = meter.read().expect("it can be read");
    // Idle, waiting and stolen time do not count. Guest time counts once.
    assert_eq!(first.used, ticks(100 + 20 + 30 + 4 + 6));
    assert_eq!(first.age, Some(Duration::from_millis(5_000_250)));
    // A late reading loses nothing.
    kernel.write_file("proc/stat", "cpu  1000100 20 30 9999 9999 4 6 9999 11 1\ncpu0 1\ncpu1 1\n");
    let second = meter.read().expect("it can be read");
    assert_eq!(second.since(&first), Some(ticks(1_000_000)));
    // A reading never decreases.
    kernel.write_file("proc/stat", "cpu  1 20 30 9999 9999 4 6 9999 11 1\ncpu0 1\ncpu1 1\n");
    assert_eq!(meter.read().expect("it can be read").used, second.used);
}

#[test]
fn reboot_starts_new_counter() {
    let kernel = FakeKernel::without_cgroups();
    let read = || HostMeter::new(&kernel.roots).and_then(|mut meter| meter.read()).expect("it can be read");
    let before = read();
    assert_eq!(read().counter_id, before.counter_id, "a new governor continues the counter");
    kernel.write_file("proc/sys/kernel/random/boot_id", "99999999-2222-3333-4444-555555555555\n");
    assert_eq!(read().since(&before), None);
}

#[test]
fn host_meter_reads_this_machine() {
    let mut meter = HostMeter::new(&FilesystemRoots::default()).expect("this is Linux");
    let first = meter.read().expect("it can be read");
    let group = ProcessGroup::spawn_busy(1);
    wait_until("the machine is busy", || meter.read().expect("it can be read").used > first.used);
    drop(group);
    let last = meter.read().expect("it can be read");
    assert_eq!(last.counter_id, first.counter_id);
    assert!(last.age >= first.age);
}

#[test]
fn malformed_stat_returns_unreadable() {
    let kernel = FakeKernel::without_cgroups();
    kernel.write_file("proc/stat", "intr 1 2 3\n");
    let mut meter = HostMeter::new(&kernel.roots).expect("it can be opened");
    let error = meter.read().expect_err("that is not a counter");
    assert!(matches!(&error, MeterError::Unreadable { path } if path.ends_with("proc/stat")), "{error}");
}

#[track_caller]
fn assert_cgroup_used(kernel: &FakeKernel, path: &str, nanos: u64) {
    let mut meter = CgroupMeter::new(&kernel.roots, path.as_ref()).expect("it is there");
    let first = meter.read().expect("it can be read");
    assert_eq!(first.used, Duration::from_nanos(nanos), "{path}");
    assert_eq!(meter.read().expect("it can be read").since(&first), Some(Duration::ZERO));
}

#[test]
fn cgroup_meter_reads_both_versions() {
    let two = FakeKernel::with_cgroup_v2();
    two.add_cgroup("a.slice");
    two.write_file(
        "cgroup/a.slice/cpu.stat",
        "usage_usec 1500\nuser_usec 1000\nsystem_usec 500\nnr_periods 0\n",
    );
    assert_cgroup_used(&two, "a.slice", 1_500_000);
    assert_cgroup_used(&two, "/a.slice", 1_500_000);
    for (limits, counts) in [("cpu", "cpuacct"), ("cpu,cpuacct", "cpu,cpuacct")] {
        let one = FakeKernel::with_cgroup_v1(limits, counts);
        one.write_file(&format!("cgroup/{limits}/a/cgroup.procs"), "");
        one.write_file(&format!("cgroup/{counts}/a/cgroup.procs"), "");
        one.write_file(&format!("cgroup/{counts}/a/cpuacct.usage"), "987654321\n");
        assert_cgroup_used(&one, "a", 987_654_321);
        for tree in [limits, counts] {
            let whole = one.path(&format!("cgroup/{tree}/a"));
            assert_cgroup_used(&one, whole.to_str().expect("it is text"), 987_654_321);
        }
    }
}

#[test]
fn hybrid_hierarchy_uses_version_with_cpu_controller() {
    let kernel = FakeKernel::with_cgroup_v1("cpu", "cpuacct");
    for tree in ["cpu", "cpuacct"] {
        kernel.write_file(&format!("cgroup/{tree}/a/cgroup.procs"), "");
    }
    kernel.write_file("cgroup/cpuacct/a/cpuacct.usage", "5\n");
    kernel.write_file("cgroup/unified/cgroup.controllers", "hugetlb\n");
    kernel.write_file("cgroup/unified/a/cgroup.procs", "");
    kernel.write_file("cgroup/unified/a/cpu.stat", "usage_usec 7\n");
    let used = || {
        CgroupMeter::new(&kernel.roots, "a".as_ref())
            .and_then(|mut meter| meter.read())
            .expect("it is there")
            .used
    };
    assert_eq!(used(), Duration::from_nanos(5));
    kernel.write_file("cgroup/unified/cgroup.controllers", "cpu hugetlb\n");
    assert_eq!(used(), Duration::from_micros(7));
}

#[test]
fn invalid_cgroup_returns_error() {
    let kernel = FakeKernel::with_cgroup_v2();
    kernel.write_file("cgroup/plain/file", "");
    let error = |path: &str| match CgroupMeter::new(&kernel.roots, path.as_ref()) {
        Err(MeterError::Cgroup(error)) => error,
        other => panic!("{path}: {other:?}"),
    };
    assert!(matches!(error("missing"), CgroupError::Missing { path } if path.ends_with("cgroup/missing")));
    assert!(matches!(error("plain"), CgroupError::NotACgroup { .. }));
    assert!(matches!(error("plain/file"), CgroupError::NotACgroup { .. }));
    assert!(matches!(error("a/../../proc"), CgroupError::Outside { .. }));
    let one = FakeKernel::with_cgroup_v1("cpu", "cpuacct");
    one.write_file("cgroup/memory/a/cgroup.procs", "");
    let other_tree = CgroupMeter::new(&one.roots, &one.path("cgroup/memory/a"));
    assert!(matches!(other_tree, Err(MeterError::Cgroup(CgroupError::Outside { .. }))), "{other_tree:?}");
    let none = FakeKernel::without_cgroups();
    none.write_file("cgroup/memory/cgroup.procs", "");
    let without = CgroupMeter::new(&none.roots, "a".as_ref());
    assert!(matches!(without, Err(MeterError::Cgroup(CgroupError::NoController { .. }))), "{without:?}");
}

#[test]
fn recreated_cgroup_starts_new_counter() {
    let Some((roots, hierarchy)) = real_cgroups() else { return };
    let cgroup = RealCgroup::new(&hierarchy, "anew");
    let mut meter = CgroupMeter::new(&roots, cgroup.name.as_ref()).expect("it is there");
    let group = ProcessGroup::spawn_busy(1);
    cgroup.add_group(&group);
    let first = meter.read().expect("it can be read");
    wait_until("it is used", || {
        meter.read().expect("it can be read").since(&first) > Some(Duration::from_millis(20))
    });
    drop(group);
    let before = meter.read().expect("it can be read");
    for folder in cgroup.folders() {
        wait_until("it is empty", || fs::remove_dir(&folder).is_ok());
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

/// A fake process tree below process 100, with its meter. Times are in ticks.
struct TreeFixture {
    kernel: FakeKernel,
    meter: TreeMeter,
}

impl TreeFixture {
    fn new(root: &FakeStat<'_>) -> TreeFixture {
        let kernel = FakeKernel::without_cgroups();
        kernel.write_stat(100, root);
        let meter = TreeMeter::new(&kernel.roots, 100).expect("it is there");
        TreeFixture { kernel, meter }
    }

    /// A tree whose orphans are adopted by a subreaper, process 99.
    fn with_subreaper(root: &FakeStat<'_>) -> TreeFixture {
        let kernel = FakeKernel::without_cgroups();
        kernel.write_stat(99, &FakeStat { own: 7, started: 40, ..FakeStat::default() });
        kernel.write_stat(100, &FakeStat { parent: 99, ..*root });
        let meter = TreeMeter::with_subreaper(&kernel.roots, 100, Some(99)).expect("it is there");
        TreeFixture { kernel, meter }
    }

    #[track_caller]
    fn assert_used(&mut self, expected: u64) {
        assert_eq!(self.meter.read().expect("it is there").used, ticks(expected));
    }
}

#[test]
fn tree_meter_counts_all_descendants() {
    let mut tree = TreeFixture::new(&FakeStat { own: 10, reaped: 7, started: 50, ..FakeStat::default() });
    tree.assert_used(17);
    tree.kernel.write_stat(101, &FakeStat { parent: 100, own: 5, started: 60, ..FakeStat::default() });
    tree.kernel.write_stat(102, &FakeStat { parent: 101, own: 3, started: 70, ..FakeStat::default() });
    tree.kernel.write_stat(200, &FakeStat { parent: 1, own: 1000, started: 60, ..FakeStat::default() });
    tree.assert_used(25);
}

#[test]
fn reaped_child_counts_once() {
    let mut tree = TreeFixture::new(&FakeStat { own: 10, started: 50, ..FakeStat::default() });
    tree.kernel.write_stat(101, &FakeStat { parent: 100, own: 5, started: 60, ..FakeStat::default() });
    tree.kernel.write_stat(102, &FakeStat { parent: 101, own: 3, started: 70, ..FakeStat::default() });
    tree.assert_used(18);
    // 102 used 4 ticks and was reaped by 101. 101 used 9 ticks and was reaped by 100.
    tree.kernel.remove_process(102);
    tree.kernel.remove_process(101);
    tree.kernel.write_stat(100, &FakeStat { own: 10, reaped: 13, started: 50, ..FakeStat::default() });
    tree.assert_used(23);
}

#[test]
fn child_that_ends_during_reading_counts_once() {
    let mut tree = TreeFixture::new(&FakeStat { own: 10, started: 50, ..FakeStat::default() });
    tree.kernel.write_stat(101, &FakeStat { parent: 100, own: 5, started: 60, ..FakeStat::default() });
    tree.assert_used(15);
    // The parent was read before the end of the child, the child after it.
    tree.kernel.remove_process(101);
    tree.assert_used(15);
    tree.kernel.write_stat(100, &FakeStat { own: 10, reaped: 6, started: 50, ..FakeStat::default() });
    tree.assert_used(16);
}

#[test]
fn unreaped_child_stays_counted() {
    let mut tree = TreeFixture::new(&FakeStat { own: 10, started: 50, ..FakeStat::default() });
    tree.kernel.write_stat(101, &FakeStat { parent: 100, own: 500, started: 60, ..FakeStat::default() });
    tree.assert_used(510);
    tree.kernel.remove_process(101);
    tree.assert_used(510);
    tree.assert_used(510);
    tree.kernel.write_stat(100, &FakeStat { own: 12, reaped: 3, started: 50, ..FakeStat::default() });
    tree.assert_used(515);
}

#[test]
fn orphan_stays_in_tree() {
    let mut tree = TreeFixture::new(&FakeStat { own: 10, started: 50, ..FakeStat::default() });
    tree.kernel.write_stat(101, &FakeStat { parent: 100, started: 60, ..FakeStat::default() });
    tree.kernel.write_stat(102, &FakeStat { parent: 101, own: 3, started: 70, ..FakeStat::default() });
    tree.assert_used(13);
    tree.kernel.remove_process(101);
    tree.kernel.remove_process(100);
    tree.kernel.write_stat(102, &FakeStat { parent: 1, own: 30, started: 70, ..FakeStat::default() });
    tree.assert_used(40);
    tree.kernel.remove_process(102);
    let gone = tree.meter.read().expect_err("no process is left");
    assert!(matches!(gone, MeterError::Gone { pid: 100 }), "{gone}");
}

#[test]
fn unseen_orphan_is_found_by_session() {
    let mut tree = TreeFixture::new(&FakeStat { own: 10, session: 100, started: 50, ..FakeStat::default() });
    tree.kernel
        .write_stat(102, &FakeStat { parent: 1, session: 100, own: 3, started: 70, ..FakeStat::default() });
    tree.assert_used(13);
    // The session also finds processes after the end of its leader.
    tree.kernel.remove_process(100);
    tree.kernel
        .write_stat(103, &FakeStat { parent: 1, session: 100, own: 4, started: 80, ..FakeStat::default() });
    tree.assert_used(17);
}

#[test]
fn process_adopted_by_keeper_is_in_tree() {
    let mut tree = TreeFixture::with_subreaper(&FakeStat { own: 10, started: 50, ..FakeStat::default() });
    tree.assert_used(10);
    // Process 150 started, was orphaned and changed its session between two readings.
    tree.kernel
        .write_stat(150, &FakeStat { parent: 99, session: 149, own: 4, started: 60, ..FakeStat::default() });
    tree.assert_used(14);
    // It ended, and so did a process that no reading has seen.
    tree.kernel.remove_process(150);
    tree.kernel.write_stat(99, &FakeStat { own: 8, reaped: 6 + 20, started: 40, ..FakeStat::default() });
    tree.assert_used(36);
    // After the end of all processes the total is exact. The usage of the subreaper itself does not count.
    tree.kernel.remove_process(100);
    tree.kernel.write_stat(99, &FakeStat { own: 30, reaped: 26 + 12, started: 40, ..FakeStat::default() });
    tree.assert_used(38);
    tree.kernel.remove_process(99);
    let gone = tree.meter.read().expect_err("no process is left");
    assert!(matches!(gone, MeterError::Gone { pid: 100 }), "{gone}");
}

#[test]
fn process_reaped_by_keeper_counts_once() {
    let with_three_processes = || {
        let mut tree = TreeFixture::with_subreaper(&FakeStat { own: 10, started: 50, ..FakeStat::default() });
        tree.kernel.write_stat(101, &FakeStat { parent: 100, own: 5, started: 60, ..FakeStat::default() });
        tree.kernel.write_stat(102, &FakeStat { parent: 101, own: 500, started: 70, ..FakeStat::default() });
        tree.assert_used(515);
        tree.kernel.remove_process(101);
        tree.kernel.remove_process(102);
        tree
    };
    // 100 reaped 101. 101 had not reaped 102, so the subreaper did.
    let mut tree = with_three_processes();
    tree.kernel
        .write_stat(100, &FakeStat { parent: 99, own: 10, reaped: 6, started: 50, ..FakeStat::default() });
    tree.kernel.write_stat(99, &FakeStat { own: 7, reaped: 501, started: 40, ..FakeStat::default() });
    tree.assert_used(517);
    // The subreaper was read before it reaped 102.
    let mut tree = with_three_processes();
    tree.kernel
        .write_stat(100, &FakeStat { parent: 99, own: 10, reaped: 6, started: 50, ..FakeStat::default() });
    tree.assert_used(515);
    tree.kernel.write_stat(99, &FakeStat { own: 7, reaped: 501, started: 40, ..FakeStat::default() });
    tree.assert_used(517);
    // Each parent reaped its child.
    let mut tree = with_three_processes();
    tree.kernel
        .write_stat(100, &FakeStat { parent: 99, own: 10, reaped: 507, started: 50, ..FakeStat::default() });
    tree.assert_used(517);
}

/// A reading is cheap if no process was started: `/proc` is listed only after a new PID.
#[test]
fn processes_are_listed_after_new_pid() {
    let kernel = FakeKernel::without_cgroups();
    kernel.write_file("proc/loadavg", "0.10 0.20 0.30 1/99 100\n");
    kernel.write_stat(100, &FakeStat { own: 10, started: 50, ..FakeStat::default() });
    let meter = TreeMeter::new(&kernel.roots, 100).expect("it is there");
    let mut tree = TreeFixture { kernel, meter };
    // Two more listings follow a new PID, because its process may not be visible yet.
    tree.assert_used(10);
    tree.kernel.write_stat(101, &FakeStat { parent: 100, own: 5, started: 60, ..FakeStat::default() });
    tree.assert_used(15);
    tree.kernel.write_stat(102, &FakeStat { parent: 100, own: 3, started: 70, ..FakeStat::default() });
    tree.assert_used(15);
    tree.kernel.write_file("proc/loadavg", "0.10 0.20 0.30 1/99 102\n");
    tree.assert_used(18);
    // Periodic listings find every process, even without a new PID.
    tree.assert_used(18);
    tree.kernel.write_stat(103, &FakeStat { parent: 100, own: 2, started: 80, ..FakeStat::default() });
    tree.assert_used(18);
    let found = (0..20).any(|_| tree.meter.read().expect("it is there").used == ticks(20));
    assert!(found);
}

#[test]
fn reused_pid_is_a_different_process() {
    let mut tree = TreeFixture::new(&FakeStat { own: 10, started: 50, ..FakeStat::default() });
    tree.kernel.write_stat(101, &FakeStat { parent: 100, own: 5, started: 60, ..FakeStat::default() });
    tree.assert_used(15);
    tree.kernel.write_stat(101, &FakeStat { parent: 1, own: 1000, started: 99, ..FakeStat::default() });
    tree.assert_used(15);
    tree.kernel.write_stat(100, &FakeStat { own: 1000, started: 99, ..FakeStat::default() });
    let gone = tree.meter.read().expect_err("it is another one");
    assert!(matches!(gone, MeterError::Gone { pid: 100 }), "{gone}");
    let read = TreeMeter::new(&tree.kernel.roots, 100).and_then(|mut meter| meter.read());
    let other = TreeFixture::new(&FakeStat { own: 10, started: 50, ..FakeStat::default() })
        .meter
        .read()
        .expect("it is there");
    assert_eq!(read.expect("it is there").since(&other), None);
}

#[test]
fn missing_process_returns_error() {
    let error = TreeMeter::new(&FakeKernel::without_cgroups().roots, 77).expect_err("there is none");
    assert_eq!(error.to_string(), "there is no process 77; it has ended, or the number is wrong");
}

/// Hundreds of short-lived children: the counter never decreases, and the final value matches the kernel within 5 %.
#[test]
fn short_lived_children_match_kernel_total() {
    let burn = "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done";
    let group = ProcessGroup::spawn(&format!(
        "n=0; while [ $n -lt 150 ]; do ( {burn} ); ( {burn} ) & n=$((n+1)); [ $((n % 8)) -eq 0 ] && wait; done; wait"
    ));
    let mut meter = TreeMeter::new(&FilesystemRoots::default(), group.pid()).expect("it is there");
    let mut last = Duration::ZERO;
    let proc = real_proc();
    let mut whole = None;
    wait_until("it ends", || {
        let used = meter.read().expect("the process is not reaped yet").used;
        assert!(used >= last, "{used:?} after {last:?}");
        last = used;
        let stat = proc.stat(group.pid()).expect("it can be read").expect("the process is not reaped yet");
        whole = (stat.state == ProcessState::Ended).then(|| ticks(stat.own + stat.reaped));
        whole.is_some()
    });
    let whole = whole.expect("it ended");
    let measured = meter.read().expect("the process is not reaped yet").used;
    assert!(whole > Duration::from_millis(200), "{whole:?} is too short for the test");
    assert!(
        measured <= whole + whole / 20 && measured + whole / 20 >= whole,
        "{measured:?} instead of {whole:?}"
    );
}

#[test]
fn tree_meter_of_this_process_has_age() {
    let pid = u32::try_from(getpid().as_raw_nonzero().get()).expect("it is a number");
    let reading = TreeMeter::new(&FilesystemRoots::default(), pid)
        .and_then(|mut meter| meter.read())
        .expect("it is there");
    assert!(reading.age.expect("it is known") < Duration::from_secs(24 * 3600));
}
