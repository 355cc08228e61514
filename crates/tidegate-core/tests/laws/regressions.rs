//! Regression tests: known bugs of other rate limiters and of this one, one test each.

use std::time::Duration;

use tidegate_core::row_codec::{decode, encode};
use tidegate_core::{
    Amount, Capacity, Charge, Decision, Denial, Intent, ItemSpec, LeaseId, LeaseTerm, Limit, LimitPhase,
    LimitSpec, Mode, OverrideSpec, Per, Policy, Precision, Row, RowScope, Span, Tick, Timestamp, Unit, Wait,
};
use tidegate_testkit::history::SystemUnderTest;
use tidegate_testkit::reference_model::OwnedAsk;

use crate::minimal_store::MinimalStore;

const MS: Tick = Tick::MILLISECOND;

fn ms(ms: u64) -> Timestamp {
    Timestamp::from_ticks(ms)
}

fn bucket(limit: Amount, window_ms: u64, burst: Option<Amount>) -> ItemSpec {
    let window = Duration::from_millis(window_ms);
    ItemSpec {
        name: Some("bucket".to_owned()),
        ..ItemSpec::of(Policy::Bucket { window, burst }, limit).per_key()
    }
}

fn of(item: ItemSpec) -> LimitSpec {
    LimitSpec::named("a").with(item)
}

fn ask(count: Amount) -> OwnedAsk {
    OwnedAsk { limit_id: "a".to_owned(), key: Some(b"u".to_vec()), count }
}

fn with_override(mut spec: LimitSpec, limit: Amount, until_ms: u64) -> LimitSpec {
    spec.overrides.push(OverrideSpec {
        key: b"u".to_vec(),
        item: spec.items[0].effective_name(),
        limit: Capacity::AtMost(limit),
        until: Some(Duration::from_millis(until_ms)),
    });
    spec
}

fn wait(decision: Decision) -> Option<Wait> {
    match decision {
        Decision::Granted => None,
        Decision::Denied(Denial { wait, .. }) => Some(wait),
    }
}

fn until(at: u64) -> Wait {
    Wait::Until(ms(at))
}

/// throttlecrab clamps its stored time to `now - tolerance` and admits 197 of a burst of 100 after an idle spell.
#[test]
fn bucket_credit_never_exceeds_one_burst() {
    let mut store = MinimalStore::with(of(bucket(100, 1000, None)), MS);
    store.take("a", "u", 50, ms(0));
    let granted = (0..500).filter(|_| store.take("a", "u", 1, ms(1_000_000)) == Decision::Granted).count();
    assert_eq!(granted, 100);
}

/// upstash/ratelimit-js#156: a refused request with a huge cost was still charged and blocked its key for 115 days.
#[test]
fn refused_cost_charges_nothing() {
    for policy in every_policy() {
        let mut store = MinimalStore::with(of(ItemSpec::of(policy, 5).per_key()), MS);
        let huge = store.take("a", "u", u64::MAX, ms(0));
        let by_ask = matches!(policy, Policy::Concurrency { .. });
        assert_eq!(wait(huge), if by_ask { None } else { Some(Wait::Never) }, "{policy:?}");
        if !by_ask {
            assert_eq!(store.take("a", "u", 5, ms(0)), Decision::Granted, "{policy:?}");
        }
    }
}

/// envoyproxy/ratelimit and linkerd charge the first limit when the second refuses.
#[test]
fn first_item_is_not_charged_when_second_refuses() {
    let second = ItemSpec { name: Some("second".to_owned()), ..ItemSpec::of(Policy::Total, 0) };
    let mut store =
        MinimalStore::with(LimitSpec::named("a").with(ItemSpec::of(Policy::Total, 5)).with(second), MS);
    let answer = store.order(Intent::Acquire, &[ask(1)], false, ms(0));
    assert_eq!(answer.refusal.expect("the second item refuses").item, "second");
    assert_eq!(answer.readings[0].used, 0);
}

/// redis-cell#54: raising the rate of a drained bucket made it refuse for longer, because the backlog was kept as time.
#[test]
fn raised_rate_never_lengthens_wait() {
    let mut store = MinimalStore::with(of(bucket(1, 1000, Some(10))), MS);
    store.take("a", "u", 10, ms(0));
    assert_eq!(wait(store.take("a", "u", 1, ms(0))), Some(until(1000)));
    assert!(store.put(&of(bucket(10, 1000, Some(10))), ms(0)));
    assert_eq!(wait(store.take("a", "u", 1, ms(0))), Some(until(100)));
}

/// A lowered rate applies at once and keeps the usage.
#[test]
fn lowered_rate_applies_at_once_and_keeps_usage() {
    let mut store = MinimalStore::with(of(bucket(10, 1000, Some(10))), MS);
    store.take("a", "u", 10, ms(0));
    assert!(store.put(&of(bucket(1, 1000, Some(10))), ms(500)));
    // Half of it had come back. The rest comes back at a tenth of the rate.
    assert_eq!(store.take("a", "u", 5, ms(500)), Decision::Granted);
    assert_eq!(wait(store.take("a", "u", 1, ms(500))), Some(until(1500)));
}

/// gubernator#37 and hookaido#239: a reload refilled every bucket and zeroed every count.
#[test]
fn edit_keeps_usage_for_every_policy() {
    for policy in every_policy() {
        let item = |limit| ItemSpec { name: Some("it".to_owned()), ..ItemSpec::of(policy, limit).per_key() };
        let mut store = MinimalStore::with(of(item(5)), MS);
        for _ in 0..5 {
            assert_eq!(store.take("a", "u", 1, ms(0)), Decision::Granted);
        }
        assert!(store.put(&of(item(5)), ms(0)));
        assert_ne!(store.take("a", "u", 1, ms(0)), Decision::Granted, "{policy:?}");
        assert!(store.put(&of(item(6)), ms(0)));
        assert_eq!(store.take("a", "u", 1, ms(0)), Decision::Granted, "{policy:?}");
        assert_ne!(store.take("a", "u", 1, ms(0)), Decision::Granted, "{policy:?}");
    }
}

/// A burst lowered below the usage neither panics nor forgives usage.
#[test]
fn lowered_burst_below_usage_refuses_until_drained() {
    let mut store = MinimalStore::with(of(bucket(10, 1000, Some(10))), MS);
    store.take("a", "u", 10, ms(0));
    assert!(store.put(&of(bucket(10, 1000, Some(2))), ms(0)));
    assert_eq!(wait(store.take("a", "u", 1, ms(0))), Some(until(900)));
    assert_eq!(wait(store.take("a", "u", 0, ms(0))), Some(until(800)));
}

/// redis-cell#56 rounds its retry time down and throttlecrab reports 0, so a client that waits that long is refused again.
#[test]
fn wait_is_rounded_up() {
    let mut store = MinimalStore::with(of(bucket(3, 10_000, Some(1))), MS);
    store.take("a", "u", 1, ms(0));
    assert_eq!(wait(store.take("a", "u", 1, ms(0))), Some(until(3334)), "a third of ten seconds, rounded up");
    assert_ne!(store.take("a", "u", 1, ms(3333)), Decision::Granted);
    assert_eq!(store.take("a", "u", 1, ms(3334)), Decision::Granted);
}

/// Durations round up and clock times round down, so rounding never grants more.
#[test]
fn durations_round_up_and_instants_round_down() {
    let odd = Duration::from_nanos(1_000_001);
    assert_eq!(MS.span(odd), Span::from_ticks(2));
    assert_eq!(MS.instant(odd), Some(ms(1)));
    assert_eq!(MS.instant_rounded_up(odd), Some(ms(2)));
    assert_eq!(MS.span(Duration::MAX), MS.span(tidegate_core::time::MAX_SPAN));
    assert_eq!(MS.instant(Duration::MAX), None);
}

/// A start between two ticks rounds to the later tick, an end to the earlier one.
#[test]
fn start_rounds_up_and_ends_round_down() {
    let between = |tick: u64| Some(Duration::from_micros(tick * 1000 + 500));
    let mut spec = with_override(of(ItemSpec::of(Policy::Total, 1).per_key()), 2, 0);
    (spec.starts_at, spec.overrides[0].until, spec.ends_at) = (between(100), between(200), between(300));
    let limit = Limit::new(spec, MS).expect("the limit is valid");
    assert_eq!(limit.phase(ms(100)), LimitPhase::Before(ms(101)));
    assert_eq!(limit.ends_at(), Some(ms(300)));
    assert_eq!(limit.overrides(b"u")[0].until(), Some(ms(200)));
}

/// envoyproxy/ratelimit's MONTH is thirty days from the epoch, and its WEEK starts on a Thursday.
#[test]
fn calendar_units_have_real_lengths() {
    let day = 86_400_000;
    let end = |unit| {
        let mut store = MinimalStore::with(of(ItemSpec::of(Policy::Calendar(unit), 1)), MS);
        store.take("a", "u", 1, ms(0));
        wait(store.take("a", "u", 1, ms(0)))
    };
    assert_eq!(end(Unit::Month), Some(until(31 * day)));
    assert_eq!(end(Unit::Week), Some(until(4 * day)), "1970-01-05 was a Monday");
    assert_eq!(end(Unit::Year), Some(until(365 * day)));
}

/// gubernator: negative hits push a counter below zero, and the key then gets more than its limit.
#[test]
fn refund_never_exceeds_charge() {
    for policy in every_policy() {
        let item = ItemSpec { charge: Some(Charge::Count), ..ItemSpec::of(policy, 3).per_key() };
        let mut store = MinimalStore::with(of(item), MS);
        let lease = store.order(Intent::Acquire, &[ask(2)], true, ms(0)).lease.expect("it is held").lease;
        assert!(store.settle(lease, 0, ms(0)));
        assert!(!store.settle(lease, 0, ms(0)), "the second settlement returns false");
        let granted = (0..9).filter(|_| store.take("a", "u", 1, ms(0)) == Decision::Granted).count();
        assert_eq!(granted, 3, "{policy:?}");
    }
}

/// `TAT -= cost * T` returns units that have already come back.
#[test]
fn late_bucket_refund_does_not_return_refilled_units() {
    let mut store = MinimalStore::with(of(bucket(10, 1000, Some(10))), MS);
    let lease = store.order(Intent::Acquire, &[ask(5)], true, ms(0)).lease.expect("it is held").lease;
    // At 500 ms all five units are back. Five more are charged, and the first five are refunded.
    assert_eq!(store.take("a", "u", 5, ms(500)), Decision::Granted);
    assert!(store.settle(lease, 0, ms(500)));
    assert_eq!(store.take("a", "u", 5, ms(500)), Decision::Granted);
    assert_eq!(wait(store.take("a", "u", 1, ms(500))), Some(until(600)));
}

/// A refund moves later charges earlier. A refund that ignores this returns units that have already come back.
#[test]
fn bucket_refund_accounts_for_earlier_refunds() {
    // One unit every ten milliseconds.
    let mut store = MinimalStore::with(of(bucket(100, 1000, Some(10))), MS);
    let hold = |store: &mut MinimalStore| {
        store.order(Intent::Acquire, &[ask(2)], true, ms(0)).lease.expect("held").lease
    };
    let (first, second) = (hold(&mut store), hold(&mut store));
    assert!(store.settle(first, 0, ms(0)));
    assert_eq!(store.take("a", "u", 2, ms(5)), Decision::Granted);
    // The second charge now lies in [0, 20), so 2 ms of it are left at 18 ms. The charge made at 5 ms stays.
    assert!(store.settle(second, 0, ms(18)));
    let reading = store.order(Intent::Peek, &[ask(0)], false, ms(18)).readings[0].clone();
    assert_eq!(reading.resets_at, Some(ms(38)));
}

/// A refund of a charge from the previous window does not reduce the current one.
#[test]
fn refund_of_ended_window_changes_nothing() {
    let day = 86_400_000;
    for policy in [Policy::Calendar(Unit::Day), Policy::Interval { window: Duration::from_secs(86_400) }] {
        let mut store = MinimalStore::with(of(ItemSpec::of(policy, 5).per_key()), MS);
        let held =
            store.order(Intent::Acquire, &[ask(5)], true, ms(day - 10)).lease.expect("it is held").lease;
        assert_eq!(store.take("a", "u", 5, ms(2 * day)), Decision::Granted);
        let again = ms(2 * day).plus(Span::from_ticks(1));
        assert!(store.renew(held, ms(3 * day), ms(day)) || !store.settle(held, 0, again));
        store.settle(held, 0, again);
        assert_ne!(store.take("a", "u", 1, again), Decision::Granted, "{policy:?}");
    }
}

/// envoyproxy/gateway#9973: the 21st client evicts the first, which then returns with a full bucket. Only evictable rows may
/// be dropped, and a bucket is not evictable one tick before it is full.
#[test]
fn bucket_in_use_by_one_tick_is_not_evictable() {
    let mut store = MinimalStore::with(of(bucket(1, 1000, Some(1))), MS);
    store.take("a", "u", 1, ms(0));
    store.forget(ms(999));
    assert_ne!(store.take("a", "u", 1, ms(999)), Decision::Granted);
    store.forget(ms(1000));
    assert!(store.rows.is_empty());
    assert_eq!(store.take("a", "u", 1, ms(1000)), Decision::Granted);
}

/// The same for a sliding window: a charge exactly one window old still counts.
#[test]
fn sliding_row_exactly_one_window_old_is_not_evictable() {
    let policy = Policy::Sliding { window: Duration::from_secs(1), precision: Precision::Exact };
    let mut store = MinimalStore::with(of(ItemSpec::of(policy, 1).per_key()), MS);
    store.take("a", "u", 1, ms(0));
    store.forget(ms(1000));
    assert_ne!(store.take("a", "u", 1, ms(1000)), Decision::Granted);
    store.forget(ms(1001));
    assert!(store.rows.is_empty());
}

/// A total is evictable only after its limit has ended.
#[test]
fn total_is_not_evictable_before_limit_ends() {
    let mut spec = of(ItemSpec::of(Policy::Total, 1).per_key());
    spec.ends_at = Some(Duration::from_secs(1_000_000));
    let mut store = MinimalStore::with(spec, MS);
    store.take("a", "u", 1, ms(0));
    store.forget(ms(999_999_999));
    assert!(store.rows.values().any(|row| row.memory_bytes() > 0));
    assert_eq!(wait(store.take("a", "u", 1, ms(999_999_999))), Some(Wait::Never));
    store.forget(ms(1_000_000_000));
    assert!(store.rows.is_empty());
}

/// `rails/solid_queue#761`: a second release of a lease freed another holder's slot, and a limit of 1 ran 11 jobs.
#[test]
fn second_release_of_lease_returns_false() {
    let policy = Policy::Concurrency { ttl: Duration::from_secs(60) };
    let mut store = MinimalStore::with(of(ItemSpec::of(policy, 1)), MS);
    let first = store.order(Intent::Acquire, &[ask(1)], false, ms(0)).lease.expect("held");
    assert!(store.release(first.lease, ms(1)));
    let second = store.order(Intent::Acquire, &[ask(1)], false, ms(2)).lease.expect("free again");
    assert!(!store.release(first.lease, ms(3)));
    let row = store.rows.get_mut(&("a".to_owned(), None)).expect("the lease is held");
    assert!(!row.release(&first, ms(3)));
    assert_eq!(wait(store.take("a", "u", 1, ms(3))), Some(Wait::OnRelease));
    assert!(store.release(second.lease, ms(4)));
}

/// apache/shenyu#6646, apache/apisix#12823: the slot of a dead holder never came back.
#[test]
fn expired_lease_frees_only_its_own_slot() {
    let policy = Policy::Concurrency { ttl: Duration::from_secs(60) };
    let mut store = MinimalStore::with(of(ItemSpec::of(policy, 2)), MS);
    store.order(Intent::Acquire, &[ask(1)], false, ms(0));
    let alive = store.order(Intent::Acquire, &[ask(1)], false, ms(1)).lease.expect("held").lease;
    assert!(store.renew(alive, ms(120_000), ms(59_999)));
    assert_eq!(wait(store.take("a", "u", 1, ms(59_999))), Some(Wait::OnRelease));
    assert_eq!(store.take("a", "u", 1, ms(60_000)), Decision::Granted);
    assert_eq!(wait(store.take("a", "u", 1, ms(60_001))), Some(Wait::OnRelease));
}

/// A million units in a millisecond are counted exactly.
#[test]
fn large_counts_in_small_windows_are_exact() {
    let policy = Policy::Sliding { window: Duration::from_millis(1), precision: Precision::Exact };
    let mut store = MinimalStore::with(of(ItemSpec::of(policy, 1_000_000).per_key()), Tick::NANOSECOND);
    assert_eq!(store.take("a", "u", 999_999, ms(0)), Decision::Granted);
    assert_eq!(store.take("a", "u", 1, ms(1)), Decision::Granted);
    assert_eq!(wait(store.take("a", "u", 1, ms(1))), Some(until(1_000_001)));
}

/// A nanosecond clock keeps a rate of a million per second to the unit.
#[test]
fn bucket_of_a_million_per_second_keeps_its_rate() {
    let fast =
        ItemSpec::of(Policy::Bucket { window: Duration::from_secs(1), burst: Some(1) }, 1_000_000).per_key();
    let mut store = MinimalStore::with(of(fast), Tick::NANOSECOND);
    let granted = (0..1_000_000u64)
        .step_by(500)
        .filter(|&at| store.take("a", "u", 1, Timestamp::from_ticks(at)) == Decision::Granted)
        .count();
    assert_eq!(granted, 1000);
}

/// A cost of zero opens no window and leaves no state.
#[test]
fn cost_zero_opens_no_window() {
    for policy in every_policy() {
        let mut store = MinimalStore::with(of(ItemSpec::of(policy, 5).per_key()), MS);
        assert_eq!(store.take("a", "u", 0, ms(7)), Decision::Granted);
        store.forget(ms(7));
        assert!(store.rows.is_empty(), "{policy:?}");
    }
    let mut store = MinimalStore::with(
        of(ItemSpec::of(Policy::Interval { window: Duration::from_secs(60) }, 1).per_key()),
        MS,
    );
    store.take("a", "u", 0, ms(0));
    store.take("a", "u", 1, ms(30_000));
    assert_eq!(
        wait(store.take("a", "u", 1, ms(30_000))),
        Some(until(90_000)),
        "starts at the first charge, not at the peek"
    );
}

/// Unlimited counts saturate at the maximum, and the row still decodes.
#[test]
fn largest_counts_saturate_and_decode() {
    for policy in every_policy() {
        let item = ItemSpec {
            limit: Capacity::Unlimited,
            charge: Some(Charge::Count),
            ..ItemSpec::of(policy, 1).per_key()
        };
        let mut store = MinimalStore::with(of(item), MS);
        for at in [0, 1, 5_000, 70_000] {
            assert_eq!(store.take("a", "u", u64::MAX, ms(at)), Decision::Granted, "{policy:?}");
            let limit = &store.limits["a"];
            let row = &store.rows[&("a".to_owned(), Some(b"u".to_vec()))];
            let mut bytes = Vec::new();
            encode(row, limit, Per::Key, &mut bytes);
            assert_eq!(decode(&bytes, limit, Per::Key).as_ref(), Ok(row), "{policy:?}");
        }
    }
}

/// Keys are arbitrary bytes: empty, with a NUL, not UTF-8. An override matches exactly its key.
#[test]
fn keys_are_arbitrary_bytes() {
    let mut spec = of(ItemSpec::of(Policy::Total, 1).per_key());
    for key in [&b""[..], b"a\0b", &[0xff, 0xfe]] {
        let item = "key/total".to_owned();
        spec.overrides.push(OverrideSpec {
            key: key.to_vec(),
            item,
            limit: Capacity::AtMost(2),
            until: None,
        });
    }
    let limit = Limit::new(spec.clone(), MS).expect("keys are bytes");
    assert_eq!(limit.overrides(b"").len(), 1);
    assert_eq!(limit.overrides(b"a\0b").len(), 1);
    assert_eq!(limit.overrides(b"a").len(), 0);
    spec.overrides[0].key = vec![0; 1025];
    let errors = Limit::new(spec, MS).expect_err("too long");
    assert_eq!(errors[0].field, "overrides[0].key");
}

/// `THROTTLE boom 4294967296 1 9223372036` panics throttlecrab's only actor. Absurd limits must be spec errors.
#[test]
fn absurd_bucket_is_an_error_not_a_panic() {
    let absurd = [
        Policy::Bucket { window: Duration::from_secs(9_223_372_036), burst: Some(4_294_967_296) },
        Policy::Bucket { window: Duration::from_secs(1_000_000), burst: Some(u64::MAX) },
        Policy::Bucket { window: Duration::from_secs(1_000_000), burst: Some(i64::MAX as u64) },
        Policy::Bucket { window: Duration::MAX, burst: None },
        Policy::Bucket { window: Duration::ZERO, burst: Some(1) },
        Policy::Bucket { window: Duration::from_secs(1), burst: Some(0) },
        Policy::Sliding { window: Duration::from_nanos(1), precision: Precision::Exact },
    ];
    for policy in absurd {
        for tick in [Tick::NANOSECOND, Tick::MILLISECOND] {
            assert!(Limit::new(of(ItemSpec::of(policy, 1)), tick).is_err(), "{policy:?}");
            let _worth_a_try = Limit::new(of(ItemSpec::of(policy, u64::MAX)), tick);
        }
    }
}

/// throttlecrab computes a state lifetime of 0 for a burst of 1 and never limits at all.
#[test]
fn burst_of_one_limits() {
    let mut store = MinimalStore::with(of(bucket(1, 1000, Some(1))), MS);
    assert_eq!(store.take("a", "u", 1, ms(0)), Decision::Granted);
    store.forget(ms(0));
    assert_eq!(wait(store.take("a", "u", 1, ms(0))), Some(until(1000)));
}

/// A bucket whose clock is too coarse would lose part of its rate. The error names the nearest rates that fit.
#[test]
fn rate_lost_to_rounding_is_refused_with_nearest_rates() {
    let errors = Limit::new(of(bucket(700, 1000, None)), MS).expect_err("1.43 ticks per unit");
    assert!(errors[0].message.contains("500 or 1000"), "{}", errors[0].message);
    assert!(Limit::new(of(bucket(500, 1000, None)), MS).is_ok());
    assert!(Limit::new(of(bucket(700, 1000, None)), Tick::NANOSECOND).is_ok());
}

/// All errors are reported at once, so that a file with three mistakes needs one correction.
#[test]
fn every_spec_error_is_reported_at_once() {
    let mut spec = of(bucket(1, 1000, Some(0))).with(bucket(1, 0, None));
    spec.id = "no spaces please".to_owned();
    spec.max_keys = Some(0);
    let errors = Limit::new(spec, MS).expect_err("several errors");
    let fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
    for field in ["id", "max_keys", "items[0].burst", "items[1].window", "items[1].name"] {
        assert!(fields.contains(&field), "{field} in {fields:?}");
    }
}

/// An item name keeps its policy across edits.
#[test]
fn item_name_with_another_policy_is_refused() {
    let named = |policy| of(ItemSpec { name: Some("it".to_owned()), ..ItemSpec::of(policy, 1) });
    let limit = Limit::new(named(Policy::Total), MS).expect("the limit is valid");
    let errors = limit.next_version(named(Policy::Calendar(Unit::Day))).expect_err("another policy");
    assert_eq!(errors[0].field, "items[0].policy");
}

/// A blank bucket first charged under an override kept the item's own step. At the end of the override its backlog was not
/// rescaled, and before it nothing could be refunded.
#[test]
fn override_rate_ends_with_override() {
    let mut store = MinimalStore::with(with_override(of(bucket(1, 1000, Some(1))), 10, 500), MS);
    // Ten per second with a burst of ten, until 500 ms; then one per second with a burst of one.
    assert_eq!(store.take("a", "u", 10, ms(499)), Decision::Granted);
    // At 500 ms nearly ten units are in use, and each now takes a second to come back.
    assert_eq!(wait(store.take("a", "u", 1, ms(500))), Some(until(500 + 9_990)));
}

/// The reset time of a bucket was computed at the override's rate even if the override ends earlier.
#[test]
fn reading_accounts_for_override_end() {
    let mut store = MinimalStore::with(with_override(of(bucket(1, 1000, Some(1))), 10, 500), MS);
    let answer = store.order(Intent::Acquire, &[ask(10)], false, ms(0));
    assert_eq!(answer.readings[0].resets_at, Some(ms(500 + 5_000)));
}

/// A wait for a release became a wait for the end of an override, or `Never`, although a lease expiry would have made room
/// earlier.
#[test]
fn wait_for_release_ignores_override_end() {
    let policy = Policy::Concurrency { ttl: Duration::from_millis(60) };
    for (own, overridden) in [(1, 1), (5, 1), (1, 2)] {
        let item = ItemSpec { charge: Some(Charge::Count), ..ItemSpec::of(policy, own).per_key() };
        let mut store = MinimalStore::with(with_override(of(item), overridden, 100), MS);
        assert_eq!(store.take("a", "u", 1, ms(0)), Decision::Granted);
        assert_eq!(wait(store.take("a", "u", overridden, ms(1))), Some(Wait::OnRelease));
        assert_eq!(store.take("a", "u", overridden, ms(60)), Decision::Granted);
    }
}

/// Units that only the end of an override could make room for were waited for past the end of the limit.
#[test]
fn wait_for_release_past_limit_end_is_never() {
    let policy = Policy::Concurrency { ttl: Duration::from_secs(60) };
    let mut store = MinimalStore::with(of(ItemSpec::of(policy, 1).per_key()), MS);
    assert_eq!(store.take("a", "u", 1, ms(0)), Decision::Granted);
    let mut closed = with_override(of(ItemSpec::of(policy, 1).per_key()), 0, 100);
    closed.ends_at = Some(Duration::from_millis(100));
    assert!(store.put(&closed, ms(1)));
    assert_eq!(wait(store.take("a", "u", 1, ms(2))), Some(Wait::Never));
}

/// A limit with mode `off` is not checked, not charged, and has no readings.
#[test]
fn limit_in_mode_off_is_not_checked_or_charged() {
    let spec = LimitSpec { mode: Mode::Off, ..of(ItemSpec::of(Policy::Total, 0)) };
    let mut store = MinimalStore::with(spec, MS);
    let answer = store.order(Intent::Acquire, &[ask(1)], false, ms(0));
    assert!(answer.refusal.is_none() && answer.readings.is_empty());
    assert!(
        store
            .rows
            .values()
            .all(|row| *row == Row::blank(&store.limits["a"], Per::All) || row.held_units(ms(0)) == 0)
    );
}

/// An expired lease holds nothing, even without any order since.
#[test]
fn expired_lease_holds_nothing() {
    let policy = Policy::Concurrency { ttl: Duration::from_millis(60) };
    let mut store = MinimalStore::with(of(ItemSpec::of(policy, 1)), MS);
    let lease: LeaseId = store.order(Intent::Acquire, &[ask(1)], false, ms(0)).lease.expect("held").lease;
    let row = &store.rows[&("a".to_owned(), None)];
    assert_eq!((row.held_units(ms(59)), row.held_units(ms(60))), (1, 0));
    assert!(row.is_evictable(&store.limits["a"], RowScope::All, ms(60)));
    assert!(!store.renew(lease, ms(200), ms(60)));
    let lapsed = LeaseTerm { lease, expires_at: ms(60) };
    let row = store.rows.get_mut(&("a".to_owned(), None)).expect("the row was not evicted");
    assert!(!row.release(&lapsed, ms(60)), "an expired lease is not released");
}

fn every_policy() -> Vec<Policy> {
    let window = Duration::from_secs(60);
    let mut policies = vec![
        Policy::Total,
        Policy::Interval { window },
        Policy::Sliding { window, precision: Precision::Exact },
        Policy::Sliding { window, precision: Precision::Bucketed },
        Policy::Bucket { window, burst: None },
        Policy::Concurrency { ttl: window },
    ];
    policies.extend(Unit::ALL.map(Policy::Calendar));
    policies
}
