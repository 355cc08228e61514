//! Keys of twelve bytes, the same on every machine.
//!
//! They are owned strings, as programs have them. governor is keyed by `String` and takes a `&String`, which a
//! `&str` would have to be copied into. The strings are made in the order of their use, so that reading a key
//! costs every subject the same and little.

use std::fmt::Write;
use std::sync::Arc;

/// Coprime to every number of keys in use, and large, so that its multiples are scattered.
const STRIDE: u64 = 982_451_653;

/// Keys in the order of their use.
#[derive(Debug, Clone, Default)]
pub struct Keys {
    distinct: Arc<[String]>,
    /// The number of uses. The keys repeat.
    len: usize,
}

impl Keys {
    /// One key, repeated.
    pub fn hot(draws: usize) -> Keys {
        Keys { len: draws, ..Keys::of([12_345].into_iter()) }
    }

    /// Random draws from this many keys.
    pub fn random(draws: usize, out_of: u64, seed: u64) -> Keys {
        let mut state = seed.wrapping_add(1);
        Keys::of((0..draws).map(|_| {
            // Knuth's multiplier: the same keys on every machine.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % out_of
        }))
    }

    /// Each of this many keys once, in a scattered order.
    pub fn each(count: u64) -> Keys {
        Keys::of((0..count).map(|index| index * STRIDE % count))
    }

    fn of(numbers: impl Iterator<Item = u64>) -> Keys {
        let key = |number| {
            let mut key = String::new();
            write(&mut key, number);
            key
        };
        let distinct: Arc<[String]> = numbers.map(key).collect();
        Keys { len: distinct.len(), distinct }
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The keys, in order.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = &String> {
        self.distinct.iter().cycle().take(self.len)
    }
}

/// Replaces the content of the buffer by the key with this number.
pub fn write(buffer: &mut String, number: u64) {
    buffer.clear();
    write!(buffer, "u{number:011}").expect("a string takes whatever is written to it");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_comes_once() {
        let keys = Keys::each(1_000);
        let mut sorted: Vec<&String> = keys.iter().collect();
        assert_ne!(sorted, Keys::of(0..1_000).iter().collect::<Vec<_>>(), "in no order");
        sorted.sort_unstable();
        assert_eq!(sorted, Keys::of(0..1_000).iter().collect::<Vec<_>>());
    }

    #[test]
    fn keys_have_their_length_and_repeat_from_run_to_run() {
        let keys = Keys::random(10, 1_000_000, 1);
        assert_eq!(keys.len(), 10);
        assert!(keys.iter().all(|key| key.len() == 12 && key.starts_with('u')));
        assert_eq!(keys.distinct, Keys::random(10, 1_000_000, 1).distinct);
        assert_ne!(keys.distinct, Keys::random(10, 1_000_000, 2).distinct);
    }
}
