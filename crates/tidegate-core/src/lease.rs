//! Lease identities and expiry times.

use std::fmt;

use crate::time::Timestamp;

/// The identity of a lease. The store that grants the lease chooses the bits and can encode a location in them. Callers
/// treat it as opaque.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u128);

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl LeaseId {
    /// Parses an id: 32 lowercase hexadecimal digits.
    pub fn parse(text: &str) -> Option<LeaseId> {
        let hex = text.len() == 32 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        hex.then(|| u128::from_str_radix(text, 16).ok()).flatten().map(LeaseId)
    }
}

/// A lease and its expiry. The lease is held while `now < expires_at`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTerm {
    /// The lease.
    pub lease: LeaseId,
    /// When it expires.
    pub expires_at: Timestamp,
}
