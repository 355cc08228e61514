//! Bounds of keys and leases, and what outlives a limit.

use std::time::Duration;

use tidegate::catalog::RemovalMode;
use tidegate::model::{Ask, Hold, ItemSpec, LimitSpec, Mode, Order, Policy, Wait};
use tidegate::reply::{OrderError, OrderReply};
use tidegate::store::Settlement;

use super::decisions::{sliding, total};
use super::{Behaviour, StoreFixture, denied, lease};

pub(super) const ALL: &[Behaviour] = &[
    ("lowered_max_keys_counts_only_live_keys", lowered_max_keys_counts_only_live_keys),
    ("full_limit_with_held_key_waits_on_release", full_limit_with_held_key_waits_on_release),
    ("full_shadow_limit_charges_nothing", full_shadow_limit_charges_nothing),
    ("zero_ask_beside_lease_needs_no_row", zero_ask_beside_lease_needs_no_row),
    ("rows_of_ended_limit_are_dropped", rows_of_ended_limit_are_dropped),
    ("renewal_ttl_out_of_range_is_error", renewal_ttl_out_of_range_is_error),
    ("lease_is_gone_with_its_limit", lease_is_gone_with_its_limit),
    ("lease_survives_removal_of_one_of_its_limits", lease_survives_removal_of_one_of_its_limits),
];

fn ask<'a>(limit_id: &'a str, key: &'a str, count: u64) -> Ask<'a> {
    Ask { limit_id, key: Some(key.as_bytes()), count }
}

fn acquire(fixture: &StoreFixture, asks: &[Ask<'_>], hold: Hold) -> OrderReply {
    fixture.submit(Order { hold, ..Order::acquire(asks) }).unwrap().0
}

fn concurrency(limit: u64) -> ItemSpec {
    ItemSpec::of(Policy::Concurrency { ttl: Duration::from_secs(60) }, limit)
}

fn lowered_max_keys_counts_only_live_keys(fixture: &StoreFixture) {
    let bounded =
        |most| LimitSpec { max_keys: Some(most), ..LimitSpec::named("l").with(sliding(5, 10).per_key()) };
    fixture.add(bounded(2));
    assert!(fixture.granted("l", "a", 1));
    fixture.pass_seconds(5);
    assert!(fixture.granted("l", "b", 1));
    fixture.edit(bounded(1));
    assert!(fixture.granted("l", "a", 1), "known keys are exact");
    fixture.pass(Duration::from_nanos(10_000_000_001));
    assert!(fixture.granted("l", "b", 1));
    assert!(fixture.take("l", "a", 1).degraded, "a key that was forgotten is new");
}

fn full_limit_with_held_key_waits_on_release(fixture: &StoreFixture) {
    fixture.add(LimitSpec { max_keys: Some(1), ..LimitSpec::named("l").with(total(5).per_key()) });
    let held = acquire(fixture, &[ask("l", "a", 0)], Hold::Yes);
    let answer = acquire(fixture, &[ask("l", "a", 0), ask("l", "b", 1)], Hold::No);
    assert!(answer.degraded);
    assert_eq!(denied(&answer).wait, Wait::OnRelease, "a release makes room");
    assert!(fixture.store.release(lease(&held).lease).decided());
    assert!(fixture.granted("l", "b", 1));
    assert_eq!(denied(&fixture.take("l", "a", 1)).wait, Wait::Never, "a total never comes back");
}

fn full_shadow_limit_charges_nothing(fixture: &StoreFixture) {
    let spec = LimitSpec::named("w").with(total(9)).with(total(9).per_key());
    fixture.add(LimitSpec { mode: Mode::Shadow, max_keys: Some(1), ..spec });
    assert!(fixture.granted("w", "a", 1));
    for hold in [Hold::No, Hold::Yes] {
        let answer = acquire(fixture, &[ask("w", "b", 2)], hold);
        assert!(answer.is_granted() && !answer.degraded);
        assert_eq!(answer.shadowed.iter().map(|limit| limit.id()).collect::<Vec<_>>(), ["w"]);
        assert_eq!(fixture.used("w", "a", "all/total"), 1, "none of its items was charged");
    }
    fixture.store.reset("w", Some(b"a")).decided().unwrap();
    let answer = fixture.take("w", "c", 1);
    assert!(answer.shadowed.is_empty(), "a key that was not charged has no row");
}

fn zero_ask_beside_lease_needs_no_row(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("slots").with(concurrency(5)));
    fixture.add(LimitSpec { max_keys: Some(1), ..LimitSpec::named("l").with(total(5).per_key()) });
    let answer = acquire(fixture, &[ask("slots", "a", 1), ask("l", "a", 0)], Hold::No);
    assert_eq!(lease(&answer).fences.len(), 1, "the lease holds nothing of the limit asked for zero");
    assert!(fixture.granted("l", "b", 1), "and takes no row there");
}

fn rows_of_ended_limit_are_dropped(fixture: &StoreFixture) {
    let ends = |seconds| LimitSpec {
        ends_at: Some(Duration::from_secs(seconds)),
        max_keys: Some(1),
        ..LimitSpec::named("l").with(total(10).per_key())
    };
    fixture.add(ends(10));
    acquire(fixture, &[ask("l", "a", 8)], Hold::Yes);
    fixture.pass_seconds(10);
    fixture.edit(ends(1000));
    assert!(fixture.granted("l", "b", 1), "a limit that starts again has room");
    fixture.pass_seconds(60);
    assert!(fixture.take("l", "a", 1).degraded, "the limit is full again");
}

fn renewal_ttl_out_of_range_is_error(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("l").with(concurrency(3)));
    let answer = fixture.take("l", "u", 1);
    let renew = |ttl| fixture.store.renew(lease(&answer).lease, Some(ttl)).decided();
    let century = Duration::from_secs(36_525 * 86_400);
    for ttl in [Duration::ZERO, century + Duration::from_secs(1), Duration::MAX] {
        assert_eq!(renew(ttl), Err(OrderError::TtlOutOfRange));
    }
    fixture.pass_seconds(59);
    assert!(matches!(renew(century), Ok(Some(_))), "the rejected renewals changed nothing");
    fixture.pass_seconds(1_000_000);
    assert_eq!(fixture.used("l", "u", "all/concurrency"), 1);
}

fn lease_is_gone_with_its_limit(fixture: &StoreFixture) {
    let spec = || LimitSpec::named("l").with(concurrency(2)).with(total(5));
    fixture.add(spec());
    let [released, renewed, settled] = [(); 3].map(|()| acquire(fixture, &[ask("l", "u", 0)], Hold::Yes));
    let held = acquire(fixture, &[ask("l", "u", 1)], Hold::Yes);
    let fence = lease(&held).fences[0].1;
    assert!(fixture.store.remove("l", RemovalMode::Forget));
    assert!(!fixture.store.release(lease(&released).lease).decided(), "the lease is gone");
    fixture.add(spec());
    assert_eq!(fixture.store.renew(lease(&renewed).lease, None).decided(), Ok(None));
    assert_eq!(
        fixture.store.settle(lease(&settled).lease, tidegate::store::Actual::Every(4)).decided(),
        Ok(Settlement::Gone)
    );
    assert_eq!(fixture.used("l", "u", "all/total"), 0, "the new limit starts clean");
    let next = fixture.take("l", "u", 1);
    assert!(lease(&next).fences[0].1 > fence, "fences rise all the same");
    assert!(!fixture.store.release(lease(&held).lease).decided());
    assert_eq!(fixture.used("l", "u", "all/concurrency"), 1);
}

fn lease_survives_removal_of_one_of_its_limits(fixture: &StoreFixture) {
    for id in ["a", "b", "c"] {
        fixture.add(LimitSpec::named(id).with(concurrency(1)));
    }
    let both = acquire(fixture, &[ask("a", "u", 1), ask("b", "u", 1)], Hold::No);
    let other = acquire(fixture, &[ask("c", "u", 1)], Hold::No);
    assert!(fixture.store.remove("a", RemovalMode::Forget) && fixture.store.remove("c", RemovalMode::Retire));
    assert!(!fixture.granted("b", "u", 1), "the slot is still held");
    assert!(fixture.store.release(lease(&both).lease).decided());
    assert!(fixture.granted("b", "u", 1));
    assert!(fixture.store.release(lease(&other).lease).decided(), "a retired limit may come back");
}
