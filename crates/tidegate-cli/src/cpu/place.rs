//! Where a governor keeps what it saw: its settings and its latest sample.

use std::io;
use std::path::Path;

use tidegate_cpu::Settings;
use tidegate_cpu::journal::{Sample, latest};
use tidegate_cpu::settings::CpuSpec;

use super::replace::replace;
use super::terms;
use crate::Failure;
use crate::args::StateArgs;

/// The file beside the samples that says by which settings they were taken.
const SETTINGS: &str = "cpu.yaml";

/// Keeps the settings of a governor for whoever looks at its samples.
pub(super) fn keep(folder: &Path, spec: &CpuSpec) -> Result<(), Failure> {
    let text = format!(
        "# What the governor was started with last; written by it, and read by status and report.\n{}",
        spec.text()
    );
    replace(&folder.join(SETTINGS), &text)
}

/// A journal that has something in it, and the settings to read it by.
#[derive(Debug)]
pub(super) struct Place<'a> {
    pub(super) folder: &'a Path,
    pub(super) settings: Settings,
    pub(super) last: Sample,
}

impl Place<'_> {
    /// Opens it for reading; whoever governs with it is not disturbed.
    pub(super) fn open(args: &StateArgs) -> Result<Place<'_>, Failure> {
        let folder = args.state.as_path();
        let kept = folder.join(SETTINGS);
        let file = args.config.as_deref().or_else(|| kept.is_file().then_some(kept.as_path()));
        let settings = Settings::of(terms::read(file, &CpuSpec::default())?)
            .map_err(|flaw| Failure::BadInput(flaw.to_string()))?;
        let last = latest(folder).map_err(|error| unread(folder, &error))?.ok_or_else(|| empty(folder))?;
        Ok(Place { folder, settings, last })
    }

    /// It was there a moment ago, and cannot be read now.
    pub(super) fn unread(&self, error: &io::Error) -> Failure {
        unread(self.folder, error)
    }
}

fn unread(folder: &Path, error: &io::Error) -> Failure {
    Failure::Failed(format!("cannot read the samples in {}: {error}", folder.display()))
}

fn empty(folder: &Path) -> Failure {
    Failure::Failed(format!(
        "there are no samples in {}; start the governor with 'tidegate cpu run', or give its directory with --state DIR",
        folder.display()
    ))
}
