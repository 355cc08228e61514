//! Batches and waiters: a batch is decided as a whole and does not overtake a waiter.

use tidegate::catalog::ExpectedVersion;
use tidegate::model::{Ask, ItemSpec, LimitSpec, Order, Policy, Wait};
use tidegate::reply::{Detail, Outcome, Replies};
use tidegate::{AcquireError, Permit};

use super::LimiterFixture;
use crate::fixture::{FixtureStore, HandleExt, decided, granted, lease, seconds, slots_of};

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

/// What a caller sees of a decision: the lease, or the item and the wait, or the error.
fn summary(decision: &Result<Permit, AcquireError>) -> String {
    match decision {
        Ok(permit) => format!("granted at {:?}, lease {}", permit.at(), permit.lease().is_some()),
        Err(AcquireError::Refused(refused)) => {
            format!(
                "{} at {:?}: {:?}, by {}",
                refused.item(),
                refused.at(),
                refused.wait(),
                refused.by().is_some()
            )
        }
        Err(error) => error.to_string(),
    }
}

/// A batch of a handle decides as single requests in the same order do.
#[test]
fn batch_of_handle_matches_single_requests() {
    let prepared = || {
        let fixture = LimiterFixture::with_slots(1);
        let window = Policy::Interval { window: seconds(9) };
        let slots = slots_of(3).per_key();
        fixture.put(LimitSpec::named("keyed").with(slots).with(ItemSpec::of(window, 4)));
        let held = fixture.limiter.handle("keyed").of("bob").count(2).try_acquire();
        // This waiter is first in line for the slots of bob.
        let waiter = fixture.wait_for("keyed", "bob", 2, seconds(60)).starts();
        (fixture, held, waiter)
    };
    let long = "k".repeat(2000);
    let keys = ["ada", "bob", "ada", &long, "bob", "cid", "dan", "ada"];
    let (alone, held, waiter) = prepared();
    let single = alone.limiter.handle("keyed");
    let single: Vec<_> = keys.iter().map(|key| single.of(*key).try_acquire()).collect();
    let (together, held_too, waiter_too) = prepared();
    let batch = together.limiter.handle("keyed").try_acquire_batch(&keys);
    let summaries = |decisions: &[_]| decisions.iter().map(summary).collect::<Vec<_>>();
    assert_eq!(summaries(&batch), summaries(&single));
    assert_eq!(batch.iter().filter(|decision| decision.is_ok()).count(), 2, "{batch:?}");
    let leases = (alone.store.open_leases(), together.store.open_leases());
    assert_eq!(leases, (3, 3));
    drop((single, held, waiter, batch, held_too, waiter_too));
    assert_eq!((alone.store.open_leases(), together.store.open_leases()), (0, 0), "permits own their leases");
}

#[test]
fn empty_batch_of_handle_is_empty() {
    let fixture = LimiterFixture::with_slots(1);
    assert!(fixture.limiter.handle("l").try_acquire_batch::<&str>(&[]).is_empty());
}

#[test]
fn order_for_zero_units_behind_waiter_is_granted() {
    let fixture = LimiterFixture::with_slots(1);
    let held = fixture.take(1);
    let waiter = fixture.wait(1, seconds(60)).starts();
    let nothing = [Ask { count: 0, ..Ask::one("l", None) }];
    let answers =
        decided(fixture.limiter.submit(&[Order::acquire(&nothing)], Replies::new(Detail::Verdicts)));
    assert_eq!(waits(&answers), [None], "it takes nothing and overtakes no waiter");
    drop((held, waiter));
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
