//! One directory for several targets, and targets that must not be limited.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::{folder, may_use_cgroups, number, status};
use crate::tidegate;

/// A process that does nothing, under a name of our choice; ended with its test.
struct Sleeper(Child);

impl Sleeper {
    fn named(folder: &Path, name: &str) -> Sleeper {
        let program = folder.join(name);
        fs::copy("/bin/sleep", &program).expect("room");
        Sleeper(Command::new(program).arg("1000").stdin(Stdio::null()).spawn().expect("it starts"))
    }

    fn target(&self) -> String {
        format!("pid:{}", self.0.id())
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _code = self.0.wait();
    }
}

/// What a counter had counted before it was looked at is not what was used since.
#[test]
fn a_directory_for_several_targets_charges_none_for_its_past() {
    let folder = folder();
    let state = folder.path().join("state").display().to_string();
    for target in [None, Some("host"), None, Some("host"), None, Some("host")] {
        let mut args = vec!["cpu", "run", "--state", &state, "--enforce", "none", "--unobserved", "zero"];
        args.extend(target.iter().flat_map(|target| ["--target", target]));
        args.extend(["--", "true"]);
        let done = tidegate(&args).stdin(Stdio::null()).output().expect("the binary starts");
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(0), "{said}");
        let now = status(Path::new(&state));
        assert!(number(&now, "used") < 20.0, "{now}");
        assert!(number(&now, "average") <= 100.0, "{now} {said}");
    }
}

/// By name, in a tree and in a cgroup, whoever they belong to.
#[test]
fn what_people_log_in_with_is_refused() {
    let folder = folder();
    let state = folder.path().join("state").display().to_string();
    let refused = |args: &[&str], name: &str| {
        let mut all = vec!["cpu", "run", "--state", &state];
        all.extend(args);
        let done = tidegate(&all).stdin(Stdio::null()).output().expect("the binary starts");
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(&format!("({name})")) && said.contains("is not limited"), "{args:?}: {said}");
        assert!(!Path::new(&state).exists(), "{args:?}: nothing is left");
    };
    for name in ["sshd", "login", "agetty", "dropbear", "systemd-logind", "dbus-daemon"] {
        let sleeper = Sleeper::named(folder.path(), name);
        refused(&["--target", &sleeper.target(), "--enforce", "signal"], name);
        if may_use_cgroups() {
            refused(&["--target", &sleeper.target()], name);
        }
    }
    let cgroup = Path::new("/sys/fs/cgroup/cpu").join(format!("tidegate-login-{}", std::process::id()));
    if fs::create_dir(&cgroup).is_err() {
        return;
    }
    let other = Path::new("/sys/fs/cgroup/cpuacct").join(cgroup.file_name().expect("a name"));
    let _there_already = fs::create_dir(&other);
    let sleeper = Sleeper::named(folder.path(), "sshd");
    fs::write(cgroup.join("cgroup.procs"), sleeper.0.id().to_string()).expect("it can be moved");
    let path = cgroup.display().to_string();
    let run = std::panic::catch_unwind(|| {
        refused(&["--target", &format!("cgroup:{path}")], "sshd");
        refused(&["--target", "host", "--limit-cgroup", &path], "sshd");
    });
    drop(sleeper);
    for folder in [cgroup, other] {
        super::eventually("it is removed", || fs::remove_dir(&folder).is_ok() || !folder.exists());
    }
    if let Err(panic) = run {
        std::panic::resume_unwind(panic);
    }
}

/// A process that ends is no mistake of anybody's.
#[test]
fn the_end_of_a_process_is_told_as_such() {
    let folder = folder();
    let state = folder.path().join("state").display().to_string();
    let mut short = Command::new("sleep").arg("2").stdin(Stdio::null()).spawn().expect("it starts");
    let pid = short.id();
    // Whoever nobody asks after is still there.
    let waiting = std::thread::spawn(move || short.wait());
    let target = format!("pid:{pid}");
    let args =
        ["cpu", "run", "--state", &state, "--target", &target, "--interval", "1s", "--enforce", "none"];
    let done = tidegate(&args).stdin(Stdio::null()).output().expect("the binary starts");
    waiting.join().expect("no panic").expect("it is ours");
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(0), "{said}");
    assert!(said.contains(&format!("process {pid} has ended")), "{said}");
    assert!(!said.contains("the number is wrong"), "{said}");
}

/// A command is its user's choice, whatever it is called.
#[test]
fn a_command_may_be_called_anything() {
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
