//! The loop of the watchdog process: wait for the end of the governor.

use std::io::{BufRead, BufReader, Read};

use super::undo::{UndoRecord, UndoRecords};
use super::{RestoreReport, undo_all, undo_journal};

/// Longer than any record: two paths of maximum length with every byte escaped.
const MAX_RECORD_LINE: u64 = 32 << 10;

/// Reads undo records until the pipe is closed, and then undoes them, unless the last record says that nothing is left.
///
/// The program that [`CpuWatchdog::spawn`](super::CpuWatchdog::spawn) starts calls only this. It starts a session of its own, so that the
/// end of the governor's session does not end it.
pub fn watch(input: impl Read) -> RestoreReport {
    // A session leader cannot start another session and need not.
    let _left = rustix::process::setsid();
    read_and_undo(input)
}

/// Like [`watch`], without a new session.
pub(super) fn read_and_undo(input: impl Read) -> RestoreReport {
    let mut records = UndoRecords::default();
    let mut input = BufReader::new(input);
    let mut line = Vec::new();
    // A read error ends the loop like the end of the stream.
    while let Ok(1..) = (&mut input).take(MAX_RECORD_LINE).read_until(b'\n', &mut line) {
        if let Some(record) = line.strip_suffix(b"\n").and_then(UndoRecord::parse_line) {
            records.apply(record);
        }
        line.clear();
    }
    if records.is_done {
        return RestoreReport::default();
    }
    let restored = undo_all(records.open.into_values().collect());
    if let (Some(file), true) = (records.file, restored.failed.is_empty()) {
        // The next start would find nothing to undo in the file.
        let _removed = undo_journal::remove(&file);
    }
    restored
}
