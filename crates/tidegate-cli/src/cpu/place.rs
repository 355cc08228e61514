//! Where a governor keeps what it saw: its settings and its latest sample.

use std::io;
use std::path::Path;

use tidegate_cpu::Settings;
use tidegate_cpu::journal::{Sample, latest};

use super::terms;
use crate::Failure;
use crate::args::StateArgs;

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
        let file = terms::read(args.config.as_deref())?;
        let settings = Settings::of(file).map_err(|flaw| Failure::BadInput(flaw.to_string()))?;
        let folder = args.state.as_path();
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
