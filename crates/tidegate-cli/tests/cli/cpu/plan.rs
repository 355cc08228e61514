use serde_json::Value;

use super::json;
use crate::{Run, run};

const DOCUMENT: [&str; 10] =
    ["--avg-limit", "30", "--window", "24h", "--min-load", "10", "--max-load", "90", "--safety", "0.9"];

fn plan(more: &[&str]) -> Run {
    run(&[&["cpu", "plan"][..], more].concat(), "")
}

/// Plans with known results: elapsed, average, used, remaining, time left, safe limit, target, older safe limit,
/// samples.
#[test]
fn plans_have_the_expected_numbers() {
    for (elapsed, average, expected) in [
        ("0s", "0", "0 43200 1440 14400 28 30 27 0"),
        ("60m", "36.5", "2190 41010 1380 13800 27.745652173 29.717391304 26.745652173 720"),
        ("12h", "35", "25200 18000 720 7200 23.5 25 22.5 8640"),
        ("1440m", "28", "40320 2880 0 0 28 30 27 17280"),
        ("1380m", "0", "0 43200 60 600 90 100 90 16560"),
    ] {
        let more = ["--elapsed", elapsed, "--average", average, "--json"];
        let output = plan(&[&DOCUMENT[..], &more].concat()).done();
        assert_eq!(output, plan(&more).done(), "the defaults are the document's");
        let numbers: Vec<&str> = expected.split(' ').collect();
        let [used, remaining, left, floor, safe, target, legacy, samples] = numbers[..] else {
            panic!("eight")
        };
        assert_eq!(
            output,
            format!(
                "{{\"total_quota\":43200,\"used_quota\":{used},\"remaining_quota\":{remaining},\"remaining_minutes\":{left},\
                 \"future_min_quota\":{floor},\"target_cpu\":{target},\"safe_limit\":{safe},\"status\":\"ok\",\
                 \"expected_samples\":{samples},\"legacy_safe_limit\":{legacy}}}\n"
            )
        );
    }
}

#[test]
fn text_output_is_a_table() {
    assert_eq!(
        plan(&["--elapsed", "60m", "--average", "36.5"]).done(),
        "\
total        43200 %·min
used         2190 %·min
remaining    41010 %·min
time left    1380 min
floor needs  13800 %·min
target       29.71 %
safe limit   27.74 %
status       ok
"
    );
}

/// The remaining quota may be insufficient, or just sufficient.
#[test]
fn insufficient_quota_is_reported() {
    for (average, status, remaining) in [
        ("50", "ok", "7200"),
        ("50.001", "insufficient", "7199.28"),
        ("60", "exhausted", "0"),
        ("90", "exhausted", "-21600"),
    ] {
        let output = json(&plan(&["--elapsed", "12h", "--average", average, "--json"]).done());
        assert_eq!((&output["status"], &output["safe_limit"]), (&status.into(), &10.into()), "{average}");
        assert_eq!(output["remaining_quota"].to_string(), remaining);
    }
    let over = json(&plan(&["--elapsed", "24h", "--average", "31", "--json"]).done());
    assert_eq!(
        (&over["target_cpu"], &over["safe_limit"]),
        (&0.into(), &28.into()),
        "the next window has begun"
    );
}

/// A small number of samples is ignored.
#[test]
fn few_samples_are_ignored() {
    let with = |samples: &str| {
        let output = plan(&["--elapsed", "60m", "--average", "90", "--samples", samples, "--json"]).done();
        let output = json(&output);
        ["used_quota", "remaining_quota", "target_cpu"].map(|field| output[field].clone())
    };
    assert_eq!(with("9"), [0, 43_200, 30].map(Value::from));
    assert_eq!(with("10")[0], Value::from(5400));
    let output = plan(&["--elapsed", "60m", "--average", "90", "--samples", "0"]).done();
    assert!(output.contains("used         0 %·min, because there are too few samples\n"), "{output}");
}

#[test]
fn window_and_interval_change_the_plan() {
    let output =
        plan(&["--window", "168h", "--elapsed", "1h", "--average", "30", "--interval", "1s", "--json"])
            .done();
    let output = json(&output);
    assert_eq!((&output["total_quota"], &output["expected_samples"]), (&302_400.into(), &3600.into()));
}

#[test]
fn invalid_flag_is_refused_by_name() {
    for (args, flag, why) in [
        ("--min-load 95 --avg-limit 99", "--min-load", "must be at most --max-load, which is 90; found 95"),
        ("--min-load 30.5", "--min-load", "must be at most --avg-limit, which is 30; found 30.5"),
        ("--min-load 101", "--min-load", "must be at most 100"),
        ("--min-load -1", "--min-load", "must be a number"),
        ("--max-load 100.1", "--max-load", "must be at most 100"),
        ("--max-load 5", "--min-load", "must be at most --max-load, which is 5"),
        ("--avg-limit 0", "--avg-limit", "must be above 0"),
        ("--avg-limit 101", "--avg-limit", "must be at most 100"),
        ("--avg-limit NaN", "--avg-limit", "must be a number"),
        ("--avg-limit 1e1", "--avg-limit", "must be a number"),
        ("--window 0h", "--window", "from 60s to 168h"),
        ("--window 169h", "--window", "from 60s to 168h"),
        ("--window 24", "--window", "write 24s"),
        ("--window 60500ms", "--window", "whole seconds"),
        ("--safety 0", "--safety", "above 0 and at most 1"),
        ("--safety 1.000000001", "--safety", "above 0 and at most 1"),
        ("--safety -0.5", "--safety", "must be a number"),
        (
            "--elapsed 24h --window 23h",
            "--elapsed",
            "must be at most --window, which is 1380 min; found 1440 min",
        ),
        ("--elapsed 86400001ms", "--elapsed", "must be at most --window"),
        ("--elapsed -1h", "--elapsed", "must be a whole number and one unit"),
        ("--average 100.5", "--average", "must be at most 100"),
        ("--average -1", "--average", "must be a number"),
        ("--samples -1", "--samples", "invalid"),
        ("--interval 0s", "--interval", "must be above 0s"),
        ("--interval 301s", "--interval", "at most 300s"),
    ] {
        let args: Vec<&str> = args.split(' ').collect();
        let output = plan(&args).failed(2);
        assert!(output.contains(flag) && output.contains(why), "{args:?}: {output}");
        assert!(!output.contains("_percent"), "names of file settings are not shown: {output}");
    }
}
