//! What all tests of the log stand on: a small log, and what was replayed from it.

use std::sync::Arc;

use tidegate_disk::directory::{Files, Simulated};
use tidegate_disk::wal::{Entry, Log, OpenError, Opened, Options};

/// Segments so short that every test has several.
pub(crate) const TINY: Options = Options { segment_bytes: 1024 };

/// What was replayed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Replayed {
    pub(crate) chunks: Vec<Vec<u8>>,
    /// Number, time, payload.
    pub(crate) blocks: Vec<(u64, u64, Vec<u8>)>,
}

impl Replayed {
    /// All payloads of blocks, one after the other.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.blocks.iter().flat_map(|(_, _, payload)| payload.iter().copied()).collect()
    }
}

/// Opens a log and keeps what is replayed.
pub(crate) fn try_open(files: Arc<dyn Files>) -> Result<(Log, Opened, Replayed), OpenError> {
    let mut replayed = Replayed::default();
    let mut keep = |entry: Entry<'_>| {
        match entry {
            Entry::Snapshot(chunk) => replayed.chunks.push(chunk.to_vec()),
            Entry::Block { number, time, payload } => replayed.blocks.push((number, time, payload.to_vec())),
            Entry::Identity { .. } => {}
            Entry::Progress { read, total } => assert!(read <= total, "{read} of {total}"),
        }
        Ok(())
    };
    let (log, opened) = Log::open(files, TINY, &mut keep)?;
    Ok((log, opened, replayed))
}

#[track_caller]
pub(crate) fn open(files: &Arc<Simulated>) -> (Log, Opened, Replayed) {
    try_open(as_files(files)).expect("the log opens")
}

/// Why it does not open.
#[track_caller]
pub(crate) fn refusal(files: &Arc<Simulated>) -> OpenError {
    match try_open(as_files(files)) {
        Ok((_, opened, _)) => panic!("it opened: {opened:?}"),
        Err(error) => error,
    }
}

pub(crate) fn as_files(files: &Arc<Simulated>) -> Arc<dyn Files> {
    Arc::<Simulated>::clone(files)
}

/// Appends, and waits until it is durable: one block.
#[track_caller]
pub(crate) fn commit(log: &Log, payload: &[u8], time: u64) {
    let lsn = log.append(payload, time).expect("the log is sound");
    log.wait_durable(lsn).expect("the log is sound");
}

/// The name of a segment.
pub(crate) fn segment(number: u64) -> String {
    format!("log-{number:016x}")
}

pub(crate) fn first_log() -> String {
    segment(1)
}
