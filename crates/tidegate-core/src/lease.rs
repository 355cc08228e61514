//! Leases: who holds something, and until when.

use std::fmt;

use crate::time::Timestamp;

/// The identity of a lease. The store that grants it chooses the bits and puts in them what it needs to find
/// the lease again; to everybody else they mean nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u128);

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl LeaseId {
    /// Reads an id as it is displayed: 32 hexadecimal digits.
    pub fn parse(text: &str) -> Option<LeaseId> {
        let hex = text.len() == 32 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        hex.then(|| u128::from_str_radix(text, 16).ok()).flatten().map(LeaseId)
    }
}

/// A lease and the instant it lapses at. It is held while `now < expires_at`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTerm {
    /// Which lease.
    pub lease: LeaseId,
    /// When it lapses.
    pub expires_at: Timestamp,
}
