//! Binary encoding of limits, leases and grants, for stores that keep them outside of memory.
//!
//! Numbers are base-128 varints, least significant group first. Times are `u64` ticks, little-endian. A store adds
//! lengths, checksums or table columns of its own. The encoding of rows is in the core ([`tidegate_core::row_codec`]).
//!
//! All stores share this encoding, so a new field is encoded once. The encoding is part of the format of every store
//! that uses it and changes only with a new format.

pub mod leases;
pub mod limit;
pub mod primitives;

use std::fmt;
use std::sync::Arc;

use tidegate_core::Limit;

/// Why bytes cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodecError {
    /// Offset in bytes from the start.
    pub at: usize,
    /// What was found there.
    pub what: &'static str,
}

impl fmt::Display for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}", self.what, self.at)
    }
}

impl std::error::Error for CodecError {}

/// Finds a limit by id, for grants that name one.
pub type LimitOf<'l> = &'l dyn Fn(&str) -> Option<Arc<Limit>>;
