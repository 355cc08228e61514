//! The interface between the memory store and a log.
//!
//! A durable store is a memory store with a log. The memory store decides and records its changes in [`Notes`]. The log
//! encodes them before the replies are sent. A [`Journal`] receives changes of limits *before* any decision uses them.
//! Therefore no note refers to a definition that the log lacks.
//!
//! Notes hold the state of a row after a charge, not the difference. A note that is repeated, late, or also part of a
//! snapshot changes nothing.

mod lease_record;
mod remembered_grant;

use std::sync::Arc;

use tidegate_core::{Capacity, LeaseId, Limit, Timestamp, UsageRecord};

pub use crate::catalog::Origin;
use crate::catalog::RemovalMode;
pub use lease_record::{HeldAsk, LeaseHolding, LeaseRecord};
pub use remembered_grant::{RememberedAsk, RememberedGrant};

/// 96 bits of a key's fingerprint. The journal names rows by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Tag {
    /// The bits that also place the row.
    pub low: u64,
    /// The remaining bits.
    pub high: u32,
}

/// The changes of a batch.
#[derive(Debug, Default)]
pub struct Notes {
    /// Charged rows, in the order of their charges.
    pub charges: Vec<ChargeNote>,
    /// Actions on leases and request ids. They are written after the charges, because a release needs its charge.
    pub deeds: Vec<LeaseNote>,
}

impl Notes {
    /// Whether there are no changes.
    pub fn is_empty(&self) -> bool {
        self.charges.is_empty() && self.deeds.is_empty()
    }

    /// Removes all notes.
    pub fn clear(&mut self) {
        self.charges.clear();
        self.deeds.clear();
    }
}

/// The state of one item of a row after a charge.
#[derive(Debug, Clone, Copy)]
pub struct ChargeNote {
    /// The generation of the limit.
    pub generation: u64,
    /// The version of the limit.
    pub version: u32,
    /// The key of the row, or `None` for the row of all keys.
    pub key: Option<Tag>,
    /// The index of the item in its limit.
    pub item: usize,
    /// The capacity.
    pub capacity: Capacity,
    /// The usage after the charge.
    pub trace: UsageRecord,
    /// The instant of the decision.
    pub at: Timestamp,
    /// Whether the next charge adds its own usage record, as in an exact sliding window. Such a charge cannot be reserved in
    /// advance.
    pub is_alone: bool,
}

/// A numbered action on a lease or a request id.
#[derive(Debug)]
pub struct LeaseNote {
    /// Increases with every action of the store. The later of two actions on a lease counts.
    pub serial: u64,
    /// The action.
    pub what: LeaseAction,
}

/// An action on a lease or a request id.
#[derive(Debug)]
pub enum LeaseAction {
    /// A lease was granted.
    Granted {
        /// The lease id.
        id: LeaseId,
        /// The content of the lease.
        lease: LeaseRecord,
        /// The fences of the lease, by the generation of their limits.
        fences: Vec<(u64, u64)>,
    },
    /// The expiry of a lease was changed.
    Renewed {
        /// The lease id.
        id: LeaseId,
        /// The new expiry.
        expires_at: Timestamp,
    },
    /// A lease was released.
    Released {
        /// The lease id.
        id: LeaseId,
    },
    /// A lease was settled. The settlement is remembered.
    Settled {
        /// The lease id.
        id: LeaseId,
        /// The instant until which the settlement is remembered.
        until: Timestamp,
    },
    /// A grant is remembered by its request id.
    Remembered {
        /// The request id.
        id: Box<[u8]>,
        /// The grant.
        grant: RememberedGrant,
    },
}

/// Receives changes before they take effect. Methods are called under locks: they may write, but must not call the store.
pub trait Journal: Send + Sync {
    /// Called before the first decision under this definition of the limit.
    fn put(&self, text: &Text<'_>);

    /// Called before the removal of a limit. A retired limit is dropped at `until`.
    fn remove(&self, generation: u64, mode: RemovalMode, until: Timestamp);

    /// Called before a reset of the limit or of one key.
    fn reset(&self, generation: u64, key: Option<(&[u8], Tag)>, at: Timestamp);
}

/// One definition of a limit.
#[derive(Debug, Clone)]
pub struct Text<'a> {
    /// The generation of the limit.
    pub generation: u64,
    /// The limit.
    pub limit: &'a Arc<Limit>,
    /// The instant from which it applies. Rows are converted as of this instant.
    pub at: Timestamp,
    /// An upper bound of the fences issued so far.
    pub fence: u64,
    /// The origin of the limit.
    pub origin: Origin,
}
