//! Group commit: the queue of appends that one sync will make durable together.
//!
//! Appends are copied into pending blocks. The buffer of a pending block has room for the block header in
//! front, so the payload is copied only once. While the writer makes one block durable, the next one fills.
//! The lock is held during a copy and never during disk work.
//!
//! After a large block the writer delays the next commit. A sync costs the same for any amount of data, and
//! under load frequent syncs take CPU time from decisions. The delay is five times the duration of the last
//! commit, at most 0.5 ms, and ends early once 64 KiB are pending. After a block below 6 KiB there is no
//! delay, so a lone append is written at once.
//!
//! Two ways to end the delay earlier were tried and dropped: when appends pause, and when appenders report
//! that they are idle. Both conditions also occur briefly at the highest load, and made the syncs small
//! again.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tidegate::store::{Lsn, Unavailable};

use super::block;
use super::snapshot_file::SnapshotHeader;

/// The maximum number of bytes waiting to be written.
pub const MAX_PENDING_BYTES: usize = 64 << 20;

/// The maximum payload of a block, if segments are not smaller.
const MAX_BLOCK_BYTES: usize = 4 << 20;

/// After a block of this size the writer delays the next commit,
const DELAY_AFTER_BYTES: usize = 6 << 10;
/// until this much is pending.
const DELAY_UNTIL_BYTES: usize = 64 << 10;
/// The delay as a multiple of the last commit's duration, and its maximum.
const DELAY_FACTOR: u32 = 5;
const MAX_DELAY: Duration = Duration::from_micros(500);

/// How many buffers are kept for reuse, and their maximum size.
const MAX_FREE_BUFFERS: usize = 4;
const MAX_FREE_BUFFER_BYTES: usize = 2 * MAX_BLOCK_BYTES;

/// The health of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogHealth {
    /// The log accepts appends.
    Healthy,
    /// The disk is full. The log refuses appends until there is room. Durable data is not affected.
    Full {
        /// The call that failed.
        reason: String,
    },
    /// The disk failed. The log writes nothing until it is opened again.
    Failed {
        /// The call that failed.
        reason: String,
    },
    /// The log was stopped.
    Stopped,
}

impl LogHealth {
    /// The error for callers, or `None` if the log is healthy.
    pub(super) fn refusal(&self) -> Option<Unavailable> {
        let reason = match self {
            LogHealth::Healthy => return None,
            LogHealth::Full { reason } => {
                format!("the disk is full: {reason}; make room, and the log goes on by itself")
            }
            LogHealth::Failed { reason } => {
                format!("the log is out of order: {reason}; check the disk, then restart")
            }
            LogHealth::Stopped => "the log was stopped".to_owned(),
        };
        Some(Unavailable { reason })
    }
}

/// Appends that will form one block.
#[derive(Debug)]
pub(super) struct PendingBlock {
    /// Room for the block header, then the appended bytes.
    pub(super) buffer: Vec<u8>,
    /// The latest time of the appends.
    pub(super) time: u64,
    /// The log position after the last append.
    pub(super) end: u64,
    /// The number of appended bytes.
    pub(super) bytes: usize,
}

/// A job for the writer thread.
#[derive(Debug)]
pub(super) enum WriterJob {
    Write(PendingBlock),
    /// Start a new segment and report where.
    Roll(Sender<Result<SegmentRoll, Unavailable>>),
    /// End: the queue is empty and closed.
    Close(CloseMode),
}

/// The point at which the log was divided for a snapshot.
#[derive(Debug, Clone, Copy)]
pub(super) struct SegmentRoll {
    pub(super) header: SnapshotHeader,
    /// Bytes of blocks written before this point.
    pub(super) written_bytes: u64,
}

/// How the log is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CloseMode {
    /// By a clean stop, which writes a stop block.
    Stop,
    /// By dropping the log.
    Abandon,
}

/// The queue between appenders and the writer thread.
#[derive(Debug)]
pub(super) struct AppendQueue {
    state: Mutex<AppendQueueState>,
    changed: Condvar,
    end: AtomicU64,
    /// Whether the log is not healthy. Read without the lock.
    is_unhealthy: AtomicBool,
    max_block_bytes: usize,
}

#[derive(Debug)]
struct AppendQueueState {
    queue: VecDeque<WriterJob>,
    /// Bytes in the queue and in the block being written.
    bytes: usize,
    end: u64,
    free_buffers: Vec<Vec<u8>>,
    writer: WriterState,
    close_mode: Option<CloseMode>,
    health: LogHealth,
}

#[derive(Debug, PartialEq, Eq)]
enum WriterState {
    Busy,
    /// Waits for an append.
    Idle,
    /// Waits for the end of the commit delay, or for enough data.
    Delaying,
}

/// The current instant, for measuring durations only.
#[expect(clippy::disallowed_methods, reason = "how long the disk took, and whether it is time to go on")]
pub(super) fn now() -> Instant {
    Instant::now()
}

/// The delay after a commit of `bytes` bytes that took `took`.
fn commit_delay(bytes: usize, took: Duration) -> Duration {
    if bytes < DELAY_AFTER_BYTES { Duration::ZERO } else { (took * DELAY_FACTOR).min(MAX_DELAY) }
}

impl AppendQueue {
    /// Creates a queue whose blocks fit into segments of this length.
    pub(super) fn new(segment_bytes: u64) -> AppendQueue {
        let state = AppendQueueState {
            queue: VecDeque::new(),
            bytes: 0,
            end: 0,
            free_buffers: Vec::new(),
            writer: WriterState::Busy,
            close_mode: None,
            health: LogHealth::Healthy,
        };
        let room = usize::try_from(segment_bytes).unwrap_or(usize::MAX);
        let overhead = super::segment::HEADER_BYTES + 2 * block::EMPTY_BLOCK_BYTES;
        AppendQueue {
            state: Mutex::new(state),
            changed: Condvar::new(),
            end: AtomicU64::new(0),
            is_unhealthy: AtomicBool::new(false),
            max_block_bytes: room.saturating_sub(overhead).clamp(1, MAX_BLOCK_BYTES),
        }
    }

    /// Appends a payload and returns the log position after it.
    pub(super) fn append(&self, payload: &[u8], time: u64) -> Result<Lsn, Unavailable> {
        let mut state = self.lock();
        if let Some(refusal) = state.refusal() {
            return Err(refusal);
        }
        if state.bytes + payload.len() > MAX_PENDING_BYTES {
            let reason = format!("the disk is behind by {} bytes; ask again later", state.bytes);
            return Err(Unavailable { reason });
        }
        // An empty payload also gets a position of its own.
        state.end += payload.len().max(1) as u64;
        state.bytes += payload.len();
        let end = state.end;
        let block = state.block_for(payload.len(), self.max_block_bytes);
        block.buffer.extend_from_slice(payload);
        block.time = block.time.max(time);
        block.end = end;
        block.bytes += payload.len();
        self.end.store(end, Ordering::Release);
        self.wake_writer(state);
        Ok(Lsn(end))
    }

    /// Requests a new segment after everything appended so far.
    pub(super) fn roll(&self, answer: Sender<Result<SegmentRoll, Unavailable>>) -> Result<(), Unavailable> {
        let mut state = self.lock();
        if let Some(refusal) = state.refusal() {
            return Err(refusal);
        }
        state.queue.push_back(WriterJob::Roll(answer));
        self.wake_writer(state);
        Ok(())
    }

    /// Asks the writer to end after the pending work. Returns `false` if that was requested before.
    pub(super) fn close(&self, close_mode: CloseMode) -> bool {
        let mut state = self.lock();
        if state.close_mode.is_some() {
            return false;
        }
        state.close_mode = Some(close_mode);
        // This also wakes a writer that waits for room on the disk.
        state.writer = WriterState::Busy;
        self.changed.notify_all();
        true
    }

    /// The log position after the last append.
    pub(super) fn log_end(&self) -> Lsn {
        Lsn(self.end.load(Ordering::Acquire))
    }

    /// The reason why appends are refused at present, or `None`.
    pub(super) fn refusal(&self) -> Option<Unavailable> {
        if self.is_unhealthy.load(Ordering::Acquire) { self.lock().refusal() } else { None }
    }

    pub(super) fn health(&self) -> LogHealth {
        self.lock().health.clone()
    }

    /// Delays the writer after a commit of `bytes` bytes that took `took`.
    pub(super) fn delay_commit(&self, bytes: usize, took: Duration) {
        self.delay_until(now() + commit_delay(bytes, took));
    }

    fn delay_until(&self, end: Instant) {
        let mut state = self.lock();
        while state.close_mode.is_none() && !state.has_enough_to_write() {
            let left = end.saturating_duration_since(now());
            if left.is_zero() {
                break;
            }
            state.writer = WriterState::Delaying;
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.writer = WriterState::Busy;
    }

    /// Waits for the next job of the writer.
    pub(super) fn next_job(&self) -> WriterJob {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.queue.pop_front() {
                return job;
            }
            if let Some(close_mode) = state.close_mode {
                return WriterJob::Close(close_mode);
            }
            state.writer = WriterState::Idle;
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.writer = WriterState::Busy;
        }
    }

    /// Records that a block is durable and recycles its buffer.
    pub(super) fn finish_block(&self, block: PendingBlock) {
        let mut state = self.lock();
        state.bytes -= block.bytes;
        state.health = LogHealth::Healthy;
        self.is_unhealthy.store(false, Ordering::Release);
        if state.free_buffers.len() < MAX_FREE_BUFFERS && block.buffer.capacity() <= MAX_FREE_BUFFER_BYTES {
            state.free_buffers.push(block.buffer);
        }
    }

    /// Records that nothing can be written for now.
    pub(super) fn set_health(&self, health: LogHealth) {
        self.is_unhealthy.store(true, Ordering::Release);
        self.lock().health = health;
    }

    /// Records that the writer ended, and drops the pending work.
    pub(super) fn close_writer(&self, health: LogHealth) {
        let mut state = self.lock();
        self.is_unhealthy.store(true, Ordering::Release);
        state.health = health;
        let queue = std::mem::take(&mut state.queue);
        drop(state);
        // Dropping the jobs closes the channels of callers that wait for a new segment.
        drop(queue);
    }

    /// Waits for this duration or until the log is closed. Returns the close mode in the second case.
    pub(super) fn wait_for_close(&self, time: Duration) -> Option<CloseMode> {
        let state = self.lock();
        let is_open = |state: &mut AppendQueueState| state.close_mode.is_none();
        let waited = self.changed.wait_timeout_while(state, time, is_open);
        waited.unwrap_or_else(PoisonError::into_inner).0.close_mode
    }

    /// Wakes the writer if it is idle, or if it delays and enough is pending.
    fn wake_writer(&self, mut state: MutexGuard<'_, AppendQueueState>) {
        let is_needed = match state.writer {
            WriterState::Busy => false,
            WriterState::Idle => true,
            WriterState::Delaying => state.has_enough_to_write(),
        };
        if is_needed {
            state.writer = WriterState::Busy;
            drop(state);
            self.changed.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, AppendQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AppendQueueState {
    fn refusal(&self) -> Option<Unavailable> {
        match self.close_mode {
            Some(_) => LogHealth::Stopped.refusal(),
            None => self.health.refusal(),
        }
    }

    /// Whether the commit delay should end: enough data or another job is pending.
    fn has_enough_to_write(&self) -> bool {
        match self.queue.front() {
            None => false,
            Some(WriterJob::Write(block)) => block.bytes >= DELAY_UNTIL_BYTES || self.queue.len() > 1,
            Some(_) => true,
        }
    }

    /// The block that receives `length` more bytes: the last one, unless it is full.
    fn block_for(&mut self, length: usize, full: usize) -> &mut PendingBlock {
        let fits = matches!(self.queue.back(), Some(WriterJob::Write(block)) if block.bytes + length <= full);
        if !fits {
            let mut buffer = self.free_buffers.pop().unwrap_or_default();
            buffer.clear();
            buffer.resize(block::HEADER_BYTES, 0);
            self.queue.push_back(WriterJob::Write(PendingBlock { buffer, time: 0, end: 0, bytes: 0 }));
        }
        match self.queue.back_mut() {
            Some(WriterJob::Write(block)) => block,
            _ => unreachable!("a block is at the back, or was put there just now"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commit_delay_is_zero_for_small_blocks_and_bounded() {
        let micros = Duration::from_micros;
        assert_eq!(commit_delay(DELAY_AFTER_BYTES - 1, micros(90)), Duration::ZERO);
        assert_eq!(commit_delay(DELAY_AFTER_BYTES, micros(90)), micros(450));
        assert_eq!(commit_delay(DELAY_AFTER_BYTES, Duration::from_secs(3)), MAX_DELAY);
    }

    /// Without an early end, each case would wait for an hour.
    #[test]
    fn commit_delay_ends_with_enough_data_or_close() {
        let endings: [fn(&AppendQueue) -> bool; 3] = [
            |queue| queue.append(&vec![1; DELAY_UNTIL_BYTES], 1).is_ok(),
            |queue| queue.roll(std::sync::mpsc::channel().0).is_ok(),
            |queue| queue.close(CloseMode::Stop),
        ];
        for ends in endings {
            let queue = AppendQueue::new(1 << 20);
            std::thread::scope(|scope| {
                let resting = scope.spawn(|| queue.delay_until(now() + Duration::from_secs(3600)));
                while queue.lock().writer != WriterState::Delaying {
                    std::thread::yield_now();
                }
                queue.append(b"a little", 1).expect("it is sound");
                assert_eq!(queue.lock().writer, WriterState::Delaying);
                assert!(ends(&queue));
                resting.join().expect("it ends");
            });
        }
    }
}
