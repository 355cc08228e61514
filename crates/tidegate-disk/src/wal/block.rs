//! Blocks: the unit of one commit.
//!
//! ```text
//!   0      4        8                16               24       28       32       36       40
//!   ├──────┼────────┼────────────────┼────────────────┼────────┼────────┼────────┼────────┤
//!   │TGb + │ length │ number         │ time           │ chain  │ blank  │ header │ "head" │
//!   │ kind │        │                │                │        │        │  sum   │        │
//!   └──────┴────────┴────────────────┴────────────────┴────────┴────────┴────────┴────────┘
//!   ├──────────────────────────────┬────────┬────────┐
//!   │ payload, `length` bytes      │ payload│ "tail" │
//!   │                              │  sum   │        │
//!   └──────────────────────────────┴────────┴────────┘
//! ```
//!
//! Numbers increase by one across all segments. `chain` is the checksum of the previous block, computed over
//! its header checksum and its payload checksum. Both checksums are seeded with the store id.
//!
//! # Torn or damaged
//!
//! The writer makes block *n* durable before it writes a byte of block *n+1*, and it writes into space that
//! holds zeros. Only the last block can therefore be **torn**, and the parts that did not reach the disk read
//! as zeros. A block that is invalid for another reason is **damaged**. An invalid block counts as torn in
//! these cases:
//!
//! - Its first byte is zero: nothing was written here, or the first sector is missing.
//! - The last byte of `head` is zero: the header is incomplete.
//! - The last byte of `tail` is zero: the block is incomplete.
//! - It has more all-zero sectors than `blank`, the number at the time of writing: some sectors are missing.
//!
//! All other mismatches are damage. A single flipped bit never makes a block look torn, because the bytes
//! that must not be zero have several bits set. The reader cuts a torn block only if no valid block follows
//! it.

use super::codec::{StoreId, array_at, checksum_after, checksum_of, u32_at, u64_at};

/// The length of a block header.
pub(super) const HEADER_BYTES: usize = 40;
/// The length of a block trailer.
pub(super) const TRAILER_BYTES: usize = 8;
/// The length of a block without a payload.
pub(super) const EMPTY_BLOCK_BYTES: usize = HEADER_BYTES + TRAILER_BYTES;

const MARK: &[u8; 3] = b"TGb";
const HEAD: &[u8; 4] = b"head";
const TAIL: &[u8; 4] = b"tail";
/// The unit that a disk writes atomically.
const SECTOR_BYTES: usize = 512;

/// The purpose of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockKind {
    /// The block holds appended bytes.
    Records,
    /// A process opened the log.
    Start,
    /// The segment ends here, and another one follows.
    Seal,
    /// The log was stopped cleanly.
    Stop,
}

impl BlockKind {
    const fn letter(self) -> u8 {
        match self {
            BlockKind::Records => b'r',
            BlockKind::Start => b'o',
            BlockKind::Seal => b's',
            BlockKind::Stop => b'e',
        }
    }

    fn from_letter(letter: u8) -> Option<BlockKind> {
        [BlockKind::Records, BlockKind::Start, BlockKind::Seal, BlockKind::Stop]
            .into_iter()
            .find(|kind| kind.letter() == letter)
    }
}

/// A position in the chain of blocks: the values that the next block must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChainPosition {
    /// The number of the next block.
    pub(super) number: u64,
    /// The checksum of the previous block.
    pub(super) chain: u32,
}

impl ChainPosition {
    /// The position before the first block of a store.
    pub(super) fn first(store: &StoreId) -> ChainPosition {
        ChainPosition { number: 1, chain: checksum_of(store, b"") }
    }

    /// The position after a block with this checksum.
    pub(super) fn advance(self, checksum: u32) -> ChainPosition {
        ChainPosition { number: self.number + 1, chain: checksum }
    }
}

/// A decoded block.
#[derive(Debug, Clone, Copy)]
pub(super) struct LogBlock<'a> {
    pub(super) kind: BlockKind,
    pub(super) number: u64,
    pub(super) time: u64,
    pub(super) chain: u32,
    pub(super) payload: &'a [u8],
    /// The value that the next block must have as `chain`.
    pub(super) checksum: u32,
}

impl LogBlock<'_> {
    /// The length of the block in the file.
    pub(super) fn size(&self) -> usize {
        EMPTY_BLOCK_BYTES + self.payload.len()
    }
}

/// Why there is no valid block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum BlockError {
    /// Nothing was written here, or the first sector did not reach the disk.
    Absent,
    /// Parts of the block did not reach the disk.
    Torn,
    /// The block differs from what was written: `expected` is missing at the relative offset `at`.
    Damaged { at: usize, expected: &'static str },
}

/// Completes a block in place and returns its checksum. The first [`HEADER_BYTES`] bytes of the buffer are
/// free, and the rest is the payload. The file offset is needed to count the block's sectors.
pub(super) fn encode_block(
    buffer: &mut Vec<u8>,
    kind: BlockKind,
    link: ChainPosition,
    time: u64,
    store: &StoreId,
    offset: u64,
) -> u32 {
    let length =
        u32::try_from(buffer.len() - HEADER_BYTES).expect("what is pending is bounded far below 4 GiB");
    let payload_sum = checksum_of(store, &buffer[HEADER_BYTES..]);
    buffer.extend_from_slice(&payload_sum.to_le_bytes());
    buffer.extend_from_slice(TAIL);
    let blank = blank_sectors(buffer, offset);
    buffer[..3].copy_from_slice(MARK);
    buffer[3] = kind.letter();
    buffer[4..8].copy_from_slice(&length.to_le_bytes());
    buffer[8..16].copy_from_slice(&link.number.to_le_bytes());
    buffer[16..24].copy_from_slice(&time.to_le_bytes());
    buffer[24..28].copy_from_slice(&link.chain.to_le_bytes());
    buffer[28..32].copy_from_slice(&blank.to_le_bytes());
    let header_sum = checksum_of(store, &buffer[..32]);
    buffer[32..36].copy_from_slice(&header_sum.to_le_bytes());
    buffer[36..40].copy_from_slice(HEAD);
    checksum_after(header_sum, &payload_sum.to_le_bytes())
}

/// Encodes a block without a payload. Returns it with its checksum.
pub(super) fn encode_empty_block(
    kind: BlockKind,
    link: ChainPosition,
    time: u64,
    store: &StoreId,
    offset: u64,
) -> (Vec<u8>, u32) {
    let mut buffer = vec![0; HEADER_BYTES];
    let checksum = encode_block(&mut buffer, kind, link, time, store, offset);
    (buffer, checksum)
}

/// Decodes the block at an offset of a segment.
pub(super) fn read_block<'a>(
    segment: &'a [u8],
    offset: usize,
    store: &StoreId,
) -> Result<LogBlock<'a>, BlockError> {
    let bytes = segment.get(offset..).unwrap_or_default();
    let header = read_header(bytes, store)?;
    let end = HEADER_BYTES + header.length;
    let damaged = |at, expected| BlockError::Damaged { at, expected };
    if bytes.len() < end + TRAILER_BYTES {
        return Err(damaged(4, "a block that ends in its segment"));
    }
    let whole = &bytes[..end + TRAILER_BYTES];
    let payload = &whole[HEADER_BYTES..end];
    let payload_sum = u32_at(whole, end);
    let wrong = if payload_sum != checksum_of(store, payload) {
        Some(damaged(end, "the checksum of the payload"))
    } else if &whole[end + 4..] != TAIL {
        Some(damaged(end + 4, "the mark 'tail'"))
    } else {
        None
    };
    if let Some(wrong) = wrong {
        let is_torn = whole.ends_with(&[0]) || blank_sectors(whole, offset as u64) > header.blank;
        return Err(if is_torn { BlockError::Torn } else { wrong });
    }
    Ok(LogBlock {
        kind: header.kind,
        number: header.number,
        time: header.time,
        chain: header.chain,
        payload,
        checksum: checksum_after(header.sum, &payload_sum.to_le_bytes()),
    })
}

/// Finds a later block header whose number is at least `number`. Its existence proves that all blocks before
/// it were durable.
pub(super) fn find_later(segment: &[u8], offset: usize, number: u64, store: &StoreId) -> Option<usize> {
    let mut at = offset + 1;
    while let Some(rest) = segment.get(at..) {
        at += rest.iter().position(|byte| *byte == MARK[0])?;
        if let Ok(header) = read_header(&segment[at..], store)
            && header.number >= number
        {
            return Some(at);
        }
        at += 1;
    }
    None
}

struct BlockHeader {
    kind: BlockKind,
    length: usize,
    number: u64,
    time: u64,
    chain: u32,
    blank: u32,
    sum: u32,
}

fn read_header(bytes: &[u8], store: &StoreId) -> Result<BlockHeader, BlockError> {
    if bytes.first().is_none_or(|byte| *byte == 0) {
        return Err(BlockError::Absent);
    }
    if bytes.get(HEADER_BYTES - 1).is_none_or(|byte| *byte == 0) {
        return Err(BlockError::Torn);
    }
    let damaged = |at, expected| Err(BlockError::Damaged { at, expected });
    if &bytes[..3] != MARK {
        return damaged(0, "a block, or zeros");
    }
    let sum = u32_at(bytes, 32);
    if sum != checksum_of(store, &bytes[..32]) {
        return damaged(32, "the checksum of the block's header");
    }
    if array_at::<4>(bytes, 36) != *HEAD {
        return damaged(36, "the mark 'head'");
    }
    let Some(kind) = BlockKind::from_letter(bytes[3]) else {
        return damaged(3, "a kind of block that is known");
    };
    Ok(BlockHeader {
        kind,
        length: u32_at(bytes, 4) as usize,
        number: u64_at(bytes, 8),
        time: u64_at(bytes, 16),
        chain: u32_at(bytes, 24),
        blank: u32_at(bytes, 28),
        sum,
    })
}

/// Counts the sectors of the file in which this block has only zeros. Sectors that hold part of the header
/// are skipped: they are never blank.
fn blank_sectors(block: &[u8], offset: u64) -> u32 {
    let into_sector = usize::try_from(offset % SECTOR_BYTES as u64).expect("less than a sector");
    let mut from = SECTOR_BYTES - into_sector;
    while from < HEADER_BYTES {
        from += SECTOR_BYTES;
    }
    let sectors = block.get(from..).unwrap_or_default().chunks(SECTOR_BYTES);
    let blank = sectors.filter(|sector| sector.iter().all(|byte| *byte == 0)).count();
    u32::try_from(blank).expect("a block has fewer sectors than bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORE: StoreId = [7; 16];

    fn block(payload: &[u8], offset: usize) -> Vec<u8> {
        let mut buffer = vec![0; HEADER_BYTES];
        buffer.extend_from_slice(payload);
        let link = ChainPosition { number: 5, chain: 9 };
        encode_block(&mut buffer, BlockKind::Records, link, 77, &STORE, offset as u64);
        buffer
    }

    /// Returns a segment that holds this block, surrounded by zeros.
    fn segment(block: &[u8], offset: usize) -> Vec<u8> {
        let mut bytes = vec![0; offset];
        bytes.extend_from_slice(block);
        bytes.resize(offset + block.len() + 2 * SECTOR_BYTES, 0);
        bytes
    }

    #[test]
    fn encoded_block_is_decoded() {
        for length in [0, 1, 500, 5000] {
            let payload = vec![3; length];
            let bytes = segment(&block(&payload, 64), 64);
            let read = read_block(&bytes, 64, &STORE).expect("it is whole");
            assert_eq!((read.number, read.time, read.chain, read.payload), (5, 77, 9, &payload[..]));
            assert_eq!(read.size(), EMPTY_BLOCK_BYTES + length);
        }
    }

    #[test]
    fn block_of_another_store_is_damage() {
        let bytes = segment(&block(b"abc", 0), 0);
        assert!(matches!(read_block(&bytes, 0, &[8; 16]), Err(BlockError::Damaged { .. })));
    }

    #[test]
    fn truncated_block_is_torn() {
        let whole = block(&[1; 1200], 100);
        for kept in 0..whole.len() {
            let bytes = segment(&[&whole[..kept], &vec![0; whole.len() - kept]].concat(), 100);
            let expected = if kept == 0 { BlockError::Absent } else { BlockError::Torn };
            assert_eq!(read_block(&bytes, 100, &STORE).unwrap_err(), expected, "{kept} bytes kept");
        }
    }

    #[test]
    fn block_with_missing_sector_is_torn() {
        // A payload of mostly zeros is the hard case.
        let mut payload = vec![0; 3000];
        payload[1500] = 1;
        for offset in 0..SECTOR_BYTES {
            let whole = segment(&block(&payload, offset), offset);
            let blank =
                |sector: usize| whole[sector * SECTOR_BYTES..][..SECTOR_BYTES].iter().all(|byte| *byte == 0);
            for sector in (0..(offset + payload.len() + EMPTY_BLOCK_BYTES).div_ceil(SECTOR_BYTES))
                .filter(|each| !blank(*each))
            {
                let mut bytes = whole.clone();
                bytes[sector * SECTOR_BYTES..][..SECTOR_BYTES].fill(0);
                let found = read_block(&bytes, offset, &STORE).unwrap_err();
                assert!(
                    matches!(found, BlockError::Absent | BlockError::Torn),
                    "at {offset}, {sector}: {found:?}"
                );
            }
        }
    }

    #[test]
    fn flipped_bit_in_zero_payload_is_damage() {
        let whole = block(&[0; 3000], 64);
        let segment = segment(&whole, 64);
        for at in 64..64 + whole.len() {
            for bit in 0..8 {
                let mut bytes = segment.clone();
                bytes[at] ^= 1 << bit;
                let found = read_block(&bytes, 64, &STORE).unwrap_err();
                assert!(matches!(found, BlockError::Damaged { .. }), "byte {at}, bit {bit}: {found:?}");
            }
        }
    }

    #[test]
    fn find_later_skips_earlier_blocks() {
        let mut bytes = segment(&block(b"x", 200), 200);
        assert_eq!(find_later(&bytes, 0, 5, &STORE), Some(200));
        assert_eq!(find_later(&bytes, 0, 6, &STORE), None);
        assert_eq!(find_later(&bytes, 200, 1, &STORE), None);
        bytes[100] = b'T';
        assert_eq!(find_later(&bytes, 99, 1, &STORE), Some(200));
    }
}
