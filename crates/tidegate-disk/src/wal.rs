//! A write-ahead log (WAL) of opaque bytes in a directory.
//!
//! ```text
//!   append ──▶ queue of pending blocks ──▶ writer thread: one block, one sync ──▶ durable ──▶ waiters wake
//!   (any thread, copies the bytes)         (as fast as the disk allows)
//! ```
//!
//! [`WriteAheadLog::append`] copies bytes and returns the log position (LSN) at which they end.
//! [`WriteAheadLog::poll_durable`] reports when everything up to a position survives a crash. Appends that
//! arrive while the disk works form the next block, so one sync commits all of them (group commit). A lone
//! append is written at once. After a large block the writer delays the next commit by up to half a
//! millisecond (`wal/group_commit.rs`).
//!
//! Guarantees:
//!
//! - Opening the log replays everything that was reported durable, in order, and nothing that was not
//!   appended.
//! - After a crash at any moment the log opens, without its torn tail (`wal/block.rs` defines torn).
//! - Any other missing or changed byte is an error that names the file. A shorter history would grant units
//!   twice.
//!
//! A disk error makes the log unusable until it is opened again. After a failed sync the state of the disk is
//! unknown, and a repeated sync succeeds without writing what the first one lost. A full disk is different:
//! the log refuses appends until there is room and then continues without a restart.
//!
//! [`WriteAheadLog::snapshot`] replaces everything before it. It starts a new segment, lets the caller write
//! its state into a snapshot file, makes that file durable, and then removes the files it supersedes.
//!
//! Two alternatives are not used. The log does not know records: it only keeps each append whole within one
//! block. It writes one block at a time: several blocks in flight make torn tails longer and harder to tell
//! from damage.

mod active_segment;
mod backup;
mod block;
mod codec;
mod durability_waiters;
mod error;
mod file_names;
mod group_commit;
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
use durability_waiters::DurabilityWaiters;
use group_commit::{AppendQueue, CloseMode};

pub use backup::{Backup, BackupError, backup};
pub use block::BlockKind;
pub use durability_waiters::MAX_WAITERS;
pub use error::{Damage, OpenError};
pub use group_commit::{LogHealth, MAX_PENDING_BYTES};
pub use inspector::{InspectedItem, InspectionReport, LogProblem, LogTail, MAX_PROBLEMS, inspect, verify};
pub use snapshot_file::{MAX_CHUNK_BYTES, SnapshotWriter};
pub use snapshotter::SnapshotError;

/// The default length of a segment.
pub const SEGMENT_BYTES: u64 = 16 << 20;

/// The minimum length of a segment.
pub const MIN_SEGMENT_BYTES: u64 = 1 << 10;

/// Options of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogOptions {
    /// The length of a new segment, at least [`MIN_SEGMENT_BYTES`]. A larger block gets a segment of its own.
    pub segment_bytes: u64,
}

impl Default for LogOptions {
    fn default() -> LogOptions {
        LogOptions { segment_bytes: SEGMENT_BYTES }
    }
}

/// An item that opening the log replays: first the chunks of the snapshot, then the blocks in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayEntry<'a> {
    /// The identity of the store. It precedes all other items.
    Identity {
        /// The secret that keys the fingerprints of keys.
        secret: [u8; 16],
    },
    /// The payload of one snapshot chunk.
    Snapshot(&'a [u8]),
    /// The payload of one block: one or more appends, concatenated.
    Block {
        /// The number of the block in the log.
        number: u64,
        /// The latest time that any appender passed so far. It never decreases.
        time: u64,
        /// The appended bytes.
        payload: &'a [u8],
    },
    /// The progress of reading. It is reported at the start, after every file, and every 4 MiB of a snapshot.
    Progress {
        /// Bytes read so far.
        read: u64,
        /// Bytes to read in total.
        total: u64,
    },
}

/// The result of opening a log.
#[derive(Clone, PartialEq, Eq)]
pub struct OpenSummary {
    /// The identifier of the store.
    pub store_id: [u8; 16],
    /// The secret that keys the fingerprints of keys.
    pub secret: [u8; 16],
    /// How the previous process left the log.
    pub previous_run: PreviousRun,
    /// The length of the torn tail that was cut off.
    pub cut_bytes: u64,
    /// The latest time of any block, including blocks that a snapshot replaced.
    pub time: u64,
    /// The number of bytes read.
    pub read_bytes: u64,
}

impl fmt::Debug for OpenSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Leaves out the secret.
        f.debug_struct("OpenSummary")
            .field("store_id", &self.store_id)
            .field("previous_run", &self.previous_run)
            .field("cut_bytes", &self.cut_bytes)
            .field("time", &self.time)
            .field("read_bytes", &self.read_bytes)
            .finish_non_exhaustive()
    }
}

/// How the previous process left the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PreviousRun {
    /// There was none: the log is new.
    Created,
    /// It called [`WriteAheadLog::stop`], which wrote everything.
    Stopped,
    /// It ended without [`WriteAheadLog::stop`].
    Crashed,
}

/// An open log. Only one process at a time can open a directory.
pub struct WriteAheadLog {
    shared: Arc<WalShared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    snapshot_lock: Mutex<()>,
    directory: Arc<dyn Directory>,
    store: codec::StoreId,
    directory_lock: Mutex<Option<Box<dyn DirectoryLock>>>,
}

/// State shared by the log's users and its writer thread.
#[derive(Debug)]
struct WalShared {
    queue: AppendQueue,
    waiters: DurabilityWaiters,
    /// Bytes of blocks in the log: those that were read and those written since.
    written_bytes: AtomicU64,
    /// The part of `written_bytes` that the newest snapshot replaces.
    superseded_bytes: AtomicU64,
    /// The active segment, and the first segment that opening reads.
    segment: AtomicU64,
    first_segment: AtomicU64,
}

impl fmt::Debug for WriteAheadLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteAheadLog").field("shared", &self.shared).finish_non_exhaustive()
    }
}

impl WriteAheadLog {
    /// Opens the log in a directory and replays its content. An empty directory becomes a new log.
    ///
    /// If `replay` returns an error, opening fails with [`OpenError::Rejected`].
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
        let shared = Arc::new(WalShared {
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

    /// Appends bytes and returns the position up to which the log must be durable for them to survive. Does
    /// not wait for the disk.
    ///
    /// On an error nothing was appended: the log is full, failed or stopped, or [`MAX_PENDING_BYTES`] bytes
    /// are pending.
    pub fn append(&self, payload: &[u8], time: u64) -> Result<Lsn, Unavailable> {
        self.shared.queue.append(payload, time)
    }

    /// The position after the last append. Positions count from the opening of the log.
    pub fn log_end(&self) -> Lsn {
        self.shared.queue.log_end()
    }

    /// The position up to which the log is durable.
    pub fn durable(&self) -> Lsn {
        Lsn(self.shared.waiters.durable())
    }

    /// Checks whether everything up to a position is durable. If not, the task is woken when that changes.
    ///
    /// An error means that the position may never become durable: the disk failed or is full. A full disk may
    /// still write it later.
    pub fn poll_durable(&self, lsn: Lsn, context: &mut Context<'_>) -> Poll<Result<(), Unavailable>> {
        self.shared.waiters.poll(lsn, context)
    }

    /// Blocks until everything up to a position is durable.
    pub fn wait_durable(&self, lsn: Lsn) -> Result<(), Unavailable> {
        self.shared.waiters.wait(lsn)
    }

    /// The reason why the log refuses appends at present, or `None`. Reads one atomic if the log is healthy.
    pub fn refusal(&self) -> Option<Unavailable> {
        self.shared.queue.refusal()
    }

    /// The health of the log.
    pub fn health(&self) -> LogHealth {
        self.shared.queue.health()
    }

    /// The number of bytes of blocks that opening would replay on top of the newest snapshot.
    pub fn bytes_since_snapshot(&self) -> u64 {
        let superseded = self.shared.superseded_bytes.load(Ordering::Acquire);
        self.shared.written_bytes.load(Ordering::Acquire).saturating_sub(superseded)
    }

    /// The number of segments that opening would replay on top of the newest snapshot.
    pub fn segments(&self) -> u64 {
        let first_segment = self.shared.first_segment.load(Ordering::Acquire);
        (self.shared.segment.load(Ordering::Acquire) + 1).saturating_sub(first_segment)
    }

    /// Writes everything that is pending and a stop block, then releases the directory. Later appends are
    /// refused. A second call has no effect.
    pub fn stop(&self) -> Result<(), Unavailable> {
        self.close(CloseMode::Stop);
        match self.health() {
            LogHealth::Stopped | LogHealth::Healthy => Ok(()),
            health => Err(health.refusal().expect("neither sound nor stopped")),
        }
    }

    fn close(&self, mode: CloseMode) {
        // A snapshot in progress still needs exclusive use of the directory.
        let _none = self.snapshot_lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.shared.queue.close(mode);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // If the writer panicked, its exit guard has recorded the failure.
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
