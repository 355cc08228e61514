//! The undo steps of one enforcer, in order.

use std::io;

use super::{CpuWatchdog, Undo, WatchdogError};
use crate::processes::ProcFs;

/// The undo steps of one enforcer.
#[derive(Debug)]
pub(crate) struct UndoList {
    guardian: CpuWatchdog,
    proc: ProcFs,
    steps: Vec<(u64, Undo)>,
}

/// A step that could not be undone, and why.
pub(crate) type UndoFailure = (Undo, io::Error);

impl UndoList {
    pub(crate) fn new(guardian: &CpuWatchdog, proc: &ProcFs) -> UndoList {
        UndoList { guardian: guardian.clone(), proc: proc.clone(), steps: Vec::new() }
    }

    /// Registers undo steps before their changes are made.
    pub(crate) fn note(&mut self, undos: Vec<Undo>) -> Result<(), WatchdogError> {
        let numbers = self.guardian.register(&undos)?;
        self.steps.extend(numbers.into_iter().zip(undos));
        Ok(())
    }

    /// Drops steps that are not needed any more.
    pub(crate) fn forget(&mut self, mut is_over: impl FnMut(&Undo) -> bool) -> Result<(), WatchdogError> {
        let (over, left): (Vec<_>, Vec<_>) = self.steps.drain(..).partition(|(_, undo)| is_over(undo));
        self.steps = left;
        let numbers: Vec<u64> = over.into_iter().map(|(number, _)| number).collect();
        self.guardian.release(&numbers)
    }

    /// Undoes all steps, the latest first. A step that fails stays registered for the watchdog and the next start. Returns the last
    /// failure.
    pub(crate) fn back(&mut self) -> Result<(), UndoFailure> {
        let mut undone = Vec::new();
        let mut stuck = Ok(());
        for (number, undo) in self.steps.drain(..).rev() {
            match undo.perform(&self.proc) {
                Ok(()) => undone.push(number),
                Err(error) => stuck = Err((undo, error)),
            }
        }
        // If the release fails, the steps are undone once more later. That is harmless.
        let _forgotten = self.guardian.release(&undone);
        stuck
    }
}
