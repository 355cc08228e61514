//! Decisions: what is granted, what is refused, and what a reply reports.

use std::time::Duration;

use tidegate::model::{
    Ask, Capacity, Charge, ItemSpec, LimitSpec, Mode, Order, OverrideSpec, Policy, Precision, Timestamp,
    Unit, Wait,
};
use tidegate::reply::{Detail, OrderError, OrderReply, Replies};

use super::{Behaviour, StoreFixture, denied, wait_ms};

pub(super) const ALL: &[Behaviour] = &[
    ("acquire_up_to_limit_is_granted", acquire_up_to_limit_is_granted),
    ("refused_order_charges_nothing", refused_order_charges_nothing),
    ("items_count_all_keys_and_each_key", items_count_all_keys_and_each_key),
    ("repeated_asks_of_one_limit_add_up", repeated_asks_of_one_limit_add_up),
    ("order_of_several_asks_is_all_or_nothing", order_of_several_asks_is_all_or_nothing),
    ("binding_item_has_longest_wait", binding_item_has_longest_wait),
    ("equal_waits_bind_first_item", equal_waits_bind_first_item),
    ("acquire_of_zero_charges_nothing", acquire_of_zero_charges_nothing),
    ("acquire_above_capacity_waits_never", acquire_above_capacity_waits_never),
    ("order_for_unknown_limit_is_error", order_for_unknown_limit_is_error),
    ("order_without_needed_key_is_error", order_without_needed_key_is_error),
    ("key_above_1024_bytes_is_error", key_above_1024_bytes_is_error),
    ("order_of_more_than_32_asks_is_error", order_of_more_than_32_asks_is_error),
    ("empty_key_is_counted_as_key", empty_key_is_counted_as_key),
    ("peek_charges_nothing", peek_charges_nothing),
    ("limit_of_zero_refuses_every_unit", limit_of_zero_refuses_every_unit),
    ("unlimited_item_counts_and_never_refuses", unlimited_item_counts_and_never_refuses),
    ("batch_is_decided_in_order", batch_is_decided_in_order),
    ("clock_set_back_does_not_move_store_time", clock_set_back_does_not_move_store_time),
    ("refusing_shadow_limit_grants_and_charges_nothing", refusing_shadow_limit_grants_and_charges_nothing),
    ("limit_in_mode_off_is_ignored", limit_in_mode_off_is_ignored),
    ("override_applies_to_its_key_only", override_applies_to_its_key_only),
    ("wait_ends_with_override", wait_ends_with_override),
    ("limit_outside_its_dates_refuses", limit_outside_its_dates_refuses),
    ("full_limit_refuses_only_new_keys", full_limit_refuses_only_new_keys),
    ("order_with_new_keys_respects_max_keys", order_with_new_keys_respects_max_keys),
    ("charge_by_ask_counts_orders", charge_by_ask_counts_orders),
    ("cost_of_u64_max_is_refused", cost_of_u64_max_is_refused),
    ("usage_reports_current_counts", usage_reports_current_counts),
];

pub(super) fn sliding(limit: u64, seconds: u64) -> ItemSpec {
    ItemSpec::of(Policy::Sliding { window: Duration::from_secs(seconds), precision: Precision::Exact }, limit)
}

pub(super) fn bucket(limit: u64, seconds: u64) -> ItemSpec {
    ItemSpec::of(Policy::Bucket { window: Duration::from_secs(seconds), burst: None }, limit)
}

pub(super) fn total(limit: u64) -> ItemSpec {
    ItemSpec::of(Policy::Total, limit)
}

/// One item of every policy, each with this limit.
pub fn every_policy(limit: u64) -> [ItemSpec; 7] {
    let window = Duration::from_secs(10);
    [
        Policy::Total,
        Policy::Calendar(Unit::Minute),
        Policy::Interval { window },
        Policy::Sliding { window, precision: Precision::Exact },
        Policy::Sliding { window, precision: Precision::Bucketed },
        Policy::Bucket { window, burst: None },
        Policy::Concurrency { ttl: Duration::from_secs(60) },
    ]
    .map(|policy| ItemSpec::of(policy, limit))
}

fn acquire_up_to_limit_is_granted(fixture: &StoreFixture) {
    for (index, item) in every_policy(3).into_iter().enumerate() {
        for (per, item) in [("all", item.clone()), ("key", item.per_key())] {
            let id = format!("{per}-{index}");
            fixture.add(LimitSpec::named(&id).with(item));
            let granted: Vec<_> = (0..5).map(|_| fixture.granted(&id, "u", 1)).collect();
            assert_eq!(granted, [true, true, true, false, false], "{id}");
        }
    }
}

fn refused_order_charges_nothing(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("l").with(total(10)).with(sliding(2, 60).per_key()));
    assert!(fixture.granted("l", "u", 2));
    for _ in 0..5 {
        assert!(!fixture.granted("l", "u", 1));
    }
    assert_eq!(fixture.used("l", "u", "all/total"), 2, "refused orders charge nothing");
    fixture.pass(Duration::from_nanos(60_000_000_001));
    assert!(fixture.granted("l", "u", 2), "and do not extend the wait");
}

fn items_count_all_keys_and_each_key(fixture: &StoreFixture) {
    let day = ItemSpec::of(Policy::Calendar(Unit::Day), 1).per_key();
    fixture.add(LimitSpec::named("sale").with(total(3)).with(day));
    assert!(fixture.granted("sale", "a", 1));
    assert!(!fixture.granted("sale", "a", 1), "once a day");
    assert!(fixture.granted("sale", "b", 1));
    assert!(fixture.granted("sale", "c", 1));
    let answer = fixture.take("sale", "d", 1);
    assert_eq!(denied(&answer).item_name(), "all/total");
    assert_eq!(fixture.used("sale", "d", "key/day"), 0, "a refusal of the all item charges no key item");
}

fn repeated_asks_of_one_limit_add_up(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("l").with(total(5)).with(total(3).per_key()));
    let ask = |key: &'static [u8], count| Ask { limit_id: "l", key: Some(key), count };
    let over = [ask(b"a", 2), ask(b"a", 2)];
    let (answer, _) = fixture.submit(Order::acquire(&over)).unwrap();
    assert_eq!(denied(&answer).item_name(), "key/total");
    let spread = [ask(b"a", 2), ask(b"b", 3), ask(b"a", 1)];
    let (answer, _) = fixture.submit(Order::acquire(&spread)).unwrap();
    assert_eq!(denied(&answer).item_name(), "all/total");
    let fits = [ask(b"a", 2), ask(b"b", 2), ask(b"a", 1)];
    assert!(fixture.submit(Order::acquire(&fits)).unwrap().0.is_granted());
    assert_eq!(
        (
            fixture.used("l", "a", "key/total"),
            fixture.used("l", "b", "key/total"),
            fixture.used("l", "a", "all/total")
        ),
        (3, 2, 5)
    );
}

fn order_of_several_asks_is_all_or_nothing(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("wide").with(total(100)));
    fixture.add(LimitSpec::named("narrow").with(sliding(1, 10).per_key()));
    let asks = [
        Ask { limit_id: "wide", key: None, count: 7 },
        Ask { limit_id: "narrow", key: Some(b"u"), count: 1 },
    ];
    assert!(fixture.submit(Order::acquire(&asks)).unwrap().0.is_granted());
    let (answer, _) = fixture.submit(Order::acquire(&asks)).unwrap();
    assert_eq!(denied(&answer).limit.id(), "narrow");
    assert_eq!(fixture.used("wide", "", "all/total"), 7, "the other limit was not charged");
}

fn binding_item_has_longest_wait(fixture: &StoreFixture) {
    fixture
        .add(LimitSpec::named("l").with(sliding(1, 10)).with(sliding(1, 60).per_key()).with(sliding(1, 30)));
    assert!(fixture.granted("l", "u", 1));
    let answer = fixture.take("l", "u", 1);
    assert_eq!(denied(&answer).item_name(), "key/sliding-60s");
    assert_eq!(wait_ms(&answer), 60_001, "a closed window, rounded up");
    let (first, item) = &denied(&answer).first;
    assert_eq!(first.items()[*item].name(), "all/sliding-10s");
    let concurrency = ItemSpec::of(Policy::Concurrency { ttl: Duration::from_secs(60) }, 1);
    fixture.add(LimitSpec::named("c").with(sliding(1, 10)).with(concurrency));
    assert!(fixture.granted("c", "u", 1));
    assert_eq!(denied(&fixture.take("c", "u", 1)).wait, Wait::OnRelease);
    fixture.add(LimitSpec::named("t").with(sliding(1, 10)).with(total(1)));
    assert!(fixture.granted("t", "u", 1));
    assert_eq!(denied(&fixture.take("t", "u", 1)).wait, Wait::Never);
}

fn equal_waits_bind_first_item(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("l").with(sliding(1, 10).per_key()).with(sliding(1, 10)));
    assert!(fixture.granted("l", "u", 1));
    assert_eq!(denied(&fixture.take("l", "u", 1)).item_name(), "key/sliding-10s");
}

fn acquire_of_zero_charges_nothing(fixture: &StoreFixture) {
    fixture.add(
        LimitSpec::named("l")
            .with(total(2))
            .with(ItemSpec::of(Policy::Interval { window: Duration::from_secs(10) }, 2)),
    );
    assert!(fixture.granted("l", "u", 0));
    assert!(fixture.granted("l", "u", 2));
    assert!(fixture.granted("l", "u", 0), "used <= limit");
    assert_eq!(fixture.used("l", "u", "all/total"), 2);
    fixture.edit(LimitSpec::named("l").with(total(1)));
    assert!(!fixture.granted("l", "u", 0), "used above a lowered limit");
}

fn acquire_above_capacity_waits_never(fixture: &StoreFixture) {
    for (index, item) in every_policy(3).into_iter().enumerate() {
        let id = format!("l{index}");
        fixture.add(LimitSpec::named(&id).with(ItemSpec { charge: Some(Charge::Count), ..item }));
        assert_eq!(denied(&fixture.take(&id, "u", 4)).wait, Wait::Never, "{id}");
        assert!(fixture.granted(&id, "u", 3), "{id}: nothing was consumed");
    }
}

fn order_for_unknown_limit_is_error(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("known").with(total(5)));
    let asks =
        [Ask { limit_id: "known", key: None, count: 1 }, Ask { limit_id: "unknown", key: None, count: 1 }];
    let error = fixture.submit(Order::acquire(&asks)).unwrap_err();
    assert_eq!(error, OrderError::UnknownLimit { limit_id: "unknown".to_owned() });
    assert_eq!(fixture.used("known", "", "all/total"), 0);
    assert_eq!(fixture.store.reset("unknown", None).decided().unwrap_err().code(), "unknown_limit");
    assert_eq!(fixture.store.usage("unknown", None).decided().unwrap_err().code(), "unknown_limit");
}

fn order_without_needed_key_is_error(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("l").with(total(5)).with(total(5).per_key()));
    let asks = [Ask::one("l", None)];
    assert_eq!(fixture.submit(Order::acquire(&asks)).unwrap_err().code(), "bad_request");
    fixture.add(LimitSpec::named("shared").with(total(5)));
    let asks = [Ask::one("shared", None)];
    assert!(fixture.submit(Order::acquire(&asks)).unwrap().0.is_granted());
}

fn key_above_1024_bytes_is_error(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("l").with(total(5).per_key()));
    let long = vec![b'k'; 1024];
    assert!(fixture.submit(Order::acquire(&[Ask::one("l", Some(&long))])).unwrap().0.is_granted());
    for length in [1025, 65_536] {
        let long = vec![b'k'; length];
        let error = fixture.submit(Order::acquire(&[Ask::one("l", Some(&long))])).unwrap_err();
        assert_eq!(error, OrderError::KeyTooLong { bytes: length });
    }
}

fn order_of_more_than_32_asks_is_error(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("l").with(total(100)));
    let asks = [Ask::one("l", None); 33];
    assert!(fixture.submit(Order::acquire(&asks[..32])).unwrap().0.is_granted());
    assert_eq!(fixture.submit(Order::acquire(&asks)).unwrap_err(), OrderError::AsksOutOfRange { asks: 33 });
    assert_eq!(fixture.submit(Order::acquire(&[])).unwrap_err(), OrderError::AsksOutOfRange { asks: 0 });
}

fn empty_key_is_counted_as_key(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("l").with(total(1).per_key()));
    for key in ["", "\0", "a:b", "ключ", "a"] {
        assert!(fixture.granted("l", key, 1), "{key:?} is a key of its own");
        assert!(!fixture.granted("l", key, 1), "{key:?}");
    }
}

fn peek_charges_nothing(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("l").with(sliding(1, 10).per_key()));
    let asks = [Ask::one("l", Some(b"u"))];
    for _ in 0..3 {
        assert!(fixture.submit(Order::peek(&asks)).unwrap().0.is_granted());
    }
    assert!(fixture.granted("l", "u", 1));
    assert!(!fixture.submit(Order::peek(&asks)).unwrap().0.is_granted());
}

fn limit_of_zero_refuses_every_unit(fixture: &StoreFixture) {
    for (index, item) in every_policy(0).into_iter().enumerate() {
        let id = format!("l{index}");
        fixture.add(LimitSpec::named(&id).with(item));
        assert_eq!(denied(&fixture.take(&id, "u", 1)).wait, Wait::Never, "{id}");
        assert!(fixture.granted(&id, "u", 0), "{id}: nothing of nothing fits");
    }
}

fn unlimited_item_counts_and_never_refuses(fixture: &StoreFixture) {
    for (index, item) in every_policy(0).into_iter().enumerate() {
        let id = format!("l{index}");
        let name = item.effective_name();
        let is_bucket = matches!(item.policy, Policy::Bucket { .. });
        let charge = Some(Charge::Count);
        fixture.add(LimitSpec::named(&id).with(ItemSpec { limit: Capacity::Unlimited, charge, ..item }));
        assert!(fixture.granted(&id, "u", 1_000_000), "{id}");
        assert!(fixture.granted(&id, "u", 5), "{id}");
        assert_eq!(fixture.used(&id, "u", &name), if is_bucket { 0 } else { 1_000_005 }, "{id}");
    }
}

fn batch_is_decided_in_order(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("l").with(total(3)));
    let asks = |count| [Ask { limit_id: "l", key: None, count }];
    let (two, one, bad) = (asks(2), asks(1), [Ask::one("nobody", None)]);
    let orders = [&two[..], &two, &bad, &one, &one].map(Order::acquire);
    let answers = fixture.store.submit(&orders, Replies::new(Detail::Verdicts)).decided();
    let granted: Vec<_> =
        answers.iter().map(|answer| answer.as_ref().ok().map(OrderReply::is_granted)).collect();
    assert_eq!(granted, [Some(true), Some(false), None, Some(true), Some(false)]);
}

fn clock_set_back_does_not_move_store_time(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("l").with(sliding(1, 10)));
    fixture.pass_seconds(1000);
    assert!(fixture.granted("l", "u", 1));
    fixture.clock.set(Timestamp::EPOCH);
    let answer = fixture.take("l", "u", 1);
    assert_eq!(wait_ms(&answer), 10_001, "decided at the latest instant seen");
    fixture.clock.set(answer.at);
    fixture.pass(Duration::from_nanos(10_000_000_001));
    assert!(fixture.granted("l", "u", 1));
}

fn refusing_shadow_limit_grants_and_charges_nothing(fixture: &StoreFixture) {
    let watching =
        LimitSpec { mode: Mode::Shadow, ..LimitSpec::named("w").with(total(1)).with(total(5).per_key()) };
    fixture.add(watching);
    fixture.add(LimitSpec::named("real").with(total(3)));
    assert!(fixture.take("w", "u", 1).shadowed.is_empty());
    let asks = [Ask::one("w", Some(b"u")), Ask::one("real", None)];
    let (answer, _) = fixture.submit(Order::acquire(&asks)).unwrap();
    assert!(answer.is_granted());
    assert_eq!(answer.shadowed.iter().map(|limit| limit.id()).collect::<Vec<_>>(), ["w"]);
    assert_eq!(fixture.used("w", "u", "key/total"), 1, "none of its items was charged");
    assert_eq!(fixture.used("real", "", "all/total"), 1);
}

fn limit_in_mode_off_is_ignored(fixture: &StoreFixture) {
    fixture.add(LimitSpec { mode: Mode::Off, ..LimitSpec::named("l").with(total(0)) });
    let (answer, readings) = fixture.submit(Order::acquire(&[Ask::one("l", None)])).unwrap();
    assert!(answer.is_granted() && readings.is_empty());
}

fn override_applies_to_its_key_only(fixture: &StoreFixture) {
    let vip = OverrideSpec {
        key: b"vip".to_vec(),
        item: "key/total".to_owned(),
        limit: Capacity::AtMost(3),
        until: None,
    };
    fixture.add(LimitSpec { overrides: vec![vip], ..LimitSpec::named("l").with(total(1).per_key()) });
    assert!(fixture.granted("l", "vip", 3) && !fixture.granted("l", "vip", 1));
    assert!(fixture.granted("l", "pleb", 1) && !fixture.granted("l", "pleb", 1));
}

fn wait_ends_with_override(fixture: &StoreFixture) {
    let banned = OverrideSpec {
        key: b"u".to_vec(),
        item: "key/sliding-10s".to_owned(),
        limit: Capacity::AtMost(0),
        until: Some(Duration::from_secs(100)),
    };
    fixture
        .add(LimitSpec { overrides: vec![banned], ..LimitSpec::named("l").with(sliding(1, 10).per_key()) });
    assert_eq!(wait_ms(&fixture.take("l", "u", 1)), 100_000);
    fixture.pass(Duration::from_nanos(99_999_999_999));
    assert!(!fixture.granted("l", "u", 1));
    fixture.pass(Duration::from_nanos(1));
    assert!(fixture.granted("l", "u", 1));
}

fn limit_outside_its_dates_refuses(fixture: &StoreFixture) {
    let seconds = |s| Some(Duration::from_secs(s));
    let item = ItemSpec::of(Policy::Calendar(Unit::Minute), 1);
    fixture.add(LimitSpec {
        starts_at: seconds(100),
        ends_at: seconds(170),
        ..LimitSpec::named("l").with(item)
    });
    assert_eq!(wait_ms(&fixture.take("l", "u", 1)), 100_000);
    fixture.pass_seconds(100);
    assert!(fixture.granted("l", "u", 1));
    assert_eq!(wait_ms(&fixture.take("l", "u", 1)), 20_000, "the next minute begins before the end");
    fixture.pass_seconds(25);
    assert!(fixture.granted("l", "u", 1));
    assert_eq!(denied(&fixture.take("l", "u", 1)).wait, Wait::Never, "the next minute begins after it");
    fixture.pass_seconds(60);
    assert_eq!(denied(&fixture.take("l", "u", 1)).wait, Wait::Never);
    assert_eq!(fixture.used("l", "u", "all/minute"), 0, "its state is dropped");
}

fn full_limit_refuses_only_new_keys(fixture: &StoreFixture) {
    fixture.add(LimitSpec { max_keys: Some(2), ..LimitSpec::named("full").with(sliding(2, 10).per_key()) });
    fixture.add(LimitSpec::named("other").with(total(1).per_key()));
    assert!(fixture.granted("full", "a", 1));
    fixture.pass_seconds(1);
    assert!(fixture.granted("full", "b", 1));
    let answer = fixture.take("full", "c", 1);
    assert!(answer.degraded);
    assert_eq!(wait_ms(&answer), 9_001, "when the first of them is forgotten");
    assert!(fixture.granted("full", "c", 0), "an ask of zero needs no row");
    assert!(fixture.granted("full", "a", 1), "old keys are exact");
    assert!(!fixture.take("full", "b", 2).degraded);
    assert!(fixture.granted("other", "c", 1), "other limits are not affected");
    fixture.pass(Duration::from_nanos(10_000_000_001));
    assert!(fixture.granted("full", "c", 1), "fresh rows make room");
}

fn order_with_new_keys_respects_max_keys(fixture: &StoreFixture) {
    fixture.add(LimitSpec { max_keys: Some(2), ..LimitSpec::named("l").with(sliding(5, 10).per_key()) });
    let ask = |key: &'static [u8], count| Ask { limit_id: "l", key: Some(key), count };
    assert!(fixture.granted("l", "a", 1));
    fixture.pass_seconds(1);
    let (answer, _) = fixture.submit(Order::acquire(&[ask(b"b", 1), ask(b"c", 1)])).unwrap();
    assert!(answer.degraded, "there is room for one of them");
    assert_eq!(wait_ms(&answer), 9_001);
    let (answer, _) = fixture.submit(Order::acquire(&[ask(b"b", 0), ask(b"c", 1), ask(b"b", 1)])).unwrap();
    assert!(answer.degraded, "repeated asks count once");
    let (answer, _) = fixture.submit(Order::acquire(&[ask(b"a", 1), ask(b"b", 1)])).unwrap();
    assert!(answer.is_granted());
    let (answer, _) = fixture.submit(Order::acquire(&[ask(b"a", 1), ask(b"c", 1)])).unwrap();
    assert!(answer.degraded, "a known key does not make room");
    assert_eq!(
        (fixture.used("l", "a", "key/sliding-10s"), fixture.used("l", "b", "key/sliding-10s")),
        (2, 1)
    );
    fixture.pass(Duration::from_nanos(10_000_000_001));
    let (answer, _) = fixture.submit(Order::acquire(&[ask(b"a", 1), ask(b"c", 1)])).unwrap();
    assert!(answer.is_granted(), "fresh rows make room, also those that are asked");
}

fn charge_by_ask_counts_orders(fixture: &StoreFixture) {
    let by_ask = ItemSpec { charge: Some(Charge::Ask), ..total(2) };
    fixture.add(LimitSpec::named("l").with(by_ask).with(total(1000).per_key()));
    assert!(fixture.granted("l", "u", 400));
    assert!(fixture.granted("l", "u", 0), "an ask of zero is free");
    assert!(fixture.granted("l", "u", 400));
    assert_eq!(denied(&fixture.take("l", "u", 1)).item_name(), "all/total");
}

fn cost_of_u64_max_is_refused(fixture: &StoreFixture) {
    for (index, item) in every_policy(3).into_iter().enumerate() {
        let id = format!("l{index}");
        fixture.add(LimitSpec::named(&id).with(ItemSpec { charge: Some(Charge::Count), ..item }));
        assert!(fixture.granted(&id, "u", 1));
        assert_eq!(denied(&fixture.take(&id, "u", u64::MAX)).wait, Wait::Never, "{id}");
        assert!(fixture.granted(&id, "u", 2), "{id}");
    }
}

fn usage_reports_current_counts(fixture: &StoreFixture) {
    let day = ItemSpec::of(Policy::Calendar(Unit::Day), 10).per_key();
    fixture.add(LimitSpec::named("l").with(total(100)).with(day).with(total(20).per_key()));
    fixture.pass_seconds(5);
    assert!(fixture.granted("l", "u", 3));
    let activity = fixture.usage("l", None);
    assert_eq!(activity.count, Some(3));
    let user = fixture.usage("l", Some("u"));
    assert_eq!(user.count, Some(3));
    let status: Vec<_> =
        user.items.iter().map(|item| (&*item.item, item.policy, item.current_count)).collect();
    assert_eq!(status, [("key/day", "day", 3), ("key/total", "total", 3)]);
    assert!(user.items.iter().all(|item| item.last_time == Some(Timestamp::from_ticks(5_000_000_000))));
    let nobody = fixture.usage("l", Some("nobody"));
    assert_eq!((nobody.count, nobody.items[0].last_time), (Some(0), None));
}
