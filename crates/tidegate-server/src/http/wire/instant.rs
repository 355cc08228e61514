//! Instants in RFC 3339, UTC, with as many decimals as needed.
//!
//! Consecutive responses often contain the same second, so the text before the decimals is cached, and the calendar is computed only
//! for another second.

use std::cell::Cell;
use std::time::Duration;

use tidegate::model::{Tick, Timestamp};

/// Formats an instant of a store with this tick.
pub(in crate::http) fn of(at: Timestamp, tick: Tick) -> String {
    since_epoch(tick.since_epoch(at))
}

/// Formats a time since the epoch.
pub(in crate::http) fn since_epoch(since: Duration) -> String {
    let second = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
    let nanosecond = i32::try_from(since.subsec_nanos()).unwrap_or_default();
    jiff::Timestamp::new(second, nanosecond).unwrap_or(jiff::Timestamp::MAX).to_string()
}

/// Length of the text before the decimals.
const UP_TO_SECONDS: usize = "1970-01-01T00:00:00".len();

thread_local! {
    /// The last second, and its text.
    static LAST: Cell<(u64, [u8; UP_TO_SECONDS])> = const { Cell::new((0, *b"1970-01-01T00:00:00")) };
}

/// Appends an instant of a store with this tick.
pub(in crate::http) fn write(at: Timestamp, tick: Tick, out: &mut Vec<u8>) {
    let since = tick.since_epoch(at);
    let (second, mut text) = LAST.get();
    if second != since.as_secs() {
        let written = since_epoch(Duration::from_secs(since.as_secs()));
        match written.as_bytes() {
            [seconds @ .., b'Z'] if seconds.len() == UP_TO_SECONDS => text.copy_from_slice(seconds),
            // Beyond the year 9999.
            _ => return out.extend_from_slice(written.as_bytes()),
        }
        LAST.set((since.as_secs(), text));
    }
    out.extend_from_slice(&text);
    decimals(since.subsec_nanos(), out);
    out.push(b'Z');
}

/// Appends the decimals without trailing zeros.
fn decimals(mut nanos: u32, out: &mut Vec<u8>) {
    if nanos == 0 {
        return;
    }
    let mut text = *b".000000000";
    for place in text.iter_mut().skip(1).rev() {
        *place = b'0' + u8::try_from(nanos % 10).unwrap_or_default();
        nanos /= 10;
    }
    let last = text.iter().rposition(|digit| *digit != b'0').unwrap_or_default();
    out.extend_from_slice(&text[..=last]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_second_is_written_like_a_computed_one() {
        let seconds = [0, 0, 1_735_660_799, 1_735_660_799, 1_735_660_800, 1_709_164_800, 0];
        for (second, nanos) in seconds.into_iter().zip([0, 1, 500_000_000, 999_999_999, 10, 123_456_789, 90])
        {
            let at = Timestamp::from_ticks(second * 1_000_000_000 + nanos);
            let mut out = Vec::new();
            write(at, Tick::NANOSECOND, &mut out);
            assert_eq!(String::from_utf8(out).expect("text"), of(at, Tick::NANOSECOND));
        }
        let mut out = Vec::new();
        write(Timestamp::from_ticks(u64::MAX), Tick::MILLISECOND, &mut out);
        assert_eq!(out, of(Timestamp::from_ticks(u64::MAX), Tick::MILLISECOND).into_bytes());
    }

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
