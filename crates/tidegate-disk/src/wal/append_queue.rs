//! What was appended and is not written yet.
//!
//! Appends are copied into **parcels**, each of which becomes one block; its buffer has room for the block's header in front, so nothing is
//! copied again. While the writer makes one block durable, the next one fills. The lock is held for as long as a copy takes, and
//! never while the disk works.
//!
//! A writer that has just written much **rests** before it takes the next block: a sync costs the same whatever it makes durable, and under a load like
//! this it takes the processor from those who decide. It rests five times as long as it worked, half a millisecond at most, and until
//! enough has come. After little was written nobody rests, and a lone append is written at once.
//!
//! Refused: to end a rest when nothing is appended any more, or when whoever appends says that they have nothing else to do. For a moment that is so again and
//! again also under the highest load, and the syncs became small again.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tidegate::store::{Lsn, Unavailable};

use super::block;
use super::snapshot_file::SnapshotHeader;

/// The most bytes that may wait to be written.
pub const MAX_PENDING_BYTES: usize = 64 << 20;

/// How large a block becomes before the next is begun, if segments are not smaller.
const MAX_BLOCK_BYTES: usize = 4 << 20;

/// After this much the writer rests,
const DELAY_AFTER_BYTES: usize = 6 << 10;
/// until this much waits.
const DELAY_UNTIL_BYTES: usize = 64 << 10;
/// How much longer than it worked it rests, and how long at most.
const DELAY_FACTOR: u32 = 5;
const MAX_DELAY: Duration = Duration::from_micros(500);

/// How many buffers are kept to be used again, and how large ones.
const MAX_FREE_BUFFERS: usize = 4;
const MAX_FREE_BUFFER_BYTES: usize = 2 * MAX_BLOCK_BYTES;

/// Whether the log can be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogHealth {
    /// It can.
    Healthy,
    /// There is no room. Appends are refused until there is; nothing that was durable is harmed.
    Full {
        /// What failed.
        reason: String,
    },
    /// The disk failed. Nothing is written any more until the log is opened again.
    Failed {
        /// What failed.
        reason: String,
    },
    /// It was stopped.
    Stopped,
}

impl LogHealth {
    /// What whoever asks is told.
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

/// Appends that become one block.
#[derive(Debug)]
pub(super) struct PendingBlock {
    /// Room for the block's header, then what was appended.
    pub(super) buffer: Vec<u8>,
    /// The latest time of them.
    pub(super) time: u64,
    /// The place in the log after the last of them.
    pub(super) end: u64,
    /// How many bytes were appended.
    pub(super) bytes: usize,
}

/// What the writer does next.
#[derive(Debug)]
pub(super) enum WriterJob {
    Write(PendingBlock),
    /// Begin another segment, and say which.
    Roll(Sender<Result<SegmentRoll, Unavailable>>),
    /// Nothing is left, and nothing will come.
    Close(CloseMode),
}

/// Where the log was split for a snapshot.
#[derive(Debug, Clone, Copy)]
pub(super) struct SegmentRoll {
    pub(super) header: SnapshotHeader,
    /// How many bytes of blocks had been written.
    pub(super) written_bytes: u64,
}

/// How the log is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CloseMode {
    /// By somebody who has said everything.
    Stop,
    /// By being dropped.
    Abandon,
}

/// What appenders and the writer share.
#[derive(Debug)]
pub(super) struct AppendQueue {
    state: Mutex<QueueState>,
    changed: Condvar,
    tip: AtomicU64,
    /// Whether the log is not sound, to be known without the lock.
    is_unhealthy: AtomicBool,
    max_block_bytes: usize,
}

#[derive(Debug)]
struct QueueState {
    queue: VecDeque<WriterJob>,
    /// Bytes in the queue and in the writer's hands.
    bytes: usize,
    tip: u64,
    free_buffers: Vec<Vec<u8>>,
    writer: WriterState,
    close_mode: Option<CloseMode>,
    health: LogHealth,
}

#[derive(Debug, PartialEq, Eq)]
enum WriterState {
    Busy,
    /// Until something is appended.
    Idle,
    /// Until it is time, or enough was appended.
    Delaying,
}

/// How late it is, for how long things take; nothing is decided by it.
#[expect(clippy::disallowed_methods, reason = "how long the disk took, and whether it is time to go on")]
pub(super) fn now() -> Instant {
    Instant::now()
}

/// How long a writer rests who wrote so many bytes and took this long.
fn commit_delay(bytes: usize, took: Duration) -> Duration {
    if bytes < DELAY_AFTER_BYTES { Duration::ZERO } else { (took * DELAY_FACTOR).min(MAX_DELAY) }
}

impl AppendQueue {
    /// A queue whose parcels fit into blocks of segments of this length.
    pub(super) fn new(segment_bytes: u64) -> AppendQueue {
        let state = QueueState {
            queue: VecDeque::new(),
            bytes: 0,
            tip: 0,
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
            tip: AtomicU64::new(0),
            is_unhealthy: AtomicBool::new(false),
            max_block_bytes: room.saturating_sub(overhead).clamp(1, MAX_BLOCK_BYTES),
        }
    }

    /// Adds a payload; the place in the log after it.
    pub(super) fn append(&self, payload: &[u8], time: u64) -> Result<Lsn, Unavailable> {
        let mut state = self.lock();
        if let Some(refusal) = state.refusal() {
            return Err(refusal);
        }
        if state.bytes + payload.len() > MAX_PENDING_BYTES {
            let reason = format!("the disk is behind by {} bytes; ask again later", state.bytes);
            return Err(Unavailable { reason });
        }
        // An empty payload has a place of its own too.
        state.tip += payload.len().max(1) as u64;
        state.bytes += payload.len();
        let end = state.tip;
        let block = state.block_for(payload.len(), self.max_block_bytes);
        block.buffer.extend_from_slice(payload);
        block.time = block.time.max(time);
        block.end = end;
        block.bytes += payload.len();
        self.tip.store(end, Ordering::Release);
        self.wake_writer(state);
        Ok(Lsn(end))
    }

    /// Asks for another segment, after everything that was appended so far.
    pub(super) fn roll(&self, answer: Sender<Result<SegmentRoll, Unavailable>>) -> Result<(), Unavailable> {
        let mut state = self.lock();
        if let Some(refusal) = state.refusal() {
            return Err(refusal);
        }
        state.queue.push_back(WriterJob::Roll(answer));
        self.wake_writer(state);
        Ok(())
    }

    /// Asks the writer to end after what is state; `false` if that was asked before.
    pub(super) fn close(&self, close_mode: CloseMode) -> bool {
        let mut state = self.lock();
        if state.close_mode.is_some() {
            return false;
        }
        state.close_mode = Some(close_mode);
        // Also one that waits for room on the disk.
        state.writer = WriterState::Busy;
        self.changed.notify_all();
        true
    }

    /// The end of the log.
    pub(super) fn tip(&self) -> Lsn {
        Lsn(self.tip.load(Ordering::Acquire))
    }

    /// Why appends are refused at present.
    pub(super) fn refusal(&self) -> Option<Unavailable> {
        if self.is_unhealthy.load(Ordering::Acquire) { self.lock().refusal() } else { None }
    }

    pub(super) fn health(&self) -> LogHealth {
        self.lock().health.clone()
    }

    /// Lets the writer rest who wrote so many bytes and took this long.
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

    /// What the writer does next; waits until there is something.
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

    /// A block is durable.
    pub(super) fn finish_block(&self, block: PendingBlock) {
        let mut state = self.lock();
        state.bytes -= block.bytes;
        state.health = LogHealth::Healthy;
        self.is_unhealthy.store(false, Ordering::Release);
        if state.free_buffers.len() < MAX_FREE_BUFFERS && block.buffer.capacity() <= MAX_FREE_BUFFER_BYTES {
            state.free_buffers.push(block.buffer);
        }
    }

    /// Nothing can be written for now.
    pub(super) fn set_health(&self, health: LogHealth) {
        self.is_unhealthy.store(true, Ordering::Release);
        self.lock().health = health;
    }

    /// The writer ends, and what is state is let go.
    pub(super) fn close_writer(&self, health: LogHealth) {
        let mut state = self.lock();
        self.is_unhealthy.store(true, Ordering::Release);
        state.health = health;
        let queue = std::mem::take(&mut state.queue);
        drop(state);
        // Whoever waits for another segment sees that nobody will answer.
        drop(queue);
    }

    /// Waits this long, or until the log is closed; whether it was.
    pub(super) fn wait_for_close(&self, time: Duration) -> Option<CloseMode> {
        let state = self.lock();
        let is_open = |state: &mut QueueState| state.close_mode.is_none();
        let waited = self.changed.wait_timeout_while(state, time, is_open);
        waited.unwrap_or_else(PoisonError::into_inner).0.close_mode
    }

    /// Lets the writer go on, if it sleeps, or rests and has enough to do.
    fn wake_writer(&self, mut state: MutexGuard<'_, QueueState>) {
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

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueState {
    fn refusal(&self) -> Option<Unavailable> {
        match self.close_mode {
            Some(_) => LogHealth::Stopped.refusal(),
            None => self.health.refusal(),
        }
    }

    /// Whether the writer is not to rest any more: there is much to write, or something else to do.
    fn has_enough_to_write(&self) -> bool {
        match self.queue.front() {
            None => false,
            Some(WriterJob::Write(block)) => block.bytes >= DELAY_UNTIL_BYTES || self.queue.len() > 1,
            Some(_) => true,
        }
    }

    /// The block into which so many bytes go: the last one, unless it is full.
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
    fn who_wrote_little_does_not_rest_and_nobody_rests_long() {
        let micros = Duration::from_micros;
        assert_eq!(commit_delay(DELAY_AFTER_BYTES - 1, micros(90)), Duration::ZERO);
        assert_eq!(commit_delay(DELAY_AFTER_BYTES, micros(90)), micros(450));
        assert_eq!(commit_delay(DELAY_AFTER_BYTES, Duration::from_secs(3)), MAX_DELAY);
    }

    /// Each of these would otherwise wait for an hour.
    #[test]
    fn a_rest_ends_with_enough_to_write_and_with_the_log() {
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
