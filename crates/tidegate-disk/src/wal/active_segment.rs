//! Writing: the end of the log, which one thread owns.
//!
//! A block is written and made durable before the next one is begun. When a segment is full, the next one is made first, durably and
//! with its name, and then the old one is sealed; the seal is a block like any other.
//!
//! ```text
//!   log-4.new: room, header, sync ─▶ named log-4 ─▶ names synced ─▶ seal in log-3, sync ─▶ blocks in log-4
//! ```
//!
//! Every segment keeps room for its seal, so a full disk stops the log only between segments.

use std::io;
use std::sync::Arc;

use super::block::{self, Kind, Link};
use super::encoding::StoreId;
use super::file_names;
use super::segment::{self, Header};
use super::snapshot_file::remove_if_there;
use crate::directory::{File, Files, is_full};

/// Why nothing was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failure {
    /// There is no room, and everything is as it was.
    Full(String),
    /// Nobody knows what is on the disk.
    Broken(String),
}

impl Failure {
    fn of(name: &str, doing: &str, error: &io::Error) -> Failure {
        let what = format!("{doing} {name} failed: {error}");
        if is_full(error) { Failure::Full(what) } else { Failure::Broken(what) }
    }

    fn broken(name: &str, doing: &str, error: &io::Error) -> Failure {
        Failure::Broken(format!("{doing} {name} failed: {error}"))
    }
}

/// The end of the log.
#[derive(Debug)]
pub(super) struct End {
    pub(super) files: Arc<dyn Files>,
    pub(super) store: StoreId,
    /// How long segments are made, if nothing larger must fit.
    pub(super) segment_bytes: u64,
    pub(super) segment: u64,
    pub(super) file: Box<dyn File>,
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) link: Link,
    pub(super) time: u64,
}

impl End {
    /// Writes a block durably. The buffer is as [`block::finish`] wants it, and is as it was if this fails.
    pub(super) fn write(&mut self, buffer: &mut Vec<u8>, kind: Kind, time: u64) -> Result<(), Failure> {
        let size = (buffer.len() + block::TRAILER) as u64;
        if self.offset + size + block::EMPTY as u64 > self.length {
            self.roll(size)?;
        }
        let time = time.max(self.time);
        let payload_end = buffer.len();
        let checksum = block::finish(buffer, kind, self.link, time, &self.store, self.offset);
        let outcome = self.put(buffer, checksum, time);
        if outcome.is_err() {
            buffer.truncate(payload_end);
        }
        outcome
    }

    /// Writes a block without a payload.
    pub(super) fn mark(&mut self, kind: Kind) -> Result<(), Failure> {
        self.write(&mut vec![0; block::HEADER], kind, self.time)
    }

    fn put(&mut self, bytes: &[u8], checksum: u32, time: u64) -> Result<(), Failure> {
        let name = file_names::segment(self.segment);
        let written = self.file.write_at(bytes, self.offset);
        written.map_err(|error| Failure::of(&name, "writing", &error))?;
        // Whatever a failed sync says, it must not be asked again: what it could not write is forgotten.
        self.file.sync().map_err(|error| Failure::broken(&name, "syncing", &error))?;
        self.offset += bytes.len() as u64;
        self.link = self.link.after(checksum);
        self.time = time;
        Ok(())
    }

    /// Ends this segment and begins the next, in which a block of this size has room.
    pub(super) fn roll(&mut self, size: u64) -> Result<(), Failure> {
        let least = segment::HEADER as u64 + size + block::EMPTY as u64;
        let length = self.segment_bytes.max(least);
        let (_, checksum) = self.seal();
        let header = Header { segment: self.segment + 1, link: self.link.after(checksum), length };
        let file = create_segment(&*self.files, &header, &self.store)?;
        let sealed = self.seal_into(&header, file);
        if let Err(Failure::Full(_)) = sealed {
            self.take_back(&header)?;
        }
        sealed
    }

    /// The seal of this segment: everything in it is known before it is written.
    fn seal(&self) -> (Vec<u8>, u32) {
        block::empty(Kind::Seal, self.link, self.time, &self.store, self.offset)
    }

    /// Seals this segment and goes on in that one.
    pub(super) fn seal_into(&mut self, header: &Header, file: Box<dyn File>) -> Result<(), Failure> {
        let (seal, checksum) = self.seal();
        self.put(&seal, checksum, self.time)?;
        self.segment = header.segment;
        self.file = file;
        self.offset = segment::HEADER as u64;
        self.length = header.length;
        Ok(())
    }

    /// Removes a segment for which the one before could not be sealed, so that the one before can go on.
    fn take_back(&self, header: &Header) -> Result<(), Failure> {
        let name = file_names::segment(header.segment);
        let removed = self.files.remove(&name).and_then(|()| self.files.sync_names());
        removed.map_err(|error| Failure::broken(&name, "removing", &error))
    }
}

/// Makes a segment, durably and with its name.
pub(super) fn create_segment(
    files: &dyn Files,
    header: &Header,
    store: &StoreId,
) -> Result<Box<dyn File>, Failure> {
    let name = file_names::segment(header.segment);
    let made = create_unnamed(files, header, store);
    let file = made.map_err(|error| Failure::of(&name, "making", &error))?;
    let named = files.rename(&file_names::unfinished(&name), &name);
    named.map_err(|error| Failure::of(&name, "naming", &error))?;
    let synced = files.sync_names();
    synced.map_err(|error| Failure::broken(&name, "syncing the name of", &error))?;
    Ok(file)
}

/// Makes a segment durably, under the name it has until it is finished. If there is no room, nothing of it stays.
pub(super) fn create_unnamed(
    files: &dyn Files,
    header: &Header,
    store: &StoreId,
) -> io::Result<Box<dyn File>> {
    let name = file_names::unfinished(&file_names::segment(header.segment));
    remove_if_there(files, &name)?;
    let make = || {
        let file = files.create_reserved(&name, header.length)?;
        file.write_at(&header.encode(store), 0)?;
        file.sync()?;
        file.appends_from(segment::HEADER as u64);
        Ok(file)
    };
    make().inspect_err(|_| {
        // It may be what fills the disk. That it could not be removed either is seen the next time.
        let _ = remove_if_there(files, &name);
    })
}
