//! Quotas of cgroups, in directories with the same files and in the kernel.

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
    Folder, Kernel, RealCgroup, Troop, eventually, now, pass, percent, percent_of, real_cgroups,
};
use crate::watchdog::{role, start_as};

/// A user who may do nothing.
const NOBODY: u32 = 65534;

/// 26.7 %, the usual example of a limit.
fn example() -> Rate {
    Rate::from_billionths(26_700_000_000)
}

fn guardian(folder: &Folder) -> CpuWatchdog {
    CpuWatchdog::journal_only(folder.path()).expect("the directory can be written")
}

#[test]
fn version_two_is_written_as_the_document_has_it() {
    let (kernel, folder) = (Kernel::two(), Folder::new());
    kernel.cgroup_two("a.slice");
    kernel.put("cgroup/a.slice/cpu.max", "80000 50000\n");
    kernel.put("cgroup/a.slice/cpu.max.burst", "1000\n");
    kernel.put("proc/stat", "cpu  1 1 1 1 1 1 1\ncpu0 1\n");
    let guardian = guardian(&folder);
    let mut quota = QuotaEnforcer::new(&kernel.roots, "a.slice".as_ref(), QuotaBurst::default(), &guardian)
        .expect("it is there");
    assert_eq!(kernel.get("cgroup/a.slice/cpu.max"), "80000 50000", "nothing is limited yet");
    quota.apply(example()).expect("it can be written");
    assert_eq!(kernel.get("cgroup/a.slice/cpu.max"), "26700 100000");
    assert_eq!(kernel.get("cgroup/a.slice/cpu.max.burst"), "26700");
    // Another core, another quota.
    kernel.put("proc/stat", "cpu  1 1 1 1 1 1 1\ncpu0 1\ncpu1 1\ncpu2 1\ncpu3 1\n");
    quota.apply(Rate::from_billionths(27_750_000_000)).expect("it can be written");
    assert_eq!(kernel.get("cgroup/a.slice/cpu.max"), "111000 100000");
    for _ in 0..2 {
        quota.restore().expect("it can be written");
        assert_eq!(kernel.get("cgroup/a.slice/cpu.max"), "80000 50000");
        assert_eq!(kernel.get("cgroup/a.slice/cpu.max.burst"), "1000");
        assert_eq!(guardian.pending_undos(), []);
    }
}

#[test]
fn bursts_can_be_turned_off_and_may_be_missing() {
    let (kernel, folder) = (Kernel::two(), Folder::new());
    kernel.cgroup_two("a");
    kernel.put("cgroup/a/cpu.max.burst", "500\n");
    let guardian = guardian(&folder);
    let mut quota =
        QuotaEnforcer::new(&kernel.roots, "a".as_ref(), QuotaBurst::NONE, &guardian).expect("it is there");
    quota.apply(example()).expect("it can be written");
    assert_eq!(kernel.get("cgroup/a/cpu.max.burst"), "0");
    drop(quota);
    assert_eq!(kernel.get("cgroup/a/cpu.max.burst"), "500", "dropping it restores too");
    fs::remove_file(kernel.path("cgroup/a/cpu.max.burst")).expect("it was there");
    let mut quota = QuotaEnforcer::new(&kernel.roots, "a".as_ref(), QuotaBurst::default(), &guardian)
        .expect("it is there");
    quota.apply(example()).expect("it can be written");
    assert_eq!(kernel.get("cgroup/a/cpu.max"), "53400 100000");
    assert!(!kernel.path("cgroup/a/cpu.max.burst").exists(), "files of the kernel are not made");
}

#[test]
fn version_one_has_a_quota_and_a_period() {
    for (limits, counts) in [("cpu", "cpuacct"), ("cpu,cpuacct", "cpu,cpuacct")] {
        let (kernel, folder) = (Kernel::one(limits, counts), Folder::new());
        kernel.put(&format!("cgroup/{counts}/a/cgroup.procs"), "");
        for (file, content) in
            [("cgroup.procs", ""), ("cpu.cfs_quota_us", "-1\n"), ("cpu.cfs_period_us", "250000\n")]
        {
            kernel.put(&format!("cgroup/{limits}/a/{file}"), content);
        }
        let read = |file: &str| kernel.get(&format!("cgroup/{limits}/a/{file}"));
        let mut quota =
            QuotaEnforcer::new(&kernel.roots, "/a".as_ref(), QuotaBurst::default(), &guardian(&folder))
                .expect("it is there");
        quota.apply(example()).expect("it can be written");
        assert_eq!((read("cpu.cfs_quota_us"), read("cpu.cfs_period_us")), ("53400".into(), "100000".into()));
        quota.restore().expect("it can be written");
        assert_eq!((read("cpu.cfs_quota_us"), read("cpu.cfs_period_us")), ("-1".into(), "250000".into()));
    }
}

#[test]
fn how_to_undo_it_is_known_before_it_is_done() {
    let (kernel, folder) = (Kernel::two(), Folder::new());
    kernel.cgroup_two("a");
    let guardian = guardian(&folder);
    let mut quota = QuotaEnforcer::new(&kernel.roots, "a".as_ref(), QuotaBurst::default(), &guardian)
        .expect("it is there");
    assert_eq!(guardian.pending_undos(), []);
    // The limit cannot be written any more: what is noted stays, and what was not changed is not.
    fs::remove_file(kernel.path("cgroup/a/cpu.max")).expect("it was there");
    fs::create_dir(kernel.path("cgroup/a/cpu.max")).expect("there is room");
    quota.apply(example()).expect_err("a directory takes no limit");
    fs::remove_dir(kernel.path("cgroup/a/cpu.max")).expect("it was there");
    kernel.put("cgroup/a/cpu.max", "max 100000\n");
    quota.apply(example()).expect("it can be written");
    let write =
        |file: &str, content: &str| Undo::Write { file: kernel.path(file), content: content.to_owned() };
    let expected = [
        write("cgroup/a/cpu.max.burst", "0"),
        write("cgroup/a/cpu.max", "max 100000"),
        write("cgroup/a/cpu.max.burst", "0"),
    ];
    assert_eq!(guardian.pending_undos(), expected);
}

#[test]
fn what_cannot_be_limited_is_told_before_anything_is_changed() {
    let (kernel, folder) = (Kernel::two(), Folder::new());
    kernel.put("cgroup/plain/cgroup.procs", "");
    kernel.put("cgroup/cgroup.subtree_control", "memory\n");
    kernel.put("cgroup/cgroup.controllers", "memory\n");
    let guardian = guardian(&folder);
    let error = |path: &str| {
        QuotaEnforcer::new(&kernel.roots, path.as_ref(), QuotaBurst::default(), &guardian)
            .expect_err("it cannot be limited")
    };
    assert!(matches!(error("missing"), EnforceError::Cgroup(CgroupError::Missing { .. })));
    assert!(matches!(error("plain"), EnforceError::Cgroup(CgroupError::NoController { .. })));
    assert!(!error("plain").is_permission_error());
    assert_eq!(guardian.pending_undos(), []);
    assert_eq!(kernel.get("cgroup/cgroup.subtree_control"), "memory");
}

#[test]
fn nobody_limits_itself_or_the_first_process() {
    let (kernel, folder) = (Kernel::two(), Folder::new());
    let guardian = guardian(&folder);
    for (path, who) in [
        ("/", "the governor itself"),
        ("governor", "the governor itself"),
        ("init.scope", "the first process of the machine"),
    ] {
        let error = QuotaEnforcer::new(&kernel.roots, path.as_ref(), QuotaBurst::default(), &guardian)
            .expect_err("it is protected");
        assert!(
            matches!(&error, EnforceError::Protected { process: found, .. } if *found == who),
            "{path}: {error}"
        );
    }
    // A name that only begins alike is another cgroup.
    kernel.cgroup_two("govern");
    assert!(QuotaEnforcer::new(&kernel.roots, "govern".as_ref(), QuotaBurst::default(), &guardian).is_ok());
}

#[test]
fn the_controller_is_enabled_where_it_is_not_and_disabled_again() {
    let (kernel, folder) = (Kernel::two(), Folder::new());
    kernel.put("cgroup/cgroup.subtree_control", "memory\n");
    // The files of a child are there as soon as the controller is; here, from the beginning.
    kernel.cgroup_two(&format!("tidegate-{}", std::process::id()));
    let troop = Troop::run("exec sleep 1000");
    kernel.process(troop.pid(), "sleep", std::process::id(), 9, "/user.slice/a");
    kernel.cgroup_two("user.slice/a");
    let ours = format!("cgroup/tidegate-{}", std::process::id());
    let guardian = guardian(&folder);
    let mut enclosure =
        CgroupScope::new(&kernel.roots, troop.pid(), QuotaBurst::NONE, &guardian).expect("it can be made");
    assert_eq!(kernel.get("cgroup/cgroup.subtree_control"), "+cpu");
    assert_eq!(kernel.get(&format!("{ours}/cgroup.procs")), troop.pid().to_string());
    enclosure.apply(example()).expect("it can be written");
    assert_eq!(kernel.get(&format!("{ours}/cpu.max")), "53400 100000");
    // A directory cannot be removed as a cgroup is, with files in it. All else is undone.
    enclosure.restore().expect_err("it is not a cgroup");
    assert_eq!(kernel.get("cgroup/user.slice/a/cgroup.procs"), troop.pid().to_string());
    assert_eq!(kernel.get("cgroup/cgroup.subtree_control"), "-cpu");
    assert_eq!(guardian.pending_undos().len(), 1, "what is left is noted");
}

/// Everybody is busy; the kernel lets them have the limit and no more.
#[test]
fn a_real_cgroup_keeps_to_its_quota() {
    let Some((roots, hierarchy)) = real_cgroups() else { return };
    let folder = Folder::new();
    let busy = cores().min(2);
    let cgroup = RealCgroup::new(&hierarchy, "quota");
    let before = cgroup.limit();
    let troop = Troop::busy(busy);
    cgroup.take(&troop);
    let guardian = guardian(&folder);
    let mut quota = QuotaEnforcer::new(&roots, cgroup.name.as_ref(), QuotaBurst::default(), &guardian)
        .expect("it is there");
    quota.apply(percent_of(busy, 20)).expect("it can be written");
    let mut meter = CgroupMeter::new(&roots, cgroup.name.as_ref()).expect("it is there");
    let (began, first) = (now(), meter.read().expect("it can be read"));
    pass(Duration::from_secs(3));
    let used = meter.read().expect("it can be read").since(&first).expect("it is the same cgroup");
    let used = percent(used, began.elapsed(), busy);
    assert!((1..=25).contains(&used), "{used} % instead of 20 %");
    // Smaller, larger, and as small as it can be: the kernel takes each.
    for limit in [Rate::from_units(1), Rate::from_units(90), Rate::ZERO, Rate::from_units(100)] {
        quota.apply(limit).expect("the kernel takes it");
        assert_ne!(cgroup.limit(), before);
    }
    quota.restore().expect("it can be written");
    assert_eq!(cgroup.limit(), before);
}

#[test]
fn a_real_enclosure_holds_the_whole_tree_and_lets_it_go() {
    let Some((roots, hierarchy)) = real_cgroups() else { return };
    let folder = Folder::new();
    let home = RealCgroup::new(&hierarchy, "home");
    let troop = Troop::run("( while :; do :; done ) & while :; do ( : ); done");
    eventually("both are there", || troop.members().len() >= 2);
    home.take(&troop);
    let guardian = guardian(&folder);
    let mut enclosure =
        CgroupScope::new(&roots, troop.pid(), QuotaBurst::default(), &guardian).expect("it can be made");
    let ours = enclosure.path().to_owned();
    let all_in = |folder: &std::path::Path| {
        let pids = fs::read_to_string(folder.join("cgroup.procs")).expect("it can be read");
        let living = troop.members();
        living.iter().all(|stat| {
            stat.state == ProcessState::Ended || pids.lines().any(|pid| pid == stat.process.pid.to_string())
        })
    };
    eventually("everybody is in", || all_in(&ours));
    let mut meter = CgroupMeter::new(&roots, &ours).expect("it is there");
    let busy = cores().min(2);
    enclosure.apply(percent_of(busy, 20)).expect("it can be written");
    let (began, first) = (now(), meter.read().expect("it can be read"));
    pass(Duration::from_secs(2));
    let used = meter.read().expect("it can be read").since(&first).expect("it is the same cgroup");
    let used = percent(used, began.elapsed(), busy);
    assert!((1..=26).contains(&used), "{used} % instead of 20 %");
    enclosure.restore().expect("everybody can go");
    assert!(!ours.exists(), "it is removed");
    for folder in home.folders() {
        eventually("everybody is back", || all_in(&folder));
    }
    assert_eq!(guardian.pending_undos(), []);
    // And in again.
    enclosure.apply(percent_of(busy, 20)).expect("it can be made again");
    eventually("everybody is in", || all_in(&ours));
    drop(enclosure);
    assert!(!ours.exists(), "dropping it restores too");
}

#[test]
fn what_holds_the_governor_is_not_limited_on_this_machine() {
    let folder = Folder::new();
    let guardian = guardian(&folder);
    for pid in [1, std::process::id()] {
        let error = CgroupScope::new(&FilesystemRoots::default(), pid, QuotaBurst::default(), &guardian)
            .expect_err("it is protected");
        let is_expected = matches!(error, EnforceError::Protected { .. } | EnforceError::Cgroup(_));
        assert!(is_expected, "{error}");
    }
    assert_eq!(guardian.pending_undos(), []);
}

/// A cgroup that people log in with is refused wherever it holds them, by either name of their program; so is one that cannot be looked into.
#[test]
fn nobody_limits_what_people_log_in_with() {
    let (kernel, folder) = (Kernel::two(), Folder::new());
    let guardian = guardian(&folder);
    kernel.process(1000, "sshd", 1, 3, "/a/b");
    kernel.process(1001, "renamed", 1, 3, "/c");
    std::os::unix::fs::symlink("/usr/lib/systemd/systemd-logind (deleted)", kernel.path("proc/1001/exe"))
        .expect("there is room");
    kernel.process(1002, "web", 1, 3, "/d");
    // Who is seen in a cgroup and nowhere else is hidden, and the first process is who it is without being looked at.
    for (name, pids) in [
        ("a", ""),
        ("a/b", "1000\n"),
        ("c", "1001\n"),
        ("d", "1002\n"),
        ("hidden", "1002\n1003\n"),
        ("first", "1\n"),
        ("elsewhere", "0\n"),
    ] {
        kernel.cgroup_two(name);
        kernel.put(&format!("cgroup/{name}/cgroup.procs"), pids);
    }
    for (path, who) in [
        ("a", "process 1000 (sshd)"),
        ("a/b", "process 1000 (sshd)"),
        ("c", "process 1001 (systemd-logind)"),
        ("hidden", "process 1003, which cannot be read"),
        ("first", "the first process"),
        ("elsewhere", "outside"),
    ] {
        let limited = QuotaEnforcer::new(&kernel.roots, path.as_ref(), QuotaBurst::default(), &guardian);
        let error = limited.expect_err("it is protected");
        assert!(matches!(error, EnforceError::Protected { .. }), "{path}: {error}");
        assert!(error.to_string().contains(who), "{path}: {error}");
    }
    assert!(QuotaEnforcer::new(&kernel.roots, "d".as_ref(), QuotaBurst::default(), &guardian).is_ok());
    assert_eq!(guardian.pending_undos(), []);
}

/// The shell that the governor was started from may be elsewhere than the governor.
#[test]
fn nobody_limits_who_started_the_governor() {
    let (kernel, folder) = (Kernel::two(), Folder::new());
    let guardian = guardian(&folder);
    kernel.process(900, "bash", 1, 2, "/shell");
    kernel.process(std::process::id(), "tidegate", 900, 3, "/governor");
    kernel.cgroup_two("shell");
    let error = QuotaEnforcer::new(&kernel.roots, "shell".as_ref(), QuotaBurst::default(), &guardian);
    let error = error.expect_err("it is protected").to_string();
    assert!(error.contains("process 900, an ancestor of the governor"), "{error}");
}

/// Somebody without rights is told that it is only this, so that a governor can go on watching.
#[test]
fn without_rights_it_is_said_so() {
    let Some((_, hierarchy)) = real_cgroups() else { return };
    let cgroup = RealCgroup::new(&hierarchy, "rights");
    let folder = Folder::new();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("it is ours");
    let nobody = |command: &mut Command| {
        command.uid(NOBODY).gid(NOBODY);
    };
    let Some(child) = start_as("limiting", folder.path(), &cgroup.name, nobody) else { return };
    let output = child.wait_with_output();
    let said = String::from_utf8(output.expect("it ends").stdout).expect("it is text");
    assert!(said.contains("for want of rights: true"), "{said}");
}

/// What the process of the test above does.
#[test]
fn as_limiting() {
    let Some(role) = role("limiting") else { return };
    let guardian = CpuWatchdog::journal_only(&role.folder).expect("anybody may write there");
    let quota = QuotaEnforcer::new(
        &FilesystemRoots::default(),
        role.target.as_ref(),
        QuotaBurst::default(),
        &guardian,
    );
    println!("for want of rights: {}", quota.is_err_and(|error| error.is_permission_error()));
}
