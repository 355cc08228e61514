//! `tidegate cpu run`: real processes under a real governor.
//!
//! How close the average comes to the limit depends on other load of the machine, so only long runs check it. Every
//! run checks that the average is not above the limit.

mod process_lifecycle;
mod targets;
mod windows;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use tidegate_testkit::skip;

use crate::tidegate;

/// Uses two cores until killed.
const BUSY_COMMAND: &str = "sh -c 'while :; do :; done' & exec sh -c 'while :; do :; done'";

/// Longest wait for anything.
const TIMEOUT: Duration = Duration::from_secs(60);

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

/// A governor process, killed with its children at the end of the test.
struct RunningGovernor {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStderr>>,
}

impl RunningGovernor {
    fn start(state: &Path, args: &[&str]) -> RunningGovernor {
        let state = state.display().to_string();
        let mut all = vec!["cpu", "run", "--state", &state, "--interval", "1s", "--adjust", "1s", "--json"];
        if !args.contains(&"--window") {
            all.extend(["--window", "60s"]);
        }
        all.extend(args);
        let mut child =
            tidegate(&all).stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("the binary starts");
        let lines = BufReader::new(child.stderr.take().expect("it was piped")).lines();
        RunningGovernor { child, lines }
    }

    /// The next JSON sample.
    fn sample(&mut self) -> Value {
        loop {
            let line = self.lines.next().expect("it goes on").expect("text");
            if let Ok(value) = serde_json::from_str(&line) {
                return value;
            }
        }
    }

    fn kill(&mut self) {
        self.child.kill().expect("it is there");
        self.child.wait().expect("it is ours");
    }
}

impl Drop for RunningGovernor {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _code = self.child.wait();
    }
}

/// A busy process with children, killed at the end of the test.
struct BusyProcess(Child);

impl BusyProcess {
    fn start() -> BusyProcess {
        let mut command = Command::new("setsid");
        command
            .args(["sh", "-c", BUSY_COMMAND])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        BusyProcess(command.spawn().expect("a shell"))
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for BusyProcess {
    fn drop(&mut self) {
        // The session id is the process id.
        let _ended = Command::new("pkill").args(["-KILL", "-s", &self.pid().to_string()]).status();
        let _ended = self.0.kill();
        let _code = self.0.wait();
    }
}

#[track_caller]
#[expect(clippy::disallowed_methods, reason = "the kernel does not report that a process was continued")]
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < TIMEOUT, "it never came to this: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The states of the processes of a session.
fn states(session: u32) -> String {
    let ps = Command::new("ps").args(["-o", "stat=", "-s", &session.to_string()]).output().expect("ps");
    String::from_utf8_lossy(&ps.stdout).into_owned()
}

/// The cgroups created by the governor with this process id.
fn cgroups_of(pid: u32) -> Vec<PathBuf> {
    let trees = ["cpu", "cpuacct", "cpu,cpuacct", "unified", ""];
    let found = trees.map(|tree| Path::new("/sys/fs/cgroup").join(tree).join(format!("tidegate-{pid}")));
    found.into_iter().filter(|path| path.exists()).collect()
}

fn may_use_cgroups() -> bool {
    let made = Path::new("/sys/fs/cgroup/cpu/tidegate-may-it");
    let may = fs::create_dir(made).is_ok();
    let _gone = fs::remove_dir(made);
    may
}

fn number(value: &Value, field: &str) -> f64 {
    value[field].as_f64().unwrap_or_else(|| panic!("no {field} in {value}"))
}

fn status(state: &Path) -> Value {
    let state = state.display().to_string();
    let message =
        tidegate(&["cpu", "status", "--json", "--state", &state]).output().expect("the binary starts");
    serde_json::from_slice(&message.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&message.stderr)))
}

#[test]
fn exit_code_of_command_is_returned() {
    let folder = folder();
    let state = folder.path().join("state").display().to_string();
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)] {
        for enforce in ["none", "signal"] {
            let args = ["cpu", "run", "--state", &state, "--enforce", enforce, "--", "sh", "-c", script];
            let done = tidegate(&args).stdin(Stdio::null()).output().expect("the binary starts");
            assert_eq!(
                done.status.code(),
                Some(code),
                "{script} {enforce}: {}",
                String::from_utf8_lossy(&done.stderr)
            );
        }
    }
    let words = tidegate(&["cpu", "run", "-q", "--state", &state, "--", "echo", "a b", "$HOME"])
        .output()
        .expect("it starts");
    assert_eq!(String::from_utf8_lossy(&words.stdout), "a b $HOME\n", "arguments are handed on as they are");
    assert_eq!(
        String::from_utf8_lossy(&words.stderr).lines().filter(|line| !line.starts_with("no cgroup")).count(),
        0
    );
    assert!(!folder.path().join("state/undo").exists(), "nothing is left to be put back");
}

#[test]
fn invalid_arguments_change_nothing() {
    let folder = folder();
    let state = folder.path().join("state").display().to_string();
    for (args, why) in [
        (&["--target", "cgroup:/sys/fs/cgroup/cpu/there-is-none"][..], "there-is-none"),
        (&["--target", "cgroup:/tmp"], "/tmp"),
        (&["--target", "pid:4194305"], "4194305"),
        (&["--target", "pid:0"], "process"),
        (&["--target", "pid:1", "--enforce", "signal"], "is not limited"),
        (&["--target", "moon"], "host, cgroup:PATH or pid:N"),
        (&["--min-load", "40"], "--avg-limit"),
        (&["--min-load", "95", "--avg-limit", "99"], "--max-load"),
        (&["--window", "169h"], "168"),
        (&["--window", "0s"], "60s"),
        (&["--safety", "0"], "above 0"),
        (&["--zone", "Mars/Olympus"], "time zone"),
        (&["--interval", "30s", "--window", "60s"], "quarter"),
        (&["--interval", "1ms"], "whole seconds"),
        (&["--adjust", "601s"], "600s"),
        (&["--target", "host", "--limit-cgroup", "/sys/fs/cgroup/there-is-none"], "there-is-none"),
        (&["--prometheus", "/nonexistent/metrics", "--", "true"], "/nonexistent/metrics"),
        (&["--", "there-is-no-such-program"], "there-is-no-such-program"),
        (&["--", "/etc/passwd"], "/etc/passwd"),
        (&["--target", "pid:2147483", "--", "true"], "leave --target out"),
        (&["--config", "/nonexistent/cpu.yaml"], "/nonexistent/cpu.yaml"),
    ] {
        let mut all = vec!["cpu", "run", "--state", &state];
        all.extend(args);
        let done = tidegate(&all).stdin(Stdio::null()).output().expect("the binary starts");
        let stderr_text = String::from_utf8_lossy(&done.stderr);
        let expected = if args[0] == "--config" {
            [1, 2].contains(&done.status.code().unwrap_or(0))
        } else {
            done.status.code() == Some(2)
        };
        assert!(expected, "{args:?}: {:?} {stderr_text}", done.status.code());
        assert!(stderr_text.contains(why), "{args:?}: {stderr_text}");
        assert!(!Path::new(&state).exists(), "{args:?}: nothing is left");
    }
}

/// After the end metrics say so, and a refused start changes no settings.
#[test]
fn metrics_after_the_end_say_not_running() {
    let folder = folder();
    let (state, metrics) = (folder.path().join("state"), folder.path().join("metrics"));
    let run = |more: &[&str]| {
        let (state, metrics) = (state.display().to_string(), metrics.display().to_string());
        let mut args =
            vec!["cpu", "run", "-q", "--state", &state, "--prometheus", &metrics, "--enforce", "none"];
        args.extend(more);
        tidegate(&args).stdin(Stdio::null()).output().expect("the binary starts").status.code()
    };
    assert_eq!(run(&["--avg-limit", "25", "--", "true"]), Some(0));
    assert!(fs::read_to_string(&metrics).expect("metrics").contains("tidegate_cpu_running 0\n"));
    let kept = || fs::read_to_string(state.join("cpu.yaml")).expect("settings");
    assert!(kept().contains("avg_load_limit_percent: 25\n"), "{}", kept());
    assert_eq!(run(&["--avg-limit", "40", "--target", "pid:4194305"]), Some(2));
    assert!(state.join("lock").exists(), "it was there before");
    assert!(kept().contains("avg_load_limit_percent: 25\n"), "{}", kept());
}

#[test]
fn second_governor_of_a_directory_is_refused() {
    let folder = folder();
    let mut governor = RunningGovernor::start(folder.path(), &["--enforce", "none", "--", "sleep", "100"]);
    governor.sample();
    let state = folder.path().display().to_string();
    let second =
        tidegate(&["cpu", "run", "--state", &state, "--", "true"]).output().expect("the binary starts");
    assert_eq!(second.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&second.stderr).contains("--state"), "{second:?}");
    assert_eq!(status(folder.path())["running"], true);
}

/// A stop signal is forwarded to the command, and its exit code is returned.
#[test]
fn signal_is_forwarded_to_the_command() {
    let folder = folder();
    let script = "trap 'exit 9' TERM; while :; do sleep 0.05; done";
    let mut governor =
        RunningGovernor::start(folder.path(), &["--enforce", "signal", "--", "sh", "-c", script]);
    governor.sample();
    let message =
        Command::new("kill").args(["-TERM", &governor.child.id().to_string()]).status().expect("kill");
    assert!(message.success());
    assert_eq!(governor.child.wait().expect("it is ours").code(), Some(9));
}

/// The second signal ends the governor without waiting for the command.
#[test]
fn second_signal_leaves_the_command_running() {
    for (signal, code) in [("-TERM", 143), ("-INT", 130)] {
        let folder = folder();
        let script = "trap '' TERM INT; while :; do sleep 0.05; done";
        let mut governor =
            RunningGovernor::start(folder.path(), &["--enforce", "none", "--", "sh", "-c", script]);
        governor.sample();
        let command = root_of(&governor);
        let pid = governor.child.id().to_string();
        let tell = || assert!(Command::new("kill").args([signal, &pid]).status().expect("kill").success());
        tell();
        // Equal signals at once would merge into one.
        for _ in 0..2 {
            governor.sample();
        }
        tell();
        let ended = governor.child.wait().expect("it is ours").code();
        let is_there = Command::new("kill").args(["-KILL", &command]).status().expect("kill").success();
        assert_eq!((ended, is_there), (Some(code), true));
    }
}

/// A program that stops itself when its child stops is continued and receives the signal.
#[test]
fn self_stopped_program_is_continued() {
    let folder = folder();
    // As `su` and job-control shells do.
    let script = "import os, signal, sys\npid = os.fork()\nif pid == 0:\n    while True: pass\nwhile True:\n    _, status = os.waitpid(pid, os.WUNTRACED)\n    if os.WIFSTOPPED(status):\n        os.kill(os.getpid(), signal.SIGSTOP)\n        os.kill(pid, signal.SIGCONT)\n    else:\n        sys.exit(5)";
    let args = ["--enforce", "signal", "--avg-limit", "20", "--", "python3", "-c", script];
    let mut governor = RunningGovernor::start(folder.path(), &args);
    for _ in 0..3 {
        governor.sample();
    }
    let child = Command::new("pgrep").args(["-P", &root_of(&governor)]).output().expect("pgrep");
    let child = String::from_utf8_lossy(&child.stdout).trim().to_owned();
    assert!(Command::new("kill").args(["-KILL", &child]).status().expect("kill").success(), "{child}");
    assert_eq!(governor.child.wait().expect("it is ours").code(), Some(5));
}

/// The governed command: the child of the watchdog.
fn root_of(governor: &RunningGovernor) -> String {
    let child_of = |pid: &str| {
        let children = Command::new("pgrep").args(["-P", pid]).output().expect("pgrep");
        String::from_utf8_lossy(&children.stdout).lines().next().unwrap_or_default().to_owned()
    };
    child_of(&child_of(&governor.child.id().to_string()))
}

/// After a kill no process is stopped, nothing is limited, and the next governor continues the same window.
#[test]
fn killed_governor_leaves_no_limits() {
    for enforce in ["signal", "cgroup"] {
        if enforce == "cgroup" && !may_use_cgroups() {
            // Printed to explain why less is tested here.
            eprintln!("cgroups cannot be made here; only signals are tried");
            continue;
        }
        let (folder, busy) = (folder(), BusyProcess::start());
        let target = format!("pid:{}", busy.pid());
        let args = ["--target", &target, "--enforce", enforce, "--avg-limit", "11", "--unobserved", "zero"];
        let mut governor = RunningGovernor::start(folder.path(), &args);
        let (first, second) = (governor.sample(), governor.sample());
        assert!(number(&second, "used") > 0.0 && number(&first, "total_quota") > 0.0);
        let pid = governor.child.id();
        assert_eq!(cgroups_of(pid).is_empty(), enforce == "signal");
        governor.kill();
        wait_until("no process is stopped", || !states(busy.pid()).contains('T'));
        wait_until("no cgroup is left", || cgroups_of(pid).is_empty());
        wait_until("the watchdog has ended", || !folder.path().join("undo").exists());
        let before = number(&status(folder.path()), "used");
        let mut governor = RunningGovernor::start(folder.path(), &args);
        let after = number(&governor.sample(), "used");
        let window = status(folder.path());
        // Unless a new window has begun.
        assert!(after >= before || number(&window, "remaining_minutes") > 0.9, "{before} {after}");
    }
}

/// Without permissions the governor reports limits and enforces nothing.
#[test]
fn governor_without_permissions_only_monitors() {
    if !may_use_cgroups() {
        return skip("needs write access to cgroups, as root has");
    }
    let folder = folder();
    let state = folder.path().join("state");
    let all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    fs::set_permissions(folder.path(), all).expect("it is ours");
    let binary = folder.path().join("tidegate");
    fs::copy(env!("CARGO_BIN_EXE_tidegate"), &binary).expect("room");
    let mut child = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
        .arg(&binary)
        .args(["cpu", "run", "--target", "host", "--interval", "1s", "--state"])
        .arg(&state)
        .stderr(Stdio::piped())
        .spawn()
        .expect("setpriv");
    let mut lines = BufReader::new(child.stderr.take().expect("it was piped")).lines();
    let stderr_text = lines.next().expect("it says so").expect("text");
    let _ended = child.kill();
    let _code = child.wait();
    assert!(stderr_text.contains("only monitoring"), "{stderr_text}");
}
