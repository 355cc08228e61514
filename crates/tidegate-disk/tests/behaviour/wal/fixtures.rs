//! Helpers of the log tests: a small log and its replayed content.

use std::sync::Arc;

use tidegate_disk::directory::{Directory, SimulatedDirectory};
use tidegate_disk::wal::{LogOptions, OpenError, OpenSummary, ReplayEntry, WriteAheadLog};

/// Segments so short that every test has several.
pub(crate) const TINY: LogOptions = LogOptions { segment_bytes: 1024 };

/// The replayed content.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Replayed {
    pub(crate) chunks: Vec<Vec<u8>>,
    /// Number, time, payload.
    pub(crate) blocks: Vec<(u64, u64, Vec<u8>)>,
}

impl Replayed {
    /// The concatenated payloads of all blocks.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.blocks.iter().flat_map(|(_, _, payload)| payload.iter().copied()).collect()
    }
}

/// Opens a log and returns the replayed content.
pub(crate) fn try_open(
    directory: Arc<dyn Directory>,
) -> Result<(WriteAheadLog, OpenSummary, Replayed), OpenError> {
    let mut replayed = Replayed::default();
    let mut keep = |entry: ReplayEntry<'_>| {
        match entry {
            ReplayEntry::Snapshot(chunk) => replayed.chunks.push(chunk.to_vec()),
            ReplayEntry::Block { number, time, payload } => {
                replayed.blocks.push((number, time, payload.to_vec()));
            }
            ReplayEntry::Identity { .. } => {}
            ReplayEntry::Progress { read, total } => assert!(read <= total, "{read} of {total}"),
        }
        Ok(())
    };
    let (log, opened) = WriteAheadLog::open(directory, TINY, &mut keep)?;
    Ok((log, opened, replayed))
}

#[track_caller]
pub(crate) fn open(directory: &Arc<SimulatedDirectory>) -> (WriteAheadLog, OpenSummary, Replayed) {
    try_open(as_files(directory)).expect("the log opens")
}

/// Opens a log that must fail to open.
#[track_caller]
pub(crate) fn refusal(directory: &Arc<SimulatedDirectory>) -> OpenError {
    match try_open(as_files(directory)) {
        Ok((_, opened, _)) => panic!("it opened: {opened:?}"),
        Err(error) => error,
    }
}

pub(crate) fn as_files(directory: &Arc<SimulatedDirectory>) -> Arc<dyn Directory> {
    Arc::<SimulatedDirectory>::clone(directory)
}

/// Appends one block and waits until it is durable.
#[track_caller]
pub(crate) fn commit(log: &WriteAheadLog, payload: &[u8], time: u64) {
    let lsn = log.append(payload, time).expect("the log is sound");
    log.wait_durable(lsn).expect("the log is sound");
}

/// The file name of a segment.
pub(crate) fn segment(number: u64) -> String {
    format!("log-{number:016x}")
}

pub(crate) fn first_log() -> String {
    segment(1)
}
