//! The watchdog: a process that waits for the end of another.

use std::io::{BufRead, BufReader, Read};

use super::undo::{UndoRecord, UndoRecords};
use super::{RestoreReport, undo_all, undo_journal};

/// Longer than any line: two paths, each as long as paths may be, with every byte escaped.
const LONGEST_LINE: u64 = 32 << 10;

/// Reads what is to be undone until the other end of the pipe is closed, and undoes it, unless it was told that all is done.
///
/// This is all that a watchdog does: [`CpuWatchdog::spawn`](super::CpuWatchdog::spawn) starts the program that calls it. It leaves the session
/// it was started in, so that nobody who ends that one ends it too.
pub fn watch(input: impl Read) -> RestoreReport {
    // Where it leads a session already, there is nothing to leave.
    let _left = rustix::process::setsid();
    read_and_undo(input)
}

/// The same in whatever session it is.
pub(super) fn read_and_undo(input: impl Read) -> RestoreReport {
    let mut notes = UndoRecords::default();
    let mut input = BufReader::new(input);
    let mut line = Vec::new();
    // An error is an end like any other.
    while let Ok(1..) = (&mut input).take(LONGEST_LINE).read_until(b'\n', &mut line) {
        if let Some(note) = line.strip_suffix(b"\n").and_then(UndoRecord::of_line) {
            notes.take(note);
        }
        line.clear();
    }
    if notes.is_done {
        return RestoreReport::default();
    }
    let restored = undo_all(notes.open.into_values().collect());
    if let (Some(file), true) = (notes.file, restored.failed.is_empty()) {
        // Whoever starts next would find nothing to do there.
        let _removed = undo_journal::remove(&file);
    }
    restored
}
