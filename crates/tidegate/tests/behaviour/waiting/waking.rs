//! What wakes those who wait.

use std::time::Duration;

use tidegate::AcquireError;
use tidegate::catalog::{Catalog, RemovalMode};
use tidegate::limiter::Renewal;
use tidegate::model::{ItemSpec, LimitSpec, Mode, Policy, Wait};
use tidegate::reply::OrderError;
use tidegate::store::{Actual, Settlement, Store};

use super::{Stage, bucket};
use crate::stage::{DecisionExt, at, decided, denied, granted, lease, seconds, slots_of};

#[test]
fn a_release() {
    let stage = Stage::with_slots(1);
    let held = stage.take(1);
    let mut waiter = stage.wait(1, seconds(60)).starts();
    assert!(held.release());
    drop(waiter.is_served());
    stage.ends_with(0);
}

#[test]
fn a_release_by_id() {
    let stage = Stage::with_slots(1);
    let id = stage.take(1).into_id();
    let mut waiter = stage.wait(1, seconds(60)).starts();
    assert!(stage.limiter.release(id));
    drop(waiter.is_served());
    let adopted = stage.take(1).into_id();
    let mut waiter = stage.wait(1, seconds(60)).starts();
    let adopted = stage.limiter.adopt(adopted, seconds(60)).unwrap();
    waiter.still_waits();
    drop(adopted);
    drop(waiter.is_served());
    stage.ends_with(0);
}

#[test]
fn a_release_by_id_calls_only_those_who_wait_for_it() {
    let stage = Stage::with_slots(1);
    stage.put(LimitSpec::named("m").with(slots_of(1)));
    let id = stage.take(1).into_id();
    let elsewhere = lease(granted(stage.limiter.ask_all("m").try_acquire()));
    let mut here = stage.wait(1, seconds(60)).starts();
    let mut there = stage.wait_for("m", "u", 1, seconds(60)).starts();
    assert!(stage.limiter.release(id));
    assert!(!there.is_woken());
    drop(here.is_served());
    drop(elsewhere);
    drop(there.is_served());
    stage.ends_with(0);
}

#[test]
fn time() {
    let stage = Stage::with_slots(1);
    stage.put(LimitSpec::named("b").with(bucket()));
    assert!(stage.limiter.ask_all("b").try_acquire().is_granted());
    let mut waiters: Vec<_> = (0..5).map(|_| stage.wait_for("b", "u", 1, seconds(60)).starts()).collect();
    for (n, waiter) in (1..).zip(&mut waiters) {
        stage.pass(seconds(10));
        assert_eq!(waiter.is_served().at(), Some(at(seconds(10 * n))));
    }
    let polls: Vec<usize> = waiters.iter().map(|waiter| waiter.polls).collect();
    assert!(polls.iter().all(|polls| *polls <= 3), "{polls:?}: came, moved up, was served");
    stage.ends_with(0);
}

#[test]
fn a_lapse() {
    let stage = Stage::with_slots(2);
    std::mem::forget(stage.take(1));
    stage.pass(seconds(20));
    let kept = stage.take(1);
    let mut waiter = stage.wait(1, seconds(60)).starts();
    stage.pass(Duration::from_nanos(39_999_999_999));
    waiter.still_waits();
    stage.pass(Duration::from_nanos(1));
    drop(waiter.is_served());
    drop(kept);
    stage.ends_with(0);
}

#[test]
fn every_lapse_that_is_needed() {
    let stage = Stage::with_slots(2);
    std::mem::forget(stage.take(1));
    stage.pass(seconds(20));
    std::mem::forget(stage.take(1));
    let mut waiter = stage.wait(2, seconds(60)).starts();
    stage.pass(seconds(40));
    waiter.still_waits();
    stage.pass(seconds(20));
    drop(waiter.is_served());
    assert!(waiter.polls <= 4);
    stage.ends_with(0);
}

#[test]
fn a_lapse_that_was_put_off_is_waited_for_anew() {
    let stage = Stage::with_slots(1);
    let held = stage.take(1);
    stage.pass(seconds(50));
    let mut waiter = stage.wait(1, seconds(60)).starts();
    assert_eq!(held.renew(seconds(60)), Ok(Renewal::Until(at(seconds(110)))));
    stage.pass(seconds(10));
    waiter.still_waits();
    stage.pass(seconds(50));
    drop(waiter.is_served());
    drop(held);
    stage.ends_with(0);
}

#[test]
fn a_renewal_that_brings_the_lapse_nearer() {
    let stage = Stage::with_slots(1);
    let held = stage.take(1);
    let mut waiter = stage.wait(1, seconds(30)).starts();
    held.renew(seconds(5)).unwrap();
    waiter.still_waits();
    stage.pass(seconds(5));
    drop(waiter.is_served());
    drop(held);
    let by_id = stage.take(1).into_id();
    let mut waiter = stage.wait(1, seconds(30)).starts();
    assert_eq!(stage.limiter.renew(by_id, Some(seconds(1))), Ok(Renewal::Until(at(seconds(6)))));
    waiter.still_waits();
    stage.pass(seconds(1));
    drop(waiter.is_served());
    assert_eq!(stage.limiter.renew(by_id, None), Ok(Renewal::Gone));
    stage.ends_with(0);
}

#[test]
fn a_settlement() {
    let stage = Stage::with_slots(1);
    stage.put(LimitSpec::named("t").with(ItemSpec::of(Policy::Interval { window: seconds(3600) }, 10)));
    let held = lease(granted(stage.limiter.ask_all("t").count(10).hold().try_acquire()));
    let mut waiter = stage.wait_for("t", "u", 4, seconds(60)).starts();
    let mut other = stage.wait_for("t", "u", 4, seconds(60)).starts();
    assert_eq!(held.settle(Actual::Every(6)), Ok(Settlement::Settled));
    drop(waiter.is_served());
    let denial = other.is_refused();
    assert_eq!(
        denial.retry_after(),
        Some(seconds(3600)),
        "no hold is open any more, and an hour is too long"
    );
    stage.ends_with(0);
}

/// A hold could give something back until it lapses, whoever has it; after that nobody waits for it.
#[test]
fn a_hold_that_lapses() {
    let stage = Stage::with_slots(1);
    stage.put(LimitSpec::named("t").with(ItemSpec::of(Policy::Interval { window: seconds(3600) }, 10)));
    let asked = stage.limiter.ask_all("t").count(10).hold().ttl(seconds(5)).try_acquire();
    let held = lease(granted(asked));
    let mut waiter = stage.wait_for("t", "u", 4, seconds(60)).starts();
    stage.pass(seconds(4));
    assert_eq!(held.renew(seconds(3)), Ok(Renewal::Until(at(seconds(7)))));
    std::mem::forget(held);
    stage.pass(seconds(2));
    waiter.still_waits();
    stage.pass(seconds(1));
    assert_eq!(waiter.is_refused().retry_after(), Some(seconds(3593)));
    let late = stage.wait_for("t", "u", 4, seconds(60)).is_answered();
    assert!(!late.is_granted(), "there is nothing to wait for");
    stage.ends_with(0);
}

#[test]
fn nobody_who_asks_for_nothing() {
    let stage = Stage::with_slots(4);
    let held = stage.take(2);
    let mut waiter = stage.wait(4, seconds(30)).starts();
    assert!(!stage.is_free(), "somebody waits for what is left");
    assert!(stage.limiter.ask("l", "u").count(0).try_acquire().is_granted(), "it overtakes nobody");
    assert!(stage.wait(0, seconds(30)).is_answered().is_granted());
    waiter.still_waits();
    drop(held);
    drop(waiter.is_served());
    stage.ends_with(0);
}

#[test]
fn a_reset_of_all() {
    let stage = Stage::with_slots(1);
    stage.put(LimitSpec::named("b").with(bucket()));
    assert!(stage.limiter.ask_all("b").try_acquire().is_granted());
    let mut waiter = stage.wait_for("b", "u", 1, seconds(60)).starts();
    stage.limiter.reset("b", None).unwrap();
    drop(waiter.is_served());
    let unknown = AcquireError::Invalid(OrderError::UnknownLimit { limit_id: "nobody".into() });
    assert_eq!(stage.limiter.reset("nobody", None), Err(unknown));
    stage.ends_with(0);
}

#[test]
fn a_reset_of_one_key() {
    let stage = Stage::with_slots(1);
    stage.put(LimitSpec::named("b").with(bucket().per_key()));
    let ask = |key| stage.limiter.ask("b", key).try_acquire().is_granted();
    assert!(ask("ada") && ask("bob"));
    let mut ada = stage.wait_for("b", "ada", 1, seconds(60)).starts();
    let mut bob = stage.wait_for("b", "bob", 1, seconds(60)).starts();
    stage.limiter.reset("b", Some(b"ada")).unwrap();
    drop(ada.is_served());
    bob.still_waits();
    assert_eq!(bob.polls, 1);
    drop(bob);
    stage.ends_with(0);
}

#[test]
fn an_edit_that_gives_more() {
    let stage = Stage::with_slots(1);
    let held = stage.take(1);
    let mut first = stage.wait(1, seconds(60)).starts();
    let mut second = stage.wait(1, seconds(60)).starts();
    stage.put(LimitSpec::named("l").with(slots_of(3)));
    second.still_waits();
    let first = first.is_served();
    let second = second.is_served();
    drop((held, first, second));
    stage.ends_with(0);
}

#[test]
fn an_edit_that_gives_too_little() {
    let stage = Stage::with_slots(4);
    let held = stage.take(4);
    let mut small = stage.wait(1, seconds(60)).starts();
    let mut large = stage.wait(4, seconds(60)).starts();
    stage.put(LimitSpec::named("l").with(slots_of(3)));
    small.still_waits();
    assert_eq!(large.is_refused().wait(), Wait::Never, "wherever it stood");
    drop(held);
    drop(small.is_served());
    stage.ends_with(0);
}

#[test]
fn an_edit_that_refuses_nothing() {
    let stage = Stage::with_slots(1);
    let held = stage.take(1);
    let mut waiter = stage.wait(1, seconds(60)).starts();
    stage.put(LimitSpec { mode: Mode::Shadow, ..LimitSpec::named("l").with(slots_of(1)) });
    let granted = waiter.is_served();
    assert_eq!(granted.shadowed().len(), 1);
    drop((granted, held));
    stage.put(LimitSpec::named("l").with(slots_of(1)));
    stage.ends_with(0);
}

#[test]
fn an_edit_to_other_rows_keeps_the_order() {
    let stage = Stage::with_slots(1);
    let held = stage.take(1);
    let mut ada = stage.wait_for("l", "ada", 1, seconds(60)).starts();
    let mut bob = stage.wait_for("l", "bob", 1, seconds(60)).starts();
    stage.put(LimitSpec::named("l").with(slots_of(1)).with(slots_of(1).per_key()));
    bob.still_waits();
    ada.still_waits();
    bob.still_waits();
    drop(held);
    bob.still_waits();
    let ada = ada.is_served();
    bob.still_waits();
    drop(ada);
    drop(bob.is_served());
    assert_eq!(stage.limiter.waiting_in_all(), 0);
}

#[test]
fn an_edit_after_which_they_are_in_nobodys_way() {
    let stage = Stage::with_slots(1);
    let held = stage.take(1);
    let mut ada = stage.wait_for("l", "ada", 1, seconds(60)).starts();
    let mut bob = stage.wait_for("l", "bob", 1, seconds(60)).starts();
    stage.put(LimitSpec::named("l").with(slots_of(1).per_key()));
    drop(bob.is_served());
    drop(ada.is_served());
    drop(held);
    assert_eq!(stage.limiter.waiting_in_all(), 0);
    stage.ends_with(0);
}

#[test]
fn an_edit_after_which_they_are_in_each_others_way() {
    let stage = Stage::new();
    stage.put(LimitSpec::named("l").with(slots_of(2).per_key()));
    let ada = lease(granted(stage.limiter.ask("l", "ada").count(2).try_acquire()));
    let mut waits = stage.wait_for("l", "ada", 2, seconds(60)).starts();
    let bob = lease(granted(stage.limiter.ask("l", "bob").try_acquire()));
    // What all keys hold is counted from now on, by a name that did not count before.
    stage.put(LimitSpec::named("l").with(slots_of(2)));
    let first = waits.is_served();
    let mut cid = stage.wait_for("l", "cid", 2, seconds(60)).starts();
    assert!(!stage.limiter.ask("l", "dan").try_acquire().is_granted());
    drop(first);
    assert!(!stage.limiter.ask("l", "dan").try_acquire().is_granted(), "cid came first");
    drop(cid.is_served());
    drop((ada, bob));
    stage.ends_with(0);
}

#[test]
fn a_removal_with_the_rejection() {
    let stage = Stage::with_slots(1);
    let held = stage.take(1);
    let mut first = stage.wait(1, seconds(60)).starts();
    let mut second = stage.wait(1, seconds(60)).starts();
    assert!(stage.store.remove("l", RemovalMode::Forget));
    let unknown = AcquireError::Invalid(OrderError::UnknownLimit { limit_id: "l".into() });
    assert_eq!(second.is_rejected(), unknown);
    assert_eq!(first.is_rejected(), unknown);
    drop(held);
    stage.put(LimitSpec::named("l").with(slots_of(1)));
    stage.ends_with(0);
}

#[test]
fn room_for_a_new_key() {
    let stage = Stage::with_slots(1);
    stage.put(LimitSpec { max_keys: Some(1), ..LimitSpec::named("few").with(slots_of(1).per_key()) });
    let ada = lease(granted(stage.limiter.ask("few", "ada").try_acquire()));
    let denial = denied(stage.limiter.ask("few", "bob").try_acquire());
    assert!(denial.is_degraded() && denial.by().is_some());
    let mut bob = stage.wait_for("few", "bob", 1, seconds(60)).starts();
    let mut cid = stage.wait_for("few", "cid", 1, seconds(60)).starts();
    drop(ada);
    let bob = bob.is_served();
    cid.still_waits();
    drop(bob);
    drop(cid.is_served());
    stage.ends_with(0);
}

#[test]
fn nothing_that_happens_behind_the_limiter_but_time_heals_it() {
    let stage = Stage::with_slots(1);
    let held = stage.take(1);
    let mut waiter = stage.wait(1, seconds(60)).starts();
    assert!(decided(stage.store.release(held.id())));
    waiter.still_waits();
    stage.pass(seconds(60));
    drop(waiter.is_served());
    drop(held);
    stage.ends_with(0);
}

#[test]
fn a_machine_that_wakes_up() {
    let stage = Stage::with_slots(1);
    let held = stage.take(1);
    let mut waiter = stage.wait(1, seconds(10)).starts();
    stage.pulse.suspend(seconds(3600));
    stage.clock.advance(seconds(3600));
    assert!(!waiter.is_woken());
    stage.pulse.advance(Duration::ZERO);
    drop(waiter.is_served());
    drop(held);
    stage.ends_with(0);
}
