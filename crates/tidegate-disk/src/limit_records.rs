//! What the disk store knows of each limit when it logs a charge.
//!
//! A limit record is created for each version of a limit and replaced by the next one. The [`Journal`] is
//! informed of a change before any decision uses it. A charge therefore finds the record of its own version
//! or of a later one. In the second case the charge gets a log record of its own.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use hashbrown::HashMap;
use tidegate::catalog::RemovalMode;
use tidegate::store::journal::{Journal, Tag, Text};
use tidegate::store::{Lsn, Unavailable};
use tidegate_core::{Amount, Durability, Limit, Timestamp};

use crate::ceilings::{self, Ceilings};
use crate::record::RecordWriter;
use crate::wal::WriteAheadLog;

/// The state of one limit.
#[derive(Debug)]
pub(crate) struct LimitLogState {
    pub(crate) limit: Arc<Limit>,
    /// The usage of each item that needs no record in this version.
    pub(crate) allowances: Vec<Amount>,
    /// The usage of each item that keys may have without a record, in this or an earlier version.
    pub(crate) unwritten: Vec<Amount>,
    /// State shared by all versions.
    counters: Arc<LimitCounters>,
    /// The log position of this version. A charge is reported only after it is durable.
    pub(crate) lsn: Lsn,
}

/// State shared by all versions of a limit.
#[derive(Debug, Default)]
struct LimitCounters {
    /// The number of resets.
    epoch: AtomicU64,
    /// Whether a row of the limit ever had a ceiling.
    has_ceilings: AtomicBool,
}

impl LimitLogState {
    pub(crate) fn new(limit: &Arc<Limit>, former: Option<&LimitLogState>, lsn: Lsn) -> LimitLogState {
        let writes_less = limit.spec().durability == Durability::Ceiling;
        let allowances = if writes_less { ceilings::allowances(limit) } else { vec![0; limit.items().len()] };
        let before = |name: &str| {
            let former = former?;
            let (index, _) = former.limit.item_named(name)?;
            former.unwritten.get(index).copied()
        };
        let unwritten = limit
            .items()
            .iter()
            .zip(&allowances)
            .map(|(item, own)| before(item.name()).unwrap_or_default().max(*own))
            .collect();
        let counters = former.map_or_else(Arc::default, |former| Arc::clone(&former.counters));
        LimitLogState { limit: Arc::clone(limit), allowances, unwritten, counters, lsn }
    }

    pub(crate) fn durability(&self) -> Durability {
        self.limit.spec().durability
    }

    /// The number of resets.
    pub(crate) fn epoch(&self) -> u64 {
        self.counters.epoch.load(Ordering::SeqCst)
    }

    /// Whether a row of the limit may have a ceiling. If there is none when a snapshot starts a segment, the
    /// first ceiling is logged after that point.
    pub(crate) fn has_ceilings(&self) -> bool {
        self.counters.has_ceilings.load(Ordering::SeqCst)
    }

    /// Notes that a row is about to get a ceiling. Must be called before the ceiling is logged.
    pub(crate) fn mark_ceilings(&self) {
        if !self.has_ceilings() {
            self.counters.has_ceilings.store(true, Ordering::SeqCst);
        }
    }
}

/// The records of all limits.
pub(crate) struct LimitRecords {
    log: Arc<WriteAheadLog>,
    pub(crate) ceilings: Ceilings,
    by_generation: RwLock<HashMap<u64, Arc<LimitLogState>>>,
    /// The reason why a change of limits could not be logged, if there was one.
    failure: Mutex<Option<Unavailable>>,
    has_failed: AtomicBool,
}

impl LimitRecords {
    pub(crate) fn new(
        log: Arc<WriteAheadLog>,
        limit_records: HashMap<u64, Arc<LimitLogState>>,
    ) -> LimitRecords {
        LimitRecords {
            log,
            ceilings: Ceilings::default(),
            by_generation: RwLock::new(limit_records),
            failure: Mutex::default(),
            has_failed: AtomicBool::new(false),
        }
    }

    pub(crate) fn get(&self, generation: u64) -> Option<Arc<LimitLogState>> {
        let limit_records = self.by_generation.read().unwrap_or_else(PoisonError::into_inner);
        limit_records.get(&generation).map(Arc::clone)
    }

    /// The reason why a change of limits could not be logged, if there was one. Memory is then ahead of the
    /// log, and the store decides nothing until it is opened again.
    pub(crate) fn failure(&self) -> Option<Unavailable> {
        if !self.has_failed.load(Ordering::Acquire) {
            return None;
        }
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn write(&self, at: Timestamp, write: impl FnOnce(&mut RecordWriter)) -> Lsn {
        let mut records = RecordWriter::default();
        write(&mut records);
        self.log.append(records.bytes(), at.ticks()).unwrap_or_else(|unavailable| {
            *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(unavailable);
            self.has_failed.store(true, Ordering::Release);
            NEVER_DURABLE
        })
    }
}

/// A log position that is never reached, for changes that could not be logged.
const NEVER_DURABLE: Lsn = Lsn(u64::MAX);

impl Journal for LimitRecords {
    fn put(&self, text: &Text<'_>) {
        let mut limit_records = self.by_generation.write().unwrap_or_else(PoisonError::into_inner);
        let former = limit_records.get(&text.generation).map(Arc::clone);
        let mut record = LimitLogState::new(text.limit, former.as_deref(), NEVER_DURABLE);
        record.lsn = self.write(text.at, |records| records.put(text, &record.unwritten));
        limit_records.insert(text.generation, Arc::new(record));
    }

    fn remove(&self, generation: u64, mode: RemovalMode, until: Timestamp) {
        self.write(Timestamp::EPOCH, |records| records.remove(generation, mode, until));
        if mode == RemovalMode::Forget {
            self.by_generation.write().unwrap_or_else(PoisonError::into_inner).remove(&generation);
            self.ceilings.forget(generation);
        }
    }

    fn reset(&self, generation: u64, key: Option<(&[u8], Tag)>, at: Timestamp) {
        self.write(at, |records| records.reset(generation, key, at));
        // The reset voids all earlier ceilings in the log.
        if let Some(record) = self.get(generation) {
            record.counters.epoch.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl std::fmt::Debug for LimitRecords {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LimitRecords").finish_non_exhaustive()
    }
}
