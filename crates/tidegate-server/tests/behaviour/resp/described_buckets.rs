//! `CL.THROTTLE` and `THROTTLE`.

use std::sync::Arc;
use std::time::Duration;

use tidegate::catalog::{Catalog, RemovalMode};
use tidegate::store::{LimitStore, Store};
use tidegate_server::resp::described_buckets::{
    BucketDescription, DescribeError, DescribedBuckets, MAX_DESCRIBED_BUCKETS, is_reserved,
};

use crate::resp::fixture::{RespFixture, check, say};

/// 30 in 60 seconds: one every two seconds, three at once.
#[test]
fn cl_throttle_replies_with_five_integers() {
    check(
        "0s     CL.THROTTLE ada 2 30 60     -> [0, 3, 2, -1, 2]
         0s     cl.throttle ada 2 30 60 2   -> [0, 3, 0, -1, 6]
         0s     CL.THROTTLE ada 2 30 60     -> [1, 3, 0, 2, 6]
         0.5s   CL.THROTTLE ada 2 30 60     -> [1, 3, 0, 2, 6]
         1.001s CL.THROTTLE ada 2 30 60     -> [1, 3, 0, 1, 5]
         2s     CL.THROTTLE ada 2 30 60     -> [0, 3, 0, -1, 6]
         2s     CL.THROTTLE ada 2 30 60 0   -> [0, 3, 0, -1, 6]
         2s     CL.THROTTLE ada 2 30 60 4   -> [1, 3, 0, -1, 6]
         2s     CL.THROTTLE bob 2 30 60 0   -> [0, 3, 3, -1, 0]
         8s     CL.THROTTLE ada 2 30 60 0   -> [0, 3, 3, -1, 0]
         8s     CL.THROTTLE ada 0 30 60     -> [0, 1, 0, -1, 2]
         8s     CL.THROTTLE ada 0 30 60     -> [1, 1, 0, 2, 2]",
    );
}

#[test]
fn throttle_replies_with_five_integers() {
    check(
        "0s     THROTTLE ada 3 30 60     -> [1, 3, 2, 2, 0]
         0s     Throttle ada 3 30 60 2   -> [1, 3, 0, 6, 0]
         0.5s   THROTTLE ada 3 30 60     -> [0, 3, 0, 6, 2]
         1.001s THROTTLE ada 3 30 60     -> [0, 3, 0, 5, 1]
         2s     THROTTLE ada 3 30 60     -> [1, 3, 0, 6, 0]
         2s     THROTTLE ada 3 30 60 4   -> [0, 3, 0, 6, -1]
         2s     THROTTLE bob 3 30 60 0   -> [1, 3, 3, 0, 0]",
    );
}

/// In throttlecrab the state of a bucket with burst 1 expires at once, and it never limits.
#[test]
fn burst_of_one_limits() {
    check(
        "0s     THROTTLE ada 1 1 10     -> [1, 1, 0, 10, 0]
         9.999s THROTTLE ada 1 1 10     -> [0, 1, 0, 1, 1]
         10s    THROTTLE ada 1 1 10     -> [1, 1, 0, 10, 0]",
    );
}

/// throttlecrab clamps the last grant to one burst ago and then grants two.
#[test]
fn credit_is_capped_at_one_burst() {
    check(
        "0s     THROTTLE ada 100 100 1 100  -> [1, 100, 0, 1, 0]
         1000s  THROTTLE ada 100 100 1 100  -> [1, 100, 0, 1, 0]
         1000s  THROTTLE ada 100 100 1      -> [0, 100, 0, 1, 1]",
    );
}

/// In throttlecrab, `THROTTLE boom 4294967296 1 9223372036` panics the only deciding thread; later decisions fail.
#[test]
fn extreme_numbers_are_one_error() {
    let fixture = RespFixture::plain();
    let mut session = fixture.session();
    let numbers = [
        "-1",
        "0",
        "1",
        "4294967296",
        "9223372036",
        "3155760000",
        "3155760001",
        "9223372036854775806",
        "9223372036854775807",
        "9223372036854775808",
        "18446744073709551614",
        "18446744073709551615",
        "x",
        "''",
    ];
    for command in ["THROTTLE", "CL.THROTTLE"] {
        for burst in numbers {
            for count in numbers {
                for period in numbers {
                    for quantity in ["", "0", "18446744073709551615", "-1"] {
                        let output =
                            say(&mut session, &format!("{command} boom {burst} {count} {period} {quantity}"));
                        assert!(output.starts_with("-ERR ") || output.starts_with('['), "{output}");
                    }
                }
            }
        }
    }
    assert!(
        say(&mut session, "THROTTLE boom 4294967296 1 9223372036").starts_with("-ERR period: must be from")
    );
    assert_eq!(say(&mut session, "THROTTLE ada 3 30 60"), "[1, 3, 2, 2, 0]");
}

#[test]
fn invalid_rates_are_reported() {
    check(
        "0s  THROTTLE ada 0 1 1       -> -ERR max_burst must be at least 1
         0s  CL.THROTTLE ada 1 0 1    -> -ERR count must be at least 1
         0s  CL.THROTTLE ada 1 1 0    -> -ERR period must be at least 1
         0s  CL.THROTTLE ada -1 1 1   -> -ERR value is not an integer or out of range
         0s  CL.THROTTLE ada 1 1 1 -1 -> -ERR value is not an integer or out of range
         0s  CL.THROTTLE ada 18446744073709551615 1 1 -> -ERR value is not an integer or out of range
         0s  CL.THROTTLE ada 9223372036854775807 1 1  -> -ERR max_burst: must be at most 9223372036854775807
         0s  CL.THROTTLE ada 10 1 3155760000 -> -ERR count: a burst this large would take more than a century to come back at this rate
         0s  CL.THROTTLE ada 1 1      -> -ERR wrong number of arguments for 'cl.throttle' command
         0s  THROTTLE ada 1 1 1 1 1   -> -ERR wrong number of arguments for 'throttle' command",
    );
    let fixture = RespFixture::plain();
    say(&mut fixture.session(), "CL.THROTTLE ada 10 1 3155760000");
    assert!(fixture.service.described_buckets().is_empty(), "and nothing is kept of it");
}

#[test]
fn description_is_a_limit() {
    let fixture = RespFixture::plain();
    let mut session = fixture.session();
    assert_eq!(say(&mut session, "CL.THROTTLE ada 2 30 60"), "[0, 3, 2, -1, 2]");
    assert_eq!(
        say(&mut session, "THROTTLE ada 3 30 60"),
        "[1, 3, 1, 4, 0]",
        "the same bucket by another name"
    );
    assert_eq!(say(&mut session, "CL.THROTTLE ada 3 30 60"), "[0, 4, 3, -1, 2]", "another bucket");
    let ids: Vec<String> = fixture.store.list().iter().map(|limit| limit.id().to_owned()).collect();
    assert!(
        ids.contains(&"cl.throttle/3/30/60".to_owned()) && ids.contains(&"cl.throttle/4/30/60".to_owned())
    );
    assert!(ids.iter().filter(|id| is_reserved(id)).count() == 2);
}

#[test]
fn removed_bucket_is_created_again() {
    let fixture = RespFixture::plain();
    let mut session = fixture.session();
    say(&mut session, "CL.THROTTLE ada 2 30 60");
    assert!(fixture.store.remove("cl.throttle/3/30/60", RemovalMode::Forget));
    assert!(say(&mut session, "CL.THROTTLE ada 2 30 60").starts_with("-UNAVAILABLE "));
    assert_eq!(say(&mut session, "CL.THROTTLE ada 2 30 60"), "[0, 3, 2, -1, 2]");
}

fn bucket(capacity: u64) -> BucketDescription {
    BucketDescription { capacity, count: 1, period: 1 }
}

/// A table of at most three buckets, all used just now.
fn three_of_three(fixture: &RespFixture) -> DescribedBuckets {
    let throttles = DescribedBuckets::with_capacity(Arc::clone(&fixture.store) as Arc<dyn LimitStore>, 3);
    for capacity in [5, 2, 9] {
        let described = throttles.get_or_create(bucket(capacity)).expect("there is room");
        use_now(fixture, described.id());
        described.record_use(crate::resp::fixture::START);
    }
    throttles
}

fn use_now(fixture: &RespFixture, limit_id: &str) {
    let asks = [tidegate::model::Ask { limit_id, key: Some(b"ada"), count: 1 }];
    fixture
        .store
        .submit(&[tidegate::model::Order::acquire(&asks)], tidegate::reply::Replies::default())
        .now();
}

#[test]
fn buckets_that_could_deny_are_not_evicted() {
    let fixture = RespFixture::plain();
    let throttles = three_of_three(&fixture);
    fixture.clock.advance(Duration::from_millis(1999));
    assert_eq!(throttles.get_or_create(bucket(1)).err(), Some(DescribeError::TooMany));
    assert!(throttles.get_or_create(bucket(2)).is_ok(), "who is known is served");
    fixture.clock.advance(Duration::from_millis(1));
    assert!(throttles.get_or_create(bucket(1)).is_ok(), "a burst of two is back after two seconds");
    assert!(fixture.store.get("cl.throttle/2/1/1").is_none());
    assert!(
        fixture.store.get("cl.throttle/5/1/1").is_some() && fixture.store.get("cl.throttle/9/1/1").is_some()
    );
    assert_eq!(throttles.len(), 3);
}

#[test]
fn least_recently_used_bucket_is_evicted_first() {
    let fixture = RespFixture::plain();
    let throttles = three_of_three(&fixture);
    throttles
        .get_or_create(bucket(2))
        .expect("it is known")
        .record_use(crate::resp::fixture::START.plus(tidegate::model::Span::ONE_TICK));
    throttles
        .get_or_create(bucket(5))
        .expect("it is known")
        .record_use(crate::resp::fixture::START.plus(tidegate::model::Span::from_ticks(2)));
    fixture.clock.advance(Duration::from_secs(100));
    throttles.get_or_create(bucket(1)).expect("all are fresh");
    assert!(fixture.store.get("cl.throttle/9/1/1").is_none());
    assert_eq!(throttles.len(), 3);
}

#[test]
fn buckets_in_use_are_not_evicted() {
    let fixture = RespFixture::plain();
    let throttles = three_of_three(&fixture);
    fixture.clock.advance(Duration::from_secs(100));
    let held: Vec<_> =
        [5, 2, 9].map(|capacity| throttles.get_or_create(bucket(capacity))).into_iter().collect();
    assert_eq!(throttles.get_or_create(bucket(1)).err(), Some(DescribeError::TooMany));
    drop(held);
    fixture.clock.advance(Duration::from_nanos(1));
    assert!(throttles.get_or_create(bucket(1)).is_ok());
}

#[test]
fn buckets_of_an_earlier_process_are_loaded_as_just_used() {
    let fixture = RespFixture::plain();
    drop(three_of_three(&fixture));
    fixture.clock.advance(Duration::from_secs(1));
    let throttles = DescribedBuckets::with_capacity(Arc::clone(&fixture.store) as Arc<dyn LimitStore>, 3);
    assert_eq!(throttles.len(), 3);
    fixture.clock.advance(Duration::from_millis(1999));
    assert_eq!(throttles.get_or_create(bucket(1)).err(), Some(DescribeError::TooMany));
    fixture.clock.advance(Duration::from_millis(1));
    assert!(throttles.get_or_create(bucket(1)).is_ok());
}

/// Replies of a session count as use: otherwise a flood of new rates would evict a bucket that denies.
#[test]
fn flood_of_rates_evicts_no_active_bucket() {
    let fixture = RespFixture::plain();
    let mut session = fixture.session();
    for count in 1..=MAX_DESCRIBED_BUCKETS {
        assert!(say(&mut session, &format!("CL.THROTTLE ada 0 {count} 10000")).starts_with("[0, 1, 0, -1, "));
    }
    let full =
        format!("-ERR {MAX_DESCRIBED_BUCKETS} different rates are in use, and none can be evicted yet");
    assert_eq!(say(&mut session, "CL.THROTTLE ada 0 1 20000"), full);
    assert_eq!(say(&mut session, "CL.THROTTLE ada 0 1 10000"), "[1, 1, 0, 10000, 10000]");
    fixture.clock.advance(Duration::from_secs(3));
    assert_eq!(
        say(&mut session, "CL.THROTTLE ada 0 1 20000"),
        "[0, 1, 0, -1, 20000]",
        "the fastest are fresh"
    );
    assert_eq!(say(&mut session, "CL.THROTTLE ada 0 1 10000"), "[1, 1, 0, 9997, 9997]");
}

#[test]
fn reserved_ids_are_recognized() {
    for id in ["cl.throttle", "cl.throttle/", "cl.throttle/1/2/3"] {
        assert!(is_reserved(id), "{id}");
    }
    for id in ["", "cl.throttles", "cl.throttl", "shop/cl.throttle"] {
        assert!(!is_reserved(id), "{id}");
    }
}
