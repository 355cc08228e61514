//! Directory: the few things that a log asks of a directory.
//!
//! This is all of the disk that the rest of the crate can see. It is small on mode: whatever is not here cannot go wrong. [`RealDirectory`] is a
//! directory; [`SimulatedDirectory`] is one in memory, for tests, that fails when told to and shows what a crash may have left.
//!
//! Names are plain names of files in one directory; there are no paths. A write is whole or an error, and what it wrote is durable
//! after [`DirectoryFile::sync`]; a name is durable after [`Directory::sync_names`]. These are two promises, and files that are new need both.
//!
//! Refused: memory maps. An error of the disk is a signal there, and a log must be able to say what went wrong. Refused:
//! asynchronous calls. One thread writes, and it has nothing else to do while the disk works.

mod real;
mod simulated;

use std::fmt;
use std::io;

pub use real::RealDirectory;
pub use simulated::{CallHold, DiskCall, DiskFault, FaultDuration, SimulatedDirectory};

/// A directory.
pub trait Directory: Send + Sync + fmt::Debug {
    /// Where it is, for messages.
    fn location(&self) -> String;

    /// The names of everything in the directory, in no order.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Opens a file that is there.
    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Box<dyn DirectoryFile>>;

    /// Makes a file that is not there, for writing. Who may read it is nobody else's business: it may hold a secret.
    fn create(&self, name: &str) -> io::Result<Box<dyn DirectoryFile>>;

    /// Makes a file that is not there, with room for this many bytes: see [`DirectoryFile::reserve`]. Whoever makes one after the other of the same length may
    /// be given one that was made ready before. If this fails, an unfinished file may be there.
    fn create_reserved(&self, name: &str, length: u64) -> io::Result<Box<dyn DirectoryFile>> {
        let file = self.create(name)?;
        file.reserve(length)?;
        Ok(file)
    }

    /// Gives a file another name, in place of whatever had that name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes durable which names there are.
    fn sync_names(&self) -> io::Result<()>;

    /// Takes a lock that one process at a time can have, on a file of this name; [`io::ErrorKind::WouldBlock`] if somebody else has it.
    /// It is given back when the guard is dropped, and by the system when the process ends.
    fn lock(&self, name: &str) -> io::Result<Box<dyn DirectoryLock>>;

    /// Sixteen bytes that nobody can guess.
    fn random(&self) -> io::Result<[u8; 16]>;
}

/// A file that is open.
pub trait DirectoryFile: Send + Sync + fmt::Debug {
    /// How many bytes it has.
    fn length(&self) -> io::Result<u64>;

    /// Reads from here until the buffer is full or the file ends; says how much was read.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all of this here.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Makes room for this many bytes: the file is that long then, what was not written reads as zeros, and writing there needs no more
    /// room on the disk.
    fn reserve(&self, length: u64) -> io::Result<()>;

    /// What is written next begins here, and goes on in order; from here on the file holds zeros, as far as there is [room](DirectoryFile::reserve). This
    /// changes nothing, and whoever knows it may be quicker.
    fn appends_from(&self, _end: u64) {}

    /// Makes durable what was written, and the length. After an error nobody knows what is on the disk; asking again proves nothing.
    fn sync(&self) -> io::Result<()>;
}

/// A lock that is held until this is dropped.
pub trait DirectoryLock: Send + Sync + fmt::Debug {}

/// What a file is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// To be read.
    Read,
    /// To be read and written.
    ReadWrite,
}

/// Reads a whole file into a buffer, whose room is used again.
pub(crate) fn read_whole(file: &dyn DirectoryFile, buffer: &mut Vec<u8>) -> io::Result<()> {
    let length = usize::try_from(file.length()?)
        .map_err(|_| io::Error::other("the file is larger than the memory of this machine"))?;
    buffer.resize(length, 0);
    let read = file.read_at(buffer, 0)?;
    buffer.truncate(read);
    Ok(())
}

/// Whether an error means that there is no room, which may change by itself, rather than that the disk is broken.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
