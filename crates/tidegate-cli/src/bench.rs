//! `tidegate bench`: document 004's load test as a tool, with a verdict.
//!
//! ```text
//!   for every level of concurrency
//!     limit to warm up with ──▶ warm-up ──▶ how fast is it? ──▶ limit to measure with ──▶ measured
//!                                  │                                                         │
//!                                  └────── what was granted, per key ──▶ verdict ◀───────────┘
//!                                                                           ▲
//!                                            what the server has counted ───┘
//! ```
//!
//! In the document throughput rose with concurrency and the success rate collapsed, because those who came at the same time failed
//! each other. So a rate alone says nothing here: the tool sets up the limits itself, counts from outside what it was granted of
//! them, and says whether anything failed or was sold twice.
//!
//! Decided: a closed loop. Every connection asks again when it was answered, so that concurrency is a number and not an outcome;
//! what is late is in the latencies of those who waited. Limits are sized by the warm-up, so that grants and refusals both happen
//! on any machine. Limits that were made are removed, whatever happens in between.
//!
//! Refused: TLS, which would measure the encryption; a proxy of the environment, which would measure the proxy.

mod chart;
mod connection;
pub(crate) mod crash;
mod latency_histogram;
mod load_plan;
pub(crate) mod number;
mod progress_bar;
mod random;
mod report;
mod stop_signal;
mod stopwatch;
mod tally;
pub(crate) mod target;
mod temporary_limit;
mod verdict;
mod wire;
mod workers;

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use crate::args::BenchArgs;
use crate::{Failure, print_message, print_result};
use connection::Endpoint;
use load_plan::{LoadPlan, LoadQuota};
use number::grouped;
use progress_bar::{LoadPhase, ProgressBar};
use report::{LevelReport, LoadReport};
use stop_signal::StopSignal;
use temporary_limit::{ControlApi, TemporaryLimit};
use workers::{LoadRun, WorkerPool};

/// Puts load on a server, or kills one.
pub(crate) fn run(args: &BenchArgs) -> Result<(), Failure> {
    for path in [&args.json, &args.svg].into_iter().flatten().filter(|path| *path != Path::new("-")) {
        probe(path)?;
    }
    if args.crash {
        return crash::run(args);
    }
    let plan = LoadPlan::of(args)?;
    let stop = StopSignal::listen()?;
    let control = ControlApi::of(args, &plan)?;
    let endpoint = Endpoint::find(&plan.target, control.token(), plan.timeout)?;
    let (progress, report) = (ProgressBar::on_stderr(&plan), LoadReport::begin(&plan));
    let mut bench = BenchRun { plan, stop, control, endpoint, progress, report };
    let measured = bench.measure();
    let BenchRun { report, progress, .. } = bench;
    drop(progress);
    // What was measured before something went wrong is worth knowing.
    if report.verdict.decisions > 0 || report.verdict.failures > 0 {
        publish(args, &report)?;
    }
    match measured {
        // A server that goes away under load has failed, and how is in the verdict.
        Err(why) if !report.verdict.is_clean() => {
            print_message(&why.to_string());
            report.verdict.result()
        }
        measured => measured.and_then(|()| report.verdict.result()),
    }
}

/// A run, as far as it is.
struct BenchRun {
    plan: LoadPlan,
    stop: StopSignal,
    control: ControlApi,
    endpoint: Endpoint,
    progress: ProgressBar,
    report: LoadReport,
}

impl BenchRun {
    /// All levels, one after another.
    fn measure(&mut self) -> Result<(), Failure> {
        self.control.check_access()?;
        for concurrency in self.plan.levels.clone() {
            let workers = WorkerPool::start(&self.endpoint, concurrency, &self.plan, &self.stop)?;
            let rate = self.run_load(&workers, LoadPhase::WarmUp, self.plan.warm_up_quota())?;
            self.run_load(&workers, LoadPhase::Measured, self.plan.quota(rate))?;
            self.progress.level_done();
        }
        Ok(())
    }

    /// Asks for a while about a limit that is made for it, and judges what came of it. Tells how many decisions there were in a
    /// second.
    fn run_load(&mut self, workers: &WorkerPool, phase: LoadPhase, quota: LoadQuota) -> Result<u64, Failure> {
        let limit = TemporaryLimit::create(&self.control, quota)?;
        let lasts = match phase {
            LoadPhase::WarmUp => self.plan.warm_up,
            LoadPhase::Measured => self.plan.duration,
        };
        let shift = LoadRun { limit: limit.id(), lasts };
        let tally = workers.work(&shift, |now| self.progress.draw(workers.connections(), phase, now));
        let counted = limit.count();
        let server_counted = counted.as_ref().ok().copied();
        let found = self.report.verdict.judge(&tally, quota, server_counted);
        // Half a level has no rate.
        if phase == LoadPhase::Measured && !self.stop.is_requested() {
            let level = LevelReport::of(workers.connections(), &tally, quota, server_counted, found);
            self.report.levels.push(level);
        }
        counted?;
        limit.remove()?;
        if self.stop.is_requested() {
            let why = "stopped before the end; the limits that were made are removed";
            return Err(Failure::Failed(why.to_owned()));
        }
        Ok(tally.rate())
    }
}

/// Words for people, JSON for programs, and a picture.
fn publish(args: &BenchArgs, report: &LoadReport) -> Result<(), Failure> {
    if let Some(path) = &args.svg {
        write(path, &chart::draw(report))?;
    }
    publish_text(args.json.as_deref(), &report.text(), &report.json())
}

/// The text, and the JSON where it was asked for. Standard output belongs to one of them.
fn publish_text(json: Option<&Path>, text: &str, value: &str) -> Result<(), Failure> {
    match json {
        Some(path) if path == Path::new("-") => {
            print_message(text);
            print_result(&format!("{value}\n"))
        }
        Some(path) => {
            write(path, &format!("{value}\n"))?;
            print_result(text)
        }
        None => print_result(text),
    }
}

/// Whether a file can be written, before there is anything to write: nobody wants to know that at the end of a long run. What is there
/// stays as it is.
fn probe(path: &Path) -> Result<(), Failure> {
    let is_new = !path.exists();
    let opened = std::fs::OpenOptions::new().write(true).create(true).truncate(false).open(path);
    opened.map_err(|error| Failure::BadInput(format!("cannot write {}: {error}", path.display())))?;
    if is_new {
        let _it_was_only_a_try = std::fs::remove_file(path);
    }
    Ok(())
}

fn write(path: &Path, content: &str) -> Result<(), Failure> {
    let written = std::fs::File::create(path).and_then(|mut file| file.write_all(content.as_bytes()));
    written.map_err(|error| Failure::Failed(format!("cannot write {}: {error}", path.display())))
}

/// A time for people, in milliseconds with three places: what is measured in microseconds and in seconds stands in one column.
fn milliseconds(nanoseconds: u64) -> String {
    let microseconds = nanoseconds.div_ceil(1000);
    format!("{}.{:03} ms", grouped(microseconds / 1000), microseconds % 1000)
}

/// Nanoseconds, as many as fit.
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_up_to_the_microsecond() {
        for (nanoseconds, text) in
            [(0, "0.000 ms"), (1, "0.001 ms"), (182_000, "0.182 ms"), (1_234_567_001, "1,234.568 ms")]
        {
            assert_eq!(milliseconds(nanoseconds), text);
        }
    }
}
