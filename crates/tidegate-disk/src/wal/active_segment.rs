//! The active segment: the end of the log, owned by the writer thread.
//!
//! Each block is durable before the next one is written. When a segment is full, the next segment is created
//! first, durably and under its final name. Then the old segment is sealed. The seal is an ordinary block.
//!
//! ```text
//!   log-4.new: reserve, header, sync ─▶ rename to log-4 ─▶ sync names ─▶ seal log-3, sync ─▶ blocks in log-4
//! ```
//!
//! Every segment keeps room for its seal, so a full disk stops the log only between segments.

use std::io;
use std::sync::Arc;

use super::block::{self, BlockKind, ChainPosition};
use super::codec::StoreId;
use super::file_names;
use super::segment::{self, SegmentHeader};
use super::snapshot_file::remove_if_exists;
use crate::directory::{Directory, DirectoryFile, is_full};

/// Why a write failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum WriteFailure {
    /// The disk is full. Nothing changed.
    Full(String),
    /// The disk failed. Its state is unknown.
    Failed(String),
}

impl WriteFailure {
    fn new(name: &str, action: &str, error: &io::Error) -> WriteFailure {
        let what = format!("{action} {name} failed: {error}");
        if is_full(error) { WriteFailure::Full(what) } else { WriteFailure::Failed(what) }
    }

    fn failed(name: &str, action: &str, error: &io::Error) -> WriteFailure {
        WriteFailure::Failed(format!("{action} {name} failed: {error}"))
    }
}

/// The segment that receives blocks, and the write position in it.
#[derive(Debug)]
pub(super) struct ActiveSegment {
    pub(super) directory: Arc<dyn Directory>,
    pub(super) store: StoreId,
    /// The length of a new segment, unless a larger block must fit.
    pub(super) segment_bytes: u64,
    pub(super) segment: u64,
    pub(super) file: Box<dyn DirectoryFile>,
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) link: ChainPosition,
    pub(super) time: u64,
}

impl ActiveSegment {
    /// Writes a block durably. The buffer must have the layout that [`block::encode_block`] expects. On
    /// failure the buffer is unchanged.
    pub(super) fn write_block(
        &mut self,
        buffer: &mut Vec<u8>,
        kind: BlockKind,
        time: u64,
    ) -> Result<(), WriteFailure> {
        let size = (buffer.len() + block::TRAILER_BYTES) as u64;
        if self.offset + size + block::EMPTY_BLOCK_BYTES as u64 > self.length {
            self.roll_over(size)?;
        }
        let time = time.max(self.time);
        let payload_end = buffer.len();
        let checksum = block::encode_block(buffer, kind, self.link, time, &self.store, self.offset);
        let outcome = self.write_durably(buffer, checksum, time);
        if outcome.is_err() {
            buffer.truncate(payload_end);
        }
        outcome
    }

    /// Writes a block without a payload.
    pub(super) fn write_marker(&mut self, kind: BlockKind) -> Result<(), WriteFailure> {
        self.write_block(&mut vec![0; block::HEADER_BYTES], kind, self.time)
    }

    fn write_durably(&mut self, bytes: &[u8], checksum: u32, time: u64) -> Result<(), WriteFailure> {
        let name = file_names::segment_name(self.segment);
        let written = self.file.write_at(bytes, self.offset);
        written.map_err(|error| WriteFailure::new(&name, "writing", &error))?;
        // Never repeat a failed sync: the kernel has dropped the pages that it could not write.
        self.file.sync().map_err(|error| WriteFailure::failed(&name, "syncing", &error))?;
        self.offset += bytes.len() as u64;
        self.link = self.link.advance(checksum);
        self.time = time;
        Ok(())
    }

    /// Seals this segment and starts the next one, which has room for a block of `size` bytes.
    pub(super) fn roll_over(&mut self, size: u64) -> Result<(), WriteFailure> {
        let least = segment::HEADER_BYTES as u64 + size + block::EMPTY_BLOCK_BYTES as u64;
        let length = self.segment_bytes.max(least);
        let (_, checksum) = self.encode_seal();
        let header = SegmentHeader { segment: self.segment + 1, link: self.link.advance(checksum), length };
        let file = create_segment(&*self.directory, &header, &self.store)?;
        let sealed = self.seal_into(&header, file);
        if let Err(WriteFailure::Full(_)) = sealed {
            self.remove_unused_segment(&header)?;
        }
        sealed
    }

    /// Encodes the seal of this segment. Its content is known before it is written.
    fn encode_seal(&self) -> (Vec<u8>, u32) {
        block::encode_empty_block(BlockKind::Seal, self.link, self.time, &self.store, self.offset)
    }

    /// Seals this segment and continues in the next one.
    pub(super) fn seal_into(
        &mut self,
        header: &SegmentHeader,
        file: Box<dyn DirectoryFile>,
    ) -> Result<(), WriteFailure> {
        let (seal, checksum) = self.encode_seal();
        self.write_durably(&seal, checksum, self.time)?;
        self.segment = header.segment;
        self.file = file;
        self.offset = segment::HEADER_BYTES as u64;
        self.length = header.length;
        Ok(())
    }

    /// Removes the next segment after its predecessor could not be sealed, so that the predecessor stays
    /// active.
    fn remove_unused_segment(&self, header: &SegmentHeader) -> Result<(), WriteFailure> {
        let name = file_names::segment_name(header.segment);
        let removed = self.directory.remove(&name).and_then(|()| self.directory.sync_names());
        removed.map_err(|error| WriteFailure::failed(&name, "removing", &error))
    }
}

/// Creates a segment durably and under its final name.
pub(super) fn create_segment(
    directory: &dyn Directory,
    header: &SegmentHeader,
    store: &StoreId,
) -> Result<Box<dyn DirectoryFile>, WriteFailure> {
    let name = file_names::segment_name(header.segment);
    let made = create_unnamed(directory, header, store);
    let file = made.map_err(|error| WriteFailure::new(&name, "making", &error))?;
    let named = directory.rename(&file_names::unfinished_name(&name), &name);
    named.map_err(|error| WriteFailure::new(&name, "naming", &error))?;
    let synced = directory.sync_names();
    synced.map_err(|error| WriteFailure::failed(&name, "syncing the name of", &error))?;
    Ok(file)
}

/// Creates a segment durably under its temporary name. If the disk is full, no file remains.
pub(super) fn create_unnamed(
    directory: &dyn Directory,
    header: &SegmentHeader,
    store: &StoreId,
) -> io::Result<Box<dyn DirectoryFile>> {
    let name = file_names::unfinished_name(&file_names::segment_name(header.segment));
    remove_if_exists(directory, &name)?;
    let make = || {
        let file = directory.create_reserved(&name, header.length)?;
        file.write_at(&header.encode(store), 0)?;
        file.sync()?;
        file.appends_from(segment::HEADER_BYTES as u64);
        Ok(file)
    };
    make().inspect_err(|_| {
        // The file may be what fills the disk. If it cannot be removed now, the next attempt removes it.
        let _ = remove_if_exists(directory, &name);
    })
}
