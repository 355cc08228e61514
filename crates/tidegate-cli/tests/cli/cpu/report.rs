use std::fs;

use super::journal::govern;
use super::json;
use crate::{Files, run};

#[test]
fn report_writes_a_chart() {
    let files = Files::new();
    let (state, svg) =
        (files.path("state").display().to_string(), files.path("cpu.svg").display().to_string());
    // Three days with one unobserved hour.
    let config = "metrics_interval_seconds: 60\nadjust_interval_seconds: 60\n";
    drop(govern(&files.path("state"), config, 4320, |number| {
        (!(4000..4060).contains(&number)).then_some(number % 60)
    }));
    let report = |more: &[&str]| {
        run(&[&["cpu", "report", "--state", &state, "--svg", &svg][..], more].concat(), "").done()
    };
    assert_eq!(
        report(&[]),
        format!("drew 1,441 samples from 2025-10-24T00:00:00Z to 2025-10-25T00:00:00Z into {svg}\n")
    );
    let picture = fs::read_to_string(&svg).expect("it is there");
    assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
    for class in ["band", "line used", "line limit", "average", "window", "dark"] {
        assert!(picture.contains(&format!("class=\"{class}\"")), "{class}");
    }
    assert!(picture.contains(">12:00<"), "the time of day is below it");

    let output = json(&report(&["--hours", "8784", "--json"]));
    assert_eq!((&output["from"], &output["samples"]), (&"2025-10-22T00:00:00Z".into(), &4321.into()));
    assert_eq!(output["unobserved_minutes"], 60);
    let whole = fs::read_to_string(&svg).expect("it is there");
    assert_eq!(whole.matches("class=\"window\"").count(), 3);
    assert!(whole.len() < 64 * 1024, "however many samples there are");
    assert_eq!(fs::read_dir(files.path("")).expect("a folder").count(), 2, "nothing is left beside it");
}

#[test]
fn unwritable_chart_is_bad_input() {
    let files = Files::new();
    let state = files.path("state").display().to_string();
    drop(govern(&files.path("state"), "", 4, |_| Some(5)));
    let svg = files.path("nowhere/cpu.svg").display().to_string();
    let output = run(&["cpu", "report", "--state", &state, "--svg", &svg], "").failed(2);
    assert!(output.starts_with("--svg: cannot write"), "{output}");
}

#[test]
fn report_without_file_or_hours_is_refused() {
    for args in [&["cpu", "report"][..], &["cpu", "report", "--svg", "x", "--hours", "0"]] {
        let output = run(args, "").failed(2);
        assert!(output.contains("--svg") || output.contains("--hours"), "{output}");
    }
}
