//! One unit of several buckets, one of them of a key and the others of all: what servers, routes and clients are bounded by.
//!
//! It is a [set](super::together) as most are: every limit is a bucket that does not end, the `all` rows lie [behind one
//! guard](super::super::gallery), and everything is granted. Whatever is not that simple is left to the set, and nothing has been done by then.
//!
//! What is the same from one decision to the next is looked at once, and holds for as long as no board has been written: the turns of
//! boards only rise, so they are what they were if their sum is. Decided: all of them are believed or none; who finds the sum changed with
//! everything in hand gives it back, and looks again.

#![expect(
    clippy::inline_always,
    reason = "the quick way is one piece of code, a few hundred instructions in all"
)]

use std::sync::Arc;

use tidegate_core::Timestamp;
use tidegate_core::limit::LONGEST_KEY;

use super::super::Shared;
use super::super::brief::{CellLaw, Drop, Next};
use super::super::counts::Counts;
use super::super::gallery;
use super::super::leaf::Spot;
use super::super::line::{self, HELD};
use super::super::sync::{AtomicU64, Mutex, Ordering, fence};
use super::super::tenant::Tenant;
use super::MOST_ROWS;

/// Limits of which one counts each key alone and the others all together, and none of which comes twice.
pub(in super::super) struct Bundle {
    plan: Plan,
    keyed: Arc<Tenant>,
    /// Where among all of them that is.
    place: usize,
    others: Box<[Arc<Tenant>]>,
    /// What it granted: each time a unit of every limit.
    grants: Arc<Counts>,
    /// Held while the plan is written.
    change: Mutex<()>,
}

/// When they can be decided here, as long as the turns of their boards make this sum.
#[repr(align(64))]
struct Plan {
    turns: AtomicU64,
    from: AtomicU64,
    until: AtomicU64,
}

/// No turns make this sum.
const NONE: u64 = u64::MAX;

impl Bundle {
    /// The bundle of these limits, if they are one as far as anybody knows.
    pub(in super::super) fn of(tenants: &[Arc<Tenant>]) -> Option<Bundle> {
        let place = tenants.iter().position(|tenant| tenant.board.head().is_of_key())?;
        let others = tenants.iter().enumerate().filter(|(index, _)| *index != place);
        let others: Box<[Arc<Tenant>]> = others.map(|(_, tenant)| Arc::clone(tenant)).collect();
        let [turns, from, until] = [NONE, 0, 0].map(AtomicU64::new);
        let (plan, keyed) = (Plan { turns, from, until }, Arc::clone(&tenants[place]));
        let fits = (1..MOST_ROWS).contains(&others.len());
        fits.then(|| {
            let grants = Arc::new(Counts::new());
            for tenant in tenants {
                tenant.counts.join(&grants);
            }
            Bundle { plan, keyed, place, others, grants, change: Mutex::new(()) }
        })
    }

    /// Takes a unit of each limit, if it is that simple and all of them grant it.
    #[inline(never)]
    pub(in super::super) fn take(&self, shared: &Shared, keys: &[Option<&[u8]>]) -> Option<()> {
        self.take_at(keys, shared.now())
    }

    /// The same at this instant.
    #[inline(always)]
    pub(in super::super) fn take_at(&self, keys: &[Option<&[u8]>], now: Timestamp) -> Option<()> {
        let key = (*keys.get(self.place)?)?;
        let turns = self.plan.turns.load(Ordering::Acquire);
        let is_good = self.plan.from.load(Ordering::Relaxed) <= now.ticks()
            && now.ticks() < self.plan.until.load(Ordering::Relaxed);
        if !is_good {
            return self.look_again(turns);
        }
        for key in keys {
            if key.is_some_and(|key| key.len() > LONGEST_KEY) {
                return None;
            }
        }
        // The key's row may have to be fetched from afar, and the others are judged meanwhile: so it is the first to be asked for, and the last
        // that anything depends on.
        let tenant = &*self.keyed;
        let tag = tenant.printer.print(key);
        let near = tenant.near(tag)?;
        if near.leaf.stamp.edition() != tenant.board.edition() {
            return None;
        }
        let seen = near.begin();
        let guard = self.others.first()?.all.place.guard();
        let expected = guard.load(Ordering::Acquire);
        if expected & HELD != 0 {
            return None;
        }
        let mut nexts = [0; MOST_ROWS];
        for (other, next) in self.others.iter().zip(&mut nexts) {
            let word = other.all.cell().load(Ordering::Acquire);
            if other.all.stamp.floor() > now {
                return None;
            }
            *next = granted(&other.board.drop(), word, now)?;
        }
        let Spot { line, cell, word, seen } = near.find_since(tag, seen)?;
        if near.leaf.stamp.floor() > now {
            return None;
        }
        let next = granted(&tenant.board.drop(), word, now)?;
        // In the order in which everybody takes them: so one of those who meet gets on. In a model addresses differ from run to run.
        let is_first = cfg!(tidegate_loom) || std::ptr::from_ref(guard) < std::ptr::from_ref(cell);
        let (one, was) = if is_first { (guard, expected) } else { (cell, word) };
        let (other, had) = if is_first { (cell, word) } else { (guard, expected) };
        if !line::take(one, was) {
            return None;
        }
        if !line::take(other, had) {
            line::give_back(one, was);
            return None;
        }
        if !line.unchanged(seen) || self.turns() != turns {
            line::give_back(other, had);
            line::give_back(one, was);
            return self.look_again(turns);
        }
        for (tenant, next) in self.others.iter().zip(&nexts) {
            line::give_back(tenant.all.cell(), *next);
        }
        line::give_back(cell, next);
        gallery::open(guard, expected);
        self.grants.granted();
        Some(())
    }

    /// The sum of all boards' turns. What was read of the boards before was read while it was this, if it was this before.
    #[inline(always)]
    fn turns(&self) -> u64 {
        fence(Ordering::Acquire);
        let others = self.others.iter().map(|tenant| tenant.board.turn());
        others.fold(self.keyed.board.turn(), u64::wrapping_add)
    }

    /// Makes another plan if the boards have been written since the last one.
    #[cold]
    #[inline(never)]
    fn look_again(&self, turns: u64) -> Option<()> {
        if self.turns() != turns
            && let Ok(_alone) = self.change.try_lock()
        {
            let survey = self.survey();
            self.plan.turns.store(NONE, Ordering::Relaxed);
            // Whoever sees a word of what follows sees that the boards had the turns that were found, and not those of the former plan.
            fence(Ordering::Release);
            if let Some((turns, from, until)) = survey {
                self.plan.from.store(from.ticks(), Ordering::Relaxed);
                self.plan.until.store(until.ticks(), Ordering::Relaxed);
                self.plan.turns.store(turns, Ordering::Release);
            }
        }
        None
    }

    /// The sum of the turns, and when the boards can be gone by from the first to before the second instant; `None` if it is to be
    /// looked at again.
    fn survey(&self) -> Option<(u64, Timestamp, Timestamp)> {
        let never = (Timestamp::EPOCH, Timestamp::EPOCH);
        let guard = self.others.first()?.all.place.guard();
        let (mut sum, mut good) = (0_u64, Some((Timestamp::EPOCH, Timestamp::from_ticks(u64::MAX))));
        for tenant in self.others.iter().chain([&self.keyed]) {
            let sheet = tenant.board.sheet();
            let (head, edition, (from, until)) = (sheet.head(), sheet.edition(), sheet.good());
            if !sheet.stands() {
                return None;
            }
            sum = sum.wrapping_add(sheet.turn());
            let fits = if std::ptr::eq(Arc::as_ptr(tenant), Arc::as_ptr(&self.keyed)) {
                head.is_only_of_key() && head.has_drops()
            } else {
                let all = &tenant.all;
                // It is carried over by whoever comes next.
                if edition != 0 && all.stamp.edition() != edition {
                    return None;
                }
                head.has_drops_of_all() && std::ptr::eq(all.place.guard(), guard)
            };
            good = good.filter(|_| fits).map(|(first, last)| (first.max(from), last.min(until)));
        }
        let (from, until) = good.unwrap_or(never);
        Some((sum, from, until))
    }
}

impl std::ops::Drop for Bundle {
    fn drop(&mut self) {
        self.others.iter().chain([&self.keyed]).for_each(|tenant| tenant.counts.part(&self.grants));
    }
}

/// What a cell says after a unit was taken, if it is granted.
#[inline(always)]
fn granted(law: &Drop, word: u64, now: Timestamp) -> Option<u64> {
    match law.next(word, now) {
        Next::Granted(next) => Some(next),
        Next::Denied(_) | Next::Unsaid => None,
    }
}
