//! Batches of parsed events.

use std::fs::File;

use crate::lines::{self, LONGEST_LINE, LineBatch};
use crate::{Failure, instant, unreadable};

use super::event::SimulatedEvent;

/// The events of one read, and their text.
#[derive(Debug, Default)]
pub(super) struct EventBatch {
    /// The lines of the events; events refer to ranges of it.
    pub(super) text: String,
    pub(super) events: Vec<SimulatedEvent>,
    /// Set if this is the last batch.
    pub(super) end: Option<BatchEnd>,
}

/// Why a batch is the last.
#[derive(Debug)]
pub(super) enum BatchEnd {
    /// End of input.
    Input,
    /// Invalid or unreadable input.
    Failed(Failure),
}

/// Reads and parses the input.
#[derive(Debug)]
pub(super) struct EventReader {
    name: String,
    input: lines::LineReader<File>,
    instants: instant::InstantReader,
    /// Number of the previous line, from 1.
    line: u64,
}

impl EventReader {
    pub(super) fn new(name: String, input: File) -> EventReader {
        EventReader {
            name,
            input: lines::LineReader::new(input),
            instants: instant::InstantReader::default(),
            line: 0,
        }
    }

    /// Fills a batch with the next events.
    pub(super) fn fill(&mut self, batch: &mut EventBatch) {
        batch.text.clear();
        batch.events.clear();
        batch.end = match self.input.next() {
            Ok(LineBatch::Lines(lines)) => {
                let failed = lines::split(lines).find_map(|line| {
                    self.line += 1;
                    let refuse = |why| Failure::BadInput(format!("{}:{}: {why}", self.name, self.line));
                    parse(line, self.line, &mut self.instants, batch).map_err(refuse).err()
                });
                failed.map(BatchEnd::Failed)
            }
            Ok(LineBatch::Overlong(..)) => {
                let why = format!("{}:{}: {}", self.name, self.line + 1, too_long());
                Some(BatchEnd::Failed(Failure::BadInput(why)))
            }
            Ok(LineBatch::End) => Some(BatchEnd::Input),
            Err(error) => Some(BatchEnd::Failed(unreadable(&self.name, &error))),
        };
    }
}

fn too_long() -> String {
    format!("is longer than {} MiB; an event is a line", LONGEST_LINE >> 20)
}

/// Parses a line and adds its event; a blank line has none.
fn parse(
    line: &[u8],
    number: u64,
    instants: &mut instant::InstantReader,
    batch: &mut EventBatch,
) -> Result<(), String> {
    if lines::is_blank(line) {
        return Ok(());
    }
    if line.len() > LONGEST_LINE {
        return Err(too_long());
    }
    let line = std::str::from_utf8(line)
        .map_err(|error| format!("is not UTF-8 text from column {}", error.valid_up_to() + 1))?;
    let start = batch.text.len();
    let event = SimulatedEvent::read(line, start, number, instants)?;
    batch.text.push_str(line);
    batch.events.push(event);
    Ok(())
}
