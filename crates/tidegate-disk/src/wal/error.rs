//! Why a log cannot be opened: each reason by name, with what to do about it.

use std::fmt;
use std::io;

use super::encoding::VERSION;

/// Something in a file is not as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// In which file.
    pub file: String,
    /// How many bytes from its beginning.
    pub offset: u64,
    /// What should be there.
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
    /// Another process has it open.
    Locked {
        /// The directory.
        location: String,
    },
    /// This user may not read or write it.
    Forbidden {
        /// The file or directory.
        file: String,
    },
    /// The file system cannot be written to.
    ReadOnly {
        /// The file or directory.
        file: String,
    },
    /// There is a file of the directory's name.
    NotADirectory {
        /// What was to be the directory.
        location: String,
    },
    /// The directory has files, and no identity among them. None of them was touched.
    NotAStore {
        /// The directory.
        location: String,
        /// One of the files, if somebody looked at them.
        found: Option<String>,
    },
    /// A later version of Tidegate wrote this.
    NewerFormat {
        /// The file.
        file: String,
        /// Its version.
        found: u32,
    },
    /// No version of Tidegate wrote this.
    UnknownFormat {
        /// The file.
        file: String,
        /// Its version.
        found: u32,
    },
    /// A part of the log is gone.
    SegmentMissing {
        /// The file that should be there.
        file: String,
    },
    /// The beginning of the log is gone, and no snapshot stands for it.
    SnapshotMissing {
        /// The snapshot that should be there.
        file: String,
    },
    /// Something is not as it was written, and not for a crash.
    Damaged(Damage),
    /// A file belongs to another store.
    OtherStore {
        /// The file.
        file: String,
    },
    /// There is no room to begin.
    Full {
        /// The file or directory.
        file: String,
    },
    /// The records are whole, and whoever replays them does not understand one.
    Rejected {
        /// In which file.
        file: String,
        /// Where its block or chunk begins.
        offset: u64,
        /// What whoever replays says about it.
        reason: String,
    },
    /// There are more rows than the store may have in memory.
    Crowded {
        /// Which, and how many bytes it may take.
        reason: String,
    },
    /// The disk failed.
    Disk {
        /// The file or directory.
        file: String,
        /// What the system says.
        error: io::Error,
    },
}

impl OpenError {
    /// What an error of the disk means for whoever wanted to open a store.
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

/// What helps when bytes are lost.
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
