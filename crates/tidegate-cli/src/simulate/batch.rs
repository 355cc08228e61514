//! Batches of events: what one read of the input gave, understood.

use std::fs::File;

use crate::lines::{self, LONGEST_LINE, LineBatch};
use crate::{Failure, instant, unreadable};

use super::event::SimulatedEvent;

/// The events of one read, in their order, and the text they were written in.
#[derive(Debug, Default)]
pub(super) struct EventBatch {
    /// The lines of the events, one after the other; events say where in it their parts are.
    pub(super) text: String,
    pub(super) events: Vec<SimulatedEvent>,
    /// What comes after them, if it is not another batch.
    pub(super) end: Option<BatchEnd>,
}

/// Why there are no more batches.
#[derive(Debug)]
pub(super) enum BatchEnd {
    /// The input has ended.
    Input,
    /// It makes no sense from here on, or cannot be read.
    Failed(Failure),
}

/// Reads and understands the input.
#[derive(Debug)]
pub(super) struct EventReader {
    name: String,
    input: lines::LineReader<File>,
    instants: instant::InstantReader,
    /// The number of the line before, from 1.
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

    /// Fills a batch with the events that come next.
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

/// Adds the event of a line to a batch; a blank line has none.
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
