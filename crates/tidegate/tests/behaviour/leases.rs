//! Leases: dropped, leaked, renewed late, released twice, and held over a suspend.

use std::task::Poll;
use std::time::Duration;

use tidegate::catalog::{Catalog, RemovalMode};
use tidegate::limiter::Renewal;
use tidegate::model::{Amount, Ask, ItemSpec, LeaseId, LimitSpec, Policy, Precision, Unit, Wait};
use tidegate::reply::OrderError;
use tidegate::store::{Actual, Settlement, Store};
use tidegate::{AcquireError, Lease};

use super::LimiterFixture;
use crate::fixture::{
    DecisionExt, HandleExt, PolledFuture, at, decided, denied, granted, lease, seconds, slots_of,
};

#[test]
fn dropped_lease_is_released() {
    let fixture = LimiterFixture::with_slots(2);
    let lease = fixture.take(1);
    let other = fixture.take(1);
    assert!(!fixture.is_free());
    drop(lease);
    fixture.ends_with(1);
    drop(other);
    fixture.ends_with(0);
}

#[test]
fn unused_grant_is_released() {
    let fixture = LimiterFixture::with_slots(1);
    let granted = granted(fixture.limiter.handle("l").of("u").try_acquire());
    assert!(granted.lease().is_some());
    assert!(!fixture.is_free());
    drop(granted);
    fixture.ends_with(0);
}

#[test]
fn lease_is_released_once() {
    let fixture = LimiterFixture::with_slots(1);
    let first = fixture.take(1);
    let id = first.id();
    assert!(first.release());
    assert!(!fixture.limiter.release(id), "it was released");
    let second = fixture.take(1);
    assert!(!fixture.limiter.release(id), "the id does not release another lease");
    assert!(fixture.limiter.release(second.id()), "the id is enough for a release");
    let third = fixture.take(1);
    assert!(!second.release(), "the release by its holder then frees nothing");
    fixture.ends_with(1);
    drop(third);
    fixture.ends_with(0);
}

#[test]
fn lease_turned_into_id_is_not_released() {
    let fixture = LimiterFixture::with_slots(1);
    let id = fixture.take(1).into_id();
    fixture.ends_with(1);
    let adopted = fixture.limiter.adopt(id, seconds(5)).unwrap().expect("it is held");
    assert_eq!((adopted.id(), adopted.expires_at()), (id, at(seconds(5))));
    assert!(adopted.fences().is_empty());
    drop(adopted);
    fixture.ends_with(0);
    assert!(fixture.limiter.adopt(id, seconds(5)).unwrap().is_none());
    assert!(fixture.limiter.adopt(LeaseId(42), seconds(5)).unwrap().is_none());
}

#[test]
fn leaked_lease_expires() {
    let fixture = LimiterFixture::with_slots(2);
    std::mem::forget(fixture.take(1));
    let _id = fixture.take(1).into_id();
    fixture.pass(Duration::from_nanos(59_999_999_999));
    fixture.ends_with(2);
    fixture.pass(Duration::from_nanos(1));
    fixture.ends_with(0);
}

#[test]
fn drop_of_expired_lease_frees_nothing() {
    let fixture = LimiterFixture::with_slots(1);
    let late = fixture.take(1);
    fixture.pass(seconds(60));
    assert!(!late.is_held());
    let next = fixture.take(1);
    assert!(!late.release());
    fixture.ends_with(1);
    drop(next);
    fixture.ends_with(0);
}

#[test]
fn release_returns_whole_weight() {
    let fixture = LimiterFixture::with_slots(10);
    let (a, b) = (fixture.take(7), fixture.take(2));
    fixture.ends_with(9);
    drop(a);
    fixture.ends_with(2);
    drop(b);
    fixture.ends_with(0);
}

#[test]
fn renewal_moves_expiry() {
    let fixture = LimiterFixture::with_slots(1);
    let lease = fixture.take(1);
    assert_eq!(lease.expires_at(), at(seconds(60)));
    fixture.pass(seconds(59));
    assert_eq!(lease.renew(seconds(60)), Ok(Renewal::Until(at(seconds(119)))));
    assert_eq!(lease.expires_at(), at(seconds(119)));
    fixture.pass(seconds(59));
    assert!(lease.is_held());
    fixture.ends_with(1);
    for ttl in [Duration::ZERO, seconds(36_525 * 86_400 + 1), Duration::MAX] {
        assert_eq!(lease.renew(ttl), Err(AcquireError::Invalid(OrderError::TtlOutOfRange)));
    }
    assert!(lease.is_held(), "a bad renewal changes nothing");
    fixture.pass(seconds(1));
    assert_eq!(lease.renew(seconds(60)), Ok(Renewal::Gone), "too late");
    assert!(!lease.release());
    fixture.ends_with(0);
}

#[test]
fn late_renewal_is_decided_by_store() {
    let fixture = LimiterFixture::with_slots(1);
    let lease = fixture.take(1);
    fixture.holder_clock.advance(seconds(61));
    assert!(!lease.is_held(), "the holder cannot know");
    assert_eq!(lease.renew(seconds(60)), Ok(Renewal::Until(at(seconds(60)))), "but the store can");
    assert!(lease.is_held());
    drop(lease);
    fixture.ends_with(0);
}

#[test]
fn fences_increase() {
    let fixture = LimiterFixture::with_slots(3);
    let leases = [fixture.take(1), fixture.take(1), fixture.take(1)];
    assert!(leases.is_sorted_by_key(Lease::fence));
    assert_eq!(leases[0].fences()[0].0.id(), "l");
    assert!(leases[0].fence() < leases[1].fence());
    drop(leases);
    fixture.ends_with(0);
}

#[test]
fn lost_completes_at_holder_deadline() {
    let fixture = LimiterFixture::with_slots(1);
    let lease = fixture.take(1);
    let mut lost = PolledFuture::new(lease.lost()).starts();
    fixture.pass(Duration::from_nanos(59_999_999_999));
    lost.expect_pending();
    assert!(lease.is_held());
    fixture.pass(Duration::from_nanos(1));
    lost.expect_ready();
    assert!(!lease.is_held());
    assert_eq!(lost.polls, 2, "it slept until then");
    drop(lease);
    fixture.ends_with(0);
}

#[test]
fn lost_waits_until_renewed_expiry() {
    let fixture = LimiterFixture::with_slots(1);
    let lease = fixture.take(1);
    let mut lost = PolledFuture::new(lease.lost()).starts();
    for _ in 0..3 {
        fixture.pass(seconds(40));
        lease.renew(seconds(60)).unwrap();
        lost.expect_pending();
    }
    lease.renew(seconds(10)).unwrap();
    lost.expect_pending();
    fixture.pass(seconds(10));
    lost.expect_ready();
    drop(lease);
    fixture.ends_with(0);
}

#[test]
fn lost_completes_at_release() {
    let ends: [fn(Lease); 3] =
        [drop, |lease| assert!(lease.release()), |lease| assert_ne!(lease.into_id(), LeaseId(0))];
    for end in ends {
        let fixture = LimiterFixture::with_slots(1);
        let lease = fixture.take(1);
        let mut lost = PolledFuture::new(lease.lost()).starts();
        end(lease);
        lost.expect_ready();
        fixture.pass(seconds(60));
        fixture.ends_with(0);
    }
}

#[test]
fn lost_completes_when_store_reports_end() {
    let fixture = LimiterFixture::with_slots(1);
    let lease = fixture.take(1);
    let mut lost = PolledFuture::new(lease.lost()).starts();
    assert!(decided(fixture.store.release(lease.id())), "behind its back");
    lost.expect_pending();
    assert_eq!(lease.renew(seconds(60)), Ok(Renewal::Gone));
    lost.expect_ready();
    drop(lease);
    fixture.ends_with(0);
}

#[test]
fn lease_held_over_suspend_is_lost_on_resume() {
    let fixture = LimiterFixture::with_slots(1);
    let lease = fixture.take(1);
    let mut lost = PolledFuture::new(lease.lost()).starts();
    fixture.holder_clock.suspend(seconds(3600));
    fixture.clock.advance(seconds(3600));
    assert!(!lease.is_held(), "its holder knows, timers or not");
    assert!(!lost.is_woken(), "timers stand still in a suspend");
    fixture.holder_clock.advance(Duration::ZERO);
    lost.expect_ready();
    let other = fixture.take(1);
    drop(lease);
    fixture.ends_with(1);
    drop(other);
    fixture.ends_with(0);
}

#[test]
fn store_clock_jump_expires_held_lease() {
    let fixture = LimiterFixture::with_slots(1);
    let lease = fixture.take(1);
    fixture.clock.advance(seconds(60));
    assert!(lease.is_held(), "the holder has no notification");
    let other = fixture.take(1);
    assert!(other.fence() > lease.fence(), "which is what fences are for");
    assert_eq!(lease.renew(seconds(1)), Ok(Renewal::Gone));
    assert!(!lease.is_held());
    drop(lease);
    fixture.ends_with(1);
    drop(other);
    fixture.ends_with(0);
}

#[test]
fn repeated_request_id_returns_same_lease() {
    let fixture = LimiterFixture::with_slots(1);
    let ask = || {
        let handle = fixture.limiter.handle("l");
        let question = handle.of("u");
        lease(granted(question.request_id("r").try_acquire()))
    };
    let first = ask();
    fixture.pass(seconds(50));
    let again = ask();
    assert_eq!((first.id(), first.expires_at()), (again.id(), again.expires_at()));
    fixture.pass(seconds(10));
    assert!(!again.is_held(), "it expires with the first one, not a time to live after the repeated");
    let third = ask();
    assert!(!third.is_held(), "and is not held by being asked for again");
    drop((first, third));
    assert!(!again.release());
    fixture.ends_with(0);
}

#[test]
fn deletion_of_limit_ends_leases() {
    let fixture = LimiterFixture::with_slots(1);
    let lease = fixture.take(1);
    assert!(fixture.store.remove("l", RemovalMode::Forget));
    fixture.put(LimitSpec::named("l").with(slots_of(1)));
    let other = fixture.take(1);
    drop(lease);
    fixture.ends_with(1);
    drop(other);
    fixture.ends_with(0);
}

/// Limits of ten units for every counting policy, by name.
fn settleable() -> Vec<(&'static str, ItemSpec)> {
    let window = seconds(10);
    vec![
        ("total", ItemSpec::of(Policy::Total, 10)),
        ("minute", ItemSpec::of(Policy::Calendar(Unit::Minute), 10)),
        ("interval", ItemSpec::of(Policy::Interval { window }, 10)),
        ("sliding", ItemSpec::of(Policy::Sliding { window, precision: Precision::Exact }, 10)),
        ("bucketed", ItemSpec::of(Policy::Sliding { window, precision: Precision::Bucketed }, 10)),
        ("bucket", ItemSpec::of(Policy::Bucket { window, burst: None }, 10)),
        ("concurrency", slots_of(10)),
    ]
}

fn used(fixture: &LimiterFixture, id: &str) -> Amount {
    let decision = fixture.limiter.handle(id).without_key().count(0).readings().peek();
    let readings = match &decision {
        Ok(granted) => granted.readings(),
        Err(AcquireError::Refused(denial)) => denial.readings(),
        Err(error) => panic!("no decision: {error}"),
    };
    readings[0].reading.used
}

#[test]
fn hold_of_every_policy_settles_down_and_up() {
    for (id, item) in settleable() {
        for (actual, counted) in [(3, 3), (8, 8), (15, 15)] {
            let fixture = LimiterFixture::new();
            fixture.put(LimitSpec::named(id).with(item.clone()));
            let held = lease(granted(fixture.limiter.handle(id).without_key().count(8).hold().try_acquire()));
            assert_eq!(used(&fixture, id), 8, "{id}");
            assert_eq!(held.settle(Actual::Every(actual)), Ok(Settlement::Settled), "{id}");
            let counted = if id == "concurrency" { 0 } else { counted };
            assert_eq!(used(&fixture, id), counted, "{id}");
        }
    }
}

#[test]
fn dropped_hold_keeps_charge() {
    for (id, item) in settleable() {
        let fixture = LimiterFixture::new();
        fixture.put(LimitSpec::named(id).with(item));
        drop(fixture.limiter.handle(id).without_key().count(8).hold().try_acquire().unwrap());
        assert_eq!(used(&fixture, id), if id == "concurrency" { 0 } else { 8 }, "{id}");
    }
}

#[test]
fn settlement_after_expiry_changes_nothing() {
    let fixture = LimiterFixture::new();
    fixture.put(LimitSpec::named("l").with(slots_of(10)).with(ItemSpec::of(Policy::Total, 100)));
    let held = lease(granted(fixture.limiter.handle("l").of("u").count(4).hold().try_acquire()));
    fixture.pass(seconds(60));
    assert_eq!(held.settle(Actual::Every(1)), Ok(Settlement::Gone));
    let usage = fixture.store.usage("l", None).decided().unwrap();
    assert_eq!(usage.count, Some(4), "the charge stands");
    fixture.ends_with(0);
}

#[test]
fn settlement_of_set_settles_each_ask() {
    let fixture = LimiterFixture::new();
    fixture.put(LimitSpec::named("calls").with(ItemSpec::of(Policy::Total, 10)));
    fixture.put(LimitSpec::named("tokens").with(ItemSpec::of(Policy::Total, 1000)));
    let asks = [Ask::one("calls", None), Ask { limit_id: "tokens", key: None, count: 500 }];
    let held = lease(granted(fixture.limiter.request(&asks).hold().try_acquire()));
    assert_eq!(held.fences().len(), 2);
    assert_eq!(held.settle(Actual::Each(&[1, 420])), Ok(Settlement::Settled));
    assert_eq!((used(&fixture, "calls"), used(&fixture, "tokens")), (1, 420));
}

#[test]
fn invalid_settlement_releases_without_settling() {
    let fixture = LimiterFixture::with_slots(3);
    fixture.put(LimitSpec::named("calls").with(ItemSpec::of(Policy::Total, 10)));
    let asks = [Ask::one("calls", None), Ask { limit_id: "l", key: None, count: 3 }];
    let held = lease(granted(fixture.limiter.request(&asks).hold().try_acquire()));
    let mut waiter = fixture.wait(1, seconds(60)).starts();
    let rejection = OrderError::CostsOutOfRange { costs: 1, asks: 2 };
    assert_eq!(
        fixture.limiter.settle(held.id(), Actual::Each(&[0])),
        Err(AcquireError::Invalid(rejection.clone()))
    );
    waiter.expect_pending();
    assert!(held.is_held());
    assert_eq!(held.settle(Actual::Each(&[0])), Err(AcquireError::Invalid(rejection)));
    assert_eq!(used(&fixture, "calls"), 1, "the charge stands");
    drop(waiter.expect_granted());
    fixture.ends_with(0);
}

#[test]
fn grant_without_concurrency_or_hold_has_no_lease() {
    let fixture = LimiterFixture::new();
    fixture.put(LimitSpec::named("t").with(ItemSpec::of(Policy::Total, 10)));
    assert!(granted(fixture.limiter.handle("t").without_key().try_acquire()).into_lease().is_none());
    assert!(
        granted(fixture.limiter.handle("t").without_key().hold().peek()).lease().is_none(),
        "nor for a peek"
    );
}

#[test]
fn invalid_requests_are_errors_and_leave_no_trace() {
    let fixture = LimiterFixture::with_slots(2);
    fixture.put(LimitSpec::named("keyed").with(slots_of(2).per_key()));
    let limiter = &fixture.limiter;
    let rejected = |question: tidegate::Request<'_>| match question.try_acquire() {
        Err(AcquireError::Invalid(rejection)) => rejection,
        other => panic!("{other:?}"),
    };
    let century = seconds(36_525 * 86_400);
    for ttl in [Duration::ZERO, Duration::from_micros(999), century + Duration::from_nanos(1), Duration::MAX]
    {
        assert_eq!(rejected(limiter.handle("l").of("u").ttl(ttl)), OrderError::TtlOutOfRange, "{ttl:?}");
    }
    assert_eq!(rejected(limiter.handle("keyed").of(&[b'k'; 1025])), OrderError::KeyTooLong { bytes: 1025 });
    assert_eq!(
        rejected(limiter.handle("keyed").of(&vec![b'k'; 65_536])),
        OrderError::KeyTooLong { bytes: 65_536 }
    );
    assert_eq!(
        rejected(limiter.handle("keyed").without_key()),
        OrderError::KeyMissing { limit_id: "keyed".into() }
    );
    assert_eq!(
        rejected(limiter.request(&[Ask::one("nobody", None)])),
        OrderError::UnknownLimit { limit_id: "nobody".into() }
    );
    assert_eq!(rejected(limiter.request(&[])), OrderError::AsksOutOfRange { asks: 0 });
    assert_eq!(
        rejected(limiter.request(&[Ask::one("l", None); 33])),
        OrderError::AsksOutOfRange { asks: 33 }
    );
    assert_eq!(
        rejected(limiter.handle("l").of("u").request_id("")),
        OrderError::RequestIdOutOfRange { bytes: 0 }
    );
    fixture.ends_with(0);
}

#[test]
fn extreme_requests_do_not_panic() {
    let fixture = LimiterFixture::with_slots(2);
    fixture.put(LimitSpec::named("keyed").with(slots_of(2).per_key()));
    let limiter = &fixture.limiter;
    assert!(limiter.handle("keyed").of("").try_acquire().is_granted(), "an empty key is a key");
    assert!(limiter.handle("keyed").of(&[b'k'; 1024]).try_acquire().is_granted());
    for count in [3, Amount::MAX] {
        assert_eq!(denied(limiter.handle("l").of("u").count(count).try_acquire()).wait(), Wait::Never);
    }
    assert!(granted(limiter.handle("l").of("u").count(0).try_acquire()).into_lease().is_none());
    let century = lease(granted(limiter.handle("l").of("u").ttl(seconds(36_525 * 86_400)).try_acquire()));
    let brief = lease(granted(limiter.handle("l").of("u").ttl(Duration::from_millis(1)).try_acquire()));
    let mut lost = PolledFuture::new(century.lost()).starts();
    fixture.pass(Duration::from_millis(1));
    assert!(!brief.is_held() && century.is_held());
    assert_eq!(lost.run(), Poll::Pending);
    fixture.ends_with(1);
    drop(century);
    fixture.ends_with(0);
}

#[test]
fn denial_names_refusing_item() {
    let fixture = LimiterFixture::with_slots(1);
    fixture.put(
        LimitSpec::named("b").with(ItemSpec::of(Policy::Bucket { window: seconds(10), burst: None }, 1)),
    );
    assert!(fixture.limiter.handle("b").without_key().try_acquire().is_granted());
    let denial = denied(fixture.limiter.handle("b").without_key().readings().try_acquire());
    assert_eq!((denial.limit_id(), denial.item()), ("b", "all/bucket-10s"));
    assert_eq!((denial.at(), denial.retry_after()), (at(Duration::ZERO), Some(seconds(10))));
    assert_eq!(denial.readings()[0].reading.used, 1);
    assert_eq!(denial.to_string(), "all/bucket-10s of limit 'b' refused; retry after 10s");
    let lease = fixture.take(1);
    let denial = denied(fixture.limiter.handle("l").without_key().try_acquire());
    assert_eq!((denial.wait(), denial.retry_after()), (Wait::OnRelease, None));
    assert!(denial.readings().is_empty());
    drop(lease);
    fixture.ends_with(0);
}

/// Runs other tasks. Automatic renewal needs a runtime; the clocks are still manual.
async fn let_others_run() {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn automatic_renewal_repeats_every_third_of_ttl() {
    let fixture = LimiterFixture::with_slots(1);
    let lease = fixture.take(1);
    lease.keep_alive();
    lease.keep_alive();
    let_others_run().await;
    for step in 1..=20 {
        fixture.pass(seconds(20));
        let_others_run().await;
        assert_eq!(lease.expires_at(), at(seconds(20 * step + 60)));
        assert!(lease.is_held());
    }
    drop(lease);
    let_others_run().await;
    fixture.ends_with(0);
    assert_eq!(fixture.holder_clock.sleepers(), 0, "automatic renewal has stopped");
}

#[tokio::test]
async fn automatic_renewal_follows_manual_renewals() {
    let fixture = LimiterFixture::with_slots(1);
    let lease = fixture.take(1);
    lease.keep_alive();
    let_others_run().await;
    assert_eq!(lease.renew(seconds(6)), Ok(Renewal::Until(at(seconds(6)))));
    let_others_run().await;
    fixture.pass(seconds(2));
    let_others_run().await;
    assert_eq!(lease.expires_at(), at(seconds(62)), "renewed after a third of what was left");
    assert_eq!(lease.renew(seconds(3600)), Ok(Renewal::Until(at(seconds(3602)))));
    let_others_run().await;
    for _ in 0..100 {
        fixture.pass(seconds(20));
        let_others_run().await;
        assert_eq!(lease.expires_at(), at(seconds(3602)), "an hour is not cut short");
    }
    for _ in 0..100 {
        fixture.pass(seconds(20));
        let_others_run().await;
        assert!(lease.is_held(), "nor is it the end");
    }
    assert_eq!(lease.expires_at(), at(seconds(4062)));
    drop(lease);
    let_others_run().await;
    fixture.ends_with(0);
    assert_eq!(fixture.holder_clock.sleepers(), 0, "automatic renewal has stopped");
}

#[tokio::test]
async fn automatic_renewal_stops_when_lease_is_lost() {
    let fixture = LimiterFixture::with_slots(1);
    let lease = fixture.take(1);
    lease.keep_alive();
    let_others_run().await;
    let mut lost = PolledFuture::new(lease.lost()).starts();
    assert!(fixture.limiter.release(lease.id()));
    fixture.pass(seconds(20));
    let_others_run().await;
    lost.expect_ready();
    assert!(!lease.is_held());
    let other = fixture.take(1);
    drop(lease);
    fixture.pass(seconds(20));
    let_others_run().await;
    fixture.ends_with(1);
    drop(other);
    fixture.ends_with(0);
}

#[tokio::test]
async fn automatic_renewal_after_long_sleep_loses_lease() {
    let fixture = LimiterFixture::with_slots(1);
    let lease = fixture.take(1);
    lease.keep_alive();
    let_others_run().await;
    let mut lost = PolledFuture::new(lease.lost()).starts();
    fixture.holder_clock.suspend(seconds(61));
    fixture.clock.advance(seconds(61));
    fixture.holder_clock.advance(Duration::ZERO);
    let_others_run().await;
    lost.expect_ready();
    drop(lease);
    fixture.ends_with(0);
}

#[tokio::test]
async fn system_holder_clock_ends_sleep_in_time() {
    use tidegate::limiter::{HolderClock, SystemHolderClock};
    let holder_clock = SystemHolderClock;
    let before = holder_clock.now();
    holder_clock.sleep_until(before.plus(Duration::from_millis(5))).await;
    assert!(holder_clock.now().since(before) >= Duration::from_millis(5));
    holder_clock.sleep_until(before).await;
}
