//! Fingerprints: what the table keeps instead of keys.
//!
//! A key is hashed twice, with keys derived from a secret that belongs to the store and to the limit, so nobody outside can find two
//! keys that meet, nor aim keys at one place of the table. Of the 128 bits a line keeps 96: among ten million keys of a limit the
//! chance that any two meet is about one in 10^15.
//!
//! Refused: SipHash-1-3 with 128 bits, which takes three times as long for a short key and a third of a whole decision with it.

#![expect(clippy::inline_always, reason = "these are parts of the quick way, which is one piece of code")]

use std::hash::{BuildHasher, Hasher};

use ahash::RandomState;

use super::line::Tag;

/// Makes the fingerprints of one limit.
#[derive(Debug, Clone)]
pub(super) struct Printer {
    low: RandomState,
    high: RandomState,
}

impl Printer {
    /// The printer of a limit: its generation is never used twice under one secret.
    pub(super) fn new(secret: [u64; 2], generation: u64) -> Printer {
        // Keys of its own for every limit: what meets under one does not meet under another.
        let derive = RandomState::with_seeds(secret[0], secret[1], !secret[0], !secret[1]);
        let own = |half: usize| {
            let [first, second, third, fourth] =
                std::array::from_fn(|index| derive.hash_one((generation, half, index)));
            RandomState::with_seeds(first, second, third, fourth)
        };
        Printer { low: own(0), high: own(1) }
    }

    /// The fingerprint of a key.
    #[inline(always)]
    pub(super) fn print(&self, key: &[u8]) -> Tag {
        let high = u32::try_from(digest(&self.high, key) >> 32).expect("32 bits");
        Tag { low: digest(&self.low, key), high }
    }
}

/// The bytes alone: their number is part of the hash as it is.
#[inline(always)]
fn digest(keys: &RandomState, key: &[u8]) -> u64 {
    let mut hasher = keys.build_hasher();
    hasher.write(key);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys that look alike are spread evenly.
    #[test]
    fn fingerprints_are_even() {
        let printer = Printer::new([1, 2], 3);
        let mut counts = [0u32; 64];
        for number in 0..64_000 {
            let tag = printer.print(format!("u{number:011}").as_bytes());
            counts[usize::try_from(tag.low >> 58).expect("six bits")] += 1;
        }
        assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
    }
}
