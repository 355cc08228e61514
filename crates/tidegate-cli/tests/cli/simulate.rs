use std::io::Read;
use std::process::Stdio;

use serde_json::Value;

use crate::{Files, Run, example, run, run_bytes, tidegate};

/// Runs events through limits in YAML.
fn simulate(limits: &str, events: &str, more: &[&str]) -> Run {
    let files = Files::new();
    let limits = files.write("limits.yaml", limits);
    run(&[&["simulate", "--limits", &limits], more].concat(), events)
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Checks events one by one: `at key -> result`, where the result is `ok` or the refusing item.
#[track_caller]
fn check(items: &str, timeline: &str) {
    let limits = format!("limits: [{{id: x, time_zone: Asia/Shanghai, items: [{items}]}}]");
    let steps: Vec<Vec<&str>> = timeline
        .lines()
        .map(|line| line.split_whitespace().collect())
        .filter(|step: &Vec<_>| !step.is_empty())
        .collect();
    let event = |step: &Vec<&str>| {
        let at = if step[0].contains('T') { format!("\"{}+08:00\"", step[0]) } else { step[0].to_owned() };
        let count = step.get(4).unwrap_or(&"1");
        format!(
            "{{\"at\":{at},\"op\":\"{}\",\"limit_id\":\"x\",\"limit_key\":\"{}\",\"count\":{count}}}\n",
            step[1], step[2]
        )
    };
    let events: String = steps.iter().map(event).collect();
    let decisions = lines(&simulate(&limits, &events, &[]).done());
    let found: Vec<&str> =
        decisions.iter().map(|line| line["binding"]["item"].as_str().unwrap_or("ok")).collect();
    let wanted: Vec<&str> = steps.iter().map(|step| step[3]).collect();
    assert_eq!(found, wanted, "{timeline}");
}

#[test]
fn decision_has_its_fields_in_order() {
    let limits = "limits: [{id: x, items: [{policy: sliding, limit: 2, per: key, window: 15s}, {policy: bucket, limit: -1, window: 1s}]}]";
    let events = r#"{"at":1.50,"limit_id":"x","limit_key":"u","count":2}
{"limit_key":"\u0075","at":"1970-01-01T00:00:02Z","limit_id":"x"}
"#;
    let bucket =
        r#"{"limit_id":"x","item":"all/bucket-1s","limit":-1,"used":0,"remaining":-1,"resets_at":null}"#;
    let sliding = r#"{"limit_id":"x","item":"key/sliding-15s","limit":2,"used":2,"remaining":0,"resets_at":"1970-01-01T00:00:16.500000001Z"}"#;
    let first = r#"{"at":1.50,"limit_id":"x","limit_key":"u","allowed":true,"lease":null,"binding":null,"wait":null,"retry_after_ms":null,"degraded":false,"readings":["#;
    let second = r#"{"at":"1970-01-01T00:00:02Z","limit_id":"x","limit_key":"\u0075","allowed":false,"lease":null,"binding":{"limit_id":"x","item":"key/sliding-15s"},"wait":"until","retry_after_ms":14501,"degraded":false,"readings":["#;
    let wanted = format!("{first}{sliding},{bucket}]}}\n{second}{sliding},{bucket}]}}\n");
    assert_eq!(simulate(limits, events, &[]).done(), wanted);
}

#[test]
fn total_limits_are_never_exceeded() {
    check(
        "{policy: total, limit: 3}",
        "
        0 acquire a ok
        0 acquire b ok
        0 acquire c ok
        0 acquire d all/total
        1 peek    d all/total",
    );
    check(
        "{policy: total, limit: 10}",
        "
        0 acquire a ok        8
        0 acquire a all/total 3
        0 acquire a ok        2
        0 peek    a all/total 1
        0 acquire a ok        0",
    );
}

#[test]
fn activity_and_user_limits_apply_together() {
    check(
        "{policy: total, limit: 3}, {policy: day, limit: 1, per: key}",
        "
        2024-12-30T10:00:00 acquire a ok
        2024-12-30T10:00:01 acquire a key/day
        2024-12-31T10:00:00 acquire a ok
        2024-12-31T10:00:00 acquire b ok
        2025-01-01T10:00:00 acquire a all/total
        2025-01-01T10:00:00 peek    b all/total",
    );
}

#[test]
fn calendar_windows_follow_the_time_zone() {
    for unit in ["minute", "hour", "day", "month", "year"] {
        check(
            &format!("{{policy: {unit}, limit: 1, name: it}}"),
            "
            2024-12-31T23:59:59 acquire a ok
            2024-12-31T23:59:59.999999999 acquire a it
            2025-01-01T00:00:00 acquire a ok",
        );
    }
    check(
        "{policy: week, limit: 1, name: it}",
        "
        2024-12-31T23:59:59 acquire a ok
        2025-01-01T00:00:00 acquire a it
        2025-01-05T23:59:59 acquire a it
        2025-01-06T00:00:00 acquire a ok",
    );
    check(
        "{policy: month, limit: 1, name: it}",
        "
        2024-02-29T12:00:00 acquire a ok
        2024-02-29T23:59:59 acquire a it
        2024-03-01T00:00:00 acquire a ok",
    );
}

#[test]
fn interval_is_anchored_at_the_first_hit() {
    check(
        "{policy: interval, limit: 1, window: 60s, name: it}",
        "
        7            acquire a ok
        66.999999999 acquire a it
        67           acquire a ok
        68           acquire a it",
    );
}

#[test]
fn release_of_another_limits_lease_is_refused() {
    let limits = "limits: [{id: x, items: [{policy: concurrency, limit: 1}]}, {id: y, items: [{policy: total, limit: 1}]}]";
    let events = "{\"at\":0,\"limit_id\":\"x\",\"as\":\"a\"}\n{\"at\":1,\"op\":\"release\",\"limit_id\":\"y\",\"lease\":\"a\"}\n";
    let run = simulate(limits, events, &[]);
    assert_eq!(run.code, Some(2));
    assert!(run.err.ends_with(":2: limit_id: lease 'a' is one of limit 'x'\n"), "{}", run.err);
}

#[test]
fn peek_with_label_is_refused() {
    let limits = "limits: [{id: x, items: [{policy: concurrency, limit: 2}]}]";
    let events = "{\"at\":0,\"limit_id\":\"x\",\"as\":\"a\"}\n{\"at\":1,\"limit_id\":\"x\",\"as\":\"a\",\"count\":0}\n{\"at\":2,\"op\":\"release\",\"lease\":\"a\"}\n";
    let out = simulate(limits, events, &[]).done();
    assert_eq!(lines(&out)[2]["released"], true);
}

#[test]
fn labeled_lease_is_released_once_or_expires() {
    let limits = "limits: [{id: x, items: [{policy: concurrency, limit: 1, ttl: 10s}]}]";
    let events = r#"{"at":0,"limit_id":"x","as":"first"}
{"at":1,"limit_id":"x","as":"second"}
{"at":2,"op":"release","lease":"second"}
{"at":2,"op":"release","limit_id":"x","limit_key":"u","lease":"first"}
{"at":3,"op":"release","lease":"first"}
{"at":3,"limit_id":"x","as":"first"}
{"at":13,"op":"release","lease":"first"}
{"at":13,"op":"peek","limit_id":"x"}
"#;
    let out = simulate(limits, events, &[]).done();
    let decisions = lines(&out);
    assert_eq!(decisions[0]["lease"]["fence"], 1);
    assert_eq!(decisions[0]["lease"]["expires_at"], "1970-01-01T00:00:10Z");
    assert_eq!(decisions[0]["lease"]["id"].as_str().map(str::len), Some(32));
    assert_eq!(
        (&decisions[1]["wait"], &decisions[1]["retry_after_ms"]),
        (&"on_release".into(), &Value::Null)
    );
    let texts: Vec<&str> = out.lines().collect();
    assert_eq!(texts[2], r#"{"at":2,"limit_id":null,"limit_key":null,"released":false}"#);
    assert_eq!(texts[3], r#"{"at":2,"limit_id":"x","limit_key":"u","released":true}"#);
    assert_eq!(texts[4], r#"{"at":3,"limit_id":null,"limit_key":null,"released":false}"#);
    assert_eq!(decisions[5]["lease"]["fence"], 2);
    assert_eq!(texts[6], r#"{"at":13,"limit_id":null,"limit_key":null,"released":false}"#);
    assert_eq!(decisions[7]["allowed"], true);
    assert_eq!(decisions[7]["lease"], Value::Null);
}

#[test]
fn reset_clears_a_key_or_everything() {
    let limits = "limits: [{id: x, items: [{policy: total, limit: 2}, {policy: total, limit: 1, per: key}]}]";
    let events = r#"{"at":0,"limit_id":"x","limit_key":"u"}
{"at":0,"limit_id":"x","limit_key":"u"}
{"at":0,"op":"reset","limit_id":"x","limit_key":"u"}
{"at":0,"limit_id":"x","limit_key":"u"}
{"at":0,"limit_id":"x","limit_key":"v"}
{"at":0,"op":"reset","limit_id":"x"}
{"at":0,"limit_id":"x","limit_key":"v"}
"#;
    let out = simulate(limits, events, &[]).done();
    let texts: Vec<&str> = out.lines().collect();
    assert_eq!(texts[2], r#"{"at":0,"limit_id":"x","limit_key":"u","reset":true}"#);
    assert_eq!(texts[5], r#"{"at":0,"limit_id":"x","limit_key":null,"reset":true}"#);
    let allowed: Vec<_> = lines(&out).iter().filter_map(|line| line["allowed"].as_bool()).collect();
    assert_eq!(allowed, [true, false, true, false, true]);
}

#[test]
fn event_from_the_past_has_decided_at() {
    let limits = "limits: [{id: x, items: [{policy: sliding, limit: 1, window: 10s}]}]";
    let events = "{\"at\":100.5,\"limit_id\":\"x\"}\n{\"at\":1,\"limit_id\":\"x\"}\n{\"at\":2,\"op\":\"reset\",\"limit_id\":\"x\"}\n{\"at\":100.5,\"limit_id\":\"x\"}\n";
    let out = simulate(limits, events, &[]).done();
    let texts: Vec<&str> = out.lines().collect();
    assert!(texts[1].starts_with(r#"{"at":1,"limit_id":"x","limit_key":null,"decided_at":"1970-01-01T00:01:40.5Z","allowed":false,"#), "{out}");
    assert!(texts[1].contains(r#""wait":"until","retry_after_ms":10001,"#), "{out}");
    assert_eq!(
        texts[2],
        r#"{"at":2,"limit_id":"x","limit_key":null,"decided_at":"1970-01-01T00:01:40.5Z","reset":true}"#
    );
    assert!(!texts[3].contains("decided_at"), "{out}");
}

#[test]
fn summary_counts_refusals_by_binding_item() {
    let limits = "
limits:
  - {id: z, items: [{policy: total, limit: 2}, {policy: day, limit: 1, per: key}]}
  - {id: idle, items: [{policy: total, limit: 1}]}
  - {id: a, mode: shadow, items: [{policy: total, limit: 1}]}
";
    let events = r#"{"at":0,"limit_id":"z","limit_key":"u"}
{"at":0,"limit_id":"z","limit_key":"u"}
{"at":0,"op":"peek","limit_id":"z","limit_key":"u"}
{"at":0,"limit_id":"z","limit_key":"v"}
{"at":0,"limit_id":"z","limit_key":"w"}
{"at":0,"limit_id":"a"}
{"at":0,"limit_id":"a"}
"#;
    let out = simulate(limits, events, &["--summary"]).done();
    let wanted = concat!(
        r#"{"summary":{"z":{"allowed":2,"refused":2,"items":{"all/total":1,"key/day":1}},"#,
        r#""idle":{"allowed":0,"refused":0,"items":{"all/total":0}},"#,
        r#""a":{"allowed":2,"refused":0,"shadow_refused":1,"items":{"all/total":0}}}}"#
    );
    assert_eq!(out.lines().count(), 8);
    assert_eq!(out.lines().last(), Some(wanted));
    assert_eq!(simulate(limits, "", &["--summary"]).done().lines().count(), 1);
    assert_eq!(simulate(limits, "", &[]).done(), "");
}

/// Invalid events and their messages.
const BAD_EVENTS: &[(&str, &str)] = &[
    ("{", "is not JSON: EOF while parsing an object at column 1"),
    ("nonsense", "is not JSON: expected ident at column 2"),
    ("{} {}", "is not JSON: trailing characters at column 4"),
    ("[1]", "must be an object with the fields at, op, limit_id, limit_key, count, as, lease, found a list"),
    ("{\"at\":0,\"limit_id\":\"x\u{0}\"}", "is not JSON: control character"),
    (r#"{"at":0,"limit_id":"x","user":"u"}"#, "user: is not a field of an event; the fields are at, op, "),
    (r#"{"at":0,"limit_id":"x","\u001b[2J":"u"}"#, r"\u{1b}[2J: is not a field"),
    (r#"{"at":0,"at":0,"limit_id":"x"}"#, "at: is written twice"),
    (
        r#"{"limit_id":"x"}"#,
        "at: is missing; every event says when it happens, in RFC 3339 or seconds since 1970",
    ),
    (r#"{"at":null,"limit_id":"x"}"#, "at: is missing"),
    (
        r#"{"at":true,"limit_id":"x"}"#,
        "at: must be RFC 3339 text or a number of seconds since 1970, found true",
    ),
    (r#"{"at":-1,"limit_id":"x"}"#, "at: must not be before 1970, found -1"),
    (
        r#"{"at":9223372037,"limit_id":"x"}"#,
        "at: must not be after second 9223372036 (the year 2262), found 9223372037",
    ),
    (
        r#"{"at":1.0000000001,"limit_id":"x"}"#,
        "at: must not be finer than a nanosecond (9 decimals), found 1.0000000001",
    ),
    (r#"{"at":"2024-12-31T23:59:60Z","limit_id":"x"}"#, "at: must not be a leap second"),
    (r#"{"at":"2024-12-31T23:59:59","limit_id":"x"}"#, "at: must be a date, a time and an offset such as"),
    (r#"{"at":"1969-12-31T23:59:59Z","limit_id":"x"}"#, "at: must not be before 1970"),
    (r#"{"at":"2263-01-01T00:00:00Z","limit_id":"x"}"#, "at: must"),
    (r#"{"at":0}"#, "limit_id: is missing; it says which limit is meant"),
    (r#"{"at":0,"limit_id":"\ud800"}"#, "limit_id: has an escape that is no character"),
    (r#"{"at":0,"limit_id":7}"#, "limit_id: must be text, found a number"),
    (
        r#"{"at":0,"limit_id":"y","limit_key":"u"}"#,
        "limit_id: unknown limit 'y'; known are x, per-key, slots",
    ),
    (r#"{"at":0,"op":"reset","limit_id":"y"}"#, "limit_id: unknown limit 'y'"),
    (r#"{"at":0,"op":"release","limit_id":"y","lease":"l"}"#, "limit_id: unknown limit 'y'"),
    (
        r#"{"at":0,"limit_id":"per-key"}"#,
        "limit_key: limit 'per-key' counts per key; the ask needs a limit_key",
    ),
    (r#"{"at":0,"limit_id":"x","limit_key":["u"]}"#, "limit_key: must be text, found a list"),
    (
        r#"{"at":0,"limit_id":"x","count":-1}"#,
        "count: must be a whole number from 0 to 18446744073709551615, without fraction or exponent, found -1",
    ),
    (r#"{"at":0,"limit_id":"x","count":1.5}"#, "found 1.5"),
    (r#"{"at":0,"limit_id":"x","count":1e3}"#, "found 1e3"),
    (r#"{"at":0,"limit_id":"x","count":18446744073709551616}"#, "found 18446744073709551616"),
    (r#"{"at":0,"limit_id":"x","count":"1"}"#, "count: must be a whole number"),
    (
        r#"{"at":0,"limit_id":"x","op":"take"}"#,
        "op: must be one of acquire, peek, release, reset, found \"take\"",
    ),
    (r#"{"at":0,"limit_id":"x","op":1}"#, "op: must be one of acquire, peek, release, reset, found 1"),
    (
        r#"{"at":0,"limit_id":"x","as":"l"}"#,
        "as: limit 'x' has no concurrency item, so its grants have no lease to name",
    ),
    (
        r#"{"at":0,"op":"peek","limit_id":"slots","as":"l"}"#,
        "as: names the lease of an acquire, and this is peek",
    ),
    (
        r#"{"at":0,"limit_id":"slots","lease":"l"}"#,
        "lease: says what a release gives back, and this is acquire",
    ),
    (
        r#"{"at":0,"op":"release","limit_id":"slots"}"#,
        "lease: is missing; a release names what it gives back",
    ),
    (r#"{"at":0,"op":"release","lease":5}"#, "lease: must be text, found a number"),
];

#[test]
fn invalid_event_names_line_field_and_allowed_values() {
    for (event, why) in BAD_EVENTS {
        let limits = "
limits:
  - {id: x, items: [{policy: total, limit: 9}]}
  - {id: per-key, items: [{policy: total, limit: 9, per: key}]}
  - {id: slots, items: [{policy: concurrency, limit: 9}]}
";
        let good = r#"{"at":0,"limit_id":"x"}"#;
        let run = simulate(limits, &format!("{good}\r\n\n{event}\n{good}\n"), &["--summary"]);
        assert_eq!(run.code, Some(2), "{event}");
        assert_eq!(run.out.lines().count(), 1, "the line before stays printed: {event}");
        assert!(run.err.starts_with("stdin:3: ") && run.err.contains(why), "{event}\n{}", run.err);
        assert_eq!(run.err.lines().count(), 1, "{}", run.err);
    }
}

#[test]
fn invalid_utf8_is_refused_with_line_and_column() {
    let files = Files::new();
    let limits = files.write("limits.yaml", "limits: [{id: x, items: [{policy: total, limit: 9}]}]");
    let output = run_bytes(&["simulate", "--limits", &limits], b"\n{\"at\":0,\"limit_id\":\"\xff\"}\n");
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "stdin:2: is not UTF-8 text from column 21\n");
}

#[test]
fn unusable_file_is_bad_input() {
    let files = Files::new();
    let limits = files.write("limits.yaml", "limits: [{id: x, items: [{policy: total, limit: 9}]}]");
    let broken = files.write("broken.yaml", "limits: [{id: x}]");
    assert!(run(&["simulate", "--limits", "/nowhere"], "").failed(2).starts_with("cannot read /nowhere: "));
    let nowhere = ["simulate", "--limits", &limits, "--input", "/nowhere"];
    assert!(run(&nowhere, "").failed(2).starts_with("cannot read /nowhere: "));
    assert!(run(&["simulate", "--limits", &broken], "").failed(2).contains("limits[0]"));
    assert!(run(&["simulate", "--limits", "-"], "").failed(2).contains("--input FILE"));

    let events = files.write("events.ndjson", "{\"at\":0,\"limit_id\":\"x\"}");
    let out = run(
        &["simulate", "--limits", "-", "--input", &events],
        "limits: [{id: x, items: [{policy: total, limit: 9}]}]",
    );
    assert_eq!(out.done().lines().count(), 1, "a last line needs no line end");
}

#[test]
fn spring_sale_example_has_expected_decisions() {
    let (limits, events) = (example("spring-sale/tidegate.yaml"), example("spring-sale/events.ndjson"));
    let args = ["simulate", "--limits", &limits, "--input", &events, "--summary"];
    let out = run(&args, "").done();
    assert_eq!(out, run(&args, "").done(), "runs are repeatable");
    let summary = lines(&out).pop().expect("a summary");
    assert_eq!(summary["summary"]["spring-sale"]["items"]["key/day"], 2);
    assert_eq!(summary["summary"]["checkout"]["items"]["all/concurrency"], 1);
    assert_eq!(summary["summary"]["search"]["shadow_refused"], 1);
}

#[test]
fn events_are_decided_immediately_and_closed_output_is_no_failure() {
    let files = Files::new();
    let limits = files.write("limits.yaml", "limits: [{id: x, items: [{policy: total, limit: 9}]}]");
    let mut child =
        tidegate(&["simulate", "--limits", &limits]).stderr(Stdio::null()).spawn().expect("it starts");
    let (mut stdin, mut stdout) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
    std::io::Write::write_all(&mut stdin, b"{\"at\":0,\"limit_id\":\"x\"}\n").expect("it reads");
    let mut byte = [0];
    stdout.read_exact(&mut byte).expect("it answers before its input ends");
    drop(stdout);
    // Noticed at the next output line, although the input stays open.
    while std::io::Write::write_all(&mut stdin, b"{\"at\":0,\"limit_id\":\"x\"}\n").is_ok() {}
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}
