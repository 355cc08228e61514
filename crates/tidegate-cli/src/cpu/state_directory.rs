//! Where a governor keeps what it saw: its settings and its latest sample.

use std::io;
use std::path::Path;

use tidegate::file::CpuSpec;
use tidegate_cpu::Settings;
use tidegate_cpu::journal::{Sample, latest};

use super::atomic_file::write_atomically;
use super::settings;
use crate::Failure;
use crate::args::CpuStateArgs;

/// The file beside the samples that says by which settings they were taken.
const SETTINGS: &str = "cpu.yaml";

/// Keeps the settings of a governor for whoever looks at its samples.
pub(super) fn save_settings(folder: &Path, spec: &CpuSpec) -> Result<(), Failure> {
    let text = format!(
        "# What the governor was started with last; written by it, and read by status and report.\n{}",
        spec.text()
    );
    write_atomically(&folder.join(SETTINGS), &text)
}

/// A journal that has something in it, and the settings to read it by.
#[derive(Debug)]
pub(super) struct StateDirectory<'a> {
    pub(super) folder: &'a Path,
    pub(super) settings: Settings,
    pub(super) last: Sample,
}

impl StateDirectory<'_> {
    /// Opens it for reading; whoever governs with it is not disturbed.
    pub(super) fn open(args: &CpuStateArgs) -> Result<StateDirectory<'_>, Failure> {
        let folder = args.state.as_path();
        let kept = folder.join(SETTINGS);
        let file = args.config.as_deref().or_else(|| kept.is_file().then_some(kept.as_path()));
        let settings = Settings::of(settings::read(file, &CpuSpec::default())?)
            .map_err(|flaw| Failure::BadInput(flaw.to_string()))?;
        let last = latest(folder)
            .map_err(|error| unreadable_samples(folder, &error))?
            .ok_or_else(|| empty(folder))?;
        Ok(StateDirectory { folder, settings, last })
    }

    /// It was there a moment ago, and cannot be read now.
    pub(super) fn unreadable_samples(&self, error: &io::Error) -> Failure {
        unreadable_samples(self.folder, error)
    }
}

fn unreadable_samples(folder: &Path, error: &io::Error) -> Failure {
    Failure::Failed(format!("cannot read the samples in {}: {error}", folder.display()))
}

fn empty(folder: &Path) -> Failure {
    Failure::Failed(format!(
        "there are no samples in {}; start the governor with 'tidegate cpu run', or give its directory with --state DIR",
        folder.display()
    ))
}
