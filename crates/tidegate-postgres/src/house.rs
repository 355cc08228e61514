//! The house: what all workers of a store share.

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

use crate::connecting::{Connections, Fault};
use crate::editing::changes;
use crate::job::OwnOrder;
use crate::limits::{Limits, read_since};
use crate::rows::RowName;
use crate::schema::{Lock, lock_key};
use crate::time::{Source, Time};
use crate::url::{BadUrl, Options};

/// How far the numbers of leases of two sittings are apart: more than can be granted in one.
const NUMBERS_APART: u64 = 1 << 20;

/// The most rows of which it is remembered that they are there.
const MOST_KNOWN: usize = 1 << 18;

/// What workers share.
pub(crate) struct House {
    pub(crate) connections: Connections,
    pub(crate) time: Time,
    pub(crate) tick: Tick,
    /// Makes the ids of leases hard to guess.
    pub(crate) secret: u64,
    numbers: AtomicU64,
    pub(crate) limits_lock: i64,
    pub(crate) sweeping_lock: i64,
    pub(crate) schema: String,
    limits: RwLock<Arc<Limits>>,
    /// Held while the limits are exchanged and watchers are told of it: what was edited here, and in which order, as long as nobody has
    /// been told. Whoever reads the tables first tells it, and that may be who only looks.
    exchange: Mutex<Vec<Announced>>,
    watchers: RwLock<Vec<Watcher>>,
    counts: Mutex<HashMap<Box<str>, Counts>>,
    hasher: RandomState,
    /// Rows that were there when somebody last looked.
    rows: Mutex<HashSet<u64>>,
}

/// The ids of one edit, in its order, and the revision it makes.
#[derive(Debug)]
struct Announced {
    revision: i64,
    ids: Vec<String>,
}

/// What happened at a limit, as this server has seen it.
#[derive(Debug, Default)]
struct Counts {
    granted: u64,
    refused: u64,
    shadowed: u64,
    items: HashMap<Box<str>, u64>,
}

impl House {
    pub(crate) fn new(options: &Options, source: Source) -> Result<House, BadUrl> {
        let mut random = [0; 16];
        getrandom::fill(&mut random)
            .map_err(|error| BadUrl(format!("cannot be used without random numbers: {error}")))?;
        let [secret, number] = [0, 8]
            .map(|at| u64::from_le_bytes(random[at..at + 8].try_into().expect("eight of sixteen bytes")));
        let time = Time::new(source);
        Ok(House {
            connections: Connections::new(options)?,
            tick: time.tick(),
            time,
            secret,
            numbers: AtomicU64::new(number),
            limits_lock: lock_key(&options.schema, Lock::Limits),
            sweeping_lock: lock_key(&options.schema, Lock::Sweeping),
            schema: options.schema.clone(),
            limits: RwLock::default(),
            exchange: Mutex::default(),
            watchers: RwLock::default(),
            counts: Mutex::default(),
            hasher: RandomState::new(),
            rows: Mutex::default(),
        })
    }

    /// A number that no lease of this process has had, nor will have those after it.
    pub(crate) fn number(&self) -> u64 {
        // Wrapping is fine, but the last few must not: the excerpt counts on from here.
        let number = self.numbers.fetch_add(NUMBERS_APART, Ordering::Relaxed);
        number.min(u64::MAX - NUMBERS_APART)
    }

    /// The limits as they are known here.
    pub(crate) fn limits(&self) -> Arc<Limits> {
        Arc::clone(&self.limits.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads what has changed.
    pub(crate) async fn refresh(&self, connection: &Object) -> Result<(), Fault> {
        let limits = self.limits();
        let (revision, found) = read_since(connection, limits.revision, self.tick).await?;
        if revision < limits.revision {
            // The tables are not the ones we knew: somebody made them anew.
            let (revision, found) = read_since(connection, -1, self.tick).await?;
            self.exchange(Limits::default().with(revision, found), true);
        } else if revision > limits.revision {
            self.exchange(limits.with(revision, found), false);
        }
        Ok(())
    }

    /// This revision is about to be made here, of these ids in their order. To be said by who edits and therefore is alone: what had been
    /// announced for the same revision was not kept.
    pub(crate) fn announce(&self, revision: i64, ids: Vec<String>) {
        let mut announced = self.exchange.lock().unwrap_or_else(PoisonError::into_inner);
        announced.retain(|former| former.revision < revision);
        announced.push(Announced { revision, ids });
    }

    /// From now on these are the limits, unless later ones are known. Watchers are told what others have changed, then what was announced
    /// here, in its order.
    pub(crate) fn exchange(&self, next: Limits, anew: bool) {
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
        let mut told = changes(&before, &next);
        told.sort_by_key(|change| {
            let (Change::Put(limit) | Change::Removed(limit)) = change;
            ours.iter().position(|id| *id == limit.id()).map_or(0, |place| place + 1)
        });
        *self.limits.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(next);
        let watchers = self.watchers.read().unwrap_or_else(PoisonError::into_inner);
        for change in &told {
            watchers.iter().for_each(|watcher| watcher(change));
        }
    }

    pub(crate) fn watch(&self, watcher: Watcher) {
        self.watchers.write().unwrap_or_else(PoisonError::into_inner).push(watcher);
    }

    /// What stands for a row: equal for equal rows, and for others hardly ever.
    pub(crate) fn touch(&self, (generation, column): &RowName) -> u64 {
        let mut hash = self.hasher.build_hasher();
        hash.write_i64(*generation);
        hash.write(column);
        hash.finish()
    }

    /// Which of these rows were not there when somebody last looked, or never were looked for.
    pub(crate) fn unknown<'n>(&self, names: impl Iterator<Item = &'n RowName>) -> Vec<&'n RowName> {
        let rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        names.filter(|name| !rows.contains(&self.touch(name))).collect()
    }

    /// These rows are there.
    pub(crate) fn found<'n>(&self, names: impl Iterator<Item = &'n RowName>) {
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        for name in names {
            rows.insert(self.touch(name));
        }
        if rows.len() > MOST_KNOWN {
            rows.clear();
        }
    }

    /// These rows are not there.
    pub(crate) fn lost<'n>(&self, names: impl Iterator<Item = &'n RowName>) {
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        for name in names {
            rows.remove(&self.touch(name));
        }
    }

    /// Counts what was answered.
    pub(crate) fn count(&self, orders: &[OwnOrder], answers: &Replies) {
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
        let none = Counts::default();
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
