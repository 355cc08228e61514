//! Bugs that limiters have had, ours and others', one test each.

use std::time::Duration;

use tidegate_core::row_codec::{decode, encode};
use tidegate_core::{
    Amount, Capacity, Charge, Decision, Denial, Intent, ItemSpec, LeaseId, LeaseTerm, Limit, LimitPhase,
    LimitSpec, Mode, OverrideSpec, Per, Policy, Precision, Row, RowScope, Span, Tick, Timestamp, Unit, Wait,
};
use tidegate_testkit::history::SystemUnderTest;
use tidegate_testkit::model::OwnedAsk;

use crate::reference_store::Desk;

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

fn except(mut spec: LimitSpec, limit: Amount, until_ms: u64) -> LimitSpec {
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
fn credit_never_exceeds_one_burst() {
    let mut desk = Desk::with(of(bucket(100, 1000, None)), MS);
    desk.take("a", "u", 50, ms(0));
    let granted = (0..500).filter(|_| desk.take("a", "u", 1, ms(1_000_000)) == Decision::Granted).count();
    assert_eq!(granted, 100);
}

/// upstash/ratelimit-js#156: one request with a huge cost was refused and still consumed, pinning its key for 115 days.
#[test]
fn a_refused_cost_consumes_nothing() {
    for policy in every_policy() {
        let mut desk = Desk::with(of(ItemSpec::of(policy, 5).per_key()), MS);
        let huge = desk.take("a", "u", u64::MAX, ms(0));
        let by_ask = matches!(policy, Policy::Concurrency { .. });
        assert_eq!(wait(huge), if by_ask { None } else { Some(Wait::Never) }, "{policy:?}");
        if !by_ask {
            assert_eq!(desk.take("a", "u", 5, ms(0)), Decision::Granted, "{policy:?}");
        }
    }
}

/// envoyproxy/ratelimit and linkerd charge the first limit when the second refuses.
#[test]
fn the_first_of_two_is_not_charged_when_the_second_refuses() {
    let second = ItemSpec { name: Some("second".to_owned()), ..ItemSpec::of(Policy::Total, 0) };
    let mut desk = Desk::with(LimitSpec::named("a").with(ItemSpec::of(Policy::Total, 5)).with(second), MS);
    let answer = desk.order(Intent::Acquire, &[ask(1)], false, ms(0));
    assert_eq!(answer.refusal.expect("the second is closed").item, "second");
    assert_eq!(answer.readings[0].used, 0);
}

/// redis-cell#54: raising the rate of a drained bucket made it refuse for longer, because its debt was kept as time.
#[test]
fn raising_a_rate_never_lengthens_a_wait() {
    let mut desk = Desk::with(of(bucket(1, 1000, Some(10))), MS);
    desk.take("a", "u", 10, ms(0));
    assert_eq!(wait(desk.take("a", "u", 1, ms(0))), Some(until(1000)));
    assert!(desk.put(&of(bucket(10, 1000, Some(10))), ms(0)));
    assert_eq!(wait(desk.take("a", "u", 1, ms(0))), Some(until(100)));
}

/// Lowering a rate acts at once, and forgives nothing that is in use.
#[test]
fn lowering_a_rate_acts_at_once() {
    let mut desk = Desk::with(of(bucket(10, 1000, Some(10))), MS);
    desk.take("a", "u", 10, ms(0));
    assert!(desk.put(&of(bucket(1, 1000, Some(10))), ms(500)));
    // Half of it had come back. The rest comes back ten times as slowly.
    assert_eq!(desk.take("a", "u", 5, ms(500)), Decision::Granted);
    assert_eq!(wait(desk.take("a", "u", 1, ms(500))), Some(until(1500)));
}

/// gubernator#37 and hookaido#239 refilled every bucket, and zeroed every count, on reload.
#[test]
fn an_edit_keeps_what_is_used() {
    for policy in every_policy() {
        let item = |limit| ItemSpec { name: Some("it".to_owned()), ..ItemSpec::of(policy, limit).per_key() };
        let mut desk = Desk::with(of(item(5)), MS);
        for _ in 0..5 {
            assert_eq!(desk.take("a", "u", 1, ms(0)), Decision::Granted);
        }
        assert!(desk.put(&of(item(5)), ms(0)));
        assert_ne!(desk.take("a", "u", 1, ms(0)), Decision::Granted, "{policy:?}");
        assert!(desk.put(&of(item(6)), ms(0)));
        assert_eq!(desk.take("a", "u", 1, ms(0)), Decision::Granted, "{policy:?}");
        assert_ne!(desk.take("a", "u", 1, ms(0)), Decision::Granted, "{policy:?}");
    }
}

/// Lowering a burst below what is in use neither panics nor forgives.
#[test]
fn a_lowered_burst_waits_for_what_is_used() {
    let mut desk = Desk::with(of(bucket(10, 1000, Some(10))), MS);
    desk.take("a", "u", 10, ms(0));
    assert!(desk.put(&of(bucket(10, 1000, Some(2))), ms(0)));
    assert_eq!(wait(desk.take("a", "u", 1, ms(0))), Some(until(900)));
    assert_eq!(wait(desk.take("a", "u", 0, ms(0))), Some(until(800)));
}

/// redis-cell#56 rounds its retry time down, throttlecrab reports 0: whoever believes it is refused again.
#[test]
fn a_wait_is_never_rounded_down() {
    let mut desk = Desk::with(of(bucket(3, 10_000, Some(1))), MS);
    desk.take("a", "u", 1, ms(0));
    assert_eq!(wait(desk.take("a", "u", 1, ms(0))), Some(until(3334)), "a third of ten seconds, rounded up");
    assert_ne!(desk.take("a", "u", 1, ms(3333)), Decision::Granted);
    assert_eq!(desk.take("a", "u", 1, ms(3334)), Decision::Granted);
}

/// Human durations round up and clocks round down: both against the asker.
#[test]
fn rounding_is_against_the_asker() {
    let odd = Duration::from_nanos(1_000_001);
    assert_eq!(MS.span(odd), Span::from_ticks(2));
    assert_eq!(MS.instant(odd), Some(ms(1)));
    assert_eq!(MS.instant_rounded_up(odd), Some(ms(2)));
    assert_eq!(MS.span(Duration::MAX), MS.span(tidegate_core::time::MAX_SPAN));
    assert_eq!(MS.instant(Duration::MAX), None);
}

/// What begins between two ticks begins at the later one, what ends ends at the earlier one.
#[test]
fn seasons_and_exceptions_end_early_and_begin_late() {
    let between = |tick: u64| Some(Duration::from_micros(tick * 1000 + 500));
    let mut spec = except(of(ItemSpec::of(Policy::Total, 1).per_key()), 2, 0);
    (spec.starts_at, spec.overrides[0].until, spec.ends_at) = (between(100), between(200), between(300));
    let limit = Limit::new(spec, MS).expect("it makes sense");
    assert_eq!(limit.phase(ms(100)), LimitPhase::Before(ms(101)));
    assert_eq!(limit.ends_at(), Some(ms(300)));
    assert_eq!(limit.overrides(b"u")[0].until(), Some(ms(200)));
}

/// envoyproxy/ratelimit's MONTH is thirty days from the epoch, and its WEEK begins on a Thursday.
#[test]
fn calendar_units_are_real() {
    let day = 86_400_000;
    let end = |unit| {
        let mut desk = Desk::with(of(ItemSpec::of(Policy::Calendar(unit), 1)), MS);
        desk.take("a", "u", 1, ms(0));
        wait(desk.take("a", "u", 1, ms(0)))
    };
    assert_eq!(end(Unit::Month), Some(until(31 * day)));
    assert_eq!(end(Unit::Week), Some(until(4 * day)), "1970-01-05 was a Monday");
    assert_eq!(end(Unit::Year), Some(until(365 * day)));
}

/// gubernator's negative hits push a counter below zero, and the key then has more than its limit.
#[test]
fn a_refund_is_at_most_what_was_charged() {
    for policy in every_policy() {
        let item = ItemSpec { charge: Some(Charge::Count), ..ItemSpec::of(policy, 3).per_key() };
        let mut desk = Desk::with(of(item), MS);
        let lease = desk.order(Intent::Acquire, &[ask(2)], true, ms(0)).lease.expect("it is held").lease;
        assert!(desk.settle(lease, 0, ms(0)));
        assert!(!desk.settle(lease, 0, ms(0)), "a hold is settled once");
        let granted = (0..9).filter(|_| desk.take("a", "u", 1, ms(0)) == Decision::Granted).count();
        assert_eq!(granted, 3, "{policy:?}");
    }
}

/// `TAT -= cost * T` gives back what has already come back by itself.
#[test]
fn a_late_refund_of_a_bucket_gives_nothing_twice() {
    let mut desk = Desk::with(of(bucket(10, 1000, Some(10))), MS);
    let lease = desk.order(Intent::Acquire, &[ask(5)], true, ms(0)).lease.expect("it is held").lease;
    // At half a second all five are back. Five more are taken, and the first five refunded.
    assert_eq!(desk.take("a", "u", 5, ms(500)), Decision::Granted);
    assert!(desk.settle(lease, 0, ms(500)));
    assert_eq!(desk.take("a", "u", 5, ms(500)), Decision::Granted);
    assert_eq!(wait(desk.take("a", "u", 1, ms(500))), Some(until(600)));
}

/// A refund moves the charges behind it earlier. One that forgets this gives back what has come back already.
#[test]
fn a_refund_knows_of_the_refunds_before_it() {
    // One unit every ten milliseconds.
    let mut desk = Desk::with(of(bucket(100, 1000, Some(10))), MS);
    let hold =
        |desk: &mut Desk| desk.order(Intent::Acquire, &[ask(2)], true, ms(0)).lease.expect("held").lease;
    let (first, second) = (hold(&mut desk), hold(&mut desk));
    assert!(desk.settle(first, 0, ms(0)));
    assert_eq!(desk.take("a", "u", 2, ms(5)), Decision::Granted);
    // The second now lies in [0, 20), so that at 18 two milliseconds of it are left; what was taken at 5 stays.
    assert!(desk.settle(second, 0, ms(18)));
    let reading = desk.order(Intent::Peek, &[ask(0)], false, ms(18)).readings[0].clone();
    assert_eq!(reading.resets_at, Some(ms(38)));
}

/// A charge of the day before is not given back to today.
#[test]
fn a_refund_does_not_cross_into_another_window() {
    let day = 86_400_000;
    for policy in [Policy::Calendar(Unit::Day), Policy::Interval { window: Duration::from_secs(86_400) }] {
        let mut desk = Desk::with(of(ItemSpec::of(policy, 5).per_key()), MS);
        let held =
            desk.order(Intent::Acquire, &[ask(5)], true, ms(day - 10)).lease.expect("it is held").lease;
        assert_eq!(desk.take("a", "u", 5, ms(2 * day)), Decision::Granted);
        let again = ms(2 * day).plus(Span::from_ticks(1));
        assert!(desk.renew(held, ms(3 * day), ms(day)) || !desk.settle(held, 0, again));
        desk.settle(held, 0, again);
        assert_ne!(desk.take("a", "u", 1, again), Decision::Granted, "{policy:?}");
    }
}

/// envoyproxy/gateway#9973: the 21st client evicts the first, who returns with a full bucket. Only what is fresh may go,
/// and a bucket is not fresh one tick before it is full.
#[test]
fn what_is_in_use_by_a_tick_is_not_fresh() {
    let mut desk = Desk::with(of(bucket(1, 1000, Some(1))), MS);
    desk.take("a", "u", 1, ms(0));
    desk.forget(ms(999));
    assert_ne!(desk.take("a", "u", 1, ms(999)), Decision::Granted);
    desk.forget(ms(1000));
    assert!(desk.rows.is_empty());
    assert_eq!(desk.take("a", "u", 1, ms(1000)), Decision::Granted);
}

/// The same for a closed window: exactly one window old is not old enough.
#[test]
fn what_is_exactly_one_window_old_is_not_fresh() {
    let policy = Policy::Sliding { window: Duration::from_secs(1), precision: Precision::Exact };
    let mut desk = Desk::with(of(ItemSpec::of(policy, 1).per_key()), MS);
    desk.take("a", "u", 1, ms(0));
    desk.forget(ms(1000));
    assert_ne!(desk.take("a", "u", 1, ms(1000)), Decision::Granted);
    desk.forget(ms(1001));
    assert!(desk.rows.is_empty());
}

/// A total is never fresh, however old, unless its limit is over.
#[test]
fn a_total_is_never_forgotten_before_its_limit_ends() {
    let mut spec = of(ItemSpec::of(Policy::Total, 1).per_key());
    spec.ends_at = Some(Duration::from_secs(1_000_000));
    let mut desk = Desk::with(spec, MS);
    desk.take("a", "u", 1, ms(0));
    desk.forget(ms(999_999_999));
    assert!(desk.rows.values().any(|row| row.memory_bytes() > 0));
    assert_eq!(wait(desk.take("a", "u", 1, ms(999_999_999))), Some(Wait::Never));
    desk.forget(ms(1_000_000_000));
    assert!(desk.rows.is_empty());
}

/// `rails/solid_queue#761`: a lease released twice freed somebody else's slot, and a limit of 1 ran 11 times.
#[test]
fn a_lease_is_released_once() {
    let policy = Policy::Concurrency { ttl: Duration::from_secs(60) };
    let mut desk = Desk::with(of(ItemSpec::of(policy, 1)), MS);
    let first = desk.order(Intent::Acquire, &[ask(1)], false, ms(0)).lease.expect("held");
    assert!(desk.release(first.lease, ms(1)));
    let second = desk.order(Intent::Acquire, &[ask(1)], false, ms(2)).lease.expect("free again");
    assert!(!desk.release(first.lease, ms(3)));
    let row = desk.rows.get_mut(&("a".to_owned(), None)).expect("somebody holds it");
    assert!(!row.release(&first, ms(3)));
    assert_eq!(wait(desk.take("a", "u", 1, ms(3))), Some(Wait::OnRelease));
    assert!(desk.release(second.lease, ms(4)));
}

/// apache/shenyu#6646, apache/apisix#12823: a dead holder's slot never came back. It comes back, and only that one.
#[test]
fn a_dead_holders_slot_comes_back_alone() {
    let policy = Policy::Concurrency { ttl: Duration::from_secs(60) };
    let mut desk = Desk::with(of(ItemSpec::of(policy, 2)), MS);
    desk.order(Intent::Acquire, &[ask(1)], false, ms(0));
    let alive = desk.order(Intent::Acquire, &[ask(1)], false, ms(1)).lease.expect("held").lease;
    assert!(desk.renew(alive, ms(120_000), ms(59_999)));
    assert_eq!(wait(desk.take("a", "u", 1, ms(59_999))), Some(Wait::OnRelease));
    assert_eq!(desk.take("a", "u", 1, ms(60_000)), Decision::Granted);
    assert_eq!(wait(desk.take("a", "u", 1, ms(60_001))), Some(Wait::OnRelease));
}

/// Small windows on large numbers: a million in a millisecond is a million, not a rounding error.
#[test]
fn large_numbers_in_small_windows_are_exact() {
    let policy = Policy::Sliding { window: Duration::from_millis(1), precision: Precision::Exact };
    let mut desk = Desk::with(of(ItemSpec::of(policy, 1_000_000).per_key()), Tick::NANOSECOND);
    assert_eq!(desk.take("a", "u", 999_999, ms(0)), Decision::Granted);
    assert_eq!(desk.take("a", "u", 1, ms(1)), Decision::Granted);
    assert_eq!(wait(desk.take("a", "u", 1, ms(1))), Some(until(1_000_001)));
}

/// Rates above a thousand a second: a nanosecond clock keeps a million a second to the unit.
#[test]
fn a_fast_bucket_keeps_its_rate() {
    let fast =
        ItemSpec::of(Policy::Bucket { window: Duration::from_secs(1), burst: Some(1) }, 1_000_000).per_key();
    let mut desk = Desk::with(of(fast), Tick::NANOSECOND);
    let granted = (0..1_000_000u64)
        .step_by(500)
        .filter(|&at| desk.take("a", "u", 1, Timestamp::from_ticks(at)) == Decision::Granted)
        .count();
    assert_eq!(granted, 1000);
}

/// A look, a cost of nothing, opens no window and leaves nothing behind.
#[test]
fn a_cost_of_nothing_opens_no_window() {
    for policy in every_policy() {
        let mut desk = Desk::with(of(ItemSpec::of(policy, 5).per_key()), MS);
        assert_eq!(desk.take("a", "u", 0, ms(7)), Decision::Granted);
        desk.forget(ms(7));
        assert!(desk.rows.is_empty(), "{policy:?}");
    }
    let mut desk =
        Desk::with(of(ItemSpec::of(Policy::Interval { window: Duration::from_secs(60) }, 1).per_key()), MS);
    desk.take("a", "u", 0, ms(0));
    desk.take("a", "u", 1, ms(30_000));
    assert_eq!(
        wait(desk.take("a", "u", 1, ms(30_000))),
        Some(until(90_000)),
        "anchored at the first hit, not at the look"
    );
}

/// The largest numbers there are, counted without limit: they saturate, and the row still reads back.
#[test]
fn the_largest_counts_saturate() {
    for policy in every_policy() {
        let item = ItemSpec {
            limit: Capacity::Unlimited,
            charge: Some(Charge::Count),
            ..ItemSpec::of(policy, 1).per_key()
        };
        let mut desk = Desk::with(of(item), MS);
        for at in [0, 1, 5_000, 70_000] {
            assert_eq!(desk.take("a", "u", u64::MAX, ms(at)), Decision::Granted, "{policy:?}");
            let limit = &desk.limits["a"];
            let row = &desk.rows[&("a".to_owned(), Some(b"u".to_vec()))];
            let mut bytes = Vec::new();
            encode(row, limit, Per::Key, &mut bytes);
            assert_eq!(decode(&bytes, limit, Per::Key).as_ref(), Ok(row), "{policy:?}");
        }
    }
}

/// Keys are bytes: empty, with a NUL, not UTF-8. An exception is for exactly its key.
#[test]
fn keys_are_bytes() {
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
    let flaws = Limit::new(spec, MS).expect_err("too long");
    assert_eq!(flaws[0].field, "overrides[0].key");
}

/// `THROTTLE boom 4294967296 1 9223372036` panics throttlecrab's only actor. Absurd limits are refused in words.
#[test]
fn an_absurd_bucket_is_a_flaw_not_a_panic() {
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
fn a_burst_of_one_limits() {
    let mut desk = Desk::with(of(bucket(1, 1000, Some(1))), MS);
    assert_eq!(desk.take("a", "u", 1, ms(0)), Decision::Granted);
    desk.forget(ms(0));
    assert_eq!(wait(desk.take("a", "u", 1, ms(0))), Some(until(1000)));
}

/// A bucket whose clock is too coarse would lose part of its rate: it is refused with the nearest that fit.
#[test]
fn a_rate_that_rounding_would_eat_is_refused_with_advice() {
    let flaws = Limit::new(of(bucket(700, 1000, None)), MS).expect_err("1.43 ticks per unit");
    assert!(flaws[0].message.contains("500 or 1000"), "{}", flaws[0].message);
    assert!(Limit::new(of(bucket(500, 1000, None)), MS).is_ok());
    assert!(Limit::new(of(bucket(700, 1000, None)), Tick::NANOSECOND).is_ok());
}

/// All errors at once: a file with three mistakes is not corrected in three rounds.
#[test]
fn every_flaw_is_told_at_once() {
    let mut spec = of(bucket(1, 1000, Some(0))).with(bucket(1, 0, None));
    spec.id = "no spaces please".to_owned();
    spec.max_keys = Some(0);
    let flaws = Limit::new(spec, MS).expect_err("it is full of them");
    let fields: Vec<&str> = flaws.iter().map(|flaw| flaw.field.as_str()).collect();
    for field in ["id", "max_keys", "items[0].burst", "items[1].window", "items[1].name"] {
        assert!(fields.contains(&field), "{field} in {fields:?}");
    }
}

/// Under another policy a name would speak of another count.
#[test]
fn a_name_keeps_its_policy() {
    let named = |policy| of(ItemSpec { name: Some("it".to_owned()), ..ItemSpec::of(policy, 1) });
    let limit = Limit::new(named(Policy::Total), MS).expect("fine");
    let flaws = limit.next_version(named(Policy::Calendar(Unit::Day))).expect_err("another policy");
    assert_eq!(flaws[0].field, "items[0].policy");
}

/// Ours: a blank bucket first charged under an exception kept the item's own step, so that at the end of the exception
/// its backlog was not rescaled, and before it nothing could be refunded.
#[test]
fn an_exceptions_rate_ends_with_it() {
    let mut desk = Desk::with(except(of(bucket(1, 1000, Some(1))), 10, 500), MS);
    // Ten per second with a burst of ten, until 500 ms; then one per second with a burst of one.
    assert_eq!(desk.take("a", "u", 10, ms(499)), Decision::Granted);
    // At 500 ms ten units, all but a hundredth of one, are in use; each now takes a second to come back.
    assert_eq!(wait(desk.take("a", "u", 1, ms(500))), Some(until(500 + 9_990)));
}

/// Ours: the reset of a bucket was read at the exception's rate even where that ends first.
#[test]
fn a_reading_knows_that_an_exception_ends() {
    let mut desk = Desk::with(except(of(bucket(1, 1000, Some(1))), 10, 500), MS);
    let answer = desk.order(Intent::Acquire, &[ask(10)], false, ms(0));
    assert_eq!(answer.readings[0].resets_at, Some(ms(500 + 5_000)));
}

/// Ours: who waited for a holder was told to wait for the end of an exception, or that it would never fit, while a lapse
/// would have made room earlier.
#[test]
fn a_holder_is_waited_for_whatever_an_exception_does() {
    let policy = Policy::Concurrency { ttl: Duration::from_millis(60) };
    for (own, excepted) in [(1, 1), (5, 1), (1, 2)] {
        let item = ItemSpec { charge: Some(Charge::Count), ..ItemSpec::of(policy, own).per_key() };
        let mut desk = Desk::with(except(of(item), excepted, 100), MS);
        assert_eq!(desk.take("a", "u", 1, ms(0)), Decision::Granted);
        assert_eq!(wait(desk.take("a", "u", excepted, ms(1))), Some(Wait::OnRelease));
        assert_eq!(desk.take("a", "u", excepted, ms(60)), Decision::Granted);
    }
}

/// Ours: held units that only the end of an exception could make room for were waited for past the end of the limit.
#[test]
fn no_holder_is_waited_for_past_the_end_of_the_limit() {
    let policy = Policy::Concurrency { ttl: Duration::from_secs(60) };
    let mut desk = Desk::with(of(ItemSpec::of(policy, 1).per_key()), MS);
    assert_eq!(desk.take("a", "u", 1, ms(0)), Decision::Granted);
    let mut closed = except(of(ItemSpec::of(policy, 1).per_key()), 0, 100);
    closed.ends_at = Some(Duration::from_millis(100));
    assert!(desk.put(&closed, ms(1)));
    assert_eq!(wait(desk.take("a", "u", 1, ms(2))), Some(Wait::Never));
}

/// A limit that is off is not asked, not charged, and has no readings.
#[test]
fn off_is_off() {
    let spec = LimitSpec { mode: Mode::Off, ..of(ItemSpec::of(Policy::Total, 0)) };
    let mut desk = Desk::with(spec, MS);
    let answer = desk.order(Intent::Acquire, &[ask(1)], false, ms(0));
    assert!(answer.refusal.is_none() && answer.readings.is_empty());
    assert!(
        desk.rows
            .values()
            .all(|row| *row == Row::blank(&desk.limits["a"], Per::All) || row.held_units(ms(0)) == 0)
    );
}

/// A lapsed lease holds nothing, even where nobody has asked since.
#[test]
fn a_lapsed_lease_holds_nothing() {
    let policy = Policy::Concurrency { ttl: Duration::from_millis(60) };
    let mut desk = Desk::with(of(ItemSpec::of(policy, 1)), MS);
    let lease: LeaseId = desk.order(Intent::Acquire, &[ask(1)], false, ms(0)).lease.expect("held").lease;
    let row = &desk.rows[&("a".to_owned(), None)];
    assert_eq!((row.held_units(ms(59)), row.held_units(ms(60))), (1, 0));
    assert!(row.is_evictable(&desk.limits["a"], RowScope::All, ms(60)));
    assert!(!desk.renew(lease, ms(200), ms(60)));
    let lapsed = LeaseTerm { lease, expires_at: ms(60) };
    let row = desk.rows.get_mut(&("a".to_owned(), None)).expect("nobody has asked since");
    assert!(!row.release(&lapsed, ms(60)), "what has lapsed is not released");
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
