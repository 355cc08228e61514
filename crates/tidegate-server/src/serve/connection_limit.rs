//! The connections: how many connections there are.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts connections up to a bound. Copies count together.
#[derive(Debug, Clone)]
pub(super) struct ConnectionLimit {
    open: Arc<AtomicUsize>,
    max: usize,
}

/// A place in the connections; free again when it is dropped.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    open: Arc<AtomicUsize>,
}

impl ConnectionLimit {
    pub(super) fn of(max: usize) -> ConnectionLimit {
        ConnectionLimit { open: Arc::default(), max }
    }

    /// A place, if there is one.
    pub(super) fn try_acquire(&self) -> Option<ConnectionSlot> {
        // Caller finds no place is never counted, not even for a moment: it could cost somebody else theirs.
        let one_more = |open: usize| (open < self.max).then_some(open + 1);
        self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        Some(ConnectionSlot { open: Arc::clone(&self.open) })
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_only_so_many_places_and_they_come_back() {
        let connections = ConnectionLimit::of(2);
        let first = connections.try_acquire().expect("the first place");
        let _second = connections.try_acquire().expect("the second place");
        assert!(connections.try_acquire().is_none());
        assert_eq!(connections.len(), 2, "who was sent away is not counted");
        drop(first);
        assert!(connections.try_acquire().is_some());
    }
}
