//! Leases: held, released once, and settled to the true cost.

use std::time::Duration;

use tidegate::catalog::RemovalMode;
use tidegate::model::{
    Ask, Charge, Hold, ItemSpec, LeaseId, LimitSpec, Order, Policy, Precision, Timestamp, Unit,
};
use tidegate::reply::{OrderError, OrderReply};
use tidegate::store::{Actual, Settlement};

use super::decisions::{bucket, sliding, total};
use super::{Behaviour, StoreFixture, denied, lease};

pub(super) const ALL: &[Behaviour] = &[
    ("released_lease_cannot_be_released_again", released_lease_cannot_be_released_again),
    ("unrenewed_lease_lapses", unrenewed_lease_lapses),
    ("renewed_lease_lapses_later", renewed_lease_lapses_later),
    ("denial_reports_next_lapse", denial_reports_next_lapse),
    ("fence_of_later_lease_is_higher", fence_of_later_lease_is_higher),
    ("lease_holds_as_many_units_as_asked", lease_holds_as_many_units_as_asked),
    ("reset_keeps_leases_held", reset_keeps_leases_held),
    ("hold_settled_below_estimate_refunds", hold_settled_below_estimate_refunds),
    ("hold_settled_above_estimate_charges_more", hold_settled_above_estimate_charges_more),
    ("repeated_settlement_changes_nothing", repeated_settlement_changes_nothing),
    ("lapsed_hold_keeps_its_charge", lapsed_hold_keeps_its_charge),
    ("settlement_after_reset_refunds_nothing", settlement_after_reset_refunds_nothing),
    ("hold_of_several_asks_settles_each_ask", hold_of_several_asks_settles_each_ask),
    ("settlement_with_wrong_number_of_costs_is_error", settlement_with_wrong_number_of_costs_is_error),
    ("ttl_out_of_range_is_error", ttl_out_of_range_is_error),
    ("deleted_limit_drops_its_leases", deleted_limit_drops_its_leases),
    ("lease_of_ended_limit_returns_nothing", lease_of_ended_limit_returns_nothing),
    ("holders_lists_live_leases", holders_lists_live_leases),
    ("held_until_reports_expiry_of_live_leases", held_until_reports_expiry_of_live_leases),
];

fn concurrency(limit: u64, ttl_seconds: u64) -> ItemSpec {
    ItemSpec::of(Policy::Concurrency { ttl: Duration::from_secs(ttl_seconds) }, limit)
}

fn hold(fixture: &StoreFixture, limit_id: &str, count: u64) -> OrderReply {
    let asks = [Ask { limit_id, key: Some(b"u"), count }];
    fixture.submit(Order { hold: Hold::Yes, ..Order::acquire(&asks) }).unwrap().0
}

fn release(fixture: &StoreFixture, answer: &OrderReply) -> bool {
    fixture.store.release(lease(answer).lease).decided()
}

fn settle(fixture: &StoreFixture, answer: &OrderReply, actual: u64) -> Settlement {
    fixture.store.settle(lease(answer).lease, Actual::Every(actual)).decided().expect("one cost for all")
}

fn holders_lists_live_leases(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("l").with(concurrency(9, 60)).with(concurrency(9, 60).per_key()));
    fixture.add(LimitSpec::named("other").with(sliding(5, 60)));
    let a = fixture.take("l", "u", 1);
    fixture.pass_seconds(10);
    let (b, _c) = (fixture.take("l", "u", 2), fixture.take("l", "v", 1));
    let holders = |key: Option<&[u8]>| fixture.store.holders("l", key).decided().expect("a known limit");
    let ids = |key| holders(key).iter().map(|tenure| tenure.lease).collect::<Vec<_>>();
    assert_eq!(ids(Some(b"u")), [lease(&a).lease, lease(&b).lease], "first to lapse first");
    assert_eq!(holders(Some(b"u"))[0].expires_at, lease(&a).expires_at);
    assert_eq!(ids(None).len(), 3);
    assert!(ids(Some(b"nobody")).is_empty());
    assert!(release(fixture, &b));
    fixture.pass_seconds(49);
    assert_eq!(ids(Some(b"u")), [lease(&a).lease]);
    fixture.pass_seconds(1);
    assert!(ids(Some(b"u")).is_empty(), "what has lapsed is held by nobody");
    assert_eq!(ids(None).len(), 1);
    assert_eq!(fixture.store.holders("other", None).decided(), Ok(Vec::new()), "it holds nothing");
    assert!(matches!(fixture.store.holders("x", None).decided(), Err(OrderError::UnknownLimit { .. })));
}

fn held_until_reports_expiry_of_live_leases(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("l").with(concurrency(9, 60)));
    let (a, b) = (lease(&fixture.take("l", "u", 1)).clone(), lease(&fixture.take("l", "v", 1)).clone());
    let asked = [b.lease, LeaseId(7), a.lease];
    let held = || fixture.store.held_until(&asked).decided();
    assert_eq!(held(), [Some(b.expires_at), None, Some(a.expires_at)]);
    fixture.pass_seconds(30);
    let renewed = fixture.store.renew(b.lease, None).decided().unwrap();
    assert!(fixture.store.release(a.lease).decided());
    assert_eq!(held(), [renewed, None, None]);
    fixture.pass_seconds(60);
    assert_eq!(held(), [None, None, None]);
}

fn released_lease_cannot_be_released_again(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("l").with(concurrency(2, 60)));
    let (a, _b) = (fixture.take("l", "u", 1), fixture.take("l", "v", 1));
    assert!(!fixture.granted("l", "u", 1));
    assert!(release(fixture, &a));
    assert!(!release(fixture, &a), "the second release is a no-op that says so");
    assert_eq!(fixture.used("l", "u", "all/concurrency"), 1);
    assert!(fixture.granted("l", "u", 1));
    assert!(!fixture.granted("l", "u", 1), "it freed one slot, not two");
    assert!(!fixture.store.release(LeaseId(42)).decided(), "nor does a stranger's");
}

fn unrenewed_lease_lapses(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("l").with(concurrency(1, 60)));
    let answer = fixture.take("l", "u", 1);
    fixture.pass(Duration::from_nanos(59_999_999_999));
    assert!(!fixture.granted("l", "u", 1));
    fixture.pass(Duration::from_nanos(1));
    assert!(fixture.granted("l", "u", 1), "a dead holder's slot comes back");
    assert!(!release(fixture, &answer), "and a late release frees nobody else's");
    assert!(!fixture.granted("l", "u", 1));
}

fn renewed_lease_lapses_later(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("l").with(concurrency(1, 60)));
    let answer = fixture.take("l", "u", 1);
    let renew = |ttl| fixture.store.renew(lease(&answer).lease, ttl).decided().unwrap();
    for _ in 0..3 {
        fixture.pass_seconds(59);
        assert!(renew(None).is_some());
        assert!(!fixture.granted("l", "u", 1));
    }
    renew(Some(Duration::from_secs(5))).expect("still held");
    fixture.pass_seconds(5);
    assert_eq!(renew(None), None, "too late");
    assert!(fixture.granted("l", "u", 1));
}

fn denial_reports_next_lapse(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("l").with(concurrency(2, 60)).with(sliding(100, 10)));
    fixture.add(LimitSpec::named("other").with(concurrency(5, 1)));
    let seconds = |seconds: u64| Some(Timestamp::from_ticks(seconds * 1_000_000_000));
    let lapses_at = || denied(&fixture.take("l", "u", 1)).lapses_at;
    let a = fixture.take("l", "u", 1);
    fixture.pass_seconds(10);
    let _b = fixture.take("l", "v", 1);
    let _elsewhere = fixture.take("other", "u", 1);
    assert_eq!(lapses_at(), seconds(60), "the first of those that are in the way");
    fixture.store.renew(lease(&a).lease, None).decided().unwrap();
    fixture.pass_seconds(1);
    assert_eq!(lapses_at(), seconds(70));
    fixture.pass_seconds(59);
    assert!(fixture.granted("l", "u", 1) && fixture.granted("l", "u", 1));
    assert_eq!(lapses_at(), seconds(130), "what has lapsed is in nobody's way");
    fixture.add(LimitSpec::named("t").with(total(1)).with(concurrency(1, 60)));
    let _held = fixture.take("t", "u", 1);
    assert_eq!(denied(&fixture.take("t", "u", 1)).lapses_at, None, "no lapse helps who waits for ever");
}

fn fence_of_later_lease_is_higher(fixture: &StoreFixture) {
    let spec = || LimitSpec::named("l").with(concurrency(10, 60));
    fixture.add(spec());
    let mut last = 0;
    for round in 0..6 {
        let answer = fixture.take("l", "u", 1);
        let (limit, fence) = lease(&answer).fences[0].clone();
        assert_eq!(limit.id(), "l");
        assert!(fence > last, "{fence} after {last}");
        last = fence;
        if round == 2 {
            assert!(fixture.store.remove("l", RemovalMode::Forget));
            fixture.add(spec());
        }
    }
}

fn lease_holds_as_many_units_as_asked(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("l").with(ItemSpec { charge: Some(Charge::Count), ..concurrency(5, 60) }));
    let heavy = fixture.take("l", "u", 4);
    assert!(!fixture.granted("l", "u", 2));
    assert!(fixture.granted("l", "u", 1));
    assert!(release(fixture, &heavy));
    assert_eq!(fixture.used("l", "u", "all/concurrency"), 1);
    assert!(fixture.granted("l", "u", 4));
}

fn reset_keeps_leases_held(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("l").with(concurrency(1, 60)).with(total(5)));
    let answer = fixture.take("l", "u", 1);
    fixture.store.reset("l", None).decided().unwrap();
    assert_eq!(fixture.used("l", "u", "all/total"), 0);
    assert!(!fixture.granted("l", "u", 1), "what is held is held");
    assert!(release(fixture, &answer));
    assert!(fixture.granted("l", "u", 1));
}

/// A limit of ten for every policy that can be settled, by name.
fn settleable() -> [(&'static str, ItemSpec); 6] {
    let window = Duration::from_secs(10);
    [
        ("total", total(10)),
        ("minute", ItemSpec::of(Policy::Calendar(Unit::Minute), 10)),
        ("interval", ItemSpec::of(Policy::Interval { window }, 10)),
        ("sliding", sliding(10, 10)),
        ("bucketed", ItemSpec::of(Policy::Sliding { window, precision: Precision::Bucketed }, 10)),
        ("bucket", bucket(10, 10)),
    ]
}

fn hold_settled_below_estimate_refunds(fixture: &StoreFixture) {
    for (id, item) in settleable() {
        let name = item.effective_name();
        fixture.add(LimitSpec::named(id).with(item));
        let answer = hold(fixture, id, 8);
        assert!(!fixture.granted(id, "u", 3), "{id}: a hold is charged");
        assert_eq!(settle(fixture, &answer, 3), Settlement::Settled);
        assert_eq!(fixture.used(id, "u", &name), 3, "{id}");
        assert!(
            fixture.granted(id, "u", 7) && !fixture.granted(id, "u", 1),
            "{id}: exactly the rest came back"
        );
    }
}

fn hold_settled_above_estimate_charges_more(fixture: &StoreFixture) {
    for (id, item) in settleable() {
        let name = item.effective_name();
        fixture.add(LimitSpec::named(id).with(item));
        let answer = hold(fixture, id, 2);
        assert_eq!(settle(fixture, &answer, 15), Settlement::Settled);
        assert_eq!(fixture.used(id, "u", &name), 15, "{id}: the work was done, past the limit");
        assert!(!fixture.granted(id, "u", 1), "{id}");
    }
}

fn repeated_settlement_changes_nothing(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("l").with(total(10)));
    let answer = hold(fixture, "l", 8);
    assert_eq!(settle(fixture, &answer, 3), Settlement::Settled);
    assert_eq!(settle(fixture, &answer, 0), Settlement::Settled, "the first answer, and no second refund");
    assert_eq!(fixture.used("l", "u", "all/total"), 3);
    assert!(!release(fixture, &answer), "settling released it");
    let released = hold(fixture, "l", 2);
    assert!(release(fixture, &released));
    assert_eq!(settle(fixture, &released, 0), Settlement::Gone);
    assert_eq!(fixture.used("l", "u", "all/total"), 5, "a released hold keeps its charge");
}

fn lapsed_hold_keeps_its_charge(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("l").with(total(10)).with(concurrency(1, 30)));
    let answer = hold(fixture, "l", 8);
    fixture.pass_seconds(30);
    assert_eq!(settle(fixture, &answer, 0), Settlement::Gone);
    assert_eq!(fixture.used("l", "u", "all/total"), 8);
    assert_eq!(fixture.used("l", "u", "all/concurrency"), 0, "its concurrency came back");
}

fn settlement_after_reset_refunds_nothing(fixture: &StoreFixture) {
    for (id, item) in settleable() {
        let name = item.effective_name();
        fixture.add(LimitSpec::named(id).with(item));
        let answer = hold(fixture, id, 8);
        fixture.store.reset(id, None).decided().unwrap();
        assert!(fixture.granted(id, "u", 5));
        assert_eq!(settle(fixture, &answer, 0), Settlement::Settled);
        assert_eq!(fixture.used(id, "u", &name), 5, "{id}: nobody else's charge was given back");
    }
}

fn hold_of_several_asks_settles_each_ask(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("requests").with(total(10)));
    fixture.add(LimitSpec::named("tokens").with(total(1000).per_key()));
    let asks = [
        Ask { limit_id: "requests", key: None, count: 1 },
        Ask { limit_id: "tokens", key: Some(b"u"), count: 500 },
    ];
    let (answer, _) = fixture.submit(Order { hold: Hold::Yes, ..Order::acquire(&asks) }).unwrap();
    assert_eq!(lease(&answer).fences.len(), 2);
    let settle = |actual: &[u64]| fixture.store.settle(lease(&answer).lease, Actual::Each(actual)).decided();
    assert_eq!(settle(&[1, 420]), Ok(Settlement::Settled));
    assert_eq!(
        (fixture.used("requests", "", "all/total"), fixture.used("tokens", "u", "key/total")),
        (1, 420)
    );
}

fn settlement_with_wrong_number_of_costs_is_error(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("requests").with(total(10)));
    fixture.add(LimitSpec::named("tokens").with(total(1000).per_key()));
    let asks = [
        Ask { limit_id: "requests", key: None, count: 5 },
        Ask { limit_id: "tokens", key: Some(b"u"), count: 500 },
    ];
    let (answer, _) = fixture.submit(Order { hold: Hold::Yes, ..Order::acquire(&asks) }).unwrap();
    let used = || (fixture.used("requests", "", "all/total"), fixture.used("tokens", "u", "key/total"));
    let settle = |actual: &[u64]| fixture.store.settle(lease(&answer).lease, Actual::Each(actual)).decided();
    for costs in [&[][..], &[1], &[1, 2, 3]] {
        let rejected = Err(OrderError::CostsOutOfRange { costs: costs.len(), asks: 2 });
        assert_eq!((settle(costs), used()), (rejected, (5, 500)), "nothing is settled");
    }
    assert!(
        fixture.store.renew(lease(&answer).lease, None).decided().unwrap().is_some(),
        "it is held as before"
    );
    assert_eq!((settle(&[1, 2]), used()), (Ok(Settlement::Settled), (1, 2)));
    assert_eq!(settle(&[1]), Ok(Settlement::Settled), "the first answer");
    assert_eq!(fixture.store.settle(LeaseId(42), Actual::Each(&[])).decided(), Ok(Settlement::Gone));
}

fn ttl_out_of_range_is_error(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("l").with(concurrency(3, 60)));
    let asks = [Ask::one("l", None)];
    let with_ttl = |ttl| fixture.submit(Order { ttl: Some(ttl), ..Order::acquire(&asks) });
    let century = Duration::from_secs(36_525 * 86_400);
    assert!(with_ttl(century).unwrap().0.is_granted());
    assert!(with_ttl(Duration::from_millis(1)).unwrap().0.is_granted());
    for ttl in [Duration::ZERO, century + Duration::from_secs(1), Duration::MAX] {
        assert_eq!(with_ttl(ttl).unwrap_err(), OrderError::TtlOutOfRange);
    }
    fixture.pass(Duration::from_millis(1));
    assert_eq!(fixture.used("l", "", "all/concurrency"), 1, "one lapsed, one will not for a century");
}

fn deleted_limit_drops_its_leases(fixture: &StoreFixture) {
    let spec = || LimitSpec::named("l").with(concurrency(1, 60)).with(total(10));
    fixture.add(spec());
    let answer = hold(fixture, "l", 1);
    assert!(fixture.store.remove("l", RemovalMode::Forget));
    fixture.add(spec());
    let other = fixture.take("l", "u", 1);
    assert!(other.is_granted(), "the new limit starts empty");
    release(fixture, &answer);
    assert!(!fixture.granted("l", "u", 1), "and an old lease frees nothing in it");
}

fn lease_of_ended_limit_returns_nothing(fixture: &StoreFixture) {
    let ends = |seconds| LimitSpec {
        ends_at: Some(Duration::from_secs(seconds)),
        ..LimitSpec::named("l").with(total(10)).with(concurrency(2, 600))
    };
    fixture.add(ends(100));
    let answer = hold(fixture, "l", 8);
    fixture.pass_seconds(100);
    fixture.edit(ends(1000));
    assert!(fixture.granted("l", "u", 5), "what begins again begins at zero");
    assert_eq!(settle(fixture, &answer, 0), Settlement::Settled);
    assert_eq!(fixture.used("l", "u", "all/total"), 5, "nobody else's charge was given back");
    assert_eq!(fixture.used("l", "u", "all/concurrency"), 1);
}
