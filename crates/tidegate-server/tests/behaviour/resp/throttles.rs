//! `CL.THROTTLE` and `THROTTLE`.

use std::sync::Arc;
use std::time::Duration;

use tidegate::catalog::{Catalog, RemovalMode};
use tidegate::store::{LimitStore, Store};
use tidegate_server::resp::described_buckets::{
    BucketDescription, DescribeError, DescribedBuckets, MAX_DESCRIBED_BUCKETS, is_reserved,
};

use crate::resp::stage::{Stage, check, say};

/// 30 in 60 seconds, two seconds each; three at once.
#[test]
fn cells_five_integers() {
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
fn crabs_five_integers() {
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

/// A peer's state lifetime becomes 0 for a burst of 1, and it never limits.
#[test]
fn a_burst_of_one_limits() {
    check(
        "0s     THROTTLE ada 1 1 10     -> [1, 1, 0, 10, 0]
         9.999s THROTTLE ada 1 1 10     -> [0, 1, 0, 1, 1]
         10s    THROTTLE ada 1 1 10     -> [1, 1, 0, 10, 0]",
    );
}

/// A peer keeps the time of the last grant at most one burst ago, and then grants two.
#[test]
fn credit_ends_at_one_burst() {
    check(
        "0s     THROTTLE ada 100 100 1 100  -> [1, 100, 0, 1, 0]
         1000s  THROTTLE ada 100 100 1 100  -> [1, 100, 0, 1, 0]
         1000s  THROTTLE ada 100 100 1      -> [0, 100, 0, 1, 1]",
    );
}

/// In a peer, `THROTTLE boom 4294967296 1 9223372036` ends the only thread that decides; every later decision fails.
#[test]
fn one_hostile_command_is_one_error() {
    let stage = Stage::plain();
    let mut session = stage.session();
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
                        let said =
                            say(&mut session, &format!("{command} boom {burst} {count} {period} {quantity}"));
                        assert!(said.starts_with("-ERR ") || said.starts_with('['), "{said}");
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
fn what_cannot_be_is_said() {
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
    let stage = Stage::plain();
    say(&mut stage.session(), "CL.THROTTLE ada 10 1 3155760000");
    assert!(stage.door.described_buckets().is_empty(), "and nothing is kept of it");
}

#[test]
fn a_description_is_a_limit() {
    let stage = Stage::plain();
    let mut session = stage.session();
    assert_eq!(say(&mut session, "CL.THROTTLE ada 2 30 60"), "[0, 3, 2, -1, 2]");
    assert_eq!(
        say(&mut session, "THROTTLE ada 3 30 60"),
        "[1, 3, 1, 4, 0]",
        "the same bucket by another name"
    );
    assert_eq!(say(&mut session, "CL.THROTTLE ada 3 30 60"), "[0, 4, 3, -1, 2]", "another bucket");
    let ids: Vec<String> = stage.store.list().iter().map(|limit| limit.id().to_owned()).collect();
    assert!(
        ids.contains(&"cl.throttle/3/30/60".to_owned()) && ids.contains(&"cl.throttle/4/30/60".to_owned())
    );
    assert!(ids.iter().filter(|id| is_reserved(id)).count() == 2);
}

#[test]
fn a_description_that_somebody_removed_is_made_anew() {
    let stage = Stage::plain();
    let mut session = stage.session();
    say(&mut session, "CL.THROTTLE ada 2 30 60");
    assert!(stage.store.remove("cl.throttle/3/30/60", RemovalMode::Forget));
    assert!(say(&mut session, "CL.THROTTLE ada 2 30 60").starts_with("-UNAVAILABLE "));
    assert_eq!(say(&mut session, "CL.THROTTLE ada 2 30 60"), "[0, 3, 2, -1, 2]");
}

fn bucket(capacity: u64) -> BucketDescription {
    BucketDescription { capacity, count: 1, period: 1 }
}

/// A bound of three, and somebody was answered now by each of them.
fn three_of_three(stage: &Stage) -> DescribedBuckets {
    let throttles = DescribedBuckets::with_capacity(Arc::clone(&stage.store) as Arc<dyn LimitStore>, 3);
    for capacity in [5, 2, 9] {
        let described = throttles.get_or_create(bucket(capacity)).expect("there is room");
        use_now(stage, described.id());
        described.record_use(crate::resp::stage::START);
    }
    throttles
}

fn use_now(stage: &Stage, limit_id: &str) {
    let asks = [tidegate::model::Ask { limit_id, key: Some(b"ada"), count: 1 }];
    stage.store.submit(&[tidegate::model::Order::acquire(&asks)], tidegate::reply::Replies::default()).now();
}

#[test]
fn nobody_is_forgotten_who_could_be_refused() {
    let stage = Stage::plain();
    let throttles = three_of_three(&stage);
    stage.clock.advance(Duration::from_millis(1999));
    assert_eq!(throttles.get_or_create(bucket(1)).err(), Some(DescribeError::TooMany));
    assert!(throttles.get_or_create(bucket(2)).is_ok(), "who is known is served");
    stage.clock.advance(Duration::from_millis(1));
    assert!(throttles.get_or_create(bucket(1)).is_ok(), "a burst of two is back after two seconds");
    assert!(stage.store.get("cl.throttle/2/1/1").is_none());
    assert!(stage.store.get("cl.throttle/5/1/1").is_some() && stage.store.get("cl.throttle/9/1/1").is_some());
    assert_eq!(throttles.len(), 3);
}

#[test]
fn the_one_that_is_unused_for_longest_is_forgotten_first() {
    let stage = Stage::plain();
    let throttles = three_of_three(&stage);
    throttles
        .get_or_create(bucket(2))
        .expect("it is known")
        .record_use(crate::resp::stage::START.plus(tidegate::model::Span::ONE_TICK));
    throttles
        .get_or_create(bucket(5))
        .expect("it is known")
        .record_use(crate::resp::stage::START.plus(tidegate::model::Span::from_ticks(2)));
    stage.clock.advance(Duration::from_secs(100));
    throttles.get_or_create(bucket(1)).expect("all are fresh");
    assert!(stage.store.get("cl.throttle/9/1/1").is_none());
    assert_eq!(throttles.len(), 3);
}

#[test]
fn nobody_is_forgotten_who_is_being_asked() {
    let stage = Stage::plain();
    let throttles = three_of_three(&stage);
    stage.clock.advance(Duration::from_secs(100));
    let held: Vec<_> =
        [5, 2, 9].map(|capacity| throttles.get_or_create(bucket(capacity))).into_iter().collect();
    assert_eq!(throttles.get_or_create(bucket(1)).err(), Some(DescribeError::TooMany));
    drop(held);
    stage.clock.advance(Duration::from_nanos(1));
    assert!(throttles.get_or_create(bucket(1)).is_ok());
}

#[test]
fn descriptions_of_an_earlier_life_are_known_and_used_until_now() {
    let stage = Stage::plain();
    drop(three_of_three(&stage));
    stage.clock.advance(Duration::from_secs(1));
    let throttles = DescribedBuckets::with_capacity(Arc::clone(&stage.store) as Arc<dyn LimitStore>, 3);
    assert_eq!(throttles.len(), 3);
    stage.clock.advance(Duration::from_millis(1999));
    assert_eq!(throttles.get_or_create(bucket(1)).err(), Some(DescribeError::TooMany));
    stage.clock.advance(Duration::from_millis(1));
    assert!(throttles.get_or_create(bucket(1)).is_ok());
}

/// What a session was answered counts as use: otherwise a flood of new rates would push out one that refuses.
#[test]
fn a_flood_of_rates_pushes_nobody_out() {
    let stage = Stage::plain();
    let mut session = stage.session();
    for count in 1..=MAX_DESCRIBED_BUCKETS {
        assert!(say(&mut session, &format!("CL.THROTTLE ada 0 {count} 10000")).starts_with("[0, 1, 0, -1, "));
    }
    let full =
        format!("-ERR {MAX_DESCRIBED_BUCKETS} different rates are in use, and none can be evicted yet");
    assert_eq!(say(&mut session, "CL.THROTTLE ada 0 1 20000"), full);
    assert_eq!(say(&mut session, "CL.THROTTLE ada 0 1 10000"), "[1, 1, 0, 10000, 10000]");
    stage.clock.advance(Duration::from_secs(3));
    assert_eq!(
        say(&mut session, "CL.THROTTLE ada 0 1 20000"),
        "[0, 1, 0, -1, 20000]",
        "the fastest are fresh"
    );
    assert_eq!(say(&mut session, "CL.THROTTLE ada 0 1 10000"), "[1, 1, 0, 9997, 9997]");
}

#[test]
fn reserved_names() {
    for id in ["cl.throttle", "cl.throttle/", "cl.throttle/1/2/3"] {
        assert!(is_reserved(id), "{id}");
    }
    for id in ["", "cl.throttles", "cl.throttl", "shop/cl.throttle"] {
        assert!(!is_reserved(id), "{id}");
    }
}
