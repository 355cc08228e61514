//! Ledgers: what is known of every limit to whoever writes its charges down.
//!
//! A ledger is made when a text of a limit is put, and replaced by the next one. It is told of changes before anybody is decided on by
//! them ([`Journal`]), so a charge finds the ledger of its own version, or a later one; then it is simply written down.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use hashbrown::HashMap;
use tidegate::catalog::RemovalMode;
use tidegate::store::memory::journal::{Journal, Tag, Text};
use tidegate::store::{Lsn, Unavailable};
use tidegate_core::{Amount, Durability, Limit, Timestamp};

use crate::ceilings::{self, Ceilings};
use crate::record::Pen;
use crate::wal::Log;

/// What is known of a limit.
#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) limit: Arc<Limit>,
    /// What keys may use of each item of this version before it is written down.
    pub(crate) allowances: Vec<Amount>,
    /// What keys may have used of each item without a record, under this version or one before it.
    pub(crate) unwritten: Vec<Amount>,
    /// What the next version has too.
    lasting: Arc<Lasting>,
    /// Where its text stands in the log. Nobody is told of a charge before that is durable.
    pub(crate) lsn: Lsn,
}

/// What is known of a limit whatever its version is.
#[derive(Debug, Default)]
struct Lasting {
    /// How often counts have been zeroed.
    epoch: AtomicU64,
    /// Whether a row of it ever had a ceiling.
    has_ceilings: AtomicBool,
}

impl Ledger {
    pub(crate) fn new(limit: &Arc<Limit>, former: Option<&Ledger>, lsn: Lsn) -> Ledger {
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
        let lasting = former.map_or_else(Arc::default, |former| Arc::clone(&former.lasting));
        Ledger { limit: Arc::clone(limit), allowances, unwritten, lasting, lsn }
    }

    pub(crate) fn durability(&self) -> Durability {
        self.limit.spec().durability
    }

    /// How often counts have been zeroed.
    pub(crate) fn epoch(&self) -> u64 {
        self.lasting.epoch.load(Ordering::SeqCst)
    }

    /// Whether a row of it may have a ceiling. One that has none when the log is split gets its first in a record behind that.
    pub(crate) fn has_ceilings(&self) -> bool {
        self.lasting.has_ceilings.load(Ordering::SeqCst)
    }

    /// A row is about to get a ceiling. To be called before that is appended to the log.
    pub(crate) fn raises(&self) {
        if !self.has_ceilings() {
            self.lasting.has_ceilings.store(true, Ordering::SeqCst);
        }
    }
}

/// The ledgers of all limits.
pub(crate) struct Ledgers {
    log: Arc<Log>,
    pub(crate) ceilings: Ceilings,
    by_generation: RwLock<HashMap<u64, Arc<Ledger>>>,
    /// Why a change could not be written down, if one could not.
    trouble: Mutex<Option<Unavailable>>,
    is_troubled: AtomicBool,
}

impl Ledgers {
    pub(crate) fn new(log: Arc<Log>, ledgers: HashMap<u64, Arc<Ledger>>) -> Ledgers {
        Ledgers {
            log,
            ceilings: Ceilings::default(),
            by_generation: RwLock::new(ledgers),
            trouble: Mutex::default(),
            is_troubled: AtomicBool::new(false),
        }
    }

    pub(crate) fn get(&self, generation: u64) -> Option<Arc<Ledger>> {
        let ledgers = self.by_generation.read().unwrap_or_else(PoisonError::into_inner);
        ledgers.get(&generation).map(Arc::clone)
    }

    /// Why a change of limits could not be written down, if one could not. Memory is ahead of the log then, and nothing can be decided until
    /// the store is opened again.
    pub(crate) fn trouble(&self) -> Option<Unavailable> {
        if !self.is_troubled.load(Ordering::Acquire) {
            return None;
        }
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn write(&self, at: Timestamp, write: impl FnOnce(&mut Pen)) -> Lsn {
        let mut pen = Pen::default();
        write(&mut pen);
        self.log.append(pen.bytes(), at.ticks()).unwrap_or_else(|unavailable| {
            *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(unavailable);
            self.is_troubled.store(true, Ordering::Release);
            NEVER
        })
    }
}

/// A place that no log reaches: what could not be written down is never durable.
const NEVER: Lsn = Lsn(u64::MAX);

impl Journal for Ledgers {
    fn put(&self, text: &Text<'_>) {
        let mut ledgers = self.by_generation.write().unwrap_or_else(PoisonError::into_inner);
        let former = ledgers.get(&text.generation).map(Arc::clone);
        let mut ledger = Ledger::new(text.limit, former.as_deref(), NEVER);
        ledger.lsn = self.write(text.at, |pen| pen.put(text, &ledger.unwritten));
        ledgers.insert(text.generation, Arc::new(ledger));
    }

    fn remove(&self, generation: u64, parting: RemovalMode, until: Timestamp) {
        self.write(Timestamp::EPOCH, |pen| pen.remove(generation, parting, until));
        if parting == RemovalMode::Forget {
            self.by_generation.write().unwrap_or_else(PoisonError::into_inner).remove(&generation);
            self.ceilings.forget(generation);
        }
    }

    fn reset(&self, generation: u64, key: Option<(&[u8], Tag)>, at: Timestamp) {
        self.write(at, |pen| pen.reset(generation, key, at));
        // What was allowed for before stands before the reset in the log, and is void.
        if let Some(ledger) = self.get(generation) {
            ledger.lasting.epoch.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl std::fmt::Debug for Ledgers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ledgers").finish_non_exhaustive()
    }
}
