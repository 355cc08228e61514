//! The list of runs: grows at its end, shrinks at its front, and is one slice in between.
//!
//! Most keys have spent once or twice in their window. That much lies in the list itself, so that remembering them costs no
//! allocation and looking at them no second look into memory. Longer lists are on the heap; what has left the window is skipped
//! there, and moved out of the way when it is more than what is left, which costs less than a move for every run.

use std::ops::{Deref, DerefMut};

use super::Run;

/// How many runs lie in the list itself: as many as take no more room than the heap's bookkeeping.
const FEW: usize = 2;

/// SlidingLog, oldest first.
#[derive(Debug, Clone)]
pub(super) enum List {
    Few {
        length: u8,
        runs: [Run; FEW],
    },
    Many {
        /// How many at the front are gone.
        gone: usize,
        runs: Vec<Run>,
    },
}

impl Default for List {
    fn default() -> List {
        List::Few { length: 0, runs: [Run::default(); FEW] }
    }
}

impl Deref for List {
    type Target = [Run];

    #[inline]
    fn deref(&self) -> &[Run] {
        match self {
            List::Few { length, runs } => &runs[..usize::from(*length)],
            List::Many { gone, runs } => &runs[*gone..],
        }
    }
}

impl DerefMut for List {
    #[inline]
    fn deref_mut(&mut self) -> &mut [Run] {
        match self {
            List::Few { length, runs } => &mut runs[..usize::from(*length)],
            List::Many { gone, runs } => &mut runs[*gone..],
        }
    }
}

impl List {
    /// Adds a run at the end.
    pub(super) fn push(&mut self, run: Run) {
        match self {
            List::Few { length, runs } if usize::from(*length) < FEW => {
                runs[usize::from(*length)] = run;
                *length += 1;
            }
            List::Few { runs, .. } => {
                let mut many = Vec::with_capacity(2 * FEW);
                many.extend_from_slice(runs);
                many.push(run);
                *self = List::Many { gone: 0, runs: many };
            }
            List::Many { runs, .. } => runs.push(run),
        }
    }

    /// Drops all of them, and keeps the room.
    pub(super) fn clear(&mut self) {
        match self {
            List::Few { length, .. } => *length = 0,
            List::Many { gone, runs } => {
                *gone = 0;
                runs.clear();
            }
        }
    }

    /// Drops this many from the front.
    pub(super) fn drop_front(&mut self, count: usize) {
        match self {
            List::Few { length, runs } => {
                runs.copy_within(count..usize::from(*length), 0);
                *length -= u8::try_from(count).expect("no more than there are");
            }
            List::Many { gone, runs } => {
                *gone += count;
                if *gone == runs.len() {
                    *self = List::default();
                } else if *gone > runs.len() / 2 {
                    runs.drain(..*gone);
                    *gone = 0;
                }
            }
        }
    }

    /// Takes one out of the middle.
    pub(super) fn remove(&mut self, index: usize) {
        match self {
            List::Few { length, runs } => {
                runs.copy_within(index + 1..usize::from(*length), index);
                *length -= 1;
            }
            List::Many { gone, runs } => {
                runs.remove(*gone + index);
                if *gone == runs.len() {
                    *self = List::default();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Timestamp;

    /// Whatever is done to it, it holds what a plain vector would.
    #[test]
    fn it_is_a_list() {
        let (mut list, mut plain) = (List::default(), Vec::new());
        let mut random = 1u64;
        for step in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let pick = usize::try_from(random >> 40).expect("24 bits");
            match pick % 5 {
                _ if plain.is_empty() => {
                    list.push(run(step));
                    plain.push(run(step));
                }
                0..=2 => {
                    list.push(run(step));
                    plain.push(run(step));
                }
                3 => {
                    let count = pick % (plain.len() + 1);
                    list.drop_front(count);
                    plain.drain(..count);
                }
                _ => {
                    list.remove(pick % plain.len());
                    plain.remove(pick % plain.len());
                }
            }
            assert_eq!(*list, *plain, "after step {step}");
        }
    }

    fn run(step: u64) -> Run {
        Run { at: Timestamp::from_ticks(step), sum: step }
    }
}
