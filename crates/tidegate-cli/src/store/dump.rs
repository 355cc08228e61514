//! `tidegate store dump`: what stands in a log, record by record.

use std::io::{self, BufWriter, StdoutLock, Write};

use serde::Serialize;
use tidegate::Timestamp;
use tidegate_disk::record::{LogRecord, RecordReader};
use tidegate_disk::wal::{BlockKind, InspectedItem, inspect};

use super::known::Known;
use super::told::Told;
use super::{as_line, instant, open, refused};
use crate::args::DumpArgs;
use crate::bench::number::counted;
use crate::{Failure, say, unwritable};

/// Shows every record.
pub(super) fn run(args: &DumpArgs) -> Result<(), Failure> {
    let files = open(&args.folder)?;
    let out = BufWriter::new(io::stdout().lock());
    let mut dump = Dump { out, written: Ok(()), is_json: args.json, known: Known::default(), problems: 0 };
    inspect(&files, &mut |found| dump.found(&found)).map_err(|error| refused(&args.folder, error))?;
    dump.end()
}

/// What there is to see, on its way out.
struct Dump {
    out: BufWriter<StdoutLock<'static>>,
    /// Whether whoever reads it still does.
    written: io::Result<()>,
    is_json: bool,
    known: Known,
    problems: u64,
}

/// Where a record stands.
#[derive(Debug, Clone, Copy, Serialize)]
struct Place<'a> {
    file: &'a str,
    /// Where its chunk or block begins.
    offset: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    block: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    place: Place<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<&'a str>,
    #[serde(flatten)]
    told: Told,
}

impl Dump {
    fn found(&mut self, found: &InspectedItem<'_>) {
        match *found {
            InspectedItem::Chunk { file, offset, payload } => {
                let place = Place { file, offset, block: None };
                self.head(&format!("{file} at byte {offset}"));
                self.records(place, None, payload);
            }
            InspectedItem::Block { file, offset, kind, number, time, payload } => {
                let (place, time) =
                    (Place { file, offset, block: Some(number) }, instant(Timestamp::from_ticks(time)));
                self.head(&format!("{file} at byte {offset}: block {number}, {time}"));
                let told = match kind {
                    BlockKind::Records if payload.is_empty() => Told::Time,
                    BlockKind::Records => return self.records(place, Some(&time), payload),
                    BlockKind::Start => Told::Opened,
                    BlockKind::Seal => Told::Sealed,
                    BlockKind::Stop => Told::Stopped,
                };
                self.line(place, Some(&time), told);
            }
            InspectedItem::Problem(problem) => self.problem(&problem.to_string()),
        }
    }

    fn records(&mut self, place: Place<'_>, time: Option<&str>, payload: &[u8]) {
        let mut records = RecordReader::new(payload);
        loop {
            let record = match records.next(&|id| self.known.limit(id)) {
                Ok(Some(record)) => record,
                Ok(None) => return,
                Err(illegible) => {
                    let Place { file, offset, .. } = place;
                    return self.problem(&format!("{file} at byte {offset}: no record: {illegible}"));
                }
            };
            if let LogRecord::Put { text, .. } = &record {
                self.known.put(text);
            }
            let told = Told::of(record, &self.known);
            self.line(place, time, told);
        }
    }

    /// What comes next, for people.
    fn head(&mut self, text: &str) {
        if !self.is_json {
            self.write(&format!("# {text}\n"));
        }
    }

    fn line(&mut self, place: Place<'_>, time: Option<&str>, told: Told) {
        let line = if self.is_json {
            as_line(&Line { place, time, told })
        } else {
            let mut line = told.line();
            line.push('\n');
            line
        };
        self.write(&line);
    }

    fn problem(&mut self, what: &str) {
        self.problems += 1;
        say(what);
    }

    fn write(&mut self, text: &str) {
        if self.written.is_ok() {
            self.written = self.out.write_all(text.as_bytes());
        }
    }

    fn end(mut self) -> Result<(), Failure> {
        match self.written.and_then(|()| self.out.flush()) {
            // Somebody has seen enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => return Err(unwritable(&error)),
            Ok(()) => {}
        }
        match self.problems {
            0 => Ok(()),
            problems => Err(Failure::Failed(format!(
                "{} wrong with the store; `tidegate store verify` says what to do",
                counted(problems, "thing is", "things are")
            ))),
        }
    }
}
