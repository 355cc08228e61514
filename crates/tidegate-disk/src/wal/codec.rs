//! Little-endian integers, checksums, and the preamble of every file.
//!
//! ```text
//!   0        8        12       16
//!   ├────────┼────────┼────────┤
//!   │ magic  │version │checksum│   of the first 12 bytes
//!   └────────┴────────┴────────┘
//! ```
//!
//! The version has a checksum of its own. Everything after it may differ in another version, and a flipped
//! bit must not look like another version.

use super::error::{Damage, OpenError};

/// The format version that is written, and the only one that exists.
pub(super) const VERSION: u32 = 1;

/// The length of the preamble of every file.
pub(super) const PREAMBLE_BYTES: usize = 16;

/// The identifier of a store.
pub(super) type StoreId = [u8; 16];

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, at))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array_at(bytes, at))
}

/// The `N` bytes at an offset.
///
/// # Panics
/// If there are fewer bytes. Callers check the length first.
pub(super) fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("a slice of N bytes is an array of N bytes")
}

pub(super) fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// A checksum seeded with the store id, so that data of another store never matches.
pub(super) fn checksum_of(store: &StoreId, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(store), bytes)
}

/// Continues the checksum `before` over more bytes.
pub(super) fn checksum_after(before: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(before, bytes)
}

pub(super) fn preamble(magic: [u8; 8]) -> [u8; PREAMBLE_BYTES] {
    let mut bytes = [0; PREAMBLE_BYTES];
    bytes[..8].copy_from_slice(&magic);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    let sum = checksum(&bytes[..12]);
    bytes[12..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// Checks the magic number, the version and their checksum.
pub(super) fn check_preamble(file: &str, bytes: &[u8], magic: [u8; 8]) -> Result<(), OpenError> {
    let damage = |offset, expected: &str| Err(Damage::at(file, offset, expected).into());
    if bytes.len() < PREAMBLE_BYTES {
        return damage(bytes.len() as u64, "a file with a beginning");
    }
    if bytes[..8] != magic {
        return damage(0, &format!("the mark {}", magic.escape_ascii()));
    }
    if u32_at(bytes, 12) != checksum(&bytes[..12]) {
        return damage(12, "the checksum of the format version");
    }
    match u32_at(bytes, 8) {
        VERSION => Ok(()),
        found if found > VERSION => Err(OpenError::NewerFormat { file: file.to_owned(), found }),
        found => Err(OpenError::UnknownFormat { file: file.to_owned(), found }),
    }
}

/// The offset at which the trailing zeros begin.
pub(super) fn end_of_content(bytes: &[u8]) -> usize {
    const STRIDE: usize = 64;
    let mut end = bytes.len();
    while end >= STRIDE && bytes[end - STRIDE..end].iter().all(|byte| *byte == 0) {
        end -= STRIDE;
    }
    bytes[..end].iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}
