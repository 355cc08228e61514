use std::fs;

use serde_json::Value;

use super::json;
use crate::{Files, Run, example, run};

fn simulate(trace: &str, more: &[&str]) -> Run {
    run(&[&["cpu", "simulate", "--trace", "-"][..], more].concat(), trace)
}

/// A trace that is idle until 16:00 and then demands everything.
fn evening(more: &[&str]) -> Value {
    let trace = example("cpu/evening.csv");
    json(&run(&[&["cpu", "simulate", "--json", "--trace", &trace][..], more].concat(), "").done())
}

/// A number in thousandths of a percent.
fn thousandths(number: &Value) -> u64 {
    let (whole, part) = number.to_string().split_once('.').map_or_else(
        || (number.to_string(), "000".to_owned()),
        |(whole, part)| (whole.to_owned(), format!("{part:0<3}")[..3].to_owned()),
    );
    format!("{whole}{part}").parse().expect("a number")
}

/// Each calendar day keeps its average. The 24 hours across midnight do not, unless trailing windows are guarded.
#[test]
fn guard_limits_windows_across_midnight() {
    for (guard, worst) in [("off", 48_100..=48_300), ("on", 0..=30_000)] {
        let files = Files::new();
        let config = files.write("cpu.yaml", "increase_deadband_points: 0");
        let message = evening(&["--guard", guard, "--reserve", "0", "--config", &config]);
        let found = thousandths(&message["worst_trailing"]);
        assert!(worst.contains(&found), "{guard}: {found}");
        let windows = message["windows"].as_array().expect("two days");
        assert_eq!(windows.len(), 2);
        for window in windows {
            assert!(thousandths(&window["average"]) <= 30_000 && window["whole"] == true, "{window}");
        }
    }
    let usual = evening(&["--guard", "off"]);
    assert!((45_000..=48_000).contains(&thousandths(&usual["worst_trailing"])), "{usual}");
    assert!(thousandths(&evening(&[])["worst_trailing"]) <= 29_700, "and one percent is kept in reserve");
}

#[test]
fn text_output_is_a_table() {
    let trace = "time,cpu\n1970-01-01T00:00:00Z,20\n1970-01-01T12:00:00Z,0\n1970-01-02T06:00:00Z,0\n";
    assert_eq!(
        simulate(trace, &["--zone", "Asia/Shanghai", "--start-hour", "8", "--guard", "off"]).done(),
        "\
START                      END                        AVERAGE  OF QUOTA  WHOLE
1970-01-01T08:00:00+08:00  1970-01-02T08:00:00+08:00     10 %   33.33 %  yes
1970-01-02T08:00:00+08:00  1970-01-03T08:00:00+08:00      0 %       0 %  no

limit                        30 % on average
worst trailing average       29.69 %
quota used in whole windows  33.33 %
demand served                100 %
changes of the limit         15
"
    );
}

#[test]
fn idle_trace_uses_nothing() {
    let message = json(&simulate("0,0\n3600,0\n", &["--json", "--unobserved", "zero"]).done());
    assert_eq!(
        (&message["utilisation"], &message["demand_served"], &message["worst_trailing"], &message["looks"]),
        (&Value::Null, &Value::Null, &0.into(), &720.into())
    );
    assert_eq!(
        (&message["from"], &message["to"]),
        (&"1970-01-01T00:00:00Z".into(), &"1970-01-01T01:00:00Z".into())
    );
}

/// CSV and JSON, seconds and RFC 3339, standard input and file: equal results.
#[test]
fn equal_traces_in_all_formats_have_equal_results() {
    let columns = simulate("0,12.5\n3600.5,90\n7200,0\n", &["--json"]).done();
    let objects = "{\"time\":0,\"cpu\":12.5}\n\n{\"cpu\":90,\"time\":3600.5}\n{\"time\":7200,\"cpu\":0}\n";
    assert_eq!(simulate(objects, &["--json"]).done(), columns);
    let times = "time,cpu\r\n1970-01-01T00:00:00Z,12.5\r\n1970-01-01T02:00:00.5+01:00,90\r\n1970-01-01T02:00:00Z,0\r\n";
    assert_eq!(simulate(times, &["--json"]).done(), columns);
    let files = Files::new();
    let path = files.write("trace.csv", times);
    assert_eq!(run(&["cpu", "simulate", "--json", "--trace", &path], "").done(), columns);
    assert_eq!(simulate(&format!("\u{feff}{times}"), &["--json"]).done(), columns);
}

#[test]
fn flags_override_the_file() {
    let files = Files::new();
    let config = files.write("cpu.yaml", "avg_load_limit_percent: 20\nmax_load_percent: 50\n");
    let message = |more: &[&str]| {
        json(&simulate("0,100\n86400,0\n", &[&["--json", "--config", &config][..], more].concat()).done())
    };
    // A file that is valid only with the flags is accepted.
    let low = files.write("low.yaml", "avg_load_limit_percent: 5\n");
    let with =
        |more: &[&str]| simulate("0,100\n3600,0\n", &[&["--json", "--config", &low][..], more].concat());
    assert_eq!(json(&with(&["--min-load", "2"]).done())["avg_limit"], 5);
    let alone = with(&[]).failed(2);
    assert!(alone.contains("low.yaml") && alone.contains("alone exceed the average"), "{alone}");
    let (file, flags) = (message(&[]), message(&["--avg-limit", "40"]));
    assert_eq!((&file["avg_limit"], &flags["avg_limit"]), (&20.into(), &40.into()));
    assert!(thousandths(&file["windows"][0]["average"]) <= 20_000);
    assert!((35_000..=40_000).contains(&thousandths(&flags["windows"][0]["average"])), "{flags}");
}

#[test]
fn samples_are_written_as_csv() {
    let files = Files::new();
    let path = files.path("looks.csv").display().to_string();
    simulate("0,5\n12,100\n25,0\n", &["--samples", &path]).done();
    let looks = fs::read_to_string(&path).expect("it is there");
    let rows: Vec<Vec<&str>> = looks.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(rows[0], ["time", "demand", "used", "limit", "safe", "trailing"]);
    let times: Vec<&str> = rows[1..].iter().map(|row| &row[0][17..]).collect();
    assert_eq!(times, ["05Z", "10Z", "12Z", "17Z", "22Z", "25Z"]);
    assert_eq!(rows[1][1..4], ["5", "5", "27.73"]);
    assert_eq!(rows[4][1], "100");
    for row in &rows[1..] {
        assert!(row[2].parse::<f64>().expect("a number") <= row[3].parse().expect("a number"), "{row:?}");
    }
    assert_eq!(fs::read_dir(files.path("")).expect("a folder").count(), 1, "nothing is left beside it");
}

#[test]
fn invalid_row_is_refused_with_its_line() {
    let files = Files::new();
    let looks = files.path("looks.csv").display().to_string();
    for (trace, why) in [
        ("", "stdin:1: has no rows"),
        ("time,cpu\n", "stdin:1: has no rows"),
        ("0,5\n", "stdin:1: has one row"),
        ("0,5\n10,5\n5,5\n", "stdin:3: time: must not be before that of the row above"),
        ("0,5\n10,NaN\n", "stdin:2: cpu: must be a number from 0 to 100 such as 36.5, found 'NaN'"),
        ("0,5\n\n10,-1\n", "stdin:3: cpu:"),
        ("0,5\n10,100.1\n", "stdin:2: cpu:"),
        ("0,5\n10,inf\n", "stdin:2: cpu:"),
        ("0,5\nnow,5\n", "stdin:2: time:"),
        ("0,5,1\n10,5\n", "stdin:1: must be two columns"),
        ("cpu,time\n0,5\n", "stdin:1: time: must be RFC 3339"),
        ("{\"time\":0,\"cpu\":5,\"core\":1}\n", "stdin:1: 'core': is not a field of a row"),
        ("{\"time\":0}\n", "stdin:1: cpu: is missing"),
    ] {
        let message = simulate(trace, &["--samples", &looks]).failed(2);
        assert!(message.starts_with(why), "{trace}: {message}");
    }
    assert_eq!(fs::read_dir(files.path("")).expect("a folder").count(), 0, "as if it had never been");
    let nowhere = files.path("nowhere.csv").display().to_string();
    assert!(run(&["cpu", "simulate", "--trace", &nowhere], "").failed(2).contains("cannot read"));
}

/// Output never overwrites input, by whatever path. Unwritable output is reported before the simulation.
#[test]
fn samples_never_overwrite_the_input() {
    let files = Files::new();
    let trace = files.write("trace.csv", "0,5\n10,5\n");
    let config = files.write("cpu.yaml", "max_load_percent: 50\n");
    let link = files.path("link.csv");
    std::os::unix::fs::symlink(&trace, &link).expect("room");
    let link = link.display().to_string();
    for (samples, option) in [(&trace, "--trace"), (&link, "--trace"), (&config, "--config")] {
        let args = ["cpu", "simulate", "--trace", &trace, "--config", &config, "--samples", samples];
        let message = run(&args, "").failed(2);
        assert!(message.contains(&format!("is the input of {option}")), "{message}");
    }
    assert_eq!(fs::read_to_string(&trace).expect("it is there"), "0,5\n10,5\n");
    let nowhere = files.path("nowhere/looks.csv").display().to_string();
    let message = run(&["cpu", "simulate", "--trace", &trace, "--samples", &nowhere], "").failed(2);
    assert!(message.starts_with("--samples: cannot write"), "{message}");
}

#[test]
fn invalid_settings_are_refused() {
    let files = Files::new();
    let config = files.write("cpu.yaml", "min_load_percent: 20\nreserve_percent: 0\n");
    let slow = files.write("slow.yaml", "adjust_interval_seconds: 30\n");
    let broken = files.write("broken.yaml", "min_load: 20\n");
    for (args, why) in [
        (
            &["--avg-limit", "15", "--config", &config][..],
            "--min-load: must be at most --avg-limit, which is 15; found 20",
        ),
        (
            &["--min-load", "30"],
            "--min-load: must be at most what --reserve leaves of --avg-limit, which is 29.7; found 30",
        ),
        (&["--config", &broken], "broken.yaml:1:1: min_load: is not a field"),
        (&["--reserve", "99.5"], "--reserve"),
        (&["--guard", "maybe"], "--guard"),
        (&["--zone", "Asia/Shangai"], "did you mean 'Asia/Shanghai'?"),
        (&["--start-hour", "24"], "--start-hour"),
        (&["--unobserved", "nothing"], "must be limit, average or zero"),
        (
            &["--window", "60s", "--config", &slow],
            "adjust_interval_seconds: must be at most a quarter of the window",
        ),
        (&["--config", "-"], "cannot both be read from standard input"),
    ] {
        let message = simulate("0,0\n5,0\n", args).failed(2);
        assert!(message.contains(why), "{args:?}: {message}");
    }
}
