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

/// Stripes that belong to one thread each.
const OWN_STRIPES: usize = 32;
/// Items whose counters a stripe always has.
const USUAL_ITEMS: usize = 8;

/// The counts of one limit.
#[derive(Debug)]
pub(super) struct Counts {
    own: [OnceLock<Box<Stripe>>; OWN_STRIPES],
    common: OnceLock<Box<Stripe>>,
    /// The names of all items that were ever counted. A name keeps its column.
    columns: Mutex<Vec<Box<str>>>,
}

/// The counts of one thread. No other thread writes to them, so they have cache lines of their own.
#[repr(align(128))]
#[derive(Debug)]
struct Stripe {
    granted: AtomicU64,
    shadowed: AtomicU64,
    usual: [AtomicU64; USUAL_ITEMS],
    others: OnceLock<Box<[AtomicU64]>>,
}

/// The stripe of this thread, looked up once per decision.
#[derive(Clone, Copy)]
pub(super) struct Mine<'a> {
    counts: &'a Counts,
    /// `None` before its first count, or if the thread has no stripe of its own.
    stripe: Option<&'a Stripe>,
    /// Not for another thread.
    stays: PhantomData<*const ()>,
}

impl Mine<'_> {
    /// An order was granted.
    #[inline(always)]
    pub(super) fn granted(self) {
        self.add(1, |stripe| &stripe.granted);
    }

    /// Counts refusals of the item in this column.
    #[inline(always)]
    pub(super) fn refused(self, column: usize, orders: u64) {
        self.add(orders, |stripe| stripe.usual.get(column).unwrap_or_else(|| stripe.other(column)));
    }

    #[inline(always)]
    fn add(self, more: u64, count: impl FnOnce(&Stripe) -> &AtomicU64) {
        match self.stripe {
            Some(stripe) => {
                // No other thread writes to it.
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

    /// The stripe of this thread.
    #[inline(always)]
    pub(super) fn mine(&self) -> Mine<'_> {
        self.of_stripe(own())
    }

    #[inline(always)]
    fn of_stripe(&self, own: usize) -> Mine<'_> {
        let stripe = self.own.get(own).and_then(OnceLock::get).map(|stripe| &**stripe);
        Mine { counts: self, stripe, stays: PhantomData }
    }

    /// Counts a granted order.
    #[inline(always)]
    pub(super) fn granted(&self) {
        self.mine().granted();
    }

    /// Counts granted orders in this stripe.
    #[inline(always)]
    pub(super) fn granted_on(&self, stripe: usize, orders: u64) {
        self.of_stripe(stripe).add(orders, |stripe| &stripe.granted);
    }

    /// Counts an order that a shadow limit would have refused.
    pub(super) fn shadowed(&self) {
        self.mine().add(1, |stripe| &stripe.shadowed);
    }

    /// Counts a refusal of the item in this column.
    #[inline(always)]
    pub(super) fn refused(&self, column: usize) {
        self.mine().refused(column, 1);
    }

    /// The stripe of a thread at its first count, or the common stripe.
    #[cold]
    #[inline(never)]
    fn first(&self, own: usize) -> &Stripe {
        let own = if own == NONE { first_own() } else { own };
        self.own.get(own).unwrap_or(&self.common).get_or_init(Box::default)
    }

    /// The columns of these items. Known names keep theirs.
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

    /// The sum of all stripes.
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
    /// The counter of an item beyond the usual ones.
    #[cold]
    #[inline(never)]
    fn other(&self, column: usize) -> &AtomicU64 {
        &self.others.get_or_init(others)[(column - USUAL_ITEMS) % MAX_ITEMS]
    }
}

fn others() -> Box<[AtomicU64]> {
    (0..MAX_ITEMS).map(|_| AtomicU64::new(0)).collect()
}

/// Stripes without a living thread.
static FREE: Mutex<Vec<usize>> = Mutex::new(Vec::new());
/// The number of the first stripe that no thread has had.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// The stripe of a thread, for its lifetime.
struct Own(usize);

impl Own {
    fn new() -> Own {
        // The lock makes the counts of the former owner visible.
        let free = FREE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let fresh = || usize::try_from(NEXT.fetch_add(1, Ordering::Relaxed)).unwrap_or(OWN_STRIPES);
        Own(free.unwrap_or_else(fresh).min(OWN_STRIPES))
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        // Later counts of this ending thread go to the common stripe.
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
    /// The same, without the check for initialization.
    static INDEX: Cell<usize> = const { Cell::new(NONE) };
}

/// The stripe of this thread. [`NONE`] before its first count.
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
