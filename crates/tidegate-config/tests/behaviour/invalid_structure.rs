//! Files with unknown fields, missing fields or values of the wrong type.

use super::errors_of;

#[test]
fn file_with_invalid_top_level_is_rejected() {
    let files =
        ["- id: a\n", "just text\n", "5", "limits: 5\n", "limits: {id: a}\n", "limits: [5, [], null]\n"];
    let messages: Vec<_> = files.iter().map(errors_of).collect();
    insta::assert_snapshot!(messages.join("\n\n"));
}

#[test]
fn file_with_unknown_fields_is_rejected() {
    let text = "limit: []\nfoo: 1\nlimits:\n  - id: a\n    time-zone: UTC\n    TimeZone: UTC\n    zzz:\n    items:\n      - {policy: bucket, limit: 1, window: 1s, brust: 5, max: 3}\n    overrides:\n      - {key: a, item: b, limit: 1, untill: 2026-01-01T00:00:00Z}\n";
    insta::assert_snapshot!(errors_of(text));
}

#[test]
fn file_with_missing_fields_is_rejected() {
    insta::assert_snapshot!(errors_of(
        "limits:\n  - description: x\n  - id: a\n    items:\n      - {}\n      - per: key\n    overrides: [{}]\n  - {id: null, items: null}\n"
    ));
}

#[test]
fn file_with_empty_fields_is_rejected() {
    insta::assert_snapshot!(errors_of(
        "limits:\n  - id:\n    mode:\n    ends_at:\n    items:\n      - policy: day\n        limit:\n"
    ));
}

#[test]
fn file_with_values_of_wrong_type_is_rejected() {
    insta::assert_snapshot!(errors_of(
        "limits:\n  - id: [a]\n    mode: {a: b}\n    time_zone: []\n    ends_at: {}\n    max_keys: []\n    items: none\n    overrides: {key: a}\n  - id: b\n    items: [day, {policy: [day], limit: {}, window: []}]\n"
    ));
}
