//! `tidegate pipe`: throttles a stream of JSON lines between two programs.
//!
//! Lines that the rules of [`tidegate::stream`] admit are written unchanged and in order; the rest is dropped. All
//! lines of one read are decided as one batch, at one reading of the clock, and written with one write.
//!
//! A line that is not JSON, or has no valid time where one is needed, is an error. Statistics count it neither as
//! passed nor as dropped, whatever `--on-error` does with it.

mod message;
mod stats;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use tidegate::catalog::{Catalog, ExpectedVersion};
use tidegate::clock::{Clock, ManualClock, SystemClock};
use tidegate::model::{Ask, Order, Tick, Timestamp};
use tidegate::reply::{Detail, Replies};
use tidegate::store::map::LOOK_AHEAD;
use tidegate::store::{MapStore, Store};
use tidegate::stream::{MessageDecision, StreamRules};
use tidegate_core::limit::item_errors;

use crate::args::{OnError, PipeArgs};
use crate::lines::{self, LineBatch, LinePart};
use crate::stoppable_input::{self, StoppableInput};
use crate::{Failure, print_message, unreadable, unwritable};

use message::{FieldPaths, MessageReader, PipeMessage};
use stats::{LineDecision, PipeStats};

/// Id of the limit.
const LIMIT: &str = "pipe";

/// Copies standard input to standard output within the limits.
pub(crate) fn run(args: &PipeArgs) -> Result<(), Failure> {
    let mut filter = PipeFilter::new(args)?;
    let failed = |error| unreadable("standard input", &error);
    let input = StoppableInput::stdin().map_err(failed)?;
    let stopped = input.stopped();
    let mut input = lines::LineReader::new(input);
    loop {
        let written = match input.next().map_err(failed)? {
            // A partial line at a stop signal is not processed.
            LineBatch::Lines(piece) if stopped() => filter.pass(lines::whole(piece)),
            LineBatch::Lines(piece) => filter.pass(piece),
            LineBatch::Overlong(piece, part) => filter.skip(piece, part),
            LineBatch::End => break,
        };
        match written {
            Err(PipeWriteError::OutputClosed) => break,
            Err(PipeWriteError::Failed(failure)) => return Err(failure),
            Ok(()) => {}
        }
    }
    if args.stats {
        let (current_global, active_users) = filter.current();
        print_message(&filter.stats.report(current_global, active_users));
    }
    Ok(())
}

/// Why output failed.
enum PipeWriteError {
    /// The reader has closed the pipe.
    OutputClosed,
    Failed(Failure),
}

/// The limit, its store, and the outputs.
struct PipeFilter {
    store: MapStore,
    /// The clock of a replay; `None` for real time.
    recorded: Option<Arc<ManualClock>>,
    wall: SystemClock,
    reader: MessageReader,
    on_error: OnError,
    verbose: bool,
    /// Whether statistics are printed at the end.
    prints_stats: bool,
    /// Whether a step back in time was reported.
    has_gone_back: bool,
    stats: PipeStats,
    out: PipeOutput,
    drops: Option<PipeOutput>,
    // Reused between batches.
    answers: Replies,
    decisions: Vec<LineDecision>,
}

impl PipeFilter {
    fn new(args: &PipeArgs) -> Result<PipeFilter, Failure> {
        let recorded = args.time_field.is_some().then(|| Arc::new(ManualClock::at(Timestamp::EPOCH)));
        let store = match &recorded {
            Some(clock) => MapStore::new(Arc::clone(clock), 0),
            None => MapStore::new(SystemClock::new(), 0),
        };
        let rules = StreamRules { global: args.global, user: args.per_key };
        for (flag, item) in ["--global", "--per-key"].iter().zip(&rules.items()) {
            if let Some(flaw) = item_errors(item, Tick::NANOSECOND).first() {
                return Err(Failure::BadInput(format!("{flag}: its {flaw}")));
            }
        }
        let refuse = |error| Failure::BadInput(format!("--global and --per-key: {error}"));
        store.put(rules.spec(LIMIT), ExpectedVersion::Absent).map_err(refuse)?;
        Ok(PipeFilter {
            store,
            recorded,
            wall: SystemClock::new(),
            reader: MessageReader::new(FieldPaths { key: args.key.clone(), time: args.time_field.clone() }),
            on_error: args.on_error,
            verbose: args.verbose,
            prints_stats: args.stats,
            has_gone_back: false,
            stats: PipeStats::default(),
            out: PipeOutput::stdout()?,
            drops: args.drops.as_deref().map(PipeOutput::append).transpose()?,
            answers: Replies::new(Detail::Verdicts),
            decisions: Vec::new(),
        })
    }

    /// Decides and writes a batch of whole lines.
    fn pass(&mut self, piece: &[u8]) -> Result<(), PipeWriteError> {
        let started_at = self.wall.now();
        let lines: Vec<PipeLine<'_>> = lines::split(piece)
            .filter(|line| !lines::is_blank(line))
            .map(|text| PipeLine { text, message: self.reader.read(text) })
            .collect();
        self.report_first_error(&lines);
        self.decide(&lines);
        let decisions = std::mem::take(&mut self.decisions);
        let mut decided = decisions.iter().copied();
        for line in &lines {
            let decision = line.message.as_ref().ok().and_then(|_| decided.next()).flatten();
            self.stats.count(decision);
            self.route(line.text, decision);
        }
        self.decisions = decisions;
        let written = self.flush();
        self.stats.spent(self.wall.now().since(started_at));
        written
    }

    /// Reports the first invalid line; later ones are only counted. So a misspelled field is noticed without a flood
    /// of messages.
    fn report_first_error(&mut self, lines: &[PipeLine<'_>]) {
        if self.stats.errors() == 0
            && let Some((index, why)) =
                lines.iter().enumerate().find_map(|(index, line)| Some((index, line.message.as_ref().err()?)))
        {
            self.report_error(self.stats.processed() + index as u64 + 1, why);
        }
    }

    fn report_error(&self, number: u64, why: &str) {
        let done = match self.on_error {
            OnError::Drop => "dropped",
            OnError::Pass => "passed on",
        };
        self.report(number, &format!("{why}; {done}, and further errors are only counted"));
    }

    /// Reports about a message, unless `--stats` is given without `--verbose`.
    fn report(&self, number: u64, what: &str) {
        if self.verbose || !self.prints_stats {
            print_message(&format!("pipe: message {number}: {what}"));
        }
    }

    /// Handles a part of a line that is too long. It is an error; its bytes pass or not.
    fn skip(&mut self, piece: &[u8], part: LinePart) -> Result<(), PipeWriteError> {
        if part == LinePart::First {
            if self.stats.errors() == 0 {
                self.report_error(self.stats.processed() + 1, &message::too_long());
            }
            self.stats.count(None);
        }
        self.route(piece, None);
        self.flush()
    }

    /// Fills `decisions` with the outcome of every message, in order.
    fn decide(&mut self, lines: &[PipeLine<'_>]) {
        let messages = || lines.iter().filter_map(|line| line.message.as_ref().ok());
        let asks: Vec<Ask<'_>> =
            messages().map(|message| Ask::one(LIMIT, Some(message.user.as_bytes()))).collect();
        let orders: Vec<Order<'_>> =
            asks.iter().map(|ask| Order::acquire(std::slice::from_ref(ask))).collect();
        self.decisions.clear();
        let Some(clock) = self.recorded.clone() else { return self.submit(&orders) };
        self.report_first_step_back(lines, clock.now());
        let (mut rest, mut prefetched) = (&*orders, 0);
        let mut times = messages().map(|message| message.at).peekable();
        while let Some(time) = times.next() {
            // A message from the past is decided at the latest time seen.
            let latest = time.max(clock.now());
            let mut run = 1;
            while times.next_if(|&next| next <= latest).is_some() {
                run += 1;
            }
            clock.set(latest);
            let done = orders.len() - rest.len();
            if prefetched <= done {
                prefetched = done + LOOK_AHEAD;
                self.store.look_ahead(asks[done..].iter().take(LOOK_AHEAD).copied());
            }
            let (now, later) = rest.split_at(run);
            self.submit(now);
            rest = later;
        }
    }

    /// Reports the first message that goes back in time.
    fn report_first_step_back(&mut self, lines: &[PipeLine<'_>], mut latest: Timestamp) {
        if self.has_gone_back {
            return;
        }
        for (index, line) in lines.iter().enumerate() {
            let at = line.message.as_ref().map_or(latest, |message| message.at);
            if at < latest {
                self.has_gone_back = true;
                let number = self.stats.processed() + index as u64 + 1;
                return self.report(
                    number,
                    "goes back in time; it and others like it are decided at the latest time seen",
                );
            }
            latest = at;
        }
    }

    /// Decides messages at one instant.
    fn submit(&mut self, orders: &[Order<'_>]) {
        self.answers = self.store.submit(orders, std::mem::take(&mut self.answers)).now();
        self.decisions
            .extend(self.answers.iter().map(|answer| answer.as_ref().ok().map(MessageDecision::of)));
    }

    fn route(&mut self, text: &[u8], decision: LineDecision) {
        match decision {
            Some(MessageDecision::Passed) => self.out.push(text),
            None if self.on_error == OnError::Pass => self.out.push(text),
            None => {}
            Some(MessageDecision::Refused(_)) => {
                if let Some(drops) = &mut self.drops {
                    drops.push(text);
                    if !text.ends_with(b"\n") {
                        // The last line of the input needs a line end in the file.
                        drops.push(b"\n");
                    }
                }
            }
        }
    }

    fn flush(&mut self) -> Result<(), PipeWriteError> {
        let failed = |name: &str, error| {
            PipeWriteError::Failed(Failure::Failed(format!("cannot write to {name}: {error}")))
        };
        if let Some(drops) = &mut self.drops {
            drops.flush().map_err(|error| failed(&drops.name, error))?;
        }
        self.out.flush().map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => PipeWriteError::OutputClosed,
            _ => failed(&self.out.name, error),
        })?;
        if let Some(news) = self.stats.progress_message().filter(|_| self.verbose) {
            print_message(&news);
        }
        Ok(())
    }

    /// Number of messages in the window, and of active users.
    fn current(&self) -> (u64, usize) {
        let usage = self.store.usage(LIMIT, None).now().ok();
        let count = usage.and_then(|usage| usage.items.first().map(|item| item.current_count));
        (count.unwrap_or_default(), self.store.live_keys(LIMIT))
    }
}

/// A line and its parsed message.
struct PipeLine<'a> {
    text: &'a [u8],
    message: Result<PipeMessage<'a>, String>,
}

/// Whether a file is the one that standard input reads.
fn is_standard_input(file: &File) -> bool {
    let input = io::stdin().as_fd().try_clone_to_owned().map(File::from).and_then(|input| input.metadata());
    match (file.metadata(), input) {
        (Ok(file), Ok(input)) => file.is_file() && (file.dev(), file.ino()) == (input.dev(), input.ino()),
        _ => false,
    }
}

/// An output, written once per batch.
struct PipeOutput {
    name: String,
    to: File,
    waiting: Vec<u8>,
}

impl PipeOutput {
    fn stdout() -> Result<PipeOutput, Failure> {
        let to = io::stdout().as_fd().try_clone_to_owned().map_err(|error| unwritable(&error))?;
        Ok(PipeOutput { name: "standard output".to_owned(), to: to.into(), waiting: Vec::new() })
    }

    fn append(path: &Path) -> Result<PipeOutput, Failure> {
        let name = path.display().to_string();
        let refuse = |error| Failure::BadInput(format!("--drops: cannot open {name}: {error}"));
        let to = OpenOptions::new().create(true).append(true).open(path).map_err(refuse)?;
        if is_standard_input(&to) {
            let why = format!("--drops: {name} is also the input; dropped lines would be read again");
            return Err(Failure::BadInput(why));
        }
        Ok(PipeOutput { name, to, waiting: Vec::new() })
    }

    fn push(&mut self, text: &[u8]) {
        self.waiting.extend_from_slice(text);
    }

    fn flush(&mut self) -> io::Result<()> {
        let written = stoppable_input::write_all(&self.to, &self.waiting);
        self.waiting.clear();
        written
    }
}
