//! `tidegate cpu simulate`: a load trace through the governor.
//!
//! The time before the trace counts as unobserved, as it does for a governor that starts on a running machine.

mod report;
mod samples_csv;

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use tidegate_cpu::GovernorSettings;
use tidegate_cpu::simulation::Simulation;

use super::settings;
use super::trace::{TraceReader, TraceRow};
use crate::args::CpuSimulateArgs;
use crate::{Failure, print_result};

use report::SimulationReport;
use samples_csv::SamplesCsv;

/// Runs the simulation and prints its report.
pub(super) fn run(args: &CpuSimulateArgs) -> Result<(), Failure> {
    let stdin = Path::new("-");
    if args.trace == stdin && args.governor.config.as_deref() == Some(stdin) {
        let why = "--trace and --config cannot both be read from standard input; give a FILE for one of them";
        return Err(Failure::BadInput(why.to_owned()));
    }
    for (option, read) in [("--trace", Some(&args.trace)), ("--config", args.governor.config.as_ref())] {
        if let (Some(read), Some(samples)) = (read, &args.samples)
            && is_same_file(read, samples)
        {
            let path = samples.display();
            let why = format!(
                "--samples: {path} is the input of {option} and would be overwritten; name another file"
            );
            return Err(Failure::BadInput(why));
        }
    }
    let flags = args.governor.spec();
    let file = settings::read(args.governor.config.as_deref(), &flags)?;
    let settings = settings::settings(flags, file)?;
    let (name, input) = open(&args.trace)?;
    let mut samples_csv = args.samples.as_deref().map(SamplesCsv::begin).transpose()?;
    let report = simulate(&settings, name, input, samples_csv.as_mut())?;
    samples_csv.map_or(Ok(()), SamplesCsv::finish)?;
    print_result(&if args.json { report.json() } else { report.text() })
}

/// Whether two paths name the same existing file.
fn is_same_file(one: &Path, other: &Path) -> bool {
    let file = |path: &Path| fs::metadata(path).ok().filter(fs::Metadata::is_file);
    file(one)
        .zip(file(other))
        .is_some_and(|(one, other)| (one.dev(), one.ino()) == (other.dev(), other.ino()))
}

/// Opens the trace, with its name for messages.
fn open(path: &Path) -> Result<(String, File), Failure> {
    let is_stdin = path == Path::new("-");
    let name = if is_stdin { "stdin".to_owned() } else { path.display().to_string() };
    let file =
        if is_stdin { io::stdin().as_fd().try_clone_to_owned().map(File::from) } else { File::open(path) };
    file.map(|file| (name.clone(), file))
        .map_err(|error| Failure::BadInput(format!("cannot read {name}: {error}")))
}

fn simulate(
    settings: &GovernorSettings,
    name: String,
    input: File,
    mut samples_csv: Option<&mut SamplesCsv>,
) -> Result<SimulationReport, Failure> {
    let mut running: Option<(Simulation, TraceRow)> = None;
    let mut first = None;
    TraceReader::named(name).read(input, |row| {
        first.get_or_insert(row.at);
        if let Some((simulation, before)) = &mut running {
            let mut limit = simulation.governor().applied();
            simulation.run(row.at, before.load, |at, used, look| {
                if let Some(samples_csv) = &mut samples_csv {
                    samples_csv.add(at, before.load, used, limit, look);
                    limit = look.applied;
                }
            });
            *before = row;
        } else {
            running = Some((Simulation::new(settings.clone(), row.at), row));
        }
    })?;
    let (Some((simulation, last)), Some(first)) = (running, first) else {
        return Err(Failure::Failed(
            "a trace without rows was accepted; this is a defect, please report it".to_owned(),
        ));
    };
    let (outcome, windows) = simulation.finish();
    Ok(SimulationReport::of(settings, first, last.at, &outcome, &windows))
}
