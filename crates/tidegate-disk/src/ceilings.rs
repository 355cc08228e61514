//! Ceilings: upper bounds of usage that the log already holds.
//!
//! A record for every charge would make the log as busy as the limits. Instead the log states that *at most*
//! a certain amount of a row is used. Charges below this ceiling need no record. A charge above it raises the
//! ceiling by a slice and waits until the new ceiling is durable. After a crash everything up to the ceiling
//! counts as used: up to one slice is lost, and no unit is granted twice.
//!
//! ```text
//!   limit 10,000      used ───────▶│            │ceiling            slice: the usage of about one second,
//!                                  5,120        5,159              at most 1/256 of the limit: 39
//!                                        5,140 ▲ half a slice left: raised early, so that no charge waits
//! ```
//!
//! Three kinds of charges differ:
//! - Limits below 256 and limits with `durability: sync`: every charge gets a record and nothing is lost.
//! - Exact sliding windows: each charge has its own instant, so every charge gets a record.
//! - The first 1/256 of a key's window or bucket: no record, because most keys never use more. After a crash
//!   every key is assumed to have used that much ([`allowance`]).
//!
//! The table is a bounded cache. An evicted ceiling costs one additional record.

use std::hash::BuildHasher;
use std::sync::{Mutex, PoisonError};

use hashbrown::{DefaultHashBuilder, HashMap};
use tidegate::store::journal::{ChargeNote, Tag};
use tidegate_core::usage_record::NO_END;
use tidegate_core::{Amount, Capacity, Law, Limit, Span, Timestamp, UsageRecord};

/// A crash may lose one part in this many of a limit.
pub const SLICES: u64 = 256;

/// The maximum number of cached ceilings.
pub const MAX_CEILINGS: usize = 1 << 18;

/// The number of shards, to reduce lock contention.
const SHARDS: usize = 64;

/// A ceiling that lasts less than this doubles its slice,
const SHORT: Span = Span::from_ticks(500_000_000);
/// and one that lasts longer than this halves it.
const LONG: Span = Span::from_ticks(2_000_000_000);

/// The usage of an item with this capacity that needs no record.
pub fn allowance(capacity: Capacity) -> Amount {
    match capacity {
        Capacity::Unlimited => 0,
        Capacity::AtMost(limit) => limit / SLICES,
    }
}

/// The usage of each item that needs no record. It is zero for `total` items, sliding windows and leases.
pub fn allowances(limit: &Limit) -> Vec<Amount> {
    let of_item = |item: &tidegate_core::Item| match (&item.rule().law, item.per()) {
        (Law::FixedWindow(_) | Law::TokenBucket(_), tidegate_core::Per::Key) => {
            allowance(item.rule().capacity)
        }
        _ => 0,
    };
    limit.items().iter().map(of_item).collect()
}

/// The usage that every key is assumed to have at `at`, given the usage without records.
pub fn assumed_usage(limit: &Limit, allowances: &[Amount], at: Timestamp) -> Vec<(usize, UsageRecord)> {
    let mut traces = Vec::new();
    for (index, (item, units)) in
        limit.items().iter().zip(allowances).enumerate().filter(|(_, (_, units))| **units > 0)
    {
        traces.extend(match &item.rule().law {
            Law::FixedWindow(_) => {
                Some((index, UsageRecord::Count { count: *units, last_time: at, until: NO_END }))
            }
            Law::TokenBucket(law) => {
                let tat = at.plus(law.step().times(*units));
                Some((index, UsageRecord::Bucket { tat, step: law.step(), credits: Span::ZERO }))
            }
            _ => None,
        });
    }
    traces
}

/// Identifies one item of one row of one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct CeilingKey {
    generation: u64,
    item: usize,
    key: Option<Tag>,
}

/// A ceiling.
#[derive(Debug, Clone, Copy)]
struct Ceiling {
    version: u32,
    /// The number of resets of the limit at the time.
    epoch: u64,
    /// The window or mark to which the ceiling applies.
    span: Timestamp,
    /// The ceiling in units. For a bucket, the latest arrival time.
    most: u64,
    /// The amount of the last raise.
    slice: u64,
    raised_at: Timestamp,
    /// The log position of the record.
    lsn: u64,
}

/// What must be durable before a charge is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogNeed {
    /// Nothing.
    Nothing,
    /// The log up to this position.
    Wait(u64),
    /// A record of the charge itself.
    Record,
}

/// The ceilings of all rows.
pub struct Ceilings {
    hasher: DefaultHashBuilder,
    shards: Vec<Mutex<HashMap<CeilingKey, Ceiling>>>,
}

/// Maps a usage record to a span and to a number that only increases within the span.
fn usage_level(trace: &UsageRecord) -> (Timestamp, u64) {
    match *trace {
        UsageRecord::Count { count, until, .. } => (until, count),
        UsageRecord::Bucket { tat, .. } => (NO_END, tat.ticks()),
        UsageRecord::Sliding { at, count, .. } => (at, count),
    }
}

/// Raises a usage record to a level.
fn raise_usage(trace: UsageRecord, to: u64) -> UsageRecord {
    match trace {
        UsageRecord::Count { count, last_time, until } => {
            UsageRecord::Count { count: count.max(to), last_time, until }
        }
        UsageRecord::Bucket { tat, step, credits } => {
            UsageRecord::Bucket { tat: tat.max(Timestamp::from_ticks(to)), step, credits }
        }
        UsageRecord::Sliding { at, count, last_time } => {
            UsageRecord::Sliding { at, count: count.max(to), last_time }
        }
    }
}

/// The maximum distance of a ceiling from the usage. Zero means that every charge gets a record.
fn max_slice(charge: &ChargeNote) -> u64 {
    if charge.is_alone {
        return 0;
    }
    let units = match (charge.capacity, &charge.trace) {
        (Capacity::AtMost(limit), _) => limit / SLICES,
        // Nothing is refused, so no unit can be granted twice. An error of this size after a crash is
        // acceptable.
        (Capacity::Unlimited, UsageRecord::Count { count, .. } | UsageRecord::Sliding { count, .. }) => {
            count / SLICES + 1
        }
        (Capacity::Unlimited, UsageRecord::Bucket { .. }) => 0,
    };
    match charge.trace {
        UsageRecord::Bucket { step, .. } => step.times(units).ticks(),
        _ => units,
    }
}

/// Whether `later` makes a record of `earlier` redundant: same row, item and span, and at least the same
/// level.
pub fn covers(later: &ChargeNote, earlier: &ChargeNote) -> bool {
    !earlier.is_alone
        && later.generation == earlier.generation
        && later.key == earlier.key
        && later.item == earlier.item
        && later.version == earlier.version
        && usage_level(&later.trace).0 == usage_level(&earlier.trace).0
        && usage_level(&later.trace).1 >= usage_level(&earlier.trace).1
}

/// Whether a charge is within the usage that needs no record.
pub fn is_allowed(charge: &ChargeNote, allowance: Amount) -> bool {
    if charge.key.is_none() || allowance == 0 {
        return false;
    }
    match charge.trace {
        UsageRecord::Count { count, .. } => count <= allowance,
        UsageRecord::Bucket { tat, step, credits } => {
            credits == Span::ZERO && tat.since(charge.at) <= step.times(allowance)
        }
        UsageRecord::Sliding { .. } => false,
    }
}

impl Default for Ceilings {
    fn default() -> Ceilings {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Ceilings { hasher: DefaultHashBuilder::default(), shards }
    }
}

impl Ceilings {
    fn shard(&self, place: &CeilingKey) -> &Mutex<HashMap<CeilingKey, Ceiling>> {
        let hash = self.hasher.hash_one(place);
        &self.shards[usize::try_from(hash >> 32).unwrap_or_default() % SHARDS]
    }

    /// Returns what must be durable before a charge is reported. To raise the ceiling, `write` logs the
    /// raised usage and returns its position. The caller waits for it only if the charge exceeds the previous
    /// ceiling.
    pub fn log_need<E>(
        &self,
        charge: &ChargeNote,
        epoch: u64,
        write: impl FnOnce(UsageRecord) -> Result<u64, E>,
    ) -> Result<LogNeed, E> {
        let max_slice = max_slice(charge);
        let has_credits = matches!(charge.trace, UsageRecord::Bucket { credits, .. } if credits > Span::ZERO);
        if max_slice == 0 || has_credits {
            return Ok(LogNeed::Record);
        }
        let ChargeNote { generation, item, key, version, at, .. } = *charge;
        let place = CeilingKey { generation, item, key };
        let (span, used) = usage_level(&charge.trace);
        let mut shard = self.shard(&place).lock().unwrap_or_else(PoisonError::into_inner);
        let known = shard.get(&place).copied();
        let valid = known
            .filter(|ceiling| ceiling.version == version && ceiling.epoch == epoch && ceiling.span == span);
        if let Some(ceiling) = valid.filter(|ceiling| used.saturating_add(ceiling.slice / 2) <= ceiling.most)
        {
            return Ok(LogNeed::Wait(ceiling.lsn));
        }
        let slice = match known {
            Some(ceiling) if at.since(ceiling.raised_at) < SHORT => ceiling.slice.saturating_mul(2),
            Some(ceiling) if at.since(ceiling.raised_at) > LONG => ceiling.slice / 2,
            Some(ceiling) => ceiling.slice,
            None => max_slice / 16,
        };
        let slice = slice.clamp(1, max_slice);
        let most = used.saturating_add(slice);
        let lsn = write(raise_usage(charge.trace, most))?;
        if known.is_none() && shard.len() >= MAX_CEILINGS / SHARDS {
            shard.clear();
        }
        shard.insert(place, Ceiling { version, epoch, span, most, slice, raised_at: at, lsn });
        // A charge below the previous ceiling does not wait for the new one.
        Ok(LogNeed::Wait(valid.filter(|ceiling| used <= ceiling.most).map_or(lsn, |ceiling| ceiling.lsn)))
    }

    /// Raises the usage of a row to its ceiling in the log.
    pub fn raised(
        &self,
        generation: u64,
        version: u32,
        key: Option<Tag>,
        item: usize,
        trace: UsageRecord,
        epoch: u64,
    ) -> UsageRecord {
        let place = CeilingKey { generation, item, key };
        let (span, _) = usage_level(&trace);
        let shard = self.shard(&place).lock().unwrap_or_else(PoisonError::into_inner);
        match shard.get(&place) {
            Some(ceiling) if ceiling.version == version && ceiling.epoch == epoch && ceiling.span == span => {
                raise_usage(trace, ceiling.most)
            }
            _ => trace,
        }
    }

    /// Removes the ceilings of a removed limit.
    pub fn forget(&self, generation: u64) {
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.retain(|place, _| place.generation != generation);
        }
    }
}

impl std::fmt::Debug for Ceilings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ceilings").finish_non_exhaustive()
    }
}
