//! The undo steps of one enforcer, in order.

use std::io;

use super::{CpuWatchdog, Undo, WatchdogError};
use crate::processes::ProcFs;

/// The undo steps of one enforcer.
#[derive(Debug)]
pub(crate) struct UndoList {
    watchdog: CpuWatchdog,
    proc: ProcFs,
    steps: Vec<(u64, Undo)>,
}

/// A step that could not be undone, and why.
pub(crate) type UndoFailure = (Undo, io::Error);

impl UndoList {
    pub(crate) fn new(watchdog: &CpuWatchdog, proc: &ProcFs) -> UndoList {
        UndoList { watchdog: watchdog.clone(), proc: proc.clone(), steps: Vec::new() }
    }

    /// Registers undo steps before their changes are made.
    pub(crate) fn register(&mut self, undos: Vec<Undo>) -> Result<(), WatchdogError> {
        let numbers = self.watchdog.register(&undos)?;
        self.steps.extend(numbers.into_iter().zip(undos));
        Ok(())
    }

    /// Drops steps that are not needed any more.
    pub(crate) fn forget(&mut self, mut is_obsolete: impl FnMut(&Undo) -> bool) -> Result<(), WatchdogError> {
        let (obsolete, left): (Vec<_>, Vec<_>) =
            self.steps.drain(..).partition(|(_, undo)| is_obsolete(undo));
        self.steps = left;
        let numbers: Vec<u64> = obsolete.into_iter().map(|(number, _)| number).collect();
        self.watchdog.release(&numbers)
    }

    /// Undoes all steps, the latest first. A step that fails stays registered for the watchdog and the next start. Returns the last
    /// failure.
    pub(crate) fn undo_all(&mut self) -> Result<(), UndoFailure> {
        let mut undone = Vec::new();
        let mut result = Ok(());
        for (number, undo) in self.steps.drain(..).rev() {
            match undo.perform(&self.proc) {
                Ok(()) => undone.push(number),
                Err(error) => result = Err((undo, error)),
            }
        }
        // If the release fails, the steps are undone once more later. That is harmless.
        let _forgotten = self.watchdog.release(&undone);
        result
    }
}
