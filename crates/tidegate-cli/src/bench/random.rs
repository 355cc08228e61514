//! Numbers that nobody can foretell, and numbers that everybody can repeat.

use std::hash::{BuildHasher, Hasher, RandomState};

/// A number that is another one each time: what the standard library takes from the system to shuffle its tables.
pub(super) fn random_u64() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// A sequence that is the same whenever it begins with the same number (`SplitMix64`).
#[derive(Debug, Clone)]
pub(super) struct SplitMix64(u64);

impl SplitMix64 {
    /// The sequence that begins here.
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

    /// A number below this one, each as likely as any other but for one part in 2^32; 0 below 0.
    pub(super) fn below(&mut self, bound: u32) -> u32 {
        let high = self.next() >> 32;
        u32::try_from((high * u64::from(bound)) >> 32).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_is_the_same_sequence() {
        let drawn = |seed| {
            let mut sequence = SplitMix64::from(seed);
            [(); 8].map(|()| sequence.below(1000))
        };
        assert_eq!(drawn(7), drawn(7));
        assert_ne!(drawn(7), drawn(8));
    }

    #[test]
    fn every_number_comes_up_and_none_above() {
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
    fn surprises_differ() {
        assert_ne!(random_u64(), random_u64());
    }
}
