//! Copying a log that may be in use into an empty directory, from which it can be opened.
//!
//! The copy is a prefix of the log: the newest snapshot, and the blocks on top of it as far as they are whole. No lock is needed and nobody waits.
//! If a newer snapshot removes what is being copied, the copy begins again.
//!
//! The identity comes last. A directory without one is not a store, so a copy that was interrupted cannot be taken for one.

use std::fmt;
use std::io;

use super::block::{self, Invalid, Kind, Link};
use super::encoding::end_of_content;
use super::error::{Damage, OpenError};
use super::file_names::{self, FIRST_SEGMENT, Survey};
use super::identity::Identity;
use super::recovery::{read_identity, write_identity};
use super::segment::{self, Header};
use super::snapshot_file::{self, Snapshot};
use crate::directory::{Files, Purpose, read_whole};

/// How often a copy begins again before it is given up.
const MOST_ATTEMPTS: u32 = 8;

/// What was copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backup {
    /// How many files, the identity included.
    pub files: u64,
    /// How many bytes of snapshot and blocks.
    pub bytes: u64,
    /// The number of the last block.
    pub last_number: u64,
}

/// Why there is no copy.
#[derive(Debug)]
pub enum BackupError {
    /// The directory to be copied to is not empty.
    NotEmpty {
        /// The directory.
        place: String,
    },
    /// What was to be copied cannot be read.
    Source(OpenError),
    /// The copy cannot be written.
    Target {
        /// The directory.
        place: String,
        /// What the system says.
        error: io::Error,
    },
}

impl fmt::Display for BackupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BackupError::NotEmpty { place } => {
                write!(f, "{place} is not empty; nothing was touched; choose an empty directory")
            }
            BackupError::Source(error) => write!(f, "the store cannot be copied: {error}"),
            BackupError::Target { place, error } => {
                write!(f, "the copy in {place} could not be written: {error}; remove it and try again")
            }
        }
    }
}

impl std::error::Error for BackupError {}

/// Copies a log into an empty directory.
pub fn backup(from: &dyn Files, to: &dyn Files) -> Result<Backup, BackupError> {
    let of_target = |error| BackupError::Target { place: to.place(), error };
    if !ours(to).map_err(of_target)?.is_empty() {
        return Err(BackupError::NotEmpty { place: to.place() });
    }
    let identity = read_identity(from).map_err(BackupError::Source)?;
    let mut attempt = 1;
    loop {
        let mut copy = Copy { from, to, identity: &identity, buffer: Vec::new(), bytes: 0, files: 0 };
        match copy.run() {
            Ok(link) => {
                write_identity(to, &identity).map_err(of_target)?;
                let last_number = link.number - 1;
                return Ok(Backup { files: copy.files + 1, bytes: copy.bytes, last_number });
            }
            // Whatever is wrong may only have looked so while somebody was writing.
            Err(BackupError::Source(_)) if attempt < MOST_ATTEMPTS => attempt += 1,
            Err(BackupError::Source(error)) => {
                clear(to).map_err(of_target)?;
                return Err(BackupError::Source(error));
            }
            Err(error) => return Err(error),
        }
        clear(to).map_err(of_target)?;
    }
}

/// Removes what was copied: part of a log is of no use.
fn clear(to: &dyn Files) -> io::Result<()> {
    ours(to)?.iter().try_for_each(|name| to.remove(name))
}

/// What is in the directory that is copied to, but for what the file system keeps there.
fn ours(to: &dyn Files) -> io::Result<Vec<String>> {
    let mut names = to.list()?;
    names.retain(|name| name != file_names::OF_THE_FILE_SYSTEM);
    Ok(names)
}

struct Copy<'a> {
    from: &'a dyn Files,
    to: &'a dyn Files,
    identity: &'a Identity,
    buffer: Vec<u8>,
    bytes: u64,
    files: u64,
}

impl Copy<'_> {
    fn run(&mut self) -> Result<Link, BackupError> {
        let survey = Survey::of(self.from).map_err(|error| of_source(&self.from.place(), error))?;
        let (mut number, mut link) = match survey.snapshots.last() {
            Some(number) => (*number, self.snapshot(*number)?),
            None => (FIRST_SEGMENT, Link::first(&self.identity.store)),
        };
        // Not by the list: segments may have been added since.
        loop {
            let (after, sealed) = self.segment(number, link)?;
            link = after;
            if sealed == Sealed::No {
                return Ok(link);
            }
            number += 1;
        }
    }

    fn snapshot(&mut self, number: u64) -> Result<Link, BackupError> {
        let name = file_names::snapshot(number);
        let store = &self.identity.store;
        // Read once to know its header and that it is whole, and once more to copy it.
        let contents =
            snapshot_file::read(self.from, number, store, &mut |_, _| Ok(())).map_err(BackupError::Source)?;
        let mut copy =
            Snapshot::begin(self.to, &contents.header, store).map_err(|error| self.of_target(error))?;
        let mut failed = None;
        let put = &mut |_, payload: &[u8]| {
            if failed.is_none() {
                failed = copy.put(payload).err();
            }
            Ok(())
        };
        snapshot_file::read(self.from, number, store, put).map_err(BackupError::Source)?;
        failed.map_or(Ok(()), Err).map_err(|error| self.of_target(error))?;
        let length = copy.finish().map_err(|error| self.of_target(error))?;
        self.to.rename(&file_names::unfinished(&name), &name).map_err(|error| self.of_target(error))?;
        self.bytes += length;
        self.files += 1;
        Ok(contents.header.link)
    }

    /// Copies a segment as far as it is whole.
    fn segment(&mut self, number: u64, link: Link) -> Result<(Link, Sealed), BackupError> {
        let name = file_names::segment(number);
        let store = &self.identity.store;
        let mut buffer = std::mem::take(&mut self.buffer);
        let read = self.from.open(&name, Purpose::Reading).and_then(|file| read_whole(&*file, &mut buffer));
        read.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => BackupError::Source(OpenError::SegmentMissing { file: name.clone() }),
            _ => of_source(&name, error),
        })?;
        let header = Header::of_whole(&name, &buffer, number, store).map_err(BackupError::Source)?;
        let damage = |offset, expected: &str| BackupError::Source(Damage::at(&name, offset, expected).into());
        if header.link != link {
            return Err(damage(40, "a segment that follows the one before it"));
        }
        let (mut link, mut offset, mut sealed) = (link, segment::HEADER, Sealed::No);
        while sealed == Sealed::No {
            match block::read(&buffer, offset, store) {
                Ok(block) if (block.number, block.chain) == (link.number, link.chain) => {
                    link = link.after(block.checksum);
                    offset += block.size();
                    if block.kind == Kind::Seal {
                        sealed = Sealed::Yes;
                    }
                }
                Ok(_) => return Err(damage(offset as u64, "a block that follows the one before it")),
                Err(Invalid::Damaged { at, expected }) => return Err(damage((offset + at) as u64, expected)),
                Err(Invalid::Absent | Invalid::Torn) => break,
            }
        }
        let content = &buffer[..end_of_content(&buffer)];
        if sealed == Sealed::No && block::find_later(content, offset, link.number, store).is_some() {
            return Err(damage(offset as u64, "a block, because there is a later one"));
        }
        self.write(&name, &header, &buffer[..offset]).map_err(|error| self.of_target(error))?;
        self.buffer = buffer;
        self.bytes += (offset - segment::HEADER) as u64;
        self.files += 1;
        Ok((link, sealed))
    }

    fn write(&self, name: &str, header: &Header, bytes: &[u8]) -> io::Result<()> {
        let file = self.to.create(name)?;
        file.reserve(header.length)?;
        file.write_at(bytes, 0)?;
        file.sync()
    }

    fn of_target(&self, error: io::Error) -> BackupError {
        BackupError::Target { place: self.to.place(), error }
    }
}

fn of_source(name: &str, error: io::Error) -> BackupError {
    BackupError::Source(OpenError::of_disk(name, error))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sealed {
    Yes,
    No,
}
