//! `tidegate simulate`: the engine on recorded or made-up events.
//!
//! The events are the only clock, so a day takes as long as its decisions. Runs are reproducible to the byte: the
//! store's secret is fixed, and the output does not depend on how the input arrives.
//!
//! Two threads share the work. One reads and parses batches of lines, the other decides and writes them. A short
//! queue connects them; used batches are recycled.
//!
//! ```text
//!   input ──▶ read, parse ══ batch ══▶ decide, write ──▶ output
//!                  ▲                        │
//!                  └════ empty batch ═══════┘
//! ```
//!
//! Time does not go back. An event before the latest one is decided at the latest time, and its line has
//! `decided_at`.

mod batch;
mod decision_json;
mod event;
mod simulated_store;
mod summary;

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use tidegate::model::LimitSpec;
use tidegate_server::settings;

use crate::args::SimulateArgs;
use crate::{Failure, color_of_stderr, print_message, read_whole, stoppable_input, unwritable};

use batch::{BatchEnd, EventBatch, EventReader};
use simulated_store::SimulatedStore;

/// Batches in the queue.
const QUEUED_BATCHES: usize = 4;

/// Runs the simulation.
pub(crate) fn run(args: &SimulateArgs) -> Result<(), Failure> {
    if args.limits == Path::new("-") && args.input.is_none() {
        let why = "--limits - and the events cannot both be read from standard input; give --input FILE";
        return Err(Failure::BadInput(why.to_owned()));
    }
    let mut store = SimulatedStore::new(read_limits(&args.limits)?)?;
    let (name, input) = open(args.input.as_deref())?;
    let out = io::stdout().as_fd().try_clone_to_owned().map_err(|error| unwritable(&error))?;
    let out = DecisionOutput { to: File::from(out), summary: args.summary };

    let (full, batches) = mpsc::sync_channel::<EventBatch>(QUEUED_BATCHES);
    let (empty, empties) = mpsc::channel::<EventBatch>();
    let mut parser = EventReader::new(name.clone(), input);
    // Not joined: after the output is closed the thread may wait for input until the process ends.
    let reading = thread::Builder::new().name("reading".to_owned()).spawn(move || {
        let mut more = true;
        while more {
            let mut batch = empties.try_recv().unwrap_or_default();
            parser.fill(&mut batch);
            more = batch.end.is_none();
            more &= full.send(batch).is_ok();
        }
    });
    reading.map_err(|error| Failure::Failed(format!("cannot start a thread: {error}")))?;
    decide(&mut store, &name, &batches, &empty, &out)
}

fn read_limits(path: &Path) -> Result<Vec<LimitSpec>, Failure> {
    let (name, bytes) = read_whole(path)?;
    let reading =
        settings::read(&name, &bytes).map_err(|wrong| Failure::BadInput(wrong.render(color_of_stderr())))?;
    if !reading.warnings.is_empty() {
        print_message(&reading.warnings.render(color_of_stderr()));
    }
    Ok(reading.settings.all_limits())
}

/// Opens the events, with their name for messages.
fn open(path: Option<&Path>) -> Result<(String, File), Failure> {
    let name = path.map_or("stdin".to_owned(), |path| path.display().to_string());
    let file = match path {
        Some(path) if path != Path::new("-") => File::open(path),
        _ => io::stdin().as_fd().try_clone_to_owned().map(File::from),
    };
    let refuse = |error| Failure::BadInput(format!("cannot read {name}: {error}"));
    file.map(|file| (name.clone(), file)).map_err(refuse)
}

/// The output, and whether a summary is written.
struct DecisionOutput {
    to: File,
    summary: bool,
}

/// Whether the output is still open.
#[derive(PartialEq, Eq)]
enum OutputState {
    Some,
    None,
}

impl DecisionOutput {
    fn write(&self, bytes: &[u8]) -> Result<OutputState, Failure> {
        match stoppable_input::write_all(&self.to, bytes) {
            Ok(()) => Ok(OutputState::Some),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(OutputState::None),
            Err(error) => Err(unwritable(&error)),
        }
    }
}

/// Decides batches until the last one.
fn decide(
    store: &mut SimulatedStore,
    name: &str,
    batches: &Receiver<EventBatch>,
    empty: &Sender<EventBatch>,
    output: &DecisionOutput,
) -> Result<(), Failure> {
    let mut out = Vec::new();
    for batch in batches {
        out.clear();
        let refuse = |(line, why)| BatchEnd::Failed(Failure::BadInput(format!("{name}:{line}: {why}")));
        let end = store.pass(&batch.events, &batch.text, &mut out).map_err(refuse).err();
        let mut batch = batch;
        let end = end.or(batch.end.take());
        if output.summary && matches!(end, Some(BatchEnd::Input)) {
            store.write_summary(&mut out);
        }
        if output.write(&out)? == OutputState::None {
            return Ok(());
        }
        match end {
            Some(BatchEnd::Input) => return Ok(()),
            Some(BatchEnd::Failed(failure)) => return Err(failure),
            // The reader may have ended; then the batch is not needed.
            None => drop(empty.send(batch)),
        }
    }
    Err(Failure::Failed(
        "the reader thread ended unexpectedly; this is a defect, please report it".to_owned(),
    ))
}
