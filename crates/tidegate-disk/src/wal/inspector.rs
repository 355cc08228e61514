//! Inspects a log without opening it, for `store verify` and `store dump`.
//!
//! Inspection writes nothing and takes no lock, so it works on a log in use. A block that is being written at
//! that moment looks like a torn tail. Unlike opening, inspection does not end at the first problem: it
//! continues with the next valid block.

use std::fmt;
use std::io;

use super::PreviousRun;
use super::block::{self, BlockError, BlockKind, ChainPosition, LogBlock};
use super::codec::{StoreId, end_of_content};
use super::error::OpenError;
use super::file_names::{self, DirectoryListing, FIRST_SEGMENT};
use super::recovery::read_identity;
use super::segment::{self, SegmentHeader};
use super::snapshot_file;
use crate::directory::{Directory, OpenMode, read_whole};

/// How many problems are kept. The rest is only counted.
pub const MAX_PROBLEMS: usize = 1000;

/// One item found in a log.
#[derive(Debug, Clone, Copy)]
pub enum InspectedItem<'a> {
    /// A chunk of the snapshot.
    Chunk {
        /// The file.
        file: &'a str,
        /// The offset in the file.
        offset: u64,
        /// The content of the chunk.
        payload: &'a [u8],
    },
    /// A block.
    Block {
        /// The file.
        file: &'a str,
        /// The offset in the file.
        offset: u64,
        /// The purpose of the block.
        kind: BlockKind,
        /// The number of the block.
        number: u64,
        /// The latest time of its appends.
        time: u64,
        /// The appended bytes.
        payload: &'a [u8],
    },
    /// A problem.
    Problem(&'a LogProblem),
}

/// A defect of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogProblem {
    /// The file, or the directory if the problem concerns no single file.
    pub file: String,
    /// The offset in the file.
    pub offset: u64,
    /// A description of the defect.
    pub what: String,
}

impl fmt::Display for LogProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}: {}", self.file, self.offset, self.what)
    }
}

/// The result of inspecting a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InspectionReport {
    /// The identifier of the store, if the identity could be read.
    pub store_id: Option<[u8; 16]>,
    /// The number of the newest snapshot, if there is one.
    pub snapshot: Option<u64>,
    /// The number of chunks in the snapshot.
    pub chunks: u64,
    /// The length of the snapshot in bytes.
    pub snapshot_bytes: u64,
    /// The number of segments after the snapshot.
    pub segments: u64,
    /// The number of blocks of all kinds in those segments.
    pub blocks: u64,
    /// The number of bytes of those blocks.
    pub block_bytes: u64,
    /// The number of the last block, or zero.
    pub last_number: u64,
    /// The earliest and the latest time of blocks with records.
    pub times: Option<(u64, u64)>,
    /// How the last process left the log.
    pub previous_run: PreviousRun,
    /// What follows the last block.
    pub tail: LogTail,
    /// The first [`MAX_PROBLEMS`] problems.
    pub problems: Vec<LogProblem>,
    /// The total number of problems.
    pub problem_count: u64,
}

impl InspectionReport {
    /// Whether the files allow the log to be opened.
    pub fn is_sound(&self) -> bool {
        self.problem_count == 0
    }
}

/// What follows the last block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogTail {
    /// Only zeros.
    Whole,
    /// An incomplete block. Opening the log cuts it off.
    Torn {
        /// The file.
        file: String,
        /// The offset of the block.
        offset: u64,
        /// The length of the remains.
        bytes: u64,
    },
}

/// How many times a log that changes during verification is inspected.
const MAX_VERIFY_PASSES: usize = 4;

/// Inspects the log and reports its problems.
///
/// A problem in a log in use may be the effect of a concurrent write. The inspection is therefore repeated
/// until two passes agree.
pub fn verify(directory: &dyn Directory) -> io::Result<InspectionReport> {
    let mut report = inspect(directory, &mut |_| {})?;
    for _ in 1..MAX_VERIFY_PASSES {
        if report.is_sound() {
            break;
        }
        let again = inspect(directory, &mut |_| {})?;
        if again == report {
            break;
        }
        report = again;
    }
    Ok(report)
}

/// Inspects the log and passes every item to `show`. Fails if the directory cannot be listed or a file must
/// not be read.
pub fn inspect(
    directory: &dyn Directory,
    show: &mut dyn FnMut(InspectedItem<'_>),
) -> io::Result<InspectionReport> {
    let listing = DirectoryListing::read(directory)?;
    let report = InspectionReport {
        store_id: None,
        snapshot: None,
        chunks: 0,
        snapshot_bytes: 0,
        segments: 0,
        blocks: 0,
        block_bytes: 0,
        last_number: 0,
        times: None,
        previous_run: PreviousRun::Created,
        tail: LogTail::Whole,
        problems: Vec::new(),
        problem_count: 0,
    };
    let mut inspector = LogInspector {
        directory,
        listing: &listing,
        show,
        report,
        link: None,
        time: 0,
        unsealed: None,
        forbidden: None,
    };
    match read_identity(directory) {
        Ok(identity) => {
            inspector.report.store_id = Some(identity.store);
            inspector.inspect_log(&identity.store);
        }
        Err(error) => inspector.add_error(file_names::IDENTITY, &error),
    }
    // A file without read permission is not a defect of the log.
    match inspector.forbidden {
        Some(file) => Err(io::Error::new(io::ErrorKind::PermissionDenied, file)),
        None => Ok(inspector.report),
    }
}

struct LogInspector<'a> {
    directory: &'a dyn Directory,
    listing: &'a DirectoryListing,
    show: &'a mut dyn FnMut(InspectedItem<'_>),
    report: InspectionReport,
    /// The position in the chain, if it is known.
    link: Option<ChainPosition>,
    time: u64,
    /// A segment that ended without a seal, and the position that the next segment must have then.
    unsealed: Option<(String, u64, ChainPosition)>,
    /// A file without read permission.
    forbidden: Option<String>,
}

impl LogInspector<'_> {
    fn inspect_log(&mut self, store: &StoreId) {
        let newest = self.listing.snapshots.last().copied();
        let begins = newest.unwrap_or(FIRST_SEGMENT);
        match newest {
            Some(number) => self.inspect_snapshot(number, store),
            None => self.link = Some(ChainPosition::first(store)),
        }
        let last = self.listing.segments.last().copied().unwrap_or(0);
        if let Some(lowest) = self.listing.segments.first()
            && newest.is_none()
            && *lowest > FIRST_SEGMENT
        {
            self.add_problem(
                &file_names::snapshot_name(*lowest),
                0,
                "missing, and the log before it is gone",
            );
        }
        let mut buffer = Vec::new();
        let mut number = begins;
        loop {
            let is_there = self.listing.segments.contains(&number);
            let sealed = is_there && self.inspect_segment(number, store, &mut buffer);
            if !is_there {
                self.add_problem(&file_names::segment_name(number), 0, "missing");
                self.link = None;
            }
            if number >= last && !sealed {
                return;
            }
            let next = self.listing.segments.iter().copied().find(|each| *each > number);
            number = if is_there { number + 1 } else { next.unwrap_or(number + 1) };
        }
    }

    fn inspect_snapshot(&mut self, number: u64, store: &StoreId) {
        let name = file_names::snapshot_name(number);
        self.report.snapshot = Some(number);
        self.report.previous_run = PreviousRun::Crashed;
        let show = &mut *self.show;
        let mut visit = |offset, payload: &[u8]| {
            show(InspectedItem::Chunk { file: &name, offset, payload });
            Ok(())
        };
        match snapshot_file::read_snapshot(self.directory, number, store, &mut visit) {
            Ok(contents) => {
                self.report.chunks = contents.chunks;
                self.report.snapshot_bytes = contents.length;
                self.link = Some(contents.header.link);
                self.time = contents.header.time;
            }
            Err(error) => self.add_error(&name, &error),
        }
    }

    /// Inspects a segment. Returns whether it has a seal.
    fn inspect_segment(&mut self, number: u64, store: &StoreId, buffer: &mut Vec<u8>) -> bool {
        let name = file_names::segment_name(number);
        self.report.segments += 1;
        let read = self.directory.open(&name, OpenMode::Read).and_then(|file| read_whole(&*file, buffer));
        if let Err(error) = read {
            self.add_error(&name, &OpenError::of_disk(&name, error));
            self.link = None;
            return false;
        }
        let expected = self.link;
        match SegmentHeader::decode_segment(&name, buffer, number, store) {
            Ok(header) => {
                self.check_unsealed(&name, &header);
                self.link = Some(header.link);
                if expected.is_some_and(|link| link != header.link) && self.unsealed.is_none() {
                    self.add_problem(&name, 40, "does not begin where the log before it ends");
                }
            }
            Err(error) => self.add_error(&name, &error),
        }
        self.inspect_blocks(&name, store, buffer)
    }

    /// Checks a segment without a seal against the segment after it.
    fn check_unsealed(&mut self, name: &str, header: &SegmentHeader) {
        let Some((before, offset, link)) = &self.unsealed else { return };
        if header.link != *link {
            let what = format!("ends before block {}, with which {name} begins", header.link.number);
            let (before, offset) = (before.clone(), *offset);
            self.add_problem(&before, offset, &what);
        }
    }

    fn inspect_blocks(&mut self, name: &str, store: &StoreId, buffer: &[u8]) -> bool {
        let content = &buffer[..end_of_content(buffer)];
        let mut offset = segment::HEADER_BYTES;
        loop {
            let invalid = match block::read_block(buffer, offset, store) {
                Ok(block) => {
                    self.add_block(name, offset, &block);
                    offset += block.size();
                    if block.kind == BlockKind::Seal {
                        return true;
                    }
                    continue;
                }
                Err(invalid) => invalid,
            };
            // If the chain is broken, accept any block.
            let least = self.link.map_or(0, |link| link.number);
            if let Some(later) = block::find_later(content, offset, least, store) {
                let what = format!("no valid block, but one at byte {later}: damaged");
                self.add_problem(name, offset as u64, &what);
                self.link = None;
                offset = later;
                // A valid header with an invalid payload would be found again and again.
                if block::read_block(buffer, offset, store).is_err() {
                    offset += 1;
                }
                continue;
            }
            self.inspect_end(name, offset, content.len(), &invalid, store);
            return false;
        }
    }

    fn add_block(&mut self, name: &str, offset: usize, block: &LogBlock<'_>) {
        if let Some((before, at, _)) = self.unsealed.take() {
            self.add_problem(&before, at, "has no seal, and blocks follow");
        }
        if self.link.is_some_and(|link| (link.number, link.chain) != (block.number, block.chain)) {
            self.add_problem(name, offset as u64, "a block that does not follow the one before it");
        }
        let LogBlock { kind, number, time, payload, .. } = *block;
        self.link = Some(ChainPosition { number, chain: block.chain }.advance(block.checksum));
        self.time = self.time.max(time);
        self.report.blocks += 1;
        self.report.block_bytes += block.size() as u64;
        self.report.last_number = number;
        if kind == BlockKind::Records {
            let (earliest, latest) = self.report.times.unwrap_or((time, time));
            self.report.times = Some((earliest.min(time), latest.max(time)));
        }
        match kind {
            BlockKind::Stop => self.report.previous_run = PreviousRun::Stopped,
            BlockKind::Records | BlockKind::Start => self.report.previous_run = PreviousRun::Crashed,
            BlockKind::Seal => {}
        }
        (self.show)(InspectedItem::Block { file: name, offset: offset as u64, kind, number, time, payload });
    }

    /// Inspects the end of a segment after its last block.
    fn inspect_end(
        &mut self,
        name: &str,
        offset: usize,
        content: usize,
        invalid: &BlockError,
        store: &StoreId,
    ) {
        match invalid {
            BlockError::Damaged { at, expected } => {
                self.add_problem(name, (offset + at) as u64, &format!("damaged: expected {expected}"));
            }
            BlockError::Absent | BlockError::Torn if content > offset => {
                let (file, bytes) = (name.to_owned(), (content - offset) as u64);
                self.report.tail = LogTail::Torn { file, offset: offset as u64, bytes };
            }
            BlockError::Absent | BlockError::Torn => {}
        }
        if let Some(link) = self.link {
            let (_, seal) = block::encode_empty_block(BlockKind::Seal, link, self.time, store, offset as u64);
            self.unsealed = Some((name.to_owned(), offset as u64, link.advance(seal)));
        }
    }

    fn add_error(&mut self, file: &str, error: &OpenError) {
        let (file, offset) = match error {
            OpenError::Damaged(damage) => (damage.file.clone(), damage.offset),
            OpenError::Forbidden { file } => {
                self.forbidden = Some(file.clone());
                return;
            }
            _ => (file.to_owned(), 0),
        };
        self.add_problem(&file, offset, &error.to_string());
    }

    fn add_problem(&mut self, file: &str, offset: u64, what: &str) {
        let problem = LogProblem { file: file.to_owned(), offset, what: what.to_owned() };
        (self.show)(InspectedItem::Problem(&problem));
        self.report.problem_count += 1;
        if self.report.problems.len() < MAX_PROBLEMS {
            self.report.problems.push(problem);
        }
    }
}
