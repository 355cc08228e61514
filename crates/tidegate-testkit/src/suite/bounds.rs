//! Bounds: how many keys, how long a lease, and what outlives a limit.

use std::time::Duration;

use tidegate::catalog::RemovalMode;
use tidegate::model::{Ask, Hold, ItemSpec, LimitSpec, Mode, Order, Policy, Wait};
use tidegate::reply::{OrderError, OrderReply};
use tidegate::store::Settlement;

use super::decisions::{sliding, total};
use super::{Behaviour, Bench, denied, lease};

pub(super) const ALL: &[Behaviour] = &[
    ("a_lowered_bound_counts_only_live_keys", a_lowered_bound_counts_only_live_keys),
    ("a_holder_in_the_same_order_can_make_room", a_holder_in_the_same_order_can_make_room),
    ("a_watching_limit_without_room_charges_nothing", a_watching_limit_without_room_charges_nothing),
    ("a_look_beside_a_lease_needs_no_room", a_look_beside_a_lease_needs_no_room),
    ("what_ended_keeps_no_room", what_ended_keeps_no_room),
    ("renewals_have_bounds", renewals_have_bounds),
    ("a_lease_goes_with_its_limit", a_lease_goes_with_its_limit),
    ("a_lease_stays_with_what_is_left", a_lease_stays_with_what_is_left),
];

fn ask<'a>(limit_id: &'a str, key: &'a str, count: u64) -> Ask<'a> {
    Ask { limit_id, key: Some(key.as_bytes()), count }
}

fn acquire(bench: &Bench, asks: &[Ask<'_>], hold: Hold) -> OrderReply {
    bench.submit(Order { hold, ..Order::acquire(asks) }).unwrap().0
}

fn concurrency(limit: u64) -> ItemSpec {
    ItemSpec::of(Policy::Concurrency { ttl: Duration::from_secs(60) }, limit)
}

fn a_lowered_bound_counts_only_live_keys(bench: &Bench) {
    let bounded =
        |most| LimitSpec { max_keys: Some(most), ..LimitSpec::named("l").with(sliding(5, 10).per_key()) };
    bench.add(bounded(2));
    assert!(bench.granted("l", "a", 1));
    bench.pass_seconds(5);
    assert!(bench.granted("l", "b", 1));
    bench.edit(bounded(1));
    assert!(bench.granted("l", "a", 1), "known keys are exact");
    bench.pass(Duration::from_nanos(10_000_000_001));
    assert!(bench.granted("l", "b", 1));
    assert!(bench.take("l", "a", 1).degraded, "a key that was forgotten is new");
}

fn a_holder_in_the_same_order_can_make_room(bench: &Bench) {
    bench.add(LimitSpec { max_keys: Some(1), ..LimitSpec::named("l").with(total(5).per_key()) });
    let held = acquire(bench, &[ask("l", "a", 0)], Hold::Yes);
    let answer = acquire(bench, &[ask("l", "a", 0), ask("l", "b", 1)], Hold::No);
    assert!(answer.degraded);
    assert_eq!(denied(&answer).wait, Wait::OnRelease, "somebody can give it back, whoever asks");
    assert!(bench.store.release(lease(&held).lease).decided());
    assert!(bench.granted("l", "b", 1));
    assert_eq!(denied(&bench.take("l", "a", 1)).wait, Wait::Never, "a total never comes back");
}

fn a_watching_limit_without_room_charges_nothing(bench: &Bench) {
    let spec = LimitSpec::named("w").with(total(9)).with(total(9).per_key());
    bench.add(LimitSpec { mode: Mode::Shadow, max_keys: Some(1), ..spec });
    assert!(bench.granted("w", "a", 1));
    for hold in [Hold::No, Hold::Yes] {
        let answer = acquire(bench, &[ask("w", "b", 2)], hold);
        assert!(answer.is_granted() && !answer.degraded);
        assert_eq!(answer.shadowed.iter().map(|limit| limit.id()).collect::<Vec<_>>(), ["w"]);
        assert_eq!(bench.used("w", "a", "all/total"), 1, "none of its items was charged");
    }
    bench.store.reset("w", Some(b"a")).decided().unwrap();
    let answer = bench.take("w", "c", 1);
    assert!(answer.shadowed.is_empty(), "what was not charged took no room either");
}

fn a_look_beside_a_lease_needs_no_room(bench: &Bench) {
    bench.add(LimitSpec::named("slots").with(concurrency(5)));
    bench.add(LimitSpec { max_keys: Some(1), ..LimitSpec::named("l").with(total(5).per_key()) });
    let answer = acquire(bench, &[ask("slots", "a", 1), ask("l", "a", 0)], Hold::No);
    assert_eq!(lease(&answer).fences.len(), 1, "it holds nothing of what it only looked at");
    assert!(bench.granted("l", "b", 1), "and keeps no room there");
}

fn what_ended_keeps_no_room(bench: &Bench) {
    let ends = |seconds| LimitSpec {
        ends_at: Some(Duration::from_secs(seconds)),
        max_keys: Some(1),
        ..LimitSpec::named("l").with(total(10).per_key())
    };
    bench.add(ends(10));
    acquire(bench, &[ask("l", "a", 8)], Hold::Yes);
    bench.pass_seconds(10);
    bench.edit(ends(1000));
    assert!(bench.granted("l", "b", 1), "what begins again begins with room");
    bench.pass_seconds(60);
    assert!(bench.take("l", "a", 1).degraded, "one key is one key");
}

fn renewals_have_bounds(bench: &Bench) {
    bench.add(LimitSpec::named("l").with(concurrency(3)));
    let answer = bench.take("l", "u", 1);
    let renew = |ttl| bench.store.renew(lease(&answer).lease, Some(ttl)).decided();
    let century = Duration::from_secs(36_525 * 86_400);
    for ttl in [Duration::ZERO, century + Duration::from_secs(1), Duration::MAX] {
        assert_eq!(renew(ttl), Err(OrderError::TtlOutOfRange));
    }
    bench.pass_seconds(59);
    assert!(matches!(renew(century), Ok(Some(_))), "what was rejected changed nothing");
    bench.pass_seconds(1_000_000);
    assert_eq!(bench.used("l", "u", "all/concurrency"), 1);
}

fn a_lease_goes_with_its_limit(bench: &Bench) {
    let spec = || LimitSpec::named("l").with(concurrency(2)).with(total(5));
    bench.add(spec());
    let [released, renewed, settled] = [(); 3].map(|()| acquire(bench, &[ask("l", "u", 0)], Hold::Yes));
    let held = acquire(bench, &[ask("l", "u", 1)], Hold::Yes);
    let fence = lease(&held).fences[0].1;
    assert!(bench.store.remove("l", RemovalMode::Forget));
    assert!(!bench.store.release(lease(&released).lease).decided(), "there is nothing to give back");
    bench.add(spec());
    assert_eq!(bench.store.renew(lease(&renewed).lease, None).decided(), Ok(None));
    assert_eq!(
        bench.store.settle(lease(&settled).lease, tidegate::store::Actual::Every(4)).decided(),
        Ok(Settlement::Gone)
    );
    assert_eq!(bench.used("l", "u", "all/total"), 0, "the new limit starts clean");
    let next = bench.take("l", "u", 1);
    assert!(lease(&next).fences[0].1 > fence, "fences rise all the same");
    assert!(!bench.store.release(lease(&held).lease).decided());
    assert_eq!(bench.used("l", "u", "all/concurrency"), 1);
}

fn a_lease_stays_with_what_is_left(bench: &Bench) {
    for id in ["a", "b", "c"] {
        bench.add(LimitSpec::named(id).with(concurrency(1)));
    }
    let both = acquire(bench, &[ask("a", "u", 1), ask("b", "u", 1)], Hold::No);
    let other = acquire(bench, &[ask("c", "u", 1)], Hold::No);
    assert!(bench.store.remove("a", RemovalMode::Forget) && bench.store.remove("c", RemovalMode::Retire));
    assert!(!bench.granted("b", "u", 1), "it is still held");
    assert!(bench.store.release(lease(&both).lease).decided());
    assert!(bench.granted("b", "u", 1));
    assert!(bench.store.release(lease(&other).lease).decided(), "a retired limit may come back");
}
