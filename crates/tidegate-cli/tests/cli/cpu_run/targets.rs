//! One state directory for several targets, and targets that must not be limited.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tidegate_testkit::skip;

use super::{folder, may_use_cgroups, number, status};
use crate::tidegate;

/// An idle process with a chosen name, killed at the end of the test.
struct SleepingProcess(Child);

impl SleepingProcess {
    fn named(folder: &Path, name: &str) -> SleepingProcess {
        let program = folder.join(name);
        fs::copy("/bin/sleep", &program).expect("room");
        SleepingProcess(Command::new(program).arg("1000").stdin(Stdio::null()).spawn().expect("it starts"))
    }

    fn target(&self) -> String {
        format!("pid:{}", self.0.id())
    }
}

impl Drop for SleepingProcess {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _code = self.0.wait();
    }
}

/// Usage before the first sample of a target is not charged.
#[test]
fn new_target_is_not_charged_for_its_past() {
    let folder = folder();
    let state = folder.path().join("state").display().to_string();
    for target in [None, Some("host"), None, Some("host"), None, Some("host")] {
        let mut args = vec!["cpu", "run", "--state", &state, "--enforce", "none", "--unobserved", "zero"];
        args.extend(target.iter().flat_map(|target| ["--target", target]));
        args.extend(["--", "true"]);
        let done = tidegate(&args).stdin(Stdio::null()).output().expect("the binary starts");
        let stderr_text = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(0), "{stderr_text}");
        let now = status(Path::new(&state));
        assert!(number(&now, "used") < 20.0, "{now}");
        assert!(number(&now, "average") <= 100.0, "{now} {stderr_text}");
    }
}

/// Refused by process name, as process tree and in a cgroup, for any owner.
#[test]
fn login_processes_are_refused() {
    let folder = folder();
    let state = folder.path().join("state").display().to_string();
    let refused = |args: &[&str], name: &str| {
        let mut all = vec!["cpu", "run", "--state", &state];
        all.extend(args);
        let done = tidegate(&all).stdin(Stdio::null()).output().expect("the binary starts");
        let stderr_text = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(2), "{args:?}: {stderr_text}");
        assert!(
            stderr_text.contains(&format!("({name})")) && stderr_text.contains("is not limited"),
            "{args:?}: {stderr_text}"
        );
        assert!(!Path::new(&state).exists(), "{args:?}: nothing is left");
    };
    for name in ["sshd", "login", "agetty", "dropbear", "systemd-logind", "dbus-daemon"] {
        let sleeper = SleepingProcess::named(folder.path(), name);
        refused(&["--target", &sleeper.target(), "--enforce", "signal"], name);
        if may_use_cgroups() {
            refused(&["--target", &sleeper.target()], name);
        }
    }
    let cgroup = Path::new("/sys/fs/cgroup/cpu").join(format!("tidegate-login-{}", std::process::id()));
    if fs::create_dir(&cgroup).is_err() {
        return skip("needs a writable cgroup hierarchy of version 1");
    }
    let other = Path::new("/sys/fs/cgroup/cpuacct").join(cgroup.file_name().expect("a name"));
    let _there_already = fs::create_dir(&other);
    let sleeper = SleepingProcess::named(folder.path(), "sshd");
    fs::write(cgroup.join("cgroup.procs"), sleeper.0.id().to_string()).expect("it can be moved");
    let path = cgroup.display().to_string();
    let run = std::panic::catch_unwind(|| {
        refused(&["--target", &format!("cgroup:{path}")], "sshd");
        refused(&["--target", "host", "--limit-cgroup", &path], "sshd");
    });
    drop(sleeper);
    for folder in [cgroup, other] {
        super::wait_until("it is removed", || fs::remove_dir(&folder).is_ok() || !folder.exists());
    }
    if let Err(panic) = run {
        std::panic::resume_unwind(panic);
    }
}

/// The end of a target process is not an error.
#[test]
fn end_of_target_process_is_reported() {
    let folder = folder();
    let state = folder.path().join("state").display().to_string();
    let mut short = Command::new("sleep").arg("2").stdin(Stdio::null()).spawn().expect("it starts");
    let pid = short.id();
    // An exited process remains until it is waited for.
    let waiting = std::thread::spawn(move || short.wait());
    let target = format!("pid:{pid}");
    let args =
        ["cpu", "run", "--state", &state, "--target", &target, "--interval", "1s", "--enforce", "none"];
    let done = tidegate(&args).stdin(Stdio::null()).output().expect("the binary starts");
    waiting.join().expect("no panic").expect("it is ours");
    let stderr_text = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(0), "{stderr_text}");
    assert!(stderr_text.contains(&format!("process {pid} has ended")), "{stderr_text}");
    assert!(!stderr_text.contains("the number is wrong"), "{stderr_text}");
}

/// A command may have any name.
#[test]
fn command_name_is_not_restricted() {
    let folder = folder();
    let state = folder.path().join("state").display().to_string();
    let program = folder.path().join("sshd");
    fs::copy("/bin/sleep", &program).expect("room");
    let program = program.display().to_string();
    for enforce in ["signal", "none"] {
        let args = ["cpu", "run", "-q", "--state", &state, "--enforce", enforce, "--", &program, "0.1"];
        let done = tidegate(&args).stdin(Stdio::null()).output().expect("the binary starts");
        assert_eq!(done.status.code(), Some(0), "{}", String::from_utf8_lossy(&done.stderr));
    }
}
