//! What becomes of a command when its governor or its watchdog is killed, and of those who leave it.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::{Governor, eventually, folder, number};
use crate::tidegate;

/// Tells when it is hung up, and is busy.
const TELLTALE: &str = "trap 'echo hung up >> \"$0\"' HUP; echo $$ > \"$0\"; while :; do :; done";

/// Forks twice and begins a session, faster than anybody looks; then it is busy. It says its number and its first parent's, who sleeps.
const DAEMON: &str = "import os, sys, time\nparent = os.getpid()\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        open(sys.argv[1], 'w').write('%d\\n%d\\n' % (os.getpid(), parent))\n        while True: pass\n    os._exit(0)\nos.wait()\nwhile True: time.sleep(1)";

/// Somebody who is ended with its test, by the number in a file; and whoever else is numbered there.
struct Told<'a>(&'a Path);

impl Told<'_> {
    fn pid(&self) -> String {
        eventually("it says its number", || {
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

impl Drop for Told<'_> {
    fn drop(&mut self) {
        let said = fs::read_to_string(self.0).unwrap_or_default();
        for pid in said.lines().filter(|line| line.parse::<u32>().is_ok()) {
            let _ended = Command::new("kill").args(["-KILL", pid]).stderr(Stdio::null()).status();
        }
    }
}

/// A governor in a group of its own below somebody who could continue it, as shells start them.
fn as_a_job(state: &Path, limit: &str, command: &[&str]) -> Child {
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

/// The kernel hangs up a group with stopped members when its last parent outside ends. That is the watchdog, and then nobody is stopped.
#[test]
fn a_command_is_not_hung_up_when_its_governor_is_killed() {
    for _ in 0..3 {
        let folder = folder();
        let path = folder.path().join("said");
        let told = Told(&path);
        let said = path.display().to_string();
        let mut job = as_a_job(&folder.path().join("state"), "2", &["sh", "-c", TELLTALE, &said]);
        eventually("it is stopped", || told.state().starts_with('T'));
        job.kill().expect("it is there");
        job.wait().expect("it is ours");
        eventually("the watchdog has ended", || !folder.path().join("state/undo").exists());
        eventually("it goes on", || told.state().starts_with('R'));
        assert_eq!(fs::read_to_string(&path).expect("it is there").lines().count(), 1, "it was hung up");
    }
}

/// Whoever kills the watchdog has not killed the command: its new parent is the governor, which has another watchdog.
#[test]
fn a_command_goes_on_when_its_watchdog_is_killed() {
    let folder = folder();
    let path = folder.path().join("said");
    let (told, said) = (Told(&path), path.display().to_string());
    let script = "trap 'exit 9' USR1; echo $$ > \"$0\"; while :; do :; done";
    let mut job = as_a_job(&folder.path().join("state"), "2", &["sh", "-c", script, &said]);
    eventually("it is stopped", || told.state().starts_with('T'));
    let first = watchdog_of(job.id()).expect("there is a watchdog");
    kill(first);
    eventually("there is another one", || {
        let pids = Command::new("pgrep").args(["-P", &job.id().to_string(), "-f", "cpu watch"]).output();
        let pids = String::from_utf8_lossy(&pids.expect("pgrep").stdout).into_owned();
        pids.lines().any(|pid| pid != first.to_string())
    });
    eventually("it is stopped", || told.state().starts_with('T'));
    assert!(Command::new("kill").args(["-USR1", &told.pid()]).status().expect("kill").success());
    assert_eq!(job.wait().expect("it is ours").code(), Some(9));
}

/// A daemon is measured and limited like any other.
#[test]
fn nobody_leaves_a_command_unseen() {
    let folder = folder();
    let path = folder.path().join("said");
    let (told, said) = (Told(&path), path.display().to_string());
    let args = ["--enforce", "signal", "--avg-limit", "5", "--min-load", "1", "--unobserved", "zero", "--"];
    let args = [&args[..], &["python3", "-c", DAEMON, &said]].concat();
    let mut governor = Governor::start(&folder.path().join("state"), &args);
    eventually("the daemon is stopped", || told.state().starts_with('T'));
    // What it uses is seen; its command only sleeps.
    eventually("something is used", || number(&governor.sample(), "used") > 0.05);
}

/// What a command used is known also when it ended before anybody looked.
#[test]
fn the_last_moments_of_a_command_count() {
    let folder = folder();
    let state = folder.path().display().to_string();
    let script = "i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done";
    let mut args = vec!["cpu", "run", "-q", "--state", &state, "--enforce", "signal", "--unobserved", "zero"];
    args.extend(["--interval", "60s", "--window", "24h", "--", "sh", "-c", script]);
    let done = tidegate(&args).stdin(Stdio::null()).output().expect("the binary starts");
    assert_eq!(done.status.code(), Some(0), "{}", String::from_utf8_lossy(&done.stderr));
    assert!(number(&super::status(folder.path()), "used") > 0.0);
}

/// Control characters and job control do what they did before there was a governor.
#[test]
fn a_terminal_is_as_it_was() {
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

/// Who started the governor so that it is not hung up has started its command so.
#[test]
fn what_is_ignored_stays_ignored() {
    let folder = folder();
    let state = folder.path().display().to_string();
    let governor = format!(
        "trap '' HUP; exec {} cpu run -q --state {state} --enforce signal -- sh -c 'kill -HUP $PPID; kill -HUP $$; exit 4'",
        env!("CARGO_BIN_EXE_tidegate")
    );
    let done = Command::new("sh").args(["-c", &governor]).stdin(Stdio::null()).output().expect("a shell");
    assert_eq!(done.status.code(), Some(4), "{}", String::from_utf8_lossy(&done.stderr));
}
