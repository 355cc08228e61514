//! The file operations that the log needs from one directory.
//!
//! All disk access of the crate goes through this interface. It is small so that few things can fail.
//! [`RealDirectory`] is a directory of the file system. [`SimulatedDirectory`] is one in memory for tests: it
//! injects faults and produces the possible states after a crash.
//!
//! File names are plain names without paths. A write is complete or an error. The written bytes are durable
//! after [`DirectoryFile::sync`], and names are durable after [`Directory::sync_names`]. A new file needs
//! both.
//!
//! Two alternatives are not used. Memory maps report a disk error as a signal, and the log must report what
//! failed. Asynchronous calls bring nothing: one thread writes, and it has no other work while the disk is
//! busy.

mod real;
mod simulated;

use std::fmt;
use std::io;

pub use real::RealDirectory;
pub use simulated::{CallHold, DiskCall, DiskFault, FaultDuration, SimulatedDirectory};

/// A directory of files.
pub trait Directory: Send + Sync + fmt::Debug {
    /// The path, for error messages.
    fn location(&self) -> String;

    /// Lists the names of all files in any order.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Opens an existing file.
    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Box<dyn DirectoryFile>>;

    /// Creates a new file for writing. Only its owner can read it, because it may hold a secret.
    fn create(&self, name: &str) -> io::Result<Box<dyn DirectoryFile>>;

    /// Creates a new file with reserved space: see [`DirectoryFile::reserve`]. An implementation may return a
    /// file that was preallocated. On failure an incomplete file may exist.
    fn create_reserved(&self, name: &str, length: u64) -> io::Result<Box<dyn DirectoryFile>> {
        let file = self.create(name)?;
        file.reserve(length)?;
        Ok(file)
    }

    /// Renames a file and replaces an existing target.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes the current names durable.
    fn sync_names(&self) -> io::Result<()>;

    /// Takes an exclusive lock on a file of this name. Fails with [`io::ErrorKind::WouldBlock`] if another
    /// process holds it. The lock ends when the guard is dropped or the process ends.
    fn lock(&self, name: &str) -> io::Result<Box<dyn DirectoryLock>>;

    /// Returns 16 unpredictable random bytes.
    fn random(&self) -> io::Result<[u8; 16]>;
}

/// An open file.
pub trait DirectoryFile: Send + Sync + fmt::Debug {
    /// The length in bytes.
    fn length(&self) -> io::Result<u64>;

    /// Reads until the buffer is full or the file ends. Returns the number of bytes read.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all bytes at an offset.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Reserves space: the file gets this length, unwritten parts read as zeros, and writing there needs no
    /// more disk space.
    fn reserve(&self, length: u64) -> io::Result<()>;

    /// A hint that the next writes append sequentially at `end`, and that the reserved space after it holds
    /// zeros. It does not change the content. An implementation may use it to write faster.
    fn appends_from(&self, _end: u64) {}

    /// Makes written bytes and the length durable. After an error the disk state is unknown, and a retry
    /// proves nothing.
    fn sync(&self) -> io::Result<()>;
}

/// An exclusive lock, held until it is dropped.
pub trait DirectoryLock: Send + Sync + fmt::Debug {}

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// For reading.
    Read,
    /// For reading and writing.
    ReadWrite,
}

/// Reads a whole file into a reused buffer.
pub(crate) fn read_whole(file: &dyn DirectoryFile, buffer: &mut Vec<u8>) -> io::Result<()> {
    let length = usize::try_from(file.length()?)
        .map_err(|_| io::Error::other("the file is larger than the memory of this machine"))?;
    buffer.resize(length, 0);
    let read = file.read_at(buffer, 0)?;
    buffer.truncate(read);
    Ok(())
}

/// Whether the error means a full disk, which is temporary, and not a broken disk.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
