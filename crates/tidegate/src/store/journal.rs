//! What a store with a log is told by the rows it keeps in memory.
//!
//! A durable store is this store and a log beside it. Decisions are made here, as they always are; what they changed is noted, and
//! whoever keeps the log turns [`Notes`] into bytes before the answers are spoken. Changes of limits are told to a [`Journal`] *before*
//! anybody can be decided on by them: so nothing is ever noted under a text that the log does not have.
//!
//! Decided: notes say how rows are after a charge, never what was added to them. A note that is written twice, or that comes late,
//! or is found again in a snapshot, changes nothing.

use std::sync::Arc;

use tidegate_core::{Capacity, LeaseId, Limit, Timestamp, UsageRecord};

pub use crate::catalog::Origin;
use crate::catalog::RemovalMode;
pub use crate::store::leases::{HeldAsk, LeaseHolding, LeaseRecord};
pub use crate::store::requests::{RememberedAsk, RememberedGrant};

/// 96 bits of a key's fingerprint. The journal names rows by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Tag {
    /// The bits that also place the row.
    pub low: u64,
    /// The remaining bits.
    pub high: u32,
}

/// What a batch changed.
#[derive(Debug, Default)]
pub struct Notes {
    /// Rows that were charged, in the order in which they were.
    pub charges: Vec<ChargeNote>,
    /// What was done about leases and request ids. It is written after the charges: what can be given back must have been taken.
    pub deeds: Vec<LeaseNote>,
}

impl Notes {
    /// Whether nothing was changed.
    pub fn is_empty(&self) -> bool {
        self.charges.is_empty() && self.deeds.is_empty()
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.charges.clear();
        self.deeds.clear();
    }
}

/// How one item of a row is after it was charged.
#[derive(Debug, Clone, Copy)]
pub struct ChargeNote {
    /// Which incarnation of the limit.
    pub generation: u64,
    /// Which version of it.
    pub version: u32,
    /// Whose row; `None` for the row of all keys.
    pub key: Option<Tag>,
    /// The index of the item in its limit.
    pub item: usize,
    /// The most that may be in use.
    pub capacity: Capacity,
    /// How much is.
    pub trace: UsageRecord,
    /// The instant it was decided at.
    pub at: Timestamp,
    /// Whether the next charge leaves a trace of its own, as in an exact sliding window: there is nothing that could be allowed for ahead.
    pub is_alone: bool,
}

/// Something that was done about a lease or a request id.
#[derive(Debug)]
pub struct LeaseNote {
    /// Rises with every deed of the store. Of two deeds about one lease the later one counts.
    pub serial: u64,
    /// What was done.
    pub what: LeaseAction,
}

/// What was done about a lease or a request id.
#[derive(Debug)]
pub enum LeaseAction {
    /// A lease was granted.
    Granted {
        /// Its identity.
        id: LeaseId,
        /// What it holds.
        lease: LeaseRecord,
        /// The fences it was given, by the incarnation of their limits.
        fences: Vec<(u64, u64)>,
    },
    /// Its end was moved.
    Renewed {
        /// Which.
        id: LeaseId,
        /// To when.
        expires_at: Timestamp,
    },
    /// It was given back.
    Released {
        /// Which.
        id: LeaseId,
    },
    /// It was settled, and that is remembered.
    Settled {
        /// Which.
        id: LeaseId,
        /// Until when.
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

/// Is told of changes before they take effect. It is called with locks held: it may write something down, and must not call back.
pub trait Journal: Send + Sync {
    /// Nobody has been decided on by this text of the limit yet.
    fn put(&self, text: &Text<'_>);

    /// The limit is about to go. One that retires is forgotten at `until`.
    fn remove(&self, generation: u64, parting: RemovalMode, until: Timestamp);

    /// The counts of the limit, or of one key, are about to be zeroed.
    fn reset(&self, generation: u64, key: Option<(&[u8], Tag)>, at: Timestamp);
}

/// One text of a limit.
#[derive(Debug, Clone)]
pub struct Text<'a> {
    /// Which incarnation.
    pub generation: u64,
    /// The limit.
    pub limit: &'a Arc<Limit>,
    /// The instant from which it is in force: rows are carried over as of then.
    pub at: Timestamp,
    /// The latest fence it gave, or more.
    pub fence: u64,
    /// Whose it is.
    pub origin: Origin,
}
