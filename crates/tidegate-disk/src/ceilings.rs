//! Ceilings: how much of each row the log has already allowed for.
//!
//! Writing every charge down would make the log as busy as the limits. Instead the log says of a row that *at most* so much of it has been
//! used; as long as that is true, charges need no record. A charge that would pass the ceiling raises it, by a slice, and waits until
//! that is durable. After a crash everything up to the ceiling counts as used: up to a slice is lost, and nothing is sold twice.
//!
//! ```text
//!   limit 10,000      used ───────▶│            │ceiling            slice: what is used in about a second,
//!                                  5,120        5,159              at most 1/256 of the limit: 39
//!                                        5,140 ▲ half a slice left: raised early, nobody waits
//! ```
//!
//! Three kinds of charges are different:
//! - limits below 256, and those that say `sync`: every charge is written down, and nothing is lost;
//! - exact sliding windows: the next charge has an instant of its own, so every one is written down;
//! - the first 1/256 of a key's window or bucket: not written down at all, because most keys never use more. After a crash every key is
//!   taken to have used that much ([`allowance`]).
//!
//! This table is a cache. What it has forgotten is written down again, one record too many; so it is bounded, and forgets without asking.

use std::hash::BuildHasher;
use std::sync::{Mutex, PoisonError};

use hashbrown::{DefaultHashBuilder, HashMap};
use tidegate::store::memory::journal::{Charge, Tag};
use tidegate_core::usage_record::NO_END;
use tidegate_core::{Amount, Capacity, Law, Limit, Span, Timestamp, UsageRecord};

/// The part of a limit that a crash may lose.
pub const SLICES: u64 = 256;

/// How many rows' ceilings are remembered, at most.
pub const MOST_CEILINGS: usize = 1 << 18;

/// In how many parts, so that threads do not wait for each other.
const SHARDS: usize = 64;

/// A ceiling that lasts less than this was raised by too little,
const SHORT: Span = Span::from_ticks(500_000_000);
/// and one that lasts longer than this by too much.
const LONG: Span = Span::from_ticks(2_000_000_000);

/// What may be used of an item of this capacity before anything of it is written down.
pub fn allowance(capacity: Capacity) -> Amount {
    match capacity {
        Capacity::Unlimited => 0,
        Capacity::AtMost(limit) => limit / SLICES,
    }
}

/// What keys of a limit may use of each item before it is written down: nothing of `total`s, of sliding windows and of what leases hold.
pub fn allowances(limit: &Limit) -> Vec<Amount> {
    let of_item = |item: &tidegate_core::Item| match (&item.rule().law, item.per()) {
        (Law::FixedWindow(_) | Law::TokenBucket(_), tidegate_core::Per::Key) => {
            allowance(item.rule().capacity)
        }
        _ => 0,
    };
    limit.items().iter().map(of_item).collect()
}

/// What every key is taken to have used at `at`, if this much of each item was not written down.
pub fn ghost(limit: &Limit, allowances: &[Amount], at: Timestamp) -> Vec<(usize, UsageRecord)> {
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

/// Which row of which limit, and which item of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Place {
    generation: u64,
    item: usize,
    key: Option<Tag>,
}

/// What has been allowed for.
#[derive(Debug, Clone, Copy)]
struct Ceiling {
    version: u32,
    /// How often the limit's counts had been zeroed.
    epoch: u64,
    /// Which window or mark it is of.
    span: Timestamp,
    /// So much of it may be used. Of a bucket, the latest arrival time.
    most: u64,
    /// By how much it was raised.
    slice: u64,
    raised_at: Timestamp,
    /// Where in the log that stands.
    lsn: u64,
}

/// What a charge needs before it is spoken of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Nothing.
    Nothing,
    /// The log up to here.
    Wait(u64),
    /// A record of its own.
    Record,
}

/// The ceilings of all rows.
pub struct Ceilings {
    hasher: DefaultHashBuilder,
    shards: Vec<Mutex<HashMap<Place, Ceiling>>>,
}

/// A trace as a number that only rises within a span.
fn level(trace: &UsageRecord) -> (Timestamp, u64) {
    match *trace {
        UsageRecord::Count { count, until, .. } => (until, count),
        UsageRecord::Bucket { tat, .. } => (NO_END, tat.ticks()),
        UsageRecord::Sliding { at, count, .. } => (at, count),
    }
}

/// The same trace at a higher level.
fn lift(trace: UsageRecord, to: u64) -> UsageRecord {
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

/// The most that a ceiling may be above what is used; nothing if every charge is to be written down.
fn widest(charge: &Charge) -> u64 {
    if charge.is_alone {
        return 0;
    }
    let units = match (charge.capacity, &charge.trace) {
        (Capacity::AtMost(limit), _) => limit / SLICES,
        // Nothing is refused, so nothing can be sold too often; a count that is off by this much after a crash is good enough.
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

/// Whether the second of two charges says all that the first does: of the same row and item, in the same span.
pub fn covers(later: &Charge, earlier: &Charge) -> bool {
    !earlier.is_alone
        && later.generation == earlier.generation
        && later.key == earlier.key
        && later.item == earlier.item
        && later.version == earlier.version
        && level(&later.trace).0 == level(&earlier.trace).0
        && level(&later.trace).1 >= level(&earlier.trace).1
}

/// Whether a charge is within what is not written down.
pub fn is_allowed(charge: &Charge, allowance: Amount) -> bool {
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
    /// No ceilings.
    fn default() -> Ceilings {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Ceilings { hasher: DefaultHashBuilder::default(), shards }
    }
}

impl Ceilings {
    fn shard(&self, place: &Place) -> &Mutex<HashMap<Place, Ceiling>> {
        let hash = self.hasher.hash_one(place);
        &self.shards[usize::try_from(hash >> 32).unwrap_or_default() % SHARDS]
    }

    /// What a charge needs. If its ceiling must be raised, `write` writes the higher trace down and says where; that is waited for if the
    /// charge is above the ceiling that was.
    pub fn need<E>(
        &self,
        charge: &Charge,
        epoch: u64,
        write: impl FnOnce(UsageRecord) -> Result<u64, E>,
    ) -> Result<Need, E> {
        let widest = widest(charge);
        let has_credits = matches!(charge.trace, UsageRecord::Bucket { credits, .. } if credits > Span::ZERO);
        if widest == 0 || has_credits {
            return Ok(Need::Record);
        }
        let Charge { generation, item, key, version, at, .. } = *charge;
        let place = Place { generation, item, key };
        let (span, used) = level(&charge.trace);
        let mut shard = self.shard(&place).lock().unwrap_or_else(PoisonError::into_inner);
        let known = shard.get(&place).copied();
        let valid = known
            .filter(|ceiling| ceiling.version == version && ceiling.epoch == epoch && ceiling.span == span);
        if let Some(ceiling) = valid.filter(|ceiling| used.saturating_add(ceiling.slice / 2) <= ceiling.most)
        {
            return Ok(Need::Wait(ceiling.lsn));
        }
        let slice = match known {
            Some(ceiling) if at.since(ceiling.raised_at) < SHORT => ceiling.slice.saturating_mul(2),
            Some(ceiling) if at.since(ceiling.raised_at) > LONG => ceiling.slice / 2,
            Some(ceiling) => ceiling.slice,
            None => widest / 16,
        };
        let slice = slice.clamp(1, widest);
        let most = used.saturating_add(slice);
        let lsn = write(lift(charge.trace, most))?;
        if known.is_none() && shard.len() >= MOST_CEILINGS / SHARDS {
            shard.clear();
        }
        shard.insert(place, Ceiling { version, epoch, span, most, slice, raised_at: at, lsn });
        // Below the ceiling that was, nobody need wait for the new one.
        Ok(Need::Wait(valid.filter(|ceiling| used <= ceiling.most).map_or(lsn, |ceiling| ceiling.lsn)))
    }

    /// A trace of a row as high as the log has allowed for it.
    pub fn raised(
        &self,
        generation: u64,
        version: u32,
        key: Option<Tag>,
        item: usize,
        trace: UsageRecord,
        epoch: u64,
    ) -> UsageRecord {
        let place = Place { generation, item, key };
        let (span, _) = level(&trace);
        let shard = self.shard(&place).lock().unwrap_or_else(PoisonError::into_inner);
        match shard.get(&place) {
            Some(ceiling) if ceiling.version == version && ceiling.epoch == epoch && ceiling.span == span => {
                lift(trace, ceiling.most)
            }
            _ => trace,
        }
    }

    /// A limit is gone; nobody will ask for its ceilings.
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
