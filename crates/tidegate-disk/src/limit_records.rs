//! LimitRecords: what is known of every limit to whoever writes its charges down.
//!
//! A record is made when a text of a limit is put, and replaced by the next one. It is told of changes before anybody is decided on by
//! them ([`Journal`]), so a charge finds the record of its own version, or a later one; then it is simply written down.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use hashbrown::HashMap;
use tidegate::catalog::RemovalMode;
use tidegate::store::memory::journal::{Journal, Tag, Text};
use tidegate::store::{Lsn, Unavailable};
use tidegate_core::{Amount, Durability, Limit, Timestamp};

use crate::ceilings::{self, Ceilings};
use crate::record::RecordWriter;
use crate::wal::WriteAheadLog;

/// What is known of a limit.
#[derive(Debug)]
pub(crate) struct LimitRecord {
    pub(crate) limit: Arc<Limit>,
    /// What keys may use of each item of this version before it is written down.
    pub(crate) allowances: Vec<Amount>,
    /// What keys may have used of each item without a record, under this version or one before it.
    pub(crate) unwritten: Vec<Amount>,
    /// What the next version has too.
    counters: Arc<LimitCounters>,
    /// Where its text stands in the log. Nobody is told of a charge before that is durable.
    pub(crate) lsn: Lsn,
}

/// What is known of a limit whatever its version is.
#[derive(Debug, Default)]
struct LimitCounters {
    /// How often counts have been zeroed.
    epoch: AtomicU64,
    /// Whether a row of it ever had a ceiling.
    has_ceilings: AtomicBool,
}

impl LimitRecord {
    pub(crate) fn new(limit: &Arc<Limit>, former: Option<&LimitRecord>, lsn: Lsn) -> LimitRecord {
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
        LimitRecord { limit: Arc::clone(limit), allowances, unwritten, counters, lsn }
    }

    pub(crate) fn durability(&self) -> Durability {
        self.limit.spec().durability
    }

    /// How often counts have been zeroed.
    pub(crate) fn epoch(&self) -> u64 {
        self.counters.epoch.load(Ordering::SeqCst)
    }

    /// Whether a row of it may have a ceiling. One that has none when the log is split gets its first in a record behind that.
    pub(crate) fn has_ceilings(&self) -> bool {
        self.counters.has_ceilings.load(Ordering::SeqCst)
    }

    /// A row is about to get a ceiling. To be called before that is appended to the log.
    pub(crate) fn mark_ceilings(&self) {
        if !self.has_ceilings() {
            self.counters.has_ceilings.store(true, Ordering::SeqCst);
        }
    }
}

/// The limit_records of all limits.
pub(crate) struct LimitRecords {
    log: Arc<WriteAheadLog>,
    pub(crate) ceilings: Ceilings,
    by_generation: RwLock<HashMap<u64, Arc<LimitRecord>>>,
    /// Why a change could not be written down, if one could not.
    failure: Mutex<Option<Unavailable>>,
    has_failed: AtomicBool,
}

impl LimitRecords {
    pub(crate) fn new(
        log: Arc<WriteAheadLog>,
        limit_records: HashMap<u64, Arc<LimitRecord>>,
    ) -> LimitRecords {
        LimitRecords {
            log,
            ceilings: Ceilings::default(),
            by_generation: RwLock::new(limit_records),
            failure: Mutex::default(),
            has_failed: AtomicBool::new(false),
        }
    }

    pub(crate) fn get(&self, generation: u64) -> Option<Arc<LimitRecord>> {
        let limit_records = self.by_generation.read().unwrap_or_else(PoisonError::into_inner);
        limit_records.get(&generation).map(Arc::clone)
    }

    /// Why a change of limits could not be written down, if one could not. Memory is ahead of the log then, and nothing can be decided until
    /// the store is opened again.
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

/// A place that no log reaches: what could not be written down is never durable.
const NEVER_DURABLE: Lsn = Lsn(u64::MAX);

impl Journal for LimitRecords {
    fn put(&self, text: &Text<'_>) {
        let mut limit_records = self.by_generation.write().unwrap_or_else(PoisonError::into_inner);
        let former = limit_records.get(&text.generation).map(Arc::clone);
        let mut record = LimitRecord::new(text.limit, former.as_deref(), NEVER_DURABLE);
        record.lsn = self.write(text.at, |records| records.put(text, &record.unwritten));
        limit_records.insert(text.generation, Arc::new(record));
    }

    fn remove(&self, generation: u64, parting: RemovalMode, until: Timestamp) {
        self.write(Timestamp::EPOCH, |records| records.remove(generation, parting, until));
        if parting == RemovalMode::Forget {
            self.by_generation.write().unwrap_or_else(PoisonError::into_inner).remove(&generation);
            self.ceilings.forget(generation);
        }
    }

    fn reset(&self, generation: u64, key: Option<(&[u8], Tag)>, at: Timestamp) {
        self.write(at, |records| records.reset(generation, key, at));
        // What was allowed for before stands before the reset in the log, and is void.
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
