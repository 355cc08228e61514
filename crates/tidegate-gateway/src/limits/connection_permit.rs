//! A connection: what it holds, until it is dropped.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashMap;
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
    /// What counts the connection, and its own client if that is known.
    limits: Vec<Arc<str>>,
    /// What counts the clients that were known only when they asked, and where they have been.
    carried: HashMap<Vec<u8>, Vec<Arc<str>>>,
}

/// Whom a request on a connection is counted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose<'a> {
    /// Nobody.
    Nobody,
    /// The client that was counted at the door.
    Own(&'a [u8]),
    /// Somebody whom the request names.
    Carried(&'a [u8]),
}

impl<'a> Whose<'a> {
    /// The client.
    pub(super) const fn client(self) -> Option<&'a [u8]> {
        match self {
            Whose::Nobody => None,
            Whose::Own(client) | Whose::Carried(client) => Some(client),
        }
    }
}

impl Held {
    /// Whether a limit counts the connection already.
    pub(super) fn has(&self, gauge: &Gauge) -> bool {
        is_among(&self.limits, gauge)
    }

    /// Whether a limit counts this client for the connection already, or the client has been there.
    pub(super) fn has_for(&self, whose: Whose<'_>, gauge: &Gauge) -> bool {
        match whose {
            Whose::Nobody | Whose::Own(_) => self.has(gauge),
            Whose::Carried(client) => self.carried.get(client).is_some_and(|known| is_among(known, gauge)),
        }
    }

    pub(super) fn add<'g>(&mut self, lease: Option<LeaseId>, gauges: impl IntoIterator<Item = &'g Gauge>) {
        self.leases.extend(lease);
        self.limits.extend(gauges.into_iter().map(|gauge| Arc::clone(&gauge.id)));
    }

    /// Notes what counts a client for the connection, and where it has been.
    pub(super) fn carry<'g>(&mut self, client: &[u8], gauges: impl IntoIterator<Item = &'g Gauge>) {
        let known = self.carried.entry_ref(client).or_default();
        for gauge in gauges {
            if !is_among(known, gauge) {
                known.push(Arc::clone(&gauge.id));
            }
        }
    }
}

fn is_among(known: &[Arc<str>], gauge: &Gauge) -> bool {
    known.iter().any(|id| Arc::ptr_eq(id, &gauge.id) || **id == *gauge.id)
}

impl Connection {
    pub(super) fn new(store: MemoryStore, client: Option<&[u8]>) -> Connection {
        Connection { store, client: client.map(Into::into), held: Mutex::default() }
    }

    /// Whose it is, if it is one client's.
    pub fn client(&self) -> Option<&[u8]> {
        self.client.as_deref()
    }

    /// How many clients it has carried that were not known when it came.
    pub fn carried(&self) -> usize {
        self.held().carried.len()
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
