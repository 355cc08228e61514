//! Random numbers: unpredictable ones for ids, repeatable ones for load.

use std::hash::{BuildHasher, Hasher, RandomState};

/// A random number, from the seed that the standard library uses for its hash tables.
pub(super) fn random_u64() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// A `SplitMix64` generator: the same seed gives the same sequence.
#[derive(Debug, Clone)]
pub(super) struct SplitMix64(u64);

impl SplitMix64 {
    /// A generator with this seed.
    pub(super) const fn from(seed: u64) -> SplitMix64 {
        SplitMix64(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, uniform but for one part in 2^32. Returns 0 for a bound of 0.
    pub(super) fn below(&mut self, bound: u32) -> u32 {
        let high = self.next() >> 32;
        u32::try_from((high * u64::from(bound)) >> 32).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_sequences() {
        let drawn = |seed| {
            let mut sequence = SplitMix64::from(seed);
            [(); 8].map(|()| sequence.below(1000))
        };
        assert_eq!(drawn(7), drawn(7));
        assert_ne!(drawn(7), drawn(8));
    }

    #[test]
    fn numbers_are_uniform_below_their_bound() {
        let mut sequence = SplitMix64::from(1);
        let mut seen = [0_u32; 10];
        for _ in 0..10_000 {
            seen[sequence.below(10) as usize] += 1;
        }
        assert!(seen.iter().all(|count| (800..1200).contains(count)), "{seen:?}");
        assert_eq!(sequence.below(0), 0);
        assert_eq!(sequence.below(1), 0);
    }

    #[test]
    fn random_numbers_differ() {
        assert_ne!(random_u64(), random_u64());
    }
}
