//! `tidegate store dump`: the records of a store, one per line.

use std::io::{self, BufWriter, StdoutLock, Write};

use serde::Serialize;
use tidegate::model::Timestamp;
use tidegate_disk::record::{LogRecord, RecordReader};
use tidegate_disk::wal::{BlockKind, InspectedItem, inspect};

use super::limit_names::LimitNames;
use super::record_json::RecordJson;
use super::{as_line, instant, open, refused};
use crate::args::DumpArgs;
use crate::bench::number::counted;
use crate::{Failure, print_message, unwritable};

/// Prints every record.
pub(super) fn run(args: &DumpArgs) -> Result<(), Failure> {
    let files = open(&args.folder)?;
    let out = BufWriter::new(io::stdout().lock());
    let mut dump =
        RecordDump { out, written: Ok(()), is_json: args.json, names: LimitNames::default(), problems: 0 };
    inspect(&files, &mut |found| dump.found(&found)).map_err(|error| refused(&args.folder, error))?;
    dump.end()
}

/// The output of a dump.
struct RecordDump {
    out: BufWriter<StdoutLock<'static>>,
    /// The first write error, after which nothing is written.
    written: io::Result<()>,
    is_json: bool,
    names: LimitNames,
    problems: u64,
}

/// The position of a record.
#[derive(Debug, Clone, Copy, Serialize)]
struct RecordPosition<'a> {
    file: &'a str,
    /// Start of its chunk or block.
    offset: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    block: Option<u64>,
}

#[derive(Debug, Serialize)]
struct DumpLine<'a> {
    #[serde(flatten)]
    position: RecordPosition<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<&'a str>,
    #[serde(flatten)]
    record_json: RecordJson,
}

impl RecordDump {
    fn found(&mut self, found: &InspectedItem<'_>) {
        match *found {
            InspectedItem::Chunk { file, offset, payload } => {
                let position = RecordPosition { file, offset, block: None };
                self.head(&format!("{file} at byte {offset}"));
                self.records(position, None, payload);
            }
            InspectedItem::Block { file, offset, kind, number, time, payload } => {
                let (position, time) = (
                    RecordPosition { file, offset, block: Some(number) },
                    instant(Timestamp::from_ticks(time)),
                );
                self.head(&format!("{file} at byte {offset}: block {number}, {time}"));
                let record_json = match kind {
                    BlockKind::Records if payload.is_empty() => RecordJson::Time,
                    BlockKind::Records => return self.records(position, Some(&time), payload),
                    BlockKind::Start => RecordJson::Opened,
                    BlockKind::Seal => RecordJson::Sealed,
                    BlockKind::Stop => RecordJson::Stopped,
                };
                self.line(position, Some(&time), record_json);
            }
            InspectedItem::Problem(problem) => self.problem(&problem.to_string()),
        }
    }

    fn records(&mut self, position: RecordPosition<'_>, time: Option<&str>, payload: &[u8]) {
        let mut records = RecordReader::new(payload);
        loop {
            let record = match records.next(&|id| self.names.limit(id)) {
                Ok(Some(record)) => record,
                Ok(None) => return,
                Err(illegible) => {
                    let RecordPosition { file, offset, .. } = position;
                    return self.problem(&format!("{file} at byte {offset}: invalid record: {illegible}"));
                }
            };
            if let LogRecord::Put { text, .. } = &record {
                self.names.put(text);
            }
            let record_json = RecordJson::of(record, &self.names);
            self.line(position, time, record_json);
        }
    }

    /// Prints a heading in text mode.
    fn head(&mut self, text: &str) {
        if !self.is_json {
            self.write(&format!("# {text}\n"));
        }
    }

    fn line(&mut self, position: RecordPosition<'_>, time: Option<&str>, record_json: RecordJson) {
        let line = if self.is_json {
            as_line(&DumpLine { position, time, record_json })
        } else {
            let mut line = record_json.line();
            line.push('\n');
            line
        };
        self.write(&line);
    }

    fn problem(&mut self, what: &str) {
        self.problems += 1;
        print_message(what);
    }

    fn write(&mut self, text: &str) {
        if self.written.is_ok() {
            self.written = self.out.write_all(text.as_bytes());
        }
    }

    fn end(mut self) -> Result<(), Failure> {
        match self.written.and_then(|()| self.out.flush()) {
            // The reader has closed the pipe.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => return Err(unwritable(&error)),
            Ok(()) => {}
        }
        match self.problems {
            0 => Ok(()),
            problems => Err(Failure::Failed(format!(
                "{} in the store; `tidegate store verify` shows what to do",
                counted(problems, "problem", "problems")
            ))),
        }
    }
}
