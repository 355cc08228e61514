//! What is left behind, and what is not.
//!
//! The governor that is killed here is this very program, as another process: it is told by the environment to be one, and so is its
//! watchdog. Without such an order the tests called `as_…` do nothing.

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

use crate::fixture::{Folder, RealCgroup, Troop, eventually, passed_over, real_cgroups, real_proc};

const ROLE: &str = "TIDEGATE_CPU_TEST_ROLE";
const FOLDER: &str = "TIDEGATE_CPU_TEST_FOLDER";
const TARGET: &str = "TIDEGATE_CPU_TEST_TARGET";
/// What a watchdog may take for itself, in KiB.
const MOST_MEMORY: u64 = 4096;

/// What this process is, if it is not the one with the tests.
pub(crate) struct Role {
    pub(crate) folder: PathBuf,
    pub(crate) target: String,
}

/// The role of this name, if this process has it.
#[expect(clippy::disallowed_methods, reason = "the environment says who this process is")]
pub(crate) fn role(name: &str) -> Option<Role> {
    if std::env::var(ROLE).ok()? != name {
        return None;
    }
    Some(Role { folder: std::env::var_os(FOLDER)?.into(), target: std::env::var(TARGET).ok()? })
}

/// Starts this program in a role: the test called `as_` and its name. `None` if that user may not start it.
pub(crate) fn start_as(
    name: &str,
    folder: &Path,
    target: &str,
    change: impl Fn(&mut Command),
) -> Option<Child> {
    let place = match name {
        "limiting" => "enforcer::quotas::as_limiting",
        _ => "watchdog::as_governor",
    };
    let mut command = Command::new(std::env::current_exe().expect("it runs"));
    command.args([place, "--exact", "--nocapture", "--test-threads=1"]);
    command.env(ROLE, name).env(FOLDER, folder).env(TARGET, target);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    change(&mut command);
    match command.spawn() {
        Ok(child) => Some(child),
        Err(error) => {
            passed_over(&format!("that user cannot start this program: {error}"));
            None
        }
    }
}

/// A governor that has put its limits in force, and the last word of what it said.
fn governor(name: &str, folder: &Path, target: &str) -> (Child, String) {
    let mut child = start_as(name, folder, target, |_| ()).expect("this user has started it before");
    let said = BufReader::new(child.stdout.take().expect("it is a pipe"));
    let mut lines = said.lines().map_while(Result::ok);
    let ready = lines.find_map(|line| line.split_once("ready ").map(|(_, rest)| rest.to_owned()));
    (child, ready.expect("it becomes ready"))
}

/// Ends it as the kernel would for want of memory.
fn kill(mut child: Child) {
    child.kill().expect("it is ours");
    child.wait().expect("it has ended");
}

/// What the process that is killed does.
#[test]
fn as_governor() {
    let watched = role("watched-signals").map(|role| (role, "signals"));
    let watched = watched.or_else(|| role("watched-quota").map(|role| (role, "quota")));
    let watched = watched.or_else(|| role("watched-enclosure").map(|role| (role, "enclosure")));
    let alone = role("alone-signals").map(|role| (role, "signals"));
    let alone = alone.or_else(|| role("alone-quota").map(|role| (role, "quota")));
    let (guardian, role, by) = match (watched, alone) {
        (Some((role, by)), _) => (watched_guardian(&role.folder), role, by),
        (None, Some((role, by))) => {
            (CpuWatchdog::journal_only(&role.folder).expect("it can be written"), role, by)
        }
        (None, None) => return,
    };
    let roots = FilesystemRoots::default();
    let pid = || role.target.parse().expect("it is a number");
    let mut enforcer: Box<dyn Enforcer> = match by {
        "signals" => Box::new(SignalEnforcer::new(&roots, pid(), &guardian).expect("it is ours")),
        "quota" => Box::new(
            QuotaEnforcer::new(&roots, role.target.as_ref(), QuotaBurst::default(), &guardian)
                .expect("it is there"),
        ),
        _ => Box::new(
            CgroupScope::new(&roots, pid(), QuotaBurst::default(), &guardian).expect("it can be made"),
        ),
    };
    let limit = if by == "signals" { Rate::ZERO } else { Rate::from_units(10) };
    enforcer.apply(limit).expect("it can be limited");
    println!("ready {}", guardian.process_id().unwrap_or_default());
    std::io::stdout().flush().expect("somebody reads it");
    loop {
        thread::park();
    }
}

/// This program is the watchdog too.
fn watched_guardian(folder: &Path) -> CpuWatchdog {
    let program = std::env::current_exe().expect("it runs");
    let args = ["watchdog::as_watchdog", "--exact", "--nocapture", "--test-threads=1"];
    let args: Vec<&OsStr> = args.iter().map(OsStr::new).collect();
    CpuWatchdog::spawn(folder, &program, &args).expect("it can be started")
}

/// What the watchdog does. Those who only run the tests have not asked for one.
#[test]
fn as_watchdog() {
    let is_asked = ["watched-signals", "watched-quota", "watched-enclosure"]
        .into_iter()
        .any(|name| role(name).is_some());
    if is_asked {
        let restored = watch(std::io::stdin());
        assert!(restored.failed.is_empty());
    }
}

#[test]
fn a_killed_governor_leaves_nobody_stopped() {
    let (folder, troop) = (Folder::new(), Troop::busy(2));
    let (child, _) = governor("watched-signals", folder.path(), &troop.pid().to_string());
    eventually("both are stopped", || troop.stopped() == 2);
    kill(child);
    eventually("both go on", || troop.stopped() == 0);
    eventually("nothing is left to do", || !folder.path().join("undo").exists());
}

#[test]
fn a_killed_governor_leaves_no_limit() {
    let Some((_, hierarchy)) = real_cgroups() else { return };
    let (folder, cgroup) = (Folder::new(), RealCgroup::new(&hierarchy, "killed"));
    let before = cgroup.limit();
    let (child, _) = governor("watched-quota", folder.path(), &cgroup.name);
    assert_ne!(cgroup.limit(), before);
    kill(child);
    eventually("it is as before", || cgroup.limit() == before);
}

#[test]
fn a_killed_governor_leaves_no_cgroup() {
    let Some((_, hierarchy)) = real_cgroups() else { return };
    let (folder, troop) = (Folder::new(), Troop::busy(2));
    let home = RealCgroup::new(&hierarchy, "left");
    home.take(&troop);
    let (child, _) = governor("watched-enclosure", folder.path(), &troop.pid().to_string());
    let ours = hierarchy.limits.join(format!("tidegate-{}", child.id()));
    assert!(ours.exists());
    kill(child);
    eventually("it is removed", || {
        !ours.exists() && !hierarchy.counts.join(ours.file_name().expect("a name")).exists()
    });
    let at_home = fs::read_to_string(home.limits().join("cgroup.procs")).expect("it can be read");
    assert_eq!(at_home.lines().count(), 2);
}

#[test]
fn without_a_watchdog_the_next_start_restores() {
    let (folder, troop) = (Folder::new(), Troop::busy(2));
    let (child, _) = governor("alone-signals", folder.path(), &troop.pid().to_string());
    eventually("both are stopped", || troop.stopped() == 2);
    kill(child);
    assert_eq!(troop.stopped(), 2, "nobody is there to continue them");
    let restored = restore_left_behind(folder.path()).expect("it can be read");
    assert_eq!((restored.undone.len(), restored.failed.len()), (2, 0));
    eventually("both go on", || troop.stopped() == 0);
    // Once is as good as twice.
    troop.signal(Signal::STOP);
    eventually("one is stopped", || troop.stopped() == 1);
    assert!(restore_left_behind(folder.path()).expect("there is nothing to read").undone.is_empty());
    assert_eq!(troop.stopped(), 1);
}

#[test]
fn without_a_watchdog_the_next_start_lifts_the_limit() {
    let Some((_, hierarchy)) = real_cgroups() else { return };
    let (folder, cgroup) = (Folder::new(), RealCgroup::new(&hierarchy, "next"));
    let before = cgroup.limit();
    let (child, _) = governor("alone-quota", folder.path(), &cgroup.name);
    kill(child);
    assert_ne!(cgroup.limit(), before);
    let restored = restore_left_behind(folder.path()).expect("it can be read");
    assert!(restored.failed.is_empty(), "{:?}", restored.failed);
    assert_eq!(cgroup.limit(), before);
}

#[test]
fn the_watchdog_is_small_and_is_not_ended_by_those_who_end_the_governor() {
    let (folder, troop) = (Folder::new(), Troop::busy(1));
    let (child, watchdog) = governor("watched-signals", folder.path(), &troop.pid().to_string());
    let watchdog: u32 = watchdog.trim().parse().expect("it says which one it is");
    let raw = i32::try_from(watchdog).ok().and_then(Pid::from_raw).expect("it is a number");
    // Read from `/proc`: the session before that may be led from outside of this namespace, and has no number here then.
    eventually("it has a session of its own", || {
        real_proc().stat(watchdog).expect("it can be read").is_some_and(|stat| stat.session == watchdog)
    });
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        kill_process(raw, signal).expect("it is ours");
    }
    let status = fs::read_to_string(format!("/proc/{watchdog}/status")).expect("it is there");
    let own = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("it is told");
    let own: u64 = own.trim().trim_end_matches(" kB").parse().expect("it is a number");
    assert!(own < MOST_MEMORY, "{own} KiB");
    kill(child);
    eventually("it goes on", || troop.stopped() == 0);
    eventually("the watchdog ends", || {
        real_proc()
            .stat(watchdog)
            .expect("it can be read")
            .is_none_or(|stat| stat.state == ProcessState::Ended)
    });
}

#[test]
fn a_clean_end_leaves_nothing() {
    let (folder, troop) = (Folder::new(), Troop::busy(1));
    let guardian = CpuWatchdog::spawn(folder.path(), Path::new("/bin/cat"), &[]).expect("it can be started");
    assert!(guardian.is_watched());
    let mut signals =
        SignalEnforcer::new(&FilesystemRoots::default(), troop.pid(), &guardian).expect("it is ours");
    signals.apply(Rate::ZERO).expect("it is ours");
    eventually("it is stopped", || troop.stopped() == 1);
    signals.restore().expect("it can go on");
    assert_eq!(troop.stopped(), 0);
    drop(signals);
    guardian.finish().expect("it can be removed");
    assert_eq!(fs::read_dir(folder.path()).expect("it is there").count(), 0);
}

#[test]
fn a_watchdog_that_is_gone_is_noticed() {
    let folder = Folder::new();
    let guardian = CpuWatchdog::spawn(folder.path(), Path::new("/bin/true"), &[]).expect("it can be started");
    eventually("it is noticed", || !guardian.is_watched());
}

/// A file as a governor leaves it, for these.
fn left_behind(folder: &Folder, undos: &[Undo]) -> PathBuf {
    // A guardian that is dropped without a word leaves its file; what it says is made by a troop that is stopped.
    let file = folder.path().join("undo");
    let guardian = CpuWatchdog::journal_only(folder.path()).expect("it can be written");
    guardian.register(undos).expect("it can be written");
    drop(guardian);
    assert!(file.exists());
    file
}

#[test]
fn a_number_that_was_given_again_is_not_hit() {
    let (folder, troop) = (Folder::new(), Troop::busy(1));
    troop.signal(Signal::STOP);
    eventually("it is stopped", || troop.stopped() == 1);
    let mut process = troop.members()[0].process;
    process.started += 1;
    left_behind(&folder, &[Undo::Continue { process }]);
    assert!(restore_left_behind(folder.path()).expect("it can be read").failed.is_empty());
    assert_eq!(troop.stopped(), 1, "somebody else had stopped it");
    process.started -= 1;
    left_behind(&folder, &[Undo::Continue { process }]);
    assert!(restore_left_behind(folder.path()).expect("it can be read").failed.is_empty());
    eventually("it goes on", || troop.stopped() == 0);
}

#[test]
fn what_another_boot_left_behind_is_gone() {
    let folder = Folder::new();
    let file = folder.path().join("limit");
    fs::write(&file, "now").expect("there is room");
    let undo = Undo::Write { file: file.clone(), content: "before".to_owned() };
    let book = left_behind(&folder, std::slice::from_ref(&undo));
    let lines = fs::read_to_string(&book).expect("it can be read");
    // Without the line that names the boot.
    let (_, rest) = lines.split_once('\n').expect("there are two lines");
    fs::write(&book, rest).expect("there is room");
    assert!(restore_left_behind(folder.path()).expect("it can be read").undone.is_empty());
    assert_eq!(fs::read_to_string(&file).expect("it is there"), "now");
    left_behind(&folder, &[undo]);
    assert_eq!(restore_left_behind(folder.path()).expect("it can be read").undone.len(), 1);
    assert_eq!(fs::read_to_string(&file).expect("it is there"), "before");
}

#[test]
fn a_line_that_was_cut_is_passed_over() {
    let folder = Folder::new();
    let files: Vec<PathBuf> = ["a", "b"].iter().map(|name| folder.path().join(name)).collect();
    let undo = |file: &PathBuf| Undo::Write { file: file.clone(), content: "before".to_owned() };
    let undos: Vec<Undo> = files.iter().map(undo).collect();
    let book = left_behind(&folder, &undos);
    let lines = fs::read_to_string(&book).expect("it can be read");
    for file in &files {
        fs::write(file, "now").expect("there is room");
    }
    fs::write(&book, &lines[..lines.len() - 3]).expect("there is room");
    assert_eq!(restore_left_behind(folder.path()).expect("it can be read").undone, undos[..1]);
    let texts: Vec<String> =
        files.iter().map(|file| fs::read_to_string(file).expect("it is there")).collect();
    assert_eq!(texts, ["before", "now"]);
}

#[test]
fn what_cannot_be_undone_is_tried_again() {
    let folder = Folder::new();
    let (good, bad) = (folder.path().join("good"), folder.path().join("bad"));
    fs::write(&good, "now").expect("there is room");
    fs::create_dir(&bad).expect("there is room");
    let undo = |file: &PathBuf| Undo::Write { file: file.clone(), content: "before".to_owned() };
    left_behind(&folder, &[undo(&bad), undo(&good)]);
    let restored = restore_left_behind(folder.path()).expect("it can be read");
    assert_eq!((restored.undone.len(), restored.failed.len()), (1, 1));
    fs::remove_dir(&bad).expect("it is empty");
    fs::write(&bad, "now").expect("there is room");
    assert_eq!(restore_left_behind(folder.path()).expect("it can be read").undone, [undo(&bad)]);
    assert_eq!(fs::read_to_string(&bad).expect("it is there"), "before");
}

#[test]
fn a_directory_that_cannot_be_written_is_told_before_anything_is_changed() {
    let folder = Folder::new();
    let missing = folder.path().join("missing");
    let error = CpuWatchdog::journal_only(&missing).expect_err("it is not there");
    assert!(error.to_string().contains("missing/undo"), "{error}");
    assert!(restore_left_behind(&missing).expect("nothing to do is fine").undone.is_empty());
}

#[test]
fn a_file_of_many_short_lives_stays_short() {
    let folder = Folder::new();
    let guardian = CpuWatchdog::journal_only(folder.path()).expect("it can be written");
    let process = real_proc().stat(std::process::id()).expect("it can be read").expect("it is there").process;
    let kept = guardian
        .register(&[Undo::Write { file: "/none".into(), content: "kept".to_owned() }])
        .expect("there is room");
    for _ in 0..10_000 {
        let numbers = guardian.register(&[Undo::Continue { process }]).expect("there is room");
        guardian.release(&numbers).expect("there is room");
    }
    let length = fs::metadata(folder.path().join("undo")).expect("it is there").len();
    assert!(length < 1 << 18, "{length} bytes");
    assert_eq!(guardian.pending_undos().len(), kept.len());
}
