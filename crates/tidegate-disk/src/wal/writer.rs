//! The writer thread, which makes appends durable one block at a time.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::Duration;

use tidegate::store::Unavailable;

use super::WalShared;
use super::active_segment::{ActiveSegment, WriteFailure};
use super::block::{self, BlockKind};
use super::group_commit::{CloseMode, LogHealth, PendingBlock, SegmentRoll, WriterJob, now};
use super::snapshot_file::SnapshotHeader;

/// How long to wait before writing to a full disk again.
const RETRY_FULL_DISK: Duration = Duration::from_millis(500);

/// Starts the writer thread.
pub(super) fn start_writer(shared: Arc<WalShared>, active: ActiveSegment) -> io::Result<JoinHandle<()>> {
    let thread = std::thread::Builder::new().name("tidegate-log".to_owned());
    thread.spawn(move || {
        // If the writer panics, its waiters must not wait forever.
        let reason = "the writer thread panicked".to_owned();
        let mut exit = WriterExit { shared: Arc::clone(&shared), health: LogHealth::Failed { reason } };
        exit.health = LogWriter { shared, active }.run();
    })
}

/// Reports the end of the writer and its reason when dropped.
struct WriterExit {
    shared: Arc<WalShared>,
    health: LogHealth,
}

impl Drop for WriterExit {
    fn drop(&mut self) {
        self.shared.queue.close_writer(self.health.clone());
        if let Some(refusal) = self.health.refusal() {
            self.shared.waiters.fail(refusal);
        }
    }
}

struct LogWriter {
    shared: Arc<WalShared>,
    active: ActiveSegment,
}

impl LogWriter {
    /// Runs jobs until the log is closed or failed. Returns the final health.
    fn run(&mut self) -> LogHealth {
        loop {
            let outcome = match self.shared.queue.next_job() {
                WriterJob::Write(block) => self.write_block(block),
                WriterJob::Roll(answer) => self.roll(&answer),
                WriterJob::Close(CloseMode::Stop) => self.stop(),
                WriterJob::Close(CloseMode::Abandon) => Err(LogHealth::Stopped),
            };
            if let Err(health) = outcome {
                return health;
            }
        }
    }

    /// Makes a block durable, however long the disk is full. An error ends the writer.
    fn write_block(&mut self, mut block: PendingBlock) -> Result<(), LogHealth> {
        let started = now();
        loop {
            match self.active.write_block(&mut block.buffer, BlockKind::Records, block.time) {
                Ok(()) => {
                    let (end, bytes, took) = (block.end, block.bytes, now() - started);
                    self.count_written(block.buffer.len());
                    // Updates the queue first: a caller that learns of the commit finds the log healthy.
                    self.shared.queue.finish_block(block);
                    self.shared.waiters.advance(end);
                    self.shared.queue.delay_commit(bytes, took);
                    return Ok(());
                }
                Err(WriteFailure::Failed(reason)) => return Err(LogHealth::Failed { reason }),
                Err(WriteFailure::Full(reason)) => {
                    let full = LogHealth::Full { reason };
                    let refusal = full.refusal().expect("a full disk refuses");
                    self.shared.queue.set_health(full.clone());
                    self.shared.waiters.fail(refusal);
                    if self.shared.queue.wait_for_close(RETRY_FULL_DISK).is_some() {
                        return self.retry_once(block, full);
                    }
                }
            }
        }
    }

    /// Tries once more when the log is closed on a full disk. On failure the pending data is lost; its
    /// waiters have the error.
    fn retry_once(&mut self, mut block: PendingBlock, full: LogHealth) -> Result<(), LogHealth> {
        self.active.write_block(&mut block.buffer, BlockKind::Records, block.time).map_err(|failure| {
            match failure {
                WriteFailure::Full(_) => full,
                WriteFailure::Failed(reason) => LogHealth::Failed { reason },
            }
        })?;
        self.count_written(block.buffer.len());
        let end = block.end;
        self.shared.queue.finish_block(block);
        self.shared.waiters.advance(end);
        Ok(())
    }

    /// Starts a new segment for a snapshot. If the disk is full, only the snapshot fails.
    fn roll(&mut self, answer: &Sender<Result<SegmentRoll, Unavailable>>) -> Result<(), LogHealth> {
        let rolled = self.active.roll_over(block::EMPTY_BLOCK_BYTES as u64);
        let (reply, outcome) = match rolled {
            Ok(()) => {
                self.count_written(block::EMPTY_BLOCK_BYTES);
                (Ok(self.segment_roll()), Ok(()))
            }
            Err(WriteFailure::Full(reason)) => {
                let refusal = LogHealth::Full { reason }.refusal().expect("a full disk refuses");
                (Err(refusal), Ok(()))
            }
            Err(WriteFailure::Failed(reason)) => {
                let broken = LogHealth::Failed { reason };
                (Err(broken.refusal().expect("a broken one too")), Err(broken))
            }
        };
        // The requester may have gone away.
        let _ = answer.send(reply);
        outcome
    }

    fn segment_roll(&self) -> SegmentRoll {
        let header =
            SnapshotHeader { segment: self.active.segment, link: self.active.link, time: self.active.time };
        SegmentRoll { header, written_bytes: self.shared.written_bytes.load(Ordering::Acquire) }
    }

    fn stop(&mut self) -> Result<(), LogHealth> {
        Err(match self.active.write_marker(BlockKind::Stop) {
            Ok(()) => LogHealth::Stopped,
            Err(WriteFailure::Full(reason)) => LogHealth::Full { reason },
            Err(WriteFailure::Failed(reason)) => LogHealth::Failed { reason },
        })
    }

    fn count_written(&self, bytes: usize) {
        self.shared.written_bytes.fetch_add(bytes as u64, Ordering::AcqRel);
        self.shared.segment.store(self.active.segment, Ordering::Release);
    }
}
