//! Commands whose governor or watchdog is killed, daemons, and terminals.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::{RunningGovernor, folder, number, wait_until};
use crate::tidegate;

/// Records SIGHUP, and is busy.
const HANGUP_RECORDER: &str = "trap 'echo hung up >> \"$0\"' HUP; echo $$ > \"$0\"; while :; do :; done";

/// A daemon that forks twice and starts a session, then is busy. It records its process id and its first parent's,
/// which sleeps.
const DAEMON: &str = "import os, sys, time\nparent = os.getpid()\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        open(sys.argv[1], 'w').write('%d\\n%d\\n' % (os.getpid(), parent))\n        while True: pass\n    os._exit(0)\nos.wait()\nwhile True: time.sleep(1)";

/// A process known by the number in a file, killed at the end of the test, as is every other number in the file.
struct RecordedProcess<'a>(&'a Path);

impl RecordedProcess<'_> {
    fn pid(&self) -> String {
        wait_until("it says its number", || {
            fs::read_to_string(self.0).is_ok_and(|text| text.ends_with('\n'))
        });
        let text = fs::read_to_string(self.0).expect("it is there");
        text.lines().next().unwrap_or_default().to_owned()
    }

    fn state(&self) -> String {
        let ps = Command::new("ps").args(["-o", "stat=", "-p", &self.pid()]).output().expect("ps");
        String::from_utf8_lossy(&ps.stdout).trim().to_owned()
    }
}

impl Drop for RecordedProcess<'_> {
    fn drop(&mut self) {
        let pid_file = fs::read_to_string(self.0).unwrap_or_default();
        for pid in pid_file.lines().filter(|line| line.parse::<u32>().is_ok()) {
            let _ended = Command::new("kill").args(["-KILL", pid]).stderr(Stdio::null()).status();
        }
    }
}

/// A governor in its own process group below a parent that could continue it, as shells start jobs.
fn start_as_job(state: &Path, limit: &str, command: &[&str]) -> Child {
    let state = state.display().to_string();
    let mut args = vec!["cpu", "run", "-q", "--state", &state, "--enforce", "signal", "--avg-limit", limit];
    args.extend(["--min-load", "1", "--interval", "1s", "--adjust", "1s", "--"]);
    args.extend(command);
    let mut job = tidegate(&args);
    job.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    job.spawn().expect("the binary starts")
}

fn kill(pid: u32) {
    assert!(Command::new("kill").args(["-KILL", &pid.to_string()]).status().expect("kill").success());
}

/// The watchdog of a governor: its only child.
fn watchdog_of(governor: u32) -> Option<u32> {
    let children = Command::new("pgrep").args(["-P", &governor.to_string()]).output().expect("pgrep");
    String::from_utf8_lossy(&children.stdout).lines().find_map(|line| line.parse().ok())
}

/// The kernel sends SIGHUP to a group with stopped members when its last outside parent ends. That parent is the
/// watchdog, and by then no member is stopped.
#[test]
fn command_gets_no_sighup_when_governor_is_killed() {
    for _ in 0..3 {
        let folder = folder();
        let path = folder.path().join("said");
        let process = RecordedProcess(&path);
        let pid_file = path.display().to_string();
        let mut job =
            start_as_job(&folder.path().join("state"), "2", &["sh", "-c", HANGUP_RECORDER, &pid_file]);
        wait_until("it is stopped", || process.state().starts_with('T'));
        job.kill().expect("it is there");
        job.wait().expect("it is ours");
        wait_until("the watchdog has ended", || !folder.path().join("state/undo").exists());
        wait_until("it goes on", || process.state().starts_with('R'));
        assert_eq!(fs::read_to_string(&path).expect("it is there").lines().count(), 1, "it was hung up");
    }
}

/// After a kill of the watchdog the command goes on: the governor adopts it and starts another watchdog.
#[test]
fn command_goes_on_when_watchdog_is_killed() {
    let folder = folder();
    let path = folder.path().join("said");
    let (process, pid_file) = (RecordedProcess(&path), path.display().to_string());
    let script = "trap 'exit 9' USR1; echo $$ > \"$0\"; while :; do :; done";
    let mut job = start_as_job(&folder.path().join("state"), "2", &["sh", "-c", script, &pid_file]);
    wait_until("it is stopped", || process.state().starts_with('T'));
    let first = watchdog_of(job.id()).expect("there is a watchdog");
    kill(first);
    wait_until("there is another one", || {
        let pids = Command::new("pgrep").args(["-P", &job.id().to_string(), "-f", "cpu watch"]).output();
        let pids = String::from_utf8_lossy(&pids.expect("pgrep").stdout).into_owned();
        pids.lines().any(|pid| pid != first.to_string())
    });
    wait_until("it is stopped", || process.state().starts_with('T'));
    assert!(Command::new("kill").args(["-USR1", &process.pid()]).status().expect("kill").success());
    assert_eq!(job.wait().expect("it is ours").code(), Some(9));
}

/// A daemon is measured and limited like other processes.
#[test]
fn daemon_is_measured_and_limited() {
    let folder = folder();
    let path = folder.path().join("said");
    let (process, pid_file) = (RecordedProcess(&path), path.display().to_string());
    let args = ["--enforce", "signal", "--avg-limit", "5", "--min-load", "1", "--unobserved", "zero", "--"];
    let args = [&args[..], &["python3", "-c", DAEMON, &pid_file]].concat();
    let mut governor = RunningGovernor::start(&folder.path().join("state"), &args);
    wait_until("the daemon is stopped", || process.state().starts_with('T'));
    // The daemon's usage is measured; the command itself sleeps.
    wait_until("something is used", || number(&governor.sample(), "used") > 0.05);
}

/// Usage is known even if the command ends before the first sample.
#[test]
fn usage_of_short_command_is_counted() {
    let folder = folder();
    let state = folder.path().display().to_string();
    let script = "i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done";
    let mut args = vec!["cpu", "run", "-q", "--state", &state, "--enforce", "signal", "--unobserved", "zero"];
    args.extend(["--interval", "60s", "--window", "24h", "--", "sh", "-c", script]);
    let done = tidegate(&args).stdin(Stdio::null()).output().expect("the binary starts");
    assert_eq!(done.status.code(), Some(0), "{}", String::from_utf8_lossy(&done.stderr));
    assert!(number(&super::status(folder.path()), "used") > 0.0);
}

/// Control characters and job control work as without a governor.
#[test]
fn job_control_works() {
    let folder = folder();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/cpu_run/terminal.py");
    let done = Command::new("python3")
        .arg(script)
        .arg(env!("CARGO_BIN_EXE_tidegate"))
        .arg(folder.path())
        .output()
        .expect("Python");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// A signal ignored by the governor's parent stays ignored in the command.
#[test]
fn ignored_signal_stays_ignored() {
    let folder = folder();
    let state = folder.path().display().to_string();
    let governor = format!(
        "trap '' HUP; exec {} cpu run -q --state {state} --enforce signal -- sh -c 'kill -HUP $PPID; kill -HUP $$; exit 4'",
        env!("CARGO_BIN_EXE_tidegate")
    );
    let done = Command::new("sh").args(["-c", &governor]).stdin(Stdio::null()).output().expect("a shell");
    assert_eq!(done.status.code(), Some(4), "{}", String::from_utf8_lossy(&done.stderr));
}
