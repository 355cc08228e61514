//! What was appended and is not written yet.
//!
//! Appends are copied into **parcels**, each of which becomes one block; its buffer has room for the block's header in front, so nothing is
//! copied again. While the writer makes one parcel durable, the next one fills. The lock is held for as long as a copy takes, and
//! never while the disk works.
//!
//! A writer that has just written much **rests** before it takes the next parcel: a sync costs the same whatever it makes durable, and under a load like
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
use super::snapshot_file;

/// The most bytes that may wait to be written.
pub const MOST_PENDING: usize = 64 << 20;

/// How large a parcel becomes before the next is begun, if segments are not smaller.
const FULL_PARCEL: usize = 4 << 20;

/// After this much the writer rests,
const MUCH: usize = 6 << 10;
/// until this much waits.
const ENOUGH: usize = 64 << 10;
/// How much longer than it worked it rests, and how long at most.
const REST: u32 = 5;
const LONGEST_REST: Duration = Duration::from_micros(500);

/// How many buffers are kept to be used again, and how large ones.
const SPARE_BUFFERS: usize = 4;
const LARGEST_SPARE: usize = 2 * FULL_PARCEL;

/// Whether the log can be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// It can.
    Sound,
    /// There is no room. Appends are refused until there is; nothing that was durable is harmed.
    Full {
        /// What failed.
        reason: String,
    },
    /// The disk failed. Nothing is written any more until the log is opened again.
    Broken {
        /// What failed.
        reason: String,
    },
    /// It was stopped.
    Stopped,
}

impl Health {
    /// What whoever asks is told.
    pub(super) fn refusal(&self) -> Option<Unavailable> {
        let reason = match self {
            Health::Sound => return None,
            Health::Full { reason } => {
                format!("the disk is full: {reason}; make room, and the log goes on by itself")
            }
            Health::Broken { reason } => {
                format!("the log is out of order: {reason}; check the disk, then restart")
            }
            Health::Stopped => "the log was stopped".to_owned(),
        };
        Some(Unavailable { reason })
    }
}

/// Appends that become one block.
#[derive(Debug)]
pub(super) struct Parcel {
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
pub(super) enum Job {
    Write(Parcel),
    /// Begin another segment, and say which.
    Roll(Sender<Result<Rolled, Unavailable>>),
    /// Nothing is left, and nothing will come.
    Close(Closing),
}

/// Where the log was split for a snapshot.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rolled {
    pub(super) header: snapshot_file::Header,
    /// How many bytes of blocks had been written.
    pub(super) written: u64,
}

/// How the log is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Closing {
    /// By somebody who has said everything.
    Stop,
    /// By being dropped.
    Drop,
}

/// What appenders and the writer share.
#[derive(Debug)]
pub(super) struct Desk {
    pending: Mutex<Pending>,
    work: Condvar,
    tip: AtomicU64,
    /// Whether the log is not sound, to be known without the lock.
    unsound: AtomicBool,
    full_parcel: usize,
}

#[derive(Debug)]
struct Pending {
    queue: VecDeque<Job>,
    /// Bytes in the queue and in the writer's hands.
    bytes: usize,
    tip: u64,
    spare: Vec<Vec<u8>>,
    writer: Writer,
    closing: Option<Closing>,
    health: Health,
}

#[derive(Debug, PartialEq, Eq)]
enum Writer {
    Busy,
    /// Until something is appended.
    Asleep,
    /// Until it is time, or enough was appended.
    Resting,
}

/// How late it is, for how long things take; nothing is decided by it.
#[expect(clippy::disallowed_methods, reason = "how long the disk took, and whether it is time to go on")]
pub(super) fn now() -> Instant {
    Instant::now()
}

/// How long a writer rests who wrote so many bytes and took this long.
fn rest_after(bytes: usize, took: Duration) -> Duration {
    if bytes < MUCH { Duration::ZERO } else { (took * REST).min(LONGEST_REST) }
}

impl Desk {
    /// A desk whose parcels fit into blocks of segments of this length.
    pub(super) fn new(segment_bytes: u64) -> Desk {
        let pending = Pending {
            queue: VecDeque::new(),
            bytes: 0,
            tip: 0,
            spare: Vec::new(),
            writer: Writer::Busy,
            closing: None,
            health: Health::Sound,
        };
        let room = usize::try_from(segment_bytes).unwrap_or(usize::MAX);
        let overhead = super::segment::HEADER + 2 * block::EMPTY;
        Desk {
            pending: Mutex::new(pending),
            work: Condvar::new(),
            tip: AtomicU64::new(0),
            unsound: AtomicBool::new(false),
            full_parcel: room.saturating_sub(overhead).clamp(1, FULL_PARCEL),
        }
    }

    /// Adds a payload; the place in the log after it.
    pub(super) fn append(&self, payload: &[u8], time: u64) -> Result<Lsn, Unavailable> {
        let mut pending = self.lock();
        if let Some(refusal) = pending.refusal() {
            return Err(refusal);
        }
        if pending.bytes + payload.len() > MOST_PENDING {
            let reason = format!("the disk is behind by {} bytes; ask again later", pending.bytes);
            return Err(Unavailable { reason });
        }
        // An empty payload has a place of its own too.
        pending.tip += payload.len().max(1) as u64;
        pending.bytes += payload.len();
        let end = pending.tip;
        let parcel = pending.parcel_for(payload.len(), self.full_parcel);
        parcel.buffer.extend_from_slice(payload);
        parcel.time = parcel.time.max(time);
        parcel.end = end;
        parcel.bytes += payload.len();
        self.tip.store(end, Ordering::Release);
        self.wake(pending);
        Ok(Lsn(end))
    }

    /// Asks for another segment, after everything that was appended so far.
    pub(super) fn roll(&self, answer: Sender<Result<Rolled, Unavailable>>) -> Result<(), Unavailable> {
        let mut pending = self.lock();
        if let Some(refusal) = pending.refusal() {
            return Err(refusal);
        }
        pending.queue.push_back(Job::Roll(answer));
        self.wake(pending);
        Ok(())
    }

    /// Asks the writer to end after what is pending; `false` if that was asked before.
    pub(super) fn close(&self, closing: Closing) -> bool {
        let mut pending = self.lock();
        if pending.closing.is_some() {
            return false;
        }
        pending.closing = Some(closing);
        // Also one that waits for room on the disk.
        pending.writer = Writer::Busy;
        self.work.notify_all();
        true
    }

    /// The end of the log.
    pub(super) fn tip(&self) -> Lsn {
        Lsn(self.tip.load(Ordering::Acquire))
    }

    /// Why appends are refused at present.
    pub(super) fn refusal(&self) -> Option<Unavailable> {
        if self.unsound.load(Ordering::Acquire) { self.lock().refusal() } else { None }
    }

    pub(super) fn health(&self) -> Health {
        self.lock().health.clone()
    }

    /// Lets the writer rest who wrote so many bytes and took this long.
    pub(super) fn rest(&self, bytes: usize, took: Duration) {
        self.rest_until(now() + rest_after(bytes, took));
    }

    fn rest_until(&self, end: Instant) {
        let mut pending = self.lock();
        while pending.closing.is_none() && !pending.has_enough() {
            let left = end.saturating_duration_since(now());
            if left.is_zero() {
                break;
            }
            pending.writer = Writer::Resting;
            pending = self.work.wait_timeout(pending, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        pending.writer = Writer::Busy;
    }

    /// What the writer does next; waits until there is something.
    pub(super) fn next(&self) -> Job {
        let mut pending = self.lock();
        loop {
            if let Some(job) = pending.queue.pop_front() {
                return job;
            }
            if let Some(closing) = pending.closing {
                return Job::Close(closing);
            }
            pending.writer = Writer::Asleep;
            pending = self.work.wait(pending).unwrap_or_else(PoisonError::into_inner);
            pending.writer = Writer::Busy;
        }
    }

    /// A parcel is durable.
    pub(super) fn done(&self, parcel: Parcel) {
        let mut pending = self.lock();
        pending.bytes -= parcel.bytes;
        pending.health = Health::Sound;
        self.unsound.store(false, Ordering::Release);
        if pending.spare.len() < SPARE_BUFFERS && parcel.buffer.capacity() <= LARGEST_SPARE {
            pending.spare.push(parcel.buffer);
        }
    }

    /// Nothing can be written for now.
    pub(super) fn fail(&self, health: Health) {
        self.unsound.store(true, Ordering::Release);
        self.lock().health = health;
    }

    /// The writer ends, and what is pending is let go.
    pub(super) fn end(&self, health: Health) {
        let mut pending = self.lock();
        self.unsound.store(true, Ordering::Release);
        pending.health = health;
        let queue = std::mem::take(&mut pending.queue);
        drop(pending);
        // Whoever waits for another segment sees that nobody will answer.
        drop(queue);
    }

    /// Waits this long, or until the log is closed; whether it was.
    pub(super) fn pause(&self, time: Duration) -> Option<Closing> {
        let pending = self.lock();
        let is_open = |pending: &mut Pending| pending.closing.is_none();
        let waited = self.work.wait_timeout_while(pending, time, is_open);
        waited.unwrap_or_else(PoisonError::into_inner).0.closing
    }

    /// Lets the writer go on, if it sleeps, or rests and has enough to do.
    fn wake(&self, mut pending: MutexGuard<'_, Pending>) {
        let goes_on = match pending.writer {
            Writer::Busy => false,
            Writer::Asleep => true,
            Writer::Resting => pending.has_enough(),
        };
        if goes_on {
            pending.writer = Writer::Busy;
            drop(pending);
            self.work.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pending {
    fn refusal(&self) -> Option<Unavailable> {
        match self.closing {
            Some(_) => Health::Stopped.refusal(),
            None => self.health.refusal(),
        }
    }

    /// Whether the writer is not to rest any more: there is much to write, or something else to do.
    fn has_enough(&self) -> bool {
        match self.queue.front() {
            None => false,
            Some(Job::Write(parcel)) => parcel.bytes >= ENOUGH || self.queue.len() > 1,
            Some(_) => true,
        }
    }

    /// The parcel into which so many bytes go: the last one, unless it is full.
    fn parcel_for(&mut self, length: usize, full: usize) -> &mut Parcel {
        let fits = matches!(self.queue.back(), Some(Job::Write(parcel)) if parcel.bytes + length <= full);
        if !fits {
            let mut buffer = self.spare.pop().unwrap_or_default();
            buffer.clear();
            buffer.resize(block::HEADER, 0);
            self.queue.push_back(Job::Write(Parcel { buffer, time: 0, end: 0, bytes: 0 }));
        }
        match self.queue.back_mut() {
            Some(Job::Write(parcel)) => parcel,
            _ => unreachable!("a parcel is at the back, or was put there just now"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_wrote_little_does_not_rest_and_nobody_rests_long() {
        let micros = Duration::from_micros;
        assert_eq!(rest_after(MUCH - 1, micros(90)), Duration::ZERO);
        assert_eq!(rest_after(MUCH, micros(90)), micros(450));
        assert_eq!(rest_after(MUCH, Duration::from_secs(3)), LONGEST_REST);
    }

    /// Each of these would otherwise wait for an hour.
    #[test]
    fn a_rest_ends_with_enough_to_write_and_with_the_log() {
        let endings: [fn(&Desk) -> bool; 3] = [
            |desk| desk.append(&vec![1; ENOUGH], 1).is_ok(),
            |desk| desk.roll(std::sync::mpsc::channel().0).is_ok(),
            |desk| desk.close(Closing::Stop),
        ];
        for ends in endings {
            let desk = Desk::new(1 << 20);
            std::thread::scope(|scope| {
                let resting = scope.spawn(|| desk.rest_until(now() + Duration::from_secs(3600)));
                while desk.lock().writer != Writer::Resting {
                    std::thread::yield_now();
                }
                desk.append(b"a little", 1).expect("it is sound");
                assert_eq!(desk.lock().writer, Writer::Resting);
                assert!(ends(&desk));
                resting.join().expect("it ends");
            });
        }
    }
}
