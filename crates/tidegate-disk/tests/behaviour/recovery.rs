//! Recovery of a store with many rows.

use std::sync::Arc;
use std::time::Duration;

use tidegate::catalog::{Catalog, ExpectedVersion};
use tidegate::clock::ManualClock;
use tidegate::model::{Amount, Ask, ItemSpec, LimitSpec, Order, Policy, Timestamp};
use tidegate::reply::{Detail, OrderReply, Replies};
use tidegate::store::Store;
use tidegate_disk::DiskStore;
use tidegate_disk::directory::SimulatedDirectory;
use tidegate_disk::wal::{self, ReplayEntry, WriteAheadLog};

use crate::store::open;

const START: Timestamp = Timestamp::from_ticks(1_700_000_000_000_000_000);
const HOUR: Duration = Duration::from_secs(3_600);
/// Enough that rows restored without preallocation do not fit. With 50,000 keys they still do.
const KEYS: usize = 200_000;

/// Charges every key of a limit once.
fn charge(store: &DiskStore, limit: &str, keys: usize) {
    for first in (0..keys).step_by(256) {
        let names: Vec<String> = (first..keys.min(first + 256)).map(|index| index.to_string()).collect();
        let asks: Vec<[Ask<'_>; 1]> =
            names.iter().map(|name| [Ask::one(limit, Some(name.as_bytes()))]).collect();
        let orders: Vec<Order<'_>> = asks.iter().map(|asks| Order::acquire(asks)).collect();
        let answers = store.submit(&orders, Replies::new(Detail::Verdicts)).decided();
        assert!(answers.iter().all(|answer| answer.as_ref().is_ok_and(OrderReply::is_granted)));
        store.wait_durable(store.log_end().expect("it has a log")).expect("the disk is well");
    }
}

fn used(store: &DiskStore, limit: &str, index: usize) -> Vec<Amount> {
    let name = index.to_string();
    let asks = [Ask::one(limit, Some(name.as_bytes()))];
    let answers = store.submit(&[Order::peek(&asks)], Replies::new(Detail::Readings)).decided();
    let answer = answers.get(0).expect("one").as_ref().expect("it makes sense");
    answers.readings(answer).iter().map(|each| each.reading.used).collect()
}

fn bytes(store: &DiskStore) -> usize {
    store.size().expect("it knows").bytes
}

/// Rows are logged in the order of their tags. Inserted one by one into an empty table, they crowded into its
/// first lines and the table grew without bound: a stopped store with a million keys could not be opened
/// again.
#[test]
fn restored_rows_take_no_more_memory() {
    let (directory, clock) = (Arc::new(SimulatedDirectory::new()), Arc::new(ManualClock::at(START)));
    let store = open(&directory, &clock);
    let window = ItemSpec::of(Policy::Interval { window: HOUR }, 100).per_key();
    let total = ItemSpec::of(Policy::Total, 200).per_key();
    store
        .put(LimitSpec::named("narrow").with(window.clone()), ExpectedVersion::Absent)
        .expect("it makes sense");
    store
        .put(LimitSpec::named("wide").with(window).with(total), ExpectedVersion::Absent)
        .expect("it makes sense");
    charge(&store, "narrow", KEYS);
    charge(&store, "wide", KEYS / 10);
    let before = bytes(&store);
    store.stop().expect("nothing is in the way");
    for counts in [1, 2] {
        check_reopened(&directory, &clock, before, counts);
    }
}

/// Opens the store, checks every row, charges each once more and stops the store.
fn check_reopened(
    directory: &Arc<SimulatedDirectory>,
    clock: &Arc<ManualClock>,
    before: usize,
    counts: Amount,
) {
    let store = open(directory, clock);
    assert!(bytes(&store) <= before + before / 20, "{} bytes after {before}", bytes(&store));
    for index in 0..KEYS {
        assert_eq!(used(&store, "narrow", index), [counts], "key {index}");
    }
    for index in 0..KEYS / 10 {
        assert_eq!(used(&store, "wide", index), [counts, counts], "key {index}");
    }
    charge(&store, "narrow", KEYS);
    charge(&store, "wide", KEYS / 10);
    store.stop().expect("nothing is in the way");
}

/// A snapshot is one file of any length.
#[test]
fn snapshot_read_reports_progress() {
    const CHUNK: usize = 1 << 20;
    let directory = Arc::new(SimulatedDirectory::new());
    let open_with_progress = || {
        let mut progress = Vec::new();
        let opened = WriteAheadLog::open(
            Arc::<SimulatedDirectory>::clone(&directory),
            wal::LogOptions::default(),
            &mut |entry| {
                if let ReplayEntry::Progress { read, total } = entry {
                    progress.push((read, total));
                }
                Ok(())
            },
        );
        (opened.unwrap_or_else(|error| panic!("{error}")).0, progress)
    };
    let (log, _) = open_with_progress();
    log.snapshot(|snapshot| (0..24).try_for_each(|_| Ok(snapshot.put(&vec![7; CHUNK])?)))
        .expect("the disk is well");
    log.stop().expect("the disk is well");
    drop(log);
    let (_log, progress) = open_with_progress();
    assert!(progress.is_sorted(), "{progress:?}");
    let total = progress[0].1;
    assert!(progress.iter().all(|(read, of)| read <= of && *of == total), "{progress:?}");
    let steps: Vec<u64> = progress.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
    let snapshot = &steps[..steps.len() - 1];
    assert!(snapshot.iter().all(|step| *step <= 6 * CHUNK as u64), "{progress:?}");
}
