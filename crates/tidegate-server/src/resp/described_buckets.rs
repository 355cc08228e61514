//! Buckets that come with their own description: `CL.THROTTLE` and `THROTTLE` name a rate with every call, and no limit.
//!
//! Decided: a description *is* a limit. `CL.THROTTLE k 15 30 60` asks the limit `cl.throttle/16/30/60` (capacity, count, period), which is
//! put into the catalog when it is first described. So the store decides these buckets as it decides everything: exactly, in batches,
//! durably where it is durable, for all nodes where it is shared; and they can be looked at like any limit.
//!
//! Decided: a key that is asked by two descriptions has two rows. The time that a bucket remembers means something only together with
//! its rate. Programs that use one row for all of them refuse what a higher rate allows, or forgive what a lower one forbids, and
//! during a roll-out two versions of a client would pull a row to and fro.
//!
//! Decided: there are [`MAX_DESCRIBED_BUCKETS`] descriptions at most. If one more comes, those are forgotten that are unused for the longest, and
//! of them only the ones all of whose rows are *idle*: unused for as long as a whole burst takes to come back. Forgetting them can be
//! noticed by nobody. If there is none, the newcomer is told so; it is neither let through nor does it push out somebody who waits.
//! A store that others share may have been asked by them, so nothing is forgotten there, and what time it is there nobody has to know.
//!
//! Decided: describing a rate blocks. Where somebody else keeps the limits, the first command that names a rate holds up its worker for a
//! round trip, and whoever else describes one meanwhile; every later one finds it here. Rates are few, and are named by
//! programs and not by their users.
//!
//! What this rests on: nobody else charges limits of this name. Doors ask [`is_reserved`].

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tidegate::catalog::PutError;
use tidegate::store::Reach;
use tidegate::{
    Amount, Ask, Detail, ExpectedVersion, ItemSpec, Limit, LimitSpec, LimitStore, Order, Policy, RemovalMode,
    Replies, Span, StoreReply, Timestamp,
};
use tidegate_core::{Capacity, Law};

/// What the ids of these limits begin with.
pub const RESERVED_PREFIX: &str = "cl.throttle/";

/// The most descriptions that are table at once.
pub const MAX_DESCRIBED_BUCKETS: usize = 4096;

/// How many are forgotten at a time: looking for them costs a look at all.
const EVICTION_BATCH: usize = MAX_DESCRIBED_BUCKETS / 16;

/// Why nobody else charges one of them.
pub const RESERVED_ID_MESSAGE: &str = "limits of this name belong to CL.THROTTLE and THROTTLE";

/// Whether this id belongs to a described bucket, or would.
pub use tidegate_config::limits::is_reserved;

/// The description of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BucketDescription {
    /// How much may be taken at once.
    pub capacity: Amount,
    /// How much comes back in a period.
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

    /// The description that an id was made of.
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

/// A described bucket that the catalog knows. As long as somebody has it, it is not forgotten.
#[derive(Debug)]
pub struct DescribedBucket {
    bucket: BucketDescription,
    id: Box<str>,
    /// How long a whole burst takes to come back.
    refill: Span,
    last_used: AtomicU64,
}

impl DescribedBucket {
    fn new(bucket: BucketDescription, limit: &Limit, last_used: Timestamp) -> DescribedBucket {
        let refills = limit.items().iter().map(|item| match (item.rule().capacity, &item.rule().law) {
            (Capacity::AtMost(burst), Law::TokenBucket(law)) => law.step().times(burst),
            // Somebody edited it; there is no telling when such a limit is idle.
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

    /// Somebody was answered at this instant.
    pub fn record_use(&self, at: Timestamp) {
        self.last_used.fetch_max(at.ticks(), Ordering::Relaxed);
    }

    /// From when on every row of it is idle, unless it is used again.
    fn refilled_at(&self) -> Timestamp {
        Timestamp::from_ticks(self.last_used.load(Ordering::Relaxed)).plus(self.refill)
    }
}

/// Why a description cannot be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DescribeError {
    /// No such bucket can be; this is why.
    Invalid(String),
    /// There are too many others.
    TooMany,
}

impl fmt::Display for DescribeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DescribeError::Invalid(why) => f.write_str(why),
            DescribeError::TooMany => {
                write!(f, "{MAX_DESCRIBED_BUCKETS} different rates are in use, and none can be forgotten yet")
            }
        }
    }
}

/// All described buckets of a store.
pub struct DescribedBuckets {
    store: Arc<dyn LimitStore>,
    table: RwLock<BucketTable>,
    capacity: usize,
}

#[derive(Default)]
struct BucketTable {
    buckets: HashMap<BucketDescription, Arc<DescribedBucket>>,
    /// Before this instant there is none to forget.
    busy_until: Timestamp,
}

impl DescribedBuckets {
    /// Those of this store: none yet, or those of an earlier life.
    pub fn new(store: Arc<dyn LimitStore>) -> DescribedBuckets {
        DescribedBuckets::with_capacity(store, MAX_DESCRIBED_BUCKETS)
    }

    /// The same with another bound.
    pub fn with_capacity(store: Arc<dyn LimitStore>, capacity: usize) -> DescribedBuckets {
        let mut table = BucketTable::default();
        for limit in store.list() {
            if let Some(bucket) = BucketDescription::of(limit.id()) {
                // When somebody asked it last is not table. Not later than now.
                let last_used = store_time(&*store, limit.id()).unwrap_or(Timestamp::from_ticks(u64::MAX));
                table.buckets.insert(bucket, Arc::new(DescribedBucket::new(bucket, &limit, last_used)));
            }
        }
        DescribedBuckets { store, table: RwLock::new(table), capacity }
    }

    /// How many are table.
    pub fn len(&self) -> usize {
        self.table.read().unwrap_or_else(PoisonError::into_inner).buckets.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The limit of this description.
    pub fn get_or_create(&self, bucket: BucketDescription) -> Result<Arc<DescribedBucket>, DescribeError> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(described) = table.buckets.get(&bucket) {
            return Ok(Arc::clone(described));
        }
        drop(table);
        // What cannot be is told before anybody has to wait for it, and nobody is forgotten for it.
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

    /// The catalog does not know it any more: somebody removed it. Whoever asks next describes it anew.
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
            // Another node was faster.
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
            // Whoever has it may be about to charge it, and will say so.
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

/// What time the store says it is: a door has no clock of its own. `None` if somebody else would have to be asked: their buckets are
/// never forgotten.
fn store_time(store: &dyn LimitStore, limit_id: &str) -> Option<Timestamp> {
    let asks = [Ask { limit_id, key: Some(b""), count: 0 }];
    let (StoreReply::Now(answers) | StoreReply::Durable(answers, _)) =
        store.submit(&[Order::peek(&asks)], Replies::new(Detail::Verdicts))
    else {
        return None;
    };
    answers.get(0)?.as_ref().ok().map(|answer| answer.at)
}

/// What is wrong with a description, in the words of the command.
fn describe_flaws(flaws: &[tidegate::SpecError]) -> String {
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
