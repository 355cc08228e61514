//! Meter of a process tree.

use std::io;

use super::{CounterId, Meter, MeterError, MeterReading, TargetId};
use crate::cgroups::FilesystemRoots;
use crate::processes::{ProcFs, ProcessTree, ScanDepth, ticks};

/// Scan all processes after this many reads, to find orphans whose parents ended before they were seen.
const FULL_SCAN_EVERY: u32 = 12;

/// CPU time of a process and all its descendants, including ended and reparented ones.
///
/// For every living process it is exact to a tick of the kernel's clock, usually a hundredth of a second.
#[derive(Debug)]
pub struct TreeMeter {
    proc: ProcFs,
    tree: ProcessTree,
    counter_id: CounterId,
    target: TargetId,
    reads: u32,
}

impl TreeMeter {
    /// A meter of the tree below the process with this number.
    pub fn new(roots: &FilesystemRoots, pid: u32) -> Result<TreeMeter, MeterError> {
        TreeMeter::with_subreaper(roots, pid, None)
    }

    /// A meter of a command whose parent adopts its orphans. No process leaves that tree, and usage stays known after all have ended.
    pub fn with_subreaper(
        roots: &FilesystemRoots,
        pid: u32,
        subreaper: Option<u32>,
    ) -> Result<TreeMeter, MeterError> {
        let proc = roots.processes();
        let failed = |error| MeterError::of(proc.root(), error);
        let boot = proc.boot().map_err(failed)?;
        let tree = ProcessTree::of(&proc, pid, subreaper).map_err(failed)?.ok_or(MeterError::Gone { pid })?;
        let root = tree.root();
        let (pid, started) = (root.pid.to_le_bytes(), root.started.to_le_bytes());
        let words: [&[u8]; 4] = [b"tree", boot.as_bytes(), &pid, &started];
        // The root process identifies both the counter and the target.
        let (counter_id, target) = (CounterId::of(&words), TargetId::of(&words));
        Ok(TreeMeter { proc, tree, counter_id, target, reads: 0 })
    }
}

impl Meter for TreeMeter {
    fn read(&mut self) -> Result<MeterReading, MeterError> {
        let failed = |error: io::Error| MeterError::of(self.proc.root(), error);
        let depth =
            if self.reads.is_multiple_of(FULL_SCAN_EVERY) { ScanDepth::Whole } else { ScanDepth::Near };
        self.reads = self.reads.wrapping_add(1);
        self.tree.refresh(depth).map_err(failed)?;
        let root = self.tree.root();
        if self.tree.members().next().is_none() && !self.tree.has_subreaper() {
            return Err(MeterError::Gone { pid: root.pid });
        }
        let age = self.proc.uptime().map_err(failed)?.saturating_sub(ticks(root.started));
        Ok(MeterReading {
            used: ticks(self.tree.used()),
            counter_id: self.counter_id,
            target: self.target,
            age: Some(age),
        })
    }
}
