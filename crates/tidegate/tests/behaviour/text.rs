//! Numbers and times as people write them: what is read, and what a rate that cannot be read is told.

use std::time::Duration;

use tidegate::Capacity;
use tidegate::text::{parse_capacity, parse_duration, parse_instant, parse_rate};

#[test]
fn durations_have_one_unit() {
    let cases = [
        ("0s", 0),
        ("500ms", 500),
        ("15s", 15_000),
        ("10m", 600_000),
        ("24h", 86_400_000),
        ("7d", 604_800_000),
    ];
    for (text, milliseconds) in cases {
        assert_eq!(parse_duration(text), Ok(Duration::from_millis(milliseconds)), "{text}");
    }
}

#[test]
fn limits_are_whole_from_minus_one() {
    assert_eq!(parse_capacity("-1"), Ok(Capacity::Unlimited));
    assert_eq!(parse_capacity("-0"), Ok(Capacity::AtMost(0)));
    assert_eq!(parse_capacity("+5"), Ok(Capacity::AtMost(5)));
    assert_eq!(parse_capacity("9223372036854775807"), Ok(Capacity::AtMost(i64::MAX.unsigned_abs())));
}

#[test]
fn instants_are_exact() {
    let last = Duration::new(9_223_372_036, 999_999_999);
    assert_eq!(parse_instant("1970-01-01T00:00:00Z"), Ok(Duration::ZERO));
    assert_eq!(parse_instant("2262-04-11t23:47:16.999999999z"), Ok(last));
    assert_eq!(parse_instant("2026-01-20T00:00:00.000000001+08:00"), Ok(Duration::new(1_768_838_400, 1)));
    assert_eq!(parse_instant("1969-12-31T23:00:00-01:00"), Ok(Duration::ZERO));
}

#[test]
fn rates_are_a_count_over_a_duration() {
    assert_eq!(parse_rate("0/1500ms"), Ok((Capacity::AtMost(0), Duration::from_millis(1500))));
    let told: Vec<_> =
        ["100", "100/s", "/60s", "1.5/60s", "-2/60s", "100/60", "100/0s", "100 / 60s", "1/2/3s"]
            .iter()
            .map(|text| parse_rate(text).expect_err("the rate must be refused"))
            .collect();
    insta::assert_snapshot!(told.join("\n"));
}
