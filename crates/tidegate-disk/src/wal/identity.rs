//! The identity file: marks a directory as a store and identifies it.
//!
//! ```text
//!   0            16           32           48     52
//!   ├────────────┼────────────┼────────────┼──────┤
//!   │ preamble   │ store id   │ secret     │ sum  │   checksum of everything before
//!   └────────────┴────────────┴────────────┴──────┘
//! ```
//!
//! The store id is part of every other file and seeds the checksum of every block. The secret keys the
//! fingerprints of row keys and never leaves the directory.

use std::fmt;

use super::codec::{PREAMBLE_BYTES, StoreId, array_at, check_preamble, checksum, preamble, u32_at};
use super::error::{Damage, OpenError};

const MAGIC: [u8; 8] = *b"TGATE-ID";
const LENGTH: usize = 52;

/// The content of the identity file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct StoreIdentity {
    pub(super) store: StoreId,
    pub(super) secret: [u8; 16],
}

impl fmt::Debug for StoreIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreIdentity").field("store", &self.store).finish_non_exhaustive()
    }
}

impl StoreIdentity {
    pub(super) fn encode(&self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        bytes[..PREAMBLE_BYTES].copy_from_slice(&preamble(MAGIC));
        bytes[16..32].copy_from_slice(&self.store);
        bytes[32..48].copy_from_slice(&self.secret);
        let sum = checksum(&bytes[..48]);
        bytes[48..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    pub(super) fn decode(file: &str, bytes: &[u8]) -> Result<StoreIdentity, OpenError> {
        check_preamble(file, bytes, MAGIC)?;
        if bytes.len() != LENGTH {
            return Err(Damage::at(file, bytes.len() as u64, format!("a file of {LENGTH} bytes")).into());
        }
        if u32_at(bytes, 48) != checksum(&bytes[..48]) {
            return Err(Damage::at(file, 48, "the checksum of the identity").into());
        }
        Ok(StoreIdentity { store: array_at(bytes, 16), secret: array_at(bytes, 32) })
    }
}
