//! The names of files, and what is in a directory by its names.
//!
//! ```text
//!   identity                    what makes the directory a store
//!   lock                        held by the process that has it open
//!   log-0000000000000003        a segment, numbered from 1
//!   snapshot-0000000000000003   stands for everything before segment 3
//!   *.new                       not finished: what a crash left, and is removed
//! ```

use std::io;

use crate::directory::Files;

pub(super) const IDENTITY: &str = "identity";
pub(super) const LOCK: &str = "lock";
/// The number of the first segment of a store.
pub(super) const FIRST_SEGMENT: u64 = 1;

const UNFINISHED: &str = ".new";
/// What some file systems put into the root of a volume.
pub(super) const OF_THE_FILE_SYSTEM: &str = "lost+found";

pub(super) fn segment(number: u64) -> String {
    format!("log-{number:016x}")
}

pub(super) fn snapshot(number: u64) -> String {
    format!("snapshot-{number:016x}")
}

/// What a file is called until it is finished.
pub(super) fn unfinished(name: &str) -> String {
    format!("{name}{UNFINISHED}")
}

/// What is in a directory.
#[derive(Debug, Default)]
pub(super) struct Survey {
    pub(super) identity: Option<()>,
    /// In order.
    pub(super) segments: Vec<u64>,
    /// In order.
    pub(super) snapshots: Vec<u64>,
    pub(super) unfinished: Vec<String>,
    /// Names that are none of ours.
    pub(super) strangers: Vec<String>,
}

impl Survey {
    pub(super) fn of(files: &dyn Files) -> io::Result<Survey> {
        let mut survey = Survey::default();
        for name in files.list()? {
            survey.add(name);
        }
        survey.segments.sort_unstable();
        survey.snapshots.sort_unstable();
        survey.strangers.sort_unstable();
        Ok(survey)
    }

    fn add(&mut self, name: String) {
        if name == IDENTITY {
            self.identity = Some(());
        } else if name == LOCK || name == OF_THE_FILE_SYSTEM {
        } else if let Some(number) = number_in(&name, "log-", segment) {
            self.segments.push(number);
        } else if let Some(number) = number_in(&name, "snapshot-", snapshot) {
            self.snapshots.push(number);
        } else if is_unfinished(&name) {
            self.unfinished.push(name);
        } else {
            self.strangers.push(name);
        }
    }

    /// What is in a directory without an identity that a store which was never finished does not leave there.
    pub(super) fn foreign(&self) -> Option<String> {
        let segment = self.segments.first().map(|number| segment(*number));
        let snapshot = self.snapshots.first().map(|number| snapshot(*number));
        segment.or(snapshot).or_else(|| self.strangers.first().cloned())
    }
}

fn is_unfinished(name: &str) -> bool {
    name.strip_suffix(UNFINISHED).is_some_and(|name| {
        name == IDENTITY
            || number_in(name, "log-", segment).is_some()
            || number_in(name, "snapshot-", snapshot).is_some()
    })
}

/// The number in a name, if the name is exactly as we would write it.
fn number_in(name: &str, prefix: &str, write: fn(u64) -> String) -> Option<u64> {
    let number = u64::from_str_radix(name.strip_prefix(prefix)?, 16).ok()?;
    (write(number) == name).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        let mut survey = Survey::default();
        for name in ["identity", "lock", "lost+found", "log-00000000000000ff", "snapshot-0000000000000001"] {
            survey.add(name.to_owned());
        }
        for name in ["log-00000000000000FF", "log-1", "log-+0000000000000ff", "notes.new", "log-"] {
            survey.add(name.to_owned());
        }
        survey.add("identity.new".to_owned());
        survey.add("log-0000000000000001.new".to_owned());
        assert_eq!((survey.segments, survey.snapshots), (vec![0xff], vec![1]));
        assert_eq!(survey.unfinished, ["identity.new", "log-0000000000000001.new"]);
        assert_eq!(survey.strangers.len(), 5);
    }
}
