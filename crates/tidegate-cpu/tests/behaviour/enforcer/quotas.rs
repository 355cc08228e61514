//! Quotas of cgroups, with fake kernel files and with real cgroups.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use tidegate_core::budget::Rate;
use tidegate_cpu::cgroups::{CgroupError, FilesystemRoots};
use tidegate_cpu::enforcer::{CgroupScope, EnforceError, Enforcer, QuotaBurst, QuotaEnforcer};
use tidegate_cpu::meter::{CgroupMeter, Meter, cores};
use tidegate_cpu::processes::ProcessState;
use tidegate_cpu::watchdog::{CpuWatchdog, Undo};

use crate::fixture::{
    FakeKernel, ProcessGroup, RealCgroup, TempFolder, let_time_pass, now, percent_used, rate_of_cores,
    real_cgroups, wait_until,
};
use crate::watchdog::{child_role, start_child};

/// The user `nobody`, without permissions.
const UNPRIVILEGED_USER: u32 = 65534;

/// 26.7 %, the usual example of a limit.
fn example() -> Rate {
    Rate::from_billionths(26_700_000_000)
}

fn new_watchdog(folder: &TempFolder) -> CpuWatchdog {
    CpuWatchdog::journal_only(folder.path()).expect("the directory can be written")
}

#[test]
fn quota_v2_writes_documented_values() {
    let (kernel, folder) = (FakeKernel::with_cgroup_v2(), TempFolder::new());
    kernel.add_cgroup("a.slice");
    kernel.write_file("cgroup/a.slice/cpu.max", "80000 50000\n");
    kernel.write_file("cgroup/a.slice/cpu.max.burst", "1000\n");
    kernel.write_file("proc/stat", "cpu  1 1 1 1 1 1 1\ncpu0 1\n");
    let watchdog = new_watchdog(&folder);
    let mut quota = QuotaEnforcer::new(&kernel.roots, "a.slice".as_ref(), QuotaBurst::default(), &watchdog)
        .expect("it is there");
    assert_eq!(kernel.read_file("cgroup/a.slice/cpu.max"), "80000 50000", "no limit was applied yet");
    quota.apply(example()).expect("it can be written");
    assert_eq!(kernel.read_file("cgroup/a.slice/cpu.max"), "26700 100000");
    assert_eq!(kernel.read_file("cgroup/a.slice/cpu.max.burst"), "26700");
    // The quota depends on the number of cores.
    kernel.write_file("proc/stat", "cpu  1 1 1 1 1 1 1\ncpu0 1\ncpu1 1\ncpu2 1\ncpu3 1\n");
    quota.apply(Rate::from_billionths(27_750_000_000)).expect("it can be written");
    assert_eq!(kernel.read_file("cgroup/a.slice/cpu.max"), "111000 100000");
    for _ in 0..2 {
        quota.restore().expect("it can be written");
        assert_eq!(kernel.read_file("cgroup/a.slice/cpu.max"), "80000 50000");
        assert_eq!(kernel.read_file("cgroup/a.slice/cpu.max.burst"), "1000");
        assert_eq!(watchdog.pending_undos(), []);
    }
}

#[test]
fn burst_can_be_disabled_or_missing() {
    let (kernel, folder) = (FakeKernel::with_cgroup_v2(), TempFolder::new());
    kernel.add_cgroup("a");
    kernel.write_file("cgroup/a/cpu.max.burst", "500\n");
    let watchdog = new_watchdog(&folder);
    let mut quota =
        QuotaEnforcer::new(&kernel.roots, "a".as_ref(), QuotaBurst::NONE, &watchdog).expect("it is there");
    quota.apply(example()).expect("it can be written");
    assert_eq!(kernel.read_file("cgroup/a/cpu.max.burst"), "0");
    drop(quota);
    assert_eq!(kernel.read_file("cgroup/a/cpu.max.burst"), "500", "dropping it restores too");
    fs::remove_file(kernel.path("cgroup/a/cpu.max.burst")).expect("it was there");
    let mut quota = QuotaEnforcer::new(&kernel.roots, "a".as_ref(), QuotaBurst::default(), &watchdog)
        .expect("it is there");
    quota.apply(example()).expect("it can be written");
    assert_eq!(kernel.read_file("cgroup/a/cpu.max"), "53400 100000");
    assert!(!kernel.path("cgroup/a/cpu.max.burst").exists(), "the enforcer creates no kernel files");
}

#[test]
fn quota_v1_writes_quota_and_period() {
    for (limits, counts) in [("cpu", "cpuacct"), ("cpu,cpuacct", "cpu,cpuacct")] {
        let (kernel, folder) = (FakeKernel::with_cgroup_v1(limits, counts), TempFolder::new());
        kernel.write_file(&format!("cgroup/{counts}/a/cgroup.procs"), "");
        for (file, content) in
            [("cgroup.procs", ""), ("cpu.cfs_quota_us", "-1\n"), ("cpu.cfs_period_us", "250000\n")]
        {
            kernel.write_file(&format!("cgroup/{limits}/a/{file}"), content);
        }
        let read = |file: &str| kernel.read_file(&format!("cgroup/{limits}/a/{file}"));
        let mut quota =
            QuotaEnforcer::new(&kernel.roots, "/a".as_ref(), QuotaBurst::default(), &new_watchdog(&folder))
                .expect("it is there");
        quota.apply(example()).expect("it can be written");
        assert_eq!((read("cpu.cfs_quota_us"), read("cpu.cfs_period_us")), ("53400".into(), "100000".into()));
        quota.restore().expect("it can be written");
        assert_eq!((read("cpu.cfs_quota_us"), read("cpu.cfs_period_us")), ("-1".into(), "250000".into()));
    }
}

#[test]
fn undo_is_recorded_before_change() {
    let (kernel, folder) = (FakeKernel::with_cgroup_v2(), TempFolder::new());
    kernel.add_cgroup("a");
    let watchdog = new_watchdog(&folder);
    let mut quota = QuotaEnforcer::new(&kernel.roots, "a".as_ref(), QuotaBurst::default(), &watchdog)
        .expect("it is there");
    assert_eq!(watchdog.pending_undos(), []);
    // The limit cannot be written. The undo of the burst stays recorded; that of the limit does not.
    fs::remove_file(kernel.path("cgroup/a/cpu.max")).expect("it was there");
    fs::create_dir(kernel.path("cgroup/a/cpu.max")).expect("there is room");
    quota.apply(example()).expect_err("a directory takes no limit");
    fs::remove_dir(kernel.path("cgroup/a/cpu.max")).expect("it was there");
    kernel.write_file("cgroup/a/cpu.max", "max 100000\n");
    quota.apply(example()).expect("it can be written");
    let write =
        |file: &str, content: &str| Undo::Write { file: kernel.path(file), content: content.to_owned() };
    let expected = [
        write("cgroup/a/cpu.max.burst", "0"),
        write("cgroup/a/cpu.max", "max 100000"),
        write("cgroup/a/cpu.max.burst", "0"),
    ];
    assert_eq!(watchdog.pending_undos(), expected);
}

#[test]
fn invalid_cgroup_is_rejected_without_change() {
    let (kernel, folder) = (FakeKernel::with_cgroup_v2(), TempFolder::new());
    kernel.write_file("cgroup/plain/cgroup.procs", "");
    kernel.write_file("cgroup/cgroup.subtree_control", "memory\n");
    kernel.write_file("cgroup/cgroup.controllers", "memory\n");
    let watchdog = new_watchdog(&folder);
    let error = |path: &str| {
        QuotaEnforcer::new(&kernel.roots, path.as_ref(), QuotaBurst::default(), &watchdog)
            .expect_err("it cannot be limited")
    };
    assert!(matches!(error("missing"), EnforceError::Cgroup(CgroupError::Missing { .. })));
    assert!(matches!(error("plain"), EnforceError::Cgroup(CgroupError::NoController { .. })));
    assert!(!error("plain").is_permission_error());
    assert_eq!(watchdog.pending_undos(), []);
    assert_eq!(kernel.read_file("cgroup/cgroup.subtree_control"), "memory");
}

#[test]
fn cgroups_of_governor_and_init_are_rejected() {
    let (kernel, folder) = (FakeKernel::with_cgroup_v2(), TempFolder::new());
    let watchdog = new_watchdog(&folder);
    for (path, process) in [
        ("/", "the governor itself"),
        ("governor", "the governor itself"),
        ("init.scope", "the first process of the machine"),
    ] {
        let error = QuotaEnforcer::new(&kernel.roots, path.as_ref(), QuotaBurst::default(), &watchdog)
            .expect_err("it is protected");
        assert!(
            matches!(&error, EnforceError::Protected { process: found, .. } if *found == process),
            "{path}: {error}"
        );
    }
    // A cgroup with a longer name is a different cgroup.
    kernel.add_cgroup("govern");
    assert!(QuotaEnforcer::new(&kernel.roots, "govern".as_ref(), QuotaBurst::default(), &watchdog).is_ok());
}

#[test]
fn cgroup_scope_enables_and_disables_controller() {
    let (kernel, folder) = (FakeKernel::with_cgroup_v2(), TempFolder::new());
    kernel.write_file("cgroup/cgroup.subtree_control", "memory\n");
    // The kernel creates the files of a child with the controller. Here they exist from the beginning.
    kernel.add_cgroup(&format!("tidegate-{}", std::process::id()));
    let group = ProcessGroup::spawn("exec sleep 1000");
    kernel.add_process(group.pid(), "sleep", std::process::id(), 9, "/user.slice/a");
    kernel.add_cgroup("user.slice/a");
    let ours = format!("cgroup/tidegate-{}", std::process::id());
    let watchdog = new_watchdog(&folder);
    let mut scope =
        CgroupScope::new(&kernel.roots, group.pid(), QuotaBurst::NONE, &watchdog).expect("it can be made");
    assert_eq!(kernel.read_file("cgroup/cgroup.subtree_control"), "+cpu");
    assert_eq!(kernel.read_file(&format!("{ours}/cgroup.procs")), group.pid().to_string());
    scope.apply(example()).expect("it can be written");
    assert_eq!(kernel.read_file(&format!("{ours}/cpu.max")), "53400 100000");
    // A plain directory with files cannot be removed like a cgroup. Everything else is undone.
    scope.restore().expect_err("it is not a cgroup");
    assert_eq!(kernel.read_file("cgroup/user.slice/a/cgroup.procs"), group.pid().to_string());
    assert_eq!(kernel.read_file("cgroup/cgroup.subtree_control"), "-cpu");
    assert_eq!(watchdog.pending_undos().len(), 1, "the remaining undo stays recorded");
}

#[test]
fn real_cgroup_stays_under_quota() {
    let Some((roots, hierarchy)) = real_cgroups() else { return };
    let folder = TempFolder::new();
    let busy = cores().min(2);
    let cgroup = RealCgroup::new(&hierarchy, "quota");
    let before = cgroup.read_limit_files();
    let group = ProcessGroup::spawn_busy(busy);
    cgroup.add_group(&group);
    let watchdog = new_watchdog(&folder);
    let mut quota = QuotaEnforcer::new(&roots, cgroup.name.as_ref(), QuotaBurst::default(), &watchdog)
        .expect("it is there");
    quota.apply(rate_of_cores(busy, 20)).expect("it can be written");
    let mut meter = CgroupMeter::new(&roots, cgroup.name.as_ref()).expect("it is there");
    let (began, first) = (now(), meter.read().expect("it can be read"));
    let_time_pass(Duration::from_secs(3));
    let used = meter.read().expect("it can be read").since(&first).expect("it is the same cgroup");
    let used = percent_used(used, began.elapsed(), busy);
    assert!((1..=25).contains(&used), "{used} % instead of 20 %");
    // The kernel accepts smaller, larger, minimal and maximal limits.
    for limit in [Rate::from_units(1), Rate::from_units(90), Rate::ZERO, Rate::from_units(100)] {
        quota.apply(limit).expect("the kernel takes it");
        assert_ne!(cgroup.read_limit_files(), before);
    }
    quota.restore().expect("it can be written");
    assert_eq!(cgroup.read_limit_files(), before);
}

#[test]
fn real_cgroup_scope_moves_tree_in_and_out() {
    let Some((roots, hierarchy)) = real_cgroups() else { return };
    let folder = TempFolder::new();
    let home = RealCgroup::new(&hierarchy, "home");
    let group = ProcessGroup::spawn("( while :; do :; done ) & while :; do ( : ); done");
    wait_until("both are there", || group.members().len() >= 2);
    home.add_group(&group);
    let watchdog = new_watchdog(&folder);
    let mut scope =
        CgroupScope::new(&roots, group.pid(), QuotaBurst::default(), &watchdog).expect("it can be made");
    let ours = scope.path().to_owned();
    let all_in = |folder: &std::path::Path| {
        let pids = fs::read_to_string(folder.join("cgroup.procs")).expect("it can be read");
        let living = group.members();
        living.iter().all(|stat| {
            stat.state == ProcessState::Ended || pids.lines().any(|pid| pid == stat.process.pid.to_string())
        })
    };
    wait_until("all processes are inside", || all_in(&ours));
    let mut meter = CgroupMeter::new(&roots, &ours).expect("it is there");
    let busy = cores().min(2);
    scope.apply(rate_of_cores(busy, 20)).expect("it can be written");
    let (began, first) = (now(), meter.read().expect("it can be read"));
    let_time_pass(Duration::from_secs(2));
    let used = meter.read().expect("it can be read").since(&first).expect("it is the same cgroup");
    let used = percent_used(used, began.elapsed(), busy);
    assert!((1..=26).contains(&used), "{used} % instead of 20 %");
    scope.restore().expect("all processes can leave");
    assert!(!ours.exists(), "it is removed");
    for folder in home.folders() {
        wait_until("all processes are back", || all_in(&folder));
    }
    assert_eq!(watchdog.pending_undos(), []);
    // The tree can enter again.
    scope.apply(rate_of_cores(busy, 20)).expect("it can be made again");
    wait_until("all processes are inside", || all_in(&ours));
    drop(scope);
    assert!(!ours.exists(), "dropping it restores too");
}

#[test]
fn governor_and_init_of_machine_are_rejected() {
    let folder = TempFolder::new();
    let watchdog = new_watchdog(&folder);
    for pid in [1, std::process::id()] {
        let error = CgroupScope::new(&FilesystemRoots::default(), pid, QuotaBurst::default(), &watchdog)
            .expect_err("it is protected");
        let is_expected = matches!(error, EnforceError::Protected { .. } | EnforceError::Cgroup(_));
        assert!(is_expected, "{error}");
    }
    assert_eq!(watchdog.pending_undos(), []);
}

/// A cgroup with a login program is rejected, by process name or by executable. A cgroup with unreadable processes is rejected too.
#[test]
fn cgroups_of_login_programs_are_rejected() {
    let (kernel, folder) = (FakeKernel::with_cgroup_v2(), TempFolder::new());
    let watchdog = new_watchdog(&folder);
    kernel.add_process(1000, "sshd", 1, 3, "/a/b");
    kernel.add_process(1001, "renamed", 1, 3, "/c");
    std::os::unix::fs::symlink("/usr/lib/systemd/systemd-logind (deleted)", kernel.path("proc/1001/exe"))
        .expect("there is room");
    kernel.add_process(1002, "web", 1, 3, "/d");
    // Process 1003 exists only in its cgroup. Process 1 is init and needs no lookup.
    for (name, pids) in [
        ("a", ""),
        ("a/b", "1000\n"),
        ("c", "1001\n"),
        ("d", "1002\n"),
        ("hidden", "1002\n1003\n"),
        ("first", "1\n"),
        ("elsewhere", "0\n"),
    ] {
        kernel.add_cgroup(name);
        kernel.write_file(&format!("cgroup/{name}/cgroup.procs"), pids);
    }
    for (path, process) in [
        ("a", "process 1000 (sshd)"),
        ("a/b", "process 1000 (sshd)"),
        ("c", "process 1001 (systemd-logind)"),
        ("hidden", "process 1003, which cannot be read"),
        ("first", "the first process"),
        ("elsewhere", "outside"),
    ] {
        let limited = QuotaEnforcer::new(&kernel.roots, path.as_ref(), QuotaBurst::default(), &watchdog);
        let error = limited.expect_err("it is protected");
        assert!(matches!(error, EnforceError::Protected { .. }), "{path}: {error}");
        assert!(error.to_string().contains(process), "{path}: {error}");
    }
    assert!(QuotaEnforcer::new(&kernel.roots, "d".as_ref(), QuotaBurst::default(), &watchdog).is_ok());
    assert_eq!(watchdog.pending_undos(), []);
}

/// The shell that started the governor may be in another cgroup.
#[test]
fn cgroup_of_governor_ancestor_is_rejected() {
    let (kernel, folder) = (FakeKernel::with_cgroup_v2(), TempFolder::new());
    let watchdog = new_watchdog(&folder);
    kernel.add_process(900, "bash", 1, 2, "/shell");
    kernel.add_process(std::process::id(), "tidegate", 900, 3, "/governor");
    kernel.add_cgroup("shell");
    let error = QuotaEnforcer::new(&kernel.roots, "shell".as_ref(), QuotaBurst::default(), &watchdog);
    let error = error.expect_err("it is protected").to_string();
    assert!(error.contains("process 900, an ancestor of the governor"), "{error}");
}

/// A permission error is recognizable, so that a governor can continue to observe.
#[test]
fn quota_without_permission_returns_permission_error() {
    let Some((_, hierarchy)) = real_cgroups() else { return };
    let cgroup = RealCgroup::new(&hierarchy, "rights");
    let folder = TempFolder::new();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("it is ours");
    let unprivileged = |command: &mut Command| {
        command.uid(UNPRIVILEGED_USER).gid(UNPRIVILEGED_USER);
    };
    let Some(child) = start_child("limiting", folder.path(), &cgroup.name, unprivileged) else { return };
    let output = child.wait_with_output();
    let output_text = String::from_utf8(output.expect("it ends").stdout).expect("it is text");
    assert!(output_text.contains("permission error: true"), "{output_text}");
}

/// The child process of the test above.
#[test]
fn child_process_applies_quota() {
    let Some(role) = child_role("limiting") else { return };
    let watchdog = CpuWatchdog::journal_only(&role.folder).expect("the directory is world-writable");
    let quota = QuotaEnforcer::new(
        &FilesystemRoots::default(),
        role.target.as_ref(),
        QuotaBurst::default(),
        &watchdog,
    );
    println!("permission error: {}", quota.is_err_and(|error| error.is_permission_error()));
}
