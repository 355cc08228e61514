//! Batches and waiters: a batch is decided as a whole and does not overtake a waiter.

use tidegate::catalog::ExpectedVersion;
use tidegate::model::{Ask, LimitSpec, Order, Wait};
use tidegate::reply::{Detail, Outcome, Replies};

use super::LimiterFixture;
use crate::fixture::{decided, granted, lease, seconds, slots_of};

/// The wait of each reply, or `None` for a grant.
fn waits(answers: &Replies) -> Vec<Option<Wait>> {
    let wait = |outcome: &Outcome| match outcome {
        Outcome::Granted(_) => None,
        Outcome::Denied(denied) => Some(denied.wait),
    };
    answers.iter().map(|answer| wait(&answer.as_ref().expect("a valid order").outcome)).collect()
}

#[test]
fn batch_without_waiters_matches_store() {
    let fixture = LimiterFixture::with_slots(2);
    let one = [Ask::one("l", None)];
    let orders = [Order::acquire(&one), Order::peek(&one), Order::acquire(&one), Order::acquire(&one)];
    let answers = decided(fixture.limiter.submit(&orders, Replies::new(Detail::Verdicts)));
    assert_eq!(waits(&answers), [None, None, None, Some(Wait::OnRelease)]);
}

#[test]
fn batch_does_not_overtake_or_block_waiters() {
    let fixture = LimiterFixture::with_slots(2);
    let other = LimitSpec::named("other").with(slots_of(5));
    fixture.limiter.store().put(other, ExpectedVersion::Absent).expect("a limit");
    let held = fixture.take(1);
    let mut waiter = fixture.wait(2, seconds(60)).starts();
    let (one, elsewhere) = ([Ask::one("l", None)], [Ask::one("other", None)]);
    let both = [Ask::one("other", None), Ask::one("l", None)];
    let orders = [
        Order::acquire(&one),
        Order::peek(&one),
        Order::acquire(&elsewhere),
        Order::acquire(&both),
        Order::acquire(&one),
    ];
    let answers = decided(fixture.limiter.submit(&orders, Replies::new(Detail::Readings)));
    let behind = Some(Wait::OnRelease);
    assert_eq!(waits(&answers), [behind, None, None, behind, behind], "one slot is free, and promised");
    drop(held);
    drop(lease(waiter.expect_granted()));
    let answers = decided(fixture.limiter.submit(&orders[..1], Replies::new(Detail::Verdicts)));
    assert_eq!(waits(&answers), [None], "now it is their turn");
}

#[test]
fn release_in_store_wakes_waiter_after_notification() {
    let fixture = LimiterFixture::with_slots(1);
    let one = [Ask::one("l", None)];
    let answers = decided(fixture.limiter.submit(&[Order::acquire(&one)], Replies::new(Detail::Verdicts)));
    let answer = answers.get(0).expect("an answer").as_ref().expect("a valid order");
    let Outcome::Granted(Some(grant)) = &answer.outcome else { panic!("it is free") };
    let mut waiter = fixture.wait(1, seconds(60)).starts();
    fixture.limiter.store().release(grant.lease);
    assert!(!waiter.is_woken());
    fixture.limiter.lease_changed(grant.lease);
    drop(granted(waiter.poll_to_end()));
    fixture.ends_with(0);
}
