//! One unit of a bucket in a plan: three words that are copied once from a [`Drop`] and used often.

#![expect(clippy::inline_always, reason = "a part of the quick way, which is one piece of code")]

use tidegate_core::Timestamp;
use tidegate_core::law::token_bucket;

use super::super::cache_line::{PAYLOAD, PRESENT};
use super::super::sync::{AtomicU64, Ordering};
use super::{CellLaw, Drop};

/// What a unit is reckoned with. Its words are to be believed if the boards that they are copied from are as they were.
#[derive(Debug)]
pub(in super::super) struct Unit {
    /// What an instant is put forward by, to be compared with what cells say.
    ahead: AtomicU64,
    room: AtomicU64,
    step: AtomicU64,
}

impl Unit {
    /// Of nothing yet.
    pub(in super::super) fn new() -> Unit {
        let [ahead, room, step] = [0; 3].map(AtomicU64::new);
        Unit { ahead, room, step }
    }

    /// Copies what a drop is reckoned with.
    pub(in super::super) fn set(&self, drop: &Drop) {
        let short = drop.short();
        self.ahead.store(PRESENT.wrapping_sub(short.base), Ordering::Relaxed);
        self.room.store(short.b, Ordering::Relaxed);
        self.step.store(short.a, Ordering::Relaxed);
    }

    /// What a cell says after a unit was taken, if it is granted: before [`Drop::fits_until`]. Cells that are held, or only say where their row
    /// is, say more than any room allows.
    #[inline(always)]
    pub(in super::super) fn next(&self, word: u64, now: Timestamp) -> Option<u64> {
        let now = now.ticks().wrapping_add(self.ahead.load(Ordering::Relaxed));
        let (room, step) = (self.room.load(Ordering::Relaxed), self.step.load(Ordering::Relaxed));
        token_bucket::charge_one_within(room, step, word, now)
    }
}

impl Drop {
    /// Before this instant whatever is granted fits its cell.
    pub(in super::super) fn fits_until(&self) -> u64 {
        let short = self.short();
        let left = PAYLOAD.checked_sub(short.b).and_then(|left| left.checked_sub(short.a));
        left.map_or(0, |left| short.base.saturating_add(left))
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use proptest::prelude::*;
    use tidegate_testkit::test_scale::cases;

    use super::super::super::cache_line::{HELD, WIDE};
    use super::super::cell_laws::{LATEST_BASE, LONGEST, Next};
    use super::super::{Head, Short};
    use super::*;

    /// Small numbers, any, and those at the end.
    fn ticks() -> impl Strategy<Value = u64> {
        prop_oneof![0..100_u64, 0..=LONGEST, (0..100_u64).prop_map(|less| LONGEST - less)]
    }

    proptest! {
        #![proptest_config(cases(20_000))]

        /// While it fits, a unit is granted as its drop is and says the same; cells that are held or point elsewhere are not gone by.
        #[test]
        fn planned_unit_matches_unit_bucket(
            step in ticks(),
            room in ticks(),
            base in prop_oneof![ticks(), (0..100_u64).prop_map(|less| LATEST_BASE - less)],
            // Anywhere while it fits, or just before the end of that.
            age in prop_oneof![ticks().prop_map(Ok), (1..100_u64).prop_map(Err)],
            payload in ticks(),
            flags in prop_oneof![8 => Just(PRESENT), 1 => Just(0), 1 => Just(PRESENT | HELD), 1 => Just(WIDE)],
        ) {
            let drop = Drop::of(Short { head: Head(0), capacity: 0, a: step, b: room, base });
            let Some(lasts) = drop.fits_until().checked_sub(base).filter(|lasts| *lasts > 0) else {
                prop_assert!(step + room >= PAYLOAD, "it fits until it does not");
                return Ok(());
            };
            let now = base + match age {
                Ok(age) => age % lasts,
                Err(before) => lasts.saturating_sub(before),
            };
            let word = if flags == 0 { 0 } else { flags | payload };
            let (unit, now) = (Unit::new(), Timestamp::from_ticks(now));
            unit.set(&drop);
            let expected = match drop.next(word, 1, now) {
                Next::Granted(next) => Some(next),
                Next::Denied(_) | Next::At(_) | Next::Unsaid => None,
            };
            prop_assert_eq!(unit.next(word, now), expected);
        }
    }
}
