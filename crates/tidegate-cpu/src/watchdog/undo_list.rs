//! What one enforcer has changed, in its order.

use std::io;

use super::{CpuWatchdog, Undo, WatchdogError};
use crate::processes::ProcFs;

/// What one enforcer has changed; it leads back.
#[derive(Debug)]
pub(crate) struct UndoList {
    guardian: CpuWatchdog,
    proc: ProcFs,
    steps: Vec<(u64, Undo)>,
}

/// What could not be undone, and why.
pub(crate) type UndoFailure = (Undo, io::Error);

impl UndoList {
    pub(crate) fn new(guardian: &CpuWatchdog, proc: &ProcFs) -> UndoList {
        UndoList { guardian: guardian.clone(), proc: proc.clone(), steps: Vec::new() }
    }

    /// Notes how changes are undone, before they are made.
    pub(crate) fn note(&mut self, undos: Vec<Undo>) -> Result<(), WatchdogError> {
        let numbers = self.guardian.register(&undos)?;
        self.steps.extend(numbers.into_iter().zip(undos));
        Ok(())
    }

    /// Forgets what need not be undone any more.
    pub(crate) fn forget(&mut self, mut is_over: impl FnMut(&Undo) -> bool) -> Result<(), WatchdogError> {
        let (over, left): (Vec<_>, Vec<_>) = self.steps.drain(..).partition(|(_, undo)| is_over(undo));
        self.steps = left;
        let numbers: Vec<u64> = over.into_iter().map(|(number, _)| number).collect();
        self.guardian.release(&numbers)
    }

    /// Goes all the way back, the latest step first. What cannot be undone stays noted, for the watchdog and the next start; it is told of the
    /// last such step.
    pub(crate) fn back(&mut self) -> Result<(), UndoFailure> {
        let mut undone = Vec::new();
        let mut stuck = Ok(());
        for (number, undo) in self.steps.drain(..).rev() {
            match undo.perform(&self.proc) {
                Ok(()) => undone.push(number),
                Err(error) => stuck = Err((undo, error)),
            }
        }
        // What stays noted though it is undone is only undone once more.
        let _forgotten = self.guardian.release(&undone);
        stuck
    }
}
