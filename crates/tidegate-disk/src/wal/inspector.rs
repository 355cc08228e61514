//! Looking at a log without opening it: for those who verify, and for those who want to see what is in it.
//!
//! Nothing is written and no lock is taken, so a log that is in use can be looked at; what is being written at that moment looks like a torn tail,
//! because that is what it is. Unlike opening, looking does not end at the first problem: it goes on with the next block that is whole.

use std::fmt;
use std::io;

use super::Before;
use super::block::{self, Block, Invalid, Kind, Link};
use super::encoding::{StoreId, end_of_content};
use super::error::OpenError;
use super::file_names::{self, FIRST_SEGMENT, Survey};
use super::recovery::read_identity;
use super::segment::{self, Header};
use super::snapshot_file;
use crate::directory::{Files, Purpose, read_whole};

/// How many problems are kept; more are counted.
pub const MOST_PROBLEMS: usize = 1000;

/// Something that was found in a log.
#[derive(Debug, Clone, Copy)]
pub enum Found<'a> {
    /// A chunk of the snapshot.
    Chunk {
        /// In which file.
        file: &'a str,
        /// Where it begins.
        offset: u64,
        /// What was put.
        payload: &'a [u8],
    },
    /// A block.
    Block {
        /// In which file.
        file: &'a str,
        /// Where it begins.
        offset: u64,
        /// What it is for.
        kind: Kind,
        /// Its number.
        number: u64,
        /// The latest time of what is in it.
        time: u64,
        /// What was appended.
        payload: &'a [u8],
    },
    /// Something that should not be so.
    Problem(&'a Problem),
}

/// Something that should not be so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// In which file; the directory itself if in none.
    pub file: String,
    /// Where in it.
    pub offset: u64,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}: {}", self.file, self.offset, self.what)
    }
}

/// What is in a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Which store it is; `None` if it does not say.
    pub store_id: Option<[u8; 16]>,
    /// The segment with which the snapshot ends; `None` if there is no snapshot.
    pub snapshot: Option<u64>,
    /// How many chunks the snapshot has.
    pub chunks: u64,
    /// How many bytes the snapshot has.
    pub snapshot_bytes: u64,
    /// How many segments the log has on top of the snapshot.
    pub segments: u64,
    /// How many blocks they have, of all kinds.
    pub blocks: u64,
    /// How many bytes those blocks have.
    pub block_bytes: u64,
    /// The number of the last block; zero if there is none.
    pub last_number: u64,
    /// The earliest and the latest time of a block with records.
    pub times: Option<(u64, u64)>,
    /// How it was left.
    pub before: Before,
    /// What is behind the last block.
    pub tail: Tail,
    /// Everything that should not be so, the first [`MOST_PROBLEMS`] of it.
    pub problems: Vec<Problem>,
    /// How many problems there are.
    pub problem_count: u64,
}

impl Report {
    /// Whether the log can be opened, as far as its bytes go.
    pub fn is_sound(&self) -> bool {
        self.problem_count == 0
    }
}

/// What is behind the last block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tail {
    /// Nothing.
    Whole,
    /// A block that did not reach the disk as a whole; opening the log cuts it off.
    Torn {
        /// In which file.
        file: String,
        /// Where it begins.
        offset: u64,
        /// How long it is.
        bytes: u64,
    },
}

/// How often a log that changes while it is verified is looked at.
const MOST_LOOKS: usize = 4;

/// Looks at everything, and says what is wrong with it.
///
/// What is wrong with a log in use may only have looked so while somebody was writing; so it is looked at again, until it looks the same.
pub fn verify(files: &dyn Files) -> io::Result<Report> {
    let mut report = inspect(files, &mut |_| {})?;
    for _ in 1..MOST_LOOKS {
        if report.is_sound() {
            break;
        }
        let again = inspect(files, &mut |_| {})?;
        if again == report {
            break;
        }
        report = again;
    }
    Ok(report)
}

/// Looks at everything and shows it. An error is one of the directory as a whole, or that a file of it may not be read.
pub fn inspect(files: &dyn Files, show: &mut dyn FnMut(Found<'_>)) -> io::Result<Report> {
    let survey = Survey::of(files)?;
    let report = Report {
        store_id: None,
        snapshot: None,
        chunks: 0,
        snapshot_bytes: 0,
        segments: 0,
        blocks: 0,
        block_bytes: 0,
        last_number: 0,
        times: None,
        before: Before::Created,
        tail: Tail::Whole,
        problems: Vec::new(),
        problem_count: 0,
    };
    let mut inspection = Inspection {
        files,
        survey: &survey,
        show,
        report,
        link: None,
        time: 0,
        unsealed: None,
        forbidden: None,
    };
    match read_identity(files) {
        Ok(identity) => {
            inspection.report.store_id = Some(identity.store);
            inspection.log(&identity.store);
        }
        Err(error) => inspection.refused(file_names::IDENTITY, &error),
    }
    // What may not be read is not known to be wrong.
    match inspection.forbidden {
        Some(file) => Err(io::Error::new(io::ErrorKind::PermissionDenied, file)),
        None => Ok(inspection.report),
    }
}

struct Inspection<'a> {
    files: &'a dyn Files,
    survey: &'a Survey,
    show: &'a mut dyn FnMut(Found<'_>),
    report: Report,
    /// Where the chain stands, if that is known.
    link: Option<Link>,
    time: u64,
    /// A segment that ended without a seal, and what the next must say then.
    unsealed: Option<(String, u64, Link)>,
    /// A file that may not be read.
    forbidden: Option<String>,
}

impl Inspection<'_> {
    fn log(&mut self, store: &StoreId) {
        let newest = self.survey.snapshots.last().copied();
        let begins = newest.unwrap_or(FIRST_SEGMENT);
        match newest {
            Some(number) => self.snapshot(number, store),
            None => self.link = Some(Link::first(store)),
        }
        let last = self.survey.segments.last().copied().unwrap_or(0);
        if let Some(lowest) = self.survey.segments.first()
            && newest.is_none()
            && *lowest > FIRST_SEGMENT
        {
            self.problem(&file_names::snapshot(*lowest), 0, "missing, and the log before it is gone");
        }
        let mut buffer = Vec::new();
        let mut number = begins;
        loop {
            let is_there = self.survey.segments.contains(&number);
            let sealed = is_there && self.segment(number, store, &mut buffer);
            if !is_there {
                self.problem(&file_names::segment(number), 0, "missing");
                self.link = None;
            }
            if number >= last && !sealed {
                return;
            }
            let next = self.survey.segments.iter().copied().find(|each| *each > number);
            number = if is_there { number + 1 } else { next.unwrap_or(number + 1) };
        }
    }

    fn snapshot(&mut self, number: u64, store: &StoreId) {
        let name = file_names::snapshot(number);
        self.report.snapshot = Some(number);
        self.report.before = Before::Crashed;
        let show = &mut *self.show;
        let mut visit = |offset, payload: &[u8]| {
            show(Found::Chunk { file: &name, offset, payload });
            Ok(())
        };
        match snapshot_file::read(self.files, number, store, &mut visit) {
            Ok(contents) => {
                self.report.chunks = contents.chunks;
                self.report.snapshot_bytes = contents.length;
                self.link = Some(contents.header.link);
                self.time = contents.header.time;
            }
            Err(error) => self.refused(&name, &error),
        }
    }

    /// Looks at a segment; whether it has a seal.
    fn segment(&mut self, number: u64, store: &StoreId, buffer: &mut Vec<u8>) -> bool {
        let name = file_names::segment(number);
        self.report.segments += 1;
        let read = self.files.open(&name, Purpose::Reading).and_then(|file| read_whole(&*file, buffer));
        if let Err(error) = read {
            self.refused(&name, &OpenError::of_disk(&name, error));
            self.link = None;
            return false;
        }
        let expected = self.link;
        match Header::of_whole(&name, buffer, number, store) {
            Ok(header) => {
                self.follow(&name, &header);
                self.link = Some(header.link);
                if expected.is_some_and(|link| link != header.link) && self.unsealed.is_none() {
                    self.problem(&name, 40, "does not begin where the log before it ends");
                }
            }
            Err(error) => self.refused(&name, &error),
        }
        self.blocks(&name, store, buffer)
    }

    /// Judges a segment that ended without a seal by the one that comes after it.
    fn follow(&mut self, name: &str, header: &Header) {
        let Some((before, offset, link)) = &self.unsealed else { return };
        if header.link != *link {
            let what = format!("ends before block {}, with which {name} begins", header.link.number);
            let (before, offset) = (before.clone(), *offset);
            self.problem(&before, offset, &what);
        }
    }

    fn blocks(&mut self, name: &str, store: &StoreId, buffer: &[u8]) -> bool {
        let content = &buffer[..end_of_content(buffer)];
        let mut offset = segment::HEADER;
        loop {
            let invalid = match block::read(buffer, offset, store) {
                Ok(block) => {
                    self.block(name, offset, &block);
                    offset += block.size();
                    if block.kind == Kind::Seal {
                        return true;
                    }
                    continue;
                }
                Err(invalid) => invalid,
            };
            // Where the chain is lost, any block is better than none.
            let least = self.link.map_or(0, |link| link.number);
            if let Some(later) = block::find_later(content, offset, least, store) {
                let what = format!("no valid block, but one at byte {later}: damaged");
                self.problem(name, offset as u64, &what);
                self.link = None;
                offset = later;
                // A header that is whole before a payload that is not would be found for ever.
                if block::read(buffer, offset, store).is_err() {
                    offset += 1;
                }
                continue;
            }
            self.end(name, offset, content.len(), &invalid, store);
            return false;
        }
    }

    fn block(&mut self, name: &str, offset: usize, block: &Block<'_>) {
        if let Some((before, at, _)) = self.unsealed.take() {
            self.problem(&before, at, "has no seal, and blocks follow");
        }
        if self.link.is_some_and(|link| (link.number, link.chain) != (block.number, block.chain)) {
            self.problem(name, offset as u64, "a block that does not follow the one before it");
        }
        let Block { kind, number, time, payload, .. } = *block;
        self.link = Some(Link { number, chain: block.chain }.after(block.checksum));
        self.time = self.time.max(time);
        self.report.blocks += 1;
        self.report.block_bytes += block.size() as u64;
        self.report.last_number = number;
        if kind == Kind::Records {
            let (earliest, latest) = self.report.times.unwrap_or((time, time));
            self.report.times = Some((earliest.min(time), latest.max(time)));
        }
        match kind {
            Kind::Stop => self.report.before = Before::Stopped,
            Kind::Records | Kind::Start => self.report.before = Before::Crashed,
            Kind::Seal => {}
        }
        (self.show)(Found::Block { file: name, offset: offset as u64, kind, number, time, payload });
    }

    /// What is behind the last block of a segment.
    fn end(&mut self, name: &str, offset: usize, content: usize, invalid: &Invalid, store: &StoreId) {
        match invalid {
            Invalid::Damaged { at, expected } => {
                self.problem(name, (offset + at) as u64, &format!("damaged: expected {expected}"));
            }
            Invalid::Absent | Invalid::Torn if content > offset => {
                let (file, bytes) = (name.to_owned(), (content - offset) as u64);
                self.report.tail = Tail::Torn { file, offset: offset as u64, bytes };
            }
            Invalid::Absent | Invalid::Torn => {}
        }
        if let Some(link) = self.link {
            let (_, seal) = block::empty(Kind::Seal, link, self.time, store, offset as u64);
            self.unsealed = Some((name.to_owned(), offset as u64, link.after(seal)));
        }
    }

    fn refused(&mut self, file: &str, error: &OpenError) {
        let (file, offset) = match error {
            OpenError::Damaged(damage) => (damage.file.clone(), damage.offset),
            OpenError::Forbidden { file } => {
                self.forbidden = Some(file.clone());
                return;
            }
            _ => (file.to_owned(), 0),
        };
        self.problem(&file, offset, &error.to_string());
    }

    fn problem(&mut self, file: &str, offset: u64, what: &str) {
        let problem = Problem { file: file.to_owned(), offset, what: what.to_owned() };
        (self.show)(Found::Problem(&problem));
        self.report.problem_count += 1;
        if self.report.problems.len() < MOST_PROBLEMS {
            self.report.problems.push(problem);
        }
    }
}
