//! Reads a log from start to end. Everything that is not proven intact is an error, except a torn tail.
//!
//! ```text
//!   snapshot-3 ─▶ log-3 ─▶ seal ─▶ log-4 ─▶ seal ─▶ log-5 ─▶ the last block │ torn or nothing │ zeros
//! ```
//!
//! The blocks of all segments form one chain, and each segment header holds its start position in the chain.
//! A segment that is not the last must end at the start position of its successor. Either its seal is
//! present, or only the seal is missing and the next segment is still empty. The second case is a crash
//! between creating a segment and sealing its predecessor. The content of the seal is known, so it is written
//! again.

use std::ops::Range;

use super::block::{self, BlockError, BlockKind, ChainPosition, LogBlock};
use super::codec::end_of_content;
use super::error::{Damage, OpenError};
use super::file_names::{self, DirectoryListing, FIRST_SEGMENT};
use super::identity::StoreIdentity;
use super::segment::{self, SegmentHeader, SegmentSeal};
use super::{ReplayEntry, snapshot_file};
use crate::directory::{Directory, OpenMode, read_whole};

/// How much of a snapshot is read between two progress reports. Segments are short and reported one by one.
const PROGRESS_BYTES: u64 = 4 << 20;

/// The end of a log.
#[derive(Debug)]
pub(super) struct LogEnd {
    /// The segment to continue in, or to seal first.
    pub(super) segment: u64,
    /// The offset at which the chain of blocks ends.
    pub(super) offset: u64,
    /// The end of nonzero bytes after the chain. They must be cleared.
    pub(super) nonzero_end: u64,
    /// The length of the segment.
    pub(super) length: u64,
    /// The position in the chain.
    pub(super) link: ChainPosition,
    /// The latest time of any block.
    pub(super) time: u64,
    /// The kind of the last block other than a seal.
    pub(super) last_kind: Option<BlockKind>,
    /// The last block, to be written again.
    pub(super) last_block: Option<LastBlock>,
    /// The next segment, if it exists already and waits for the seal of this one.
    pub(super) empty_segment: Option<EmptySegment>,
    /// The total length of all blocks.
    pub(super) block_bytes: u64,
    /// The number of bytes read.
    pub(super) read_bytes: u64,
    /// The first segment of the log. Earlier files are superseded.
    pub(super) first_segment: u64,
}

/// A segment with a header and no blocks.
#[derive(Debug)]
pub(super) struct EmptySegment {
    pub(super) header: SegmentHeader,
    /// The end of nonzero bytes.
    pub(super) nonzero_end: u64,
}

/// The bytes and location of the last block.
#[derive(Debug, Clone)]
pub(super) struct LastBlock {
    pub(super) segment: u64,
    pub(super) offset: u64,
    pub(super) bytes: Vec<u8>,
}

/// Reads the whole log and passes its content to `replay`.
pub(super) fn read_log(
    directory: &dyn Directory,
    identity: &StoreIdentity,
    listing: &DirectoryListing,
    replay: &mut dyn FnMut(ReplayEntry<'_>) -> Result<(), String>,
) -> Result<LogEnd, OpenError> {
    let total = total_bytes(directory, listing)?;
    map_rejection(replay(ReplayEntry::Progress { read: 0, total }), "", 0)?;
    let mut reader = LogReader::begin(directory, identity, listing, total, replay)?;
    let mut buffer = Vec::new();
    loop {
        reader.replay(ReplayEntry::Progress { read: reader.log_end.read_bytes, total }, "", 0)?;
        if reader.read_segment(&mut buffer)? == SegmentSeal::Missing {
            reader.replay(ReplayEntry::Progress { read: reader.log_end.read_bytes, total }, "", 0)?;
            return Ok(reader.log_end);
        }
    }
}

/// The number of bytes to read.
fn total_bytes(directory: &dyn Directory, listing: &DirectoryListing) -> Result<u64, OpenError> {
    let newest = listing.snapshots.last();
    let begins = newest.copied().unwrap_or(0);
    let segments = listing.segments.iter().filter(|number| **number >= begins);
    let names = newest.map(|number| file_names::snapshot_name(*number)).into_iter();
    let mut total = 0;
    for name in names.chain(segments.map(|number| file_names::segment_name(*number))) {
        let length = directory.open(&name, OpenMode::Read).and_then(|file| file.length());
        total += length.map_err(|error| OpenError::of_disk(&name, error))?;
    }
    Ok(total)
}

struct LogReader<'a> {
    directory: &'a dyn Directory,
    identity: &'a StoreIdentity,
    listing: &'a DirectoryListing,
    /// The number of bytes to read.
    total: u64,
    replay: &'a mut dyn FnMut(ReplayEntry<'_>) -> Result<(), String>,
    log_end: LogEnd,
}

impl<'a> LogReader<'a> {
    /// Creates a reader and reads the snapshot, if there is one.
    fn begin(
        directory: &'a dyn Directory,
        identity: &'a StoreIdentity,
        listing: &'a DirectoryListing,
        total: u64,
        replay: &'a mut dyn FnMut(ReplayEntry<'_>) -> Result<(), String>,
    ) -> Result<LogReader<'a>, OpenError> {
        let log_end = LogEnd {
            segment: FIRST_SEGMENT,
            offset: 0,
            nonzero_end: 0,
            length: 0,
            link: ChainPosition::first(&identity.store),
            time: 0,
            last_kind: None,
            last_block: None,
            empty_segment: None,
            block_bytes: 0,
            read_bytes: 0,
            first_segment: FIRST_SEGMENT,
        };
        let mut reader = LogReader { directory, identity, listing, total, replay, log_end };
        if let Some(number) = listing.snapshots.last() {
            reader.read_snapshot(*number)?;
        } else if let Some(lowest) = listing.segments.first()
            && *lowest > FIRST_SEGMENT
        {
            return Err(OpenError::SnapshotMissing { file: file_names::snapshot_name(*lowest) });
        }
        Ok(reader)
    }

    fn read_snapshot(&mut self, number: u64) -> Result<(), OpenError> {
        let name = file_names::snapshot_name(number);
        let (replay, total, mut reported) = (&mut *self.replay, self.total, 0);
        let mut visit = |offset, payload: &[u8]| {
            if offset - reported >= PROGRESS_BYTES {
                reported = offset;
                map_rejection(replay(ReplayEntry::Progress { read: offset, total }), &name, offset)?;
            }
            map_rejection(replay(ReplayEntry::Snapshot(payload)), &name, offset)
        };
        let contents =
            snapshot_file::read_snapshot(self.directory, number, &self.identity.store, &mut visit)?;
        self.log_end.segment = number;
        self.log_end.first_segment = number;
        self.log_end.link = contents.header.link;
        self.log_end.time = contents.header.time;
        self.log_end.read_bytes += contents.length;
        Ok(())
    }

    /// Reads the next segment.
    fn read_segment(&mut self, buffer: &mut Vec<u8>) -> Result<SegmentSeal, OpenError> {
        let number = self.log_end.segment;
        let name = file_names::segment_name(number);
        let header = self.load_segment(number, &name, buffer)?;
        self.log_end.read_bytes += buffer.len() as u64;
        self.log_end.length = header.length;
        if header.link != self.log_end.link {
            let ChainPosition { number, chain } = self.log_end.link;
            let expected = format!("a segment that begins with block {number} after checksum {chain:08x}");
            return Err(Damage::at(&name, 40, expected).into());
        }
        let mut offset = segment::HEADER_BYTES;
        let mut last = None;
        loop {
            self.log_end.offset = offset as u64;
            let block = match block::read_block(buffer, offset, &self.identity.store) {
                Ok(block) => block,
                Err(invalid) => {
                    self.keep_last(last, buffer);
                    return self.check_end(&invalid, buffer).map(|()| SegmentSeal::Missing);
                }
            };
            self.replay_block(&block, &name, offset)?;
            last = Some(offset..offset + block.size());
            offset += block.size();
            if block.kind == BlockKind::Seal {
                self.keep_last(last, buffer);
                self.log_end.segment = number + 1;
                return Ok(SegmentSeal::Present);
            }
        }
    }

    /// Remembers the last block of this segment. If it has none, the block of the previous segment stays.
    fn keep_last(&mut self, last: Option<Range<usize>>, buffer: &[u8]) {
        if let Some(last) = last {
            let (segment, offset) = (self.log_end.segment, last.start as u64);
            self.log_end.last_block = Some(LastBlock { segment, offset, bytes: buffer[last].to_vec() });
        }
    }

    fn load_segment(
        &self,
        number: u64,
        name: &str,
        buffer: &mut Vec<u8>,
    ) -> Result<SegmentHeader, OpenError> {
        if !self.listing.segments.contains(&number) {
            return Err(OpenError::SegmentMissing { file: name.to_owned() });
        }
        let disk_error = |error| OpenError::of_disk(name, error);
        let file = self.directory.open(name, OpenMode::Read).map_err(disk_error)?;
        // Checks the header first: a foreign file may be of any size.
        let mut head = [0; segment::HEADER_BYTES];
        let got = file.read_at(&mut head, 0).map_err(disk_error)?;
        let header = SegmentHeader::decode(name, &head[..got], number, &self.identity.store)?;
        let length = file.length().map_err(disk_error)?;
        if header.length != length {
            let expected = format!("a file of {} bytes", header.length);
            return Err(Damage::at(name, header.length.min(length), expected).into());
        }
        read_whole(&*file, buffer).map_err(disk_error)?;
        SegmentHeader::decode_segment(name, buffer, number, &self.identity.store)
    }

    fn replay_block(&mut self, block: &LogBlock<'_>, name: &str, offset: usize) -> Result<(), OpenError> {
        let ChainPosition { number, chain } = self.log_end.link;
        let offset = offset as u64;
        if (block.number, block.chain) != (number, chain) {
            let expected = format!("block {number} after checksum {chain:08x}");
            return Err(Damage::at(name, offset, expected).into());
        }
        if block.kind == BlockKind::Records {
            let entry = ReplayEntry::Block { number, time: block.time, payload: block.payload };
            self.replay(entry, name, offset)?;
        }
        if block.kind != BlockKind::Seal {
            self.log_end.last_kind = Some(block.kind);
        }
        self.log_end.time = self.log_end.time.max(block.time);
        self.log_end.link = self.log_end.link.advance(block.checksum);
        self.log_end.block_bytes += block.size() as u64;
        Ok(())
    }

    /// Checks what follows the end of the chain.
    fn check_end(&mut self, invalid: &BlockError, buffer: &[u8]) -> Result<(), OpenError> {
        let name = file_names::segment_name(self.log_end.segment);
        let offset = usize::try_from(self.log_end.offset).expect("an offset in a buffer");
        let number = self.log_end.link.number;
        if let BlockError::Damaged { at, expected } = invalid {
            return Err(Damage::at(&name, (offset + at) as u64, *expected).into());
        }
        self.log_end.nonzero_end = (end_of_content(&buffer[offset..]) + offset) as u64;
        let content = &buffer[..usize::try_from(self.log_end.nonzero_end).expect("an offset in a buffer")];
        if let Some(later) = block::find_later(content, offset, number, &self.identity.store) {
            let expected = format!("block {number}, because a later one is at byte {later}");
            return Err(Damage::at(&name, offset as u64, expected).into());
        }
        let next = self.log_end.segment + 1;
        if self.listing.segments.last().is_some_and(|last| *last >= next) {
            self.log_end.empty_segment = Some(self.check_unsealed(&name, next)?);
        }
        Ok(())
    }

    /// Checks that the next segment is empty and that only the seal before it is missing.
    fn check_unsealed(&self, name: &str, next: u64) -> Result<EmptySegment, OpenError> {
        let LogEnd { link, time, offset, .. } = self.log_end;
        let store = &self.identity.store;
        let damage =
            |why: &str| Err(Damage::at(name, offset, format!("block {}, {why}", link.number)).into());
        if self.listing.segments.last() != Some(&next) {
            return damage("because there are segments after the next");
        }
        let mut buffer = Vec::new();
        let header = self.load_segment(next, &file_names::segment_name(next), &mut buffer)?;
        let (_, seal) = block::encode_empty_block(BlockKind::Seal, link, time, store, offset);
        if header.link != link.advance(seal) {
            return damage("because the next segment begins after a later one");
        }
        let first = segment::HEADER_BYTES - 1;
        if block::find_later(&buffer, first, header.link.number, store).is_some() {
            return damage("because the next segment has blocks");
        }
        Ok(EmptySegment { header, nonzero_end: end_of_content(&buffer) as u64 })
    }

    fn replay(&mut self, entry: ReplayEntry<'_>, name: &str, offset: u64) -> Result<(), OpenError> {
        map_rejection((self.replay)(entry), name, offset)
    }
}

fn map_rejection(outcome: Result<(), String>, name: &str, offset: u64) -> Result<(), OpenError> {
    outcome.map_err(|reason| OpenError::Rejected { file: name.to_owned(), offset, reason })
}
