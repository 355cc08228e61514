//! Handles on one limit: the fast path matches ordinary requests.

use std::time::Duration;

use tidegate::clock::ManualClock;
use tidegate::limiter::ManualHolderClock;
use tidegate::model::{Timestamp, Wait};
use tidegate::reply::OrderError;
use tidegate::store::Actual;
use tidegate::{AcquireError, IntoRules, LimitHandle, Limiter, concurrency, rules, sliding, total};

use crate::fixture::{PolledFuture, seconds};

/// A limiter with one limit `l` and manual clocks.
fn handle(limit: impl IntoRules) -> (Limiter, LimitHandle) {
    let limiter = Limiter::builder()
        .clock(ManualClock::at(Timestamp::from_ticks(1_000_000_000_000)))
        .holder_clock(ManualHolderClock::new())
        .limit("l", limit)
        .build()
        .expect("valid settings");
    let handle = limiter.limit("l").expect("it was put");
    (limiter, handle)
}

#[test]
fn refusal_of_one_item_names_it_and_its_wait() {
    let (limiter, handle) = handle(sliding(2, seconds(15)).per_key().name("tries"));
    assert!(handle.try_acquire("ada").is_ok() && handle.try_acquire("ada").is_ok());
    let error = handle.try_acquire("ada").expect_err("two are enough");
    assert!(error.is_refused());
    assert_eq!((error.limit_id(), error.item()), ("l", "tries"));
    let by_request = handle.of("ada").try_acquire().expect_err("two are enough");
    assert_eq!(error.retry_after(), by_request.retry_after());
    assert!(handle.try_acquire("bob").is_ok());
    let seen = limiter.observe("l").expect("the memory store counts");
    assert_eq!((seen.granted, seen.refused), (3, 2));
}

#[test]
fn refusal_of_several_items_names_one_and_counts_once() {
    let (limiter, handle) = handle([total(5).name("all"), total(1).per_key().name("each")]);
    assert!(handle.try_acquire("ada").is_ok());
    let error = handle.try_acquire("ada").expect_err("one for each key");
    assert_eq!((error.item(), error.retry_after()), ("each", None));
    let seen = limiter.observe("l").expect("the memory store counts");
    assert_eq!((seen.granted, seen.refused), (1, 1));
}

#[test]
fn try_acquire_does_not_overtake_a_waiter() {
    let limiter = Limiter::builder()
        .clock(ManualClock::at(Timestamp::from_ticks(1_000_000_000_000)))
        .holder_clock(ManualHolderClock::new())
        .limit("l", [concurrency(1).name("slots")])
        .limit("m", total(1))
        .build()
        .expect("valid settings");
    let (slots, units) = (limiter.limit("l").expect("put"), limiter.limit("m").expect("put"));
    let held = slots.try_acquire("").expect("it is free");
    // The waiter needs a slot and the only unit of `m`, and is first in line for both.
    let request = limiter.all([slots.of(""), units.of("")]);
    let mut waiter = PolledFuture::new(request.within(seconds(60))).starts();
    let refused = units.try_acquire("").expect_err("a waiter is first");
    let AcquireError::Refused(refused) = refused else { panic!("{refused}") };
    assert_eq!(refused.wait(), Wait::OnRelease);
    drop(held);
    drop(waiter.expect_ready().expect("it is its turn"));
    assert_eq!(units.try_acquire("").expect_err("the waiter took it").retry_after(), None);
}

#[test]
fn dropped_permit_releases_lease() {
    let (_limiter, handle) = handle(concurrency(1));
    let permit = handle.try_acquire("").expect("it is free");
    assert!(permit.lease().is_some());
    assert!(handle.try_acquire("").is_err());
    drop(permit);
    assert!(handle.try_acquire("").is_ok());
}

#[test]
fn set_is_decided_as_one() {
    let limiter = Limiter::builder()
        .limit("a", total(2).per_key())
        .limit("b", total(1).per_key())
        .build()
        .expect("valid settings");
    let (a, b) = (limiter.limit("a").expect("put"), limiter.limit("b").expect("put"));
    assert!(limiter.all([a.of("ada"), b.of("ada")]).try_acquire().is_ok());
    let error = limiter.all([a.of("ada"), b.of("ada")]).try_acquire().expect_err("b has one");
    assert_eq!(error.limit_id(), "b");
    assert!(a.try_acquire("ada").is_ok(), "the refused set charged nothing");
    assert!(a.try_acquire("ada").is_err());
}

#[test]
fn batch_decides_in_the_order_of_its_keys() {
    let (_limiter, handle) = handle(total(2).per_key());
    let decisions = handle.try_acquire_batch(&["ada", "bob", "ada", "ada"]);
    assert_eq!(decisions.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, true, true, false]);
}

#[test]
fn hold_is_settled_to_its_true_cost() {
    let (_limiter, handle) = handle(total(10).per_key());
    let permit = handle.of("ada").count(8).hold().readings().try_acquire().expect("ten are left");
    assert_eq!(permit.readings()[0].reading.remaining, Some(2));
    let lease = permit.into_lease().expect("a hold comes with a lease");
    lease.settle(Actual::Every(3)).expect("it is held");
    let peeked = handle.of("ada").readings().peek().expect("seven are left");
    assert_eq!(peeked.readings()[0].reading.remaining, Some(7));
}

#[test]
fn shadow_limit_grants_and_names_itself() {
    let (limiter, handle) = handle(rules(total(1)).shadow());
    assert!(handle.try_acquire("").expect("one").shadowed().is_empty());
    let permit = handle.try_acquire("").expect("a shadow limit grants");
    assert_eq!(permit.shadowed()[0].id(), "l");
    assert_eq!(limiter.observe("l").expect("counted").shadowed, 1);
}

#[test]
fn override_applies_to_its_key_alone() {
    let (_limiter, handle) = handle(rules(total(1).per_key().name("each")).override_limit("ada", "each", 2));
    assert!(handle.try_acquire("ada").is_ok() && handle.try_acquire("ada").is_ok());
    assert!(handle.try_acquire("ada").is_err());
    assert!(handle.try_acquire("bob").is_ok() && handle.try_acquire("bob").is_err());
}

#[test]
fn edit_to_concurrency_gives_leases_from_then_on() {
    let (limiter, handle) = handle(total(5).name("all"));
    assert!(handle.try_acquire("").expect("five").lease().is_none());
    let edited = limiter.store().get("l").expect("put");
    let mut spec = edited.spec().clone();
    spec.items.push(tidegate::model::ItemSpec::of(
        tidegate::model::Policy::Concurrency { ttl: Duration::from_secs(9) },
        1,
    ));
    limiter.store().put(spec, tidegate::catalog::ExpectedVersion::Anything).expect("a valid edit");
    let permit = handle.try_acquire("").expect("a slot");
    assert!(permit.lease().is_some());
    assert!(handle.try_acquire("").is_err(), "one at a time");
}

#[test]
fn handle_of_removed_limit_is_invalid_until_limit_returns() {
    let (limiter, handle) = handle(total(1));
    assert!(limiter.store().remove("l", tidegate::catalog::RemovalMode::Forget));
    let unknown = OrderError::UnknownLimit { limit_id: "l".to_owned() };
    assert_eq!(handle.try_acquire("").expect_err("it is gone"), AcquireError::Invalid(unknown.clone()));
    assert_eq!(limiter.limit("l").expect_err("it is gone"), unknown);
    let spec = tidegate::model::LimitSpec::named("l")
        .with(tidegate::model::ItemSpec::of(tidegate::model::Policy::Total, 1));
    limiter.store().put(spec, tidegate::catalog::ExpectedVersion::Absent).expect("a valid limit");
    assert!(handle.try_acquire("").is_ok() && handle.try_acquire("").is_err());
}

#[test]
fn permit_and_error_stay_small() {
    assert!(size_of::<tidegate::Permit>() <= 64, "{}", size_of::<tidegate::Permit>());
    assert!(size_of::<AcquireError>() <= 64, "{}", size_of::<AcquireError>());
}

#[test]
fn handle_is_clone_send_and_sync() {
    fn is_shareable<T: Clone + Send + Sync>() {}
    is_shareable::<LimitHandle>();
}
