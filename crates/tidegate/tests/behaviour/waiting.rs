//! Wait queues: waiters are served in arrival order, woken only by relevant events, and removed without a trace.

#[path = "waiting/batches.rs"]
mod batches;
#[path = "waiting/cancellation.rs"]
mod cancellation;
#[path = "waiting/random_histories.rs"]
mod random_histories;
#[path = "waiting/threads.rs"]
mod threads;
#[path = "waiting/wakeups.rs"]
mod wakeups;

use std::time::Duration;

use tidegate::model::{Amount, Ask, ItemSpec, LimitSpec, Policy, Wait};
use tidegate::reply::OrderError;
use tidegate::{AcquireError, Lease};

use super::{LimiterFixture, Store};
use crate::fixture::{DecisionExt, HandleExt, Waiter, at, denied, granted, lease, seconds, slots_of};

/// A bucket of one unit every ten seconds.
fn bucket() -> ItemSpec {
    ItemSpec::of(Policy::Bucket { window: seconds(10), burst: None }, 1)
}

/// Polls woken waiters, latest arrival first, until none is woken. Returns the served ones in order of service.
fn run_all(waiters: &mut Vec<(usize, Waiter)>) -> Vec<(usize, Lease)> {
    let mut served = Vec::new();
    while let Some(place) = waiters.iter().rposition(|(_, waiter)| waiter.is_woken()) {
        if let std::task::Poll::Ready(answer) = waiters[place].1.run() {
            let (name, _) = waiters.remove(place);
            served.push((name, lease(granted(answer))));
        }
    }
    served
}

#[test]
fn waiter_with_free_slot_is_granted_at_once() {
    let fixture = LimiterFixture::with_slots(1);
    let mut waiter = fixture.wait(1, seconds(10));
    let std::task::Poll::Ready(Ok(granted)) = waiter.poll() else { panic!("it is free") };
    assert_eq!((waiter.polls, fixture.limiter.waiting_in_all()), (1, 0));
    drop(granted);
    fixture.ends_with(0);
}

#[test]
fn waiters_are_served_in_arrival_order() {
    let fixture = LimiterFixture::with_slots(10);
    let weights: Vec<Amount> = (0..60).map(|n| 1 + n * 7 % 10).collect();
    let mut held = vec![fixture.take(10)];
    let wait = |(name, weight): (usize, &Amount)| (name, fixture.wait(*weight, seconds(60)).starts());
    let mut waiters: Vec<(usize, Waiter)> = weights.iter().enumerate().map(wait).collect();
    assert_eq!((fixture.limiter.waiting("l"), fixture.limiter.waiting_in_all()), (60, 60));
    let mut order = Vec::new();
    while !waiters.is_empty() {
        assert!(!held.is_empty(), "a waiter is queued although no slot is held");
        drop(held.remove(0));
        for (name, lease) in run_all(&mut waiters) {
            order.push(name);
            held.push(lease);
        }
    }
    assert!(order.is_sorted() && order.len() == 60, "{order:?}");
    drop(held);
    fixture.ends_with(0);
}

#[test]
fn stopped_waiter_gets_current_decision() {
    let fixture = LimiterFixture::with_slots(1);
    let held = fixture.take(1);
    let (mut first, mut second) =
        (fixture.wait(1, seconds(60)).starts(), fixture.wait(1, seconds(60)).starts());
    second.stop_waiting();
    first.stop_waiting();
    for waiter in [&mut second, &mut first] {
        let std::task::Poll::Ready(Err(AcquireError::Refused(denial))) = waiter.poll() else {
            panic!("it waits")
        };
        assert_eq!(denial.wait(), Wait::OnRelease);
    }
    let mut late = fixture.wait(1, seconds(60));
    late.stop_waiting();
    drop(held);
    assert!(matches!(late.poll(), std::task::Poll::Ready(Ok(_))), "what is free is granted");
    fixture.ends_with(0);
}

#[test]
fn release_wakes_only_first_waiter() {
    let fixture = LimiterFixture::with_slots(1);
    let mut held = fixture.take(1);
    let mut waiters: Vec<Waiter> = (0..100).map(|_| fixture.wait(1, seconds(60)).starts()).collect();
    for served in 0..100 {
        drop(held);
        held = lease(waiters[served].expect_granted());
        let woken = waiters[served + 1..].iter().filter(|waiter| waiter.is_woken()).count();
        assert!(woken <= 1, "{woken} were woken by one release");
        if let Some(next) = waiters.get_mut(served + 1) {
            next.expect_pending();
        }
    }
    let most = waiters.iter().map(|waiter| waiter.polls).max();
    assert!(most <= Some(3), "came, moved up, was served: {most:?} polls");
    drop(held);
    fixture.ends_with(0);
}

#[test]
fn waiter_queries_store_only_when_woken() {
    let fixture = LimiterFixture::with_slots(1);
    let held = fixture.take(1);
    let mut waiter = fixture.wait(1, seconds(60)).starts();
    fixture.clock.advance(Duration::from_secs(3600));
    for _ in 0..10 {
        assert!(waiter.poll().is_pending(), "the lease has expired, but no event occurred");
    }
    fixture.holder_clock.advance(seconds(60));
    drop(waiter.expect_granted());
    assert!(!held.release());
    fixture.ends_with(0);
}

#[test]
fn large_request_at_queue_head_is_not_overtaken() {
    let fixture = LimiterFixture::with_slots(5);
    fixture.put(LimitSpec::named("m").with(slots_of(1)));
    let held = fixture.take(3);
    let mut large = fixture.wait(4, seconds(60)).starts();
    let mut small = fixture.wait(1, seconds(60)).starts();
    let denial = denied(fixture.limiter.handle("l").of("u").try_acquire());
    assert_eq!(
        denial.wait(),
        Wait::OnRelease,
        "the store reports a wait, but earlier waiters make it unknown"
    );
    assert!(denial.by().is_none());
    assert_eq!((denial.limit_id(), denial.item()), ("l", "all/concurrency"));
    assert!(fixture.limiter.handle("l").of("u").peek().is_granted(), "a peek overtakes no waiter");
    assert!(fixture.limiter.handle("m").without_key().try_acquire().is_granted(), "other rows do not notice");
    let std::task::Poll::Ready(Ok(other)) = fixture.wait_for("m", "u", 1, seconds(60)).poll() else {
        panic!()
    };
    drop(other);
    drop(held);
    let large = large.expect_granted();
    let small = small.expect_granted();
    drop((large, small));
    fixture.ends_with(0);
}

#[test]
fn zero_timeout_matches_store_decision() {
    let fixture = LimiterFixture::with_slots(1);
    let held = fixture.take(1);
    let waiter = fixture.wait(1, seconds(60)).starts();
    let denial = denied(fixture.limiter.handle("l").of("u").try_acquire());
    assert_eq!((denial.wait(), denial.by().is_some()), (Wait::OnRelease, true));
    assert_eq!(denied(fixture.limiter.handle("l").of("u").count(9).try_acquire()).wait(), Wait::Never);
    drop(waiter);
    drop(held);
    fixture.ends_with(0);
}

#[test]
fn waiters_of_different_keys_are_independent() {
    let fixture = LimiterFixture::with_slots(1);
    fixture.put(LimitSpec::named("keyed").with(slots_of(1).per_key()));
    let take = |key| lease(granted(fixture.limiter.handle("keyed").of(key).try_acquire()));
    let ada = take("ada");
    let mut waiter = fixture.wait_for("keyed", "ada", 1, seconds(60)).starts();
    let bob = take("bob");
    assert!(!fixture.limiter.handle("keyed").of("ada").try_acquire().is_granted());
    drop(bob);
    waiter.expect_pending();
    assert_eq!(waiter.polls, 1, "what others give back is nothing to it");
    drop(ada);
    drop(waiter.expect_granted());
    fixture.ends_with(0);
}

/// Two slots in total, one per key.
fn shared_and_keyed() -> LimiterFixture {
    let fixture = LimiterFixture::new();
    fixture.put(LimitSpec::named("l").with(slots_of(2)).with(slots_of(1).per_key()));
    fixture
}

#[test]
fn waiter_blocked_on_own_key_lets_others_pass() {
    let fixture = shared_and_keyed();
    let take = |key| fixture.limiter.handle("l").of(key).try_acquire();
    let ada = lease(granted(take("ada")));
    let mut patient = fixture.wait_for("l", "ada", 1, seconds(60)).starts();
    let mut another = fixture.wait_for("l", "ada", 1, seconds(60)).starts();
    drop(granted(take("bob")));
    let std::task::Poll::Ready(Ok(bob)) = fixture.wait_for("l", "bob", 1, seconds(60)).poll() else {
        panic!()
    };
    let bob = lease(bob);
    assert!(!take("cid").is_granted(), "no more than two");
    // Bob's other slot goes to ada, who arrived before cid, as soon as her own slot is free.
    let mut cid = fixture.wait_for("l", "cid", 1, seconds(60)).starts();
    drop(ada);
    let ada = patient.expect_granted();
    another.expect_pending();
    cid.expect_pending();
    drop(bob);
    another.expect_pending();
    let cid = cid.expect_granted();
    drop(ada);
    drop(another.expect_granted());
    drop(cid);
    let mut eve = fixture.wait_for("l", "eve", 1, seconds(60));
    assert!(eve.poll().is_ready());
    assert_eq!(fixture.limiter.waiting_in_all(), 0);
}

#[test]
fn waiter_that_let_others_pass_keeps_position() {
    let fixture = shared_and_keyed();
    let take = |key| lease(granted(fixture.limiter.handle("l").of(key).try_acquire()));
    let ada = take("ada");
    let mut patient = fixture.wait_for("l", "ada", 1, seconds(60)).starts();
    let bob = take("bob");
    let mut cid = fixture.wait_for("l", "cid", 1, seconds(60)).starts();
    // Ada's key is free again, but dan holds the global slot. She now waits for it ahead of cid.
    fixture.put(LimitSpec::named("l").with(slots_of(1)).with(slots_of(1).per_key()));
    drop(ada);
    assert!(patient.run().is_pending());
    assert!(cid.run().is_pending());
    drop(bob);
    cid.expect_pending();
    let ada = patient.expect_granted();
    cid.expect_pending();
    drop(ada);
    drop(cid.expect_granted());
    assert_eq!(fixture.limiter.waiting_in_all(), 0);
}

#[test]
fn woken_waiter_blocks_later_waiters_again() {
    let fixture = shared_and_keyed();
    let take = |key| fixture.limiter.handle("l").of(key).try_acquire();
    let ada = lease(granted(take("ada")));
    let mut patient = fixture.wait_for("l", "ada", 1, seconds(60)).starts();
    assert!(take("bob").is_granted(), "she lets bob pass");
    drop(ada);
    assert!(!take("bob").is_granted(), "but not once her own is free");
    drop(patient.expect_granted());
    assert!(take("bob").is_granted());
    assert_eq!(fixture.limiter.waiting_in_all(), 0);
}

#[test]
fn sets_in_opposite_order_do_not_deadlock() {
    let fixture = LimiterFixture::with_slots(1);
    fixture.put(LimitSpec::named("m").with(slots_of(1)));
    let there = [Ask::one("l", None), Ask::one("m", None)];
    let back = [Ask::one("m", None), Ask::one("l", None)];
    let mut held = Some(lease(granted(fixture.limiter.request(&there).try_acquire())));
    let mut waiters: Vec<Waiter> = (0..20)
        .map(|n| if n % 2 == 0 { &there } else { &back })
        .map(|asks| Waiter::new(fixture.limiter.request(asks).within(seconds(60))).starts())
        .collect();
    let mut lone = fixture.wait_for("m", "u", 1, seconds(60)).starts();
    assert_eq!((fixture.limiter.waiting("l"), fixture.limiter.waiting("m")), (20, 21));
    for waiter in &mut waiters {
        drop(held.take());
        held = Some(lease(waiter.expect_granted()));
        lone.expect_pending();
    }
    drop(held);
    drop(lone.expect_granted());
    fixture.ends_with(0);
}

#[test]
fn set_waits_for_all_rows() {
    let fixture = LimiterFixture::with_slots(1);
    fixture.put(LimitSpec::named("m").with(slots_of(1)));
    let both = [Ask::one("l", None), Ask::one("m", None)];
    let (l, m) = (fixture.take(1), lease(granted(fixture.limiter.handle("m").without_key().try_acquire())));
    let mut set = Waiter::new(fixture.limiter.request(&both).within(seconds(60))).starts();
    let mut behind = fixture.wait(1, seconds(60)).starts();
    drop(l);
    set.expect_pending();
    behind.expect_pending();
    drop(m);
    drop(set.expect_granted());
    drop(behind.expect_granted());
    fixture.ends_with(0);
}

#[test]
fn full_queue_refuses_waiter() {
    let fixture = LimiterFixture::with_bounds(3, 2);
    fixture.put(LimitSpec::named("l").with(slots_of(1)));
    fixture.put(LimitSpec::named("m").with(slots_of(1)));
    let held = [fixture.take(1), lease(granted(fixture.limiter.handle("m").without_key().try_acquire()))];
    let at_l: Vec<Waiter> = (0..2).map(|_| fixture.wait(1, seconds(60)).starts()).collect();
    let refused = |mut waiter: Waiter| match waiter.poll() {
        std::task::Poll::Ready(answer) => denied(answer).wait(),
        std::task::Poll::Pending => panic!("it waits in a full queue"),
    };
    assert_eq!(refused(fixture.wait(1, seconds(60))), Wait::OnRelease, "the row is full");
    let at_m = fixture.wait_for("m", "u", 1, seconds(60)).starts();
    assert_eq!(refused(fixture.wait_for("m", "u", 1, seconds(60))), Wait::OnRelease, "the limiter is full");
    assert_eq!(fixture.limiter.waiting_in_all(), 3);
    drop(at_m);
    assert_eq!((fixture.limiter.waiting("l"), fixture.limiter.waiting("m")), (2, 0));
    drop(fixture.wait_for("m", "u", 1, seconds(60)).starts());
    drop(at_l);
    drop(held);
    fixture.ends_with(0);
}

#[test]
fn request_above_capacity_is_refused_at_once() {
    let fixture = LimiterFixture::with_slots(2);
    fixture.put(LimitSpec::named("t").with(ItemSpec::of(Policy::Total, 1)));
    let refused = |limit_id: &str, count| match fixture.wait_for(limit_id, "u", count, seconds(60)).poll() {
        std::task::Poll::Ready(answer) => denied(answer).wait(),
        std::task::Poll::Pending => panic!("it waits for nothing"),
    };
    assert_eq!(
        (refused("l", 3), refused("l", Amount::MAX), refused("t", 2)),
        (Wait::Never, Wait::Never, Wait::Never)
    );
    let held = fixture.take(2);
    let first = fixture.wait(1, seconds(60)).starts();
    assert_eq!(refused("l", 3), Wait::Never, "nor at the end of a queue");
    drop((first, held));
    fixture.ends_with(0);
}

#[test]
fn invalid_timeout_or_request_is_error() {
    let fixture = LimiterFixture::with_slots(1);
    let rejected = |mut waiter: Waiter| match waiter.poll() {
        std::task::Poll::Ready(Err(AcquireError::Invalid(rejection))) => rejection,
        other => panic!("{other:?}"),
    };
    for timeout in [seconds(60) + Duration::from_nanos(1), Duration::MAX] {
        assert_eq!(rejected(fixture.wait(1, timeout)), OrderError::PatienceOutOfRange);
    }
    let unknown = OrderError::UnknownLimit { limit_id: "nobody".into() };
    let asks = [Ask::one("nobody", Some(b"u"))];
    assert_eq!(rejected(Waiter::new(fixture.limiter.request(&asks).within(seconds(1)))), unknown);
    let held = fixture.take(1);
    let first = fixture.wait(1, seconds(60)).starts();
    assert_eq!(
        rejected(fixture.wait(1, Duration::MAX)),
        OrderError::PatienceOutOfRange,
        "also behind others"
    );
    drop((held, first));
    fixture.ends_with(0);
}

#[test]
fn timeout_counts_from_call() {
    let fixture = LimiterFixture::with_slots(1);
    let held = fixture.take(1);
    let mut late = fixture.wait(1, seconds(5));
    fixture.pass(seconds(5));
    let std::task::Poll::Ready(Err(AcquireError::Refused(denial))) = late.poll() else {
        panic!("its timeout is over")
    };
    assert_eq!(denial.wait(), Wait::OnRelease);
    let mut hasty = fixture.wait(1, Duration::ZERO);
    assert!(hasty.poll().is_ready());
    drop(held);
    fixture.ends_with(0);
}

#[test]
fn waiter_is_refused_at_timeout() {
    let fixture = LimiterFixture::with_slots(1);
    let held = fixture.take(1);
    let mut first = fixture.wait(1, seconds(5)).starts();
    let mut second = fixture.wait(1, seconds(5)).starts();
    fixture.pass(Duration::from_nanos(4_999_999_999));
    first.expect_pending();
    second.expect_pending();
    fixture.pass(Duration::from_nanos(1));
    assert_eq!(second.expect_refused().wait(), Wait::OnRelease);
    assert_eq!(first.expect_refused().wait(), Wait::OnRelease);
    assert!(first.polls <= 3 && second.polls <= 3);
    drop(held);
    fixture.ends_with(0);
}

#[test]
fn blocked_waiter_is_refused_at_timeout() {
    let fixture = LimiterFixture::with_slots(3);
    let held = fixture.take(2);
    let mut large = fixture.wait(3, seconds(30)).starts();
    let mut small = fixture.wait(1, seconds(5)).starts();
    fixture.pass(seconds(5));
    let denial = small.expect_refused();
    assert_eq!((denial.wait(), denial.by()), (Wait::OnRelease, None));
    drop(held);
    drop(large.expect_granted());
    fixture.ends_with(0);
}

#[test]
fn wait_above_timeout_is_refused_at_once() {
    let fixture = LimiterFixture::with_slots(1);
    fixture.put(LimitSpec::named("b").with(bucket()));
    assert!(fixture.limiter.handle("b").without_key().try_acquire().is_granted());
    let mut short = fixture.wait_for("b", "u", 1, Duration::from_nanos(9_999_999_999));
    let std::task::Poll::Ready(Err(AcquireError::Refused(denial))) = short.poll() else {
        panic!("the wait is above the timeout")
    };
    assert_eq!(denial.retry_after(), Some(seconds(10)));
    let mut exact = fixture.wait_for("b", "u", 1, seconds(10)).starts();
    fixture.pass(Duration::from_nanos(9_999_999_999));
    exact.expect_pending();
    fixture.pass(Duration::from_nanos(1));
    assert_eq!(
        exact.expect_granted().at(),
        Some(at(seconds(10))),
        "at the reported instant, exactly at its timeout"
    );
    assert_eq!(exact.polls, 2);
    fixture.ends_with(0);
}
