//! Memory budgets: the bytes of a store, and the bytes and rows of each limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// What may be taken, and what is. A limit's budget is a part of its store's.
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

    /// The budget of a limit: half of its store's, however many rows that is.
    pub(super) fn half_of(whole: &Arc<Budget>) -> Budget {
        Budget::part_of(Some(Arc::clone(whole)), whole.most / 2)
    }

    /// Sets how many rows there may be.
    pub(super) fn bound_rows(&self, most: Option<u64>) {
        self.most_rows.store(most.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// How many rows there are.
    pub(super) fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    /// Whether there may be this many rows more.
    pub(super) fn has_rows_for(&self, more: u64) -> bool {
        self.rows().saturating_add(more) <= self.most_rows.load(Ordering::Relaxed)
    }

    /// Whether there are more rows than there may be: the bound was lowered.
    pub(super) fn has_too_many_rows(&self) -> bool {
        self.rows() > self.most_rows.load(Ordering::Relaxed)
    }

    /// Takes a row, if it is not one too many. Two threads do not take the last one both.
    pub(super) fn take_row(&self) -> bool {
        let most = self.most_rows.load(Ordering::Relaxed);
        let fits = |rows: u64| (rows < most).then_some(rows + 1);
        self.rows.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    /// Gives a row back.
    pub(super) fn give_row(&self) {
        self.rows.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether there are that many bytes left.
    pub(super) fn has(&self, bytes: usize) -> bool {
        self.taken().saturating_add(bytes) <= self.most
            && self.whole.as_ref().is_none_or(|whole| whole.has(bytes))
    }

    /// Takes bytes, if there are that many left.
    pub(super) fn take(&self, bytes: usize) -> bool {
        // Whoever has none left does not reach into everybody's.
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

    /// Takes bytes for something that cannot be done without.
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

    /// How many bytes may be taken.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// How many bytes are taken.
    pub(super) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }
}

/// What a limit took goes back when it does.
impl Drop for Budget {
    fn drop(&mut self) {
        if let Some(whole) = &self.whole {
            whole.give(self.taken());
        }
    }
}
