//! Request ids: a retry is answered again and charged once.

use std::time::Duration;

use tidegate::{Ask, LimitSpec, Order, OrderError};

use super::decisions::{sliding, total};
use super::{Behaviour, StoreFixture, lease};

pub(super) const ALL: &[Behaviour] = &[
    ("a_repeated_request_is_charged_once", a_repeated_request_is_charged_once),
    ("a_reused_request_is_rejected", a_reused_request_is_rejected),
    ("refusals_stay_retryable", refusals_stay_retryable),
    ("requests_are_forgotten_after_ten_minutes", requests_are_forgotten_after_ten_minutes),
    ("request_ids_have_a_bound", request_ids_have_a_bound),
    ("patience_has_a_bound", patience_has_a_bound),
];

fn with_id<'a>(asks: &'a [Ask<'a>], id: &'a [u8]) -> Order<'a> {
    Order { request_id: Some(id), ..Order::acquire(asks) }
}

fn a_repeated_request_is_charged_once(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("l").with(total(10)));
    let asks = [Ask { limit_id: "l", key: None, count: 4 }];
    let order = Order { hold: tidegate::Hold::Yes, ..with_id(&asks, b"r1") };
    let (first, readings) = fixture.submit(order).unwrap();
    fixture.pass_seconds(1);
    let (again, read_again) = fixture.submit(order).unwrap();
    assert_eq!(lease(&first), lease(&again), "the same answer");
    assert_eq!(readings, read_again);
    assert_eq!(fixture.used("l", "", "all/total"), 4);
    assert!(fixture.submit(with_id(&asks, b"r2")).unwrap().0.is_granted());
    assert_eq!(fixture.used("l", "", "all/total"), 8, "another id is another request");
}

fn a_reused_request_is_rejected(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("l").with(total(10).per_key()));
    let asks = [Ask::one("l", Some(b"u"))];
    let others = [[Ask::one("l", Some(b"v"))], [Ask { limit_id: "l", key: Some(b"u"), count: 2 }]];
    assert!(fixture.submit(with_id(&asks, b"r")).unwrap().0.is_granted());
    for other in &others {
        assert_eq!(fixture.submit(with_id(other, b"r")).unwrap_err(), OrderError::RequestIdReused);
    }
}

fn refusals_stay_retryable(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("l").with(sliding(1, 10)));
    let asks = [Ask::one("l", None)];
    assert!(fixture.submit(with_id(&asks, b"a")).unwrap().0.is_granted());
    assert!(!fixture.submit(with_id(&asks, b"b")).unwrap().0.is_granted());
    fixture.pass(Duration::from_nanos(10_000_000_001));
    assert!(fixture.submit(with_id(&asks, b"b")).unwrap().0.is_granted());
}

fn requests_are_forgotten_after_ten_minutes(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("l").with(total(10)));
    let asks = [Ask::one("l", None)];
    for (seconds, used) in [(0, 1), (599, 1), (1, 2), (599, 2)] {
        fixture.pass_seconds(seconds);
        assert!(fixture.submit(with_id(&asks, b"r")).unwrap().0.is_granted());
        assert_eq!(fixture.used("l", "", "all/total"), used);
    }
}

fn patience_has_a_bound(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("l").with(total(10)));
    let asks = [Ask::one("l", None)];
    let patient = |seconds| Order { max_wait: Duration::from_secs(seconds), ..Order::acquire(&asks) };
    assert!(fixture.submit(patient(60)).unwrap().0.is_granted());
    assert_eq!(fixture.submit(patient(61)).unwrap_err(), OrderError::PatienceOutOfRange);
}

fn request_ids_have_a_bound(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("l").with(total(10)));
    let asks = [Ask::one("l", None)];
    let long = [b'r'; 257];
    assert!(fixture.submit(with_id(&asks, &long[..256])).unwrap().0.is_granted());
    for id in [&long[..], &[]] {
        assert_eq!(fixture.submit(with_id(&asks, id)).unwrap_err().code(), "bad_request");
    }
}
