//! A small seeded random number generator (splitmix64).

/// A stream of random numbers.
pub(super) struct SeededRng(u64);

impl SeededRng {
    /// The generator of one thread of a run.
    pub(super) fn new(seed: u64, thread: u64) -> SeededRng {
        let mut rng = SeededRng(seed ^ (thread + 1).wrapping_mul(0xA076_1D64_78BD_642F));
        rng.next_u64();
        rng
    }

    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, which must not be zero.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next_u64() % end
    }

    /// An index into a collection of this length, which must not be zero.
    pub(super) fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).expect("an index is a usize")
    }

    /// True with this probability in percent.
    pub(super) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// A random element.
    pub(super) fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.index(choices.len())]
    }
}
