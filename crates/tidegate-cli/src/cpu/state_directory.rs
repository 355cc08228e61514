//! The state directory of a governor: its settings and its samples.

use std::io;
use std::path::Path;

use tidegate_cpu::GovernorSettings;
use tidegate_cpu::journal::{UsageSample, latest};
use tidegate_cpu::settings::CpuSpec;

use super::atomic_file::write_atomically;
use super::settings;
use crate::Failure;
use crate::args::CpuStateArgs;

/// The settings that the samples were taken with.
const SETTINGS: &str = "cpu.yaml";

/// Saves the settings for `status` and `report`.
pub(super) fn save_settings(folder: &Path, spec: &CpuSpec) -> Result<(), Failure> {
    let text = format!(
        "# GovernorSettings of the last start of the governor, written by it and read by status and report.\n{}",
        spec.text()
    );
    write_atomically(&folder.join(SETTINGS), &text)
}

/// A journal with at least one sample, and the settings to read it with.
#[derive(Debug)]
pub(super) struct StateDirectory<'a> {
    pub(super) folder: &'a Path,
    pub(super) settings: GovernorSettings,
    pub(super) last: UsageSample,
}

impl StateDirectory<'_> {
    /// Opens the directory for reading. A running governor is not disturbed.
    pub(super) fn open(args: &CpuStateArgs) -> Result<StateDirectory<'_>, Failure> {
        let folder = args.state.as_path();
        let kept = folder.join(SETTINGS);
        let file = args.config.as_deref().or_else(|| kept.is_file().then_some(kept.as_path()));
        let settings = GovernorSettings::of(settings::read(file, &CpuSpec::default())?)
            .map_err(|flaw| Failure::BadInput(flaw.to_string()))?;
        let last = latest(folder)
            .map_err(|error| unreadable_samples(folder, &error))?
            .ok_or_else(|| empty(folder))?;
        Ok(StateDirectory { folder, settings, last })
    }

    /// An error of a later read.
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
