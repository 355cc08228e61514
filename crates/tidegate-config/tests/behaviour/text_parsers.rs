//! Parsers of numbers, times, sizes and addresses, and the messages for invalid rates.

use std::time::Duration;

use tidegate_config::text::{
    parse_address, parse_capacity, parse_duration, parse_instant, parse_rate, parse_size, without_passwords,
};
use tidegate_core::Capacity;

#[test]
fn parse_duration_of_each_unit_returns_duration() {
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
fn parse_size_accepts_one_number_and_unit() {
    let cases =
        [("0B", 0), ("17B", 17), ("1KiB", 1024), ("64MiB", 64 << 20), ("1GiB", 1 << 30), ("2TiB", 2 << 40)];
    for (text, bytes) in cases {
        assert_eq!(parse_size(text), Ok(bytes), "{text}");
    }
    assert_eq!(parse_size("16777215TiB"), Ok(16_777_215 << 40), "the largest size");
    for wrong in ["16777216TiB", "", "MiB", "64", "64MB", "64mib", "64 MiB", "+1GiB", "1.5GiB", "1GiB1MiB"] {
        assert!(parse_size(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn parse_address_requires_port() {
    for right in ["127.0.0.1:7700", "0.0.0.0:0", "[::]:65535", "[fe80::1%2]:80"] {
        assert_eq!(parse_address(right).map(|address| address.to_string()), Ok(right.to_owned()));
    }
    for wrong in ["", "7700", "127.0.0.1", "::1:7700", "[::1]", "localhost:1", "127.0.0.1:65536", "off"] {
        assert!(parse_address(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn parse_capacity_accepts_whole_numbers_from_minus_one() {
    assert_eq!(parse_capacity("-1"), Ok(Capacity::Unlimited));
    assert_eq!(parse_capacity("-0"), Ok(Capacity::AtMost(0)));
    assert_eq!(parse_capacity("+5"), Ok(Capacity::AtMost(5)));
    assert_eq!(parse_capacity("9223372036854775807"), Ok(Capacity::AtMost(i64::MAX.unsigned_abs())));
}

#[test]
fn parse_instant_keeps_nanoseconds() {
    let last = Duration::new(9_223_372_036, 999_999_999);
    assert_eq!(parse_instant("1970-01-01T00:00:00Z"), Ok(Duration::ZERO));
    assert_eq!(parse_instant("2262-04-11t23:47:16.999999999z"), Ok(last));
    assert_eq!(parse_instant("2026-01-20T00:00:00.000000001+08:00"), Ok(Duration::new(1_768_838_400, 1)));
    assert_eq!(parse_instant("1969-12-31T23:00:00-01:00"), Ok(Duration::ZERO));
}

#[test]
fn parse_rate_rejects_other_forms() {
    assert_eq!(parse_rate("0/1500ms"), Ok((Capacity::AtMost(0), Duration::from_millis(1500))));
    let messages: Vec<_> =
        ["100", "100/s", "/60s", "1.5/60s", "-2/60s", "100/60", "100/0s", "100 / 60s", "1/2/3s"]
            .iter()
            .map(|text| parse_rate(text).expect_err("the rate must be rejected"))
            .collect();
    insta::assert_snapshot!(messages.join("\n"));
}

#[test]
fn without_passwords_masks_passwords_in_malformed_urls() {
    for (text, shown) in [
        ("postgres://app:s3cret@db/limits", "postgres://app:***@db/limits"),
        ("postgre://app:s3cret@db/limits", "postgre://app:***@db/limits"),
        ("POSTGRES://app:s3cret@db/limits", "POSTGRES://app:***@db/limits"),
        (" postgres://app:s3cret@db", " postgres://app:***@db"),
        ("postgres:/app:s3cret@db", "postgres:/app:***@db"),
        ("postgres:app:s3cret@db", "postgres:app:***@db"),
        ("postgres://app:s3c:r/e@t s3cret@db", "postgres://app:***@db"),
        ("disk:postgres://app:s3cret@db", "disk:postgres://app:***@db"),
        ("host=db password=s3cret user=app", "host=db password=*** user=app"),
        ("host=db password = 's3c ret'", "host=db password = ***"),
        ("postgres://app@db/x?password=s3cret&pool_size=4", "postgres://app@db/x?password=***&pool_size=4"),
        ("{url: postgres://app:s3,cret@db}", "{url: postgres://app:***@db}"),
        ("{url: postgres://app:s3cret}", "{url: postgres://app:***}"),
        ("  password: s3cret", "  password: ***"),
        ("http://app:s3cret@server", "http://app:***@server"),
    ] {
        assert_eq!(without_passwords(text), shown);
        assert_eq!(without_passwords(shown), shown, "masking is idempotent");
    }
    for text in [
        "",
        "user:alice@example.com",
        "postgres://app@db:5432/limits?schema=a",
        "postgres://db:5432/limits",
        "postgres://[::1]:5432/limits",
        "disk:./a:b",
        "the password is missing",
    ] {
        assert_eq!(without_passwords(text), text);
    }
}
