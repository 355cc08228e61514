//! Statistics counters without contention.
//!
//! Each live thread owns a stripe and updates it with plain loads and stores. Readers sum the stripes. Threads beyond the
//! number of stripes share the last one, at the cost of contention.

#![expect(clippy::inline_always, reason = "these are parts of the quick way, which is one piece of code")]

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use tidegate_core::limit::MAX_ITEMS;

use crate::store::ItemCount;

/// Stripes that belong to one thread.
const OWN_STRIPES: usize = 32;
/// Items that are counted one by one from the start.
const USUAL_ITEMS: usize = 8;

/// The counts of one limit.
#[derive(Debug)]
pub(super) struct Counts {
    own: [OnceLock<Box<Stripe>>; OWN_STRIPES],
    common: OnceLock<Box<Stripe>>,
    /// The names of the items that were ever counted; a name keeps its column.
    columns: Mutex<Vec<Box<str>>>,
}

/// What one thread counted. Nobody else writes to it, so it does not share a cache line.
#[repr(align(128))]
#[derive(Debug)]
struct Stripe {
    granted: AtomicU64,
    shadowed: AtomicU64,
    usual: [AtomicU64; USUAL_ITEMS],
    others: OnceLock<Box<[AtomicU64]>>,
}

/// Where this thread counts, found beforehand by whoever has the time then.
#[derive(Clone, Copy)]
pub(super) struct Mine<'a> {
    counts: &'a Counts,
    /// None before it has counted anything, or if it has none of its own.
    stripe: Option<&'a Stripe>,
    /// It is not for another thread.
    stays: PhantomData<*const ()>,
}

impl Mine<'_> {
    /// An order was granted.
    #[inline(always)]
    pub(super) fn granted(self) {
        self.add(1, |stripe| &stripe.granted);
    }

    /// The item in this column refused so many times.
    #[inline(always)]
    pub(super) fn refused(self, column: usize, orders: u64) {
        self.add(orders, |stripe| stripe.usual.get(column).unwrap_or_else(|| stripe.other(column)));
    }

    #[inline(always)]
    fn add(self, more: u64, count: impl FnOnce(&Stripe) -> &AtomicU64) {
        match self.stripe {
            Some(stripe) => {
                // Nobody else writes to it.
                let count = count(stripe);
                count.store(count.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
            }
            None => {
                count(self.counts.first(own())).fetch_add(more, Ordering::Relaxed);
            }
        }
    }
}

/// The sum of all stripes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Sum {
    pub(super) granted: u64,
    pub(super) shadowed: u64,
    pub(super) items: Vec<ItemCount>,
}

impl Counts {
    pub(super) fn new() -> Counts {
        let own = [const { OnceLock::new() }; OWN_STRIPES];
        Counts { own, common: OnceLock::new(), columns: Mutex::default() }
    }

    /// Where this thread counts.
    #[inline(always)]
    pub(super) fn mine(&self) -> Mine<'_> {
        self.of_stripe(own())
    }

    #[inline(always)]
    fn of_stripe(&self, own: usize) -> Mine<'_> {
        let stripe = self.own.get(own).and_then(OnceLock::get).map(|stripe| &**stripe);
        Mine { counts: self, stripe, stays: PhantomData }
    }

    /// An order was granted.
    #[inline(always)]
    pub(super) fn granted(&self) {
        self.mine().granted();
    }

    /// So many orders were granted, by whoever has this stripe.
    #[inline(always)]
    pub(super) fn granted_on(&self, stripe: usize, orders: u64) {
        self.of_stripe(stripe).add(orders, |stripe| &stripe.granted);
    }

    /// A limit that only watches would have refused.
    pub(super) fn shadowed(&self) {
        self.mine().add(1, |stripe| &stripe.shadowed);
    }

    /// The item in this column refused.
    #[inline(always)]
    pub(super) fn refused(&self, column: usize) {
        self.mine().refused(column, 1);
    }

    /// The stripe of a thread that counts for the first time, or for good if it has none of its own.
    #[cold]
    #[inline(never)]
    fn first(&self, own: usize) -> &Stripe {
        let own = if own == NONE { first_own() } else { own };
        self.own.get(own).unwrap_or(&self.common).get_or_init(Box::default)
    }

    /// The columns of these items. Names that were counted before keep theirs.
    pub(super) fn columns<'a>(&self, names: impl Iterator<Item = &'a str>) -> Box<[usize]> {
        let mut known = self.columns.lock().unwrap_or_else(PoisonError::into_inner);
        let column = |name: &str| {
            known.iter().position(|other| **other == *name).unwrap_or_else(|| {
                known.push(name.into());
                known.len() - 1
            })
        };
        names.map(column).collect()
    }

    fn stripes(&self) -> impl Iterator<Item = &Stripe> {
        self.own.iter().chain([&self.common]).filter_map(OnceLock::get).map(|stripe| &**stripe)
    }

    /// Everything that was counted.
    pub(super) fn sum(&self) -> Sum {
        let names = self.columns.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let items = names.iter().map(|name| ItemCount { item: name.to_string(), refused: 0 }).collect();
        let mut sum = Sum { items, ..Sum::default() };
        for stripe in self.stripes() {
            sum.granted += stripe.granted.load(Ordering::Relaxed);
            sum.shadowed += stripe.shadowed.load(Ordering::Relaxed);
            let others = stripe.others.get().into_iter().flatten();
            for (item, count) in sum.items.iter_mut().zip(stripe.usual.iter().chain(others)) {
                item.refused += count.load(Ordering::Relaxed);
            }
        }
        sum
    }
}

impl Default for Stripe {
    fn default() -> Stripe {
        Stripe {
            granted: AtomicU64::new(0),
            shadowed: AtomicU64::new(0),
            usual: std::array::from_fn(|_| AtomicU64::new(0)),
            others: OnceLock::new(),
        }
    }
}

impl Stripe {
    /// The count of an item beyond the usual ones.
    #[cold]
    #[inline(never)]
    fn other(&self, column: usize) -> &AtomicU64 {
        &self.others.get_or_init(others)[(column - USUAL_ITEMS) % MAX_ITEMS]
    }
}

fn others() -> Box<[AtomicU64]> {
    (0..MAX_ITEMS).map(|_| AtomicU64::new(0)).collect()
}

/// Stripes that no living thread has.
static FREE: Mutex<Vec<usize>> = Mutex::new(Vec::new());
/// Stripes that no thread ever had begin here.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// The stripe of a thread, for as long as it lives.
struct Own(usize);

impl Own {
    fn new() -> Own {
        // Taking over under the lock, one sees everything that the one before counted.
        let free = FREE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let fresh = || usize::try_from(NEXT.fetch_add(1, Ordering::Relaxed)).unwrap_or(OWN_STRIPES);
        Own(free.unwrap_or_else(fresh).min(OWN_STRIPES))
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        // Whatever this thread still counts on its way out it counts where all may.
        INDEX.set(OWN_STRIPES);
        if self.0 < OWN_STRIPES {
            FREE.lock().unwrap_or_else(PoisonError::into_inner).push(self.0);
        }
    }
}

/// No stripe yet.
const NONE: usize = usize::MAX;

thread_local! {
    static OWN: Own = Own::new();
    /// The same, to be read without asking whether it was made and is still there.
    static INDEX: Cell<usize> = const { Cell::new(NONE) };
}

/// The stripe of this thread, or [`NONE`] if it has not counted yet.
#[inline(always)]
pub(super) fn own() -> usize {
    INDEX.get()
}

#[cold]
fn first_own() -> usize {
    let index = OWN.try_with(|own| own.0).unwrap_or(OWN_STRIPES);
    INDEX.set(index);
    index
}
