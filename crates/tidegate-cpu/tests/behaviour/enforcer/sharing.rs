//! One limit for several cgroups, and which those are.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use tidegate_core::budget::Rate;
use tidegate_cpu::enforcer::{EnforceError, Enforcer, QuotaBurst, SharedQuota, limitable_cgroups};
use tidegate_cpu::meter::{CgroupMeter, Meter, cores};
use tidegate_cpu::watchdog::CpuWatchdog;

use crate::fixture::{
    CounterId, Folder, Kernel, RealCgroup, Troop, now, pass, percent, percent_of, real_cgroups,
};

/// What is in force for each of these, in microseconds of every 100 milliseconds.
fn quotas(kernel: &Kernel, names: &[&str]) -> Vec<u64> {
    let read = |name: &&str| {
        let text = kernel.get(&format!("cgroup/{name}/cpu.max"));
        let (quota, period) = text.split_once(' ').expect("two numbers");
        quota.parse::<u64>().expect("a number") * 100_000 / period.parse::<u64>().expect("a number")
    };
    names.iter().map(read).collect()
}

#[test]
fn a_limit_is_divided_and_never_exceeded() {
    let (kernel, folder) = (Kernel::two(), Folder::new());
    let names = ["a", "b", "c"];
    for name in names {
        kernel.cgroup_two(name);
    }
    let guardian = CpuWatchdog::journal_only(folder.path()).expect("the directory can be written");
    let paths: Vec<PathBuf> = names.iter().map(PathBuf::from).chain(["missing".into()]).collect();
    let mut shares =
        SharedQuota::new(&kernel.roots, &paths, QuotaBurst::NONE, &guardian).expect("they are there");
    assert_eq!(shares.paths().count(), 3, "what is gone is left out");
    shares.apply(Rate::from_units(30)).expect("they can be written");
    assert_eq!(quotas(&kernel, &names), [20_000, 20_000, 20_000], "nothing is known yet");
    // The first one is hungry, the others idle.
    pass(Duration::from_millis(20));
    kernel.put("cgroup/a/cpu.stat", "usage_usec 999999999\n");
    shares.apply(Rate::from_units(30)).expect("they can be written");
    let now = quotas(&kernel, &names);
    assert_eq!(now, [56_000, 2_000, 2_000], "who is idle can start");
    // One of the idle ones has started.
    pass(Duration::from_millis(20));
    kernel.put("cgroup/a/cpu.stat", "usage_usec 1999999999\n");
    kernel.put("cgroup/b/cpu.stat", "usage_usec 999999999\n");
    shares.apply(Rate::from_units(30)).expect("they can be written");
    assert_eq!(quotas(&kernel, &names), [29_000, 29_000, 2_000], "and is not kept small");
    // One that is gone leaves its share to the others.
    fs::remove_dir_all(kernel.path("cgroup/c")).expect("it was there");
    shares.apply(Rate::from_units(30)).expect("they can be written");
    assert!(quotas(&kernel, &names[..2]).iter().sum::<u64>() <= 60_000);
    shares.set_cgroups(&["b".into()]).expect("it is there");
    assert_eq!(kernel.get("cgroup/a/cpu.max"), "max 100000", "who is not limited any more is as before");
    shares.restore().expect("they can be written");
    assert_eq!(kernel.get("cgroup/b/cpu.max"), "max 100000");
}

#[test]
fn what_may_be_limited_is_found() {
    let kernel = Kernel::two();
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
        kernel.cgroup_two(name);
    }
    kernel.process(50, "sshd-session", 1, 5, "/system.slice/ssh.service");
    kernel.process(51, "nginx", 1, 5, "/system.slice/web.service");
    kernel.process(52, "bash", 1, 5, "/user.slice/session-1");
    kernel.process(me, "tidegate", 52, 6, "/governor");
    kernel.process(53, "make", 1, 6, "/user.slice/session-2/inner");
    kernel.process(54, "qemu", 1, 6, "/machine.slice/vm");
    let find = || -> Vec<String> {
        let found = limitable_cgroups(&kernel.roots).expect("it can be looked at");
        let name = |path: &PathBuf| {
            path.strip_prefix(&kernel.roots.cgroup).expect("it is below").display().to_string()
        };
        found.iter().map(name).collect()
    };
    assert_eq!(find(), ["machine.slice", "system.slice/web.service", "user.slice/session-2"]);
    // A thread of the kernel is somewhere else.
    kernel.put("proc/60/cgroup", "0::/machine.slice\n");
    kernel
        .stat(60, &CounterId { name: "kworker/0:1", parent: 2, flags: 0x0020_0000, ..CounterId::default() });
    assert_eq!(find(), ["machine.slice/vm", "system.slice/web.service", "user.slice/session-2"]);
    // Somebody whom only the cgroup knows may be anybody.
    kernel.put("cgroup/machine.slice/vm/cgroup.procs", "0\n");
    assert_eq!(find(), ["system.slice/web.service", "user.slice/session-2"]);
}

#[test]
fn what_cannot_have_the_controller_is_left_out() {
    let kernel = Kernel::two();
    // It holds processes beside its children, so that those cannot have controllers.
    kernel.process(50, "sshd", 1, 5, "/mixed");
    kernel.put("cgroup/mixed/cgroup.procs", "50\n");
    kernel.put("cgroup/mixed/cgroup.subtree_control", "");
    kernel.put("cgroup/mixed/a/cgroup.procs", "");
    kernel.put("cgroup/pure/cgroup.procs", "");
    assert_eq!(limitable_cgroups(&kernel.roots).expect("it can be looked at"), [kernel.path("cgroup/pure")]);
    kernel.put("cgroup/mixed/cgroup.procs", "");
    let both = [kernel.path("cgroup/mixed/a"), kernel.path("cgroup/pure")];
    assert_eq!(limitable_cgroups(&kernel.roots).expect("it can be looked at"), both);
    kernel.put("cgroup/cgroup.controllers", "memory\n");
    assert!(limitable_cgroups(&kernel.roots).expect("it can be looked at").is_empty());
}

#[test]
fn on_this_machine_the_governor_is_not_limited() {
    let Some((roots, hierarchy)) = real_cgroups() else { return };
    let cgroup = RealCgroup::new(&hierarchy, "find");
    let found = limitable_cgroups(&roots).expect("it can be looked at");
    assert!(found.contains(&cgroup.limits()), "{found:?}");
    assert!(!found.contains(&hierarchy.limits), "the root is nobody's");
    let own = fs::read_to_string("/proc/self/cgroup").expect("it can be read");
    for path in &found {
        let name = path.strip_prefix(&hierarchy.limits).expect("it is below").display().to_string();
        assert!(!own.lines().any(|line| line.ends_with(&format!(":cpu:/{name}"))), "{name}");
    }
}

#[test]
fn real_cgroups_share_a_limit() {
    let Some((roots, hierarchy)) = real_cgroups() else { return };
    let folder = Folder::new();
    let guardian = CpuWatchdog::journal_only(folder.path()).expect("the directory can be written");
    let busy = cores().min(2);
    let cgroups = [RealCgroup::new(&hierarchy, "busy"), RealCgroup::new(&hierarchy, "idle")];
    let before: Vec<_> = cgroups.iter().map(RealCgroup::limit).collect();
    let troop = Troop::busy(busy);
    cgroups[0].take(&troop);
    let paths: Vec<PathBuf> = cgroups.iter().map(RealCgroup::limits).collect();
    let mut shares = SharedQuota::new(&roots, &paths, QuotaBurst::NONE, &guardian).expect("they are there");
    let mut meter = CgroupMeter::new(&roots, &paths[0]).expect("it is there");
    shares.apply(percent_of(busy, 40)).expect("they can be written");
    pass(Duration::from_millis(500));
    shares.apply(percent_of(busy, 40)).expect("they can be written");
    let (began, first) = (now(), meter.read().expect("it can be read"));
    pass(Duration::from_secs(2));
    let used = meter.read().expect("it can be read").since(&first).expect("it is the same cgroup");
    let used = percent(used, began.elapsed(), busy);
    assert!((1..=45).contains(&used), "{used} % instead of 40 %");
    shares.restore().expect("they can be written");
    assert_eq!(cgroups.iter().map(RealCgroup::limit).collect::<Vec<_>>(), before);
}

#[test]
fn one_that_is_protected_is_refused() {
    let (kernel, folder) = (Kernel::two(), Folder::new());
    kernel.cgroup_two("a");
    let guardian = CpuWatchdog::journal_only(folder.path()).expect("the directory can be written");
    let shares =
        SharedQuota::new(&kernel.roots, &["a".into(), "governor".into()], QuotaBurst::NONE, &guardian);
    assert!(matches!(shares, Err(EnforceError::Protected { .. })), "{shares:?}");
}
