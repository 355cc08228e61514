//! Memory budgets: the bytes of a store, and the bytes and rows of each limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A bound and what is taken of it. The budget of a limit is a part of that of its store.
#[derive(Debug)]
pub(super) struct Budget {
    most: usize,
    taken: AtomicUsize,
    most_rows: AtomicU64,
    rows: AtomicU64,
    whole: Option<Arc<Budget>>,
}

impl Budget {
    /// The budget of a store.
    pub(super) fn new(most: usize) -> Budget {
        Budget::part_of(None, most)
    }

    fn part_of(whole: Option<Arc<Budget>>, most: usize) -> Budget {
        Budget {
            most,
            taken: AtomicUsize::new(0),
            most_rows: AtomicU64::new(u64::MAX),
            rows: AtomicU64::new(0),
            whole,
        }
    }

    /// The budget of a limit: half of the store's bytes, and any number of rows.
    pub(super) fn half_of(whole: &Arc<Budget>) -> Budget {
        Budget::part_of(Some(Arc::clone(whole)), whole.most / 2)
    }

    /// Sets the maximum number of rows.
    pub(super) fn bound_rows(&self, most: Option<u64>) {
        self.most_rows.store(most.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The number of rows.
    pub(super) fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    /// Whether there is room for this many more rows.
    pub(super) fn has_rows_for(&self, more: u64) -> bool {
        self.rows().saturating_add(more) <= self.most_rows.load(Ordering::Relaxed)
    }

    /// Whether there are more rows than the bound, because it was lowered.
    pub(super) fn has_too_many_rows(&self) -> bool {
        self.rows() > self.most_rows.load(Ordering::Relaxed)
    }

    /// Takes a row if there is room for it. The check and the change are atomic.
    pub(super) fn take_row(&self) -> bool {
        let most = self.most_rows.load(Ordering::Relaxed);
        let fits = |rows: u64| (rows < most).then_some(rows + 1);
        self.rows.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    /// Gives a row back.
    pub(super) fn give_row(&self) {
        self.rows.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether this many bytes are left.
    pub(super) fn has(&self, bytes: usize) -> bool {
        self.taken().saturating_add(bytes) <= self.most
            && self.whole.as_ref().is_none_or(|whole| whole.has(bytes))
    }

    /// Takes bytes if they are left.
    pub(super) fn take(&self, bytes: usize) -> bool {
        // A limit without bytes does not touch the budget of the store.
        if self.taken().saturating_add(bytes) > self.most {
            return false;
        }
        if self.whole.as_ref().is_some_and(|whole| !whole.take(bytes)) {
            return false;
        }
        let fits = |taken: usize| taken.checked_add(bytes).filter(|&sum| sum <= self.most);
        let took = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok();
        if !took && let Some(whole) = &self.whole {
            whole.give(bytes);
        }
        took
    }

    /// Takes bytes, even above the bound.
    pub(super) fn take_anyway(&self, bytes: usize) {
        self.taken.fetch_add(bytes, Ordering::Relaxed);
        if let Some(whole) = &self.whole {
            whole.take_anyway(bytes);
        }
    }

    /// Gives bytes back.
    pub(super) fn give(&self, bytes: usize) {
        let less = |taken: usize| Some(taken.saturating_sub(bytes));
        let _always = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        if let Some(whole) = &self.whole {
            whole.give(bytes);
        }
    }

    /// The bound in bytes.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// The bytes taken.
    pub(super) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }
}

/// A dropped limit gives its bytes back.
impl Drop for Budget {
    fn drop(&mut self) {
        if let Some(whole) = &self.whole {
            whole.give(self.taken());
        }
    }
}
