//! Fields with invalid values.

use std::fmt::Write as _;

use super::errors_of;

/// The messages for each of these items in a limit that is otherwise valid.
#[track_caller]
fn errors_of_items(items: &[&str]) -> String {
    let mut messages = String::new();
    for item in items {
        let file = format!("limits:\n  - id: a\n    items:\n      - {item}\n");
        writeln!(messages, "{}\n", errors_of(&file)).expect("writing to a string succeeds");
    }
    messages
}

/// The messages for each of these fields in a limit with one valid item.
#[track_caller]
fn errors_of_fields(fields: &[&str]) -> String {
    let mut messages = String::new();
    for field in fields {
        let file =
            format!("limits:\n  - id: a\n    items: [{{policy: day, limit: 1, per: key}}]\n    {field}\n");
        writeln!(messages, "{}\n", errors_of(&file)).expect("writing to a string succeeds");
    }
    messages
}

#[test]
fn invalid_limits_are_rejected() {
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
    insta::assert_snapshot!(errors_of_items(&items.iter().map(String::as_str).collect::<Vec<_>>()));
}

#[test]
fn unsupported_limits_are_rejected() {
    insta::assert_snapshot!(errors_of_items(&[
        "{policy: sliding, limit: 1000001, window: 1s}",
        "{policy: bucket, limit: 600000007, window: 1s}",
        "{policy: bucket, limit: 1, window: 36525d, burst: 2}",
    ]));
}

#[test]
fn unknown_policies_are_rejected() {
    insta::assert_snapshot!(errors_of_items(&[
        "{policy: dayly, limit: 1}",
        "{policy: Day, limit: 1}",
        "{policy: fixed, limit: 1}"
    ]));
}

#[test]
fn unknown_words_are_rejected() {
    insta::assert_snapshot!(errors_of_items(&[
        "{policy: day, limit: 1, per: user}",
        "{policy: day, limit: 1, per: keys}",
        "{policy: day, limit: 1, charge: cuont}",
        "{policy: sliding, limit: 1, window: 1s, precision: bucket}",
    ]));
    insta::assert_snapshot!(errors_of_fields(&[
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
fn invalid_windows_are_rejected() {
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
    insta::assert_snapshot!(errors_of_items(&items.iter().map(String::as_str).collect::<Vec<_>>()));
}

#[test]
fn invalid_bursts_and_ttls_are_rejected() {
    insta::assert_snapshot!(errors_of_items(&[
        "{policy: bucket, limit: 10, window: 1s, burst: 0}",
        "{policy: bucket, limit: 10, window: 1s, burst: -1}",
        "{policy: bucket, limit: 10, window: 1s, burst: 2.5}",
        "{policy: bucket, limit: 10, window: 1s, burst: \"20\"}",
        "{policy: concurrency, limit: 10, ttl: 0s}",
        "{policy: concurrency, limit: 10, ttl: 60}",
    ]));
}

#[test]
fn fields_of_other_policies_are_rejected() {
    insta::assert_snapshot!(errors_of_items(&[
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
fn invalid_ids_and_names_are_rejected() {
    insta::assert_snapshot!(errors_of(
        "limits:\n  - {id: '', items: [{policy: day, limit: 1}]}\n  - {id: a b, items: [{policy: day, limit: 1, name: ümlaut}]}\n"
    ));
}

#[test]
fn unknown_time_zones_are_rejected() {
    insta::assert_snapshot!(errors_of_fields(&[
        "time_zone: Asia/Shanghia",
        "time_zone: shanghai",
        "time_zone: New York",
        "time_zone: UTC+8",
        "time_zone: Mars/Olympus",
    ]));
}

#[test]
fn invalid_instants_are_rejected() {
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
    insta::assert_snapshot!(errors_of_fields(&fields.iter().map(String::as_str).collect::<Vec<_>>()));
}

#[test]
fn invalid_limit_fields_are_rejected() {
    insta::assert_snapshot!(errors_of_fields(&[
        "max_keys: 0",
        "max_keys: -1",
        "max_keys: all",
        "starts_at: 2026-01-20T00:00:00Z\n    ends_at: 2026-01-20T00:00:00Z",
    ]));
    insta::assert_snapshot!(errors_of("limits: [{id: a, items: []}]"));
}

#[test]
fn invalid_overrides_are_rejected() {
    let long = format!("overrides: [{{key: {}, item: key/day, limit: 1}}]", "k".repeat(1025));
    insta::assert_snapshot!(errors_of_fields(&[
        "overrides: [{key: a, item: day, limit: 1}]",
        "overrides: [{key: a, item: key/day, limit: -7, until: soon}]",
        "overrides: [{key: a, item: key/day, limit: 1}, {key: a, item: key/day, limit: 2}]",
        "overrides: [{item: key/day, limit: x}, {key: b, item: nope, limit: 2}]",
        &long,
    ]));
    insta::assert_snapshot!(errors_of(
        "limits: [{id: a, items: [{policy: day, limit: 1}], overrides: [{key: a, item: all/day, limit: 1}]}]"
    ));
}

#[test]
fn reserved_ids_are_rejected() {
    for id in ["cl.throttle", "cl.throttle/1/2/3"] {
        let messages = errors_of(format!("limits: [{{id: {id}, items: [{{policy: day, limit: 1}}]}}]\n"));
        assert!(messages.contains("1:15: limits[0].id: limits called cl.throttle belong to"), "{messages}");
    }
    let near = b"limits: [{id: cl.throttles, items: [{policy: day, limit: 1}]}]";
    assert!(tidegate_config::limits::read_text("tidegate.yaml", near).is_ok());
}
