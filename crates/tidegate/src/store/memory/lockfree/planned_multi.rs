//! One unit of several buckets, one per key and the others global: the usual limits of a server, a route and a client.
//!
//! This is the common case of [`super::multi_handle`]: every limit is a bucket without expiry, the `all` rows are behind
//! [one guard](super::super::shared_rows), and everything is granted. All other cases go there before any change.
//!
//! The constant part of the decision is planned once and valid until a rule snapshot is written. Each shared line
//! counts the writes for its limits. Either all snapshots are current or the plan is discarded: a thread that holds all
//! rows and finds a write releases them and plans again.
//!
//! Alternative refused: a write counter per store, which every edit of any limit would raise.
//!
//! The critical figure is the number of instructions between the load of a key's line and the request for the next. If it
//! is below the reorder window of the processor, both cache misses overlap (decision 0018).

#![expect(
    clippy::inline_always,
    reason = "the quick way is one piece of code, a few hundred instructions in all"
)]

use std::sync::Arc;

use arrayvec::ArrayVec;
use tidegate_core::Timestamp;
use tidegate_core::limit::MAX_KEY_BYTES;

use super::super::cache_line::{self, HELD};
use super::super::counters::Counts;
use super::super::leaf::Spot;
use super::super::limit_table::Tenant;
use super::super::rule_snapshot::{Drop, Unit};
use super::super::shared_rows::{self, Bench, Place};
use super::super::sync::{AtomicU64, Mutex, Ordering, fence};

/// Limits of which one counts each key alone and the others all together, and none of which comes twice.
pub(in super::super) struct Bundle {
    plan: Plan,
    keyed: Arc<Tenant>,
    /// Where among all of them that is.
    place: usize,
    others: Box<[Other]>,
    /// What it granted: each time a unit of every limit.
    grants: Arc<Counts>,
    /// Held while the plan is written.
    change: Mutex<()>,
}

/// When they can be decided here and by what, as long as their boards were not [written](written) since.
#[repr(align(64))]
struct Plan {
    written: AtomicU64,
    from: AtomicU64,
    lasts: AtomicU64,
    /// Of the key's rows.
    edition: AtomicU64,
    /// Of the key's limit.
    unit: Unit,
}

/// A limit that counts all keys together, with what is planned of it.
#[repr(align(64))]
struct Other {
    unit: Unit,
    place: Place,
    tenant: Arc<Tenant>,
}

/// Limits in a bundle. Sets of more are decided as sets.
const MOST: usize = 5;

/// Nothing is written that often.
const NONE: u64 = u64::MAX;

impl Bundle {
    /// The bundle of these limits, if they are one as far as anybody knows.
    pub(in super::super) fn of(tenants: &[Arc<Tenant>]) -> Option<Bundle> {
        let place = tenants.iter().position(|tenant| tenant.board.head().is_of_key())?;
        let others = tenants.iter().enumerate().filter(|(index, _)| *index != place);
        let other = |tenant: &Arc<Tenant>| {
            let (unit, place) = (Unit::new(), tenant.all.place.clone());
            Other { unit, place, tenant: Arc::clone(tenant) }
        };
        let others: Box<[Other]> = others.map(|(_, tenant)| other(tenant)).collect();
        let [written, from, lasts, edition] = [NONE, 0, 0, 0].map(AtomicU64::new);
        let (plan, keyed) =
            (Plan { written, from, lasts, edition, unit: Unit::new() }, Arc::clone(&tenants[place]));
        let fits = (1..MOST).contains(&others.len());
        fits.then(|| {
            let grants = Arc::new(Counts::new());
            for tenant in tenants {
                tenant.counts.join(&grants);
            }
            Bundle { plan, keyed, place, others, grants, change: Mutex::new(()) }
        })
    }

    /// Takes a unit of each limit, if it is that simple and all of them grant it.
    #[inline(always)]
    pub(in super::super) fn take(
        &self,
        keys: &[Option<&[u8]>],
        now: impl FnOnce() -> Timestamp,
    ) -> Option<()> {
        // Laid out for each number of limits by itself: so it has no loops.
        match keys.len() {
            2 => self.take_of::<2>(keys.first_chunk()?, now),
            3 => self.take_of::<3>(keys.first_chunk()?, now),
            4 => self.take_of::<4>(keys.first_chunk()?, now),
            MOST => self.take_of::<MOST>(keys.first_chunk()?, now),
            _ => None,
        }
    }

    #[inline(never)]
    fn take_of<const ALL: usize>(
        &self,
        keys: &[Option<&[u8]>; ALL],
        now: impl FnOnce() -> Timestamp,
    ) -> Option<()> {
        let (plan, keyed, others) = (&self.plan, &*self.keyed, &*self.others);
        let key = (*keys.get(self.place)?)?;
        // The key's row may have to be fetched from afar. So it is the first to be asked for, and the last that anything depends on: what is
        // done behind it, and what the next decision does before it asks for its own, is short enough to be done meanwhile.
        let tag = keyed.printer.print_within(key)?;
        let near = keyed.near_of(tag.low)?;
        near.fetch();
        let now = now();
        let planned = plan.written.load(Ordering::Acquire);
        let lasts = plan.lasts.load(Ordering::Relaxed);
        if now.ticks().wrapping_sub(plan.from.load(Ordering::Relaxed)) >= lasts {
            return self.look_again(planned);
        }
        let fits = keys.iter().all(|key| key.is_none_or(|key| key.len() <= MAX_KEY_BYTES));
        if !fits || others.len() != ALL - 1 {
            return None;
        }
        if near.leaf.stamp.edition() != plan.edition.load(Ordering::Relaxed) {
            return None;
        }
        let bench = others.first()?.place.bench();
        let expected = bench.guard().load(Ordering::Acquire);
        if expected & HELD != 0 {
            return None;
        }
        let cells: [&AtomicU64; ALL] = std::array::from_fn(|index| {
            others.get(index).map_or(bench.guard(), |other| bench.cell(&other.place))
        });
        let mut nexts = [0; ALL];
        for ((other, cell), next) in others.iter().zip(&cells).zip(&mut nexts) {
            let word = cell.load(Ordering::Acquire);
            if other.tenant.all.stamp.floor() > now {
                return None;
            }
            *next = other.unit.next(word, now)?;
        }
        let mine = self.grants.mine();
        let Spot { line, cell, word, seen } = near.find(tag)?;
        if near.leaf.stamp.floor() > now {
            return None;
        }
        let next = plan.unit.next(word, now)?;
        // Who does not get both tries no second time here: so nobody waits for anybody, in whichever order these are taken. The guard, which
        // more people want, is held for less.
        if !cache_line::take(cell, word) {
            return None;
        }
        if !cache_line::take(bench.guard(), expected) {
            cache_line::give_back(cell, word);
            return None;
        }
        if !line.unchanged(seen) || written(keyed, bench) != planned {
            cache_line::give_back(bench.guard(), expected);
            cache_line::give_back(cell, word);
            return self.look_again(planned);
        }
        for (cell, next) in cells.iter().zip(&nexts).take(others.len()) {
            cache_line::give_back(cell, *next);
        }
        shared_rows::open(bench.guard(), expected);
        cache_line::give_back(cell, next);
        mine.granted();
        Some(())
    }

    /// Makes another plan if the boards have been written since the last one.
    #[cold]
    #[inline(never)]
    fn look_again(&self, planned: u64) -> Option<()> {
        if written(&self.keyed, self.others.first()?.place.bench()) != planned
            && let Ok(_alone) = self.change.try_lock()
        {
            let survey = self.survey();
            self.plan.written.store(NONE, Ordering::Relaxed);
            // Whoever sees a word of what follows sees that boards were written since the former plan.
            fence(Ordering::Release);
            if let Some(survey) = survey {
                for (unit, found) in self.units().zip(&survey.drops) {
                    unit.set(found);
                }
                self.plan.edition.store(survey.edition, Ordering::Relaxed);
                self.plan.from.store(survey.from, Ordering::Relaxed);
                self.plan.lasts.store(survey.until.saturating_sub(survey.from), Ordering::Relaxed);
                self.plan.written.store(survey.written, Ordering::Release);
            }
        }
        None
    }

    /// Every unit that is planned, in the order in which limits are looked at.
    fn units(&self) -> impl Iterator<Item = &Unit> {
        self.others.iter().map(|other| &other.unit).chain([&self.plan.unit])
    }

    /// What the boards say; `None` if it is to be looked at again.
    fn survey(&self) -> Option<Survey> {
        let bench = self.others.first()?.place.bench();
        // Before the boards: should one be written meanwhile, the plan is over before it has begun.
        let written = bench.written().load(Ordering::Acquire);
        let mut found = Survey { written, until: u64::MAX, ..Survey::default() };
        let mut fit = true;
        for tenant in self.others.iter().map(|other| &other.tenant).chain([&self.keyed]) {
            let sheet = tenant.board.sheet();
            let (head, edition, (from, until)) = (sheet.head(), sheet.edition(), sheet.good());
            let drop = sheet.first_of::<Drop>(head);
            if !sheet.stands() {
                return None;
            }
            fit &= if Arc::ptr_eq(tenant, &self.keyed) {
                found.written = found.written.wrapping_add(sheet.turn());
                found.edition = edition;
                head.has_drops_of_key()
            } else {
                let all = &tenant.all;
                // It is carried over by whoever comes next.
                if edition != 0 && all.stamp.edition() != edition {
                    return None;
                }
                head.has_drops_of_all() && std::ptr::eq(all.place.bench(), bench)
            };
            found.from = found.from.max(from.ticks());
            found.until = found.until.min(until.ticks()).min(drop.fits_until());
            found.drops.push(drop);
        }
        if !fit {
            (found.from, found.until) = (0, 0);
        }
        Some(found)
    }
}

/// How often any of the boards was written, and others beside them. What was planned before is as good as it was if this is what it was.
#[inline(always)]
fn written(keyed: &Tenant, bench: &Bench) -> u64 {
    fence(Ordering::Acquire);
    bench.written().load(Ordering::Relaxed).wrapping_add(keyed.board.turn())
}

/// What was found on the boards.
#[derive(Default)]
struct Survey {
    /// How often they were written.
    written: u64,
    /// They can be gone by from here
    from: u64,
    /// to before this instant.
    until: u64,
    /// Of the key's rows.
    edition: u64,
    /// In the order in which limits are looked at.
    drops: ArrayVec<Drop, MOST>,
}

impl std::ops::Drop for Bundle {
    fn drop(&mut self) {
        let others = self.others.iter().map(|other| &other.tenant);
        others.chain([&self.keyed]).for_each(|tenant| tenant.counts.part(&self.grants));
    }
}
