//! A write-ahead log of opaque bytes in a directory.
//!
//! ```text
//!   append ──▶ parcel ──▶ parcel ──▶ writer: one block, one sync ──▶ durable ──▶ whoever waits
//!   (any thread, a copy)             (one thread, as fast as the disk)
//! ```
//!
//! [`WriteAheadLog::append`] copies bytes and says at which place in the log they end; [`WriteAheadLog::poll_durable`] says when everything up to a place
//! survives a crash. Everything that gathers while the disk works becomes the next block: one sync for as many appends as came in.
//! A lone append is written at once; after much was written the writer rests for up to half a millisecond, so that the next sync is worth it
//! (`wal/append_queue.rs`).
//!
//! What a log promises:
//!
//! - what was said to be durable is replayed when the log is opened again, in order, and nothing is that was not appended;
//! - a crash at any moment leaves a log that opens, without its torn tail (`wal/block.rs` says what that is);
//! - anything else that is missing or changed is refused by name. A shorter history would sell again what was sold.
//!
//! An error of the disk poisons the log: nobody knows then what is on it, and a sync that is tried again says yes to what the first one lost. A
//! disk that is full does not: appends are refused until there is room, and the log goes on by itself.
//!
//! A [`WriteAheadLog::snapshot`] stands for everything before it. It first_segment a segment, lets somebody write what they know into a file of its own, and
//! removes what it supersedes once that file is durable.
//!
//! Refused: records. What the bytes mean is not the log's business; it only keeps each append whole within one block. Refused: more than
//! one block on its way to the disk. It would make torn tails longer, and damage harder to tell from them.

mod active_segment;
mod append_queue;
mod backup;
mod block;
mod durability_waiters;
mod encoding;
mod error;
mod file_names;
mod identity;
mod inspector;
mod reader;
mod recovery;
mod segment;
mod snapshot_file;
mod snapshotter;
mod writer;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::thread::JoinHandle;

use tidegate::store::{Lsn, Unavailable};

use crate::directory::{Directory, DirectoryLock};
use append_queue::{AppendQueue, CloseMode};
use durability_waiters::DurabilityWaiters;

pub use append_queue::{LogHealth, MAX_PENDING_BYTES};
pub use backup::{Backup, BackupError, backup};
pub use block::BlockKind;
pub use durability_waiters::MAX_WAITERS;
pub use error::{Damage, OpenError};
pub use inspector::{InspectedItem, InspectionReport, LogProblem, LogTail, MAX_PROBLEMS, inspect, verify};
pub use snapshot_file::{MAX_CHUNK_BYTES, SnapshotWriter};
pub use snapshotter::SnapshotError;

/// How long a segment is, if nobody says otherwise.
pub const SEGMENT_BYTES: u64 = 16 << 20;

/// The shortest segment there is.
pub const MIN_SEGMENT_BYTES: u64 = 1 << 10;

/// What can be chosen about a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogOptions {
    /// How long segments are made; at least [`MIN_SEGMENT_BYTES`]. A block that is larger gets a segment of its own.
    pub segment_bytes: u64,
}

impl Default for LogOptions {
    fn default() -> LogOptions {
        LogOptions { segment_bytes: SEGMENT_BYTES }
    }
}

/// Something that is replayed when a log is opened: first the chunks of the snapshot, then blocks, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayEntry<'a> {
    /// Which store it is; told before everything else.
    Identity {
        /// The store's secret, for whoever keys fingerprints.
        secret: [u8; 16],
    },
    /// A payload of the snapshot, as it was put.
    Snapshot(&'a [u8]),
    /// What was appended in one go: one or more payloads, one after the other.
    Block {
        /// Its number in the log.
        number: u64,
        /// The latest time that any appender gave so far; it never goes back.
        time: u64,
        /// Their payloads.
        payload: &'a [u8],
    },
    /// How far reading has come; told at the beginning, after every file, and every few mebibytes of a snapshot.
    Progress {
        /// Bytes that were read.
        read: u64,
        /// Bytes that there are.
        total: u64,
    },
}

/// What was found when a log was opened.
#[derive(Clone, PartialEq, Eq)]
pub struct OpenSummary {
    /// What tells this store from others.
    pub store_id: [u8; 16],
    /// The store's secret, for whoever keys fingerprints.
    pub secret: [u8; 16],
    /// How it was left.
    pub previous_run: PreviousRun,
    /// How many bytes of a torn tail were cut off.
    pub cut_bytes: u64,
    /// The latest time of any block, also of those that a snapshot stands for.
    pub time: u64,
    /// How many bytes were read.
    pub read_bytes: u64,
}

impl fmt::Debug for OpenSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the secret.
        f.debug_struct("OpenSummary")
            .field("store_id", &self.store_id)
            .field("previous_run", &self.previous_run)
            .field("cut_bytes", &self.cut_bytes)
            .field("time", &self.time)
            .field("read_bytes", &self.read_bytes)
            .finish_non_exhaustive()
    }
}

/// How a log was left by whoever had it open before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PreviousRun {
    /// It is new.
    Created,
    /// Everything was written and said.
    Stopped,
    /// It ended without [`WriteAheadLog::stop`].
    Crashed,
}

/// A log that is open. One process at a time has it.
pub struct WriteAheadLog {
    shared: Arc<LogShared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    snapshot_lock: Mutex<()>,
    directory: Arc<dyn Directory>,
    store: encoding::StoreId,
    directory_lock: Mutex<Option<Box<dyn DirectoryLock>>>,
}

/// What the log's users share with its writer.
#[derive(Debug)]
struct LogShared {
    queue: AppendQueue,
    waiters: DurabilityWaiters,
    /// Bytes of blocks that were written since the log was opened, and those that were read.
    written_bytes: AtomicU64,
    /// How many of them the snapshot stands for.
    superseded_bytes: AtomicU64,
    /// The segment that is written, and the first that is read when the log is opened.
    segment: AtomicU64,
    first_segment: AtomicU64,
}

impl fmt::Debug for WriteAheadLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteAheadLog").field("shared", &self.shared).finish_non_exhaustive()
    }
}

impl WriteAheadLog {
    /// Opens the log in a directory, or makes a new one in an empty directory, and replays what is in it.
    ///
    /// What `replay` says against an entry ends the opening with [`OpenError::Rejected`].
    pub fn open(
        directory: Arc<dyn Directory>,
        options: LogOptions,
        replay: &mut dyn FnMut(ReplayEntry<'_>) -> Result<(), String>,
    ) -> Result<(WriteAheadLog, OpenSummary), OpenError> {
        let recovered = recovery::open_log(Arc::clone(&directory), options, replay)?;
        let opened = OpenSummary {
            store_id: recovered.identity.store,
            secret: recovered.identity.secret,
            previous_run: recovered.previous_run,
            cut_bytes: recovered.cut_bytes,
            time: recovered.active.time,
            read_bytes: recovered.read_bytes,
        };
        let shared = Arc::new(LogShared {
            queue: AppendQueue::new(options.segment_bytes.max(MIN_SEGMENT_BYTES)),
            waiters: DurabilityWaiters::new(),
            written_bytes: AtomicU64::new(recovered.block_bytes),
            superseded_bytes: AtomicU64::new(0),
            segment: AtomicU64::new(recovered.active.segment),
            first_segment: AtomicU64::new(recovered.first_segment),
        });
        let thread = writer::start_writer(Arc::clone(&shared), recovered.active)
            .map_err(|error| OpenError::Disk { file: directory.location(), error })?;
        let log = WriteAheadLog {
            shared,
            thread: Mutex::new(Some(thread)),
            snapshot_lock: Mutex::new(()),
            directory,
            store: opened.store_id,
            directory_lock: Mutex::new(Some(recovered.directory_lock)),
        };
        Ok((log, opened))
    }

    /// Adds bytes to the log; the place up to which it must be durable for them to survive. Does not wait for the disk.
    ///
    /// An error means that nothing was added: the log is full, out of order or stopped, or more than [`MAX_PENDING_BYTES`] bytes wait.
    pub fn append(&self, payload: &[u8], time: u64) -> Result<Lsn, Unavailable> {
        self.shared.queue.append(payload, time)
    }

    /// The place after everything that was appended. Places are counted from when the log was opened.
    pub fn tip(&self) -> Lsn {
        self.shared.queue.tip()
    }

    /// The place up to which everything is durable.
    pub fn durable(&self) -> Lsn {
        Lsn(self.shared.waiters.durable())
    }

    /// Whether everything up to this place is durable; if not yet, the task is woken when that changes.
    ///
    /// An error means that nobody can count on it: the disk failed, or is full. In the second case it may still be written when there is room.
    pub fn poll_durable(&self, lsn: Lsn, context: &mut Context<'_>) -> Poll<Result<(), Unavailable>> {
        self.shared.waiters.poll(lsn, context)
    }

    /// Waits until everything up to this place is durable.
    pub fn wait_durable(&self, lsn: Lsn) -> Result<(), Unavailable> {
        self.shared.waiters.wait(lsn)
    }

    /// Why appends are refused at present; `None` if they are not. It costs next to nothing to ask.
    pub fn refusal(&self) -> Option<Unavailable> {
        self.shared.queue.refusal()
    }

    /// Whether the log can be written.
    pub fn health(&self) -> LogHealth {
        self.shared.queue.health()
    }

    /// How many bytes of blocks would be replayed on top of the newest snapshot.
    pub fn bytes_since_snapshot(&self) -> u64 {
        let superseded = self.shared.superseded_bytes.load(Ordering::Acquire);
        self.shared.written_bytes.load(Ordering::Acquire).saturating_sub(superseded)
    }

    /// How many segments would be.
    pub fn segments(&self) -> u64 {
        let first_segment = self.shared.first_segment.load(Ordering::Acquire);
        (self.shared.segment.load(Ordering::Acquire) + 1).saturating_sub(first_segment)
    }

    /// Writes everything that is pending, and that this was all; then the directory is free for others. Appends are refused from now on.
    /// Stopping again changes nothing.
    pub fn stop(&self) -> Result<(), Unavailable> {
        self.close(CloseMode::Stop);
        match self.health() {
            LogHealth::Stopped | LogHealth::Healthy => Ok(()),
            health => Err(health.refusal().expect("neither sound nor stopped")),
        }
    }

    fn close(&self, mode: CloseMode) {
        // A snapshot that is being taken still needs the directory for itself.
        let _none = self.snapshot_lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.shared.queue.close(mode);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // The writer does not panic; if it did, nothing more is written, and that is known.
            let _ = thread.join();
        }
        self.directory_lock.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl Drop for WriteAheadLog {
    fn drop(&mut self) {
        self.close(CloseMode::Abandon);
    }
}
