//! A clock that is read for every decision.

use std::any::Any;

use tidegate_core::Timestamp;

use super::{Clock, SystemClock};

/// The system's clock, read without a call, or any other.
pub(crate) enum Timepiece {
    System(SystemClock),
    Other(Box<dyn Clock>),
}

impl Timepiece {
    pub(crate) fn of(clock: impl Clock + 'static) -> Timepiece {
        let mut clock = Some(clock);
        let system = (&mut clock as &mut dyn Any).downcast_mut().and_then(Option::<SystemClock>::take);
        match (system, clock) {
            (Some(system), _) => Timepiece::System(system),
            (None, Some(other)) => Timepiece::Other(Box::new(other)),
            (None, None) => unreachable!("a clock is one or the other"),
        }
    }

    /// The clock, whichever it is.
    pub(crate) fn clock(&self) -> &dyn Clock {
        match self {
            Timepiece::System(clock) => clock,
            Timepiece::Other(clock) => &**clock,
        }
    }

    /// The instant it is.
    #[inline]
    pub(crate) fn now(&self) -> Timestamp {
        match self {
            Timepiece::System(clock) => clock.now(),
            Timepiece::Other(clock) => clock.now(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    #[test]
    fn the_systems_clock_is_known_by_its_type() {
        assert!(matches!(Timepiece::of(SystemClock::new()), Timepiece::System(_)));
        let other = Timepiece::of(ManualClock::at(Timestamp::from_ticks(5)));
        assert!(matches!(other, Timepiece::Other(_)));
        assert_eq!(other.now(), Timestamp::from_ticks(5));
    }
}
