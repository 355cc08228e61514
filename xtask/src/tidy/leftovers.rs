//! No unfinished work in code: no `todo!`, no ignored tests.

use super::tokens::Token;
use super::{SourceText, Violation};

const FINISHED: &str = "no unfinished work in code";
const TESTS_RUN: &str = "every test runs";

const MACROS: &[&str] = &["todo", "unimplemented", "dbg"];

pub(super) fn violations(text: &SourceText, tokens: &[Token<'_>]) -> Vec<Violation> {
    let leftover = |three: &[Token<'_>]| match [three[0].text, three[1].text, three[2].text] {
        [name, "!", "(" | "[" | "{"] if MACROS.contains(&name) => {
            Some(Violation::at(&text.path, three[0].line, FINISHED, format!("{name}!")))
        }
        ["#", "[", "ignore"] => Some(Violation::at(&text.path, three[0].line, TESTS_RUN, "#[ignore]")),
        _ => None,
    };
    tokens.windows(3).filter_map(leftover).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::text;
    use super::super::tokens::tokens;
    use super::*;

    fn found(source: &str) -> Vec<String> {
        let text = text("a.rs", source);
        violations(&text, &tokens(&text.content)).into_iter().map(|violation| violation.to_string()).collect()
    }

    #[test]
    fn each_leftover_is_reported_with_its_line() {
        assert_eq!(found("fn a() {\n    todo!()\n}"), [format!("a.rs:2: todo! (rule: {FINISHED})")]);
        assert_eq!(found("unimplemented!(); dbg!(x)").len(), 2);
        assert_eq!(
            found("#[test]\n#[ignore = \"slow\"]"),
            [format!("a.rs:2: #[ignore] (rule: {TESTS_RUN})")]
        );
    }

    #[test]
    fn similar_words_are_allowed() {
        assert_eq!(found("// todo!\nlet todo = 1; if todo != 2 { ignore() } \"dbg!(x)\""), [""; 0]);
    }
}
