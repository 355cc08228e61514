//! Request ids: a retry gets the same reply and is charged once.

use std::time::Duration;

use tidegate::model::{Ask, LimitSpec, Order};
use tidegate::reply::OrderError;

use super::decisions::{sliding, total};
use super::{Behaviour, StoreFixture, lease};

pub(super) const ALL: &[Behaviour] = &[
    ("repeated_request_id_is_charged_once", repeated_request_id_is_charged_once),
    ("request_id_with_other_asks_is_error", request_id_with_other_asks_is_error),
    ("refused_request_id_can_be_retried", refused_request_id_can_be_retried),
    ("request_id_is_forgotten_after_ten_minutes", request_id_is_forgotten_after_ten_minutes),
    ("request_id_length_out_of_range_is_error", request_id_length_out_of_range_is_error),
    ("patience_out_of_range_is_error", patience_out_of_range_is_error),
];

fn with_id<'a>(asks: &'a [Ask<'a>], id: &'a [u8]) -> Order<'a> {
    Order { request_id: Some(id), ..Order::acquire(asks) }
}

fn repeated_request_id_is_charged_once(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("l").with(total(10)));
    let asks = [Ask { limit_id: "l", key: None, count: 4 }];
    let order = Order { hold: tidegate::model::Hold::Yes, ..with_id(&asks, b"r1") };
    let (first, readings) = fixture.submit(order).unwrap();
    fixture.pass_seconds(1);
    let (again, read_again) = fixture.submit(order).unwrap();
    assert_eq!(lease(&first), lease(&again), "the same reply");
    assert_eq!(readings, read_again);
    assert_eq!(fixture.used("l", "", "all/total"), 4);
    assert!(fixture.submit(with_id(&asks, b"r2")).unwrap().0.is_granted());
    assert_eq!(fixture.used("l", "", "all/total"), 8, "another id is another request");
}

fn request_id_with_other_asks_is_error(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("l").with(total(10).per_key()));
    let asks = [Ask::one("l", Some(b"u"))];
    let others = [[Ask::one("l", Some(b"v"))], [Ask { limit_id: "l", key: Some(b"u"), count: 2 }]];
    assert!(fixture.submit(with_id(&asks, b"r")).unwrap().0.is_granted());
    for other in &others {
        assert_eq!(fixture.submit(with_id(other, b"r")).unwrap_err(), OrderError::RequestIdReused);
    }
}

fn refused_request_id_can_be_retried(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("l").with(sliding(1, 10)));
    let asks = [Ask::one("l", None)];
    assert!(fixture.submit(with_id(&asks, b"a")).unwrap().0.is_granted());
    assert!(!fixture.submit(with_id(&asks, b"b")).unwrap().0.is_granted());
    fixture.pass(Duration::from_nanos(10_000_000_001));
    assert!(fixture.submit(with_id(&asks, b"b")).unwrap().0.is_granted());
}

fn request_id_is_forgotten_after_ten_minutes(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("l").with(total(10)));
    let asks = [Ask::one("l", None)];
    for (seconds, used) in [(0, 1), (599, 1), (1, 2), (599, 2)] {
        fixture.pass_seconds(seconds);
        assert!(fixture.submit(with_id(&asks, b"r")).unwrap().0.is_granted());
        assert_eq!(fixture.used("l", "", "all/total"), used);
    }
}

fn patience_out_of_range_is_error(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("l").with(total(10)));
    let asks = [Ask::one("l", None)];
    let patient = |seconds| Order { max_wait: Duration::from_secs(seconds), ..Order::acquire(&asks) };
    assert!(fixture.submit(patient(60)).unwrap().0.is_granted());
    assert_eq!(fixture.submit(patient(61)).unwrap_err(), OrderError::PatienceOutOfRange);
}

fn request_id_length_out_of_range_is_error(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("l").with(total(10)));
    let asks = [Ask::one("l", None)];
    let long = [b'r'; 257];
    assert!(fixture.submit(with_id(&asks, &long[..256])).unwrap().0.is_granted());
    for id in [&long[..], &[]] {
        assert_eq!(fixture.submit(with_id(&asks, id)).unwrap_err().code(), "bad_request");
    }
}
