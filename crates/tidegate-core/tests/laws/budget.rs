//! Budget terms: worked examples of quotas, forecasts and invalid terms.

mod account;
mod trailing_window;
mod window_schedule;

use std::time::Duration;

use tidegate_core::budget::{BudgetStatus, BudgetTerms, BudgetTermsError, Quota, Rate, Share};

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(86_400);

/// A rate in thousandths of a unit.
fn thousandths(count: u64) -> Rate {
    Rate::from_billionths(count * 1_000_000)
}

fn share(thousandths: u64) -> Share {
    Share::from_billionths(thousandths * 1_000_000).expect("at most the whole")
}

/// An average of 30, from 10 to 90, with a safety of 0.9.
fn terms() -> BudgetTerms {
    BudgetTerms {
        average: Rate::from_units(30),
        floor: Rate::from_units(10),
        ceiling: Rate::from_units(90),
        capacity: Rate::from_units(100),
        safety: share(900),
        reserve: Share::NONE,
    }
}

/// The quota in whole units times minutes.
fn minutes(quota: Quota) -> i128 {
    assert_eq!(quota.billionth_minutes() % 1_000_000_000, 0);
    quota.billionth_minutes() / 1_000_000_000
}

#[test]
fn quota_is_rate_times_time() {
    for (percent, time) in [(30, 60), (60, 30), (15, 120)] {
        assert_eq!(minutes(Rate::from_units(percent).over(MINUTE * time)), 1800);
    }
    for (percent, time) in [(30, 1440), (60, 720), (90, 480)] {
        assert_eq!(minutes(Rate::from_units(percent).over(MINUTE * time)), 43_200);
    }
    assert_eq!(minutes(terms().total(DAY)), 43_200);
    for (average, time, used, remaining) in
        [(36_500, 60, 2190, 41_010), (35_000, 720, 25_200, 18_000), (28_000, 1440, 40_320, 2880)]
    {
        let spent = thousandths(average).over(MINUTE * time);
        assert_eq!(minutes(spent), used);
        assert_eq!(minutes(terms().forecast(DAY, MINUTE * time, spent).remaining), remaining);
    }
    let over = terms().forecast(DAY, MINUTE * 720, Rate::from_units(90).over(MINUTE * 720));
    assert_eq!(minutes(over.remaining), -21_600);
}

/// Every row of the table, to nine decimals.
#[test]
fn safe_rates_match_table() {
    //   minutes, average in thousandths, safe, target, in billionths
    let rows: [(u32, u64, u64, u64); 5] = [
        (0, 0, 28_000_000_000, 30_000_000_000),
        (60, 36_500, 27_745_652_173, 29_717_391_304),
        (720, 35_000, 23_500_000_000, 25_000_000_000),
        (1440, 28_000, 28_000_000_000, 30_000_000_000),
        (1380, 0, 90_000_000_000, 100_000_000_000),
    ];
    for (elapsed, average, safe, target) in rows {
        let elapsed = MINUTE * elapsed;
        let forecast = terms().forecast(DAY, elapsed, thousandths(average).over(elapsed));
        assert_eq!(forecast.safe_rate.billionths(), safe, "{elapsed:?}");
        assert_eq!(forecast.target.billionths(), target, "{elapsed:?}");
        assert_eq!(forecast.status, BudgetStatus::Ok, "{elapsed:?}");
        assert_eq!(forecast.left + elapsed, DAY);
    }
    let hour = terms().forecast(DAY, MINUTE * 60, thousandths(36_500).over(MINUTE * 60));
    assert_eq!(minutes(hour.future_floor), 13_800);
    assert_eq!(minutes(hour.remaining.minus(hour.future_floor)), 27_210);
}

#[test]
fn insufficient_quota_for_floor_is_reported() {
    let elapsed = MINUTE * 720;
    let with = |used: i128| {
        let used = Quota::from_raw(used * 60 * 1_000_000_000 * 1_000_000_000);
        let forecast = terms().forecast(DAY, elapsed, used);
        (forecast.status, forecast.safe_rate)
    };
    let floor = Rate::from_units(10);
    assert_eq!(with(43_200), (BudgetStatus::Exhausted, floor));
    assert_eq!(with(50_000), (BudgetStatus::Exhausted, floor));
    assert_eq!(with(36_001), (BudgetStatus::Insufficient, floor));
    assert_eq!(with(36_000), (BudgetStatus::Ok, floor), "just enough is no error");
    assert!(with(35_999).1 > floor);
}

#[test]
fn forecast_at_window_start_and_end() {
    let early = terms().forecast_unmeasured(DAY, MINUTE);
    assert_eq!((early.used, early.target), (Quota::ZERO, Rate::from_units(30)));
    let over = terms().forecast(DAY, DAY, Rate::from_units(31).over(DAY));
    assert_eq!(
        (over.target, over.safe_rate),
        (Rate::ZERO, Rate::from_units(28)),
        "the next window has begun"
    );
    assert!(
        terms().forecast(DAY, DAY.saturating_sub(Duration::from_nanos(1)), Quota::ZERO).safe_rate
            == Rate::from_units(90)
    );
}

/// Usage at the target rate ends at the average.
#[test]
fn target_rate_ends_at_average() {
    for (elapsed, average) in [(1, 90_000), (60, 36_500), (720, 35_000), (1000, 12_345)] {
        let elapsed = MINUTE * elapsed;
        let used = thousandths(average).over(elapsed);
        let forecast = terms().forecast(DAY, elapsed, used);
        let end = used.plus(forecast.target.over(forecast.left));
        let missing = forecast.total.minus(end);
        assert!(missing >= Quota::ZERO && missing < Rate::from_billionths(1).over(DAY), "{missing:?}");
    }
}

#[test]
fn reserve_is_subtracted_once() {
    let reserved = BudgetTerms { reserve: share(10), ..terms() };
    let forecast = reserved.forecast(DAY, Duration::ZERO, Quota::ZERO);
    assert_eq!(minutes(forecast.total), 42_768);
    assert_eq!(forecast.safe_rate, thousandths(27_730));
}

#[test]
fn invalid_terms_are_refused() {
    let units = Rate::from_units;
    assert_eq!(terms().check(), Ok(()));
    for (wrong, error) in [
        (
            BudgetTerms { floor: units(91), average: units(95), ..terms() },
            BudgetTermsError::FloorAboveCeiling,
        ),
        (BudgetTerms { ceiling: units(101), ..terms() }, BudgetTermsError::CeilingAboveCapacity),
        (BudgetTerms { average: Rate::ZERO, floor: Rate::ZERO, ..terms() }, BudgetTermsError::NoAverage),
        (BudgetTerms { average: units(101), ..terms() }, BudgetTermsError::AverageAboveCapacity),
        (BudgetTerms { floor: units(31), ..terms() }, BudgetTermsError::FloorAboveAverage),
        (
            BudgetTerms { floor: units(30), reserve: share(10), ..terms() },
            BudgetTermsError::FloorAboveEffectiveAverage,
        ),
        (BudgetTerms { safety: Share::NONE, ..terms() }, BudgetTermsError::NoSafety),
    ] {
        assert_eq!(wrong.check(), Err(error));
    }
    assert!(Share::from_billionths(1_000_000_001).is_none());
}
