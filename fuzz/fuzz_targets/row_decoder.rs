//! Decodes arbitrary bytes as a row: they are refused, or give a usable row.
//!
//! A decoded row must encode to the same bytes and must answer at every instant. After a charge it must encode and decode
//! again. A store that crashes on a damaged row is an outage. A store that
//! writes a row it cannot read loses data.

#![no_main]

use std::sync::LazyLock;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use tidegate_core::time::LAST_SECOND;
use tidegate_core::{
    Amount, AskTotals, Capacity, DecisionRow, Intent, ItemSpec, LeaseId, LeaseTerm, Limit, LimitSpec,
    OverrideSpec, Per, Policy, Precision, Row, RowScope, Span, Tick, Timestamp, Unit, decide, row_codec,
};

/// The key that has an override; other keys have none.
const KEY: &[u8] = b"client";

/// When that override ends.
const OVERRIDE_ENDS: Duration = Duration::from_secs(1_800_000_000);

/// A limit with every policy, for all keys and for each key, with and without a capacity.
static LIMIT: LazyLock<Limit> = LazyLock::new(|| {
    let minute = Duration::from_secs(60);
    let policies = [
        Policy::Total,
        Policy::Calendar(Unit::Month),
        Policy::Interval { window: minute },
        Policy::Sliding { window: minute, precision: Precision::Exact },
        Policy::Bucket { window: minute, burst: Some(20) },
        Policy::Concurrency { ttl: minute },
    ];
    let mut spec = LimitSpec::named("fuzz");
    for per in [Per::All, Per::Key] {
        for policy in policies {
            let item = ItemSpec { per, ..ItemSpec::of(policy, 10) };
            let unlimited = ItemSpec {
                name: Some(format!("{}/{}/unlimited", per.word(), policy.word())),
                limit: Capacity::Unlimited,
                ..item.clone()
            };
            spec = spec.with(item).with(unlimited);
        }
    }
    spec.overrides.push(OverrideSpec {
        key: KEY.to_vec(),
        item: "key/bucket-60s".to_owned(),
        limit: Capacity::AtMost(5),
        until: Some(OVERRIDE_ENDS),
    });
    Limit::new(spec, Tick::NANOSECOND).expect("the limit above is valid")
});

fuzz_target!(|bytes: &[u8]| {
    let _ = row_codec::limit_version(bytes);
    for per in [Per::All, Per::Key] {
        if let Ok(row) = row_codec::decode(bytes, &LIMIT, per) {
            assert_eq!(encoded(&row, per), bytes, "a row has one encoding");
            for now in instants(&row, per) {
                for count in [0, 1, 10, Amount::MAX] {
                    exercise_row(&row, per, count, now);
                }
            }
        }
    }
});

/// Checks a row, charges it within and past its limits, and decodes it again.
fn exercise_row(row: &Row, per: Per, count: Amount, now: Timestamp) {
    let scope = scope_of(per);
    let term = LeaseTerm { lease: LeaseId(7), expires_at: now.plus(Span::from_ticks(1)) };
    let mut charged = Vec::new();
    let mut next = row.clone();
    let mut decision = DecisionRow { limit: &LIMIT, scope, row: &mut next, totals: AskTotals::of(count) };
    decide(std::slice::from_mut(&mut decision), Intent::Acquire, Some(&term), now, &mut |each| {
        charged.push(each);
    });
    for each in &charged {
        decision.settle(each.position.item, each, LIMIT.version(), 0, now);
        // Settles the largest amount at two times. Counts saturate, and rows stay readable.
        for at in [now, now.plus(Span::ONE_TICK)] {
            decision.settle(each.position.item, each, LIMIT.version(), Amount::MAX, at);
        }
    }
    for (index, item) in LIMIT.items().iter().enumerate().filter(|(_, item)| item.per() == per) {
        let _ = decision.reading(index, item, now);
    }
    next.release(&term, now);
    let _ = (next.is_evictable(&LIMIT, scope, now), next.held_units(now));
    assert_reads_back(&next, per);
}

fn assert_reads_back(row: &Row, per: Per) {
    let read = row_codec::decode(&encoded(row, per), &LIMIT, per);
    assert_eq!(read.as_ref(), Ok(row), "an encoded row decodes to the same row");
}

fn encoded(row: &Row, per: Per) -> Vec<u8> {
    let mut bytes = Vec::new();
    row_codec::encode(row, &LIMIT, per, &mut bytes);
    bytes
}

fn scope_of(per: Per) -> RowScope<'static> {
    match per {
        Per::All => RowScope::All,
        Per::Key => RowScope::from(LIMIT.overrides(KEY)),
    }
}

/// The earliest, an ordinary and the latest time, and the times around every time in the row.
fn instants(row: &Row, per: Per) -> Vec<Timestamp> {
    let last = Timestamp::from_ticks(LAST_SECOND * Tick::NANOSECOND.per_second());
    let ordinary = Tick::NANOSECOND.instant(OVERRIDE_ENDS).expect("before 2262");
    let mut instants = vec![Timestamp::EPOCH, ordinary, last];
    for item in LIMIT.items().iter().filter(|item| item.per() == per) {
        if let Some(at) = item.rule().last_time(row.state(item)) {
            instants.extend([at, at.plus(Span::ONE_TICK)]);
        }
    }
    instants.retain(|&at| at <= last);
    instants
}
