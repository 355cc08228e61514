//! Values that a field cannot have.

use std::fmt::Write as _;

use super::bad;

/// What the items of a limit that is otherwise good are told, one file for each line.
#[track_caller]
fn bad_items(items: &[&str]) -> String {
    let mut told = String::new();
    for item in items {
        let file = format!("limits:\n  - id: a\n    items:\n      - {item}\n");
        writeln!(told, "{}\n", bad(&file)).expect("a string takes all writes");
    }
    told
}

/// What a limit with one good item and this field is told, one file for each line.
#[track_caller]
fn bad_fields(fields: &[&str]) -> String {
    let mut told = String::new();
    for field in fields {
        let file =
            format!("limits:\n  - id: a\n    items: [{{policy: day, limit: 1, per: key}}]\n    {field}\n");
        writeln!(told, "{}\n", bad(&file)).expect("a string takes all writes");
    }
    told
}

#[test]
fn of_limit() {
    let limits = [
        "-2",
        "1.5",
        "1e3",
        "5.0",
        "1_000",
        "\"5\"",
        "'many'",
        "unlimited",
        "~five",
        "007",
        "0x10",
        "9223372036854775808",
        "-9223372036854775809",
        "yes",
    ];
    let items: Vec<_> = limits.iter().map(|limit| format!("{{policy: day, limit: {limit}}}")).collect();
    insta::assert_snapshot!(bad_items(&items.iter().map(String::as_str).collect::<Vec<_>>()));
}

#[test]
fn of_limit_that_no_store_can_keep() {
    insta::assert_snapshot!(bad_items(&[
        "{policy: sliding, limit: 1000001, window: 1s}",
        "{policy: bucket, limit: 600000007, window: 1s}",
        "{policy: bucket, limit: 1, window: 36525d, burst: 2}",
    ]));
}

#[test]
fn of_policy() {
    insta::assert_snapshot!(bad_items(&[
        "{policy: dayly, limit: 1}",
        "{policy: Day, limit: 1}",
        "{policy: fixed, limit: 1}"
    ]));
}

#[test]
fn of_words() {
    insta::assert_snapshot!(bad_items(&[
        "{policy: day, limit: 1, per: user}",
        "{policy: day, limit: 1, per: keys}",
        "{policy: day, limit: 1, charge: cuont}",
        "{policy: sliding, limit: 1, window: 1s, precision: bucket}",
    ]));
    insta::assert_snapshot!(bad_fields(&[
        "mode: enforced",
        "mode: on",
        "on_outage: allow",
        "durability: synch",
        "fleet: sliced ok",
        "week_start: sun",
        "week_start: sundy",
    ]));
}

#[test]
fn of_window() {
    let windows = [
        "10",
        "1h30m",
        "1.5h",
        "10 s",
        "10sec",
        "10M",
        "-5s",
        "s",
        "5x",
        "0s",
        "0ms",
        "36526d",
        "99999999999999999999d",
        "1.5ms",
        "\"\"",
        "１０s",
    ];
    let items: Vec<_> =
        windows.iter().map(|window| format!("{{policy: sliding, limit: 1, window: {window}}}")).collect();
    insta::assert_snapshot!(bad_items(&items.iter().map(String::as_str).collect::<Vec<_>>()));
}

#[test]
fn of_burst_and_ttl() {
    insta::assert_snapshot!(bad_items(&[
        "{policy: bucket, limit: 10, window: 1s, burst: 0}",
        "{policy: bucket, limit: 10, window: 1s, burst: -1}",
        "{policy: bucket, limit: 10, window: 1s, burst: 2.5}",
        "{policy: bucket, limit: 10, window: 1s, burst: \"20\"}",
        "{policy: concurrency, limit: 10, ttl: 0s}",
        "{policy: concurrency, limit: 10, ttl: 60}",
    ]));
}

#[test]
fn of_fields_that_do_not_belong() {
    insta::assert_snapshot!(bad_items(&[
        "{policy: total, limit: 1, window: 1s}",
        "{policy: day, limit: 1, window: 1d}",
        "{policy: concurrency, limit: 1, window: 1s}",
        "{policy: sliding, limit: 1, window: 1s, burst: 5}",
        "{policy: interval, limit: 1, window: 1s, precision: exact}",
        "{policy: bucket, limit: 1, window: 1s, ttl: 5s}",
        "{policy: interval, limit: 1}",
        "{policy: sliding, limit: 1}",
        "{policy: bucket, limit: 1, burst: 5}",
    ]));
}

#[test]
fn of_ids_and_names() {
    insta::assert_snapshot!(bad(
        "limits:\n  - {id: '', items: [{policy: day, limit: 1}]}\n  - {id: a b, items: [{policy: day, limit: 1, name: ümlaut}]}\n"
    ));
}

#[test]
fn of_time_zone() {
    insta::assert_snapshot!(bad_fields(&[
        "time_zone: Asia/Shanghia",
        "time_zone: shanghai",
        "time_zone: New York",
        "time_zone: UTC+8",
        "time_zone: Mars/Olympus",
    ]));
}

#[test]
fn of_instants() {
    let instants = [
        "2026-01-20",
        "2026-01-20T00:00:00",
        "2026-01-20 00:00:00Z",
        "2026-01-20T00:00Z",
        "2026-01-20T00:00",
        "2026-02-30T00:00:00Z",
        "2026-13-01T00:00:00Z",
        "2026-01-20T24:00:00Z",
        "2016-12-31T23:59:60Z",
        "2026-01-20T00:00:00+24:00",
        "2026-01-20T00:00:00+08",
        "2026-01-20T00:00:00+08:00[Asia/Shanghai]",
        "2026-01-20T00:00:00.0000000001Z",
        "1969-12-31T23:59:59Z",
        "2262-04-12T00:00:00Z",
        "9999-12-31T23:59:59-23:59",
        "1768838400",
        "tomorrow",
    ];
    let fields: Vec<_> = instants.iter().map(|at| format!("ends_at: {at}")).collect();
    insta::assert_snapshot!(bad_fields(&fields.iter().map(String::as_str).collect::<Vec<_>>()));
}

#[test]
fn of_the_rest_of_a_limit() {
    insta::assert_snapshot!(bad_fields(&[
        "max_keys: 0",
        "max_keys: -1",
        "max_keys: all",
        "starts_at: 2026-01-20T00:00:00Z\n    ends_at: 2026-01-20T00:00:00Z",
    ]));
    insta::assert_snapshot!(bad("limits: [{id: a, items: []}]"));
}

#[test]
fn of_overrides() {
    let long = format!("overrides: [{{key: {}, item: key/day, limit: 1}}]", "k".repeat(1025));
    insta::assert_snapshot!(bad_fields(&[
        "overrides: [{key: a, item: day, limit: 1}]",
        "overrides: [{key: a, item: key/day, limit: -7, until: soon}]",
        "overrides: [{key: a, item: key/day, limit: 1}, {key: a, item: key/day, limit: 2}]",
        "overrides: [{item: key/day, limit: x}, {key: b, item: nope, limit: 2}]",
        &long,
    ]));
    insta::assert_snapshot!(bad(
        "limits: [{id: a, items: [{policy: day, limit: 1}], overrides: [{key: a, item: all/day, limit: 1}]}]"
    ));
}

#[test]
fn of_ids_that_belong_to_commands() {
    for id in ["cl.throttle", "cl.throttle/1/2/3"] {
        let told = bad(format!("limits: [{{id: {id}, items: [{{policy: day, limit: 1}}]}}]\n"));
        assert!(told.contains("1:15: limits[0].id: limits called cl.throttle belong to"), "{told}");
    }
    let near = b"limits: [{id: cl.throttles, items: [{policy: day, limit: 1}]}]";
    assert!(tidegate_config::limits::read_text("tidegate.yaml", near).is_ok());
}
