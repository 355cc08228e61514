//! Files whose fields are unknown, missing or of the wrong kind.

use super::bad;

#[test]
fn at_the_top() {
    let files =
        ["- id: a\n", "just text\n", "5", "limits: 5\n", "limits: {id: a}\n", "limits: [5, [], null]\n"];
    let told: Vec<_> = files.iter().map(bad).collect();
    insta::assert_snapshot!(told.join("\n\n"));
}

#[test]
fn with_unknown_fields() {
    let text = "limit: []\nfoo: 1\nlimits:\n  - id: a\n    time-zone: UTC\n    TimeZone: UTC\n    zzz:\n    items:\n      - {policy: bucket, limit: 1, window: 1s, brust: 5, max: 3}\n    overrides:\n      - {key: a, item: b, limit: 1, untill: 2026-01-01T00:00:00Z}\n";
    insta::assert_snapshot!(bad(text));
}

#[test]
fn with_missing_fields() {
    insta::assert_snapshot!(bad(
        "limits:\n  - description: x\n  - id: a\n    items:\n      - {}\n      - per: key\n    overrides: [{}]\n  - {id: null, items: null}\n"
    ));
}

#[test]
fn with_fields_that_have_no_value() {
    insta::assert_snapshot!(bad(
        "limits:\n  - id:\n    mode:\n    ends_at:\n    items:\n      - policy: day\n        limit:\n"
    ));
}

#[test]
fn with_values_of_the_wrong_kind() {
    insta::assert_snapshot!(bad(
        "limits:\n  - id: [a]\n    mode: {a: b}\n    time_zone: []\n    ends_at: {}\n    max_keys: []\n    items: none\n    overrides: {key: a}\n  - id: b\n    items: [day, {policy: [day], limit: {}, window: []}]\n"
    ));
}
