//! One quota shared by several cgroups, and the selection of these cgroups.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use tidegate_core::budget::Rate;
use tidegate_cpu::enforcer::{EnforceError, Enforcer, QuotaBurst, SharedQuota, limitable_cgroups};
use tidegate_cpu::meter::{CgroupMeter, Meter, cores};
use tidegate_cpu::watchdog::CpuWatchdog;

use crate::fixture::{
    FakeKernel, FakeStat, ProcessGroup, RealCgroup, TempFolder, let_time_pass, now, percent_used,
    rate_of_cores, real_cgroups,
};

/// The quota of each cgroup, in microseconds per 100 milliseconds.
fn quotas(kernel: &FakeKernel, names: &[&str]) -> Vec<u64> {
    let read = |name: &&str| {
        let text = kernel.read_file(&format!("cgroup/{name}/cpu.max"));
        let (quota, period) = text.split_once(' ').expect("two numbers");
        quota.parse::<u64>().expect("a number") * 100_000 / period.parse::<u64>().expect("a number")
    };
    names.iter().map(read).collect()
}

#[test]
fn shared_limit_is_divided_and_never_exceeded() {
    let (kernel, folder) = (FakeKernel::with_cgroup_v2(), TempFolder::new());
    let names = ["a", "b", "c"];
    for name in names {
        kernel.add_cgroup(name);
    }
    let watchdog = CpuWatchdog::journal_only(folder.path()).expect("the directory can be written");
    let paths: Vec<PathBuf> = names.iter().map(PathBuf::from).chain(["missing".into()]).collect();
    let mut shares =
        SharedQuota::new(&kernel.roots, &paths, QuotaBurst::NONE, &watchdog).expect("they are there");
    assert_eq!(shares.paths().count(), 3, "a missing cgroup is omitted");
    shares.apply(Rate::from_units(30)).expect("they can be written");
    assert_eq!(quotas(&kernel, &names), [20_000, 20_000, 20_000], "no usage was observed yet");
    // The first cgroup is busy, the others are idle.
    let_time_pass(Duration::from_millis(20));
    kernel.write_file("cgroup/a/cpu.stat", "usage_usec 999999999\n");
    shares.apply(Rate::from_units(30)).expect("they can be written");
    let now = quotas(&kernel, &names);
    assert_eq!(now, [56_000, 2_000, 2_000], "an idle cgroup can start");
    // The second cgroup becomes busy.
    let_time_pass(Duration::from_millis(20));
    kernel.write_file("cgroup/a/cpu.stat", "usage_usec 1999999999\n");
    kernel.write_file("cgroup/b/cpu.stat", "usage_usec 999999999\n");
    shares.apply(Rate::from_units(30)).expect("they can be written");
    assert_eq!(quotas(&kernel, &names), [29_000, 29_000, 2_000], "a busy cgroup gets its share");
    // A removed cgroup leaves its share to the others.
    fs::remove_dir_all(kernel.path("cgroup/c")).expect("it was there");
    shares.apply(Rate::from_units(30)).expect("they can be written");
    assert!(quotas(&kernel, &names[..2]).iter().sum::<u64>() <= 60_000);
    shares.set_cgroups(&["b".into()]).expect("it is there");
    assert_eq!(
        kernel.read_file("cgroup/a/cpu.max"),
        "max 100000",
        "a cgroup that is no longer limited is restored"
    );
    shares.restore().expect("they can be written");
    assert_eq!(kernel.read_file("cgroup/b/cpu.max"), "max 100000");
}

#[test]
fn limitable_cgroups_excludes_protected_cgroups() {
    let kernel = FakeKernel::with_cgroup_v2();
    let me = std::process::id();
    for name in [
        "system.slice",
        "system.slice/ssh.service",
        "system.slice/web.service",
        "user.slice",
        "user.slice/session-1",
        "user.slice/session-2",
        "user.slice/session-2/inner",
        "machine.slice",
        "machine.slice/vm",
    ] {
        kernel.add_cgroup(name);
    }
    kernel.add_process(50, "sshd-session", 1, 5, "/system.slice/ssh.service");
    kernel.add_process(51, "nginx", 1, 5, "/system.slice/web.service");
    kernel.add_process(52, "bash", 1, 5, "/user.slice/session-1");
    kernel.add_process(me, "tidegate", 52, 6, "/governor");
    kernel.add_process(53, "make", 1, 6, "/user.slice/session-2/inner");
    kernel.add_process(54, "qemu", 1, 6, "/machine.slice/vm");
    let find = || -> Vec<String> {
        let found = limitable_cgroups(&kernel.roots).expect("it can be looked at");
        let name = |path: &PathBuf| {
            path.strip_prefix(&kernel.roots.cgroup).expect("it is below").display().to_string()
        };
        found.iter().map(name).collect()
    };
    assert_eq!(find(), ["machine.slice", "system.slice/web.service", "user.slice/session-2"]);
    // A kernel thread protects its own cgroup only.
    kernel.write_file("proc/60/cgroup", "0::/machine.slice\n");
    kernel.write_stat(
        60,
        &FakeStat { name: "kworker/0:1", parent: 2, flags: 0x0020_0000, ..FakeStat::default() },
    );
    assert_eq!(find(), ["machine.slice/vm", "system.slice/web.service", "user.slice/session-2"]);
    // A process outside this PID namespace (PID 0) may be protected.
    kernel.write_file("cgroup/machine.slice/vm/cgroup.procs", "0\n");
    assert_eq!(find(), ["system.slice/web.service", "user.slice/session-2"]);
}

#[test]
fn limitable_cgroups_excludes_cgroups_without_controller() {
    let kernel = FakeKernel::with_cgroup_v2();
    // A cgroup with processes of its own cannot enable controllers for its children.
    kernel.add_process(50, "sshd", 1, 5, "/mixed");
    kernel.write_file("cgroup/mixed/cgroup.procs", "50\n");
    kernel.write_file("cgroup/mixed/cgroup.subtree_control", "");
    kernel.write_file("cgroup/mixed/a/cgroup.procs", "");
    kernel.write_file("cgroup/pure/cgroup.procs", "");
    assert_eq!(limitable_cgroups(&kernel.roots).expect("it can be looked at"), [kernel.path("cgroup/pure")]);
    kernel.write_file("cgroup/mixed/cgroup.procs", "");
    let both = [kernel.path("cgroup/mixed/a"), kernel.path("cgroup/pure")];
    assert_eq!(limitable_cgroups(&kernel.roots).expect("it can be looked at"), both);
    kernel.write_file("cgroup/cgroup.controllers", "memory\n");
    assert!(limitable_cgroups(&kernel.roots).expect("it can be looked at").is_empty());
}

#[test]
fn limitable_cgroups_of_machine_exclude_governor() {
    let Some((roots, hierarchy)) = real_cgroups() else { return };
    let cgroup = RealCgroup::new(&hierarchy, "find");
    let found = limitable_cgroups(&roots).expect("it can be looked at");
    assert!(found.contains(&cgroup.limit_folder()), "{found:?}");
    assert!(!found.contains(&hierarchy.limits), "the root cannot be limited");
    let own = fs::read_to_string("/proc/self/cgroup").expect("it can be read");
    for path in &found {
        let name = path.strip_prefix(&hierarchy.limits).expect("it is below").display().to_string();
        assert!(!own.lines().any(|line| line.ends_with(&format!(":cpu:/{name}"))), "{name}");
    }
}

#[test]
fn real_cgroups_share_limit() {
    let Some((roots, hierarchy)) = real_cgroups() else { return };
    let folder = TempFolder::new();
    let watchdog = CpuWatchdog::journal_only(folder.path()).expect("the directory can be written");
    let busy = cores().min(2);
    let cgroups = [RealCgroup::new(&hierarchy, "busy"), RealCgroup::new(&hierarchy, "idle")];
    let before: Vec<_> = cgroups.iter().map(RealCgroup::read_limit_files).collect();
    let group = ProcessGroup::spawn_busy(busy);
    cgroups[0].add_group(&group);
    let paths: Vec<PathBuf> = cgroups.iter().map(RealCgroup::limit_folder).collect();
    let mut shares = SharedQuota::new(&roots, &paths, QuotaBurst::NONE, &watchdog).expect("they are there");
    let mut meter = CgroupMeter::new(&roots, &paths[0]).expect("it is there");
    shares.apply(rate_of_cores(busy, 40)).expect("they can be written");
    let_time_pass(Duration::from_millis(500));
    shares.apply(rate_of_cores(busy, 40)).expect("they can be written");
    let (began, first) = (now(), meter.read().expect("it can be read"));
    let_time_pass(Duration::from_secs(2));
    let used = meter.read().expect("it can be read").since(&first).expect("it is the same cgroup");
    let used = percent_used(used, began.elapsed(), busy);
    assert!((1..=45).contains(&used), "{used} % instead of 40 %");
    shares.restore().expect("they can be written");
    assert_eq!(cgroups.iter().map(RealCgroup::read_limit_files).collect::<Vec<_>>(), before);
}

#[test]
fn shared_quota_rejects_protected_cgroup() {
    let (kernel, folder) = (FakeKernel::with_cgroup_v2(), TempFolder::new());
    kernel.add_cgroup("a");
    let watchdog = CpuWatchdog::journal_only(folder.path()).expect("the directory can be written");
    let shares =
        SharedQuota::new(&kernel.roots, &["a".into(), "governor".into()], QuotaBurst::NONE, &watchdog);
    assert!(matches!(shares, Err(EnforceError::Protected { .. })), "{shares:?}");
}
