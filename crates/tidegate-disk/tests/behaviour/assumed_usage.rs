//! After a crash, usage without a record is assumed until it expires.

use std::sync::Arc;
use std::time::Duration;

use tidegate::catalog::{Catalog, ExpectedVersion, RemovalMode};
use tidegate::clock::ManualClock;
use tidegate::model::{Amount, Ask, Capacity, ItemSpec, LimitSpec, Order, OverrideSpec, Policy, Timestamp};
use tidegate::reply::{Detail, Replies};
use tidegate::store::Store;
use tidegate_disk::DiskStore;
use tidegate_disk::directory::SimulatedDirectory;

use crate::crashes::split_reply;
use crate::store::open;

const START: Timestamp = Timestamp::from_ticks(1_700_000_000_000_000_000);
const WINDOW: Duration = Duration::from_secs(3_600);

/// A key with a record in an earlier window has usage without a record in the present one.
#[test]
fn usage_without_record_is_assumed_after_crash() {
    let (directory, clock) = (Arc::new(SimulatedDirectory::new()), Arc::new(ManualClock::at(START)));
    let store = open(&directory, &clock);
    let item = ItemSpec::of(Policy::Interval { window: Duration::from_secs(1) }, 1_024).per_key();
    store.put(LimitSpec::named("short").with(item), ExpectedVersion::Absent).expect("it makes sense");
    let take = |store: &DiskStore, key: &str, count| {
        let asks = [Ask { limit_id: "short", key: Some(key.as_bytes()), count }];
        let (answers, lsn) =
            split_reply(store.submit(&[Order::acquire(&asks)], Replies::new(Detail::Readings)));
        let answer = answers.get(0).expect("one").as_ref().expect("it makes sense");
        assert!(answer.is_granted());
        (answers.readings(answer)[0].reading.used, lsn)
    };
    take(&store, "known", 100);
    store.wait_durable(store.log_end().expect("it has a log")).expect("the disk is well");
    clock.advance(Duration::from_secs(2));
    for key in ["known", "new"] {
        assert_eq!(take(&store, key, 4), (4, None), "this much is not written down");
    }
    let image = Arc::new(directory.killed());
    let store = open(&image, &clock);
    for key in ["known", "new", "never seen"] {
        assert_eq!(take(&store, key, 1).0, 5, "{key}");
    }
    // The assumed usage expires with the window.
    clock.advance(Duration::from_secs(1));
    assert_eq!(take(&store, "never seen", 1).0, 1);
}

/// The same for a row with a record of only one of its items.
#[test]
fn row_with_one_recorded_item_assumes_usage_of_the_other() {
    let (directory, clock) = (Arc::new(SimulatedDirectory::new()), Arc::new(ManualClock::at(START)));
    let store = open(&directory, &clock);
    let window = ItemSpec::of(Policy::Interval { window: WINDOW }, 1_024).per_key();
    let total = ItemSpec::of(Policy::Total, 700).per_key();
    store
        .put(LimitSpec::named("halves").with(window).with(total), ExpectedVersion::Absent)
        .expect("it makes sense");
    let asks = [Ask { limit_id: "halves", key: Some(b"known"), count: 4 }];
    split_reply(store.submit(&[Order::acquire(&asks)], Replies::new(Detail::Verdicts)));
    store.wait_durable(store.log_end().expect("it has a log")).expect("the disk is well");
    let store = open(&Arc::new(directory.killed()), &clock);
    let answers = store.submit(&[Order::peek(&asks)], Replies::new(Detail::Readings)).decided();
    let answer = answers.get(0).expect("one").as_ref().expect("it makes sense");
    let used: Vec<Amount> = answers.readings(answer).iter().map(|each| each.reading.used).collect();
    assert!(used[0] == 4 && used[1] >= 4, "{used:?}");
}

/// A limit with assumed usage is retired and never returns.
#[test]
fn assumed_usage_is_removed_with_its_limit() {
    let (directory, clock) = (Arc::new(SimulatedDirectory::new()), Arc::new(ManualClock::at(START)));
    let store = open(&directory, &clock);
    let month = Duration::from_secs(30 * 86_400);
    let item = ItemSpec::of(Policy::Interval { window: month }, 1_000).per_key();
    store.put(LimitSpec::named("gone").with(item), ExpectedVersion::Absent).expect("it makes sense");
    store.wait_durable(store.log_end().expect("it has a log")).expect("the disk is well");
    let directory = Arc::new(directory.killed());
    let store = open(&directory, &clock);
    assert!(store.remove("gone", RemovalMode::Retire));
    store.stop().expect("the disk is well");
    clock.advance(Duration::from_secs(8 * 86_400));
    assert!(open(&directory, &clock).list().is_empty());
}

/// A key has an override of a hundred times the rate, uses some of it, and the process dies. After the
/// override the usage still counts at the normal rate: the assumed usage must not reduce it.
#[test]
fn assumed_usage_keeps_usage_of_an_override() {
    let (directory, clock) = (Arc::new(SimulatedDirectory::new()), Arc::new(ManualClock::at(START)));
    let store = open(&directory, &clock);
    let day = Duration::from_secs(86_400);
    let item = ItemSpec::of(Policy::Bucket { window: day, burst: Some(1_000) }, 1).per_key();
    let until = Duration::from_nanos(START.ticks()) + Duration::from_secs(4);
    let exception = OverrideSpec {
        key: b"vip".to_vec(),
        item: item.effective_name(),
        limit: Capacity::AtMost(100),
        until: Some(until),
    };
    let spec = LimitSpec { overrides: vec![exception], ..LimitSpec::named("burst").with(item) };
    store.put(spec, ExpectedVersion::Absent).expect("it makes sense");
    let asks = [Ask { limit_id: "burst", key: Some(b"vip"), count: 390 }];
    let answers = store.submit(&[Order::acquire(&asks)], Replies::new(Detail::Verdicts)).decided();
    assert!(answers.get(0).expect("one").as_ref().expect("it makes sense").is_granted());
    store.wait_durable(store.log_end().expect("it has a log")).expect("the disk is well");
    let store = open(&Arc::new(directory.killed()), &clock);
    clock.advance(Duration::from_secs(5));
    let answers = store.submit(&[Order::peek(&asks)], Replies::new(Detail::Readings)).decided();
    let answer = answers.get(0).expect("one").as_ref().expect("it makes sense");
    let used = answers.readings(answer)[0].reading.used;
    assert!(used >= 385, "{used} are remembered of 390");
}
