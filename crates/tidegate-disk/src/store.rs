//! The durable store: the memory store, and a log that is never behind what was said.
//!
//! ```text
//!   orders ──▶ memory: decides at once ──▶ notes ──▶ ceilings: is it allowed for? ──no──▶ log ──durable──▶ spoken
//!                                                                └──────────yes──────────────────────────▶ spoken
//! ```
//!
//! Decisions are made in memory and never wait. What may have to wait is the reply: until the log says that at least as much was used as
//! the reply gives away. So a crash can lose what was allowed for and not used, and never sells anything twice.
//!
//! A thread of its own, the *keeper*, looks once in a while whether the log has grown long, and writes a snapshot then: a walk through
//! memory, while everybody goes on deciding. A clean stop ends with a snapshot of the true counts.

mod background;
mod compact;

use std::cell::RefCell;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::task::{Context, Poll};
use std::time::Duration;

use tidegate::answer::{OrderError, Replies};
use tidegate::catalog::{
    ApplyError, Catalog, Edit, EditOutcome, ExpectedVersion, Origin, PutError, RemovalMode, Watcher,
};
use tidegate::clock::Clock;
use tidegate::store::memory::journal::{Charge, Notes};
use tidegate::store::memory::walking::Sight;
use tidegate::store::{
    Actual, Atomicity, Capabilities, CompactBatch, CompactReplies, LimitStats, LogSize, Lsn, Reach,
    Settlement, Store, StoreSize, Survival, Unavailable, Usage,
};
use tidegate::{MemoryStore, StoreReply};
use tidegate_core::{
    Ask, Durability, Hold, Intent, Item, Law, LeaseId, LeaseTerm, Limit, LimitSpec, Order, Timestamp,
    UsageRecord,
};

use crate::ceilings::{self, Need};
use crate::directory::{Files, Real};
use crate::limit_records::{Ledger, Ledgers};
use crate::record::Pen;
use crate::recovery::{self, Recovery};
use crate::wal::{Log, OpenError, SnapshotError};

/// How long the log may be before a snapshot takes its place, unless said otherwise.
pub const SNAPSHOT_AFTER: u64 = 64 << 20;

/// How a disk store is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// The most bytes that rows may take in memory.
    pub capacity_bytes: usize,
    /// How long the segments of the log are.
    pub segment_bytes: u64,
    /// The shortest log that a snapshot takes the place of. It also is at least twice as long as the snapshot before.
    pub snapshot_after: u64,
    /// Whether somebody takes snapshots without being asked.
    pub keeper: Keeper,
}

/// Who takes snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeper {
    /// A thread of the store's, as the log grows.
    Thread,
    /// Whoever calls [`DiskStore::snapshot`].
    Caller,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            capacity_bytes: tidegate::store::memory::DEFAULT_CAPACITY,
            segment_bytes: crate::wal::SEGMENT_BYTES,
            snapshot_after: SNAPSHOT_AFTER,
            keeper: Keeper::Thread,
        }
    }
}

/// Limits and rows that survive a crash. Copies are the same store.
#[derive(Clone)]
pub struct DiskStore {
    inner: Arc<Inner>,
}

struct Inner {
    memory: MemoryStore,
    log: Arc<Log>,
    ledgers: Arc<Ledgers>,
    options: Options,
    /// How long the last snapshot was.
    snapshot_bytes: AtomicU64,
    /// Whether something was decided since the keeper looked last.
    decided: AtomicBool,
    /// The instant of the latest decision.
    latest: AtomicU64,
    /// Whether the true counts are being written down. Nothing that is charged from then on may go without a record of its own.
    stopping: AtomicBool,
    keeper: background::Handle,
}

impl DiskStore {
    /// Opens the store in this directory, or makes a new one if there is nothing.
    pub fn open(
        folder: &Path,
        clock: Arc<dyn Clock>,
        options: Options,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(DiskStore, Recovery), OpenError> {
        let files =
            Real::create(folder).map_err(|error| OpenError::of_disk(&folder.display().to_string(), error))?;
        DiskStore::open_files(Arc::new(files), clock, options, progress)
    }

    /// The same for any files.
    #[expect(clippy::needless_pass_by_value, reason = "the store keeps its clock")]
    pub fn open_files(
        files: Arc<dyn Files>,
        clock: Arc<dyn Clock>,
        options: Options,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(DiskStore, Recovery), OpenError> {
        let recovered = recovery::open(files, &clock, &options, progress)?;
        let recovery::Recovered { memory, log, ledgers, recovery } = recovered;
        let inner = Arc::new(Inner {
            memory,
            log,
            ledgers,
            options,
            snapshot_bytes: AtomicU64::new(0),
            decided: AtomicBool::new(false),
            latest: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            keeper: background::Handle::default(),
        });
        if options.keeper == Keeper::Thread {
            inner.keeper.start(Arc::downgrade(&inner));
        }
        Ok((DiskStore { inner }, recovery))
    }

    /// Writes everything that is remembered into a snapshot, which takes the place of the log before it.
    pub fn snapshot(&self) -> Result<(), SnapshotError> {
        self.inner.snapshot(Counts::Ceilings)
    }

    /// Writes the true counts down and ends. Nothing can be decided afterwards; what others are told meanwhile counts.
    pub fn stop(&self) -> Result<(), StopError> {
        self.inner.keeper.end();
        self.inner.stopping.store(true, Ordering::Relaxed);
        // Who charged a row before and did not see this is seen by the walk; who charges one later sees this.
        fence(Ordering::SeqCst);
        self.inner.snapshot(Counts::Truth).map_err(StopError::Snapshot)?;
        self.inner.log.stop().map_err(StopError::Log)
    }

    /// What the keeper does about once a second: writes down how late it is, if something was decided, and a snapshot if the log has grown
    /// long. For those who are the keeper themselves.
    pub fn look_after(&self) {
        self.inner.look_after();
    }

    /// How many bytes of log would be read on top of the newest snapshot.
    pub fn log_bytes(&self) -> u64 {
        self.inner.log.bytes_since_snapshot()
    }

    /// How many files the log is in, on top of the newest snapshot.
    pub fn log_segments(&self) -> u64 {
        self.inner.log.segments()
    }

    /// The place up to which the log is durable.
    pub fn durable(&self) -> Lsn {
        self.inner.log.durable()
    }

    /// Waits until everything up to this place is durable. For those who have no task to wait in.
    pub fn wait_durable(&self, lsn: Lsn) -> Result<(), Unavailable> {
        tidegate::store::wait_durable(self, lsn)
    }
}

/// Why a store did not stop cleanly. What was said before is safe nevertheless: the next start recovers it as after a crash.
#[derive(Debug)]
pub enum StopError {
    /// The true counts could not be written.
    Snapshot(SnapshotError),
    /// The log could not be ended.
    Log(Unavailable),
}

impl fmt::Display for StopError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StopError::Snapshot(error) => write!(f, "the last snapshot was not written: {error}"),
            StopError::Log(error) => write!(f, "the log was not ended: {error}"),
        }
    }
}

impl std::error::Error for StopError {}

/// What a snapshot says of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Counts {
    /// What the log has allowed for: others go on deciding.
    Ceilings,
    /// What was used: nobody does.
    Truth,
}

/// How many bytes of records are put into a snapshot at a time.
const CHUNK: usize = 256 << 10;

thread_local! {
    /// What this thread writes down, kept so that it need not be allocated again.
    static PEN: RefCell<Pen> = RefCell::default();
}

impl Inner {
    /// Why nothing can be decided at present.
    fn trouble(&self) -> Option<Unavailable> {
        self.ledgers.trouble().or_else(|| self.log.refusal())
    }

    /// Whether none of these orders leaves anything to be written down: looks, and charges of what is `volatile`. They go on while the log
    /// cannot be written, as long as the limits in memory are those of the log.
    fn needs_no_log(&self, orders: &[Order<'_>]) -> bool {
        let is_volatile = |ask: &Ask<'_>| {
            self.memory.get(ask.limit_id).is_some_and(|limit| {
                // A lease would be written down, whatever it is of.
                let leases = |item: &Item| matches!(item.rule().law, Law::Concurrency(_));
                limit.spec().durability == Durability::Volatile && !limit.items().iter().any(leases)
            })
        };
        self.ledgers.trouble().is_none()
            && orders.iter().all(|order| {
                let leaves_nothing = order.request_id.is_none() && order.hold == Hold::No;
                order.intent == Intent::Peek || leaves_nothing && order.asks.iter().all(is_volatile)
            })
    }

    /// Edits the limits in memory, of which the log is told meanwhile.
    fn edited<T>(&self, edit: impl FnOnce(&MemoryStore) -> Result<T, ApplyError>) -> Result<T, ApplyError> {
        let refuse =
            |why: Unavailable| ApplyError { refused: vec![(String::new(), PutError::Unavailable(why))] };
        self.trouble().map_or(Ok(()), |why| Err(refuse(why)))?;
        let edited = edit(&self.memory)?;
        self.ledgers.trouble().map_or(Ok(edited), |why| Err(refuse(why)))
    }

    /// Writes down what a batch changed. The place up to which the log must be durable before that is spoken of, if there is one.
    fn write_down(&self, notes: &Notes) -> Result<Option<Lsn>, Unavailable> {
        if notes.is_empty() {
            return Ok(None);
        }
        // What was charged is seen by whoever stops the store, or that they do is seen here.
        fence(Ordering::SeqCst);
        PEN.with_borrow_mut(|pen| {
            pen.clear();
            let mut at = Timestamp::EPOCH;
            let mut until = self.write_charges(&notes.charges, pen, &mut at)?;
            notes.deeds.iter().for_each(|deed| pen.deed(deed));
            if !pen.is_empty() {
                until = until.max(Some(self.log.append(pen.bytes(), at.ticks())?));
            }
            if at > Timestamp::EPOCH {
                self.latest.fetch_max(at.ticks(), Ordering::Relaxed);
                self.decided.store(true, Ordering::Relaxed);
            }
            Ok(until)
        })
    }

    fn write_charges(
        &self,
        charges: &[Charge],
        pen: &mut Pen,
        at: &mut Timestamp,
    ) -> Result<Option<Lsn>, Unavailable> {
        let mut until = None;
        let mut last: Option<(u64, Option<Arc<Ledger>>)> = None;
        for (index, charge) in charges.iter().enumerate() {
            *at = charge.at.max(*at);
            // Of a row that is charged again and again only the last need be written down.
            if charges.get(index + 1).is_some_and(|later| ceilings::covers(later, charge)) {
                continue;
            }
            let known = last.as_ref().is_some_and(|(generation, _)| *generation == charge.generation);
            if !known {
                last = Some((charge.generation, self.ledgers.get(charge.generation)));
            }
            // A limit that is gone by now sells nothing.
            let Some((_, Some(ledger))) = &last else { continue };
            if let Some(lsn) = self.write_charge(charge, ledger, pen)? {
                until = until.max(Some(lsn));
            }
        }
        Ok(until)
    }

    fn write_charge(
        &self,
        charge: &Charge,
        ledger: &Ledger,
        pen: &mut Pen,
    ) -> Result<Option<Lsn>, Unavailable> {
        let is_own = ledger.limit.version() == charge.version;
        let allowance = ledger.allowances.get(charge.item).copied().filter(|_| is_own).unwrap_or_default();
        let need = match ledger.durability() {
            Durability::Volatile => Need::Nothing,
            Durability::Sync => Need::Record,
            Durability::Ceiling if self.stopping.load(Ordering::Relaxed) => Need::Record,
            Durability::Ceiling if ceilings::is_allowed(charge, allowance) => Need::Nothing,
            Durability::Ceiling => self.ledgers.ceilings.need(charge, ledger.epoch(), |trace| {
                ledger.raises();
                let mut pen = Pen::default();
                pen.row(charge.generation, charge.version, charge.key, &[(charge.item, trace)]);
                self.log.append(pen.bytes(), charge.at.ticks()).map(|lsn| lsn.0)
            })?,
        };
        Ok(match need {
            Need::Nothing => Some(ledger.lsn),
            Need::Wait(lsn) => Some(Lsn(lsn).max(ledger.lsn)),
            Need::Record => {
                pen.row(charge.generation, charge.version, charge.key, &[(charge.item, charge.trace)]);
                None
            }
        })
    }

    /// A reply that waits for the log, if it must.
    fn spoken<T>(&self, reply: T, until: Option<Lsn>) -> StoreReply<T> {
        match until {
            Some(lsn) if lsn > self.log.durable() => StoreReply::Durable(reply, lsn),
            _ => StoreReply::Now(reply),
        }
    }

    /// Does something that leaves notes, and says what came of it when they are durable.
    fn noted<T: Send + 'static>(&self, act: impl FnOnce(&mut Notes) -> T) -> StoreReply<T> {
        if let Some(why) = self.trouble() {
            return unavailable(why);
        }
        let mut notes = Notes::default();
        let reply = act(&mut notes);
        match self.write_down(&notes) {
            Ok(until) => self.spoken(reply, until),
            Err(why) => unavailable(why),
        }
    }

    fn snapshot(&self, counts: Counts) -> Result<(), SnapshotError> {
        // Changes of limits are written down before they are made: one that is not made yet must not stand before the snapshot.
        let hold = || self.memory.unchanging();
        let written = self.log.snapshot_while(hold, |snapshot| {
            let (mut pen, mut last) = (Pen::default(), None);
            self.memory.walk::<SnapshotError>(&mut |sight| {
                self.show(sight, counts, &mut pen, &mut last);
                if pen.bytes().len() >= CHUNK {
                    snapshot.put(pen.bytes())?;
                    pen.clear();
                }
                Ok(())
            })?;
            if !pen.is_empty() {
                snapshot.put(pen.bytes())?;
            }
            Ok(())
        })?;
        self.snapshot_bytes.store(written, Ordering::Relaxed);
        Ok(())
    }

    /// Writes down what was seen. `last` is the ledger of the row before: the rows of a limit are seen one after the other.
    fn show(&self, sight: Sight<'_>, counts: Counts, pen: &mut Pen, last: &mut Option<(u64, Arc<Ledger>)>) {
        match sight {
            Sight::Counters(counters) => pen.counters(&counters),
            Sight::Limit { text, retired_until } => {
                let ledger = self.ledgers.get(text.generation);
                // When the truth is written, all of it is.
                let unwritten = ledger.as_ref().map_or(&[][..], |ledger| match counts {
                    Counts::Ceilings => &ledger.unwritten,
                    Counts::Truth => &ledger.allowances,
                });
                pen.put(&text, unwritten);
                if let Some(until) = retired_until {
                    pen.remove(text.generation, RemovalMode::Retire, until);
                }
            }
            Sight::Ghost { generation, version, traces } => pen.ghost(generation, version, traces),
            Sight::Row { generation, limit, key, traces } => {
                if last.as_ref().is_none_or(|(of, _)| *of != generation) {
                    *last = self.ledgers.get(generation).map(|ledger| (generation, ledger));
                }
                let Some((_, ledger)) = last else { return };
                if limit.spec().durability == Durability::Volatile {
                    return;
                }
                if counts == Counts::Truth || !ledger.has_ceilings() {
                    pen.row(generation, limit.version(), key, traces);
                    return;
                }
                let raised: Vec<(usize, UsageRecord)> = traces
                    .iter()
                    .map(|&(item, trace)| {
                        let epoch = ledger.epoch();
                        let ceilings = &self.ledgers.ceilings;
                        (item, ceilings.raised(generation, limit.version(), key, item, trace, epoch))
                    })
                    .collect();
                pen.row(generation, limit.version(), key, &raised);
            }
            Sight::Leaf { generation, spread } => pen.leaf(generation, spread),
            Sight::LeaseNote(deed) => pen.deed(deed),
        }
    }

    /// One round of the keeper's.
    fn look_after(&self) {
        if self.decided.swap(false, Ordering::Relaxed) && self.trouble().is_none() {
            // An empty record: what counts is its time. If it cannot be written, the next charge says why.
            let _no_matter = self.log.append(&[], self.latest.load(Ordering::Relaxed));
        }
        let long = self.options.snapshot_after.max(2 * self.snapshot_bytes.load(Ordering::Relaxed));
        if self.log.bytes_since_snapshot() >= long && self.trouble().is_none() {
            // What is not written now is written in the next round; the log is longer until then.
            let _next_time = self.snapshot(Counts::Ceilings);
        }
    }
}

/// A reply that nobody can give.
fn unavailable<T: Send + 'static>(why: Unavailable) -> StoreReply<T> {
    StoreReply::Later(Box::pin(std::future::ready(Err(why))))
}

impl Store for DiskStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            survival: Survival::Durable,
            reach: Reach::Process,
            atomicity: Atomicity::AllRows,
            tick: self.inner.memory.capabilities().tick,
        }
    }

    fn submit(&self, orders: &[Order<'_>], mut buffer: Replies) -> StoreReply<Replies> {
        if let Some(why) = self.inner.trouble()
            && !self.inner.needs_no_log(orders)
        {
            return unavailable(why);
        }
        buffer.keep_notes();
        let mut answers = self.inner.memory.submit(orders, buffer).now();
        let Some(notes) = answers.notes() else { return StoreReply::Now(answers) };
        let mut until = match self.inner.write_down(notes) {
            Ok(until) => until,
            Err(why) => return unavailable(why),
        };
        // A grant that is told again may be on its way to the disk for somebody else.
        if orders.iter().any(|order| order.request_id.is_some() && order.intent == Intent::Acquire) {
            until = until.max(Some(self.inner.log.tip()));
        }
        self.inner.spoken(answers, until)
    }

    fn bid(&self, bids: &CompactBatch<'_>, gists: &mut CompactReplies) -> Result<Option<Lsn>, Unavailable> {
        self.inner.bid(bids, gists)
    }

    fn release(&self, lease: LeaseId) -> StoreReply<bool> {
        self.inner.noted(|notes| self.inner.memory.release_noting(lease, notes))
    }

    fn renew(
        &self,
        lease: LeaseId,
        ttl: Option<Duration>,
    ) -> StoreReply<Result<Option<Timestamp>, OrderError>> {
        self.inner.noted(|notes| self.inner.memory.renew_noting(lease, ttl, notes))
    }

    fn settle(&self, lease: LeaseId, actual: Actual<'_>) -> StoreReply<Result<Settlement, OrderError>> {
        self.inner.noted(|notes| self.inner.memory.settle_noting(lease, actual, notes))
    }

    fn reset(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<(), OrderError>> {
        if let Some(why) = self.inner.trouble() {
            return unavailable(why);
        }
        let reset = self.inner.memory.reset(limit_id, key).now();
        if let Some(why) = self.inner.ledgers.trouble() {
            return unavailable(why);
        }
        let until = reset.is_ok().then(|| self.inner.log.tip());
        self.inner.spoken(reset, until)
    }

    fn usage(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<Usage, OrderError>> {
        self.inner.memory.usage(limit_id, key)
    }

    fn holders(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<Vec<LeaseTerm>, OrderError>> {
        self.inner.memory.holders(limit_id, key)
    }

    fn held_until(&self, leases: &[LeaseId]) -> StoreReply<Vec<Option<Timestamp>>> {
        self.inner.memory.held_until(leases)
    }

    fn poll_durable(&self, lsn: Lsn, context: &mut Context<'_>) -> Poll<Result<(), Unavailable>> {
        if let Some(why) = self.inner.ledgers.trouble() {
            return Poll::Ready(Err(why));
        }
        self.inner.log.poll_durable(lsn, context)
    }

    fn tip(&self) -> Option<Lsn> {
        Some(self.inner.log.tip())
    }

    fn trouble(&self) -> Option<Unavailable> {
        self.inner.trouble()
    }

    fn observe(&self, limit_id: &str) -> Option<LimitStats> {
        self.inner.memory.observe(limit_id)
    }

    fn extent(&self) -> Option<StoreSize> {
        self.inner.memory.extent()
    }

    fn log_extent(&self) -> Option<LogSize> {
        Some(LogSize { bytes: self.log_bytes(), segments: self.log_segments() })
    }
}

impl Catalog for DiskStore {
    fn get(&self, id: &str) -> Option<Arc<Limit>> {
        self.inner.memory.get(id)
    }

    fn list(&self) -> Vec<Arc<Limit>> {
        self.inner.memory.list()
    }

    fn put(&self, spec: LimitSpec, expect: ExpectedVersion) -> Result<Arc<Limit>, PutError> {
        self.inner.trouble().map_or(Ok(()), |why| Err(PutError::Unavailable(why)))?;
        let limit = self.inner.memory.put(spec, expect)?;
        self.inner.ledgers.trouble().map_or(Ok(limit), |why| Err(PutError::Unavailable(why)))
    }

    fn remove(&self, id: &str, parting: RemovalMode) -> bool {
        self.inner.memory.remove(id, parting)
    }

    fn apply(&self, edits: Vec<Edit>) -> Result<Vec<EditOutcome>, ApplyError> {
        self.inner.edited(|memory| memory.apply(edits))
    }

    fn edit(&self, edits: Vec<Edit>, origin: Origin) -> StoreReply<Result<Vec<EditOutcome>, ApplyError>> {
        // The memory store speaks at once.
        StoreReply::Now(self.inner.edited(|memory| memory.edit(edits, origin).decided()))
    }

    fn watch(&self, watcher: Watcher) {
        self.inner.memory.watch(watcher);
    }

    fn applied(&self) -> Vec<String> {
        self.inner.memory.applied()
    }
}

impl fmt::Debug for DiskStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskStore").field("log", &self.inner.log).finish_non_exhaustive()
    }
}
