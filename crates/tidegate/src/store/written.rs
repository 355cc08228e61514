//! Limits, leases and grants in bytes, for stores that keep them outside of memory.
//!
//! Numbers are base-128 varints, least significant first; times are u64 ticks, little-endian. A store wraps these in what it needs of its
//! own: lengths, checksums, columns of a table. The bytes of rows are the core's ([`tidegate_core::row_codec`]).
//!
//! Decided: one writer for all of them, so that what one store has learned to keep (a new field, a law's receipt) the others have too. How
//! the bytes look is part of the format of every store that uses them, and changes only by a new format.

pub mod bytes;
pub mod held;
pub mod limit;

use std::fmt;
use std::sync::Arc;

use tidegate_core::Limit;

/// Why bytes do not say anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodecError {
    /// Where, in bytes from the start.
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

/// Says which limit has an id, for grants that name one.
pub type LimitOf<'l> = &'l dyn Fn(&str) -> Option<Arc<Limit>>;
