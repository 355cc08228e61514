//! Time as whole ticks since the Unix epoch.
//!
//! Each store chooses its resolution: nanoseconds in this process, microseconds in a database. The laws only add and
//! compare ticks, so they work at any resolution. [`Tick`] holds the ticks per second. Only conversions of human
//! durations and the calendar use it. Conversions round so that the caller never gets more than the limit allows.
//!
//! Instants are unsigned and end in the year 2262. Spans end at a century. Within these bounds the sum of an instant and
//! two spans cannot overflow, so the laws need no overflow checks. The core has no clock, no negative instants and
//! no floating point; `now` is always an argument.

use std::time::Duration;

/// The last valid second: 2262-04-11, where signed 64-bit nanoseconds end.
pub const LAST_SECOND: u64 = 9_223_372_036;

/// The longest window, lease TTL or burst refill time: one century.
pub const MAX_SPAN: Duration = Duration::from_secs(36_525 * 86_400);

/// An instant: whole ticks since 1970-01-01T00:00:00Z.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The Unix epoch, the earliest instant.
    pub const EPOCH: Timestamp = Timestamp(0);

    /// The instant this many ticks after the epoch.
    pub const fn from_ticks(ticks: u64) -> Timestamp {
        Timestamp(ticks)
    }

    /// Ticks since the epoch.
    pub const fn ticks(self) -> u64 {
        self.0
    }

    /// Adds a span; saturates at the largest instant.
    #[inline]
    pub const fn plus(self, span: Span) -> Timestamp {
        Timestamp(self.0.saturating_add(span.0))
    }

    /// Subtracts a span; saturates at the epoch.
    #[inline]
    pub const fn minus(self, span: Span) -> Timestamp {
        Timestamp(self.0.saturating_sub(span.0))
    }

    /// The span from `earlier` to this instant; zero if `earlier` is later.
    #[inline]
    pub const fn since(self, earlier: Timestamp) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

/// The units of a duration in text and their milliseconds, the smallest first.
pub const DURATION_UNITS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 24 * 3_600_000)];

/// A duration as settings files write it: in the largest unit of which it is a whole number, such as `90m`. Less than a
/// millisecond is cut off.
pub fn format_duration(duration: Duration) -> String {
    let milliseconds = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let fits = |scale: &u64| milliseconds.is_multiple_of(*scale);
    let largest = DURATION_UNITS.iter().rev().find(|(_, scale)| fits(scale));
    let (unit, scale) = largest.unwrap_or(&DURATION_UNITS[0]);
    format!("{}{unit}", milliseconds / scale)
}

/// A length of time in ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span(u64);

impl Span {
    /// The empty span.
    pub const ZERO: Span = Span(0);
    /// The shortest nonzero span.
    pub const ONE_TICK: Span = Span(1);

    /// A span of this many ticks.
    pub const fn from_ticks(ticks: u64) -> Span {
        Span(ticks)
    }

    /// The number of ticks.
    pub const fn ticks(self) -> u64 {
        self.0
    }

    /// Multiplies the span; saturates.
    #[inline]
    pub const fn times(self, count: u64) -> Span {
        Span(self.0.saturating_mul(count))
    }

    /// Subtracts a span; saturates at zero.
    #[inline]
    pub const fn minus(self, other: Span) -> Span {
        Span(self.0.saturating_sub(other.0))
    }

    /// Adds a span; saturates.
    #[inline]
    pub const fn plus(self, other: Span) -> Span {
        Span(self.0.saturating_add(other.0))
    }
}

/// The time resolution of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tick {
    per_second: u32,
}

impl Tick {
    /// One tick is a nanosecond: memory and disk stores.
    pub const NANOSECOND: Tick = Tick { per_second: 1_000_000_000 };
    /// One tick is a microsecond: SQL and Redis servers.
    pub const MICROSECOND: Tick = Tick { per_second: 1_000_000 };
    /// One tick is a millisecond: the coarsest resolution that limits files support.
    pub const MILLISECOND: Tick = Tick { per_second: 1_000 };

    /// Ticks in a second.
    pub const fn per_second(self) -> u64 {
        self.per_second as u64
    }

    /// Nanoseconds in a tick.
    const fn nanos(self) -> u128 {
        1_000_000_000 / self.per_second as u128
    }

    /// Converts a duration to ticks, **rounded up**: a longer window never admits more. Durations above [`MAX_SPAN`] are
    /// clamped to it.
    pub fn span(self, duration: Duration) -> Span {
        let nanos = duration.min(MAX_SPAN).as_nanos();
        Span(u64::try_from(nanos.div_ceil(self.nanos())).expect("a century of nanoseconds fits 64 bits"))
    }

    /// Converts a span to a duration, exactly.
    pub fn duration(self, span: Span) -> Duration {
        let nanos = u128::from(span.0) * self.nanos();
        let seconds = u64::try_from(nanos / 1_000_000_000).unwrap_or(u64::MAX);
        Duration::new(seconds, u32::try_from(nanos % 1_000_000_000).expect("below a second"))
    }

    /// Converts time since the epoch to an instant, rounded **down** to a tick. `None` beyond [`LAST_SECOND`]. An early
    /// `now` only delays refills, so rounding down never grants more.
    pub fn instant(self, since_epoch: Duration) -> Option<Timestamp> {
        if since_epoch.as_secs() > LAST_SECOND {
            return None;
        }
        u64::try_from(since_epoch.as_nanos() / self.nanos()).ok().map(Timestamp)
    }

    /// Like [`Tick::instant`], rounded **up**. Used for start times.
    pub fn instant_rounded_up(self, since_epoch: Duration) -> Option<Timestamp> {
        let floor = self.instant(since_epoch)?;
        Some(if self.since_epoch(floor) < since_epoch { floor.plus(Span::ONE_TICK) } else { floor })
    }

    /// Converts an instant to time since the epoch, exactly.
    pub fn since_epoch(self, at: Timestamp) -> Duration {
        self.duration(Span(at.0))
    }

    /// The first instant of a second since the epoch.
    pub const fn at_second(self, second: u64) -> Timestamp {
        Timestamp(second.saturating_mul(self.per_second()))
    }

    /// The second that contains an instant.
    #[inline]
    pub const fn second_of(self, at: Timestamp) -> u64 {
        at.0 / self.per_second()
    }
}
