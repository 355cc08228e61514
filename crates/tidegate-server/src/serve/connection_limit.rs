//! The crowd: how many connections there are.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts connections up to a bound. Copies count together.
#[derive(Debug, Clone)]
pub(super) struct Crowd {
    present: Arc<AtomicUsize>,
    most: usize,
}

/// A place in the crowd; free again when it is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    present: Arc<AtomicUsize>,
}

impl Crowd {
    pub(super) fn of(most: usize) -> Crowd {
        Crowd { present: Arc::default(), most }
    }

    /// A place, if there is one.
    pub(super) fn enter(&self) -> Option<Seat> {
        // Who finds no place is never counted, not even for a moment: it could cost somebody else theirs.
        let one_more = |present: usize| (present < self.most).then_some(present + 1);
        self.present.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        Some(Seat { present: Arc::clone(&self.present) })
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.present.load(Ordering::Relaxed)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.present.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_only_so_many_places_and_they_come_back() {
        let crowd = Crowd::of(2);
        let first = crowd.enter().expect("the first place");
        let _second = crowd.enter().expect("the second place");
        assert!(crowd.enter().is_none());
        assert_eq!(crowd.len(), 2, "who was sent away is not counted");
        drop(first);
        assert!(crowd.enter().is_some());
    }
}
