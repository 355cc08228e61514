//! `tidegate bench`: a load test with a verdict.
//!
//! ```text
//!   for each concurrency level
//!     warm-up limit ──▶ warm-up ──▶ decisions/s ──▶ sized limit ──▶ measured run
//!                          │                                            │
//!                          └────── grants per key ──▶ verdict ◀─────────┘
//!                                                        ▲
//!                               the server's own counts ─┘
//! ```
//!
//! A rate alone can hide errors: throughput may rise with concurrency while the success rate collapses. So the tool
//! creates the limits itself, counts grants from outside, and reports failures and grants above the limit.
//!
//! The loop is closed: a connection sends its next request after the reply. Concurrency is therefore an input, and
//! delays appear in the latencies. The warm-up sizes the limits, so that grants and refusals both occur on any
//! machine. Test limits are deleted in every case.
//!
//! TLS is not supported, because it would measure encryption. Proxies from the environment are ignored, because they
//! would be measured too.

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
use connection::BenchEndpoint;
use load_plan::{LoadPlan, LoadQuota};
use number::grouped;
use progress_bar::{LoadPhase, ProgressBar};
use report::{LevelReport, LoadReport};
use stop_signal::BenchStopSignal;
use temporary_limit::{ControlApi, TemporaryLimit};
use workers::{LoadRun, WorkerPool};

/// Runs a load test, or a crash test.
pub(crate) fn run(args: &BenchArgs) -> Result<(), Failure> {
    for path in [&args.json, &args.svg].into_iter().flatten().filter(|path| *path != Path::new("-")) {
        probe(path)?;
    }
    if args.crash {
        return crash::run(args);
    }
    let plan = LoadPlan::of(args)?;
    let stop = BenchStopSignal::listen()?;
    let control = ControlApi::of(args, &plan)?;
    let endpoint = BenchEndpoint::find(&plan.target, control.token(), plan.timeout)?;
    let (progress, report) = (ProgressBar::on_stderr(&plan), LoadReport::begin(&plan));
    let mut bench = BenchRun { plan, stop, control, endpoint, progress, report };
    let measured = bench.measure();
    let BenchRun { report, progress, .. } = bench;
    drop(progress);
    // Results from before a failure are published too.
    if report.verdict.decisions > 0 || report.verdict.failures > 0 {
        publish(args, &report)?;
    }
    match measured {
        // A server that disappears under load has failed; the verdict has the details.
        Err(why) if !report.verdict.is_clean() => {
            print_message(&why.to_string());
            report.verdict.result()
        }
        measured => measured.and_then(|()| report.verdict.result()),
    }
}

/// The state of a load test.
struct BenchRun {
    plan: LoadPlan,
    stop: BenchStopSignal,
    control: ControlApi,
    endpoint: BenchEndpoint,
    progress: ProgressBar,
    report: LoadReport,
}

impl BenchRun {
    /// Measures all levels, one after another.
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

    /// Runs one load phase against a temporary limit and judges the result. Returns decisions per second.
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
        // An interrupted level has no rate.
        if phase == LoadPhase::Measured && !self.stop.is_requested() {
            let level = LevelReport::of(workers.connections(), &tally, quota, server_counted, found);
            self.report.levels.push(level);
        }
        counted?;
        limit.remove()?;
        if self.stop.is_requested() {
            let why = "stopped before the end; the test limits are deleted";
            return Err(Failure::Failed(why.to_owned()));
        }
        Ok(tally.rate())
    }
}

/// Prints the report and writes the chart.
fn publish(args: &BenchArgs, report: &LoadReport) -> Result<(), Failure> {
    if let Some(path) = &args.svg {
        write(path, &chart::draw(report))?;
    }
    publish_text(args.json.as_deref(), &report.text(), &report.json())
}

/// Prints the text, and writes the JSON if requested. With `-` standard output has the JSON and standard error the
/// text.
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

/// Checks that a file can be written before a long run begins. An existing file is not changed.
fn probe(path: &Path) -> Result<(), Failure> {
    let is_new = !path.exists();
    let opened = std::fs::OpenOptions::new().write(true).create(true).truncate(false).open(path);
    opened.map_err(|error| Failure::BadInput(format!("cannot write {}: {error}", path.display())))?;
    if is_new {
        let _removed = std::fs::remove_file(path);
    }
    Ok(())
}

fn write(path: &Path, content: &str) -> Result<(), Failure> {
    let written = std::fs::File::create(path).and_then(|mut file| file.write_all(content.as_bytes()));
    written.map_err(|error| Failure::Failed(format!("cannot write {}: {error}", path.display())))
}

/// Milliseconds with three decimals, so that micro- and milliseconds share one column. Rounded up.
fn milliseconds(nanoseconds: u64) -> String {
    let microseconds = nanoseconds.div_ceil(1000);
    format!("{}.{:03} ms", grouped(microseconds / 1000), microseconds % 1000)
}

/// Nanoseconds, saturating.
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn milliseconds_are_rounded_up_to_the_microsecond() {
        for (nanoseconds, text) in
            [(0, "0.000 ms"), (1, "0.001 ms"), (182_000, "0.182 ms"), (1_234_567_001, "1,234.568 ms")]
        {
            assert_eq!(milliseconds(nanoseconds), text);
        }
    }
}
