//! The permit of a connection: the leases that it holds until it is dropped.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashMap;
use tidegate::model::LeaseId;
use tidegate::store::{MemoryStore, Store};

use super::plan::PlannedLimit;

/// An admitted connection. It is counted until the permit is dropped, and released exactly once.
pub struct ConnectionPermit {
    store: MemoryStore,
    client: Option<Box<[u8]>>,
    held: Mutex<HeldLeases>,
}

/// The leases of a connection.
#[derive(Default)]
pub(super) struct HeldLeases {
    leases: Vec<LeaseId>,
    /// The limits that count the connection, and its own client if known.
    limits: Vec<Arc<str>>,
    /// The limits that count each forwarded client, and the routes it has used.
    forwarded: HashMap<Vec<u8>, Vec<Arc<str>>>,
}

/// The client that a request on a connection is counted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestOwner<'a> {
    /// No client.
    Unknown,
    /// The client that was counted at accept.
    Own(&'a [u8]),
    /// A client that the request names.
    Forwarded(&'a [u8]),
}

impl<'a> RequestOwner<'a> {
    /// The client's key.
    pub(super) const fn client(self) -> Option<&'a [u8]> {
        match self {
            RequestOwner::Unknown => None,
            RequestOwner::Own(client) | RequestOwner::Forwarded(client) => Some(client),
        }
    }
}

impl HeldLeases {
    /// Whether a limit already counts the connection.
    pub(super) fn has(&self, planned_limit: &PlannedLimit) -> bool {
        is_among(&self.limits, planned_limit)
    }

    /// Whether a limit already counts this client, or the client has used it.
    pub(super) fn has_for(&self, owner: RequestOwner<'_>, planned_limit: &PlannedLimit) -> bool {
        match owner {
            RequestOwner::Unknown | RequestOwner::Own(_) => self.has(planned_limit),
            RequestOwner::Forwarded(client) => {
                self.forwarded.get(client).is_some_and(|known| is_among(known, planned_limit))
            }
        }
    }

    pub(super) fn add<'g>(
        &mut self,
        lease: Option<LeaseId>,
        planned: impl IntoIterator<Item = &'g PlannedLimit>,
    ) {
        self.leases.extend(lease);
        self.limits.extend(planned.into_iter().map(|planned_limit| Arc::clone(&planned_limit.id)));
    }

    /// Records the limits that count a forwarded client, and those it has used.
    pub(super) fn add_forwarded<'g>(
        &mut self,
        client: &[u8],
        planned: impl IntoIterator<Item = &'g PlannedLimit>,
    ) {
        let known = self.forwarded.entry_ref(client).or_default();
        for planned_limit in planned {
            if !is_among(known, planned_limit) {
                known.push(Arc::clone(&planned_limit.id));
            }
        }
    }
}

fn is_among(known: &[Arc<str>], planned_limit: &PlannedLimit) -> bool {
    known.iter().any(|id| Arc::ptr_eq(id, &planned_limit.id) || **id == *planned_limit.id)
}

impl ConnectionPermit {
    pub(super) fn new(store: MemoryStore, client: Option<&[u8]>) -> ConnectionPermit {
        ConnectionPermit { store, client: client.map(Into::into), held: Mutex::default() }
    }

    /// The client, if the connection belongs to one.
    pub fn client(&self) -> Option<&[u8]> {
        self.client.as_deref()
    }

    /// The number of clients that were known only from their requests.
    pub fn forwarded_clients(&self) -> usize {
        self.held().forwarded.len()
    }

    pub(super) fn held(&self) -> MutexGuard<'_, HeldLeases> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let held = self.held.get_mut().unwrap_or_else(PoisonError::into_inner);
        for lease in held.leases.drain(..) {
            self.store.release(lease).now();
        }
    }
}

impl std::fmt::Debug for ConnectionPermit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConnectionPermit").field("limits", &self.held().limits).finish_non_exhaustive()
    }
}
