//! Leases in the hands of a program: dropped, leaked, forgotten, renewed late, released twice, and held over a suspend.

use std::task::Poll;
use std::time::Duration;

use tidegate::catalog::{Catalog, RemovalMode};
use tidegate::limiter::Renewal;
use tidegate::model::{Amount, Ask, ItemSpec, LeaseId, LimitSpec, Policy, Precision, Unit, Wait};
use tidegate::reply::OrderError;
use tidegate::store::{Actual, Settlement, Store};
use tidegate::{AcquireError, Lease};

use super::Stage;
use crate::stage::{DecisionExt, Handheld, at, decided, denied, granted, lease, seconds, slots_of};

#[test]
fn a_dropped_lease_is_given_back() {
    let stage = Stage::with_slots(2);
    let lease = stage.take(1);
    let other = stage.take(1);
    assert!(!stage.is_free());
    drop(lease);
    stage.ends_with(1);
    drop(other);
    stage.ends_with(0);
}

#[test]
fn a_grant_that_nobody_looks_at_is_given_back() {
    let stage = Stage::with_slots(1);
    let granted = granted(stage.limiter.ask("l", "u").try_acquire());
    assert!(granted.lease().is_some());
    assert!(!stage.is_free());
    drop(granted);
    stage.ends_with(0);
}

#[test]
fn a_lease_is_released_once() {
    let stage = Stage::with_slots(1);
    let first = stage.take(1);
    let id = first.id();
    assert!(first.release());
    assert!(!stage.limiter.release(id), "it was given back");
    let second = stage.take(1);
    assert!(!stage.limiter.release(id), "and is not somebody else's");
    assert!(stage.limiter.release(second.id()), "whoever knows the id may release it");
    let third = stage.take(1);
    assert!(!second.release(), "and then its holder releases nothing, and nobody else's");
    stage.ends_with(1);
    drop(third);
    stage.ends_with(0);
}

#[test]
fn a_lease_handed_over_is_not_given_back() {
    let stage = Stage::with_slots(1);
    let id = stage.take(1).into_id();
    stage.ends_with(1);
    let adopted = stage.limiter.adopt(id, seconds(5)).unwrap().expect("it is held");
    assert_eq!((adopted.id(), adopted.expires_at()), (id, at(seconds(5))));
    assert!(adopted.fences().is_empty());
    drop(adopted);
    stage.ends_with(0);
    assert!(stage.limiter.adopt(id, seconds(5)).unwrap().is_none());
    assert!(stage.limiter.adopt(LeaseId(42), seconds(5)).unwrap().is_none());
}

#[test]
fn a_leaked_lease_lapses() {
    let stage = Stage::with_slots(2);
    std::mem::forget(stage.take(1));
    let _id = stage.take(1).into_id();
    stage.pass(Duration::from_nanos(59_999_999_999));
    stage.ends_with(2);
    stage.pass(Duration::from_nanos(1));
    stage.ends_with(0);
}

#[test]
fn a_lapsed_lease_frees_nothing_when_it_is_dropped() {
    let stage = Stage::with_slots(1);
    let late = stage.take(1);
    stage.pass(seconds(60));
    assert!(!late.is_held());
    let next = stage.take(1);
    assert!(!late.release());
    stage.ends_with(1);
    drop(next);
    stage.ends_with(0);
}

#[test]
fn weights_are_given_back_whole() {
    let stage = Stage::with_slots(10);
    let (a, b) = (stage.take(7), stage.take(2));
    stage.ends_with(9);
    drop(a);
    stage.ends_with(2);
    drop(b);
    stage.ends_with(0);
}

#[test]
fn renewing_moves_the_end() {
    let stage = Stage::with_slots(1);
    let lease = stage.take(1);
    assert_eq!(lease.expires_at(), at(seconds(60)));
    stage.pass(seconds(59));
    assert_eq!(lease.renew(seconds(60)), Ok(Renewal::Until(at(seconds(119)))));
    assert_eq!(lease.expires_at(), at(seconds(119)));
    stage.pass(seconds(59));
    assert!(lease.is_held());
    stage.ends_with(1);
    for ttl in [Duration::ZERO, seconds(36_525 * 86_400 + 1), Duration::MAX] {
        assert_eq!(lease.renew(ttl), Err(AcquireError::Invalid(OrderError::TtlOutOfRange)));
    }
    assert!(lease.is_held(), "a bad renewal changes nothing");
    stage.pass(seconds(1));
    assert_eq!(lease.renew(seconds(60)), Ok(Renewal::Gone), "too late");
    assert!(!lease.release());
    stage.ends_with(0);
}

#[test]
fn the_store_decides_about_a_late_renewal() {
    let stage = Stage::with_slots(1);
    let lease = stage.take(1);
    stage.pulse.advance(seconds(61));
    assert!(!lease.is_held(), "the holder cannot know");
    assert_eq!(lease.renew(seconds(60)), Ok(Renewal::Until(at(seconds(60)))), "but the store can");
    assert!(lease.is_held());
    drop(lease);
    stage.ends_with(0);
}

#[test]
fn fences_rise() {
    let stage = Stage::with_slots(3);
    let leases = [stage.take(1), stage.take(1), stage.take(1)];
    assert!(leases.is_sorted_by_key(Lease::fence));
    assert_eq!(leases[0].fences()[0].0.id(), "l");
    assert!(leases[0].fence() < leases[1].fence());
    drop(leases);
    stage.ends_with(0);
}

#[test]
fn lost_ends_at_the_holders_own_deadline() {
    let stage = Stage::with_slots(1);
    let lease = stage.take(1);
    let mut lost = Handheld::new(lease.lost()).starts();
    stage.pass(Duration::from_nanos(59_999_999_999));
    lost.still_waits();
    assert!(lease.is_held());
    stage.pass(Duration::from_nanos(1));
    lost.is_done();
    assert!(!lease.is_held());
    assert_eq!(lost.polls, 2, "it slept until then");
    drop(lease);
    stage.ends_with(0);
}

#[test]
fn lost_waits_for_renewals() {
    let stage = Stage::with_slots(1);
    let lease = stage.take(1);
    let mut lost = Handheld::new(lease.lost()).starts();
    for _ in 0..3 {
        stage.pass(seconds(40));
        lease.renew(seconds(60)).unwrap();
        lost.still_waits();
    }
    lease.renew(seconds(10)).unwrap();
    lost.still_waits();
    stage.pass(seconds(10));
    lost.is_done();
    drop(lease);
    stage.ends_with(0);
}

#[test]
fn lost_ends_when_the_lease_is_over() {
    let ends: [fn(Lease); 3] =
        [drop, |lease| assert!(lease.release()), |lease| assert_ne!(lease.into_id(), LeaseId(0))];
    for end in ends {
        let stage = Stage::with_slots(1);
        let lease = stage.take(1);
        let mut lost = Handheld::new(lease.lost()).starts();
        end(lease);
        lost.is_done();
        stage.pass(seconds(60));
        stage.ends_with(0);
    }
}

#[test]
fn lost_ends_when_the_store_says_so() {
    let stage = Stage::with_slots(1);
    let lease = stage.take(1);
    let mut lost = Handheld::new(lease.lost()).starts();
    assert!(decided(stage.store.release(lease.id())), "behind its back");
    lost.still_waits();
    assert_eq!(lease.renew(seconds(60)), Ok(Renewal::Gone));
    lost.is_done();
    drop(lease);
    stage.ends_with(0);
}

#[test]
fn a_lease_held_over_a_suspend_is_lost_when_the_machine_wakes() {
    let stage = Stage::with_slots(1);
    let lease = stage.take(1);
    let mut lost = Handheld::new(lease.lost()).starts();
    stage.pulse.suspend(seconds(3600));
    stage.clock.advance(seconds(3600));
    assert!(!lease.is_held(), "its holder knows, timers or not");
    assert!(!lost.is_woken(), "timers stand still in a suspend");
    stage.pulse.advance(Duration::ZERO);
    lost.is_done();
    let other = stage.take(1);
    drop(lease);
    stage.ends_with(1);
    drop(other);
    stage.ends_with(0);
}

#[test]
fn a_store_whose_clock_jumps_ahead_ends_leases_that_holders_still_trust() {
    let stage = Stage::with_slots(1);
    let lease = stage.take(1);
    stage.clock.advance(seconds(60));
    assert!(lease.is_held(), "nobody has told it");
    let other = stage.take(1);
    assert!(other.fence() > lease.fence(), "which is what fences are for");
    assert_eq!(lease.renew(seconds(1)), Ok(Renewal::Gone));
    assert!(!lease.is_held());
    drop(lease);
    stage.ends_with(1);
    drop(other);
    stage.ends_with(0);
}

#[test]
fn a_repeated_request_speaks_of_the_same_lease() {
    let stage = Stage::with_slots(1);
    let ask = || {
        let question = stage.limiter.ask("l", "u");
        lease(granted(question.request_id("r").try_acquire()))
    };
    let first = ask();
    stage.pass(seconds(50));
    let again = ask();
    assert_eq!((first.id(), first.expires_at()), (again.id(), again.expires_at()));
    stage.pass(seconds(10));
    assert!(!again.is_held(), "it lapses when the first one does, not a time to live after it was repeated");
    let third = ask();
    assert!(!third.is_held(), "and is not held by being asked for again");
    drop((first, third));
    assert!(!again.release());
    stage.ends_with(0);
}

#[test]
fn a_deleted_limit_takes_its_leases_along() {
    let stage = Stage::with_slots(1);
    let lease = stage.take(1);
    assert!(stage.store.remove("l", RemovalMode::Forget));
    stage.put(LimitSpec::named("l").with(slots_of(1)));
    let other = stage.take(1);
    drop(lease);
    stage.ends_with(1);
    drop(other);
    stage.ends_with(0);
}

/// A limit of ten of every law that counts, by name.
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

fn used(stage: &Stage, id: &str) -> Amount {
    let decision = stage.limiter.ask_all(id).count(0).readings().peek();
    let readings = match &decision {
        Ok(granted) => granted.readings(),
        Err(AcquireError::Refused(denial)) => denial.readings(),
        Err(error) => panic!("no decision: {error}"),
    };
    readings[0].reading.used
}

#[test]
fn holds_of_every_law_settle_down_and_up() {
    for (id, item) in settleable() {
        for (actual, counted) in [(3, 3), (8, 8), (15, 15)] {
            let stage = Stage::new();
            stage.put(LimitSpec::named(id).with(item.clone()));
            let held = lease(granted(stage.limiter.ask_all(id).count(8).hold().try_acquire()));
            assert_eq!(used(&stage, id), 8, "{id}");
            assert_eq!(held.settle(Actual::Every(actual)), Ok(Settlement::Settled), "{id}");
            let counted = if id == "concurrency" { 0 } else { counted };
            assert_eq!(used(&stage, id), counted, "{id}");
        }
    }
}

#[test]
fn a_dropped_hold_keeps_its_charge() {
    for (id, item) in settleable() {
        let stage = Stage::new();
        stage.put(LimitSpec::named(id).with(item));
        drop(stage.limiter.ask_all(id).count(8).hold().try_acquire().unwrap());
        assert_eq!(used(&stage, id), if id == "concurrency" { 0 } else { 8 }, "{id}");
    }
}

#[test]
fn settling_after_the_lapse_changes_nothing() {
    let stage = Stage::new();
    stage.put(LimitSpec::named("l").with(slots_of(10)).with(ItemSpec::of(Policy::Total, 100)));
    let held = lease(granted(stage.limiter.ask("l", "u").count(4).hold().try_acquire()));
    stage.pass(seconds(60));
    assert_eq!(held.settle(Actual::Every(1)), Ok(Settlement::Gone));
    let usage = stage.store.usage("l", None).decided().unwrap();
    assert_eq!(usage.count, Some(4), "the charge stands");
    stage.ends_with(0);
}

#[test]
fn a_set_settles_each_ask() {
    let stage = Stage::new();
    stage.put(LimitSpec::named("calls").with(ItemSpec::of(Policy::Total, 10)));
    stage.put(LimitSpec::named("tokens").with(ItemSpec::of(Policy::Total, 1000)));
    let asks = [Ask::one("calls", None), Ask { limit_id: "tokens", key: None, count: 500 }];
    let held = lease(granted(stage.limiter.asks(&asks).hold().try_acquire()));
    assert_eq!(held.fences().len(), 2);
    assert_eq!(held.settle(Actual::Each(&[1, 420])), Ok(Settlement::Settled));
    assert_eq!((used(&stage, "calls"), used(&stage, "tokens")), (1, 420));
}

#[test]
fn a_settlement_that_makes_no_sense_gives_back_and_settles_nothing() {
    let stage = Stage::with_slots(3);
    stage.put(LimitSpec::named("calls").with(ItemSpec::of(Policy::Total, 10)));
    let asks = [Ask::one("calls", None), Ask { limit_id: "l", key: None, count: 3 }];
    let held = lease(granted(stage.limiter.asks(&asks).hold().try_acquire()));
    let mut waiter = stage.wait(1, seconds(60)).starts();
    let rejection = OrderError::CostsOutOfRange { costs: 1, asks: 2 };
    assert_eq!(
        stage.limiter.settle(held.id(), Actual::Each(&[0])),
        Err(AcquireError::Invalid(rejection.clone()))
    );
    waiter.still_waits();
    assert!(held.is_held());
    assert_eq!(held.settle(Actual::Each(&[0])), Err(AcquireError::Invalid(rejection)));
    assert_eq!(used(&stage, "calls"), 1, "the charge stands");
    drop(waiter.is_served());
    stage.ends_with(0);
}

#[test]
fn without_concurrency_and_hold_there_is_no_lease() {
    let stage = Stage::new();
    stage.put(LimitSpec::named("t").with(ItemSpec::of(Policy::Total, 10)));
    assert!(granted(stage.limiter.ask_all("t").try_acquire()).into_lease().is_none());
    assert!(granted(stage.limiter.ask_all("t").hold().peek()).lease().is_none(), "nor for a peek");
}

#[test]
fn bad_questions_are_rejected_and_leave_no_trace() {
    let stage = Stage::with_slots(2);
    stage.put(LimitSpec::named("keyed").with(slots_of(2).per_key()));
    let limiter = &stage.limiter;
    let rejected = |question: tidegate::Request<'_>| match question.try_acquire() {
        Err(AcquireError::Invalid(rejection)) => rejection,
        other => panic!("{other:?}"),
    };
    let century = seconds(36_525 * 86_400);
    for ttl in [Duration::ZERO, Duration::from_micros(999), century + Duration::from_nanos(1), Duration::MAX]
    {
        assert_eq!(rejected(limiter.ask("l", "u").ttl(ttl)), OrderError::TtlOutOfRange, "{ttl:?}");
    }
    assert_eq!(rejected(limiter.ask("keyed", &[b'k'; 1025])), OrderError::KeyTooLong { bytes: 1025 });
    assert_eq!(rejected(limiter.ask("keyed", &vec![b'k'; 65_536])), OrderError::KeyTooLong { bytes: 65_536 });
    assert_eq!(rejected(limiter.ask_all("keyed")), OrderError::KeyMissing { limit_id: "keyed".into() });
    assert_eq!(rejected(limiter.ask_all("nobody")), OrderError::UnknownLimit { limit_id: "nobody".into() });
    assert_eq!(rejected(limiter.asks(&[])), OrderError::AsksOutOfRange { asks: 0 });
    assert_eq!(rejected(limiter.asks(&[Ask::one("l", None); 33])), OrderError::AsksOutOfRange { asks: 33 });
    assert_eq!(rejected(limiter.ask("l", "u").request_id("")), OrderError::RequestIdOutOfRange { bytes: 0 });
    stage.ends_with(0);
}

#[test]
fn extreme_questions_are_values() {
    let stage = Stage::with_slots(2);
    stage.put(LimitSpec::named("keyed").with(slots_of(2).per_key()));
    let limiter = &stage.limiter;
    assert!(limiter.ask("keyed", "").try_acquire().is_granted(), "an empty key is a key");
    assert!(limiter.ask("keyed", &[b'k'; 1024]).try_acquire().is_granted());
    for count in [3, Amount::MAX] {
        assert_eq!(denied(limiter.ask("l", "u").count(count).try_acquire()).wait(), Wait::Never);
    }
    assert!(granted(limiter.ask("l", "u").count(0).try_acquire()).into_lease().is_none());
    let century = lease(granted(limiter.ask("l", "u").ttl(seconds(36_525 * 86_400)).try_acquire()));
    let brief = lease(granted(limiter.ask("l", "u").ttl(Duration::from_millis(1)).try_acquire()));
    let mut lost = Handheld::new(century.lost()).starts();
    stage.pass(Duration::from_millis(1));
    assert!(!brief.is_held() && century.is_held());
    assert_eq!(lost.run(), Poll::Pending);
    stage.ends_with(1);
    drop(century);
    stage.ends_with(0);
}

#[test]
fn denials_speak_of_what_refused() {
    let stage = Stage::with_slots(1);
    stage.put(
        LimitSpec::named("b").with(ItemSpec::of(Policy::Bucket { window: seconds(10), burst: None }, 1)),
    );
    assert!(stage.limiter.ask_all("b").try_acquire().is_granted());
    let denial = denied(stage.limiter.ask_all("b").readings().try_acquire());
    assert_eq!((denial.limit_id(), denial.item()), ("b", "all/bucket-10s"));
    assert_eq!((denial.at(), denial.retry_after()), (at(Duration::ZERO), Some(seconds(10))));
    assert_eq!(denial.readings()[0].reading.used, 1);
    assert_eq!(denial.to_string(), "all/bucket-10s of limit 'b' refused; retry after 10s");
    let lease = stage.take(1);
    let denial = denied(stage.limiter.ask_all("l").try_acquire());
    assert_eq!((denial.wait(), denial.retry_after()), (Wait::OnRelease, None));
    assert!(denial.readings().is_empty());
    drop(lease);
    stage.ends_with(0);
}

/// The task that keeps a lease needs a runtime; time is still moved by hand.
async fn let_others_run() {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_kept_lease_is_renewed_every_third_of_its_life_until_it_is_dropped() {
    let stage = Stage::with_slots(1);
    let lease = stage.take(1);
    lease.keep_alive();
    lease.keep_alive();
    let_others_run().await;
    for step in 1..=20 {
        stage.pass(seconds(20));
        let_others_run().await;
        assert_eq!(lease.expires_at(), at(seconds(20 * step + 60)));
        assert!(lease.is_held());
    }
    drop(lease);
    let_others_run().await;
    stage.ends_with(0);
    assert_eq!(stage.pulse.sleepers(), 0, "nobody keeps it any more");
}

#[tokio::test]
async fn a_kept_lease_follows_its_holder() {
    let stage = Stage::with_slots(1);
    let lease = stage.take(1);
    lease.keep_alive();
    let_others_run().await;
    assert_eq!(lease.renew(seconds(6)), Ok(Renewal::Until(at(seconds(6)))));
    let_others_run().await;
    stage.pass(seconds(2));
    let_others_run().await;
    assert_eq!(lease.expires_at(), at(seconds(62)), "renewed after a third of what was left");
    assert_eq!(lease.renew(seconds(3600)), Ok(Renewal::Until(at(seconds(3602)))));
    let_others_run().await;
    for _ in 0..100 {
        stage.pass(seconds(20));
        let_others_run().await;
        assert_eq!(lease.expires_at(), at(seconds(3602)), "an hour is not cut short");
    }
    for _ in 0..100 {
        stage.pass(seconds(20));
        let_others_run().await;
        assert!(lease.is_held(), "nor is it the end");
    }
    assert_eq!(lease.expires_at(), at(seconds(4062)));
    drop(lease);
    let_others_run().await;
    stage.ends_with(0);
    assert_eq!(stage.pulse.sleepers(), 0, "nobody keeps it any more");
}

#[tokio::test]
async fn keeping_ends_when_the_lease_is_lost() {
    let stage = Stage::with_slots(1);
    let lease = stage.take(1);
    lease.keep_alive();
    let_others_run().await;
    let mut lost = Handheld::new(lease.lost()).starts();
    assert!(stage.limiter.release(lease.id()));
    stage.pass(seconds(20));
    let_others_run().await;
    lost.is_done();
    assert!(!lease.is_held());
    let other = stage.take(1);
    drop(lease);
    stage.pass(seconds(20));
    let_others_run().await;
    stage.ends_with(1);
    drop(other);
    stage.ends_with(0);
}

#[tokio::test]
async fn a_kept_lease_that_slept_too_long_is_lost() {
    let stage = Stage::with_slots(1);
    let lease = stage.take(1);
    lease.keep_alive();
    let_others_run().await;
    let mut lost = Handheld::new(lease.lost()).starts();
    stage.pulse.suspend(seconds(61));
    stage.clock.advance(seconds(61));
    stage.pulse.advance(Duration::ZERO);
    let_others_run().await;
    lost.is_done();
    drop(lease);
    stage.ends_with(0);
}

#[tokio::test]
async fn the_machines_own_pulse_ends_sleeps_in_time() {
    use tidegate::limiter::{HolderClock, SystemHolderClock};
    let pulse = SystemHolderClock;
    let before = pulse.now();
    pulse.sleep_until(before.plus(Duration::from_millis(5))).await;
    assert!(pulse.now().since(before) >= Duration::from_millis(5));
    pulse.sleep_until(before).await;
}
