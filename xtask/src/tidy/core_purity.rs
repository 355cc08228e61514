//! The core is pure arithmetic: no clock, files, sockets, threads or floating point.
//!
//! `now` is an argument, and rounding is part of the contract; one convenient line would break either. Only the calendar uses
//! jiff, so that the rest can be read without knowing it.

use super::tokens::Token;
use super::{SourceText, Violation};

const CORE_SOURCES: &str = "crates/tidegate-core/src";
/// The calendar module and its submodules.
const CALENDAR: &str = "crates/tidegate-core/src/calendar";

const PURE: &str = "the core does no I/O, reads no clock, spawns nothing, and has no floating point";
const JIFF: &str = "in the core only the calendar uses jiff";

const FORBIDDEN_WORDS: &[&str] = &["Instant", "SystemTime", "tokio", "f32", "f64"];
const FORBIDDEN_OF_STD: &[&str] = &["fs", "net", "thread", "process", "env"];

pub(super) fn violations(text: &SourceText, tokens: &[Token<'_>]) -> Vec<Violation> {
    if !text.path.starts_with(CORE_SOURCES) {
        return Vec::new();
    }
    let mut violations = Vec::new();
    for token in tokens {
        if FORBIDDEN_WORDS.contains(&token.text) || is_float(token.text) {
            violations.push(Violation::at(&text.path, token.line, PURE, token.text));
        }
        if token.text == "jiff" && !text.path.with_extension("").starts_with(CALENDAR) {
            violations.push(Violation::at(&text.path, token.line, JIFF, token.text));
        }
    }
    let of_std = modules_of_std(tokens).into_iter().filter(|token| FORBIDDEN_OF_STD.contains(&token.text));
    violations.extend(
        of_std.map(|token| Violation::at(&text.path, token.line, PURE, format!("std::{}", token.text))),
    );
    violations
}

/// A number with a floating-point suffix: `1f64`.
fn is_float(word: &str) -> bool {
    word.starts_with(|letter: char| letter.is_ascii_digit())
        && !word.starts_with("0x")
        && (word.ends_with("f32") || word.ends_with("f64"))
}

/// The names after `std::`, also in groups: `std::fs`, `std::{fmt, net::{…}}`.
fn modules_of_std<'t, 'a>(tokens: &'t [Token<'a>]) -> Vec<&'t Token<'a>> {
    let mut found = Vec::new();
    for (index, window) in tokens.windows(4).enumerate() {
        let [first, colon, another, next] = window else { continue };
        match [first.text, colon.text, another.text, next.text] {
            ["std", ":", ":", "{"] => found.extend(heads_of_group(&tokens[index + 4..])),
            ["std", ":", ":", _] => found.push(next),
            _ => {}
        }
    }
    found
}

/// The first name of every entry of a group, up to its closing brace.
fn heads_of_group<'t, 'a>(tokens: &'t [Token<'a>]) -> Vec<&'t Token<'a>> {
    let mut heads = Vec::new();
    let (mut depth, mut begins) = (1, true);
    for token in tokens {
        match token.text {
            "{" => depth += 1,
            "}" => depth -= 1,
            "," if depth == 1 => begins = true,
            _ if depth == 1 && begins => {
                heads.push(token);
                begins = false;
            }
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    heads
}

#[cfg(test)]
mod tests {
    use super::super::tests::text;
    use super::super::tokens::tokens;
    use super::*;

    fn found_in(path: &str, source: &str) -> Vec<String> {
        let text = text(path, source);
        violations(&text, &tokens(&text.content)).into_iter().map(|violation| violation.found).collect()
    }

    fn found(source: &str) -> Vec<String> {
        found_in("crates/tidegate-core/src/law.rs", source)
    }

    #[test]
    fn clocks_files_sockets_threads_and_floats_are_violations() {
        assert_eq!(found("use std::time::{Duration, Instant};"), ["Instant"]);
        assert_eq!(found("let t = std::time::SystemTime::now();"), ["SystemTime"]);
        assert_eq!(found("std::fs::read(p)"), ["std::fs"]);
        assert_eq!(found("use std::net::IpAddr;"), ["std::net"]);
        assert_eq!(found("use std::{fmt, thread};"), ["std::thread"]);
        assert_eq!(found("use std::{fmt::{self, Display}, net::{IpAddr}};"), ["std::net"]);
        assert_eq!(found("async fn f() { tokio::spawn(g()) }"), ["tokio"]);
        assert_eq!(found("x as f64 + 1f32"), ["f64", "1f32"]);
    }

    #[test]
    fn comments_strings_and_similar_names_are_allowed() {
        assert_eq!(
            found("// f64 and std::fs\n/// Instant\nlet thread = \"std::net\"; let x = 0xf64;"),
            [""; 0]
        );
        assert_eq!(found("use std::{fmt::{fs, net}};"), [""; 0]);
        assert_eq!(found_in("crates/tidegate/src/clock.rs", "std::time::Instant::now()"), [""; 0]);
    }

    #[test]
    fn jiff_is_allowed_only_in_the_calendar() {
        assert_eq!(found("use jiff::Span;"), ["jiff"]);
        assert_eq!(found_in("crates/tidegate-core/src/calendar.rs", "use jiff::Span;"), [""; 0]);
        assert_eq!(
            found_in("crates/tidegate-core/src/calendar/window_schedule.rs", "use jiff::Span;"),
            [""; 0]
        );
    }
}
