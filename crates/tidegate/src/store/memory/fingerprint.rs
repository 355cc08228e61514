//! Fingerprints: the table stores them instead of keys.
//!
//! Keys are hashed with secrets of the store and of the limit, so outsiders can neither construct collisions nor aim
//! keys at one place of the table. A cache line keeps 96 of at least 128 bits. Among ten million keys of a limit a
//! collision has a probability of about one in 10^15. For adversarial keys and eight-byte counters it is one in 10^12.
//!
//! Keys of eight to sixteen bytes are folded: their first and last eight bytes, each under a secret, are multiplied. The
//! smaller part of the tag is the sum of both halves of the product, mixed with the bytes. The larger part is a second
//! product under two more secrets. Other keys are hashed twice by `ahash`. Fingerprints in a log always use `ahash`.
//!
//! Folding takes a third of the instructions of two `ahash` calls, and a tenth of a decision. If the first product tells
//! two keys apart, they collide only by chance. It fails if a factor is close to zero, or if the halves differ exactly
//! where the bytes do. That affects one key in 2^64 and causes the one in 10^12.
//!
//! Alternatives refused: SipHash-1-3 with 128 bits takes three times as long as two `ahash` calls for a short key, a
//! third of a decision. One 64-bit hash for both parts would merge keys that collide in it. A third product for the
//! smaller part adds no information to the first one.

#![expect(clippy::inline_always, reason = "these functions are parts of a decision of 20 ns")]

use std::hash::{BuildHasher, Hasher};

use ahash::RandomState;

use super::line::Tag;

/// The secret of fingerprints.
#[derive(Debug, Clone, Copy)]
pub(super) struct Secret {
    words: [u64; 2],
    are_kept: bool,
}

impl Secret {
    /// The secret of a store whose fingerprints never leave the process.
    pub(super) const fn of(words: [u64; 2]) -> Secret {
        Secret { words, are_kept: false }
    }

    /// The secret of a store whose fingerprints are stored.
    pub(super) const fn kept(self) -> Secret {
        Secret { are_kept: true, ..self }
    }
}

/// Whether this program computes stored fingerprints as the first log has them. `ahash` differs in programs that are built
/// for processors with AES instructions only.
pub(super) fn are_stable() -> bool {
    Fingerprinter::new(Secret::of([1, 2]).kept(), 3).print(b"u00000012345") == STABLE
}

const STABLE: Tag = Tag { low: 10_472_193_781_865_780_397, high: 3_417_416_739 };

/// The length of the shortest folded key.
const SHORTEST: usize = 8;
/// The difference to the longest one.
const SPAN: usize = 8;

/// Computes the fingerprints of one limit.
#[derive(Debug, Clone)]
pub(super) struct Fingerprinter {
    /// Whether keys of suitable length are folded.
    folds_keys: bool,
    folds: Folds,
    low: RandomState,
    high: RandomState,
}

/// The secrets of folding.
#[derive(Debug, Clone, Copy)]
struct Folds {
    first: u64,
    /// One for each length.
    last: [u64; SPAN + 1],
    again: [u64; 2],
}

impl Fingerprinter {
    /// The fingerprints of a limit. A generation is never used twice under one secret.
    pub(super) fn new(secret: Secret, generation: u64) -> Fingerprinter {
        let Secret { words, are_kept } = secret;
        // Each limit has secrets of its own: a collision in one limit is none in another.
        let derive = RandomState::with_seeds(words[0], words[1], !words[0], !words[1]);
        let key = |half: usize, index: usize| derive.hash_one((generation, half, index));
        let own = |half: usize| {
            let [first, second, third, fourth] = std::array::from_fn(|index| key(half, index));
            RandomState::with_seeds(first, second, third, fourth)
        };
        let last = std::array::from_fn(|longer| key(4, longer));
        let folds = Folds { first: key(2, 0), last, again: std::array::from_fn(|index| key(3, index)) };
        Fingerprinter { folds_keys: !are_kept, folds, low: own(0), high: own(1) }
    }

    /// The fingerprint of a key.
    #[inline(always)]
    pub(super) fn print(&self, key: &[u8]) -> Tag {
        self.fold(key).unwrap_or_else(|| self.print_otherwise(key))
    }

    /// The fingerprint of a key whose length is suitable for folding.
    #[inline(always)]
    pub(super) fn fold(&self, key: &[u8]) -> Option<Tag> {
        let longer = key.len().wrapping_sub(SHORTEST);
        if longer > SPAN || !self.folds_keys {
            return None;
        }
        let (first, last) = (key.first_chunk()?, key.last_chunk()?);
        Some(self.folds.fold(u64::from_le_bytes(*first), u64::from_le_bytes(*last), longer))
    }

    /// The fingerprint of any other key.
    #[inline(never)]
    fn print_otherwise(&self, key: &[u8]) -> Tag {
        let mut hashers = [self.low.build_hasher(), self.high.build_hasher()];
        // A loop, so that the compiler interleaves both hashes. The hash includes the length.
        for hasher in &mut hashers {
            hasher.write(key);
        }
        let [low, high] = hashers.map(|hasher| hasher.finish());
        Tag::of(low, high)
    }
}

impl Folds {
    /// Folds a key of eight to sixteen bytes by its first and last eight bytes and its length. Where these overlap, keys of
    /// different lengths may have the same bytes.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "so much of it is kept")]
    fn fold(&self, first: u64, last: u64, longer: usize) -> Tag {
        let (lower, upper) = product(first ^ self.first, last ^ self.last[longer]);
        // A product is the same for swapped factors, so the bytes are mixed in as well.
        let (lower, upper) = (lower ^ first, upper ^ last);
        let [one, other] = self.again;
        let again = product(lower ^ one, upper ^ other);
        // A sum, not a difference: the first and last eight bytes of a key of eight bytes are equal and would cancel out.
        Tag { low: again.0 ^ again.1, high: lower.wrapping_add(upper) as u32 }
    }
}

/// Both halves of a product.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the lower half is what is wanted")]
fn product(one: u64, other: u64) -> (u64, u64) {
    let product = u128::from(one) * u128::from(other);
    (product as u64, (product >> u64::BITS) as u64)
}

impl Tag {
    #[inline(always)]
    fn of(low: u64, high: u64) -> Tag {
        Tag { low, high: u32::try_from(high >> 32).expect("32 bits") }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use tidegate_core::limit::MAX_KEY_BYTES;

    use super::*;

    /// Asserts that the bits that select the leaf and the line are evenly distributed.
    fn is_even(tags: impl Iterator<Item = Tag>, count: u32) {
        let mut counts = [[0_u32; 64]; 3];
        for tag in tags {
            let places = [tag.low >> 58, tag.low & 63, u64::from(tag.high) >> 26];
            for (counts, place) in counts.iter_mut().zip(places) {
                counts[usize::try_from(place).expect("six bits")] += 1;
            }
        }
        let (least, most) = (count / 64 * 4 / 5, count / 64 * 6 / 5);
        assert!(counts.iter().flatten().all(|count| (least..most).contains(count)), "{counts:?}");
    }

    /// Similar keys are spread evenly.
    #[test]
    fn fingerprints_are_uniform() {
        for secret in [Secret::of([1, 2]), Secret::of([1, 2]).kept(), Secret::of([0, 0])] {
            let printer = Fingerprinter::new(secret, 3);
            let print = |key: String| printer.print(key.as_bytes());
            is_even((0..64_000).map(|number| print(format!("u{number:011}"))), 64_000);
            is_even((0..64_000).map(|number| print(format!("{number:08x}"))), 64_000);
            is_even((0..64_000).map(|number| print(format!("{number:011}u"))), 64_000);
            is_even((0..64_000).map(|number| print(number.to_string())), 64_000);
            is_even((0..64_000_u64).map(|number| printer.print(&(number << 32).to_be_bytes())), 64_000);
            let middle = |number: u64| print(format!("user-{number:06}-shop"));
            is_even((0..64_000).map(middle), 64_000);
        }
    }

    /// Each bit of a key changes half of the bits of its tag.
    #[test]
    fn every_key_bit_changes_fingerprint() {
        let printer = Fingerprinter::new(Secret::of([5, 6]), 1);
        for length in 1..=40 {
            for seed in 0..8_u8 {
                let key: Vec<u8> = (0..length).map(|at| seed.wrapping_mul(31).wrapping_add(at)).collect();
                let tag = printer.print(&key);
                for bit in 0..8 * key.len() {
                    let mut other = key.clone();
                    other[bit / 8] ^= 1 << (bit % 8);
                    let changed = printer.print(&other);
                    let bits = (tag.low ^ changed.low).count_ones() + (tag.high ^ changed.high).count_ones();
                    assert!((20..=76).contains(&bits), "{bits} bits for bit {bit} of {key:?}");
                }
            }
        }
    }

    /// Keys with equal first and last eight bytes and different lengths differ. So do nearly empty keys of all lengths.
    #[test]
    fn keys_of_different_length_differ() {
        for secret in [Secret::of([5, 6]), Secret::of([5, 6]).kept()] {
            let printer = Fingerprinter::new(secret, 1);
            let mut seen = HashSet::new();
            for length in 0..200 {
                for filling in [0, 1, b'a', 255] {
                    assert!(seen.insert(printer.print(&vec![filling; length])) || length == 0);
                }
            }
        }
    }

    /// Keys of all lengths have both parts of a tag, and they differ.
    #[test]
    fn tag_has_two_parts() {
        const HIGH: u64 = (1 << u32::BITS) - 1;
        for secret in [Secret::of([5, 6]), Secret::of([5, 6]).kept()] {
            let printer = Fingerprinter::new(secret, 1);
            for length in (0..100).chain([MAX_KEY_BYTES - 1, MAX_KEY_BYTES]) {
                let key: Vec<u8> = (0..length).map(|at| u8::try_from(at % 251).expect("a byte")).collect();
                let tag = printer.print(&key);
                for part in [tag.low & HIGH, tag.low >> u32::BITS] {
                    assert_ne!(part, u64::from(tag.high));
                }
            }
        }
    }

    /// Among many similar keys, as many pairs share the smaller part of their tags as by chance. None share the larger part. One
    /// secret is tested: keys that count upwards collide less often under some secrets and in bursts under others.
    #[test]
    fn small_tag_part_collides_at_random_rate() {
        const KEYS: u64 = 400_000;
        // Half of all pairs, one in 2^32 each, are 18.6.
        let about = 1..60;
        let of: [fn(u64) -> Vec<u8>; 6] = [
            |number| format!("u{number:011}").into_bytes(),
            |number| format!("{number:08x}").into_bytes(),
            |number| number.to_le_bytes().to_vec(),
            |number| (number << 40).to_le_bytes().to_vec(),
            |number| format!("user-{number:06}-shop").into_bytes(),
            |number| [number.to_le_bytes(), (number << 44).to_le_bytes()].concat(),
        ];
        for (family, key) in of.into_iter().enumerate() {
            let printer = Fingerprinter::new(Secret::of([17, 23]), 4);
            let mut parts: Vec<u32> = (0..KEYS).map(|number| printer.print(&key(number)).high).collect();
            parts.sort_unstable();
            let met = parts.windows(2).filter(|pair| pair[0] == pair[1]).count();
            assert!(about.contains(&met), "{met} meet in family {family}");
        }
    }

    /// Keys whose halves are swapped under the secrets have the same products.
    #[test]
    fn swapped_key_halves_differ() {
        let printer = Fingerprinter::new(Secret::of([5, 6]), 1);
        let between = |longer: usize| printer.folds.first ^ printer.folds.last[longer];
        let of = |words: &[u64]| {
            printer.print(&words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>())
        };
        for number in 0..1000_u64 {
            let (first, last) = (number.wrapping_mul(0x9e37_79b9_7f4a_7c15), number);
            let pairs = [
                (of(&[first]), of(&[first ^ between(0)])),
                (of(&[first, last]), of(&[last ^ between(8), first ^ between(8)])),
            ];
            for (one, other) in pairs {
                assert_ne!(one.low, other.low);
                assert_ne!(one.high, other.high);
            }
        }
    }

    /// Stored fingerprints are those of the first log.
    #[test]
    fn stored_fingerprints_are_stable() {
        assert!(are_stable());
    }
}
