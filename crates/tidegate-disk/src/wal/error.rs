//! Errors of opening a log. Each one names the file and says what to do.

use std::fmt;
use std::io;

use super::codec::VERSION;

/// A file differs from what was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The file.
    pub file: String,
    /// The offset of the difference in bytes.
    pub offset: u64,
    /// What the format requires there.
    pub expected: String,
}

impl Damage {
    pub(super) fn at(file: &str, offset: u64, expected: impl Into<String>) -> Damage {
        Damage { file: file.to_owned(), offset, expected: expected.into() }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is damaged at byte {}: expected {}", self.file, self.offset, self.expected)
    }
}

impl std::error::Error for Damage {}

/// Why a log cannot be opened.
#[derive(Debug)]
pub enum OpenError {
    /// Another process has the directory open.
    Locked {
        /// The directory.
        location: String,
    },
    /// The user has no permission to read or write it.
    Forbidden {
        /// The file or directory.
        file: String,
    },
    /// The file system is mounted read-only.
    ReadOnly {
        /// The file or directory.
        file: String,
    },
    /// The path is a file.
    NotADirectory {
        /// The path.
        location: String,
    },
    /// The directory has files but no identity. Nothing was changed.
    NotAStore {
        /// The directory.
        location: String,
        /// One of the files, if the directory was listed.
        found: Option<String>,
    },
    /// A later version of Tidegate wrote this file.
    NewerFormat {
        /// The file.
        file: String,
        /// The version found.
        found: u32,
    },
    /// No version of Tidegate writes this format.
    UnknownFormat {
        /// The file.
        file: String,
        /// The version found.
        found: u32,
    },
    /// A segment of the log is missing.
    SegmentMissing {
        /// The missing file.
        file: String,
    },
    /// The start of the log is missing and no snapshot replaces it.
    SnapshotMissing {
        /// The missing snapshot.
        file: String,
    },
    /// A file is damaged in a way that a crash cannot explain.
    Damaged(Damage),
    /// A file belongs to another store.
    OtherStore {
        /// The file.
        file: String,
    },
    /// The disk is full.
    Full {
        /// The file or directory.
        file: String,
    },
    /// A record is intact, but the replay callback rejected it.
    Rejected {
        /// The file.
        file: String,
        /// The offset of its block or chunk.
        offset: u64,
        /// The reason given by the callback.
        reason: String,
    },
    /// The rows do not fit into the memory budget of the store.
    Crowded {
        /// The limit that did not fit, and the budget.
        reason: String,
    },
    /// The disk failed.
    Disk {
        /// The file or directory.
        file: String,
        /// The error of the operating system.
        error: io::Error,
    },
}

impl OpenError {
    /// Maps an I/O error at a file to the reason why a store cannot be opened.
    pub fn of_disk(file: &str, error: io::Error) -> OpenError {
        let file = file.to_owned();
        match error.kind() {
            io::ErrorKind::PermissionDenied => OpenError::Forbidden { file },
            io::ErrorKind::ReadOnlyFilesystem => OpenError::ReadOnly { file },
            io::ErrorKind::NotADirectory => OpenError::NotADirectory { location: file },
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => OpenError::Full { file },
            _ => OpenError::Disk { file, error },
        }
    }
}

/// The advice for lost or damaged data.
const RESTORE: &str = "restore the directory from a backup; `tidegate store verify` shows what else is wrong";

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Locked { location } => write!(
                f,
                "{location} is in use by another process; stop that one, or give this one a directory of its own"
            ),
            OpenError::Forbidden { file } => {
                write!(
                    f,
                    "no permission for {file}; run as the user who owns the store, or give this user the right"
                )
            }
            OpenError::ReadOnly { file } => {
                write!(
                    f,
                    "{file} is on a read-only file system; mount it for writing, or choose another directory"
                )
            }
            OpenError::NotADirectory { location } => {
                write!(f, "{location} is not a directory; choose another path")
            }
            OpenError::NotAStore { location, found: None } => {
                write!(f, "{location} is not a store: it has no identity; look for another directory")
            }
            OpenError::NotAStore { location, found: Some(found) } => write!(
                f,
                "{location} is not a store: it holds '{found}' and no identity; nothing was touched; choose an empty \
                 directory, or restore the store from a backup"
            ),
            OpenError::NewerFormat { file, found } => write!(
                f,
                "{file} has format {found}, and this version of Tidegate knows {VERSION}; use the version that \
                 wrote it, or a later one"
            ),
            OpenError::UnknownFormat { file, found } => {
                write!(f, "{file} has format {found}, which no version of Tidegate writes; {RESTORE}")
            }
            OpenError::SegmentMissing { file } => write!(f, "{file} is missing from the log; {RESTORE}"),
            OpenError::SnapshotMissing { file } => {
                write!(f, "{file} is missing, and the log before it is gone; {RESTORE}")
            }
            OpenError::Damaged(damage) => write!(f, "{damage}; {RESTORE}"),
            OpenError::OtherStore { file } => {
                write!(f, "{file} belongs to another store; move it out of the directory, or {RESTORE}")
            }
            OpenError::Full { file } => {
                write!(f, "no room on the disk for {file}; make room and start again")
            }
            OpenError::Rejected { file, offset, reason } => {
                write!(f, "{file} has records at byte {offset} that make no sense: {reason}; {RESTORE}")
            }
            OpenError::Crowded { reason } => {
                write!(f, "{reason} (`store.memory` in the settings); nothing was changed")
            }
            OpenError::Disk { file, error } if error.kind() == io::ErrorKind::NotFound => {
                write!(f, "{file} cannot be made there: {error}; choose another directory")
            }
            OpenError::Disk { file, error } => {
                write!(f, "the disk failed at {file}: {error}; check the disk, then start again")
            }
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            OpenError::Disk { error, .. } => Some(error),
            _ => None,
        }
    }
}

impl From<Damage> for OpenError {
    fn from(damage: Damage) -> OpenError {
        OpenError::Damaged(damage)
    }
}
