//! Identities of counters and of counted targets.

use std::fmt;
use std::str::FromStr;

/// Identity of a counter. Readings can be subtracted only if they have the same identity.
///
/// It is a fingerprint of what changes when the counter restarts, such as the boot and the inode of a cgroup. Its text form is 32 hex
/// digits. It stays the same when the governor restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CounterId(u128);

impl CounterId {
    /// The identity with these distinguishing words.
    pub fn of(words: &[&[u8]]) -> CounterId {
        // FNV-1a over all words, each with its length, so that different lists never have equal input.
        let mut hash = OFFSET;
        for word in words {
            for byte in word.len().to_le_bytes().iter().chain(*word) {
                hash = (hash ^ u128::from(*byte)).wrapping_mul(PRIME);
            }
        }
        CounterId(hash)
    }

    /// The identity as bytes.
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    /// The identity with these bytes.
    pub fn from_bytes(bytes: [u8; 16]) -> CounterId {
        CounterId(u128::from_be_bytes(bytes))
    }
}

/// Identity of the counted target, independent of counter restarts: the machine, a cgroup by its path, or a process tree.
///
/// A restarted counter continues earlier samples only if its target is the same. The fingerprint has three bytes, because a sample has room
/// for no more. Two targets collide with a probability of one in sixteen million.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TargetId(u32);

impl TargetId {
    /// The target in samples of older versions.
    pub const UNKNOWN: TargetId = TargetId(0);

    /// The target with these distinguishing words.
    pub fn of(words: &[&[u8]]) -> TargetId {
        let [low, middle, high, ..] = CounterId::of(words).to_bytes();
        TargetId(u32::from_le_bytes([low, middle, high, 0]).max(1))
    }

    /// The identity as bytes.
    pub fn to_bytes(self) -> [u8; 3] {
        let [low, middle, high, _] = self.0.to_le_bytes();
        [low, middle, high]
    }

    /// The target with these bytes.
    pub fn from_bytes([low, middle, high]: [u8; 3]) -> TargetId {
        TargetId(u32::from_le_bytes([low, middle, high, 0]))
    }
}

const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
/// Length of the text form.
const DIGITS: usize = 32;

impl fmt::Display for CounterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:0DIGITS$x}", self.0)
    }
}

impl FromStr for CounterId {
    type Err = BadCounterId;

    fn from_str(text: &str) -> Result<CounterId, BadCounterId> {
        let is_plain = text.len() == DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = is_plain.then(|| u128::from_str_radix(text, 16).ok()).flatten();
        number.map(CounterId).ok_or(BadCounterId)
    }
}

/// The text is not 32 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadCounterId;

impl fmt::Display for BadCounterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a counter id has {DIGITS} hexadecimal digits")
    }
}

impl std::error::Error for BadCounterId {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formatted_counter_id_parses_to_the_same_id() {
        for words in [&[][..], &[b"a".as_slice()], &[b"a", b"b"]] {
            let counter_id = CounterId::of(words);
            assert_eq!(counter_id.to_string().parse(), Ok(counter_id));
            assert_eq!(CounterId::from_bytes(counter_id.to_bytes()), counter_id);
        }
        for wrong in ["", "1", "+0000000000000000000000000000001", "0000000000000000000000000000000g"] {
            assert_eq!(wrong.parse::<CounterId>(), Err(BadCounterId), "{wrong}");
        }
    }

    #[test]
    fn target_id_round_trips_and_is_never_unknown() {
        let (host, other) = (TargetId::of(&[b"host"]), TargetId::of(&[b"cgroup", b"a"]));
        assert_ne!(host, other);
        for target in [host, other, TargetId::UNKNOWN] {
            assert_eq!(TargetId::from_bytes(target.to_bytes()), target);
        }
        assert_ne!(host, TargetId::UNKNOWN);
    }

    #[test]
    fn different_words_give_different_counter_ids() {
        let ids = [
            CounterId::of(&[]),
            CounterId::of(&[b""]),
            CounterId::of(&[b"ab"]),
            CounterId::of(&[b"a", b"b"]),
            CounterId::of(&[b"b", b"a"]),
        ];
        for (index, one) in ids.iter().enumerate() {
            assert!(!ids[..index].contains(one));
        }
    }
}
