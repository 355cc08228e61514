//! The state that all workers of a store share.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use deadpool_postgres::Object;
use tidegate::catalog::{Change, Watcher};
use tidegate::reply::{Outcome, Replies};
use tidegate::store::{ItemCount, LimitStats};
use tidegate_core::{Intent, Tick};

use crate::connections::{ConnectionPool, DatabaseError};
use crate::database_clock::{DatabaseClock, TimeSource};
use crate::job::QueuedOrder;
use crate::limit_editor::changes;
use crate::limit_snapshot::{LimitSnapshot, read_since};
use crate::row_names::RowName;
use crate::schema::{AdvisoryLock, lock_key};
use crate::url::{InvalidUrl, PostgresOptions};

/// The distance between the lease numbers of two transactions. One transaction never grants as many leases.
const LEASE_NUMBER_STEP: u64 = 1 << 20;

/// The most row names to remember as existing.
const MAX_KNOWN_ROWS: usize = 1 << 18;

/// The state that workers share.
pub(crate) struct SharedState {
    pub(crate) connections: ConnectionPool,
    pub(crate) time: DatabaseClock,
    pub(crate) tick: Tick,
    /// Makes lease ids hard to guess.
    pub(crate) secret: u64,
    numbers: AtomicU64,
    pub(crate) limits_lock: i64,
    pub(crate) expiry_lock: i64,
    pub(crate) schema: String,
    limits: RwLock<Arc<LimitSnapshot>>,
    /// The edits of this server that watchers have not seen yet, in order. The lock is held while the snapshot is replaced and
    /// watchers are called. A reader or the listener may replace the snapshot before the editor does.
    exchange: Mutex<Vec<AnnouncedEdit>>,
    watchers: RwLock<Vec<Watcher>>,
    counts: Mutex<HashMap<Box<str>, LimitCounts>>,
    hasher: RandomState,
    /// Rows that existed at the last access.
    rows: Mutex<HashSet<u64>>,
}

/// The revision of an edit and its limit ids, in order.
#[derive(Debug)]
struct AnnouncedEdit {
    revision: i64,
    ids: Vec<String>,
}

/// Counters of a limit on this server.
#[derive(Debug, Default)]
struct LimitCounts {
    granted: u64,
    refused: u64,
    shadowed: u64,
    items: HashMap<Box<str>, u64>,
}

impl SharedState {
    pub(crate) fn new(options: &PostgresOptions, source: TimeSource) -> Result<SharedState, InvalidUrl> {
        let mut random = [0; 16];
        getrandom::fill(&mut random)
            .map_err(|error| InvalidUrl(format!("the system provides no random numbers: {error}")))?;
        let [secret, number] = [0, 8]
            .map(|at| u64::from_le_bytes(random[at..at + 8].try_into().expect("eight of sixteen bytes")));
        let time = DatabaseClock::new(source);
        Ok(SharedState {
            connections: ConnectionPool::new(options)?,
            tick: time.tick(),
            time,
            secret,
            numbers: AtomicU64::new(number),
            limits_lock: lock_key(&options.schema, AdvisoryLock::Limits),
            expiry_lock: lock_key(&options.schema, AdvisoryLock::Expiry),
            schema: options.schema.clone(),
            limits: RwLock::default(),
            exchange: Mutex::default(),
            watchers: RwLock::default(),
            counts: Mutex::default(),
            hasher: RandomState::new(),
            rows: Mutex::default(),
        })
    }

    /// A lease number that this process has not used. The following numbers are free too.
    pub(crate) fn next_lease_number(&self) -> u64 {
        // Wrapping is safe, except within the step that one transaction uses.
        let number = self.numbers.fetch_add(LEASE_NUMBER_STEP, Ordering::Relaxed);
        number.min(u64::MAX - LEASE_NUMBER_STEP)
    }

    /// The current snapshot of the limits.
    pub(crate) fn limits(&self) -> Arc<LimitSnapshot> {
        Arc::clone(&self.limits.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reloads the limits that changed.
    pub(crate) async fn refresh(&self, connection: &Object) -> Result<(), DatabaseError> {
        let limits = self.limits();
        let (revision, found) = read_since(connection, limits.revision, self.tick).await?;
        if revision < limits.revision {
            // The revision went back, so the tables were created again.
            let (revision, found) = read_since(connection, -1, self.tick).await?;
            self.replace_limits(LimitSnapshot::default().with(revision, found), true);
        } else if revision > limits.revision {
            self.replace_limits(limits.with(revision, found), false);
        }
        Ok(())
    }

    /// Records an edit before its commit. The caller holds the limits lock exclusively. An earlier record of the same revision
    /// was rolled back.
    pub(crate) fn announce_edit(&self, revision: i64, ids: Vec<String>) {
        let mut announced = self.exchange.lock().unwrap_or_else(PoisonError::into_inner);
        announced.retain(|former| former.revision < revision);
        announced.push(AnnouncedEdit { revision, ids });
    }

    /// Replaces the snapshot unless a later one is known. Watchers first see the changes of other servers, then those of this
    /// server in the order of its edits.
    pub(crate) fn replace_limits(&self, next: LimitSnapshot, anew: bool) {
        let mut announced = self.exchange.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.limits();
        if next.revision <= before.revision && !anew {
            return;
        }
        if anew {
            announced.clear();
        }
        let later = announced.partition_point(|edit| edit.revision <= next.revision);
        let ours: Vec<String> = announced.drain(..later).flat_map(|edit| edit.ids).collect();
        let mut changed = changes(&before, &next);
        changed.sort_by_key(|change| {
            let (Change::Put(limit) | Change::Removed(limit)) = change;
            ours.iter().position(|id| *id == limit.id()).map_or(0, |index| index + 1)
        });
        *self.limits.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(next);
        let watchers = self.watchers.read().unwrap_or_else(PoisonError::into_inner);
        for change in &changed {
            watchers.iter().for_each(|watcher| watcher(change));
        }
    }

    pub(crate) fn watch(&self, watcher: Watcher) {
        self.watchers.write().unwrap_or_else(PoisonError::into_inner).push(watcher);
    }

    /// The hash of a row name. Different rows rarely share one.
    pub(crate) fn row_hash(&self, (generation, column): &RowName) -> u64 {
        let mut hash = self.hasher.build_hasher();
        hash.write_i64(*generation);
        hash.write(column);
        hash.finish()
    }

    /// The rows that are not known to exist.
    pub(crate) fn unknown_rows<'n>(&self, names: impl Iterator<Item = &'n RowName>) -> Vec<&'n RowName> {
        let rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        names.filter(|name| !rows.contains(&self.row_hash(name))).collect()
    }

    /// Records that rows exist.
    pub(crate) fn mark_found<'n>(&self, names: impl Iterator<Item = &'n RowName>) {
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        for name in names {
            rows.insert(self.row_hash(name));
        }
        if rows.len() > MAX_KNOWN_ROWS {
            rows.clear();
        }
    }

    /// Records that rows do not exist.
    pub(crate) fn mark_missing<'n>(&self, names: impl Iterator<Item = &'n RowName>) {
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        for name in names {
            rows.remove(&self.row_hash(name));
        }
    }

    /// Counts the answers of orders.
    pub(crate) fn count(&self, orders: &[QueuedOrder], answers: &Replies) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        for (order, answer) in orders.iter().zip(answers.iter()) {
            let (Intent::Acquire, Ok(answer)) = (order.intent, answer) else { continue };
            match &answer.outcome {
                Outcome::Granted(_) => {
                    for (index, ask) in order.asks.iter().enumerate() {
                        if order.asks[..index].iter().all(|other| other.limit_id != ask.limit_id) {
                            counts.entry(ask.limit_id.clone()).or_default().granted += 1;
                        }
                    }
                }
                Outcome::Denied(denied) => {
                    let count = counts.entry(denied.limit.id().into()).or_default();
                    count.refused += 1;
                    if let Some(item) = denied.limit.items().get(denied.item) {
                        *count.items.entry(item.name().into()).or_default() += 1;
                    }
                }
            }
            for limit in &answer.shadowed {
                counts.entry(limit.id().into()).or_default().shadowed += 1;
            }
        }
    }

    pub(crate) fn observe(&self, limit_id: &str) -> Option<LimitStats> {
        self.limits().get(limit_id)?;
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let none = LimitCounts::default();
        let count = counts.get(limit_id).unwrap_or(&none);
        let mut items: Vec<ItemCount> = count
            .items
            .iter()
            .map(|(item, refused)| ItemCount { item: item.to_string(), refused: *refused })
            .collect();
        items.sort_by(|a, b| a.item.cmp(&b.item));
        Some(LimitStats {
            granted: count.granted,
            refused: count.refused,
            shadowed: count.shadowed,
            items,
            rows: None,
            bytes: None,
        })
    }
}
