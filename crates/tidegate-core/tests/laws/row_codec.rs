//! Golden encodings of rows.
//!
//! A change that breaks one of these tests is a new format. It needs a new format number, and these rows must still decode.

use std::time::Duration;

use proptest::prelude::*;
use tidegate_core::row_codec::{FORMAT, RowDecodeError, decode, encode, limit_version};
use tidegate_core::{
    Charge, Decision, Intent, ItemSpec, Limit, LimitSpec, Per, Policy, Precision, Row, Tick, Timestamp, Unit,
};
use tidegate_testkit::history::{SystemUnderTest, histories, replay};
use tidegate_testkit::reference_model::OwnedAsk;
use tidegate_testkit::test_scale::cases;

use crate::minimal_store::{MinimalStore, scope_of};

const SECOND: Duration = Duration::from_secs(1);

fn ms(ms: u64) -> Timestamp {
    Timestamp::from_ticks(ms)
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).expect("ascii"), 16).expect("hexadecimal"))
        .collect()
}

/// Charges a limit with (time, count) pairs and returns the row of all keys.
fn charged(spec: LimitSpec, events: &[(u64, u64)]) -> (MinimalStore, Row) {
    let mut store = MinimalStore::with(spec, Tick::MILLISECOND);
    for &(at, count) in events {
        assert_eq!(store.take("a", "u", count, ms(at)), Decision::Granted);
    }
    let row = store.rows[&("a".to_owned(), None)].clone();
    (store, row)
}

#[track_caller]
fn golden(spec: LimitSpec, events: &[(u64, u64)], bytes: &str) {
    let (store, row) = charged(spec, events);
    let limit = &store.limits["a"];
    let mut written = Vec::new();
    encode(&row, limit, Per::All, &mut written);
    let bytes = hex(bytes);
    assert_eq!(written, bytes, "written {written:02x?}");
    assert_eq!(limit_version(&bytes), Ok(1));
    assert_eq!(decode(&bytes, limit, Per::All), Ok(row));
}

fn of(policy: Policy, limit: u64) -> LimitSpec {
    LimitSpec::named("a").with(ItemSpec::of(policy, limit))
}

// Every row starts with: format, limit version, latest time, holds.

#[test]
fn row_without_charges() {
    golden(of(Policy::Total, 9), &[(1000, 0)], "01 01 00 00  00");
}

#[test]
fn lifetime_total_row() {
    //                                             used 3, at the latest time, 1000 ms
    golden(of(Policy::Total, 9), &[(900, 1), (1000, 2)], "01 01 e807 00  01 03 00");
}

#[test]
fn fixed_window_row() {
    // An interval stores its first charge, a day its latest.
    let interval = of(Policy::Interval { window: SECOND }, 9);
    golden(interval, &[(900, 1), (1000, 2)], "01 01 8407 00  02 03 00");
    golden(of(Policy::Calendar(Unit::Day), 9), &[(900, 1), (1000, 2)], "01 01 e807 00  02 03 00");
}

#[test]
fn sliding_window_row() {
    // Last charged 0 ms before the latest time. Two entries: 2 units 300 ms before it, 1 unit 300 ms later.
    let exact = of(Policy::Sliding { window: SECOND, precision: Precision::Exact }, 9);
    golden(exact, &[(1000, 1), (1000, 1), (1300, 1)], "01 01 940a 00  03 00 02  ac02 02  ac02 01");
    // Sub-windows of 16 ms: a charge at 1000 counts at 1007, and was made 7 ms before that.
    let bucketed = of(Policy::Sliding { window: SECOND, precision: Precision::Bucketed }, 9);
    golden(bucketed, &[(1000, 1)], "01 01 ef07 00  03 07 01  00 01");
}

#[test]
fn token_bucket_row() {
    // Full at 1500, one unit every 500 ms, no credits.
    let bucket = of(Policy::Bucket { window: SECOND, burst: Some(4) }, 2);
    golden(bucket, &[(1000, 1)], "01 01 dc0b 00  04 00 f403 00");
}

#[test]
fn concurrency_row() {
    // One holder: lease 1 expires at 61000 and holds one unit.
    let spec = of(Policy::Concurrency { ttl: Duration::from_secs(60) }, 9);
    golden(spec, &[(1000, 5)], "01 01 c8dc03 00  05 01  01000000000000000000000000000000 00 01");
}

/// One item of every law, and one item without charges.
fn everything() -> LimitSpec {
    let untouched = ItemSpec { charge: Some(Charge::Ask), ..ItemSpec::of(Policy::Total, 9).per_key() };
    of(Policy::Total, 9)
        .with(untouched)
        .with(ItemSpec::of(Policy::Calendar(Unit::Day), 9))
        .with(ItemSpec::of(Policy::Sliding { window: SECOND, precision: Precision::Exact }, 9))
        .with(ItemSpec::of(Policy::Bucket { window: SECOND, burst: Some(4) }, 2))
        .with(ItemSpec::of(Policy::Concurrency { ttl: SECOND }, 9))
}

const EVERYTHING: &str = "01 01 d00f 00
    01 02 e807
    02 02 e807
    03 e807 01 e807 02
    04 00 f403 00
    05 01 01000000000000000000000000000000 00 01";

#[test]
fn row_of_every_law() {
    golden(everything(), &[(1000, 2)], EVERYTHING);
}

#[test]
fn row_with_hold_stores_hold_count() {
    let mut store = MinimalStore::with(of(Policy::Total, 9), Tick::MILLISECOND);
    let ask = OwnedAsk { limit_id: "a".to_owned(), key: Some(b"u".to_vec()), count: 2 };
    store.order(Intent::Acquire, &[ask], true, ms(1000)).lease.expect("it is held");
    let mut written = Vec::new();
    encode(&store.rows[&("a".to_owned(), None)], &store.limits["a"], Per::All, &mut written);
    assert_eq!(written, hex("01 01 e807 01  01 02 00"));
}

fn limit() -> Limit {
    Limit::new(everything(), Tick::MILLISECOND).expect("the limit is valid")
}

#[test]
fn unknown_format_is_refused_with_reason() {
    let mut bytes = hex(EVERYTHING);
    bytes[0] = FORMAT + 1;
    let refused = Err(RowDecodeError { at: 0, what: "an unknown format" });
    assert_eq!(decode(&bytes, &limit(), Per::All), refused);
    assert_eq!(limit_version(&bytes).map_err(|damage| damage.at), Err(0));
}

#[test]
fn other_limit_version_is_refused_with_reason() {
    let mut bytes = hex(EVERYTHING);
    bytes[1] = 2;
    assert_eq!(limit_version(&bytes), Ok(2));
    let damage = decode(&bytes, &limit(), Per::All).expect_err("version 1 cannot read it");
    assert_eq!(damage.what, "another version of the limit");
}

#[test]
fn row_of_other_items_is_refused() {
    assert!(decode(&hex(EVERYTHING), &limit(), Per::Key).is_err());
    let other =
        Limit::new(of(Policy::Calendar(Unit::Day), 9), Tick::MILLISECOND).expect("the limit is valid");
    let damage = decode(&hex("01 01 e807 00  01 03 00"), &other, Per::All).expect_err("a total is no day");
    assert_eq!(damage.what, "a state of a different law");
}

#[test]
fn every_truncation_is_refused() {
    let bytes = hex(EVERYTHING);
    for length in 0..bytes.len() {
        assert!(decode(&bytes[..length], &limit(), Per::All).is_err(), "{length} bytes are not a row");
    }
    let longer = [&bytes[..], &[0]].concat();
    assert_eq!(decode(&longer, &limit(), Per::All).expect_err("too long").what, "bytes after the last state");
}

/// Bytes either decode to a row that encodes to the same bytes, or are refused.
#[track_caller]
fn assert_canonical_or_refused(bytes: &[u8], limit: &Limit, per: Per) {
    if let Ok(row) = decode(bytes, limit, per) {
        let mut again = Vec::new();
        encode(&row, limit, per, &mut again);
        assert_eq!(again, bytes);
    }
}

#[test]
fn every_flipped_bit_is_refused_or_is_a_row() {
    let bytes = hex(EVERYTHING);
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert_canonical_or_refused(&flipped, &limit(), Per::All);
    }
}

#[test]
fn non_canonical_encodings_are_refused() {
    let total = Limit::new(of(Policy::Total, 9), Tick::MILLISECOND).expect("the limit is valid");
    for (bytes, what) in [
        ("01 01 e807 00  01 8300 00", "not the canonical encoding"),
        ("01 01 e807 00  01 ffffffffffffffffffff7f 00", "a number above 64 bits"),
        ("01 01 e807 00  01 03 e907", "a time before 1970"),
        ("01 8180808010 00 00  00", "the version is too large"),
    ] {
        assert_eq!(decode(&hex(bytes), &total, Per::All).expect_err(bytes).what, what);
    }
    let rolling = of(Policy::Sliding { window: SECOND, precision: Precision::Exact }, 9);
    let rolling = Limit::new(rolling, Tick::MILLISECOND).expect("the limit is valid");
    for (bytes, what) in [
        ("01 01 e807 00  03 00 01  00 00", "an entry out of order"),
        ("01 01 e807 00  03 00 02  01 01 00 01", "an entry out of order"),
        ("01 01 e807 00  03 00 ffffffff0f  00 01", "more entries than bytes"),
        ("01 01 e807 00  03 00 00", "not the canonical encoding"),
        ("01 01 e807 00  03 00 02  01 ffffffffffffffffff01 01 01", "a sum above 64 bits"),
    ] {
        assert_eq!(decode(&hex(bytes), &rolling, Per::All).expect_err(bytes).what, what);
    }
}

proptest! {
    #![proptest_config(cases(300))]

    /// Damaged rows are refused, or decode to rows that can be used without a panic.
    #[test]
    fn damaged_rows_are_refused_or_are_rows(
        history in histories(false),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut store = MinimalStore::new(history.tick);
        let tally = replay(&history, &mut store).map_err(TestCaseError::fail)?;
        for (row_key, row) in &store.rows {
            let limit = &store.limits[&row_key.0];
            let per = scope_of(limit, row_key).per();
            let mut bytes = Vec::new();
            encode(row, limit, per, &mut bytes);
            for (at, value) in &damage {
                let at = at.index(bytes.len());
                bytes[at] = *value;
                assert_canonical_or_refused(&bytes, limit, per);
                if let Ok(row) = decode(&bytes, limit, per) {
                    row.is_evictable(limit, scope_of(limit, row_key), tally.ended);
                    row.evictable_at(limit, scope_of(limit, row_key), tally.ended);
                }
            }
        }
    }
}
