//! Identity and contents of a file, as far as they are compared.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use sha2::{Digest, Sha256};
use tidegate_config::MAX_FILE_BYTES;

/// `stat` of a path with symbolic links followed: the same file or another, written to or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileStat {
    /// `stat` failed.
    Unreadable(io::ErrorKind),
    /// `stat` of what is at the path.
    Present {
        device: u64,
        inode: u64,
        size: u64,
        /// Seconds and nanoseconds.
        modified: (i64, i64),
        changed: (i64, i64),
    },
}

impl FileStat {
    pub(super) fn of(path: &Path) -> FileStat {
        match fs::metadata(path) {
            Err(error) => FileStat::Unreadable(error.kind()),
            Ok(about) => FileStat::Present {
                device: about.dev(),
                inode: about.ino(),
                size: about.size(),
                modified: (about.mtime(), about.mtime_nsec()),
                changed: (about.ctime(), about.ctime_nsec()),
            },
        }
    }
}

/// Hash of a file's contents, or why they cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ContentHash {
    Unreadable(io::ErrorKind),
    Sha256([u8; 32]),
}

impl ContentHash {
    pub(super) fn of(contents: &Result<Vec<u8>, io::Error>) -> ContentHash {
        match contents {
            Err(error) => ContentHash::Unreadable(error.kind()),
            Ok(bytes) => ContentHash::Sha256(Sha256::digest(bytes).into()),
        }
    }
}

/// Reads a file, at most one byte more than the allowed size. Refuses what is not a regular file, because reading a pipe may block.
pub(super) fn read_bounded(path: &Path) -> Result<Vec<u8>, io::Error> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_FILE_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}
