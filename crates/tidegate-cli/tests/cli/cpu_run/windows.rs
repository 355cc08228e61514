//! Whole windows: usage at the end of a window is below the limit and close to it.

use std::process::Stdio;

use serde_json::Value;
use tidegate_testkit::{skip, test_scale::is_long};

use super::{BUSY_COMMAND, BusyProcess, RunningGovernor, folder, may_use_cgroups, number};
use crate::tidegate;

/// Length of a window in seconds.
const WINDOW: u64 = 120;
const LIMIT: f64 = 30.0;

/// The last sample of a window.
fn end_of_window(governor: &mut RunningGovernor) -> Value {
    let mut last = governor.sample();
    loop {
        let next = governor.sample();
        if number(&next, "remaining_minutes") > number(&last, "remaining_minutes") {
            return last;
        }
        last = next;
    }
}

/// The average of a window in percent of the machine, from its last sample.
fn average(last: &Value) -> f64 {
    let window = f64::from(u32::try_from(WINDOW).expect("small")) / 60.0;
    number(last, "used") / (window - number(last, "remaining_minutes"))
}

fn whole_window(enforce: &str, is_killed: bool) {
    if !is_long() {
        return skip("takes two minutes; runs with TIDEGATE_LONG=1");
    }
    if enforce == "cgroup" && !may_use_cgroups() {
        return skip("needs write access to cgroups, as root has");
    }
    let (folder, busy) = (folder(), BusyProcess::start());
    let target = format!("pid:{}", busy.pid());
    let args = ["--target", &target, "--enforce", enforce, "--avg-limit", "30", "--window", "120s"];
    let mut governor = RunningGovernor::start(folder.path(), &args);
    // The first window is partial. Earlier time counts as the average, so that it does not end in a burst.
    end_of_window(&mut governor);
    if is_killed {
        while number(&governor.sample(), "remaining_minutes") > 1.0 {}
        governor.kill();
        governor = RunningGovernor::start(folder.path(), &args);
    }
    let average = average(&end_of_window(&mut governor));
    assert!(average <= LIMIT, "{enforce}: {average}");
    assert!(average > LIMIT - 1.0, "{enforce}: {average}");
}

#[test]
fn cgroup_window_ends_within_a_point_below_the_limit() {
    whole_window("cgroup", false);
}

#[test]
fn signal_window_ends_within_a_point_below_the_limit() {
    whole_window("signal", false);
}

#[test]
fn cgroup_window_ends_below_the_limit_after_a_kill() {
    whole_window("cgroup", true);
}

#[test]
fn signal_window_ends_below_the_limit_after_a_kill() {
    whole_window("signal", true);
}

/// A few seconds of a window, in every run: the limit holds, whatever other load there is.
#[test]
fn short_run_stays_below_the_limit() {
    for enforce in ["signal", "cgroup"] {
        if enforce == "cgroup" && !may_use_cgroups() {
            continue;
        }
        let folder = folder();
        let state = folder.path().display().to_string();
        let script = format!("timeout 4 sh -c \"{}\"", BUSY_COMMAND.replace("exec ", ""));
        let mut args =
            vec!["cpu", "run", "--state", &state, "--enforce", enforce, "--window", "60s", "--json"];
        args.extend(["--interval", "1s", "--adjust", "1s", "--avg-limit", "20", "--unobserved", "zero"]);
        args.extend(["--guard", "off", "--", "sh", "-c", &script]);
        let done = tidegate(&args).stdin(Stdio::null()).output().expect("the binary starts");
        let message = String::from_utf8_lossy(&done.stderr).into_owned();
        let samples: Vec<Value> =
            message.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        assert!(samples.len() >= 2, "{enforce}: {message}");
        for sample in &samples {
            assert!(number(sample, "remaining") > 0.0, "{enforce}: {sample}");
            assert!(number(sample, "applied_limit") <= 90.0);
        }
    }
}
