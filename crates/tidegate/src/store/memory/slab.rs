//! Slab of word blocks for row data that does not fit a row.
//!
//! A block has `8 << class` words. Blocks are cut from chunks. A chunk is never freed or moved, so a reader without a lock
//! can always follow a block index. The words that it reads can belong to another row by then. The reader must validate
//! its row afterwards.
//!
//! The first chunk has 4 KiB and each next one twice as much, up to 1 MiB. A limit with few keys needs little memory.
//!
//! ```text
//!   chunk           0     1     2    ...     8       9     ...
//!   units          64   128   256        16384   16384
//!   first number   64   128   256        16384   32768
//! ```
//!
//! A *unit* is 8 words, which is one cache line. Units are numbered from 64. So the highest bit of a unit's number selects
//! one of the smaller chunks, and the number of a block's first unit is a multiple of the block's length.

use std::sync::PoisonError;
use std::sync::atomic::AtomicUsize;

use super::memory_budget::Budget;
use super::sync::{AtomicU64, Mutex, MutexGuard, OnceLock, Ordering, fence};

/// The number of block sizes.
pub(super) const CLASSES: u32 = 15;
/// Words in a unit, and in the smallest block.
const UNIT_WORDS: usize = 8;
/// Bytes in a unit.
const UNIT_BYTES: usize = 64;
/// Log2 of the units in the first chunk. Loom tracks each word, so its chunks are small.
const FIRST: u32 = if cfg!(tidegate_loom) { 2 } else { 6 };
/// Log2 of the units in the largest chunk, and in the largest block.
const LARGEST: u32 = CLASSES - 1;
/// Chunks below the largest size.
const SMALL_CHUNKS: usize = (LARGEST - FIRST) as usize;
/// Chunks of the largest size in a directory page.
const PAGE: usize = if cfg!(tidegate_loom) { 1 } else { 1 << 10 };
/// Directory pages. 64 GiB is the most that a slab can hold.
const PAGES: usize = if cfg!(tidegate_loom) { 1 } else { 1 << 6 };
/// The first unit number beyond the last chunk.
const END: u64 = ((PAGE * PAGES + 1) as u64) << LARGEST;
/// Words before the first unit that align it.
const PADDING: usize = if cfg!(tidegate_loom) { 0 } else { UNIT_WORDS - 1 };

/// A block: its class and its first unit. Fits 62 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Block(u64);

impl Block {
    /// No block.
    pub(super) const NONE: Block = Block(0);

    fn new(class: u32, unit: u32) -> Block {
        Block(u64::from(class) << 32 | u64::from(unit))
    }

    /// A block from its bits. Any value is valid: [`Slab::words`] is empty for what is not a block.
    #[inline]
    pub(super) const fn from_bits(bits: u64) -> Block {
        Block(bits)
    }

    /// The bits of the block, below `1 << 62`.
    #[inline]
    pub(super) const fn bits(self) -> u64 {
        self.0
    }

    /// The class: the block has `8 << class` words.
    #[inline]
    pub(super) const fn class(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The number of the first unit.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the low half")]
    const fn unit(self) -> u32 {
        self.0 as u32
    }
}

/// Bytes of a block.
const fn block_bytes(class: u32) -> usize {
    UNIT_BYTES << class
}

/// The words of a chunk and the number of words before its first unit.
struct Chunk {
    words: Box<[AtomicU64]>,
    skipped: usize,
}

impl Chunk {
    fn new(units: usize) -> Chunk {
        let words: Box<[AtomicU64]> = (0..units * UNIT_WORDS + PADDING).map(|_| AtomicU64::new(0)).collect();
        let unaligned = words.as_ptr().addr().wrapping_neg() % UNIT_BYTES / size_of::<u64>();
        Chunk { words, skipped: unaligned.min(PADDING) }
    }
}

/// The blocks that are not in use.
struct FreeBlocks {
    /// First units of blocks, by class.
    lists: [Vec<u32>; CLASSES as usize],
    /// The first unit that was never in a block.
    next: u64,
}

/// Blocks of words. See the [module](self).
pub(super) struct Slab {
    small: [OnceLock<Chunk>; SMALL_CHUNKS],
    /// The chunks of the largest size.
    pages: [OnceLock<Box<[OnceLock<Chunk>]>>; PAGES],
    free: Mutex<FreeBlocks>,
    /// Bytes of all chunks.
    bytes: AtomicUsize,
}

impl Slab {
    /// An empty slab.
    pub(super) fn new() -> Slab {
        Slab {
            small: std::array::from_fn(|_| OnceLock::new()),
            pages: std::array::from_fn(|_| OnceLock::new()),
            free: Mutex::new(FreeBlocks { lists: Default::default(), next: 1 << FIRST }),
            bytes: AtomicUsize::new(0),
        }
    }

    /// The words of a block. Empty for a value that is not a block, such as one from a torn read.
    #[inline]
    pub(super) fn words(&self, block: Block) -> &[AtomicU64] {
        self.find(block).unwrap_or_default()
    }

    #[inline]
    fn find(&self, block: Block) -> Option<&[AtomicU64]> {
        let (class, unit) = (block.class(), block.unit());
        if class >= CLASSES || unit >> FIRST == 0 {
            return None;
        }
        let (chunk, offset) = if unit >> LARGEST == 0 {
            let size = unit.ilog2();
            (self.small[(size - FIRST) as usize].get()?, unit - (1 << size))
        } else {
            let chunk = (unit >> LARGEST) as usize - 1;
            (self.pages.get(chunk / PAGE)?.get()?[chunk % PAGE].get()?, unit & ((1 << LARGEST) - 1))
        };
        let start = chunk.skipped + offset as usize * UNIT_WORDS;
        chunk.words.get(start..start + (UNIT_WORDS << class))
    }

    /// Takes a block of this class and counts its bytes. Its words can have any value. Returns [`Block::NONE`] if the class
    /// does not exist or the slab holds the most that it can.
    pub(super) fn alloc(&self, class: u32, budget: &Budget) -> Block {
        let Some(unit) = self.take_units(class) else { return Block::NONE };
        self.init_chunk(unit);
        budget.take_anyway(block_bytes(class));
        // A reader of the row that had this block before can see the words that are stored next. It then also sees that
        // its row was locked when the block was freed.
        fence(Ordering::Release);
        Block::new(class, unit)
    }

    /// Gives a block and its bytes back. Ignores values that are not a block.
    pub(super) fn free(&self, block: Block, budget: &Budget) {
        if self.find(block).is_none() {
            return;
        }
        self.lock().lists[block.class() as usize].push(block.unit());
        budget.give(block_bytes(block.class()));
    }

    /// Bytes of all chunks, with the free blocks in them.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, FreeBlocks> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A free block of the class, the first part of a larger free block, or a new one.
    fn take_units(&self, class: u32) -> Option<u32> {
        let mut free = self.lock();
        let found = (class..CLASSES).find_map(|size| Some((size, free.lists[size as usize].pop()?)));
        if let Some((size, unit)) = found {
            // The second half, the second quarter, and so on stay free.
            for part in class..size {
                free.lists[part as usize].push(unit + (1 << part));
            }
            return Some(unit);
        }
        if class >= CLASSES {
            return None;
        }
        let units = 1 << class;
        if free.next.next_multiple_of(units) + units > END {
            return None;
        }
        // The units before the next multiple of the length become free blocks.
        while !free.next.is_multiple_of(units) {
            let (unit, size) = (free.next, free.next.trailing_zeros());
            free.lists[size as usize].push(u32::try_from(unit).ok()?);
            free.next += 1 << size;
        }
        let unit = u32::try_from(free.next).ok()?;
        free.next += units;
        Some(unit)
    }

    /// Creates the chunk of a unit if it does not exist yet.
    fn init_chunk(&self, unit: u32) {
        if unit >> LARGEST == 0 {
            let size = unit.ilog2();
            self.small[(size - FIRST) as usize].get_or_init(|| self.new_chunk(1 << size));
        } else {
            let chunk = (unit >> LARGEST) as usize - 1;
            let page = self.pages[chunk / PAGE].get_or_init(|| (0..PAGE).map(|_| OnceLock::new()).collect());
            page[chunk % PAGE].get_or_init(|| self.new_chunk(1 << LARGEST));
        }
    }

    fn new_chunk(&self, units: usize) -> Chunk {
        let chunk = Chunk::new(units);
        self.bytes.fetch_add(units * UNIT_BYTES, Ordering::Relaxed);
        chunk
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;
    use tidegate_testkit::test_scale::cases;

    use super::*;

    /// The address of the first word.
    fn start(slab: &Slab, block: Block) -> usize {
        slab.words(block).as_ptr().addr()
    }

    #[test]
    fn first_block_needs_4_kib() {
        let (slab, budget) = (Slab::new(), Budget::new(usize::MAX));
        assert_eq!(slab.bytes(), 0);
        let block = slab.alloc(0, &budget);
        assert_eq!((slab.bytes(), budget.taken(), slab.words(block).len()), (4096, 64, 8));
    }

    #[test]
    fn largest_blocks_fill_whole_chunks() {
        let (slab, budget) = (Slab::new(), Budget::new(usize::MAX));
        let blocks: Vec<Block> = (0..3).map(|_| slab.alloc(CLASSES - 1, &budget)).collect();
        assert_eq!((slab.bytes(), budget.taken()), (3 << 20, 3 << 20));
        assert!(blocks.iter().all(|&block| slab.words(block).len() == 8 << 14));
        // The smaller chunks that the first one skipped are used for smaller blocks.
        let small = slab.alloc(0, &budget);
        assert_eq!((slab.words(small).len(), slab.bytes()), (8, (3 << 20) + 4096));
    }

    #[test]
    fn freed_block_is_reused_for_smaller_blocks() {
        let (slab, budget) = (Slab::new(), Budget::new(usize::MAX));
        slab.free(slab.alloc(6, &budget), &budget);
        for _ in 0..64 {
            slab.alloc(0, &budget);
        }
        assert_eq!((slab.bytes(), budget.taken()), (4096, 4096));
    }

    #[test]
    fn class_out_of_range_gives_no_block() {
        let (slab, budget) = (Slab::new(), Budget::new(usize::MAX));
        let block = slab.alloc(CLASSES, &budget);
        assert_eq!((block, budget.taken(), slab.bytes()), (Block::NONE, 0, 0));
        assert!(slab.words(block).is_empty());
    }

    #[test]
    fn full_slab_gives_no_block() {
        let (slab, budget) = (Slab::new(), Budget::new(usize::MAX));
        slab.lock().next = END - 1;
        assert_ne!(slab.take_units(0), None);
        assert_eq!(slab.alloc(0, &budget), Block::NONE);
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn garbage_blocks_have_no_words_or_some() {
        let (slab, budget) = (Slab::new(), Budget::new(usize::MAX));
        slab.alloc(3, &budget);
        slab.alloc(14, &budget);
        let taken = budget.taken();
        for class in (0..20).chain([u32::MAX]) {
            for unit in [0, 1, 63, 64, 65, 127, 128, 8191, 16383, 16384, 32767, 32768, 1 << 24, u32::MAX] {
                let length = slab.words(Block::from_bits(u64::from(class) << 32 | u64::from(unit))).len();
                assert!(length == 0 || length == 8 << class, "{length} words of class {class} at {unit}");
            }
        }
        slab.free(Block::NONE, &budget);
        slab.free(Block::from_bits(u64::MAX), &budget);
        assert_eq!(budget.taken(), taken);
    }

    proptest! {
        #![proptest_config(cases(64))]

        /// Blocks in use never overlap and never move, and the budget counts exactly those.
        #[test]
        fn blocks_in_use_never_overlap(steps in prop::collection::vec((0u32..8, any::<bool>(), any::<prop::sample::Index>()), 1..200)) {
            let (slab, budget) = (Slab::new(), Budget::new(usize::MAX));
            let mut blocks: Vec<Block> = Vec::new();
            let mut starts = HashMap::new();
            for (class, adds, index) in steps {
                if adds || blocks.is_empty() {
                    let class = if class == 7 { 14 } else { class };
                    let block = slab.alloc(class, &budget);
                    prop_assert!(block.bits() < 1 << 62);
                    prop_assert_eq!(slab.words(block).len(), 8 << class);
                    prop_assert_eq!(start(&slab, block) % 64, 0);
                    starts.insert(block.bits(), start(&slab, block));
                    blocks.push(block);
                } else {
                    slab.free(blocks.swap_remove(index.index(blocks.len())), &budget);
                }
                let mut ranges: Vec<_> =
                    blocks.iter().map(|&block| (start(&slab, block), size_of_val(slab.words(block)))).collect();
                ranges.sort_unstable();
                prop_assert!(ranges.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
                prop_assert_eq!(budget.taken(), ranges.iter().map(|range| range.1).sum::<usize>());
                prop_assert!(budget.taken() <= slab.bytes());
                prop_assert!(blocks.iter().all(|&block| starts[&block.bits()] == start(&slab, block)));
            }
            for block in blocks {
                slab.free(block, &budget);
            }
            prop_assert_eq!(budget.taken(), 0);
        }
    }
}
