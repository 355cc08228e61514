//! Reading a log from beginning to end, strictly: what is not proved whole is refused, but for a torn tail.
//!
//! ```text
//!   snapshot-3 ─▶ log-3 ─▶ seal ─▶ log-4 ─▶ seal ─▶ log-5 ─▶ the last block │ torn or nothing │ zeros
//! ```
//!
//! The blocks of all segments are one chain, and every header of a segment says where in the chain it begins. So the end of the chain in a segment
//! that is not the last is only accepted where the next segment says it is: either the seal is there, or it is missing, is the one block that is,
//! and the next segment is still empty. That is a crash between making a segment and sealing the one before it; the seal
//! holds nothing that is not known, so it can be written again.

use std::ops::Range;

use super::block::{self, Block, Invalid, Kind, Link};
use super::encoding::end_of_content;
use super::error::{Damage, OpenError};
use super::file_names::{self, FIRST_SEGMENT, Survey};
use super::identity::Identity;
use super::segment::{self, Header};
use super::{Entry, snapshot_file};
use crate::directory::{Files, Purpose, read_whole};

/// How much of a snapshot is read before it is told how far that has come. Segments are short; it is told after each.
const TELL_AFTER: u64 = 4 << 20;

/// How a log ends.
#[derive(Debug)]
pub(super) struct Ending {
    /// The segment that is written on, or that must be sealed first.
    pub(super) segment: u64,
    /// Where in it the chain of blocks ends.
    pub(super) offset: u64,
    /// Up to where it holds something else than zeros; that must go.
    pub(super) dirty_to: u64,
    /// How long it is.
    pub(super) length: u64,
    /// Where the chain stands.
    pub(super) link: Link,
    /// The latest time of any block.
    pub(super) time: u64,
    /// The last block that says something about who has the log open.
    pub(super) last: Option<Kind>,
    /// The last block of all, to be written once more.
    pub(super) last_block: Option<Place>,
    /// The segment that is there already, and waits for the seal of this one.
    pub(super) next: Option<Next>,
    /// How many bytes all blocks have.
    pub(super) block_bytes: u64,
    /// How many bytes were read.
    pub(super) read: u64,
    /// The segment with which the log begins: what is before it is superseded.
    pub(super) begins: u64,
}

/// A segment that has its name and nothing else yet.
#[derive(Debug)]
pub(super) struct Next {
    pub(super) header: Header,
    /// Up to where it holds something else than zeros.
    pub(super) dirty_to: u64,
}

/// Where a block is.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) segment: u64,
    pub(super) offset: u64,
    pub(super) bytes: Vec<u8>,
}

/// Reads everything.
pub(super) fn read(
    files: &dyn Files,
    identity: &Identity,
    survey: &Survey,
    replay: &mut dyn FnMut(Entry<'_>) -> Result<(), String>,
) -> Result<Ending, OpenError> {
    let total = total(files, survey)?;
    rejected(replay(Entry::Progress { read: 0, total }), "", 0)?;
    let mut reading = Reading::begin(files, identity, survey, total, replay)?;
    let mut buffer = Vec::new();
    loop {
        reading.replay(Entry::Progress { read: reading.ending.read, total }, "", 0)?;
        if reading.segment(&mut buffer)? == After::End {
            reading.replay(Entry::Progress { read: reading.ending.read, total }, "", 0)?;
            return Ok(reading.ending);
        }
    }
}

/// How many bytes there are to be read.
fn total(files: &dyn Files, survey: &Survey) -> Result<u64, OpenError> {
    let newest = survey.snapshots.last();
    let begins = newest.copied().unwrap_or(0);
    let segments = survey.segments.iter().filter(|number| **number >= begins);
    let names = newest.map(|number| file_names::snapshot(*number)).into_iter();
    let mut total = 0;
    for name in names.chain(segments.map(|number| file_names::segment(*number))) {
        let length = files.open(&name, Purpose::Reading).and_then(|file| file.length());
        total += length.map_err(|error| OpenError::of_disk(&name, error))?;
    }
    Ok(total)
}

/// What comes after a segment.
#[derive(Debug, PartialEq, Eq)]
enum After {
    Another,
    End,
}

struct Reading<'a> {
    files: &'a dyn Files,
    identity: &'a Identity,
    survey: &'a Survey,
    /// How many bytes there are to be read.
    total: u64,
    replay: &'a mut dyn FnMut(Entry<'_>) -> Result<(), String>,
    ending: Ending,
}

impl<'a> Reading<'a> {
    /// Reads the snapshot, if there is one.
    fn begin(
        files: &'a dyn Files,
        identity: &'a Identity,
        survey: &'a Survey,
        total: u64,
        replay: &'a mut dyn FnMut(Entry<'_>) -> Result<(), String>,
    ) -> Result<Reading<'a>, OpenError> {
        let ending = Ending {
            segment: FIRST_SEGMENT,
            offset: 0,
            dirty_to: 0,
            length: 0,
            link: Link::first(&identity.store),
            time: 0,
            last: None,
            last_block: None,
            next: None,
            block_bytes: 0,
            read: 0,
            begins: FIRST_SEGMENT,
        };
        let mut reading = Reading { files, identity, survey, total, replay, ending };
        if let Some(number) = survey.snapshots.last() {
            reading.snapshot(*number)?;
        } else if let Some(lowest) = survey.segments.first()
            && *lowest > FIRST_SEGMENT
        {
            return Err(OpenError::SnapshotMissing { file: file_names::snapshot(*lowest) });
        }
        Ok(reading)
    }

    fn snapshot(&mut self, number: u64) -> Result<(), OpenError> {
        let name = file_names::snapshot(number);
        let (replay, total, mut told) = (&mut *self.replay, self.total, 0);
        let mut visit = |offset, payload: &[u8]| {
            if offset - told >= TELL_AFTER {
                told = offset;
                rejected(replay(Entry::Progress { read: offset, total }), &name, offset)?;
            }
            rejected(replay(Entry::Snapshot(payload)), &name, offset)
        };
        let contents = snapshot_file::read(self.files, number, &self.identity.store, &mut visit)?;
        self.ending.segment = number;
        self.ending.begins = number;
        self.ending.link = contents.header.link;
        self.ending.time = contents.header.time;
        self.ending.read += contents.length;
        Ok(())
    }

    /// Reads the segment that is next.
    fn segment(&mut self, buffer: &mut Vec<u8>) -> Result<After, OpenError> {
        let number = self.ending.segment;
        let name = file_names::segment(number);
        let header = self.load(number, &name, buffer)?;
        self.ending.read += buffer.len() as u64;
        self.ending.length = header.length;
        if header.link != self.ending.link {
            let Link { number, chain } = self.ending.link;
            let expected = format!("a segment that begins with block {number} after checksum {chain:08x}");
            return Err(Damage::at(&name, 40, expected).into());
        }
        let mut offset = segment::HEADER;
        let mut last = None;
        loop {
            self.ending.offset = offset as u64;
            let block = match block::read(buffer, offset, &self.identity.store) {
                Ok(block) => block,
                Err(invalid) => {
                    self.keep_last(last, buffer);
                    return self.end(&invalid, buffer).map(|()| After::End);
                }
            };
            self.block(&block, &name, offset)?;
            last = Some(offset..offset + block.size());
            offset += block.size();
            if block.kind == Kind::Seal {
                self.keep_last(last, buffer);
                self.ending.segment = number + 1;
                return Ok(After::Another);
            }
        }
    }

    /// Keeps the last block of this segment; if it has none, that of the one before stays.
    fn keep_last(&mut self, last: Option<Range<usize>>, buffer: &[u8]) {
        if let Some(last) = last {
            let (segment, offset) = (self.ending.segment, last.start as u64);
            self.ending.last_block = Some(Place { segment, offset, bytes: buffer[last].to_vec() });
        }
    }

    fn load(&self, number: u64, name: &str, buffer: &mut Vec<u8>) -> Result<Header, OpenError> {
        if !self.survey.segments.contains(&number) {
            return Err(OpenError::SegmentMissing { file: name.to_owned() });
        }
        let of_disk = |error| OpenError::of_disk(name, error);
        let file = self.files.open(name, Purpose::Reading).map_err(of_disk)?;
        // The header first: a file that is none of ours may be of any size.
        let mut head = [0; segment::HEADER];
        let got = file.read_at(&mut head, 0).map_err(of_disk)?;
        let header = Header::decode(name, &head[..got], number, &self.identity.store)?;
        let length = file.length().map_err(of_disk)?;
        if header.length != length {
            let expected = format!("a file of {} bytes", header.length);
            return Err(Damage::at(name, header.length.min(length), expected).into());
        }
        read_whole(&*file, buffer).map_err(of_disk)?;
        Header::of_whole(name, buffer, number, &self.identity.store)
    }

    fn block(&mut self, block: &Block<'_>, name: &str, offset: usize) -> Result<(), OpenError> {
        let Link { number, chain } = self.ending.link;
        let offset = offset as u64;
        if (block.number, block.chain) != (number, chain) {
            let expected = format!("block {number} after checksum {chain:08x}");
            return Err(Damage::at(name, offset, expected).into());
        }
        if block.kind == Kind::Records {
            let entry = Entry::Block { number, time: block.time, payload: block.payload };
            self.replay(entry, name, offset)?;
        }
        if block.kind != Kind::Seal {
            self.ending.last = Some(block.kind);
        }
        self.ending.time = self.ending.time.max(block.time);
        self.ending.link = self.ending.link.after(block.checksum);
        self.ending.block_bytes += block.size() as u64;
        Ok(())
    }

    /// Judges what is where the chain of blocks ends.
    fn end(&mut self, invalid: &Invalid, buffer: &[u8]) -> Result<(), OpenError> {
        let name = file_names::segment(self.ending.segment);
        let offset = usize::try_from(self.ending.offset).expect("a place in a buffer");
        let number = self.ending.link.number;
        if let Invalid::Damaged { at, expected } = invalid {
            return Err(Damage::at(&name, (offset + at) as u64, *expected).into());
        }
        self.ending.dirty_to = (end_of_content(&buffer[offset..]) + offset) as u64;
        let content = &buffer[..usize::try_from(self.ending.dirty_to).expect("a place in a buffer")];
        if let Some(later) = block::find_later(content, offset, number, &self.identity.store) {
            let expected = format!("block {number}, because a later one is at byte {later}");
            return Err(Damage::at(&name, offset as u64, expected).into());
        }
        let next = self.ending.segment + 1;
        if self.survey.segments.last().is_some_and(|last| *last >= next) {
            self.ending.next = Some(self.unsealed(&name, next)?);
        }
        Ok(())
    }

    /// The segment after one that has no seal, if that is all that is missing.
    fn unsealed(&self, name: &str, next: u64) -> Result<Next, OpenError> {
        let Ending { link, time, offset, .. } = self.ending;
        let store = &self.identity.store;
        let damage =
            |why: &str| Err(Damage::at(name, offset, format!("block {}, {why}", link.number)).into());
        if self.survey.segments.last() != Some(&next) {
            return damage("because there are segments after the next");
        }
        let mut buffer = Vec::new();
        let header = self.load(next, &file_names::segment(next), &mut buffer)?;
        let (_, seal) = block::empty(Kind::Seal, link, time, store, offset);
        if header.link != link.after(seal) {
            return damage("because the next segment begins after a later one");
        }
        let first = segment::HEADER - 1;
        if block::find_later(&buffer, first, header.link.number, store).is_some() {
            return damage("because the next segment has blocks");
        }
        Ok(Next { header, dirty_to: end_of_content(&buffer) as u64 })
    }

    fn replay(&mut self, entry: Entry<'_>, name: &str, offset: u64) -> Result<(), OpenError> {
        rejected((self.replay)(entry), name, offset)
    }
}

fn rejected(outcome: Result<(), String>, name: &str, offset: u64) -> Result<(), OpenError> {
    outcome.map_err(|reason| OpenError::Rejected { file: name.to_owned(), offset, reason })
}
