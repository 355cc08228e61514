//! Text that is no settings file at all.

use std::fmt::Write as _;

use tidegate_config::limits::read_text;

use super::bad;

#[test]
fn that_is_not_yaml() {
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
    let told: Vec<_> = files.iter().map(bad).collect();
    insta::assert_snapshot!(told.join("\n\n"));
}

#[test]
fn that_is_not_text() {
    let files: [&[u8]; 4] = [
        b"limits:\n  - id: caf\xe9\n",
        b"\xff\xfel\0i\0m\0",
        b"limits: []\n\0",
        b"limits:\n  - id: a\x1b[31m\n",
    ];
    let told: Vec<_> = files.iter().map(bad).collect();
    insta::assert_snapshot!(told.join("\n\n"));
}

#[test]
fn with_two_documents() {
    insta::assert_snapshot!(bad("limits: []\n---\nlimits: []\n"));
}

#[test]
fn with_a_key_twice() {
    insta::assert_snapshot!(bad(
        "limits:\n  - id: a\n    items: [{policy: day, limit: 1, limit: 2}]\n    id: b\nlimits: []\n"
    ));
}

#[test]
fn with_keys_that_are_not_text() {
    insta::assert_snapshot!(bad("[a, b]: 1\n{}: 2\n"));
}

#[test]
fn with_tags() {
    insta::assert_snapshot!(bad("limits:\n  - id: !!str 5\n    items: !mine [{policy: day, limit: 1}]\n"));
}

#[test]
fn with_aliases_of_nothing_and_of_themselves() {
    insta::assert_snapshot!(bad("limits:\n  - id: *none\n    items: &items [*items]\n"));
}

#[test]
fn with_merge_keys() {
    insta::assert_snapshot!(bad(
        "limits:\n  - {id: a, items: [&day {policy: day, limit: 2}, {<<: *day, limit: 1}]}\n"
    ));
}

#[test]
fn that_is_too_large() {
    let told = bad(vec![b'#'; (64 << 20) + 1]);
    assert!(told.contains("at most 64 MiB"), "{told}");
}

#[test]
fn that_is_too_deep() {
    for text in ["[".repeat(100_000), "- ".repeat(100_000), "{a: ".repeat(100_000)] {
        let told = bad(text);
        assert!(told.contains("levels deep"), "{told}");
    }
    // Deeper by one alias at a time.
    let mut text = String::from("a0: &a0 [x]\n");
    for level in 1..1000 {
        writeln!(text, "a{level}: &a{level} [*a{}]", level - 1).expect("a string takes all writes");
    }
    assert!(bad(text).contains("levels deep"));
}

/// A value is counted once, however deep it lies.
#[test]
fn with_very_many_values_is_still_a_file() {
    let text = format!("envoy: [[[[[{}0]]]]]\n", "0,".repeat(900_000));
    assert!(read_text("tidegate.yaml", text.as_bytes()).is_ok());
}

#[test]
fn that_unfolds_without_end() {
    let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..20 {
        let ten = vec![format!("*a{}", level - 1); 10].join(", ");
        writeln!(text, "a{level}: &a{level} [{ten}]").expect("a string takes all writes");
    }
    assert!(bad(text).contains("counting those behind aliases"));
}
