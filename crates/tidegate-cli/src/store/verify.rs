//! `tidegate store verify`: whether a server could start from a directory, and what is damaged otherwise.
//!
//! Everything is read as in a start and restored into memory. So everything that a start would refuse is found here.

use std::path::Path;

use serde::Serialize;
use tidegate::clock::SystemClock;
use tidegate::model::Timestamp;
use tidegate::store::Memory;
use tidegate::store::memory::restore::Restore;
use tidegate_disk::directory::RealDirectory;
use tidegate_disk::record::{LogRecord, RecordReader};
use tidegate_disk::wal::{
    InspectedItem, InspectionReport, LogProblem, LogTail, MAX_PROBLEMS, PreviousRun, inspect,
};

use super::{as_line, digits, instant, open, path_text, refused};
use crate::args::VerifyArgs;
use crate::bench::number::{counted, grouped};
use crate::{Failure, print_result};

/// Maximum number of attempts on a store that changes during the check.
const MAX_ATTEMPTS: usize = 4;
/// Unbounded memory: the memory limit of the server is not known here.
const DRY_RUN_CAPACITY: usize = usize::MAX / 4;

const WHAT_TO_DO: &str = "A server cannot start from this directory. Restore it from a backup made with `tidegate store backup`; \
                          leaving out damaged records could grant units twice.";

/// Verifies a store and prints the result.
pub(super) fn run(args: &VerifyArgs) -> Result<(), Failure> {
    let files = open(&args.folder)?;
    let verification = verify(&files).map_err(|error| refused(&args.folder, error))?;
    print_result(&if args.json {
        as_line(&verification.json(&args.folder))
    } else {
        verification.text(&args.folder)
    })?;
    match verification.report.problem_count {
        0 => Ok(()),
        count => {
            let wrong = counted(count, "problem", "problems");
            Err(Failure::Failed(format!("{wrong} in the store")))
        }
    }
}

/// Repeats the check until there is no error or the same errors appear twice: blocks being written may look damaged
/// for a moment.
fn verify(files: &RealDirectory) -> std::io::Result<Verification> {
    let mut verification = verify_once(files)?;
    for _ in 1..MAX_ATTEMPTS {
        if verification.report.is_sound() {
            break;
        }
        let again = verify_once(files)?;
        if again == verification {
            break;
        }
        verification = again;
    }
    Ok(verification)
}

fn verify_once(files: &RealDirectory) -> std::io::Result<Verification> {
    let mut dry_run = DryRun::new();
    let mut report = inspect(files, &mut |found| dry_run.found(&found))?;
    let room = MAX_PROBLEMS.saturating_sub(report.problems.len());
    report.problem_count += dry_run.problems.len() as u64;
    report.problems.extend(dry_run.problems.into_iter().take(room));
    Ok(Verification {
        limits: dry_run.restoring.limits().count() as u64,
        snapshot_records: dry_run.snapshot_records,
        log_records: dry_run.log_records,
        report,
    })
}

/// The result of a check.
#[derive(Debug, PartialEq, Eq)]
struct Verification {
    report: InspectionReport,
    limits: u64,
    snapshot_records: u64,
    log_records: u64,
}

/// A start that is only simulated.
struct DryRun {
    restoring: Restore,
    snapshot_records: u64,
    log_records: u64,
    /// Whether no error was found so far. Records after a gap are not applied.
    is_whole: bool,
    problems: Vec<LogProblem>,
}

impl DryRun {
    fn new() -> DryRun {
        let memory = Memory { capacity_bytes: DRY_RUN_CAPACITY, ..Memory::default() };
        DryRun {
            restoring: Restore::new(SystemClock::new(), memory),
            snapshot_records: 0,
            log_records: 0,
            is_whole: true,
            problems: Vec::new(),
        }
    }

    fn found(&mut self, found: &InspectedItem<'_>) {
        let (file, offset, read) = match *found {
            InspectedItem::Chunk { file, offset, payload } => {
                let read = self.read(payload);
                self.snapshot_records += read.0;
                (file, offset, read.1)
            }
            InspectedItem::Block { file, offset, payload, .. } => {
                let read = self.read(payload);
                self.log_records += read.0;
                (file, offset, read.1)
            }
            InspectedItem::Problem(_) => {
                self.is_whole = false;
                return;
            }
        };
        if let Err(why) = read {
            self.is_whole = false;
            let what = format!("invalid records: {why}");
            if self.problems.len() < MAX_PROBLEMS {
                self.problems.push(LogProblem { file: file.to_owned(), offset, what });
            }
        }
    }

    /// Parses records. Returns their number and the first error.
    fn read(&mut self, payload: &[u8]) -> (u64, Result<(), String>) {
        let mut records = RecordReader::new(payload);
        let mut count = 0;
        loop {
            let restoring = &self.restoring;
            let record = match records.next(&|id| restoring.limit(id)) {
                Ok(Some(record)) => record,
                Ok(None) => return (count, Ok(())),
                Err(illegible) => return (count, Err(illegible.to_string())),
            };
            count += 1;
            if self.is_whole
                && let Err(why) = self.apply(record)
            {
                return (count, Err(why));
            }
        }
    }

    fn apply(&mut self, record: LogRecord<'_>) -> Result<(), String> {
        let json = record.restore_into(&mut self.restoring);
        json.map_err(|why| why.to_string())
    }
}

impl Verification {
    /// The result as text.
    fn text(&self, folder: &Path) -> String {
        let Verification { report, limits, snapshot_records, log_records } = self;
        let records = |count| counted(count, "record", "records");
        let bytes = |count| counted(count, "byte", "bytes");
        let mut lines = vec![match report.store_id {
            Some(id) => format!("{}: store {}", path_text(folder), digits(&id)),
            None => format!("{}: the store id is unreadable", path_text(folder)),
        }];
        lines.push(match report.snapshot {
            Some(segment) => format!(
                "snapshot  1, before segment {segment}: {}, {}, {}",
                counted(report.chunks, "chunk", "chunks"),
                bytes(report.snapshot_bytes),
                records(*snapshot_records),
            ),
            None => "snapshot  none yet".to_owned(),
        });
        lines.push(format!(
            "log       {}, {}, {}, {}",
            counted(report.segments, "segment", "segments"),
            counted(report.blocks, "block", "blocks"),
            bytes(report.block_bytes),
            records(*log_records),
        ));
        lines.push(format!("limits    {}", grouped(*limits)));
        if let Some((first, last)) = report.times {
            lines.push(format!("written   from {} to {}", at(first), at(last)));
        }
        let left = match report.previous_run {
            _ if report.store_id.is_none() => "unknown",
            PreviousRun::Created => "new, and never written to",
            PreviousRun::Stopped => "stopped cleanly",
            PreviousRun::Crashed if report.is_sound() => {
                "a server is running, or it was not stopped cleanly: the next start recovers"
            }
            PreviousRun::Crashed => "a server is running, or it was not stopped cleanly",
        };
        lines.push(format!("left      {left}"));
        lines.push(match &report.tail {
            LogTail::Whole => "tail      whole".to_owned(),
            LogTail::Torn { file, offset, bytes: torn } => format!(
                "tail      {} of {file} from byte {offset} on are an incomplete block: it was never acknowledged, and a start cuts it off",
                bytes(*torn)
            ),
        });
        if report.is_sound() {
            lines.push("No problems found.".to_owned());
        } else {
            lines.extend(report.problems.iter().map(|problem| format!("DAMAGED   {problem}")));
            let untold = report.problem_count.saturating_sub(report.problems.len() as u64);
            if untold > 0 {
                lines.push(format!("          and {} more", grouped(untold)));
            }
            lines.push(WHAT_TO_DO.to_owned());
        }
        lines.push(String::new());
        lines.join("\n")
    }

    fn json(&self, folder: &Path) -> VerificationJson<'_> {
        let report = &self.report;
        let problem = |problem: &LogProblem| ProblemJson {
            file: problem.file.clone(),
            offset: problem.offset,
            what: problem.what.clone(),
        };
        VerificationJson {
            directory: path_text(folder),
            store: report.store_id.map(|id| digits(&id)),
            sound: report.is_sound(),
            left: match report.previous_run {
                _ if report.store_id.is_none() => "unknown",
                PreviousRun::Created => "new",
                PreviousRun::Stopped => "stopped",
                PreviousRun::Crashed => "running_or_crashed",
            },
            snapshot: report.snapshot.map(|segment| SnapshotJson {
                segment,
                chunks: report.chunks,
                bytes: report.snapshot_bytes,
                records: self.snapshot_records,
            }),
            log: LogJson {
                segments: report.segments,
                blocks: report.blocks,
                bytes: report.block_bytes,
                records: self.log_records,
                last_block: report.last_number,
            },
            limits: self.limits,
            times: report.times.map(|(first, last)| TimesJson { first: at(first), last: at(last) }),
            torn_tail: match &report.tail {
                LogTail::Whole => None,
                LogTail::Torn { file, offset, bytes } => {
                    Some(TornTailJson { file, offset: *offset, bytes: *bytes })
                }
            },
            problems: report.problems.iter().map(problem).collect(),
            problem_count: report.problem_count,
        }
    }
}

fn at(ticks: u64) -> String {
    instant(Timestamp::from_ticks(ticks))
}

#[derive(Debug, Serialize)]
struct VerificationJson<'a> {
    directory: String,
    store: Option<String>,
    sound: bool,
    left: &'static str,
    snapshot: Option<SnapshotJson>,
    log: LogJson,
    limits: u64,
    times: Option<TimesJson>,
    torn_tail: Option<TornTailJson<'a>>,
    problems: Vec<ProblemJson>,
    problem_count: u64,
}

#[derive(Debug, Serialize)]
struct SnapshotJson {
    segment: u64,
    chunks: u64,
    bytes: u64,
    records: u64,
}

#[derive(Debug, Serialize)]
struct LogJson {
    segments: u64,
    blocks: u64,
    bytes: u64,
    records: u64,
    last_block: u64,
}

#[derive(Debug, Serialize)]
struct TimesJson {
    first: String,
    last: String,
}

#[derive(Debug, Serialize)]
struct TornTailJson<'a> {
    file: &'a str,
    offset: u64,
    bytes: u64,
}

#[derive(Debug, Serialize)]
struct ProblemJson {
    file: String,
    offset: u64,
    what: String,
}
