//! Copies a log that may be in use into an empty directory. The copy can be opened as a log.
//!
//! The copy is a prefix of the log: the newest snapshot and all complete blocks after it. Copying needs no
//! lock and blocks no other operation. If a newer snapshot removes files during the copy, the copy starts
//! again.
//!
//! The identity file is written last. A directory without it is not a store, so an interrupted copy cannot be
//! mistaken for one.

use std::fmt;
use std::io;

use super::block::{self, BlockError, BlockKind, ChainPosition};
use super::codec::end_of_content;
use super::error::{Damage, OpenError};
use super::file_names::{self, DirectoryListing, FIRST_SEGMENT};
use super::identity::StoreIdentity;
use super::recovery::{read_identity, write_identity};
use super::segment::{self, SegmentHeader, SegmentSeal};
use super::snapshot_file::{self, SnapshotWriter};
use crate::directory::{Directory, OpenMode, read_whole};

/// How many times a copy is attempted.
const MAX_ATTEMPTS: u32 = 8;

/// The result of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backup {
    /// The number of files, including the identity.
    pub files: u64,
    /// The number of bytes of snapshot and blocks.
    pub bytes: u64,
    /// The number of the last block.
    pub last_number: u64,
}

/// Why the copy failed.
#[derive(Debug)]
pub enum BackupError {
    /// The target directory is not empty.
    NotEmpty {
        /// The directory.
        location: String,
    },
    /// The source cannot be read.
    Source(OpenError),
    /// The target cannot be written.
    Target {
        /// The directory.
        location: String,
        /// The error of the operating system.
        error: io::Error,
    },
}

impl fmt::Display for BackupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BackupError::NotEmpty { location } => {
                write!(f, "{location} is not empty; nothing was touched; choose an empty directory")
            }
            BackupError::Source(error) => write!(f, "the store cannot be copied: {error}"),
            BackupError::Target { location, error } => {
                write!(f, "the copy in {location} could not be written: {error}; remove it and try again")
            }
        }
    }
}

impl std::error::Error for BackupError {}

/// Copies a log into an empty directory.
pub fn backup(from: &dyn Directory, to: &dyn Directory) -> Result<Backup, BackupError> {
    let target_error = |error| BackupError::Target { location: to.location(), error };
    if !list_files(to).map_err(target_error)?.is_empty() {
        return Err(BackupError::NotEmpty { location: to.location() });
    }
    let identity = read_identity(from).map_err(BackupError::Source)?;
    let mut attempt = 1;
    loop {
        let mut copy = BackupCopy { from, to, identity: &identity, buffer: Vec::new(), bytes: 0, files: 0 };
        match copy.run() {
            Ok(link) => {
                write_identity(to, &identity).map_err(target_error)?;
                let last_number = link.number - 1;
                return Ok(Backup { files: copy.files + 1, bytes: copy.bytes, last_number });
            }
            // The error may be the effect of a concurrent write.
            Err(BackupError::Source(_)) if attempt < MAX_ATTEMPTS => attempt += 1,
            Err(BackupError::Source(error)) => {
                remove_files(to).map_err(target_error)?;
                return Err(BackupError::Source(error));
            }
            Err(error) => return Err(error),
        }
        remove_files(to).map_err(target_error)?;
    }
}

/// Removes the files of an incomplete copy.
fn remove_files(to: &dyn Directory) -> io::Result<()> {
    list_files(to)?.iter().try_for_each(|name| to.remove(name))
}

/// Lists the target directory without `lost+found`.
fn list_files(to: &dyn Directory) -> io::Result<Vec<String>> {
    let mut names = to.list()?;
    names.retain(|name| name != file_names::LOST_AND_FOUND);
    Ok(names)
}

struct BackupCopy<'a> {
    from: &'a dyn Directory,
    to: &'a dyn Directory,
    identity: &'a StoreIdentity,
    buffer: Vec<u8>,
    bytes: u64,
    files: u64,
}

impl BackupCopy<'_> {
    fn run(&mut self) -> Result<ChainPosition, BackupError> {
        let listing =
            DirectoryListing::read(self.from).map_err(|error| source_error(&self.from.location(), error))?;
        let (mut number, mut link) = match listing.snapshots.last() {
            Some(number) => (*number, self.copy_snapshot(*number)?),
            None => (FIRST_SEGMENT, ChainPosition::first(&self.identity.store)),
        };
        // Does not use the listing: segments may have been added since.
        loop {
            let (after, sealed) = self.copy_segment(number, link)?;
            link = after;
            if sealed == SegmentSeal::Missing {
                return Ok(link);
            }
            number += 1;
        }
    }

    fn copy_snapshot(&mut self, number: u64) -> Result<ChainPosition, BackupError> {
        let name = file_names::snapshot_name(number);
        let store = &self.identity.store;
        // Reads the file twice: once to check it and get its header, once to copy it.
        let contents = snapshot_file::read_snapshot(self.from, number, store, &mut |_, _| Ok(()))
            .map_err(BackupError::Source)?;
        let mut copy = SnapshotWriter::begin(self.to, &contents.header, store)
            .map_err(|error| self.target_error(error))?;
        let mut failed = None;
        let put = &mut |_, payload: &[u8]| {
            if failed.is_none() {
                failed = copy.put(payload).err();
            }
            Ok(())
        };
        snapshot_file::read_snapshot(self.from, number, store, put).map_err(BackupError::Source)?;
        failed.map_or(Ok(()), Err).map_err(|error| self.target_error(error))?;
        let length = copy.finish().map_err(|error| self.target_error(error))?;
        self.to
            .rename(&file_names::unfinished_name(&name), &name)
            .map_err(|error| self.target_error(error))?;
        self.bytes += length;
        self.files += 1;
        Ok(contents.header.link)
    }

    /// Copies the complete blocks of a segment.
    fn copy_segment(
        &mut self,
        number: u64,
        link: ChainPosition,
    ) -> Result<(ChainPosition, SegmentSeal), BackupError> {
        let name = file_names::segment_name(number);
        let store = &self.identity.store;
        let mut buffer = std::mem::take(&mut self.buffer);
        let read = self.from.open(&name, OpenMode::Read).and_then(|file| read_whole(&*file, &mut buffer));
        read.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => BackupError::Source(OpenError::SegmentMissing { file: name.clone() }),
            _ => source_error(&name, error),
        })?;
        let header =
            SegmentHeader::decode_segment(&name, &buffer, number, store).map_err(BackupError::Source)?;
        let damage = |offset, expected: &str| BackupError::Source(Damage::at(&name, offset, expected).into());
        if header.link != link {
            return Err(damage(40, "a segment that follows the one before it"));
        }
        let (mut link, mut offset, mut sealed) = (link, segment::HEADER_BYTES, SegmentSeal::Missing);
        while sealed == SegmentSeal::Missing {
            match block::read_block(&buffer, offset, store) {
                Ok(block) if (block.number, block.chain) == (link.number, link.chain) => {
                    link = link.advance(block.checksum);
                    offset += block.size();
                    if block.kind == BlockKind::Seal {
                        sealed = SegmentSeal::Present;
                    }
                }
                Ok(_) => return Err(damage(offset as u64, "a block that follows the one before it")),
                Err(BlockError::Damaged { at, expected }) => {
                    return Err(damage((offset + at) as u64, expected));
                }
                Err(BlockError::Absent | BlockError::Torn) => break,
            }
        }
        let content = &buffer[..end_of_content(&buffer)];
        if sealed == SegmentSeal::Missing && block::find_later(content, offset, link.number, store).is_some()
        {
            return Err(damage(offset as u64, "a block, because there is a later one"));
        }
        self.write_segment(&name, &header, &buffer[..offset]).map_err(|error| self.target_error(error))?;
        self.buffer = buffer;
        self.bytes += (offset - segment::HEADER_BYTES) as u64;
        self.files += 1;
        Ok((link, sealed))
    }

    fn write_segment(&self, name: &str, header: &SegmentHeader, bytes: &[u8]) -> io::Result<()> {
        let file = self.to.create(name)?;
        file.reserve(header.length)?;
        file.write_at(bytes, 0)?;
        file.sync()
    }

    fn target_error(&self, error: io::Error) -> BackupError {
        BackupError::Target { location: self.to.location(), error }
    }
}

fn source_error(name: &str, error: io::Error) -> BackupError {
    BackupError::Source(OpenError::of_disk(name, error))
}
