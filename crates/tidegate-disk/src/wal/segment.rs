//! Segments: the files of a log.
//!
//! ```text
//!   0            16           32        40        48        56     60     64
//!   ├────────────┼────────────┼─────────┼─────────┼─────────┼──────┼──────┼───────────┬────────
//!   │ preamble   │ store id   │ segment │ first   │ length  │chain │ sum  │ blocks …  │ zeros …
//!   └────────────┴────────────┴─────────┴─────────┴─────────┴──────┴──────┴───────────┴────────
//! ```
//!
//! `first` is the number of the segment's first block. `chain` is the checksum of the block before it, which
//! is the seal of the previous segment. `length` is the length of the file at its creation: a shorter file
//! has lost data.
//!
//! A segment is created under a temporary name with all its space reserved. It gets its final name when it is
//! durable, so no segment has half a header.

use super::block::ChainPosition;
use super::codec::{PREAMBLE_BYTES, StoreId, array_at, check_preamble, checksum, preamble, u32_at, u64_at};
use super::error::{Damage, OpenError};

const MAGIC: [u8; 8] = *b"TGATELOG";

/// The length of a segment header.
pub(super) const HEADER_BYTES: usize = 64;

/// Whether a segment ends with a seal. A sealed segment is followed by another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SegmentSeal {
    Present,
    Missing,
}

/// The header of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SegmentHeader {
    pub(super) segment: u64,
    /// The position in the chain before the first block.
    pub(super) link: ChainPosition,
    pub(super) length: u64,
}

impl SegmentHeader {
    pub(super) fn encode(&self, store: &StoreId) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..PREAMBLE_BYTES].copy_from_slice(&preamble(MAGIC));
        bytes[16..32].copy_from_slice(store);
        bytes[32..40].copy_from_slice(&self.segment.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.link.number.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.length.to_le_bytes());
        bytes[56..60].copy_from_slice(&self.link.chain.to_le_bytes());
        let sum = checksum(&bytes[..60]);
        bytes[60..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Decodes the header of segment `number` of this store.
    pub(super) fn decode(
        file: &str,
        bytes: &[u8],
        number: u64,
        store: &StoreId,
    ) -> Result<SegmentHeader, OpenError> {
        check_preamble(file, bytes, MAGIC)?;
        if bytes.len() < HEADER_BYTES {
            return Err(Damage::at(file, bytes.len() as u64, "a segment's header").into());
        }
        if u32_at(bytes, 60) != checksum(&bytes[..60]) {
            return Err(Damage::at(file, 60, "the checksum of the segment's header").into());
        }
        if array_at::<16>(bytes, 16) != *store {
            return Err(OpenError::OtherStore { file: file.to_owned() });
        }
        let header = SegmentHeader {
            segment: u64_at(bytes, 32),
            link: ChainPosition { number: u64_at(bytes, 40), chain: u32_at(bytes, 56) },
            length: u64_at(bytes, 48),
        };
        if header.segment != number {
            return Err(Damage::at(file, 32, format!("segment {number}")).into());
        }
        Ok(header)
    }

    /// Decodes the header of a segment and checks the length of the file.
    pub(super) fn decode_segment(
        file: &str,
        bytes: &[u8],
        number: u64,
        store: &StoreId,
    ) -> Result<SegmentHeader, OpenError> {
        let header = SegmentHeader::decode(file, bytes, number, store)?;
        if header.length != bytes.len() as u64 {
            let offset = header.length.min(bytes.len() as u64);
            return Err(Damage::at(file, offset, format!("a file of {} bytes", header.length)).into());
        }
        Ok(header)
    }
}
