//! Handles on one limit: the fast path matches ordinary requests.

use std::sync::Arc;
use std::time::Duration;

use tidegate::clock::ManualClock;
use tidegate::limiter::ManualHolderClock;
use tidegate::model::{Timestamp, Wait};
use tidegate::reply::OrderError;
use tidegate::rule::IntoRules;
use tidegate::store::{Actual, MapStore};
use tidegate::{AcquireError, LimitHandle, Limiter, concurrency, interval, rules, sliding, total};

use crate::counting_store::CountingStore;
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
fn batch_is_one_call_of_the_store() {
    let store = Arc::new(CountingStore::over(Arc::new(MapStore::new(ManualClock::at(Timestamp::EPOCH), 7))));
    let builder = Limiter::builder().store(Arc::clone(&store) as _).limit("l", total(2).per_key());
    let handle = builder.build().expect("valid settings").limit("l").expect("it was put");
    store.asked();
    assert_eq!(handle.try_acquire_batch(&["ada"; 5]).iter().filter(|decision| decision.is_ok()).count(), 2);
    assert_eq!(store.asked(), 1);
}

#[test]
fn refusal_for_want_of_room_is_degraded() {
    for items in [
        vec![total(5).per_key().name("each")],
        vec![interval(5, seconds(9)).per_key().name("each")],
        vec![total(9).name("all"), interval(5, seconds(9)).per_key().name("each")],
    ] {
        let (_limiter, handle) = handle(rules(items).max_keys(1));
        assert!(handle.try_acquire("ada").is_ok());
        let error = handle.try_acquire("bob").expect_err("there is room for one key");
        let refused = error.refused().expect("a refusal");
        assert!(refused.is_degraded(), "{refused:?}");
        assert_eq!(refused.item(), "each");
        let by_request = handle.of("bob").try_acquire().expect_err("there is room for one key");
        assert_eq!(error.refused(), by_request.refused());
        let batch = handle.try_acquire_batch(&["bob"]).remove(0).expect_err("there is room for one key");
        assert_eq!(error.refused(), batch.refused());
        assert!((0..4).all(|_| handle.try_acquire("ada").is_ok()));
        let error = handle.try_acquire("ada").expect_err("five are enough");
        assert!(!error.refused().expect("a refusal").is_degraded());
    }
}

/// The item, the wait and the time of a refusal belong to one decision.
#[test]
fn refusal_of_several_items_equals_that_of_a_request() {
    let (_limiter, handle) =
        handle([interval(3, seconds(5)).name("all"), sliding(2, seconds(60)).per_key().name("each")]);
    assert!(handle.try_acquire("ada").is_ok() && handle.try_acquire("ada").is_ok());
    assert!(handle.try_acquire("bob").is_ok());
    for (key, item, wait) in [("ada", "each", 60), ("bob", "all", 5), ("cid", "all", 5)] {
        let error = handle.try_acquire(key).expect_err("it is full");
        assert_eq!((error.item(), error.retry_after().map(|wait| wait.as_secs())), (item, Some(wait)));
        assert_eq!(error, handle.of(key).try_acquire().expect_err("it is full"));
    }
}

#[test]
fn request_without_key_counts_all_keys_together() {
    let (_limiter, handle) = handle(total(2));
    assert!(handle.without_key().try_acquire().is_ok() && handle.try_acquire("ada").is_ok());
    assert!(handle.without_key().try_acquire().is_err());
}

#[test]
fn request_without_key_of_limit_per_key_is_invalid() {
    let (_limiter, handle) = handle([total(2), total(1).per_key()]);
    let missing = OrderError::KeyMissing { limit_id: "l".to_owned() };
    assert_eq!(handle.without_key().try_acquire().expect_err("no key"), AcquireError::Invalid(missing));
    assert!(handle.try_acquire("").is_ok(), "an empty key is a key");
}

#[test]
fn count_applies_to_every_request_of_a_set() {
    let limiter =
        Limiter::builder().limit("a", total(5)).limit("b", total(3)).build().expect("valid settings");
    let (a, b) = (limiter.limit("a").expect("put"), limiter.limit("b").expect("put"));
    let set = limiter.all([a.without_key().count(2), b.without_key()]);
    assert!(set.try_acquire().is_ok(), "each keeps its count");
    assert!(limiter.all([a.without_key(), b.without_key()]).count(3).try_acquire().is_err());
    assert!(limiter.all([a.without_key(), b.without_key()]).count(2).try_acquire().is_ok());
    assert!(a.without_key().count(2).peek().is_err() && a.without_key().peek().is_ok());
}

#[test]
fn options_of_one_request_apply_to_the_whole_set() {
    let limiter =
        Limiter::builder().limit("a", total(5)).limit("b", total(3)).build().expect("valid settings");
    let (a, b) = (limiter.limit("a").expect("put"), limiter.limit("b").expect("put"));
    let repeated = limiter.all([a.without_key().request_id("r"), b.without_key()]);
    assert!(repeated.try_acquire().is_ok() && repeated.try_acquire().is_ok());
    let held = limiter.all([a.without_key().hold(), b.without_key().readings()]).try_acquire().expect("room");
    let left: Vec<_> = held.readings().iter().map(|item| item.reading.remaining).collect();
    assert_eq!(left, [Some(3), Some(1)], "the repeated request was charged once");
    let lease = held.into_lease().expect("a hold comes with a lease");
    lease.settle(Actual::Each(&[0, 1])).expect("it is held");
    assert!(a.without_key().count(4).peek().is_ok() && b.without_key().count(2).peek().is_err());
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
fn edit_to_shadow_grants_and_names_the_limit() {
    let (limiter, handle) = handle(total(1));
    assert!(handle.try_acquire("").is_ok() && handle.try_acquire("").is_err());
    let mut spec = limiter.store().get("l").expect("put").spec().clone();
    spec.mode = tidegate::model::Mode::Shadow;
    limiter.store().put(spec, tidegate::catalog::ExpectedVersion::Anything).expect("a valid edit");
    let permit = handle.try_acquire("").expect("a shadow limit grants");
    assert_eq!(permit.shadowed()[0].id(), "l");
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
