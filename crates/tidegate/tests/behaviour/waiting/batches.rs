//! Batches beside those who wait: they are decided in one piece, and overtake nobody.

use tidegate::catalog::ExpectedVersion;
use tidegate::model::{Ask, LimitSpec, Order, Wait};
use tidegate::reply::{Detail, Outcome, Replies};

use super::Stage;
use crate::stage::{decided, granted, lease, seconds, slots_of};

/// The waits of an answer each; `None` for what is granted.
fn waits(answers: &Replies) -> Vec<Option<Wait>> {
    let wait = |outcome: &Outcome| match outcome {
        Outcome::Granted(_) => None,
        Outcome::Denied(denied) => Some(denied.wait),
    };
    answers.iter().map(|answer| wait(&answer.as_ref().expect("a sensible order").outcome)).collect()
}

#[test]
fn a_batch_is_decided_as_by_the_store_while_nobody_waits() {
    let stage = Stage::with_slots(2);
    let one = [Ask::one("l", None)];
    let orders = [Order::acquire(&one), Order::peek(&one), Order::acquire(&one), Order::acquire(&one)];
    let answers = decided(stage.limiter.submit(&orders, Replies::new(Detail::Verdicts)));
    assert_eq!(waits(&answers), [None, None, None, Some(Wait::OnRelease)]);
}

#[test]
fn a_batch_overtakes_nobody_and_others_are_not_held_up_by_it() {
    let stage = Stage::with_slots(2);
    let other = LimitSpec::named("other").with(slots_of(5));
    stage.limiter.store().put(other, ExpectedVersion::Absent).expect("a limit");
    let held = stage.take(1);
    let mut waiter = stage.wait(2, seconds(60)).starts();
    let (one, elsewhere) = ([Ask::one("l", None)], [Ask::one("other", None)]);
    let both = [Ask::one("other", None), Ask::one("l", None)];
    let orders = [
        Order::acquire(&one),
        Order::peek(&one),
        Order::acquire(&elsewhere),
        Order::acquire(&both),
        Order::acquire(&one),
    ];
    let answers = decided(stage.limiter.submit(&orders, Replies::new(Detail::Readings)));
    let behind = Some(Wait::OnRelease);
    assert_eq!(waits(&answers), [behind, None, None, behind, behind], "one slot is free, and promised");
    drop(held);
    drop(lease(waiter.is_served()));
    let answers = decided(stage.limiter.submit(&orders[..1], Replies::new(Detail::Verdicts)));
    assert_eq!(waits(&answers), [None], "now it is their turn");
}

#[test]
fn who_waits_is_told_of_leases_that_came_back_to_the_store_itself() {
    let stage = Stage::with_slots(1);
    let one = [Ask::one("l", None)];
    let answers = decided(stage.limiter.submit(&[Order::acquire(&one)], Replies::new(Detail::Verdicts)));
    let answer = answers.get(0).expect("an answer").as_ref().expect("a sensible order");
    let Outcome::Granted(Some(grant)) = &answer.outcome else { panic!("it is free") };
    let mut waiter = stage.wait(1, seconds(60)).starts();
    stage.limiter.store().release(grant.lease);
    assert!(!waiter.is_woken());
    stage.limiter.lease_changed(grant.lease);
    drop(granted(waiter.is_answered()));
    stage.ends_with(0);
}
