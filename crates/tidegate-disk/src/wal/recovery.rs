//! Opening: creating a store that is not there, reading one that is, and mending what a crash left.
//!
//! A new store gets its files in an order in which every crash can be told from every loss:
//!
//! ```text
//!   lock ─▶ log-1.new ─▶ identity.new ─▶ identity ─▶ log-1
//! ```
//!
//! Without an identity the directory holds nothing but a lock and unfinished files, and creation begins again. With an identity and without
//! `log-1`, `log-1.new` is still there; if neither is, somebody removed it.
//!
//! Mending is short: bytes behind the end of the chain are overwritten with zeros, so that they can never be taken for a part of a later block;
//! a seal that is missing is written; and the last block is written once more. It was read from the cache of a system that may have
//! failed to write it, and told nobody but a process that is gone. Only then is a start written: from here on the log has not
//! been stopped cleanly until it is again.

use std::io;
use std::sync::Arc;

use super::active_segment::{End, Failure, create_unnamed};
use super::block::{Kind, Link};
use super::error::OpenError;
use super::file_names::{self, FIRST_SEGMENT, Survey};
use super::identity::Identity;
use super::reader::{self, Ending};
use super::segment::{self, Header};
use super::{Before, Entry, Options};
use crate::directory::{File, Files, Guard, Purpose, read_whole};

/// A log that was read and can be written on.
#[derive(Debug)]
pub(super) struct Readied {
    pub(super) end: End,
    pub(super) guard: Box<dyn Guard>,
    pub(super) identity: Identity,
    pub(super) before: Before,
    pub(super) cut: u64,
    pub(super) block_bytes: u64,
    pub(super) read: u64,
    /// The first segment that was read.
    pub(super) begins: u64,
}

pub(super) fn open(
    files: Arc<dyn Files>,
    options: Options,
    replay: &mut dyn FnMut(Entry<'_>) -> Result<(), String>,
) -> Result<Readied, OpenError> {
    let place = files.place();
    let of_place = |error| OpenError::of_disk(&place, error);
    // Before the lock, which is a file: a directory that is not a store is not touched.
    refuse_strangers(&place, &Survey::of(&*files).map_err(of_place)?)?;
    let guard = files.lock(file_names::LOCK).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => OpenError::Locked { place: place.clone() },
        _ => of_place(error),
    })?;
    // Somebody who was killed may have named a file and not come to make the name durable. Nothing may follow from a name before it is: not
    // that a store was created, nor that what a snapshot stands for can go.
    files.sync_names().map_err(of_place)?;
    let survey = Survey::of(&*files).map_err(of_place)?;
    refuse_strangers(&place, &survey)?;
    let identity = if survey.identity.is_some() {
        let identity = read_identity(&*files)?;
        finish_creation(&*files, &survey)?;
        identity
    } else {
        create(&*files, options)?
    };
    replay(Entry::Identity { secret: identity.secret }).map_err(|reason| OpenError::Rejected {
        file: file_names::IDENTITY.to_owned(),
        offset: 0,
        reason,
    })?;
    let survey = Survey::of(&*files).map_err(of_place)?;
    let ending = reader::read(&*files, &identity, &survey, replay)?;
    remove_leftovers(&*files, &survey, ending.begins).map_err(of_place)?;
    let before = match ending.last {
        // Not even a start: if it was created before, then by somebody who never came to use it.
        None if ending.link == Link::first(&identity.store) => Before::Created,
        Some(Kind::Stop) => Before::Stopped,
        _ => Before::Crashed,
    };
    let cut = ending.dirty_to.saturating_sub(ending.offset);
    let (block_bytes, read, begins) = (ending.block_bytes, ending.read, ending.begins);
    let mut end = mend(files, &identity, options, ending)?;
    end.mark(Kind::Start).map_err(|failure| of_failure(&place, failure))?;
    Ok(Readied { end, guard, identity, before, cut, block_bytes, read, begins })
}

fn refuse_strangers(place: &str, survey: &Survey) -> Result<(), OpenError> {
    match survey.foreign() {
        Some(found) if survey.identity.is_none() => {
            Err(OpenError::NotAStore { place: place.to_owned(), found: Some(found) })
        }
        _ => Ok(()),
    }
}

/// Which store this is.
pub(super) fn read_identity(files: &dyn Files) -> Result<Identity, OpenError> {
    let mut bytes = Vec::new();
    let read =
        files.open(file_names::IDENTITY, Purpose::Reading).and_then(|file| read_whole(&*file, &mut bytes));
    read.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => OpenError::NotAStore { place: files.place(), found: None },
        _ => OpenError::of_disk(file_names::IDENTITY, error),
    })?;
    Identity::decode(file_names::IDENTITY, &bytes)
}

fn create(files: &dyn Files, options: Options) -> Result<Identity, OpenError> {
    let of_disk = |error| OpenError::of_disk(&files.place(), error);
    let identity =
        Identity { store: files.random().map_err(of_disk)?, secret: files.random().map_err(of_disk)? };
    let header = Header {
        segment: FIRST_SEGMENT,
        link: Link::first(&identity.store),
        length: options.segment_bytes.max(super::SMALLEST_SEGMENT),
    };
    let first = file_names::segment(FIRST_SEGMENT);
    create_unnamed(files, &header, &identity.store)
        .and_then(|_| files.sync_names())
        .and_then(|()| write_identity(files, &identity))
        .and_then(|()| files.rename(&file_names::unfinished(&first), &first))
        .and_then(|()| files.sync_names())
        .map_err(of_disk)?;
    Ok(identity)
}

/// Makes a directory the store with this identity, durably.
pub(super) fn write_identity(files: &dyn Files, identity: &Identity) -> io::Result<()> {
    let name = file_names::unfinished(file_names::IDENTITY);
    super::snapshot_file::remove_if_there(files, &name)?;
    let file = files.create(&name)?;
    file.write_at(&identity.encode(), 0)?;
    file.sync()?;
    files.rename(&name, file_names::IDENTITY)?;
    files.sync_names()
}

/// Names the first segment if a crash came between that and naming the identity.
fn finish_creation(files: &dyn Files, survey: &Survey) -> Result<(), OpenError> {
    let first = file_names::segment(FIRST_SEGMENT);
    let unfinished = file_names::unfinished(&first);
    let is_begun = survey.segments.is_empty() && survey.snapshots.is_empty();
    if is_begun && survey.unfinished.contains(&unfinished) {
        let named = files.rename(&unfinished, &first).and_then(|()| files.sync_names());
        named.map_err(|error| OpenError::of_disk(&first, error))?;
    }
    Ok(())
}

/// Removes what was never finished, and what a snapshot stands for.
fn remove_leftovers(files: &dyn Files, survey: &Survey, begins: u64) -> io::Result<()> {
    let segments =
        survey.segments.iter().filter(|number| **number < begins).map(|each| file_names::segment(*each));
    let snapshots =
        survey.snapshots.iter().filter(|number| **number < begins).map(|each| file_names::snapshot(*each));
    for name in survey.unfinished.iter().cloned().chain(segments).chain(snapshots) {
        files.remove(&name)?;
    }
    Ok(())
}

/// Puts the end of the log in order; afterwards everything that was replayed is durable, and zeros follow.
fn mend(
    files: Arc<dyn Files>,
    identity: &Identity,
    options: Options,
    ending: Ending,
) -> Result<End, OpenError> {
    let name = file_names::segment(ending.segment);
    let of_disk = |error| OpenError::of_disk(&name, error);
    let file = reopen(&*files, &name).map_err(of_disk)?;
    if let Some(last) = &ending.last_block {
        if last.segment == ending.segment {
            file.write_at(&last.bytes, last.offset).map_err(of_disk)?;
        } else {
            let before = reopen(&*files, &file_names::segment(last.segment)).map_err(of_disk)?;
            before.write_at(&last.bytes, last.offset).and_then(|()| before.sync()).map_err(of_disk)?;
        }
    }
    if ending.offset == segment::HEADER as u64 {
        rewrite_header(&*file).map_err(of_disk)?;
    }
    clear(&*file, ending.offset, ending.dirty_to).map_err(of_disk)?;
    file.sync().map_err(of_disk)?;
    let mut end = End {
        files,
        store: identity.store,
        segment_bytes: options.segment_bytes.max(super::SMALLEST_SEGMENT),
        segment: ending.segment,
        file,
        offset: ending.offset,
        length: ending.length,
        link: ending.link,
        time: ending.time,
    };
    if let Some(next) = ending.next {
        let name = file_names::segment(next.header.segment);
        let of_disk = |error| OpenError::of_disk(&name, error);
        let file = reopen(&*end.files, &name).map_err(of_disk)?;
        rewrite_header(&*file).map_err(of_disk)?;
        clear(&*file, segment::HEADER as u64, next.dirty_to).map_err(of_disk)?;
        file.sync().map_err(of_disk)?;
        end.seal_into(&next.header, file).map_err(|failure| of_failure(&name, failure))?;
    }
    end.file.appends_from(end.offset);
    Ok(end)
}

/// Opens a file to be written on. What somebody who was killed wrote last is made durable before anything is written over it: two writes
/// of the same place that were both on their way when the power fails could leave a mixture that looks like neither.
fn reopen(files: &dyn Files, name: &str) -> io::Result<Box<dyn File>> {
    let file = files.open(name, Purpose::Writing)?;
    file.sync()?;
    Ok(file)
}

/// Writes the header once more, for the same reason as the last block.
fn rewrite_header(file: &dyn File) -> io::Result<()> {
    let mut header = [0; segment::HEADER];
    file.read_at(&mut header, 0)?;
    file.write_at(&header, 0)
}

/// Writes zeros.
fn clear(file: &dyn File, from: u64, to: u64) -> io::Result<()> {
    let length =
        usize::try_from(to.saturating_sub(from)).map_err(|_| io::Error::other("too much to clear"))?;
    if length > 0 { file.write_at(&vec![0; length], from) } else { Ok(()) }
}

fn of_failure(name: &str, failure: Failure) -> OpenError {
    let file = name.to_owned();
    match failure {
        Failure::Full(_) => OpenError::Full { file },
        Failure::Broken(reason) => OpenError::Disk { file, error: io::Error::other(reason) },
    }
}
