//! Fingerprints: what the table keeps instead of keys.
//!
//! A key is hashed with a secret that belongs to the store and to the limit, so nobody outside can find two keys that meet, nor
//! aim keys at one place of the table. The hash is SipHash-1-3 with 128 bits, of which a line keeps 96: among ten million keys of
//! a limit the chance that any two meet is about one in 10^15.

use siphasher::sip128::{Hasher128, SipHasher13};

use super::line::Tag;

/// Makes the fingerprints of one limit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Printer {
    hasher: SipHasher13,
}

impl Printer {
    /// The printer of a limit: its generation is never used twice under one secret.
    pub(super) fn new(secret: [u64; 2], generation: u64) -> Printer {
        // A key of its own for every limit: what meets under one does not meet under another.
        let mut derive = SipHasher13::new_with_keys(secret[0], secret[1]);
        std::hash::Hasher::write_u64(&mut derive, generation);
        let own = derive.finish128();
        Printer { hasher: SipHasher13::new_with_keys(own.h1, own.h2) }
    }

    /// The fingerprint of a key.
    #[inline]
    pub(super) fn print(&self, key: &[u8]) -> Tag {
        let hash = self.hasher.hash(key);
        Tag { low: hash.h1, high: u32::try_from(hash.h2 >> 32).expect("32 bits") }
    }
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
