//! Files with an invalid encoding, syntax or size.

use std::fmt::Write as _;

use tidegate_config::limits::read_text;

use super::errors_of;

#[test]
fn file_with_broken_yaml_is_rejected() {
    let files = [
        "limits:\n\t- id: a\n",
        "limits: [\n",
        "limits: [{id: a]\n",
        "limits:\n  - id: a: b\n",
        "limits:\n  - id: \"a\n    items: []\n",
        "limits:\n  - id: @a\n",
        "limits: []\n  more: 1\n",
        "{\"limits\": []} trailing",
        "limits:\n  - {id: a items: 3}\n",
        "limits: \"\\q\"\n",
    ];
    let messages: Vec<_> = files.iter().map(errors_of).collect();
    insta::assert_snapshot!(messages.join("\n\n"));
}

#[test]
fn file_with_invalid_characters_is_rejected() {
    let files: [&[u8]; 4] = [
        b"limits:\n  - id: caf\xe9\n",
        b"\xff\xfel\0i\0m\0",
        b"limits: []\n\0",
        b"limits:\n  - id: a\x1b[31m\n",
    ];
    let messages: Vec<_> = files.iter().map(errors_of).collect();
    insta::assert_snapshot!(messages.join("\n\n"));
}

#[test]
fn file_with_two_documents_is_rejected() {
    insta::assert_snapshot!(errors_of("limits: []\n---\nlimits: []\n"));
}

#[test]
fn file_with_duplicate_keys_is_rejected() {
    insta::assert_snapshot!(errors_of(
        "limits:\n  - id: a\n    items: [{policy: day, limit: 1, limit: 2}]\n    id: b\nlimits: []\n"
    ));
}

#[test]
fn file_with_non_text_keys_is_rejected() {
    insta::assert_snapshot!(errors_of("[a, b]: 1\n{}: 2\n"));
}

#[test]
fn file_with_tags_is_rejected() {
    insta::assert_snapshot!(errors_of(
        "limits:\n  - id: !!str 5\n    items: !mine [{policy: day, limit: 1}]\n"
    ));
}

#[test]
fn file_with_invalid_aliases_is_rejected() {
    insta::assert_snapshot!(errors_of("limits:\n  - id: *none\n    items: &items [*items]\n"));
}

#[test]
fn file_with_merge_keys_is_rejected() {
    insta::assert_snapshot!(errors_of(
        "limits:\n  - {id: a, items: [&day {policy: day, limit: 2}, {<<: *day, limit: 1}]}\n"
    ));
}

#[test]
fn file_above_size_limit_is_rejected() {
    let messages = errors_of(vec![b'#'; (64 << 20) + 1]);
    assert!(messages.contains("at most 64 MiB"), "{messages}");
}

#[test]
fn file_above_depth_limit_is_rejected() {
    for text in ["[".repeat(100_000), "- ".repeat(100_000), "{a: ".repeat(100_000)] {
        let messages = errors_of(text);
        assert!(messages.contains("levels deep"), "{messages}");
    }
    // Each alias adds one level.
    let mut text = String::from("a0: &a0 [x]\n");
    for level in 1..1000 {
        writeln!(text, "a{level}: &a{level} [*a{}]", level - 1).expect("writing to a string succeeds");
    }
    assert!(errors_of(text).contains("levels deep"));
}

/// A value counts once, regardless of its depth.
#[test]
fn file_with_nearly_one_million_values_is_accepted() {
    let text = format!("envoy: [[[[[{}0]]]]]\n", "0,".repeat(900_000));
    assert!(read_text("tidegate.yaml", text.as_bytes()).is_ok());
}

#[test]
fn file_with_exponential_aliases_is_rejected() {
    let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..20 {
        let ten = vec![format!("*a{}", level - 1); 10].join(", ");
        writeln!(text, "a{level}: &a{level} [{ten}]").expect("writing to a string succeeds");
    }
    assert!(errors_of(text).contains("counting those behind aliases"));
}
