use std::fs;

use super::journal::{MIDNIGHT, govern};
use super::json;
use crate::{Files, run};

/// Two hours at 20 %, of which ten minutes are unobserved.
fn two_hours(number: u32) -> Option<u32> {
    (!(600..720).contains(&number)).then_some(20)
}

#[test]
fn status_is_computed_from_the_samples() {
    let files = Files::new();
    let config =
        files.write("cpu.yaml", "time_zone: Asia/Shanghai\nwindow_start_hour: 8\nreserve_percent: 0\n");
    let state = files.path("state").display().to_string();
    let text = fs::read_to_string(&config).expect("it was written");
    let journal = govern(&files.path("state"), &text, 1440, two_hours);
    let status = || run(&["cpu", "status", "--state", &state, "--config", &config, "--json"], "").done();
    let output = json(&status());
    assert_eq!(output["running"], true);
    drop(journal);
    assert_eq!(json(&status())["running"], false);
    for (field, value) in [
        ("at", "\"2025-10-22T10:00:00+08:00\""),
        ("status", "\"ok\""),
        ("risk", "\"low\""),
        // 110 minutes at 20 %, and 10 minutes counted as 30 %.
        ("used", "2500"),
        ("remaining", "40700"),
        ("total_quota", "43200"),
        ("target_cpu", "30.833333333"),
        ("average", "20"),
        ("safe_limit", "28.749999999"),
        ("applied_limit", "28"),
        ("enforced_limit", "28"),
        ("trailing_used", "42100"),
        ("trailing_quota", "43200"),
        ("samples", "1320"),
        ("exceeded", "0"),
        ("window_start", "\"2025-10-22T08:00:00+08:00\""),
        ("window_end", "\"2025-10-23T08:00:00+08:00\""),
        ("remaining_minutes", "1320"),
        ("unobserved_minutes", "10"),
        ("is_starting", "false"),
    ] {
        assert_eq!(output[field].to_string(), value, "{field}");
    }
}

#[test]
fn text_output_is_a_table() {
    let files = Files::new();
    let state = files.path("state").display().to_string();
    drop(govern(&files.path("state"), "", 1440, |_| Some(90)));
    let output = run(&["cpu", "status", "--state", &state], "").done();
    let line = |name: &str| {
        output.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name} in {output}"))
    };
    assert_eq!(line("governing"), "governing        no; state at 2025-10-22T02:00:00Z");
    assert_eq!(line("window"), "window           2025-10-22T00:00:00Z to 2025-10-23T00:00:00Z");
    assert_eq!(line("samples"), "samples          1,440, 0 above the limit");
    assert!(line("used").ends_with("of 42768 %·min, risk low"), "{output}");
}

/// Metrics are written atomically.
#[test]
fn prometheus_file_is_written() {
    let files = Files::new();
    let state = files.path("state").display().to_string();
    let metrics = files.write("tidegate.prom", "old");
    drop(govern(&files.path("state"), "unobserved: zero\n", 720, |_| Some(10)));
    let output = run(&["cpu", "status", "--state", &state, "--prometheus", &metrics, "--json"], "").done();
    let text = fs::read_to_string(&metrics).expect("it is there");
    assert_eq!(json(&output)["used"].to_string(), "600");
    for line in [
        "# TYPE tidegate_cpu_used_percent_minutes gauge",
        "tidegate_cpu_used_percent_minutes 600",
        "tidegate_cpu_total_percent_minutes 42768",
        "tidegate_cpu_remaining_percent_minutes 42168",
        "tidegate_cpu_average_percent 10",
        "tidegate_cpu_running 0",
        "tidegate_cpu_samples 720",
        "tidegate_cpu_risk{level=\"low\"} 1",
        "tidegate_cpu_risk{level=\"high\"} 0",
        "tidegate_cpu_status{status=\"ok\"} 1",
        "tidegate_cpu_remaining_seconds 82800",
        &format!("tidegate_cpu_window_start_timestamp_seconds {MIDNIGHT}"),
        &format!("tidegate_cpu_sampled_timestamp_seconds {}", MIDNIGHT + 3600),
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in {text}");
    }
    let names: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    let mut once = names.clone();
    once.dedup();
    assert_eq!(names, once);
    assert_eq!(fs::read_dir(files.path("")).expect("a folder").count(), 2, "nothing is left beside it");
    let nowhere = files.path("nowhere/tidegate.prom").display().to_string();
    let failed = run(&["cpu", "status", "--state", &state, "--prometheus", &nowhere], "").failed(1);
    assert!(failed.contains("cannot write"), "{failed}");
}

#[test]
fn status_without_samples_fails() {
    let files = Files::new();
    let svg = files.path("cpu.svg").display().to_string();
    let nowhere = files.path("nowhere").display().to_string();
    fs::create_dir(files.path("empty")).expect("a folder");
    let empty = files.path("empty").display().to_string();
    for state in [&nowhere, &empty] {
        for command in [&["cpu", "status"][..], &["cpu", "report", "--svg", &svg]] {
            let output = run(&[command, &["--state", state]].concat(), "").failed(1);
            assert!(output.contains("no samples") && output.contains("tidegate cpu run"), "{output}");
        }
    }
    assert!(run(&["cpu", "status"], "").failed(1).contains("./tidegate-cpu"));
    fs::write(files.path("empty/00000000000000000001.samples"), "something else, and long enough")
        .expect("room");
    let output = run(&["cpu", "status", "--state", &empty], "").failed(1);
    assert!(output.contains("not a sample file of this version"), "{output}");
    assert!(!files.path("cpu.svg").exists());
}
