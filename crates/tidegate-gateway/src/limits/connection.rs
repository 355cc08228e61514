//! A connection: what it holds, until it is dropped.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate::{LeaseId, MemoryStore, Store};

use super::plan::Gauge;

/// A connection that was let in. It is counted until it is dropped, whatever ends it, and given back once.
pub struct Connection {
    store: MemoryStore,
    client: Option<Box<[u8]>>,
    held: Mutex<Held>,
}

/// What a connection holds.
#[derive(Default)]
pub(super) struct Held {
    leases: Vec<LeaseId>,
    limits: Vec<Arc<str>>,
}

impl Held {
    /// Whether a limit counts the connection already.
    pub(super) fn has(&self, gauge: &Gauge) -> bool {
        self.limits.iter().any(|held| Arc::ptr_eq(held, &gauge.id) || **held == *gauge.id)
    }

    pub(super) fn add<'g>(&mut self, lease: Option<LeaseId>, gauges: impl IntoIterator<Item = &'g Gauge>) {
        self.leases.extend(lease);
        self.limits.extend(gauges.into_iter().map(|gauge| Arc::clone(&gauge.id)));
    }
}

impl Connection {
    pub(super) fn new(store: MemoryStore, client: Option<&[u8]>) -> Connection {
        Connection { store, client: client.map(Into::into), held: Mutex::default() }
    }

    /// Whose it is, if it is one client's.
    pub fn client(&self) -> Option<&[u8]> {
        self.client.as_deref()
    }

    pub(super) fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let held = self.held.get_mut().unwrap_or_else(PoisonError::into_inner);
        for lease in held.leases.drain(..) {
            self.store.release(lease).now();
        }
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("limits", &self.held().limits).finish_non_exhaustive()
    }
}
