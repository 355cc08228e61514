//! The events that wake waiters.

use std::time::Duration;

use tidegate::AcquireError;
use tidegate::catalog::{Catalog, RemovalMode};
use tidegate::limiter::Renewal;
use tidegate::model::{ItemSpec, LimitSpec, Mode, Policy, Wait};
use tidegate::reply::OrderError;
use tidegate::store::{Actual, Settlement, Store};

use super::{LimiterFixture, bucket};
use crate::fixture::{DecisionExt, HandleExt, at, decided, denied, granted, lease, seconds, slots_of};

#[test]
fn release_wakes_waiter() {
    let fixture = LimiterFixture::with_slots(1);
    let held = fixture.take(1);
    let mut waiter = fixture.wait(1, seconds(60)).starts();
    assert!(held.release());
    drop(waiter.expect_granted());
    fixture.ends_with(0);
}

#[test]
fn release_by_id_wakes_waiter() {
    let fixture = LimiterFixture::with_slots(1);
    let id = fixture.take(1).into_id();
    let mut waiter = fixture.wait(1, seconds(60)).starts();
    assert!(fixture.limiter.release(id));
    drop(waiter.expect_granted());
    let adopted = fixture.take(1).into_id();
    let mut waiter = fixture.wait(1, seconds(60)).starts();
    let adopted = fixture.limiter.adopt(adopted, seconds(60)).unwrap();
    waiter.expect_pending();
    drop(adopted);
    drop(waiter.expect_granted());
    fixture.ends_with(0);
}

#[test]
fn release_by_id_wakes_only_waiters_of_its_limit() {
    let fixture = LimiterFixture::with_slots(1);
    fixture.put(LimitSpec::named("m").with(slots_of(1)));
    let id = fixture.take(1).into_id();
    let elsewhere = lease(granted(fixture.limiter.handle("m").without_key().try_acquire()));
    let mut here = fixture.wait(1, seconds(60)).starts();
    let mut there = fixture.wait_for("m", "u", 1, seconds(60)).starts();
    assert!(fixture.limiter.release(id));
    assert!(!there.is_woken());
    drop(here.expect_granted());
    drop(elsewhere);
    drop(there.expect_granted());
    fixture.ends_with(0);
}

#[test]
fn elapsed_time_wakes_waiters_in_order() {
    let fixture = LimiterFixture::with_slots(1);
    fixture.put(LimitSpec::named("b").with(bucket()));
    assert!(fixture.limiter.handle("b").without_key().try_acquire().is_granted());
    let mut waiters: Vec<_> = (0..5).map(|_| fixture.wait_for("b", "u", 1, seconds(60)).starts()).collect();
    for (n, waiter) in (1..).zip(&mut waiters) {
        fixture.pass(seconds(10));
        assert_eq!(waiter.expect_granted().at(), Some(at(seconds(10 * n))));
    }
    let polls: Vec<usize> = waiters.iter().map(|waiter| waiter.polls).collect();
    assert!(polls.iter().all(|polls| *polls <= 3), "{polls:?}: came, moved up, was served");
    fixture.ends_with(0);
}

#[test]
fn expired_lease_wakes_waiter() {
    let fixture = LimiterFixture::with_slots(2);
    std::mem::forget(fixture.take(1));
    fixture.pass(seconds(20));
    let kept = fixture.take(1);
    let mut waiter = fixture.wait(1, seconds(60)).starts();
    fixture.pass(Duration::from_nanos(39_999_999_999));
    waiter.expect_pending();
    fixture.pass(Duration::from_nanos(1));
    drop(waiter.expect_granted());
    drop(kept);
    fixture.ends_with(0);
}

#[test]
fn waiter_for_two_slots_waits_for_two_expiries() {
    let fixture = LimiterFixture::with_slots(2);
    std::mem::forget(fixture.take(1));
    fixture.pass(seconds(20));
    std::mem::forget(fixture.take(1));
    let mut waiter = fixture.wait(2, seconds(60)).starts();
    fixture.pass(seconds(40));
    waiter.expect_pending();
    fixture.pass(seconds(20));
    drop(waiter.expect_granted());
    assert!(waiter.polls <= 4);
    fixture.ends_with(0);
}

#[test]
fn renewed_lease_delays_waiter_until_new_expiry() {
    let fixture = LimiterFixture::with_slots(1);
    let held = fixture.take(1);
    fixture.pass(seconds(50));
    let mut waiter = fixture.wait(1, seconds(60)).starts();
    assert_eq!(held.renew(seconds(60)), Ok(Renewal::Until(at(seconds(110)))));
    fixture.pass(seconds(10));
    waiter.expect_pending();
    fixture.pass(seconds(50));
    drop(waiter.expect_granted());
    drop(held);
    fixture.ends_with(0);
}

#[test]
fn renewal_with_earlier_expiry_wakes_waiter_earlier() {
    let fixture = LimiterFixture::with_slots(1);
    let held = fixture.take(1);
    let mut waiter = fixture.wait(1, seconds(30)).starts();
    held.renew(seconds(5)).unwrap();
    waiter.expect_pending();
    fixture.pass(seconds(5));
    drop(waiter.expect_granted());
    drop(held);
    let by_id = fixture.take(1).into_id();
    let mut waiter = fixture.wait(1, seconds(30)).starts();
    assert_eq!(fixture.limiter.renew(by_id, Some(seconds(1))), Ok(Renewal::Until(at(seconds(6)))));
    waiter.expect_pending();
    fixture.pass(seconds(1));
    drop(waiter.expect_granted());
    assert_eq!(fixture.limiter.renew(by_id, None), Ok(Renewal::Gone));
    fixture.ends_with(0);
}

#[test]
fn settlement_refund_wakes_waiter() {
    let fixture = LimiterFixture::with_slots(1);
    fixture.put(LimitSpec::named("t").with(ItemSpec::of(Policy::Interval { window: seconds(3600) }, 10)));
    let held = lease(granted(fixture.limiter.handle("t").without_key().count(10).hold().try_acquire()));
    let mut waiter = fixture.wait_for("t", "u", 4, seconds(60)).starts();
    let mut other = fixture.wait_for("t", "u", 4, seconds(60)).starts();
    assert_eq!(held.settle(Actual::Every(6)), Ok(Settlement::Settled));
    drop(waiter.expect_granted());
    let denial = other.expect_refused();
    assert_eq!(
        denial.retry_after(),
        Some(seconds(3600)),
        "no hold is open any more, and an hour is too long"
    );
    fixture.ends_with(0);
}

/// An open hold may be refunded until it expires. After that a waiter has nothing to wait for.
#[test]
fn expired_hold_refuses_waiter() {
    let fixture = LimiterFixture::with_slots(1);
    fixture.put(LimitSpec::named("t").with(ItemSpec::of(Policy::Interval { window: seconds(3600) }, 10)));
    let asked = fixture.limiter.handle("t").without_key().count(10).hold().ttl(seconds(5)).try_acquire();
    let held = lease(granted(asked));
    let mut waiter = fixture.wait_for("t", "u", 4, seconds(60)).starts();
    fixture.pass(seconds(4));
    assert_eq!(held.renew(seconds(3)), Ok(Renewal::Until(at(seconds(7)))));
    std::mem::forget(held);
    fixture.pass(seconds(2));
    waiter.expect_pending();
    fixture.pass(seconds(1));
    assert_eq!(waiter.expect_refused().retry_after(), Some(seconds(3593)));
    let late = fixture.wait_for("t", "u", 4, seconds(60)).poll_to_end();
    assert!(!late.is_granted(), "there is nothing to wait for");
    fixture.ends_with(0);
}

#[test]
fn request_of_zero_units_does_not_wait() {
    let fixture = LimiterFixture::with_slots(4);
    let held = fixture.take(2);
    let mut waiter = fixture.wait(4, seconds(30)).starts();
    assert!(!fixture.is_free(), "a waiter needs the free slots");
    assert!(
        fixture.limiter.handle("l").of("u").count(0).try_acquire().is_granted(),
        "it overtakes no waiter"
    );
    assert!(fixture.wait(0, seconds(30)).poll_to_end().is_granted());
    waiter.expect_pending();
    drop(held);
    drop(waiter.expect_granted());
    fixture.ends_with(0);
}

#[test]
fn reset_of_limit_wakes_waiter() {
    let fixture = LimiterFixture::with_slots(1);
    fixture.put(LimitSpec::named("b").with(bucket()));
    assert!(fixture.limiter.handle("b").without_key().try_acquire().is_granted());
    let mut waiter = fixture.wait_for("b", "u", 1, seconds(60)).starts();
    fixture.limiter.reset("b", None).unwrap();
    drop(waiter.expect_granted());
    let unknown = AcquireError::Invalid(OrderError::UnknownLimit { limit_id: "nobody".into() });
    assert_eq!(fixture.limiter.reset("nobody", None), Err(unknown));
    fixture.ends_with(0);
}

#[test]
fn reset_of_key_wakes_only_its_waiter() {
    let fixture = LimiterFixture::with_slots(1);
    fixture.put(LimitSpec::named("b").with(bucket().per_key()));
    let ask = |key| fixture.limiter.handle("b").of(key).try_acquire().is_granted();
    assert!(ask("ada") && ask("bob"));
    let mut ada = fixture.wait_for("b", "ada", 1, seconds(60)).starts();
    let mut bob = fixture.wait_for("b", "bob", 1, seconds(60)).starts();
    fixture.limiter.reset("b", Some(b"ada")).unwrap();
    drop(ada.expect_granted());
    bob.expect_pending();
    assert_eq!(bob.polls, 1);
    drop(bob);
    fixture.ends_with(0);
}

#[test]
fn edit_with_more_slots_wakes_waiters() {
    let fixture = LimiterFixture::with_slots(1);
    let held = fixture.take(1);
    let mut first = fixture.wait(1, seconds(60)).starts();
    let mut second = fixture.wait(1, seconds(60)).starts();
    fixture.put(LimitSpec::named("l").with(slots_of(3)));
    second.expect_pending();
    let first = first.expect_granted();
    let second = second.expect_granted();
    drop((held, first, second));
    fixture.ends_with(0);
}

#[test]
fn edit_with_too_few_slots_refuses_large_waiter() {
    let fixture = LimiterFixture::with_slots(4);
    let held = fixture.take(4);
    let mut small = fixture.wait(1, seconds(60)).starts();
    let mut large = fixture.wait(4, seconds(60)).starts();
    fixture.put(LimitSpec::named("l").with(slots_of(3)));
    small.expect_pending();
    assert_eq!(large.expect_refused().wait(), Wait::Never, "wherever it stood");
    drop(held);
    drop(small.expect_granted());
    fixture.ends_with(0);
}

#[test]
fn edit_to_shadow_mode_grants_waiter() {
    let fixture = LimiterFixture::with_slots(1);
    let held = fixture.take(1);
    let mut waiter = fixture.wait(1, seconds(60)).starts();
    fixture.put(LimitSpec { mode: Mode::Shadow, ..LimitSpec::named("l").with(slots_of(1)) });
    let granted = waiter.expect_granted();
    assert_eq!(granted.shadowed().len(), 1);
    drop((granted, held));
    fixture.put(LimitSpec::named("l").with(slots_of(1)));
    fixture.ends_with(0);
}

#[test]
fn edit_to_other_rows_keeps_arrival_order() {
    let fixture = LimiterFixture::with_slots(1);
    let held = fixture.take(1);
    let mut ada = fixture.wait_for("l", "ada", 1, seconds(60)).starts();
    let mut bob = fixture.wait_for("l", "bob", 1, seconds(60)).starts();
    fixture.put(LimitSpec::named("l").with(slots_of(1)).with(slots_of(1).per_key()));
    bob.expect_pending();
    ada.expect_pending();
    bob.expect_pending();
    drop(held);
    bob.expect_pending();
    let ada = ada.expect_granted();
    bob.expect_pending();
    drop(ada);
    drop(bob.expect_granted());
    assert_eq!(fixture.limiter.waiting_in_all(), 0);
}

#[test]
fn edit_to_key_scope_separates_waiters() {
    let fixture = LimiterFixture::with_slots(1);
    let held = fixture.take(1);
    let mut ada = fixture.wait_for("l", "ada", 1, seconds(60)).starts();
    let mut bob = fixture.wait_for("l", "bob", 1, seconds(60)).starts();
    fixture.put(LimitSpec::named("l").with(slots_of(1).per_key()));
    drop(bob.expect_granted());
    drop(ada.expect_granted());
    drop(held);
    assert_eq!(fixture.limiter.waiting_in_all(), 0);
    fixture.ends_with(0);
}

#[test]
fn edit_to_global_scope_queues_waiters_together() {
    let fixture = LimiterFixture::new();
    fixture.put(LimitSpec::named("l").with(slots_of(2).per_key()));
    let ada = lease(granted(fixture.limiter.handle("l").of("ada").count(2).try_acquire()));
    let mut waits = fixture.wait_for("l", "ada", 2, seconds(60)).starts();
    let bob = lease(granted(fixture.limiter.handle("l").of("bob").try_acquire()));
    // From now on the limit counts the slots of all keys under a new item name.
    fixture.put(LimitSpec::named("l").with(slots_of(2)));
    let first = waits.expect_granted();
    let mut cid = fixture.wait_for("l", "cid", 2, seconds(60)).starts();
    assert!(!fixture.limiter.handle("l").of("dan").try_acquire().is_granted());
    drop(first);
    assert!(!fixture.limiter.handle("l").of("dan").try_acquire().is_granted(), "cid came first");
    drop(cid.expect_granted());
    drop((ada, bob));
    fixture.ends_with(0);
}

#[test]
fn removal_of_limit_fails_waiters() {
    let fixture = LimiterFixture::with_slots(1);
    let held = fixture.take(1);
    let mut first = fixture.wait(1, seconds(60)).starts();
    let mut second = fixture.wait(1, seconds(60)).starts();
    assert!(fixture.store.remove("l", RemovalMode::Forget));
    let unknown = AcquireError::Invalid(OrderError::UnknownLimit { limit_id: "l".into() });
    assert_eq!(second.expect_error(), unknown);
    assert_eq!(first.expect_error(), unknown);
    drop(held);
    fixture.put(LimitSpec::named("l").with(slots_of(1)));
    fixture.ends_with(0);
}

#[test]
fn freed_row_wakes_waiter_of_new_key() {
    let fixture = LimiterFixture::with_slots(1);
    fixture.put(LimitSpec { max_keys: Some(1), ..LimitSpec::named("few").with(slots_of(1).per_key()) });
    let ada = lease(granted(fixture.limiter.handle("few").of("ada").try_acquire()));
    let denial = denied(fixture.limiter.handle("few").of("bob").try_acquire());
    assert!(denial.is_degraded() && denial.by().is_some());
    let mut bob = fixture.wait_for("few", "bob", 1, seconds(60)).starts();
    let mut cid = fixture.wait_for("few", "cid", 1, seconds(60)).starts();
    drop(ada);
    let bob = bob.expect_granted();
    cid.expect_pending();
    drop(bob);
    drop(cid.expect_granted());
    fixture.ends_with(0);
}

#[test]
fn release_in_store_is_noticed_at_expiry() {
    let fixture = LimiterFixture::with_slots(1);
    let held = fixture.take(1);
    let mut waiter = fixture.wait(1, seconds(60)).starts();
    assert!(decided(fixture.store.release(held.id())));
    waiter.expect_pending();
    fixture.pass(seconds(60));
    drop(waiter.expect_granted());
    drop(held);
    fixture.ends_with(0);
}

#[test]
fn resumed_machine_wakes_waiter() {
    let fixture = LimiterFixture::with_slots(1);
    let held = fixture.take(1);
    let mut waiter = fixture.wait(1, seconds(10)).starts();
    fixture.holder_clock.suspend(seconds(3600));
    fixture.clock.advance(seconds(3600));
    assert!(!waiter.is_woken());
    fixture.holder_clock.advance(Duration::ZERO);
    drop(waiter.expect_granted());
    drop(held);
    fixture.ends_with(0);
}
