//! Blocks: what one commit writes.
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
//! Numbers rise by one over all segments. `chain` names the block before: its checksum, which is made of its header's and its payload's.
//! Both sums begin with the store's id.
//!
//! # Torn or damaged
//!
//! The writer makes block *n* durable before it writes a byte of block *n+1*, into space that holds zeros. So of all blocks only the last can
//! be **torn**, and where the disk did not come to write it, it has zeros. A block that is wrong and not for want of bytes is **damaged**.
//! To tell them apart:
//!
//! - its first byte is zero: nothing was written here, or the sector in which it begins was not;
//! - the last byte of `head` is zero: the header ends early;
//! - the last byte of `tail` is zero: the block ends early;
//! - more of its sectors are all zeros than `blank`, the number that were so when it was written: some did not reach the disk.
//!
//! Anything else that does not add up was there once and is not what it was. No single flipped bit makes a damaged block look torn: the bytes
//! that must not be zero each have several bits set. A torn block is cut only if nothing after it is valid; the reader sees to that.

use super::encoding::{StoreId, array_at, checksum_after, checksum_of, u32_at, u64_at};

/// What a block's header takes.
pub(super) const HEADER_BYTES: usize = 40;
/// What follows its payload.
pub(super) const TRAILER_BYTES: usize = 8;
/// What a block without a payload takes.
pub(super) const EMPTY_BLOCK_BYTES: usize = HEADER_BYTES + TRAILER_BYTES;

const MARK: &[u8; 3] = b"TGb";
const HEAD: &[u8; 4] = b"head";
const TAIL: &[u8; 4] = b"tail";
/// What a disk writes whole or not at all.
const SECTOR_BYTES: usize = 512;

/// What a block is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockKind {
    /// It holds what was appended.
    Records,
    /// Somebody opened the log.
    Start,
    /// The segment ends here, and another one follows.
    Seal,
    /// Everything was written before the log was closed.
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

/// Where a chain of blocks stands: what the next one must say of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChainPosition {
    /// Its number.
    pub(super) number: u64,
    /// The checksum of the block before.
    pub(super) chain: u32,
}

impl ChainPosition {
    /// PreviousRun the first block of a store.
    pub(super) fn first(store: &StoreId) -> ChainPosition {
        ChainPosition { number: 1, chain: checksum_of(store, b"") }
    }

    /// After a block with this checksum.
    pub(super) fn advance(self, checksum: u32) -> ChainPosition {
        ChainPosition { number: self.number + 1, chain: checksum }
    }
}

/// A block as it was read.
#[derive(Debug, Clone, Copy)]
pub(super) struct LogBlock<'a> {
    pub(super) kind: BlockKind,
    pub(super) number: u64,
    pub(super) time: u64,
    pub(super) chain: u32,
    pub(super) payload: &'a [u8],
    /// What the next block's chain must be.
    pub(super) checksum: u32,
}

impl LogBlock<'_> {
    /// How many bytes it takes in the file.
    pub(super) fn size(&self) -> usize {
        EMPTY_BLOCK_BYTES + self.payload.len()
    }
}

/// Why there is no block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum BlockError {
    /// Nothing was written here, or its beginning did not reach the disk.
    Absent,
    /// It did not reach the disk as a whole.
    Torn,
    /// It did, and is not what was written; what was expected how far from its beginning.
    Damaged { at: usize, expected: &'static str },
}

/// Makes a block of a buffer whose first [`HEADER_BYTES`] bytes are free and whose rest is the payload; says its checksum. Where it will be in the
/// file is needed to count its sectors.
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

/// A block without a payload, and its checksum.
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

/// Reads the block that begins here in a segment. Beyond the end of the segment there are zeros.
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

/// Where after this offset a block begins that is at least the one of this number: a proof that all before it were durable.
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

/// How many sectors of the file hold nothing but zeros of this block. Those that hold a part of its header are not looked at: they are known to
/// hold something.
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

    /// A segment that holds this block and zeros around it.
    fn segment(block: &[u8], offset: usize) -> Vec<u8> {
        let mut bytes = vec![0; offset];
        bytes.extend_from_slice(block);
        bytes.resize(offset + block.len() + 2 * SECTOR_BYTES, 0);
        bytes
    }

    #[test]
    fn what_is_written_is_read() {
        for length in [0, 1, 500, 5000] {
            let payload = vec![3; length];
            let bytes = segment(&block(&payload, 64), 64);
            let read = read_block(&bytes, 64, &STORE).expect("it is whole");
            assert_eq!((read.number, read.time, read.chain, read.payload), (5, 77, 9, &payload[..]));
            assert_eq!(read.size(), EMPTY_BLOCK_BYTES + length);
        }
    }

    #[test]
    fn a_block_of_another_store_is_none() {
        let bytes = segment(&block(b"abc", 0), 0);
        assert!(matches!(read_block(&bytes, 0, &[8; 16]), Err(BlockError::Damaged { .. })));
    }

    #[test]
    fn a_block_cut_off_anywhere_is_torn() {
        let whole = block(&[1; 1200], 100);
        for kept in 0..whole.len() {
            let bytes = segment(&[&whole[..kept], &vec![0; whole.len() - kept]].concat(), 100);
            let expected = if kept == 0 { BlockError::Absent } else { BlockError::Torn };
            assert_eq!(read_block(&bytes, 100, &STORE).unwrap_err(), expected, "{kept} bytes kept");
        }
    }

    #[test]
    fn a_block_without_any_of_its_sectors_is_torn_wherever_it_lies() {
        // A payload that is mostly zeros is the hard case.
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
    fn a_flipped_bit_is_damage_even_among_zeros() {
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
    fn later_blocks_are_found_and_earlier_ones_are_not() {
        let mut bytes = segment(&block(b"x", 200), 200);
        assert_eq!(find_later(&bytes, 0, 5, &STORE), Some(200));
        assert_eq!(find_later(&bytes, 0, 6, &STORE), None);
        assert_eq!(find_later(&bytes, 200, 1, &STORE), None);
        bytes[100] = b'T';
        assert_eq!(find_later(&bytes, 99, 1, &STORE), Some(200));
    }
}
