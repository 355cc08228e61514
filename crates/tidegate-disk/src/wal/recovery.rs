//! Creates a store, or opens an existing one and repairs what a crash left.
//!
//! The files of a new store are created in an order that distinguishes every crash from a loss of files:
//!
//! ```text
//!   lock ─▶ log-1.new ─▶ identity.new ─▶ identity ─▶ log-1
//! ```
//!
//! Without an identity the directory holds only a lock and unfinished files, and creation starts again. If
//! the identity exists and `log-1` does not, `log-1.new` is still there. If both are missing, a file was
//! removed.
//!
//! The repair has three steps. Bytes after the end of the chain are overwritten with zeros, so that they
//! never become part of a later block. A missing seal is written. The last block is written again, because it
//! may have been read from the page cache after a failed sync that only the dead process knew of. Then a
//! start block is written: from here on the log does not count as stopped cleanly.

use std::io;
use std::sync::Arc;

use super::active_segment::{ActiveSegment, WriteFailure, create_unnamed};
use super::block::{BlockKind, ChainPosition};
use super::error::OpenError;
use super::file_names::{self, DirectoryListing, FIRST_SEGMENT};
use super::identity::StoreIdentity;
use super::reader::{self, LogEnd};
use super::segment::{self, SegmentHeader};
use super::{LogOptions, PreviousRun, ReplayEntry};
use crate::directory::{Directory, DirectoryFile, DirectoryLock, OpenMode, read_whole};

/// A log that was read and is ready for appends.
#[derive(Debug)]
pub(super) struct RecoveredLog {
    pub(super) active: ActiveSegment,
    pub(super) directory_lock: Box<dyn DirectoryLock>,
    pub(super) identity: StoreIdentity,
    pub(super) previous_run: PreviousRun,
    pub(super) cut_bytes: u64,
    pub(super) block_bytes: u64,
    pub(super) read_bytes: u64,
    /// The first segment that was read.
    pub(super) first_segment: u64,
}

pub(super) fn open_log(
    directory: Arc<dyn Directory>,
    options: LogOptions,
    replay: &mut dyn FnMut(ReplayEntry<'_>) -> Result<(), String>,
) -> Result<RecoveredLog, OpenError> {
    let location = directory.location();
    let location_error = |error| OpenError::of_disk(&location, error);
    // Before taking the lock, which creates a file: a directory that is not a store stays unchanged.
    check_only_store_files(&location, &DirectoryListing::read(&*directory).map_err(location_error)?)?;
    let directory_lock = directory.lock(file_names::LOCK).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => OpenError::Locked { location: location.clone() },
        _ => location_error(error),
    })?;
    // A killed process may have renamed a file without syncing the directory. Names must be durable before
    // anything depends on them, such as the existence of the store or the removal of files that a snapshot
    // supersedes.
    directory.sync_names().map_err(location_error)?;
    let listing = DirectoryListing::read(&*directory).map_err(location_error)?;
    check_only_store_files(&location, &listing)?;
    let identity = if listing.has_identity {
        let identity = read_identity(&*directory)?;
        finish_creation(&*directory, &listing)?;
        identity
    } else {
        create_store(&*directory, options)?
    };
    replay(ReplayEntry::Identity { secret: identity.secret }).map_err(|reason| OpenError::Rejected {
        file: file_names::IDENTITY.to_owned(),
        offset: 0,
        reason,
    })?;
    let listing = DirectoryListing::read(&*directory).map_err(location_error)?;
    let log_end = reader::read_log(&*directory, &identity, &listing, replay)?;
    remove_leftovers(&*directory, &listing, log_end.first_segment).map_err(location_error)?;
    let previous_run = match log_end.last_kind {
        // There is not even a start block: if the store was created before, it was never used.
        None if log_end.link == ChainPosition::first(&identity.store) => PreviousRun::Created,
        Some(BlockKind::Stop) => PreviousRun::Stopped,
        _ => PreviousRun::Crashed,
    };
    let cut_bytes = log_end.nonzero_end.saturating_sub(log_end.offset);
    let (block_bytes, read_bytes, first_segment) =
        (log_end.block_bytes, log_end.read_bytes, log_end.first_segment);
    let mut active = repair_tail(directory, &identity, options, log_end)?;
    active.write_marker(BlockKind::Start).map_err(|failure| write_error(&location, failure))?;
    Ok(RecoveredLog {
        active,
        directory_lock,
        identity,
        previous_run,
        cut_bytes,
        block_bytes,
        read_bytes,
        first_segment,
    })
}

fn check_only_store_files(location: &str, listing: &DirectoryListing) -> Result<(), OpenError> {
    match listing.first_unexpected() {
        Some(found) if !listing.has_identity => {
            Err(OpenError::NotAStore { location: location.to_owned(), found: Some(found) })
        }
        _ => Ok(()),
    }
}

/// Reads the identity of the store.
pub(super) fn read_identity(directory: &dyn Directory) -> Result<StoreIdentity, OpenError> {
    let mut bytes = Vec::new();
    let read =
        directory.open(file_names::IDENTITY, OpenMode::Read).and_then(|file| read_whole(&*file, &mut bytes));
    read.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => OpenError::NotAStore { location: directory.location(), found: None },
        _ => OpenError::of_disk(file_names::IDENTITY, error),
    })?;
    StoreIdentity::decode(file_names::IDENTITY, &bytes)
}

fn create_store(directory: &dyn Directory, options: LogOptions) -> Result<StoreIdentity, OpenError> {
    let disk_error = |error| OpenError::of_disk(&directory.location(), error);
    let identity = StoreIdentity {
        store: directory.random().map_err(disk_error)?,
        secret: directory.random().map_err(disk_error)?,
    };
    let header = SegmentHeader {
        segment: FIRST_SEGMENT,
        link: ChainPosition::first(&identity.store),
        length: options.segment_bytes.max(super::MIN_SEGMENT_BYTES),
    };
    let first = file_names::segment_name(FIRST_SEGMENT);
    create_unnamed(directory, &header, &identity.store)
        .and_then(|_| directory.sync_names())
        .and_then(|()| write_identity(directory, &identity))
        .and_then(|()| directory.rename(&file_names::unfinished_name(&first), &first))
        .and_then(|()| directory.sync_names())
        .map_err(disk_error)?;
    Ok(identity)
}

/// Writes the identity durably, which makes the directory a store.
pub(super) fn write_identity(directory: &dyn Directory, identity: &StoreIdentity) -> io::Result<()> {
    let name = file_names::unfinished_name(file_names::IDENTITY);
    super::snapshot_file::remove_if_exists(directory, &name)?;
    let file = directory.create(&name)?;
    file.write_at(&identity.encode(), 0)?;
    file.sync()?;
    directory.rename(&name, file_names::IDENTITY)?;
    directory.sync_names()
}

/// Renames the first segment if a crash came between naming the identity and naming the segment.
fn finish_creation(directory: &dyn Directory, listing: &DirectoryListing) -> Result<(), OpenError> {
    let first = file_names::segment_name(FIRST_SEGMENT);
    let unfinished = file_names::unfinished_name(&first);
    let is_begun = listing.segments.is_empty() && listing.snapshots.is_empty();
    if is_begun && listing.unfinished.contains(&unfinished) {
        let named = directory.rename(&unfinished, &first).and_then(|()| directory.sync_names());
        named.map_err(|error| OpenError::of_disk(&first, error))?;
    }
    Ok(())
}

/// Removes unfinished files and files that a snapshot supersedes.
fn remove_leftovers(
    directory: &dyn Directory,
    listing: &DirectoryListing,
    first_segment: u64,
) -> io::Result<()> {
    let segments = listing
        .segments
        .iter()
        .filter(|number| **number < first_segment)
        .map(|each| file_names::segment_name(*each));
    let snapshots = listing
        .snapshots
        .iter()
        .filter(|number| **number < first_segment)
        .map(|each| file_names::snapshot_name(*each));
    for name in listing.unfinished.iter().cloned().chain(segments).chain(snapshots) {
        directory.remove(&name)?;
    }
    Ok(())
}

/// Repairs the end of the log. Afterwards everything that was replayed is durable and followed by zeros.
fn repair_tail(
    directory: Arc<dyn Directory>,
    identity: &StoreIdentity,
    options: LogOptions,
    log_end: LogEnd,
) -> Result<ActiveSegment, OpenError> {
    let name = file_names::segment_name(log_end.segment);
    let disk_error = |error| OpenError::of_disk(&name, error);
    let file = reopen(&*directory, &name).map_err(disk_error)?;
    if let Some(last) = &log_end.last_block {
        if last.segment == log_end.segment {
            file.write_at(&last.bytes, last.offset).map_err(disk_error)?;
        } else {
            let before = reopen(&*directory, &file_names::segment_name(last.segment)).map_err(disk_error)?;
            before.write_at(&last.bytes, last.offset).and_then(|()| before.sync()).map_err(disk_error)?;
        }
    }
    if log_end.offset == segment::HEADER_BYTES as u64 {
        rewrite_header(&*file).map_err(disk_error)?;
    }
    write_zeros(&*file, log_end.offset, log_end.nonzero_end).map_err(disk_error)?;
    file.sync().map_err(disk_error)?;
    let mut active = ActiveSegment {
        directory,
        store: identity.store,
        segment_bytes: options.segment_bytes.max(super::MIN_SEGMENT_BYTES),
        segment: log_end.segment,
        file,
        offset: log_end.offset,
        length: log_end.length,
        link: log_end.link,
        time: log_end.time,
    };
    if let Some(next) = log_end.empty_segment {
        let name = file_names::segment_name(next.header.segment);
        let disk_error = |error| OpenError::of_disk(&name, error);
        let file = reopen(&*active.directory, &name).map_err(disk_error)?;
        rewrite_header(&*file).map_err(disk_error)?;
        write_zeros(&*file, segment::HEADER_BYTES as u64, next.nonzero_end).map_err(disk_error)?;
        file.sync().map_err(disk_error)?;
        active.seal_into(&next.header, file).map_err(|failure| write_error(&name, failure))?;
    }
    active.file.appends_from(active.offset);
    Ok(active)
}

/// Opens a file for writing and syncs it first. The writes of a killed process must be durable before they
/// are overwritten: two writes of the same sectors in flight at a power failure can leave a mixture of both.
fn reopen(directory: &dyn Directory, name: &str) -> io::Result<Box<dyn DirectoryFile>> {
    let file = directory.open(name, OpenMode::ReadWrite)?;
    file.sync()?;
    Ok(file)
}

/// Writes the header again, for the same reason as the last block.
fn rewrite_header(file: &dyn DirectoryFile) -> io::Result<()> {
    let mut header = [0; segment::HEADER_BYTES];
    file.read_at(&mut header, 0)?;
    file.write_at(&header, 0)
}

fn write_zeros(file: &dyn DirectoryFile, from: u64, to: u64) -> io::Result<()> {
    let length =
        usize::try_from(to.saturating_sub(from)).map_err(|_| io::Error::other("too much to clear"))?;
    if length > 0 { file.write_at(&vec![0; length], from) } else { Ok(()) }
}

fn write_error(name: &str, failure: WriteFailure) -> OpenError {
    let file = name.to_owned();
    match failure {
        WriteFailure::Full(_) => OpenError::Full { file },
        WriteFailure::Failed(reason) => OpenError::Disk { file, error: io::Error::other(reason) },
    }
}
