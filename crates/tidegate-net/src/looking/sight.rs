//! What can be seen of a file.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use sha2::{Digest, Sha256};
use tidegate_config::LARGEST_FILE;

/// What the system says about a path, symbolic links followed: whether it is the same file, and whether that was written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sight {
    /// Nothing can be said.
    Unseen(io::ErrorKind),
    /// There is something.
    Seen {
        device: u64,
        inode: u64,
        size: u64,
        /// Seconds and nanoseconds.
        modified: (i64, i64),
        changed: (i64, i64),
    },
}

impl Sight {
    pub(super) fn of(path: &Path) -> Sight {
        match fs::metadata(path) {
            Err(error) => Sight::Unseen(error.kind()),
            Ok(about) => Sight::Seen {
                device: about.dev(),
                inode: about.ino(),
                size: about.size(),
                modified: (about.mtime(), about.mtime_nsec()),
                changed: (about.ctime(), about.ctime_nsec()),
            },
        }
    }
}

/// What stands for the contents of a file, or for there being none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    Nothing(io::ErrorKind),
    Contents([u8; 32]),
}

impl Taken {
    pub(super) fn of(contents: &Result<Vec<u8>, io::Error>) -> Taken {
        match contents {
            Err(error) => Taken::Nothing(error.kind()),
            Ok(bytes) => Taken::Contents(Sha256::digest(bytes).into()),
        }
    }
}

/// Reads a file, and of a file that is too large one byte more than is allowed. What is no file could keep us waiting for ever.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, io::Error> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(LARGEST_FILE as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}
