//! What was appended and is not written yet.
//!
//! Appends are copied into **parcels**, each of which becomes one block; its buffer has room for the block's header in front, so nothing is
//! copied again. While the writer makes one parcel durable, the next one fills. The lock is held for as long as a copy takes, and
//! never while the disk works.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate::store::{Lsn, Unavailable};

use super::block;
use super::snapshot;

/// The most bytes that may wait to be written.
pub const MOST_PENDING: usize = 64 << 20;

/// How large a parcel becomes before the next is begun, if segments are not smaller.
const FULL_PARCEL: usize = 4 << 20;

/// How long the writer gathers before it looks whether anybody is still at work, and how often it looks.
const GATHERING: Duration = Duration::from_micros(200);
const LOOKS: u32 = 3;

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
    /// In how many appends.
    pub(super) appends: usize,
}

/// Whether the writer should wait for more appends than there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Worth {
    Nothing,
    Waiting,
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
    pub(super) header: snapshot::Header,
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
    /// How many of those who say so are at work.
    at_work: AtomicIsize,
    says_when_at_work: AtomicBool,
    /// How long the writer gathers before it looks again.
    gathering: Duration,
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
    Asleep,
    /// It waits a little for more appends.
    Gathering,
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
            at_work: AtomicIsize::new(0),
            says_when_at_work: AtomicBool::new(false),
            full_parcel: room.saturating_sub(overhead).clamp(1, FULL_PARCEL),
            gathering: GATHERING,
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
        parcel.appends += 1;
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

    /// How many appends wait to be written.
    pub(super) fn appends(&self) -> usize {
        self.lock().appends()
    }

    /// Somebody who appends is at work.
    pub(super) fn rise(&self) {
        self.at_work.fetch_add(1, Ordering::Relaxed);
        self.says_when_at_work.store(true, Ordering::Relaxed);
    }

    /// Whether anybody ever says that they are at work.
    pub(super) fn says_when_at_work(&self) -> bool {
        self.says_when_at_work.load(Ordering::Relaxed)
    }

    /// Somebody who was at work has nothing to do.
    pub(super) fn rest(&self) {
        self.at_work.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether somebody is at work, as far as they say so.
    pub(super) fn is_at_work(&self) -> bool {
        self.at_work.load(Ordering::Relaxed) > 0
    }

    /// What the writer does next; waits until there is something. If more is worth waiting for, it waits for a little while, as long as somebody
    /// is at work.
    pub(super) fn next(&self, worth: Worth) -> Job {
        let mut pending = self.lock();
        let mut looks = match worth {
            Worth::Nothing => 0,
            Worth::Waiting => LOOKS,
        };
        while looks > 0 && pending.can_gather() {
            pending.writer = Writer::Gathering;
            let gathers = |pending: &mut Pending| pending.writer == Writer::Gathering;
            let waited = self.work.wait_timeout_while(pending, self.gathering, gathers);
            pending = waited.unwrap_or_else(PoisonError::into_inner).0;
            pending.writer = Writer::Busy;
            looks = if self.is_at_work() { looks - 1 } else { 0 };
        }
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

    /// Lets the writer go on, if it sleeps.
    fn wake(&self, mut pending: MutexGuard<'_, Pending>) {
        let is_due = match pending.writer {
            Writer::Busy => false,
            Writer::Asleep => true,
            Writer::Gathering => !pending.can_gather(),
        };
        if is_due {
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

    /// How many appends wait to be written.
    fn appends(&self) -> usize {
        self.queue.iter().map(|job| if let Job::Write(parcel) = job { parcel.appends } else { 0 }).sum()
    }

    /// Whether more would go into the block that is written next, and nobody wants anything else.
    fn can_gather(&self) -> bool {
        let is_alone = matches!(self.queue.front(), None | Some(Job::Write(_)));
        is_alone && self.queue.len() <= 1 && self.closing.is_none()
    }

    /// The parcel into which so many bytes go: the last one, unless it is full.
    fn parcel_for(&mut self, length: usize, full: usize) -> &mut Parcel {
        let fits = matches!(self.queue.back(), Some(Job::Write(parcel)) if parcel.bytes + length <= full);
        if !fits {
            let mut buffer = self.spare.pop().unwrap_or_default();
            buffer.clear();
            buffer.resize(block::HEADER, 0);
            self.queue.push_back(Job::Write(Parcel { buffer, time: 0, end: 0, bytes: 0, appends: 0 }));
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
    use std::sync::{Arc, mpsc};

    const LONG: Duration = Duration::from_secs(3600);

    /// A desk with somebody at work, and a writer that waits for more; where the writer says what it does next.
    fn gathering(look: Duration) -> (Arc<Desk>, mpsc::Receiver<Job>) {
        let desk = Arc::new(Desk { gathering: look, ..Desk::new(1 << 20) });
        desk.rise();
        let (say, said) = mpsc::channel();
        let writer = Arc::clone(&desk);
        let thread = std::thread::spawn(move || say.send(writer.next(Worth::Waiting)));
        while look == LONG && desk.lock().writer != Writer::Gathering {
            assert!(!thread.is_finished(), "it did not wait");
            std::thread::yield_now();
        }
        (desk, said)
    }

    fn appends(job: &Job) -> Option<usize> {
        if let Job::Write(parcel) = job { Some(parcel.appends) } else { None }
    }

    #[test]
    fn what_cannot_wait_is_not_gathered_for() {
        let (desk, said) = gathering(LONG);
        for time in 0..10 {
            desk.append(b"something", time).expect("there is room");
        }
        assert!(said.try_recv().is_err(), "they are gathered");
        let (answer, _) = mpsc::channel();
        desk.roll(answer).expect("the log is sound");
        assert_eq!(appends(&said.recv().expect("it goes on")), Some(10), "another segment is wanted");

        let (desk, said) = gathering(LONG);
        desk.append(&vec![1; desk.full_parcel], 1).expect("there is room");
        desk.append(b"something", 1).expect("there is room");
        assert_eq!(appends(&said.recv().expect("it goes on")), Some(1), "the block is full");

        let (desk, said) = gathering(LONG);
        assert!(desk.close(Closing::Stop));
        assert!(matches!(said.recv(), Ok(Job::Close(Closing::Stop))));
    }

    #[test]
    fn nothing_is_gathered_for_ever() {
        // Somebody is at work all the time.
        let (desk, said) = gathering(Duration::from_millis(1));
        desk.append(b"something", 1).expect("there is room");
        assert_eq!(appends(&said.recv().expect("it goes on")), Some(1));
        let (desk, said) = gathering(Duration::from_millis(1));
        desk.rest();
        desk.append(b"something", 1).expect("there is room");
        assert_eq!(appends(&said.recv().expect("it goes on")), Some(1));
    }

    #[test]
    fn where_nothing_is_worth_waiting_for_nobody_waits() {
        let desk = Desk { gathering: LONG, ..Desk::new(1 << 20) };
        desk.rise();
        desk.append(b"something", 1).expect("there is room");
        assert_eq!(appends(&desk.next(Worth::Nothing)), Some(1));
    }
}
