//! Work that was left for later: it is finished or it is not there.

use super::code::Token;
use super::{Breach, Text};

const FINISHED: &str = "nothing is left for later in code";
const TESTS_RUN: &str = "a test runs or is not there";

const MACROS: &[&str] = &["todo", "unimplemented", "dbg"];

pub(super) fn breaches(text: &Text, tokens: &[Token<'_>]) -> Vec<Breach> {
    let leftover = |three: &[Token<'_>]| match [three[0].text, three[1].text, three[2].text] {
        [name, "!", "(" | "[" | "{"] if MACROS.contains(&name) => {
            Some(Breach::at(&text.path, three[0].line, FINISHED, format!("{name}!")))
        }
        ["#", "[", "ignore"] => Some(Breach::at(&text.path, three[0].line, TESTS_RUN, "#[ignore]")),
        _ => None,
    };
    tokens.windows(3).filter_map(leftover).collect()
}

#[cfg(test)]
mod tests {
    use super::super::code::tokens;
    use super::super::tests::text;
    use super::*;

    fn found(source: &str) -> Vec<String> {
        let text = text("a.rs", source);
        breaches(&text, &tokens(&text.content)).into_iter().map(|breach| breach.to_string()).collect()
    }

    #[test]
    fn each_leftover_is_found_with_its_line() {
        assert_eq!(found("fn a() {\n    todo!()\n}"), [format!("a.rs:2: todo! (rule: {FINISHED})")]);
        assert_eq!(found("unimplemented!(); dbg!(x)").len(), 2);
        assert_eq!(
            found("#[test]\n#[ignore = \"slow\"]"),
            [format!("a.rs:2: #[ignore] (rule: {TESTS_RUN})")]
        );
    }

    #[test]
    fn words_that_only_look_like_it_are_not() {
        assert_eq!(found("// todo!\nlet todo = 1; if todo != 2 { ignore() } \"dbg!(x)\""), [""; 0]);
    }
}
