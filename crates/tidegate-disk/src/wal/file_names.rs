//! File names, and the listing of a directory by name.
//!
//! ```text
//!   identity                    marks the directory as a store
//!   lock                        locked by the process that has the store open
//!   log-0000000000000003        a segment, numbered from 1
//!   snapshot-0000000000000003   replaces everything before segment 3
//!   *.new                       unfinished: left by a crash, removed at the next opening
//! ```

use std::io;

use crate::directory::Directory;

pub(super) const IDENTITY: &str = "identity";
pub(super) const LOCK: &str = "lock";
/// The number of the first segment of a store.
pub(super) const FIRST_SEGMENT: u64 = 1;

const UNFINISHED_SUFFIX: &str = ".new";
/// Created by some file systems in the root of a volume.
pub(super) const LOST_AND_FOUND: &str = "lost+found";

pub(super) fn segment_name(number: u64) -> String {
    format!("log-{number:016x}")
}

pub(super) fn snapshot_name(number: u64) -> String {
    format!("snapshot-{number:016x}")
}

/// The name of a file until it is complete.
pub(super) fn unfinished_name(name: &str) -> String {
    format!("{name}{UNFINISHED_SUFFIX}")
}

/// The files of a directory, by kind.
#[derive(Debug, Default)]
pub(super) struct DirectoryListing {
    pub(super) has_identity: bool,
    /// In ascending order.
    pub(super) segments: Vec<u64>,
    /// In ascending order.
    pub(super) snapshots: Vec<u64>,
    pub(super) unfinished: Vec<String>,
    /// Names that the log does not use.
    pub(super) unknown: Vec<String>,
}

impl DirectoryListing {
    pub(super) fn read(directory: &dyn Directory) -> io::Result<DirectoryListing> {
        let mut listing = DirectoryListing::default();
        for name in directory.list()? {
            listing.add(name);
        }
        listing.segments.sort_unstable();
        listing.snapshots.sort_unstable();
        listing.unknown.sort_unstable();
        Ok(listing)
    }

    fn add(&mut self, name: String) {
        if name == IDENTITY {
            self.has_identity = true;
        } else if name == LOCK || name == LOST_AND_FOUND {
        } else if let Some(number) = parse_number(&name, "log-", segment_name) {
            self.segments.push(number);
        } else if let Some(number) = parse_number(&name, "snapshot-", snapshot_name) {
            self.snapshots.push(number);
        } else if is_unfinished(&name) {
            self.unfinished.push(name);
        } else {
            self.unknown.push(name);
        }
    }

    /// In a directory without an identity: a file that an interrupted creation of a store cannot have left.
    pub(super) fn first_unexpected(&self) -> Option<String> {
        let segment = self.segments.first().map(|number| segment_name(*number));
        let snapshot = self.snapshots.first().map(|number| snapshot_name(*number));
        segment.or(snapshot).or_else(|| self.unknown.first().cloned())
    }
}

fn is_unfinished(name: &str) -> bool {
    name.strip_suffix(UNFINISHED_SUFFIX).is_some_and(|name| {
        name == IDENTITY
            || parse_number(name, "log-", segment_name).is_some()
            || parse_number(name, "snapshot-", snapshot_name).is_some()
    })
}

/// Parses the number in a name. The name must be exactly what `format` produces.
fn parse_number(name: &str, prefix: &str, format: fn(u64) -> String) -> Option<u64> {
    let number = u64::from_str_radix(name.strip_prefix(prefix)?, 16).ok()?;
    (format(number) == name).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_round_trip() {
        let mut listing = DirectoryListing::default();
        for name in ["identity", "lock", "lost+found", "log-00000000000000ff", "snapshot-0000000000000001"] {
            listing.add(name.to_owned());
        }
        for name in ["log-00000000000000FF", "log-1", "log-+0000000000000ff", "notes.new", "log-"] {
            listing.add(name.to_owned());
        }
        listing.add("identity.new".to_owned());
        listing.add("log-0000000000000001.new".to_owned());
        assert_eq!((listing.segments, listing.snapshots), (vec![0xff], vec![1]));
        assert_eq!(listing.unfinished, ["identity.new", "log-0000000000000001.new"]);
        assert_eq!(listing.unknown.len(), 5);
    }
}
