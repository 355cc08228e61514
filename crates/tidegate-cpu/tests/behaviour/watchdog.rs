//! The watchdog: restoring processes and cgroups after the end of a governor.
//!
//! The governor and the watchdog of these tests are child processes of this test program. Environment variables select their role.
//! Without these variables the tests `child_process_…` do nothing.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use tidegate_core::budget::Rate;
use tidegate_cpu::cgroups::FilesystemRoots;
use tidegate_cpu::enforcer::{CgroupScope, Enforcer, QuotaBurst, QuotaEnforcer, SignalEnforcer};
use tidegate_cpu::processes::ProcessState;
use tidegate_cpu::watchdog::{CpuWatchdog, Undo, restore_left_behind, watch};
use tidegate_testkit::skip;

use crate::fixture::{ProcessGroup, RealCgroup, TempFolder, real_cgroups, real_proc, wait_until};

const ROLE: &str = "TIDEGATE_CPU_TEST_ROLE";
const FOLDER: &str = "TIDEGATE_CPU_TEST_FOLDER";
const TARGET: &str = "TIDEGATE_CPU_TEST_TARGET";
/// The maximum memory of a watchdog in KiB.
const MAX_WATCHDOG_KIB: u64 = 4096;

/// The role of a child process.
pub(crate) struct ChildRole {
    pub(crate) folder: PathBuf,
    pub(crate) target: String,
}

/// The role of this process, if it has this name.
#[expect(clippy::disallowed_methods, reason = "the environment selects the role of a child process")]
pub(crate) fn child_role(name: &str) -> Option<ChildRole> {
    if std::env::var(ROLE).ok()? != name {
        return None;
    }
    Some(ChildRole { folder: std::env::var_os(FOLDER)?.into(), target: std::env::var(TARGET).ok()? })
}

/// Starts this test program in a role. Records a skipped test and returns `None` if the user cannot start it.
pub(crate) fn start_child(
    name: &str,
    folder: &Path,
    target: &str,
    change: impl Fn(&mut Command),
) -> Option<Child> {
    let test = match name {
        "limiting" => "enforcer::quotas::child_process_applies_quota",
        _ => "watchdog::child_process_runs_governor",
    };
    let mut command = Command::new(std::env::current_exe().expect("it runs"));
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
    command.env(ROLE, name).env(FOLDER, folder).env(TARGET, target);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    change(&mut command);
    match command.spawn() {
        Ok(child) => Some(child),
        Err(error) => {
            skip(&format!("the unprivileged user cannot start this program: {error}"));
            None
        }
    }
}

/// Starts a governor and waits until its limits are in force. Returns the rest of its line `ready`.
fn start_governor(name: &str, folder: &Path, target: &str) -> (Child, String) {
    let mut child = start_child(name, folder, target, |_| ()).expect("this user has started it before");
    let stdout = BufReader::new(child.stdout.take().expect("it is a pipe"));
    let mut lines = stdout.lines().map_while(Result::ok);
    let ready = lines.find_map(|line| line.split_once("ready ").map(|(_, rest)| rest.to_owned()));
    (child, ready.expect("it becomes ready"))
}

/// Kills it like the out-of-memory killer.
fn kill(mut child: Child) {
    child.kill().expect("it is ours");
    child.wait().expect("it has ended");
}

/// The child process that runs the governor.
#[test]
fn child_process_runs_governor() {
    let watched = child_role("watched-signals").map(|role| (role, "signals"));
    let watched = watched.or_else(|| child_role("watched-quota").map(|role| (role, "quota")));
    let watched = watched.or_else(|| child_role("watched-scope").map(|role| (role, "scope")));
    let alone = child_role("alone-signals").map(|role| (role, "signals"));
    let alone = alone.or_else(|| child_role("alone-quota").map(|role| (role, "quota")));
    let (watchdog, role, by) = match (watched, alone) {
        (Some((role, by)), _) => (spawn_watchdog(&role.folder), role, by),
        (None, Some((role, by))) => {
            (CpuWatchdog::journal_only(&role.folder).expect("it can be written"), role, by)
        }
        (None, None) => return,
    };
    let roots = FilesystemRoots::default();
    let pid = || role.target.parse().expect("it is a number");
    let mut enforcer: Box<dyn Enforcer> = match by {
        "signals" => Box::new(SignalEnforcer::new(&roots, pid(), &watchdog).expect("it is ours")),
        "quota" => Box::new(
            QuotaEnforcer::new(&roots, role.target.as_ref(), QuotaBurst::default(), &watchdog)
                .expect("it is there"),
        ),
        _ => Box::new(
            CgroupScope::new(&roots, pid(), QuotaBurst::default(), &watchdog).expect("it can be made"),
        ),
    };
    let limit = if by == "signals" { Rate::ZERO } else { Rate::from_units(10) };
    enforcer.apply(limit).expect("it can be limited");
    println!("ready {}", watchdog.process_id().unwrap_or_default());
    std::io::stdout().flush().expect("the parent reads it");
    loop {
        thread::park();
    }
}

/// Starts this test program as the watchdog.
fn spawn_watchdog(folder: &Path) -> CpuWatchdog {
    let program = std::env::current_exe().expect("it runs");
    let args = ["watchdog::child_process_runs_watchdog", "--exact", "--nocapture", "--test-threads=1"];
    let args: Vec<&OsStr> = args.iter().map(OsStr::new).collect();
    CpuWatchdog::spawn(folder, &program, &args).expect("it can be started")
}

/// The child process that runs the watchdog.
#[test]
fn child_process_runs_watchdog() {
    let is_requested = ["watched-signals", "watched-quota", "watched-scope"]
        .into_iter()
        .any(|name| child_role(name).is_some());
    if is_requested {
        let restored = watch(std::io::stdin());
        assert!(restored.failed.is_empty());
    }
}

#[test]
fn killed_governor_leaves_no_stopped_process() {
    let (folder, group) = (TempFolder::new(), ProcessGroup::spawn_busy(2));
    let (child, _) = start_governor("watched-signals", folder.path(), &group.pid().to_string());
    wait_until("both are stopped", || group.stopped_count() == 2);
    kill(child);
    wait_until("both go on", || group.stopped_count() == 0);
    wait_until("nothing is left to do", || !folder.path().join("undo").exists());
}

#[test]
fn killed_governor_leaves_no_limit() {
    let Some((_, hierarchy)) = real_cgroups() else { return };
    let (folder, cgroup) = (TempFolder::new(), RealCgroup::new(&hierarchy, "killed"));
    let before = cgroup.read_limit_files();
    let (child, _) = start_governor("watched-quota", folder.path(), &cgroup.name);
    assert_ne!(cgroup.read_limit_files(), before);
    kill(child);
    wait_until("it is as before", || cgroup.read_limit_files() == before);
}

#[test]
fn killed_governor_leaves_no_cgroup() {
    let Some((_, hierarchy)) = real_cgroups() else { return };
    let (folder, group) = (TempFolder::new(), ProcessGroup::spawn_busy(2));
    let home = RealCgroup::new(&hierarchy, "left");
    home.add_group(&group);
    let (child, _) = start_governor("watched-scope", folder.path(), &group.pid().to_string());
    let ours = hierarchy.limits.join(format!("tidegate-{}", child.id()));
    assert!(ours.exists());
    kill(child);
    wait_until("it is removed", || {
        !ours.exists() && !hierarchy.counts.join(ours.file_name().expect("a name")).exists()
    });
    let at_home = fs::read_to_string(home.limit_folder().join("cgroup.procs")).expect("it can be read");
    assert_eq!(at_home.lines().count(), 2);
}

#[test]
fn next_start_without_watchdog_continues_processes() {
    let (folder, group) = (TempFolder::new(), ProcessGroup::spawn_busy(2));
    let (child, _) = start_governor("alone-signals", folder.path(), &group.pid().to_string());
    wait_until("both are stopped", || group.stopped_count() == 2);
    kill(child);
    assert_eq!(group.stopped_count(), 2, "no watchdog continues them");
    let restored = restore_left_behind(folder.path()).expect("it can be read");
    assert_eq!((restored.undone.len(), restored.failed.len()), (2, 0));
    wait_until("both go on", || group.stopped_count() == 0);
    // A second call restores nothing.
    group.signal(Signal::STOP);
    wait_until("one is stopped", || group.stopped_count() == 1);
    assert!(restore_left_behind(folder.path()).expect("there is nothing to read").undone.is_empty());
    assert_eq!(group.stopped_count(), 1);
}

#[test]
fn next_start_without_watchdog_removes_limit() {
    let Some((_, hierarchy)) = real_cgroups() else { return };
    let (folder, cgroup) = (TempFolder::new(), RealCgroup::new(&hierarchy, "next"));
    let before = cgroup.read_limit_files();
    let (child, _) = start_governor("alone-quota", folder.path(), &cgroup.name);
    kill(child);
    assert_ne!(cgroup.read_limit_files(), before);
    let restored = restore_left_behind(folder.path()).expect("it can be read");
    assert!(restored.failed.is_empty(), "{:?}", restored.failed);
    assert_eq!(cgroup.read_limit_files(), before);
}

#[test]
fn watchdog_is_small_and_ignores_termination_signals() {
    let (folder, group) = (TempFolder::new(), ProcessGroup::spawn_busy(1));
    let (child, watchdog) = start_governor("watched-signals", folder.path(), &group.pid().to_string());
    let watchdog: u32 = watchdog.trim().parse().expect("the line contains the process id");
    let raw = i32::try_from(watchdog).ok().and_then(Pid::from_raw).expect("it is a number");
    // Read from `/proc`: the leader of the previous session may be outside this PID namespace and have no PID here.
    wait_until("it has a session of its own", || {
        real_proc().stat(watchdog).expect("it can be read").is_some_and(|stat| stat.session == watchdog)
    });
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        kill_process(raw, signal).expect("it is ours");
    }
    let status = fs::read_to_string(format!("/proc/{watchdog}/status")).expect("it is there");
    let own = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("the kernel reports it");
    let own: u64 = own.trim().trim_end_matches(" kB").parse().expect("it is a number");
    assert!(own < MAX_WATCHDOG_KIB, "{own} KiB");
    kill(child);
    wait_until("it goes on", || group.stopped_count() == 0);
    wait_until("the watchdog ends", || {
        real_proc()
            .stat(watchdog)
            .expect("it can be read")
            .is_none_or(|stat| stat.state == ProcessState::Ended)
    });
}

#[test]
fn finish_removes_undo_file() {
    let (folder, group) = (TempFolder::new(), ProcessGroup::spawn_busy(1));
    let watchdog = CpuWatchdog::spawn(folder.path(), Path::new("/bin/cat"), &[]).expect("it can be started");
    assert!(watchdog.is_watched());
    let mut signals =
        SignalEnforcer::new(&FilesystemRoots::default(), group.pid(), &watchdog).expect("it is ours");
    signals.apply(Rate::ZERO).expect("it is ours");
    wait_until("it is stopped", || group.stopped_count() == 1);
    signals.restore().expect("it can go on");
    assert_eq!(group.stopped_count(), 0);
    drop(signals);
    watchdog.finish().expect("it can be removed");
    assert_eq!(fs::read_dir(folder.path()).expect("it is there").count(), 0);
}

#[test]
fn is_watched_after_end_of_watchdog_returns_false() {
    let folder = TempFolder::new();
    let watchdog = CpuWatchdog::spawn(folder.path(), Path::new("/bin/true"), &[]).expect("it can be started");
    wait_until("it is noticed", || !watchdog.is_watched());
}

/// Writes an undo file like a killed governor.
fn write_undo_file(folder: &TempFolder, undos: &[Undo]) -> PathBuf {
    // Dropping the watchdog without `finish` keeps the file.
    let file = folder.path().join("undo");
    let watchdog = CpuWatchdog::journal_only(folder.path()).expect("it can be written");
    watchdog.register(undos).expect("it can be written");
    drop(watchdog);
    assert!(file.exists());
    file
}

#[test]
fn restore_skips_reused_pid() {
    let (folder, group) = (TempFolder::new(), ProcessGroup::spawn_busy(1));
    group.signal(Signal::STOP);
    wait_until("it is stopped", || group.stopped_count() == 1);
    let mut process = group.members()[0].process;
    process.started += 1;
    write_undo_file(&folder, &[Undo::Continue { process }]);
    assert!(restore_left_behind(folder.path()).expect("it can be read").failed.is_empty());
    assert_eq!(group.stopped_count(), 1, "another process stopped it");
    process.started -= 1;
    write_undo_file(&folder, &[Undo::Continue { process }]);
    assert!(restore_left_behind(folder.path()).expect("it can be read").failed.is_empty());
    wait_until("it goes on", || group.stopped_count() == 0);
}

#[test]
fn restore_skips_undos_of_previous_boot() {
    let folder = TempFolder::new();
    let file = folder.path().join("limit");
    fs::write(&file, "now").expect("there is room");
    let undo = Undo::Write { file: file.clone(), content: "before".to_owned() };
    let undo_file = write_undo_file(&folder, std::slice::from_ref(&undo));
    let lines = fs::read_to_string(&undo_file).expect("it can be read");
    // Remove the line with the boot id.
    let (_, rest) = lines.split_once('\n').expect("there are two lines");
    fs::write(&undo_file, rest).expect("there is room");
    assert!(restore_left_behind(folder.path()).expect("it can be read").undone.is_empty());
    assert_eq!(fs::read_to_string(&file).expect("it is there"), "now");
    write_undo_file(&folder, &[undo]);
    assert_eq!(restore_left_behind(folder.path()).expect("it can be read").undone.len(), 1);
    assert_eq!(fs::read_to_string(&file).expect("it is there"), "before");
}

#[test]
fn restore_skips_truncated_line() {
    let folder = TempFolder::new();
    let files: Vec<PathBuf> = ["a", "b"].iter().map(|name| folder.path().join(name)).collect();
    let undo = |file: &PathBuf| Undo::Write { file: file.clone(), content: "before".to_owned() };
    let undos: Vec<Undo> = files.iter().map(undo).collect();
    let undo_file = write_undo_file(&folder, &undos);
    let lines = fs::read_to_string(&undo_file).expect("it can be read");
    for file in &files {
        fs::write(file, "now").expect("there is room");
    }
    fs::write(&undo_file, &lines[..lines.len() - 3]).expect("there is room");
    assert_eq!(restore_left_behind(folder.path()).expect("it can be read").undone, undos[..1]);
    let texts: Vec<String> =
        files.iter().map(|file| fs::read_to_string(file).expect("it is there")).collect();
    assert_eq!(texts, ["before", "now"]);
}

#[test]
fn failed_undo_is_retried() {
    let folder = TempFolder::new();
    let (good, bad) = (folder.path().join("good"), folder.path().join("bad"));
    fs::write(&good, "now").expect("there is room");
    fs::create_dir(&bad).expect("there is room");
    let undo = |file: &PathBuf| Undo::Write { file: file.clone(), content: "before".to_owned() };
    write_undo_file(&folder, &[undo(&bad), undo(&good)]);
    let restored = restore_left_behind(folder.path()).expect("it can be read");
    assert_eq!((restored.undone.len(), restored.failed.len()), (1, 1));
    fs::remove_dir(&bad).expect("it is empty");
    fs::write(&bad, "now").expect("there is room");
    assert_eq!(restore_left_behind(folder.path()).expect("it can be read").undone, [undo(&bad)]);
    assert_eq!(fs::read_to_string(&bad).expect("it is there"), "before");
}

#[test]
fn unwritable_directory_returns_error() {
    let folder = TempFolder::new();
    let missing = folder.path().join("missing");
    let error = CpuWatchdog::journal_only(&missing).expect_err("it is not there");
    assert!(error.to_string().contains("missing/undo"), "{error}");
    assert!(restore_left_behind(&missing).expect("nothing to do is fine").undone.is_empty());
}

#[test]
fn undo_file_stays_short_after_many_releases() {
    let folder = TempFolder::new();
    let watchdog = CpuWatchdog::journal_only(folder.path()).expect("it can be written");
    let process = real_proc().stat(std::process::id()).expect("it can be read").expect("it is there").process;
    let kept = watchdog
        .register(&[Undo::Write { file: "/none".into(), content: "kept".to_owned() }])
        .expect("there is room");
    for _ in 0..10_000 {
        let numbers = watchdog.register(&[Undo::Continue { process }]).expect("there is room");
        watchdog.release(&numbers).expect("there is room");
    }
    let length = fs::metadata(folder.path().join("undo")).expect("it is there").len();
    assert!(length < 1 << 18, "{length} bytes");
    assert_eq!(watchdog.pending_undos().len(), kept.len());
}
