//! Waiting in line: first come first served, woken by what happens and by nothing else, and gone without a trace.

#[path = "waiting/batches.rs"]
mod batches;
#[path = "waiting/cancelling.rs"]
mod cancelling;
#[path = "waiting/stories.rs"]
mod stories;
#[path = "waiting/threads.rs"]
mod threads;
#[path = "waiting/waking.rs"]
mod waking;

use std::time::Duration;

use tidegate::model::{Amount, Ask, ItemSpec, LimitSpec, Policy, Wait};
use tidegate::reply::OrderError;
use tidegate::{AcquireError, Lease};

use super::{Stage, Store};
use crate::stage::{DecisionExt, Waiter, at, denied, granted, lease, seconds, slots_of};

/// A bucket of one unit every ten seconds.
fn bucket() -> ItemSpec {
    ItemSpec::of(Policy::Bucket { window: seconds(10), burst: None }, 1)
}

/// Runs whoever is woken, the last to come first, until nobody is; who was served, in that order.
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
fn who_need_not_wait_does_not() {
    let stage = Stage::with_slots(1);
    let mut waiter = stage.wait(1, seconds(10));
    let std::task::Poll::Ready(Ok(granted)) = waiter.poll() else { panic!("it is free") };
    assert_eq!((waiter.polls, stage.limiter.waiting_in_all()), (1, 0));
    drop(granted);
    stage.ends_with(0);
}

#[test]
fn waiters_are_served_in_the_order_they_came() {
    let stage = Stage::with_slots(10);
    let weights: Vec<Amount> = (0..60).map(|n| 1 + n * 7 % 10).collect();
    let mut held = vec![stage.take(10)];
    let wait = |(name, weight): (usize, &Amount)| (name, stage.wait(*weight, seconds(60)).starts());
    let mut waiters: Vec<(usize, Waiter)> = weights.iter().enumerate().map(wait).collect();
    assert_eq!((stage.limiter.waiting("l"), stage.limiter.waiting_in_all()), (60, 60));
    let mut order = Vec::new();
    while !waiters.is_empty() {
        assert!(!held.is_empty(), "somebody waits and nobody holds");
        drop(held.remove(0));
        for (name, lease) in run_all(&mut waiters) {
            order.push(name);
            held.push(lease);
        }
    }
    assert!(order.is_sorted() && order.len() == 60, "{order:?}");
    drop(held);
    stage.ends_with(0);
}

#[test]
fn who_is_hurried_is_answered_as_things_stand() {
    let stage = Stage::with_slots(1);
    let held = stage.take(1);
    let (mut first, mut second) = (stage.wait(1, seconds(60)).starts(), stage.wait(1, seconds(60)).starts());
    second.stop_waiting();
    first.stop_waiting();
    for waiter in [&mut second, &mut first] {
        let std::task::Poll::Ready(Err(AcquireError::Refused(denial))) = waiter.poll() else {
            panic!("it waits")
        };
        assert_eq!(denial.wait(), Wait::OnRelease);
    }
    let mut late = stage.wait(1, seconds(60));
    late.stop_waiting();
    drop(held);
    assert!(matches!(late.poll(), std::task::Poll::Ready(Ok(_))), "what is free is granted");
    stage.ends_with(0);
}

#[test]
fn a_release_wakes_only_those_who_may_be_served() {
    let stage = Stage::with_slots(1);
    let mut held = stage.take(1);
    let mut waiters: Vec<Waiter> = (0..100).map(|_| stage.wait(1, seconds(60)).starts()).collect();
    for served in 0..100 {
        drop(held);
        held = lease(waiters[served].is_served());
        let woken = waiters[served + 1..].iter().filter(|waiter| waiter.is_woken()).count();
        assert!(woken <= 1, "{woken} were woken by one release");
        if let Some(next) = waiters.get_mut(served + 1) {
            next.still_waits();
        }
    }
    let most = waiters.iter().map(|waiter| waiter.polls).max();
    assert!(most <= Some(3), "came, moved up, was served: {most:?} polls");
    drop(held);
    stage.ends_with(0);
}

#[test]
fn nobody_looks_unless_called() {
    let stage = Stage::with_slots(1);
    let held = stage.take(1);
    let mut waiter = stage.wait(1, seconds(60)).starts();
    stage.clock.advance(Duration::from_secs(3600));
    for _ in 0..10 {
        assert!(waiter.poll().is_pending(), "the lease has lapsed, but nobody has called");
    }
    stage.pulse.advance(seconds(60));
    drop(waiter.is_served());
    assert!(!held.release());
    stage.ends_with(0);
}

#[test]
fn a_head_that_wants_more_than_is_free_is_not_overtaken() {
    let stage = Stage::with_slots(5);
    stage.put(LimitSpec::named("m").with(slots_of(1)));
    let held = stage.take(3);
    let mut large = stage.wait(4, seconds(60)).starts();
    let mut small = stage.wait(1, seconds(60)).starts();
    let denial = denied(stage.limiter.ask("l", "u").try_acquire());
    assert_eq!(
        denial.wait(),
        Wait::OnRelease,
        "the store would, but others wait, and nobody knows for how long"
    );
    assert!(denial.by().is_none());
    assert_eq!((denial.limit_id(), denial.item()), ("l", "all/concurrency"));
    assert!(stage.limiter.ask("l", "u").peek().is_granted(), "a look takes nobody's place");
    assert!(stage.limiter.ask_all("m").try_acquire().is_granted(), "other rows do not notice");
    let std::task::Poll::Ready(Ok(other)) = stage.wait_for("m", "u", 1, seconds(60)).poll() else { panic!() };
    drop(other);
    drop(held);
    let large = large.is_served();
    let small = small.is_served();
    drop((large, small));
    stage.ends_with(0);
}

#[test]
fn impatience_is_told_what_the_store_would_say() {
    let stage = Stage::with_slots(1);
    let held = stage.take(1);
    let waiter = stage.wait(1, seconds(60)).starts();
    let denial = denied(stage.limiter.ask("l", "u").try_acquire());
    assert_eq!((denial.wait(), denial.by().is_some()), (Wait::OnRelease, true));
    assert_eq!(denied(stage.limiter.ask("l", "u").count(9).try_acquire()).wait(), Wait::Never);
    drop(waiter);
    drop(held);
    stage.ends_with(0);
}

#[test]
fn keys_do_not_wait_for_each_other() {
    let stage = Stage::with_slots(1);
    stage.put(LimitSpec::named("keyed").with(slots_of(1).per_key()));
    let take = |key| lease(granted(stage.limiter.ask("keyed", key).try_acquire()));
    let ada = take("ada");
    let mut waiter = stage.wait_for("keyed", "ada", 1, seconds(60)).starts();
    let bob = take("bob");
    assert!(!stage.limiter.ask("keyed", "ada").try_acquire().is_granted());
    drop(bob);
    waiter.still_waits();
    assert_eq!(waiter.polls, 1, "what others give back is nothing to it");
    drop(ada);
    drop(waiter.is_served());
    stage.ends_with(0);
}

/// Two slots for all, one for each key.
fn shared_and_keyed() -> Stage {
    let stage = Stage::new();
    stage.put(LimitSpec::named("l").with(slots_of(2)).with(slots_of(1).per_key()));
    stage
}

#[test]
fn who_waits_for_their_own_key_lets_others_pass() {
    let stage = shared_and_keyed();
    let take = |key| stage.limiter.ask("l", key).try_acquire();
    let ada = lease(granted(take("ada")));
    let mut patient = stage.wait_for("l", "ada", 1, seconds(60)).starts();
    let mut another = stage.wait_for("l", "ada", 1, seconds(60)).starts();
    drop(granted(take("bob")));
    let std::task::Poll::Ready(Ok(bob)) = stage.wait_for("l", "bob", 1, seconds(60)).poll() else { panic!() };
    let bob = lease(bob);
    assert!(!take("cid").is_granted(), "no more than two");
    // Bob's other slot goes to ada, who came before cid, as soon as her own is free.
    let mut cid = stage.wait_for("l", "cid", 1, seconds(60)).starts();
    drop(ada);
    let ada = patient.is_served();
    another.still_waits();
    cid.still_waits();
    drop(bob);
    another.still_waits();
    let cid = cid.is_served();
    drop(ada);
    drop(another.is_served());
    drop(cid);
    let mut eve = stage.wait_for("l", "eve", 1, seconds(60));
    assert!(eve.poll().is_ready());
    assert_eq!(stage.limiter.waiting_in_all(), 0);
}

#[test]
fn who_let_others_pass_has_kept_their_place() {
    let stage = shared_and_keyed();
    let take = |key| lease(granted(stage.limiter.ask("l", key).try_acquire()));
    let ada = take("ada");
    let mut patient = stage.wait_for("l", "ada", 1, seconds(60)).starts();
    let bob = take("bob");
    let mut cid = stage.wait_for("l", "cid", 1, seconds(60)).starts();
    // Ada's key is free again, but dan has taken her slot of all keys: she waits for that now, before cid.
    stage.put(LimitSpec::named("l").with(slots_of(1)).with(slots_of(1).per_key()));
    drop(ada);
    assert!(patient.run().is_pending());
    assert!(cid.run().is_pending());
    drop(bob);
    cid.still_waits();
    let ada = patient.is_served();
    cid.still_waits();
    drop(ada);
    drop(cid.is_served());
    assert_eq!(stage.limiter.waiting_in_all(), 0);
}

#[test]
fn who_was_called_stands_before_others_again_at_once() {
    let stage = shared_and_keyed();
    let take = |key| stage.limiter.ask("l", key).try_acquire();
    let ada = lease(granted(take("ada")));
    let mut patient = stage.wait_for("l", "ada", 1, seconds(60)).starts();
    assert!(take("bob").is_granted(), "she lets bob pass");
    drop(ada);
    assert!(!take("bob").is_granted(), "but not once her own is free");
    drop(patient.is_served());
    assert!(take("bob").is_granted());
    assert_eq!(stage.limiter.waiting_in_all(), 0);
}

#[test]
fn sets_from_both_sides_do_not_block_each_other() {
    let stage = Stage::with_slots(1);
    stage.put(LimitSpec::named("m").with(slots_of(1)));
    let there = [Ask::one("l", None), Ask::one("m", None)];
    let back = [Ask::one("m", None), Ask::one("l", None)];
    let mut held = Some(lease(granted(stage.limiter.asks(&there).try_acquire())));
    let mut waiters: Vec<Waiter> = (0..20)
        .map(|n| if n % 2 == 0 { &there } else { &back })
        .map(|asks| Waiter::new(stage.limiter.asks(asks).within(seconds(60))).starts())
        .collect();
    let mut lone = stage.wait_for("m", "u", 1, seconds(60)).starts();
    assert_eq!((stage.limiter.waiting("l"), stage.limiter.waiting("m")), (20, 21));
    for waiter in &mut waiters {
        drop(held.take());
        held = Some(lease(waiter.is_served()));
        lone.still_waits();
    }
    drop(held);
    drop(lone.is_served());
    stage.ends_with(0);
}

#[test]
fn a_set_waits_for_all_its_rows() {
    let stage = Stage::with_slots(1);
    stage.put(LimitSpec::named("m").with(slots_of(1)));
    let both = [Ask::one("l", None), Ask::one("m", None)];
    let (l, m) = (stage.take(1), lease(granted(stage.limiter.ask_all("m").try_acquire())));
    let mut set = Waiter::new(stage.limiter.asks(&both).within(seconds(60))).starts();
    let mut behind = stage.wait(1, seconds(60)).starts();
    drop(l);
    set.still_waits();
    behind.still_waits();
    drop(m);
    drop(set.is_served());
    drop(behind.is_served());
    stage.ends_with(0);
}

#[test]
fn queues_have_bounds() {
    let stage = Stage::with_bounds(3, 2);
    stage.put(LimitSpec::named("l").with(slots_of(1)));
    stage.put(LimitSpec::named("m").with(slots_of(1)));
    let held = [stage.take(1), lease(granted(stage.limiter.ask_all("m").try_acquire()))];
    let at_l: Vec<Waiter> = (0..2).map(|_| stage.wait(1, seconds(60)).starts()).collect();
    let refused = |mut waiter: Waiter| match waiter.poll() {
        std::task::Poll::Ready(answer) => denied(answer).wait(),
        std::task::Poll::Pending => panic!("it waits in a full queue"),
    };
    assert_eq!(refused(stage.wait(1, seconds(60))), Wait::OnRelease, "the row is full");
    let at_m = stage.wait_for("m", "u", 1, seconds(60)).starts();
    assert_eq!(refused(stage.wait_for("m", "u", 1, seconds(60))), Wait::OnRelease, "the limiter is full");
    assert_eq!(stage.limiter.waiting_in_all(), 3);
    drop(at_m);
    assert_eq!((stage.limiter.waiting("l"), stage.limiter.waiting("m")), (2, 0));
    drop(stage.wait_for("m", "u", 1, seconds(60)).starts());
    drop(at_l);
    drop(held);
    stage.ends_with(0);
}

#[test]
fn what_will_never_fit_is_not_waited_for() {
    let stage = Stage::with_slots(2);
    stage.put(LimitSpec::named("t").with(ItemSpec::of(Policy::Total, 1)));
    let refused = |limit_id: &str, count| match stage.wait_for(limit_id, "u", count, seconds(60)).poll() {
        std::task::Poll::Ready(answer) => denied(answer).wait(),
        std::task::Poll::Pending => panic!("it waits for nothing"),
    };
    assert_eq!(
        (refused("l", 3), refused("l", Amount::MAX), refused("t", 2)),
        (Wait::Never, Wait::Never, Wait::Never)
    );
    let held = stage.take(2);
    let first = stage.wait(1, seconds(60)).starts();
    assert_eq!(refused("l", 3), Wait::Never, "nor at the end of a queue");
    drop((first, held));
    stage.ends_with(0);
}

#[test]
fn bad_patience_and_bad_questions_are_rejected() {
    let stage = Stage::with_slots(1);
    let rejected = |mut waiter: Waiter| match waiter.poll() {
        std::task::Poll::Ready(Err(AcquireError::Invalid(rejection))) => rejection,
        other => panic!("{other:?}"),
    };
    for patience in [seconds(60) + Duration::from_nanos(1), Duration::MAX] {
        assert_eq!(rejected(stage.wait(1, patience)), OrderError::PatienceOutOfRange);
    }
    let unknown = OrderError::UnknownLimit { limit_id: "nobody".into() };
    assert_eq!(rejected(stage.wait_for("nobody", "u", 1, seconds(1))), unknown);
    let held = stage.take(1);
    let first = stage.wait(1, seconds(60)).starts();
    assert_eq!(rejected(stage.wait(1, Duration::MAX)), OrderError::PatienceOutOfRange, "also behind others");
    drop((held, first));
    stage.ends_with(0);
}

#[test]
fn patience_counts_from_the_call() {
    let stage = Stage::with_slots(1);
    let held = stage.take(1);
    let mut late = stage.wait(1, seconds(5));
    stage.pass(seconds(5));
    let std::task::Poll::Ready(Err(AcquireError::Refused(denial))) = late.poll() else {
        panic!("its time is over")
    };
    assert_eq!(denial.wait(), Wait::OnRelease);
    let mut hasty = stage.wait(1, Duration::ZERO);
    assert!(hasty.poll().is_ready());
    drop(held);
    stage.ends_with(0);
}

#[test]
fn patience_ends_where_it_said() {
    let stage = Stage::with_slots(1);
    let held = stage.take(1);
    let mut first = stage.wait(1, seconds(5)).starts();
    let mut second = stage.wait(1, seconds(5)).starts();
    stage.pass(Duration::from_nanos(4_999_999_999));
    first.still_waits();
    second.still_waits();
    stage.pass(Duration::from_nanos(1));
    assert_eq!(second.is_refused().wait(), Wait::OnRelease);
    assert_eq!(first.is_refused().wait(), Wait::OnRelease);
    assert!(first.polls <= 3 && second.polls <= 3);
    drop(held);
    stage.ends_with(0);
}

#[test]
fn who_is_still_behind_at_the_end_is_refused_and_not_served() {
    let stage = Stage::with_slots(3);
    let held = stage.take(2);
    let mut large = stage.wait(3, seconds(30)).starts();
    let mut small = stage.wait(1, seconds(5)).starts();
    stage.pass(seconds(5));
    let denial = small.is_refused();
    assert_eq!((denial.wait(), denial.by()), (Wait::OnRelease, None));
    drop(held);
    drop(large.is_served());
    stage.ends_with(0);
}

#[test]
fn a_wait_beyond_patience_is_refused_at_once() {
    let stage = Stage::with_slots(1);
    stage.put(LimitSpec::named("b").with(bucket()));
    assert!(stage.limiter.ask_all("b").try_acquire().is_granted());
    let mut short = stage.wait_for("b", "u", 1, Duration::from_nanos(9_999_999_999));
    let std::task::Poll::Ready(Err(AcquireError::Refused(denial))) = short.poll() else {
        panic!("waiting is useless")
    };
    assert_eq!(denial.retry_after(), Some(seconds(10)));
    let mut exact = stage.wait_for("b", "u", 1, seconds(10)).starts();
    stage.pass(Duration::from_nanos(9_999_999_999));
    exact.still_waits();
    stage.pass(Duration::from_nanos(1));
    assert_eq!(
        exact.is_served().at(),
        Some(at(seconds(10))),
        "at the promised instant, with its last patience"
    );
    assert_eq!(exact.polls, 2);
    stage.ends_with(0);
}
