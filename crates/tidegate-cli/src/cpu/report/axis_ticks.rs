//! Axis ticks at round local times.

use tidegate::model::{Span, Timestamp};
use tidegate_core::Zone;

use crate::cpu::format::wall;
use crate::instant::InstantWriter;

/// Maximum number of ticks.
const MAX_TICKS: u64 = 9;

const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;

/// Possible distances between ticks, in seconds.
const STEPS: [u64; 15] = [
    10,
    60,
    5 * 60,
    15 * 60,
    30 * 60,
    HOUR,
    2 * HOUR,
    3 * HOUR,
    6 * HOUR,
    12 * HOUR,
    DAY,
    2 * DAY,
    7 * DAY,
    14 * DAY,
    60 * DAY,
];

/// The ticks of a time range, with labels.
pub(super) fn ticks(zone: &Zone, from: Timestamp, to: Timestamp) -> Vec<(Timestamp, String)> {
    let length = seconds(to.since(from).ticks());
    let step = STEPS.into_iter().find(|step| length / step < MAX_TICKS).unwrap_or(STEPS[STEPS.len() - 1]);
    let first = seconds(wall(zone, from).0.ticks()).div_ceil(step);
    let mut ticks: Vec<(Timestamp, String)> = Vec::new();
    // Daylight saving changes may add or remove a tick.
    for number in first..first + 2 * MAX_TICKS {
        let clock_seconds = number * step;
        let at = instant_of(zone, clock_seconds).filter(|at| (from..=to).contains(at));
        let is_next = |at: &Timestamp| ticks.last().is_none_or(|(last, _)| last < at);
        if let Some(at) = at.filter(is_next) {
            ticks.push((at, label(clock_seconds, step)));
        }
    }
    ticks
}

/// The instant at which local clocks show this second; `None` in a daylight saving gap.
fn instant_of(zone: &Zone, clock_seconds: u64) -> Option<Timestamp> {
    let instant = |second: u64| Timestamp::from_ticks(second.saturating_mul(1_000_000_000));
    let behind =
        |guess: Timestamp| instant(clock_seconds.saturating_add_signed(-i64::from(zone.offset(guess))));
    let near = behind(instant(clock_seconds));
    [near, behind(near)].into_iter().find(|at| wall(zone, *at).0 == instant(clock_seconds))
}

/// The label: a time of day, or the date at midnight.
fn label(clock_seconds: u64, step: u64) -> String {
    let mut out = Vec::new();
    InstantWriter::default().write(
        Timestamp::EPOCH.plus(Span::from_ticks(clock_seconds.saturating_mul(1_000_000_000))),
        &mut out,
    );
    let text = String::from_utf8_lossy(&out);
    let range = match () {
        () if clock_seconds.is_multiple_of(DAY) => 5..10,
        () if step < 60 => 11..19,
        () => 11..16,
    };
    text.get(range).unwrap_or_default().to_owned()
}

fn seconds(ticks: u64) -> u64 {
    ticks / 1_000_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(zone: &str, from: u64, to: u64) -> Vec<String> {
        let zone = Zone::named(zone).expect("a zone");
        let at = |second: u64| Timestamp::from_ticks(second * 1_000_000_000);
        ticks(&zone, at(from), at(to)).into_iter().map(|(_, label)| label).collect()
    }

    /// 2026-03-29T00:00:00Z.
    const SUNDAY: u64 = 1_774_742_400;

    #[test]
    fn ticks_are_at_round_local_times() {
        assert_eq!(
            labels("UTC", SUNDAY, SUNDAY + DAY),
            ["03-29", "03:00", "06:00", "09:00", "12:00", "15:00", "18:00", "21:00", "03-30"]
        );
        assert_eq!(
            labels("Asia/Kolkata", SUNDAY, SUNDAY + 3 * HOUR),
            ["05:30", "06:00", "06:30", "07:00", "07:30", "08:00", "08:30"]
        );
        assert_eq!(labels("UTC", SUNDAY + 1, SUNDAY + 31), ["00:00:10", "00:00:20", "00:00:30"]);
        assert_eq!(labels("UTC", SUNDAY, SUNDAY), ["03-29"]);
    }

    /// In Berlin clocks go from 02:00 to 03:00 that night.
    #[test]
    fn skipped_hour_has_no_tick() {
        assert_eq!(
            labels("Europe/Berlin", SUNDAY - HOUR, SUNDAY + 4 * HOUR),
            ["03-29", "01:00", "03:00", "04:00", "05:00", "06:00"]
        );
    }
}
