//! Time as the core sees it: whole ticks since the Unix epoch.
//!
//! A store keeps time in the finest unit its engine offers: nanoseconds in this process, microseconds in
//! a database. The arithmetic of the laws is the same for both, so the core never names a unit. A
//! [`Tick`] says how many ticks a second has and is consulted in two places only: where human
//! durations become ticks (always rounded *against the asker*), and where the calendar is asked.
//!
//! Decided: instants are unsigned and end in the year 2262, spans end at a century. Inside these bounds no
//! sum of an instant and two spans can overflow, so the laws need no checks of their own. Refused: floating
//! point, negative instants, and a clock; `now` is always an argument.

use std::time::Duration;

/// The last second an instant may fall in: 2262-04-11, where signed 64-bit nanoseconds end.
pub const LAST_SECOND: u64 = 9_223_372_036;

/// The longest span of a window, a time to live or the refill of a burst: one century.
pub const MAX_SPAN: Duration = Duration::from_secs(36_525 * 86_400);

/// An instant: whole ticks since 1970-01-01T00:00:00Z.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The Unix epoch, and the earliest instant there is.
    pub const EPOCH: Timestamp = Timestamp(0);

    /// The instant this many ticks after the epoch.
    pub const fn from_ticks(ticks: u64) -> Timestamp {
        Timestamp(ticks)
    }

    /// Ticks since the epoch.
    pub const fn ticks(self) -> u64 {
        self.0
    }

    /// This instant moved later; it stays at the end of time rather than wrap.
    #[inline]
    pub const fn plus(self, span: Span) -> Timestamp {
        Timestamp(self.0.saturating_add(span.0))
    }

    /// This instant moved earlier; it stays at the epoch rather than wrap.
    #[inline]
    pub const fn minus(self, span: Span) -> Timestamp {
        Timestamp(self.0.saturating_sub(span.0))
    }

    /// How long after `earlier` this is; zero if it is not after it.
    #[inline]
    pub const fn since(self, earlier: Timestamp) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

/// A length of time in ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span(u64);

impl Span {
    /// No time at all.
    pub const ZERO: Span = Span(0);
    /// The shortest time that is not none.
    pub const ONE_TICK: Span = Span(1);

    /// A span of this many ticks.
    pub const fn from_ticks(ticks: u64) -> Span {
        Span(ticks)
    }

    /// The number of ticks.
    pub const fn ticks(self) -> u64 {
        self.0
    }

    /// The span repeated; it stays at the longest representable rather than wrap.
    #[inline]
    pub const fn times(self, count: u64) -> Span {
        Span(self.0.saturating_mul(count))
    }

    /// The span shortened; never below zero.
    #[inline]
    pub const fn minus(self, other: Span) -> Span {
        Span(self.0.saturating_sub(other.0))
    }

    /// The span lengthened; it stays at the longest representable rather than wrap.
    #[inline]
    pub const fn plus(self, other: Span) -> Span {
        Span(self.0.saturating_add(other.0))
    }
}

/// How finely a store keeps time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tick {
    per_second: u32,
}

impl Tick {
    /// One tick is a nanosecond: this process, a local disk.
    pub const NANOSECOND: Tick = Tick { per_second: 1_000_000_000 };
    /// One tick is a microsecond: SQL and Redis servers.
    pub const MICROSECOND: Tick = Tick { per_second: 1_000_000 };
    /// One tick is a millisecond: the coarsest a limits file can be read with.
    pub const MILLISECOND: Tick = Tick { per_second: 1_000 };

    /// Ticks in a second.
    pub const fn per_second(self) -> u64 {
        self.per_second as u64
    }

    /// Nanoseconds in a tick.
    const fn nanos(self) -> u128 {
        1_000_000_000 / self.per_second as u128
    }

    /// A human duration in ticks, **rounded up**: a longer window never admits more. Durations above
    /// [`MAX_SPAN`] are that long.
    pub fn span(self, duration: Duration) -> Span {
        let nanos = duration.min(MAX_SPAN).as_nanos();
        Span(u64::try_from(nanos.div_ceil(self.nanos())).expect("a century of nanoseconds fits 64 bits"))
    }

    /// A span in human terms, exactly.
    pub fn duration(self, span: Span) -> Duration {
        let nanos = u128::from(span.0) * self.nanos();
        let seconds = u64::try_from(nanos / 1_000_000_000).unwrap_or(u64::MAX);
        Duration::new(seconds, u32::try_from(nanos % 1_000_000_000).expect("below a second"))
    }

    /// The instant `since_epoch` after the epoch, rounded **down** to a tick, or `None` beyond
    /// [`LAST_SECOND`]. Time read late only delays refills, so this also rounds against the asker.
    pub fn instant(self, since_epoch: Duration) -> Option<Timestamp> {
        if since_epoch.as_secs() > LAST_SECOND {
            return None;
        }
        u64::try_from(since_epoch.as_nanos() / self.nanos()).ok().map(Timestamp)
    }

    /// The same, rounded **up**: for what begins then.
    pub fn instant_rounded_up(self, since_epoch: Duration) -> Option<Timestamp> {
        let floor = self.instant(since_epoch)?;
        Some(if self.since_epoch(floor) < since_epoch { floor.plus(Span::ONE_TICK) } else { floor })
    }

    /// How long after the epoch an instant is, exactly.
    pub fn since_epoch(self, at: Timestamp) -> Duration {
        self.duration(Span(at.0))
    }

    /// The instant at the start of this second.
    pub(crate) const fn at_second(self, second: u64) -> Timestamp {
        Timestamp(second.saturating_mul(self.per_second()))
    }

    /// The second an instant falls in.
    pub(crate) const fn second_of(self, at: Timestamp) -> u64 {
        at.0 / self.per_second()
    }
}
