//! Instants, as RFC 3339 in UTC with as many decimals as they need.

use std::time::Duration;

use tidegate::{Tick, Timestamp};

/// An instant of a store that keeps time in this tick.
pub(in crate::http) fn of(at: Timestamp, tick: Tick) -> String {
    since_epoch(tick.since_epoch(at))
}

/// The instant this long after the epoch.
pub(in crate::http) fn since_epoch(since: Duration) -> String {
    let second = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
    let nanosecond = i32::try_from(since.subsec_nanos()).unwrap_or_default();
    jiff::Timestamp::new(second, nanosecond).unwrap_or(jiff::Timestamp::MAX).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_have_the_decimals_they_need() {
        for (nanos, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (1, "1970-01-01T00:00:00.000000001Z"),
            (1_735_660_799_500_000_000, "2024-12-31T15:59:59.5Z"),
            (1_709_164_800_000_000_000, "2024-02-29T00:00:00Z"),
        ] {
            assert_eq!(of(Timestamp::from_ticks(nanos), Tick::NANOSECOND), text);
        }
        assert_eq!(of(Timestamp::from_ticks(1_500), Tick::MILLISECOND), "1970-01-01T00:00:01.5Z");
        assert_eq!(
            since_epoch(Duration::MAX),
            "9999-12-30T22:00:00.999999999Z",
            "the end of what can be said"
        );
    }
}
