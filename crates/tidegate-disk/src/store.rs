//! The durable store: a memory store with a write-ahead log. The log is never behind a reported decision.
//!
//! ```text
//!   orders ──▶ memory: decides at once ──▶ notes ──▶ below the ceiling? ──no──▶ log ──durable──▶ reply
//!                                                            └──────────yes────────────────────▶ reply
//! ```
//!
//! Decisions run in memory and never wait. Only the reply may wait, until the log covers at least the usage
//! that the reply reports. A crash can therefore lose units that were covered and not used, and never grants
//! a unit twice.
//!
//! A background thread checks once per second whether the log has grown long, and then writes a snapshot. The
//! snapshot walks through memory while decisions continue. A clean stop ends with a snapshot of the exact
//! counts.

mod background;
mod compact;
mod stop_error;

use std::cell::RefCell;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::task::{Context, Poll};
use std::time::Duration;

use tidegate::catalog::{
    ApplyError, Catalog, Edit, EditOutcome, ExpectedVersion, Origin, PutError, RemovalMode, Watcher,
};
use tidegate::clock::Clock;
use tidegate::reply::{OrderError, Replies};
use tidegate::store::journal::{ChargeNote, Notes};
use tidegate::store::memory::snapshot_walk::Sight;
use tidegate::store::{
    Actual, Atomicity, Capabilities, CompactBatch, CompactReplies, LimitStats, LogSize, Lsn, Reach,
    Settlement, Store, StoreSize, Survival, Unavailable, Usage,
};
use tidegate::store::{MemoryStore, StoreReply};
use tidegate_core::{
    Ask, Durability, Hold, Intent, Item, Law, LeaseId, LeaseTerm, Limit, LimitSpec, Order, Timestamp,
    UsageRecord,
};

use background::BackgroundThread;

use crate::ceilings::{self, LogNeed};
use crate::directory::{Directory, RealDirectory};
use crate::limit_records::{LimitLogState, LimitRecords};
use crate::record::RecordWriter;
use crate::recovery::{self, RecoveryReport};
use crate::wal::{OpenError, SnapshotError, WriteAheadLog};

pub use stop_error::StopError;

/// The default log length after which a snapshot is written.
pub const SNAPSHOT_AFTER: u64 = 64 << 20;

/// Options of a disk store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskOptions {
    /// The maximum memory for rows in bytes.
    pub capacity_bytes: usize,
    /// The length of a log segment in bytes.
    pub segment_bytes: u64,
    /// The minimum log length for a snapshot in bytes. A snapshot also requires a log of twice the length of
    /// the previous snapshot.
    pub snapshot_after: u64,
    /// Whether a background thread takes snapshots.
    pub maintenance: Maintenance,
}

/// How snapshots are triggered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Maintenance {
    /// By a background thread, as the log grows.
    Background,
    /// Only by calls of [`DiskStore::snapshot`] or [`DiskStore::run_maintenance`].
    Manual,
}

impl Default for DiskOptions {
    fn default() -> DiskOptions {
        DiskOptions {
            capacity_bytes: tidegate::store::memory::DEFAULT_CAPACITY,
            segment_bytes: crate::wal::SEGMENT_BYTES,
            snapshot_after: SNAPSHOT_AFTER,
            maintenance: Maintenance::Background,
        }
    }
}

/// A store whose limits and rows survive a crash. Clones share the same store.
#[derive(Clone)]
pub struct DiskStore {
    core: Arc<StoreCore>,
}

struct StoreCore {
    memory: MemoryStore,
    log: Arc<WriteAheadLog>,
    limit_records: Arc<LimitRecords>,
    options: DiskOptions,
    /// The length of the last snapshot.
    snapshot_bytes: AtomicU64,
    /// Whether there was a decision since the last maintenance run.
    has_decided: AtomicBool,
    /// The time of the latest decision.
    latest_decision: AtomicU64,
    /// Whether the final snapshot is being written. From then on every charge gets a record of its own.
    stopping: AtomicBool,
    background: BackgroundThread,
}

impl DiskStore {
    /// Opens the store in a directory, or creates it if the directory is empty.
    pub fn open(
        folder: &Path,
        clock: Arc<dyn Clock>,
        options: DiskOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(DiskStore, RecoveryReport), OpenError> {
        let directory = RealDirectory::create(folder)
            .map_err(|error| OpenError::of_disk(&folder.display().to_string(), error))?;
        DiskStore::open_files(Arc::new(directory), clock, options, progress)
    }

    /// Opens a store in any implementation of [`Directory`].
    #[expect(clippy::needless_pass_by_value, reason = "the store keeps its clock")]
    pub fn open_files(
        directory: Arc<dyn Directory>,
        clock: Arc<dyn Clock>,
        options: DiskOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(DiskStore, RecoveryReport), OpenError> {
        let recovered = recovery::open(directory, &clock, &options, progress)?;
        let recovery::RecoveredStore { memory, log, limit_records, recovery } = recovered;
        let core = Arc::new(StoreCore {
            memory,
            log,
            limit_records,
            options,
            snapshot_bytes: AtomicU64::new(0),
            has_decided: AtomicBool::new(false),
            latest_decision: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            background: BackgroundThread::default(),
        });
        if options.maintenance == Maintenance::Background {
            core.background.start(Arc::downgrade(&core));
        }
        Ok((DiskStore { core }, recovery))
    }

    /// Writes a snapshot of the whole state. It replaces the log before it.
    pub fn snapshot(&self) -> Result<(), SnapshotError> {
        self.core.snapshot(SnapshotCounts::Ceilings)
    }

    /// Writes the exact counts and stops the store. Replies that are reported during the call are covered.
    pub fn stop(&self) -> Result<(), StopError> {
        self.core.background.stop();
        self.core.stopping.store(true, Ordering::Relaxed);
        // A charge that did not see `stopping` precedes this fence, so the walk sees it. Later charges see
        // `stopping`.
        fence(Ordering::SeqCst);
        self.core.snapshot(SnapshotCounts::Exact).map_err(StopError::Snapshot)?;
        self.core.log.stop().map_err(StopError::Log)
    }

    /// Runs the periodic maintenance: logs the time of the latest decision, and takes a snapshot if the log
    /// has grown long. To be called about once per second with [`Maintenance::Manual`].
    pub fn run_maintenance(&self) {
        self.core.run_maintenance();
    }

    /// The number of log bytes to read on top of the newest snapshot.
    pub fn log_bytes(&self) -> u64 {
        self.core.log.bytes_since_snapshot()
    }

    /// The number of log segments on top of the newest snapshot.
    pub fn log_segments(&self) -> u64 {
        self.core.log.segments()
    }

    /// The position up to which the log is durable.
    pub fn durable(&self) -> Lsn {
        self.core.log.durable()
    }

    /// Blocks until everything up to a position is durable.
    pub fn wait_durable(&self, lsn: Lsn) -> Result<(), Unavailable> {
        tidegate::store::wait_durable(self, lsn)
    }
}

/// The counts that a snapshot contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SnapshotCounts {
    /// The ceilings in the log. Decisions continue during the snapshot.
    Ceilings,
    /// The exact usage. No decisions are made without a record of their own.
    Exact,
}

/// The size of a snapshot chunk in bytes.
const CHUNK: usize = 256 << 10;

thread_local! {
    /// Reused per thread to avoid allocations.
    static RECORD_WRITER: RefCell<RecordWriter> = RefCell::default();
}

impl StoreCore {
    /// The reason why the store cannot decide at present, or `None`.
    fn outage(&self) -> Option<Unavailable> {
        self.limit_records.failure().or_else(|| self.log.refusal())
    }

    /// Whether none of these orders needs a record: peeks, and charges of `volatile` limits. They continue
    /// while the log is unavailable, as long as the limits in memory equal those in the log.
    fn needs_no_log(&self, orders: &[Order<'_>]) -> bool {
        let is_volatile = |ask: &Ask<'_>| {
            self.memory.get(ask.limit_id).is_some_and(|limit| {
                // A lease is always logged.
                let leases = |item: &Item| matches!(item.rule().law, Law::Concurrency(_));
                limit.spec().durability == Durability::Volatile && !limit.items().iter().any(leases)
            })
        };
        self.limit_records.failure().is_none()
            && orders.iter().all(|order| {
                let leaves_nothing = order.request_id.is_none() && order.hold == Hold::No;
                order.intent == Intent::Peek || leaves_nothing && order.asks.iter().all(is_volatile)
            })
    }

    /// Edits limits in memory. The journal logs each change meanwhile.
    fn edit_limits<T>(
        &self,
        edit: impl FnOnce(&MemoryStore) -> Result<T, ApplyError>,
    ) -> Result<T, ApplyError> {
        let refuse =
            |why: Unavailable| ApplyError { refused: vec![(String::new(), PutError::Unavailable(why))] };
        self.outage().map_or(Ok(()), |why| Err(refuse(why)))?;
        let edited = edit(&self.memory)?;
        self.limit_records.failure().map_or(Ok(edited), |why| Err(refuse(why)))
    }

    /// Logs the changes of a batch. Returns the position that must be durable before the batch is reported,
    /// if any.
    fn log_notes(&self, notes: &Notes) -> Result<Option<Lsn>, Unavailable> {
        if notes.is_empty() {
            return Ok(None);
        }
        // Pairs with the fence in `stop`: either the walk sees the charge, or this thread sees `stopping`.
        fence(Ordering::SeqCst);
        RECORD_WRITER.with_borrow_mut(|records| {
            records.clear();
            let mut at = Timestamp::EPOCH;
            let mut until = self.log_charges(&notes.charges, records, &mut at)?;
            notes.deeds.iter().for_each(|note| records.lease_note(note));
            if !records.is_empty() {
                until = until.max(Some(self.log.append(records.bytes(), at.ticks())?));
            }
            if at > Timestamp::EPOCH {
                self.latest_decision.fetch_max(at.ticks(), Ordering::Relaxed);
                self.has_decided.store(true, Ordering::Relaxed);
            }
            Ok(until)
        })
    }

    fn log_charges(
        &self,
        charges: &[ChargeNote],
        records: &mut RecordWriter,
        at: &mut Timestamp,
    ) -> Result<Option<Lsn>, Unavailable> {
        let mut until = None;
        let mut last: Option<(u64, Option<Arc<LimitLogState>>)> = None;
        for (index, charge) in charges.iter().enumerate() {
            *at = charge.at.max(*at);
            // For consecutive charges of one row, only the last one is logged.
            if charges.get(index + 1).is_some_and(|later| ceilings::covers(later, charge)) {
                continue;
            }
            let known = last.as_ref().is_some_and(|(generation, _)| *generation == charge.generation);
            if !known {
                last = Some((charge.generation, self.limit_records.get(charge.generation)));
            }
            // A limit that was removed meanwhile needs no record.
            let Some((_, Some(record))) = &last else { continue };
            if let Some(lsn) = self.log_charge(charge, record, records)? {
                until = until.max(Some(lsn));
            }
        }
        Ok(until)
    }

    fn log_charge(
        &self,
        charge: &ChargeNote,
        record: &LimitLogState,
        records: &mut RecordWriter,
    ) -> Result<Option<Lsn>, Unavailable> {
        let is_own = record.limit.version() == charge.version;
        let allowance = record.allowances.get(charge.item).copied().filter(|_| is_own).unwrap_or_default();
        let need = match record.durability() {
            Durability::Volatile => LogNeed::Nothing,
            Durability::Sync => LogNeed::Record,
            Durability::Ceiling if self.stopping.load(Ordering::Relaxed) => LogNeed::Record,
            Durability::Ceiling if ceilings::is_allowed(charge, allowance) => LogNeed::Nothing,
            Durability::Ceiling => self.limit_records.ceilings.log_need(charge, record.epoch(), |trace| {
                record.mark_ceilings();
                let mut records = RecordWriter::default();
                records.row(charge.generation, charge.version, charge.key, &[(charge.item, trace)]);
                self.log.append(records.bytes(), charge.at.ticks()).map(|lsn| lsn.0)
            })?,
        };
        Ok(match need {
            LogNeed::Nothing => Some(record.lsn),
            LogNeed::Wait(lsn) => Some(Lsn(lsn).max(record.lsn)),
            LogNeed::Record => {
                records.row(charge.generation, charge.version, charge.key, &[(charge.item, charge.trace)]);
                None
            }
        })
    }

    /// Wraps a reply so that it waits for the log if necessary.
    fn reply_when_durable<T>(&self, reply: T, until: Option<Lsn>) -> StoreReply<T> {
        match until {
            Some(lsn) if lsn > self.log.durable() => StoreReply::Durable(reply, lsn),
            _ => StoreReply::Now(reply),
        }
    }

    /// Runs an operation that produces notes, and replies when they are durable.
    fn reply_with_notes<T: Send + 'static>(&self, act: impl FnOnce(&mut Notes) -> T) -> StoreReply<T> {
        if let Some(why) = self.outage() {
            return unavailable(why);
        }
        let mut notes = Notes::default();
        let reply = act(&mut notes);
        match self.log_notes(&notes) {
            Ok(until) => self.reply_when_durable(reply, until),
            Err(why) => unavailable(why),
        }
    }

    fn snapshot(&self, counts: SnapshotCounts) -> Result<(), SnapshotError> {
        // A limit change is logged before it is applied. A change between the two steps must not precede the
        // snapshot. The walk waits for such a change too, for another reason; this does not depend on it.
        let hold = || self.memory.unchanging();
        let written = self.log.snapshot_holding(hold, |snapshot| {
            let (mut records, mut last) = (RecordWriter::default(), None);
            self.memory.walk::<SnapshotError>(&mut |sight| {
                self.encode_walked(sight, counts, &mut records, &mut last);
                if records.bytes().len() >= CHUNK {
                    snapshot.put(records.bytes())?;
                    records.clear();
                }
                Ok(())
            })?;
            if !records.is_empty() {
                snapshot.put(records.bytes())?;
            }
            Ok(())
        })?;
        self.snapshot_bytes.store(written, Ordering::Relaxed);
        Ok(())
    }

    /// Encodes a walked item. `last` caches the record of the previous limit: rows are grouped by limit.
    fn encode_walked(
        &self,
        sight: Sight<'_>,
        counts: SnapshotCounts,
        records: &mut RecordWriter,
        last: &mut Option<(u64, Arc<LimitLogState>)>,
    ) {
        match sight {
            Sight::Counters(counters) => records.counters(&counters),
            Sight::Limit { text, retired_until } => {
                let record = self.limit_records.get(text.generation);
                // The exact counts include the usage of the present version that has no record.
                let unwritten = record.as_ref().map_or(&[][..], |record| match counts {
                    SnapshotCounts::Ceilings => &record.unwritten,
                    SnapshotCounts::Exact => &record.allowances,
                });
                records.put(&text, unwritten);
                if let Some(until) = retired_until {
                    records.remove(text.generation, RemovalMode::Retire, until);
                }
            }
            Sight::Ghost { generation, version, traces } => {
                records.assumed_usage(generation, version, traces);
            }
            Sight::Row { generation, limit, key, traces } => {
                if last.as_ref().is_none_or(|(of, _)| *of != generation) {
                    *last = self.limit_records.get(generation).map(|record| (generation, record));
                }
                let Some((_, record)) = last else { return };
                if limit.spec().durability == Durability::Volatile {
                    return;
                }
                if counts == SnapshotCounts::Exact || !record.has_ceilings() {
                    records.row(generation, limit.version(), key, traces);
                    return;
                }
                let raised: Vec<(usize, UsageRecord)> = traces
                    .iter()
                    .map(|&(item, trace)| {
                        let epoch = record.epoch();
                        let ceilings = &self.limit_records.ceilings;
                        (item, ceilings.raised(generation, limit.version(), key, item, trace, epoch))
                    })
                    .collect();
                records.row(generation, limit.version(), key, &raised);
            }
            Sight::Leaf { generation, spread } => records.leaf(generation, spread),
            Sight::LeaseNote(note) => records.lease_note(note),
        }
    }

    /// Runs one round of maintenance.
    fn run_maintenance(&self) {
        if self.has_decided.swap(false, Ordering::Relaxed) && self.outage().is_none() {
            // An empty payload that carries only the time. If it cannot be written, the next charge reports
            // why.
            let _no_matter = self.log.append(&[], self.latest_decision.load(Ordering::Relaxed));
        }
        let long = self.options.snapshot_after.max(2 * self.snapshot_bytes.load(Ordering::Relaxed));
        if self.log.bytes_since_snapshot() >= long && self.outage().is_none() {
            // A failed snapshot is retried in the next round. The log is longer until then.
            let _next_time = self.snapshot(SnapshotCounts::Ceilings);
        }
    }
}

/// A reply that reports the store as unavailable.
fn unavailable<T: Send + 'static>(why: Unavailable) -> StoreReply<T> {
    StoreReply::Later(Box::pin(std::future::ready(Err(why))))
}

impl Store for DiskStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            survival: Survival::Durable,
            reach: Reach::Process,
            atomicity: Atomicity::AllRows,
            tick: self.core.memory.capabilities().tick,
        }
    }

    fn submit(&self, orders: &[Order<'_>], mut buffer: Replies) -> StoreReply<Replies> {
        if let Some(why) = self.core.outage()
            && !self.core.needs_no_log(orders)
        {
            return unavailable(why);
        }
        buffer.record_changes();
        let mut answers = self.core.memory.submit(orders, buffer).now();
        let Some(notes) = answers.notes() else { return StoreReply::Now(answers) };
        let mut until = match self.core.log_notes(notes) {
            Ok(until) => until,
            Err(why) => return unavailable(why),
        };
        // A repeated grant may still be on its way to the disk for another caller.
        if orders.iter().any(|order| order.request_id.is_some() && order.intent == Intent::Acquire) {
            until = until.max(Some(self.core.log.log_end()));
        }
        self.core.reply_when_durable(answers, until)
    }

    fn submit_compact(
        &self,
        bids: &CompactBatch<'_>,
        gists: &mut CompactReplies,
    ) -> Result<Option<Lsn>, Unavailable> {
        self.core.submit_compact(bids, gists)
    }

    fn release(&self, lease: LeaseId) -> StoreReply<bool> {
        self.core.reply_with_notes(|notes| self.core.memory.release_noting(lease, notes))
    }

    fn renew(
        &self,
        lease: LeaseId,
        ttl: Option<Duration>,
    ) -> StoreReply<Result<Option<Timestamp>, OrderError>> {
        self.core.reply_with_notes(|notes| self.core.memory.renew_noting(lease, ttl, notes))
    }

    fn settle(&self, lease: LeaseId, actual: Actual<'_>) -> StoreReply<Result<Settlement, OrderError>> {
        self.core.reply_with_notes(|notes| self.core.memory.settle_noting(lease, actual, notes))
    }

    fn reset(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<(), OrderError>> {
        if let Some(why) = self.core.outage() {
            return unavailable(why);
        }
        let reset = self.core.memory.reset(limit_id, key).now();
        if let Some(why) = self.core.limit_records.failure() {
            return unavailable(why);
        }
        let until = reset.is_ok().then(|| self.core.log.log_end());
        self.core.reply_when_durable(reset, until)
    }

    fn usage(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<Usage, OrderError>> {
        self.core.memory.usage(limit_id, key)
    }

    fn holders(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<Vec<LeaseTerm>, OrderError>> {
        self.core.memory.holders(limit_id, key)
    }

    fn held_until(&self, leases: &[LeaseId]) -> StoreReply<Vec<Option<Timestamp>>> {
        self.core.memory.held_until(leases)
    }

    fn poll_durable(&self, lsn: Lsn, context: &mut Context<'_>) -> Poll<Result<(), Unavailable>> {
        if let Some(why) = self.core.limit_records.failure() {
            return Poll::Ready(Err(why));
        }
        self.core.log.poll_durable(lsn, context)
    }

    fn log_end(&self) -> Option<Lsn> {
        Some(self.core.log.log_end())
    }

    fn outage(&self) -> Option<Unavailable> {
        self.core.outage()
    }

    fn observe(&self, limit_id: &str) -> Option<LimitStats> {
        self.core.memory.observe(limit_id)
    }

    fn size(&self) -> Option<StoreSize> {
        self.core.memory.size()
    }

    fn log_size(&self) -> Option<LogSize> {
        Some(LogSize { bytes: self.log_bytes(), segments: self.log_segments() })
    }
}

impl Catalog for DiskStore {
    fn get(&self, id: &str) -> Option<Arc<Limit>> {
        self.core.memory.get(id)
    }

    fn list(&self) -> Vec<Arc<Limit>> {
        self.core.memory.list()
    }

    fn put(&self, spec: LimitSpec, expect: ExpectedVersion) -> Result<Arc<Limit>, PutError> {
        self.core.outage().map_or(Ok(()), |why| Err(PutError::Unavailable(why)))?;
        let limit = self.core.memory.put(spec, expect)?;
        self.core.limit_records.failure().map_or(Ok(limit), |why| Err(PutError::Unavailable(why)))
    }

    fn remove(&self, id: &str, mode: RemovalMode) -> bool {
        self.core.memory.remove(id, mode)
    }

    fn apply(&self, edits: Vec<Edit>) -> Result<Vec<EditOutcome>, ApplyError> {
        self.core.edit_limits(|memory| memory.apply(edits))
    }

    fn edit(&self, edits: Vec<Edit>, origin: Origin) -> StoreReply<Result<Vec<EditOutcome>, ApplyError>> {
        // The memory store replies at once.
        StoreReply::Now(self.core.edit_limits(|memory| memory.edit(edits, origin).decided()))
    }

    fn watch(&self, watcher: Watcher) {
        self.core.memory.watch(watcher);
    }

    fn applied(&self) -> Vec<String> {
        self.core.memory.applied()
    }
}

impl fmt::Debug for DiskStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskStore").field("log", &self.core.log).finish_non_exhaustive()
    }
}
