//! The clock of a store, read for every decision.

use std::any::Any;

use tidegate_core::Timestamp;

use super::{Clock, SystemClock};

/// The system clock, read without a virtual call, or any other clock.
pub(crate) enum StoreClock {
    System(SystemClock),
    Other(Box<dyn Clock>),
}

impl StoreClock {
    pub(crate) fn of(clock: impl Clock + 'static) -> StoreClock {
        let mut clock = Some(clock);
        let system = (&mut clock as &mut dyn Any).downcast_mut().and_then(Option::<SystemClock>::take);
        match (system, clock) {
            (Some(system), _) => StoreClock::System(system),
            (None, Some(other)) => StoreClock::Other(Box::new(other)),
            (None, None) => unreachable!("the clock is in exactly one of the two"),
        }
    }

    /// The clock as a trait object.
    pub(crate) fn clock(&self) -> &dyn Clock {
        match self {
            StoreClock::System(clock) => clock,
            StoreClock::Other(clock) => &**clock,
        }
    }

    /// The current instant.
    #[inline]
    pub(crate) fn now(&self) -> Timestamp {
        match self {
            StoreClock::System(clock) => clock.now(),
            StoreClock::Other(clock) => clock.now(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    #[test]
    fn system_clock_is_recognized_by_type() {
        assert!(matches!(StoreClock::of(SystemClock::new()), StoreClock::System(_)));
        let other = StoreClock::of(ManualClock::at(Timestamp::from_ticks(5)));
        assert!(matches!(other, StoreClock::Other(_)));
        assert_eq!(other.now(), Timestamp::from_ticks(5));
    }
}
