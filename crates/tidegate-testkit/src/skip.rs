//! Tests that this machine cannot run.
//!
//! A skipped test must not look like a passed one. [`skip`] says so on the error stream, and adds the test to a list if a
//! test runner asks for one. It never panics: the caller returns after it, and the test passes.

use std::fs::OpenOptions;
use std::io::{self, Write};

/// Names the file to which skipped tests are appended, one line `<test name>\t<reason>` each.
pub const SKIPPED_TESTS: &str = "TIDEGATE_SKIPPED_TESTS";

/// Reports that the current test cannot run on this machine. The caller returns right after it.
///
/// The test's name is that of the current thread, so call this from the thread that the test harness started. Errors of the
/// list file are ignored.
pub fn skip(reason: &str) {
    let _stderr_is_closed = writeln!(io::stderr(), "skipped: {reason}");
    #[expect(clippy::disallowed_methods, reason = "the test runner names the list in the environment")]
    let Some(path) = std::env::var_os(SKIPPED_TESTS) else { return };
    let thread = std::thread::current();
    let line = list_line(thread.name().unwrap_or("unnamed thread"), reason);
    // Tests run in several processes: one write in append mode keeps each line whole.
    let list = OpenOptions::new().create(true).append(true).open(path);
    let _list_is_not_writable = list.and_then(|mut list| list.write_all(line.as_bytes()));
}

/// One line of the list. Line breaks and tabs of the reason become spaces.
fn list_line(test: &str, reason: &str) -> String {
    let reason: Vec<&str> = reason.split_whitespace().collect();
    format!("{test}\t{}\n", reason.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_line_of_long_reason_is_one_line() {
        assert_eq!(list_line("a::b", "no cgroup\n\tdelegated here"), "a::b\tno cgroup delegated here\n");
    }

    #[test]
    fn skip_without_list_returns() {
        skip("this test only shows that skipping returns");
    }
}
