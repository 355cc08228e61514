use crate::{Files, example, run};

const GOOD: &str =
    "limits:\n  - id: a\n    items: [{policy: total, limit: 1}, {policy: day, limit: 1, per: key}]\n";
const BAD: &str = "limits:\n  - id: a\n    items: [{policy: dya, limit: 1.5}]\n  - {id: a!, items: []}\n";

#[test]
fn valid_file_prints_one_line() {
    let files = Files::new();
    let path = files.write("tidegate.yaml", GOOD);
    assert_eq!(run(&["check", &path], "").done(), format!("{path}: ok, 1 limit, 2 items\n"));
    assert_eq!(run(&["check", "-"], GOOD).done(), "stdin: ok, 1 limit, 2 items\n");
    assert_eq!(run(&["check", "-"], "").done(), "stdin: ok, 0 limits, 0 items\n");
}

#[test]
fn examples_are_valid() {
    assert!(
        run(&["check", &example("spring-sale/tidegate.yaml")], "")
            .done()
            .ends_with(": ok, 3 limits, 6 items\n")
    );
}

#[test]
fn cpu_settings_are_checked() {
    let path = example("cpu/cpu.yaml");
    assert_eq!(run(&["check", &path], "").done(), format!("{path}: ok, settings of the CPU governor\n"));
    let json = run(&["check", "--json", &path], "").done();
    assert_eq!(json, "{\"ok\":true,\"limits\":0,\"items\":0,\"errors\":[],\"warnings\":[]}\n");

    let bad = "avg_load_limit_percent: 30\nmin_load_percent: 200\nlimits: []\n";
    let invalid = run(&["check", "-"], bad).failed(2);
    assert!(
        invalid.contains("stdin:2:19: min_load_percent") && invalid.contains("stdin:3:1: limits"),
        "{invalid}"
    );
    let report = run(&["check", "--json", "-"], bad);
    assert_eq!((report.code, &*report.err), (Some(2), "2 errors in stdin\n"));

    // A conflict with a default value: the reserve of one percent.
    let invalid = run(&["check", "-"], "min_load_percent: 30\n").failed(2);
    assert!(invalid.contains("min_load_percent") && invalid.contains("29.7"), "{invalid}");
    let report = run(&["check", "--json", "-"], "min_load_percent: 30\n");
    assert!(report.out.contains("\"field\":\"min_load_percent\""), "{}", report.out);
}

#[test]
fn all_errors_are_reported_with_positions() {
    let files = Files::new();
    let path = files.write("tidegate.yaml", BAD);
    let invalid = run(&["check", &path], "").failed(2);
    for part in [
        ":3:22: limits[0].items[0].policy",
        ":3:34: limits[0].items[0].limit",
        "limits[1].id",
        "limits[1].items",
    ] {
        assert!(invalid.contains(part), "{part} in {invalid}");
    }
    assert!(invalid.ends_with(&format!("4 errors in {path}\n")), "{invalid}");
    assert!(!invalid.contains('\u{1b}'), "{invalid}");
}

#[test]
fn postgres_url_is_checked() {
    let text = "store: {url: \"postgres://app:hunter2@db/limits?pool_size=0\"}\n";
    let invalid = run(&["check", "-"], text).failed(2);
    assert!(invalid.contains("store.url") && invalid.contains("from 1 to 64"), "{invalid}");
    let report = run(&["check", "--json", "-"], text);
    assert_eq!(
        (report.code, report.out.contains("\"field\":\"store.url\"")),
        (Some(2), true),
        "{}",
        report.out
    );
    assert!(!invalid.contains("hunter2") && !report.out.contains("hunter2"));
    assert!(run(&["check", "-"], &text.replace("=0", "=1")).done().ends_with("ok, 0 limits, 0 items\n"));
}

#[test]
fn json_output_lists_errors() {
    let good = run(&["check", "--json", "-"], GOOD).done();
    assert_eq!(good, "{\"ok\":true,\"limits\":1,\"items\":2,\"errors\":[],\"warnings\":[]}\n");

    let bad = run(&["check", "--json", "-"], BAD);
    assert_eq!((bad.code, &*bad.err), (Some(2), "4 errors in stdin\n"));
    let report: serde_json::Value = serde_json::from_str(&bad.out).expect("JSON");
    assert_eq!(report["ok"], false);
    assert_eq!(report["limits"], 0);
    assert_eq!(report["errors"].as_array().map(Vec::len), Some(4));
    let first = &report["errors"][0];
    assert_eq!((&first["file"], &first["line"], &first["column"]), (&"stdin".into(), &3.into(), &22.into()));
    assert_eq!(first["field"], "limits[0].items[0].policy");
    assert!(first["message"].is_string() && first.get("help").is_some());

    let missing = run(&["check", "--json", "/nowhere.yaml"], "");
    assert_eq!(missing.code, Some(2));
    let report: serde_json::Value = serde_json::from_str(&missing.out).expect("JSON");
    assert_eq!((&report["ok"], &report["errors"][0]["file"]), (&false.into(), &"/nowhere.yaml".into()));
}

#[test]
fn unreadable_file_is_bad_input() {
    let files = Files::new();
    let path = files.path("nowhere.yaml").display().to_string();
    let why = run(&["check", &path], "").failed(2);
    assert!(why.starts_with(&format!("cannot read {path}: No such file")), "{why}");
    assert!(run(&["check", &files.path("").display().to_string()], "").failed(2).contains("directory"));
}

#[test]
fn schema_is_json() {
    let schema: serde_json::Value =
        serde_json::from_str(&run(&["check", "--schema"], "").done()).expect("JSON");
    assert!(schema["$schema"].is_string());
}
