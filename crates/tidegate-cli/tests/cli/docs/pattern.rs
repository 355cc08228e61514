//! Output with `…` in it, compared with real output.

/// Whether the real output is what is shown, line by line.
pub(super) fn matches(shown: &str, printed: &str) -> bool {
    let mut lines = (shown.lines(), printed.lines());
    loop {
        match (lines.0.next(), lines.1.next()) {
            (None, None) => return true,
            (Some(shown), Some(printed)) if line_matches(shown, printed) => {}
            _ => return false,
        }
    }
}

/// Whether all parts of a shown line are in the printed one, in order, with nothing but a `…` between them.
fn line_matches(shown: &str, printed: &str) -> bool {
    let mut parts = shown.split('…');
    let Some(mut rest) = parts.next().and_then(|first| printed.strip_prefix(first)) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        let is_last = parts.peek().is_none();
        let found = if is_last { rest.ends_with(part).then_some("") } else { text_after(rest, part) };
        let Some(after) = found else { return false };
        rest = after;
    }
    true
}

/// What follows the first occurrence of a part.
fn text_after<'a>(text: &'a str, part: &str) -> Option<&'a str> {
    text.split_once(part).map(|(_, after)| after)
}

#[test]
fn ellipsis_matches_a_part_of_one_line() {
    for (shown, printed) in [
        ("a", "a"),
        ("a…", "a"),
        ("a…", "abc"),
        ("…", "x"),
        ("a … c …", "a b c d"),
        ("…c", "cc"),
        ("a\n…b", "a\nxb"),
    ] {
        assert!(matches(shown, printed), "{shown} {printed}");
    }
    for (shown, printed) in
        [("a", "ab"), ("a", "a\na"), ("a\na", "a"), ("a…c", "ab"), ("…a…", "b"), ("a…", "b"), ("…", "a\nb")]
    {
        assert!(!matches(shown, printed), "{shown} {printed}");
    }
}
