//! Described buckets: `CL.THROTTLE` and `THROTTLE` name a rate with every call instead of a limit.
//!
//! A description is a limit. `CL.THROTTLE k 15 30 60` asks the limit `cl.throttle/16/30/60` (capacity, count, period), which is added to
//! the catalog on first use. So the store decides these buckets like any limit: exactly, in batches, durably, shared between nodes.
//!
//! A key that is used with two descriptions has two rows. The state of a bucket has a meaning only together with its rate. With one row
//! for all rates a higher rate would be denied, a lower one forgiven, and two client versions would disturb each other during a roll-out.
//!
//! At most [`MAX_DESCRIBED_BUCKETS`] descriptions exist. For a new one the least recently used are evicted, and only those whose rows are
//! all full again: eviction must not change a decision. If there is none, the command fails. Descriptions in a shared store
//! are never evicted, because other nodes may use them.
//!
//! The first use of a rate blocks its worker for one round trip if the store is remote. Later uses find it in the table. Rates are few:
//! programs choose them, not their users.
//!
//! This relies on no other command charging limits of this prefix. Both protocols check [`is_reserved`].

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tidegate::catalog::PutError;
use tidegate::catalog::{ExpectedVersion, RemovalMode};
use tidegate::model::{Amount, Ask, ItemSpec, Limit, LimitSpec, Order, Policy, Span, Timestamp};
use tidegate::reply::{Detail, Replies};
use tidegate::store::Reach;
use tidegate::store::{LimitStore, StoreReply};
use tidegate_core::{Capacity, Law};

/// Prefix of the ids of these limits.
pub const RESERVED_PREFIX: &str = "cl.throttle/";

/// The most descriptions at once.
pub const MAX_DESCRIBED_BUCKETS: usize = 4096;

/// How many are evicted at a time, because finding them scans the whole table.
const EVICTION_BATCH: usize = MAX_DESCRIBED_BUCKETS / 16;

/// The error for other commands that charge one of them.
pub const RESERVED_ID_MESSAGE: &str = "limits of this name belong to CL.THROTTLE and THROTTLE";

/// Whether an id has the reserved prefix.
pub use tidegate_config::limits::is_reserved;

/// The rate of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BucketDescription {
    /// How much may be taken at once.
    pub capacity: Amount,
    /// How much is refilled per period.
    pub count: Amount,
    /// The period, in seconds.
    pub period: u64,
}

impl BucketDescription {
    fn id(&self) -> String {
        format!("{RESERVED_PREFIX}{}/{}/{}", self.capacity, self.count, self.period)
    }

    fn spec(&self) -> LimitSpec {
        let policy = Policy::Bucket { window: Duration::from_secs(self.period), burst: Some(self.capacity) };
        LimitSpec::named(self.id()).with(ItemSpec::of(policy, self.count).per_key())
    }

    /// Parses the description from a limit id.
    fn of(limit_id: &str) -> Option<BucketDescription> {
        let mut numbers =
            limit_id.strip_prefix(RESERVED_PREFIX)?.split('/').map(|number| number.parse().ok());
        let bucket = BucketDescription {
            capacity: numbers.next()??,
            count: numbers.next()??,
            period: numbers.next()??,
        };
        (bucket.id() == limit_id).then_some(bucket)
    }
}

/// A described bucket in the catalog. It is not evicted while a clone of its `Arc` exists.
#[derive(Debug)]
pub struct DescribedBucket {
    bucket: BucketDescription,
    id: Box<str>,
    /// Time to refill a whole burst.
    refill: Span,
    last_used: AtomicU64,
}

impl DescribedBucket {
    fn new(bucket: BucketDescription, limit: &Limit, last_used: Timestamp) -> DescribedBucket {
        let refills = limit.items().iter().map(|item| match (item.rule().capacity, &item.rule().law) {
            (Capacity::AtMost(burst), Law::TokenBucket(law)) => law.step().times(burst),
            // The limit was edited: the time to refill is unknown.
            _ => Span::from_ticks(u64::MAX),
        });
        let refill = refills.max().unwrap_or_default();
        DescribedBucket {
            bucket,
            id: limit.id().into(),
            refill,
            last_used: AtomicU64::new(last_used.ticks()),
        }
    }

    /// The id of the limit.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Records a decision at this instant.
    pub fn record_use(&self, at: Timestamp) {
        self.last_used.fetch_max(at.ticks(), Ordering::Relaxed);
    }

    /// When all its rows are full again, unless it is used before.
    fn refilled_at(&self) -> Timestamp {
        Timestamp::from_ticks(self.last_used.load(Ordering::Relaxed)).plus(self.refill)
    }
}

/// Why a bucket cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DescribeError {
    /// The description is invalid.
    Invalid(String),
    /// The table is full and nothing can be evicted.
    TooMany,
}

impl fmt::Display for DescribeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DescribeError::Invalid(why) => f.write_str(why),
            DescribeError::TooMany => {
                write!(f, "{MAX_DESCRIBED_BUCKETS} different rates are in use, and none can be evicted yet")
            }
        }
    }
}

/// The described buckets of a store.
pub struct DescribedBuckets {
    store: Arc<dyn LimitStore>,
    table: RwLock<BucketTable>,
    capacity: usize,
}

#[derive(Default)]
struct BucketTable {
    buckets: HashMap<BucketDescription, Arc<DescribedBucket>>,
    /// Nothing can be evicted before this instant.
    busy_until: Timestamp,
}

impl DescribedBuckets {
    /// Loads the described buckets that the store already has.
    pub fn new(store: Arc<dyn LimitStore>) -> DescribedBuckets {
        DescribedBuckets::with_capacity(store, MAX_DESCRIBED_BUCKETS)
    }

    /// The same with another maximum.
    pub fn with_capacity(store: Arc<dyn LimitStore>, capacity: usize) -> DescribedBuckets {
        let mut table = BucketTable::default();
        for limit in store.list() {
            if let Some(bucket) = BucketDescription::of(limit.id()) {
                // The last use is unknown, but not later than now.
                let last_used = store_time(&*store, limit.id()).unwrap_or(Timestamp::from_ticks(u64::MAX));
                table.buckets.insert(bucket, Arc::new(DescribedBucket::new(bucket, &limit, last_used)));
            }
        }
        DescribedBuckets { store, table: RwLock::new(table), capacity }
    }

    /// The number of described buckets.
    pub fn len(&self) -> usize {
        self.table.read().unwrap_or_else(PoisonError::into_inner).buckets.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The limit of this description, added to the catalog if needed.
    pub fn get_or_create(&self, bucket: BucketDescription) -> Result<Arc<DescribedBucket>, DescribeError> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(described) = table.buckets.get(&bucket) {
            return Ok(Arc::clone(described));
        }
        drop(table);
        // Validate before taking the write lock and before evicting.
        let spec = bucket.spec();
        let tick = self.store.capabilities().tick;
        Limit::new(spec.clone(), tick).map_err(|flaws| DescribeError::Invalid(describe_flaws(&flaws)))?;
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(described) = table.buckets.get(&bucket) {
            return Ok(Arc::clone(described));
        }
        if table.buckets.len() >= self.capacity {
            self.evict_idle(&mut table);
        }
        if table.buckets.len() >= self.capacity {
            return Err(DescribeError::TooMany);
        }
        let described = Arc::new(self.put(bucket, spec)?);
        table.buckets.insert(bucket, Arc::clone(&described));
        table.busy_until = Timestamp::EPOCH;
        Ok(described)
    }

    /// Removes a bucket that is no longer in the catalog. The next use adds it again.
    pub fn forget(&self, described: &DescribedBucket) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if table.buckets.get(&described.bucket).is_some_and(|it| std::ptr::eq(&raw const **it, described)) {
            table.buckets.remove(&described.bucket);
        }
    }

    fn put(&self, bucket: BucketDescription, spec: LimitSpec) -> Result<DescribedBucket, DescribeError> {
        match self.store.put(spec, ExpectedVersion::Absent) {
            Ok(limit) => Ok(DescribedBucket::new(bucket, &limit, Timestamp::EPOCH)),
            Err(PutError::Invalid(flaws)) => Err(DescribeError::Invalid(describe_flaws(&flaws))),
            // Another node added it first.
            Err(error) => match self.store.get(&bucket.id()) {
                Some(limit) => Ok(DescribedBucket::new(bucket, &limit, Timestamp::from_ticks(u64::MAX))),
                None => Err(DescribeError::Invalid(error.to_string())),
            },
        }
    }

    fn evict_idle(&self, table: &mut BucketTable) {
        if self.store.capabilities().reach == Reach::Fleet {
            return;
        }
        let some_id = table.buckets.values().next().map(|described| described.id.clone());
        let Some(now) = some_id.and_then(|id| store_time(&*self.store, &id)) else { return };
        if now < table.busy_until {
            return;
        }
        let mut idle = Vec::new();
        let mut busy_until = Timestamp::from_ticks(u64::MAX);
        for (bucket, described) in &mut table.buckets {
            // A clone may be about to be charged.
            let is_idle = Arc::get_mut(described).is_some();
            if is_idle && described.refilled_at() <= now {
                idle.push((described.last_used.load(Ordering::Relaxed), *bucket));
            } else {
                busy_until = busy_until.min(described.refilled_at().max(now.plus(Span::ONE_TICK)));
            }
        }
        table.busy_until = if idle.is_empty() { busy_until } else { Timestamp::EPOCH };
        idle.sort_unstable_by_key(|(last_used, _)| *last_used);
        for (_, bucket) in idle.iter().take(EVICTION_BATCH.min(self.capacity.div_ceil(16))) {
            if let Some(forgotten) = table.buckets.remove(bucket) {
                self.store.remove(&forgotten.id, RemovalMode::Forget);
            }
        }
    }
}

impl fmt::Debug for DescribedBuckets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DescribedBuckets").field("table", &self.len()).finish_non_exhaustive()
    }
}

/// The store's current time. `None` if asking needs a round trip; such buckets are never evicted.
fn store_time(store: &dyn LimitStore, limit_id: &str) -> Option<Timestamp> {
    let asks = [Ask { limit_id, key: Some(b""), count: 0 }];
    let (StoreReply::Now(answers) | StoreReply::Durable(answers, _)) =
        store.submit(&[Order::peek(&asks)], Replies::new(Detail::Verdicts))
    else {
        return None;
    };
    answers.get(0)?.as_ref().ok().map(|answer| answer.at)
}

/// Validation errors in the terms of the command's arguments.
fn describe_flaws(flaws: &[tidegate::model::SpecError]) -> String {
    let messages = flaws.iter().map(|flaw| {
        let field = flaw.field.rsplit('.').next().unwrap_or_default();
        let field = match field {
            "limit" => "count",
            "window" => "period",
            "burst" => "max_burst",
            other => other,
        };
        format!("{field}: {}", flaw.message)
    });
    messages.collect::<Vec<_>>().join("; ")
}
