//! Tests that could not run on this machine, and why.
//!
//! Rust test runners know only passed, failed and ignored. A test that finds at run time that it cannot run (no cgroup, not
//! root, `TIDEGATE_LONG` unset) calls `tidegate_testkit::skip`, which appends `NAME\tREASON` to the file named by
//! [`VARIABLE`]. This module owns that file, so that the summary counts such tests as skipped and never as passed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::TaskResult;

/// The environment variable that names the file.
pub(crate) const VARIABLE: &str = "TIDEGATE_SKIPPED_TESTS";

/// The file that collects skipped tests during one run.
#[derive(Debug)]
pub(crate) struct SkippedTestsFile {
    path: PathBuf,
}

impl SkippedTestsFile {
    /// Creates an empty file in the build directory.
    pub(crate) fn create(target: &Path) -> TaskResult<SkippedTestsFile> {
        let folder = target.join("tmp");
        fs::create_dir_all(&folder)?;
        let path = folder.join("skipped-tests.txt");
        fs::write(&path, "")?;
        Ok(SkippedTestsFile { path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The skipped tests by name, with their reasons.
    pub(crate) fn read(&self) -> TaskResult<BTreeMap<String, String>> {
        Ok(parse(&fs::read_to_string(&self.path)?))
    }
}

fn parse(text: &str) -> BTreeMap<String, String> {
    let entry = |line: &str| {
        let (name, reason) = line.split_once('\t')?;
        Some((name.to_owned(), reason.to_owned()))
    };
    text.lines().filter_map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_skips_twice_counts_once() {
        let skipped = parse("a::b\tno cgroup\na::b\tno cgroup\nc\tnot root\n");
        assert_eq!(skipped.len(), 2);
        assert_eq!(skipped["c"], "not root");
    }
}
