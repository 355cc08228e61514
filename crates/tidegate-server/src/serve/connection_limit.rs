//! The limit on open connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts open connections up to a maximum. Clones share the count.
#[derive(Debug, Clone)]
pub(super) struct ConnectionLimit {
    open: Arc<AtomicUsize>,
    max: usize,
}

/// One counted connection; the slot is freed on drop.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    open: Arc<AtomicUsize>,
}

impl ConnectionLimit {
    pub(super) fn of(max: usize) -> ConnectionLimit {
        ConnectionLimit { open: Arc::default(), max }
    }

    /// Takes a slot if one is free.
    pub(super) fn try_acquire(&self) -> Option<ConnectionSlot> {
        // An attempt that fails never raises the count, so it cannot cost another connection its slot.
        let one_more = |open: usize| (open < self.max).then_some(open + 1);
        self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        Some(ConnectionSlot { open: Arc::clone(&self.open) })
    }

    /// Number of slots in use.
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
    fn slots_are_bounded_and_freed_on_drop() {
        let connections = ConnectionLimit::of(2);
        let first = connections.try_acquire().expect("the first slot");
        let _second = connections.try_acquire().expect("the second slot");
        assert!(connections.try_acquire().is_none());
        assert_eq!(connections.len(), 2, "a failed attempt is not counted");
        drop(first);
        assert!(connections.try_acquire().is_some());
    }
}
