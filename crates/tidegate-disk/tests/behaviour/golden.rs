//! Stores written by the first version of the record format, with every kind of record. Every later version
//! must read them and recover the same state.
//!
//! `golden/records-1-log.txt` is a store whose process was killed. `golden/records-1-snapshot.txt` is the
//! same store after it was opened and stopped. `golden/records-1-known.txt` lists their state. This file
//! wrote them (`TIDEGATE_GOLDEN=1 cargo test -p tidegate-disk golden`), and they must not change: a change of
//! the record format adds three more files.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use tidegate::catalog::{Catalog, Edit, ExpectedVersion, RemovalMode};
use tidegate::clock::ManualClock;
use tidegate::model::{
    Amount, Ask, Capacity, Hold, ItemSpec, LeaseId, LimitSpec, Order, Policy, Precision, Timestamp,
};
use tidegate::reply::{Detail, Outcome, Replies};
use tidegate::store::{Actual, Settlement, Store};
use tidegate_core::{Durability, Fleet, Mode, OnOutage, OverrideSpec, Unit, WeekStart, Zone};
use tidegate_disk::DiskStore;
use tidegate_disk::directory::SimulatedDirectory;
use tidegate_disk::wal::{self, ReplayEntry, WriteAheadLog};

use crate::store::{OPTIONS, open};
use crate::wal::golden::{as_text, from_text};

const LOG: &str = include_str!("golden/records-1-log.txt");
const SNAPSHOT: &str = include_str!("golden/records-1-snapshot.txt");
const KNOWN: &str = include_str!("golden/records-1-known.txt");

/// A Wednesday in a leap year, and the time at which the state is listed.
const START: Timestamp = Timestamp::from_ticks(1_709_114_400_000_000_000);
const LOOKED_AT: Timestamp = Timestamp::from_ticks(1_709_114_430_000_000_000);
const HOUR: Duration = Duration::from_secs(3_600);
const KEYS: [&str; 3] = ["ann", "bob", "vip"];
const REQUEST: &[u8] = b"order 7";

/// The limits at the end of the run.
fn limits() -> Vec<LimitSpec> {
    let limit = |id: &str, item: ItemSpec| LimitSpec::named(id).with(item);
    let interval = Policy::Interval { window: HOUR };
    let sliding = |precision| Policy::Sliding { window: HOUR, precision };
    let calendar = Unit::ALL
        .iter()
        .fold(LimitSpec { time_zone: zone(), ..LimitSpec::named("calendar") }, |spec, unit| {
            spec.with(ItemSpec::of(Policy::Calendar(*unit), 90_000).per_key())
        });
    let exception =
        |item: &str, limit, until| OverrideSpec { key: b"vip".to_vec(), item: item.to_owned(), limit, until };
    let full = LimitSpec {
        description: Some("every field".to_owned()),
        time_zone: zone(),
        week_start: WeekStart::ALL[3],
        starts_at: Some(Duration::from_secs(1)),
        ends_at: Some(Duration::new(4_000_000_000, 5)),
        mode: Mode::Shadow,
        on_outage: OnOutage::Admit,
        durability: Durability::Sync,
        fleet: Fleet::Sliced,
        max_keys: Some(9),
        overrides: vec![
            exception("per", Capacity::Unlimited, None),
            exception("hours", Capacity::AtMost(700), Some(Duration::from_secs(3_999_999_999))),
        ],
        ..LimitSpec::named("full")
    };
    let named = |name: &str, item: ItemSpec| ItemSpec { name: Some(name.to_owned()), ..item };
    vec![
        limit("total", ItemSpec::of(Policy::Total, 1_000)),
        limit("total-key", ItemSpec::of(Policy::Total, 20).per_key()),
        limit("interval", ItemSpec::of(interval, 3_000).per_key()),
        limit("exact", ItemSpec::of(sliding(Precision::Exact), 40).per_key()),
        limit("bucketed", ItemSpec::of(sliding(Precision::Bucketed), 800)),
        limit("bucket", ItemSpec::of(Policy::Bucket { window: HOUR, burst: Some(900) }, 100).per_key()),
        limit("slots", ItemSpec::of(Policy::Concurrency { ttl: HOUR }, 5)),
        limit("zeroed", ItemSpec::of(interval, 50).per_key()),
        limit("unlimited", ItemSpec { limit: Capacity::Unlimited, ..ItemSpec::of(interval, 1).per_key() }),
        LimitSpec { durability: Durability::Volatile, ..limit("volatile", ItemSpec::of(Policy::Total, 90)) },
        calendar,
        full.with(named("per", ItemSpec::of(Policy::Total, 600).per_key()))
            .with(named("hours", ItemSpec::of(interval, 500).per_key()))
            .with(named(
                "asks",
                ItemSpec { charge: Some(tidegate_core::Charge::Ask), ..ItemSpec::of(interval, 70) },
            )),
    ]
}

fn zone() -> Zone {
    Zone::named("Asia/Shanghai").expect("it is known")
}

struct GoldenRun {
    directory: Arc<SimulatedDirectory>,
    clock: Arc<ManualClock>,
    store: DiskStore,
}

impl GoldenRun {
    fn wait(&self) {
        self.store.wait_durable(self.store.log_end().expect("it has a log")).expect("the disk is well");
        self.clock.advance(Duration::from_millis(100));
    }

    fn take(
        &self,
        limit: &str,
        key: &str,
        count: Amount,
        hold: Hold,
        request_id: Option<&[u8]>,
    ) -> Option<LeaseId> {
        let asks = [Ask { limit_id: limit, key: Some(key.as_bytes()), count }];
        let order = Order { hold, request_id, ..Order::acquire(&asks) };
        let answers = self.store.submit(&[order], Replies::new(Detail::Readings)).decided();
        self.wait();
        match &answers.get(0).expect("one").as_ref().expect("it makes sense").outcome {
            Outcome::Granted(grant) => grant.as_ref().map(|grant| grant.lease),
            Outcome::Denied(denied) => panic!("{limit} {key}: {denied:?}"),
        }
    }

    fn put(&self, spec: LimitSpec, expect: ExpectedVersion) {
        self.store.put(spec, expect).expect("it makes sense");
        self.wait();
    }
}

/// Produces every kind of record. Returns the leases by their final state.
fn play_run() -> (GoldenRun, Vec<(&'static str, LeaseId)>) {
    let (directory, clock) = (Arc::new(SimulatedDirectory::new()), Arc::new(ManualClock::at(START)));
    let store = open(&directory, &clock);
    let run = GoldenRun { directory, clock, store };
    let (first, rest) = (limits().swap_remove(0), limits().split_off(1));
    run.store.apply(vec![Edit::Put(first, ExpectedVersion::Absent)]).expect("it makes sense");
    for spec in rest {
        // Each limit starts with another definition, and some are used before the edit.
        let item = ItemSpec { limit: Capacity::AtMost(8_000), ..spec.items[0].clone() };
        run.put(
            LimitSpec { items: vec![item], overrides: Vec::new(), ..spec.clone() },
            ExpectedVersion::Absent,
        );
        if spec.id == "interval" || spec.id == "bucket" {
            run.take(&spec.id, "ann", 40, Hold::No, None);
        }
        run.put(spec, ExpectedVersion::Version(1));
    }
    for id in ["retired", "gone"] {
        run.put(
            LimitSpec::named(id).with(ItemSpec::of(Policy::Total, 30).per_key()),
            ExpectedVersion::Absent,
        );
        run.take(id, "ann", 3, Hold::No, None);
    }
    for (index, spec) in limits().iter().filter(|spec| spec.id != "slots").enumerate() {
        for (key, name) in KEYS.iter().enumerate().skip(index % 2) {
            let count = if spec.id == "volatile" || spec.id == "exact" { 2 } else { 5 };
            run.take(&spec.id, name, count, Hold::No, None);
            run.take(&spec.id, name, 1 + key as Amount % 2, Hold::No, None);
        }
    }
    run.store.reset("zeroed", None).decided().expect("it is there");
    run.store.reset("total-key", Some(b"bob")).decided().expect("it is there");
    run.take("zeroed", "vip", 4, Hold::No, None);
    let lease = |limit: &str, hold| run.take(limit, "ann", 2, hold, None).expect("it is held");
    let leases = vec![
        ("held", lease("slots", Hold::No)),
        ("renewed", lease("slots", Hold::No)),
        ("released", lease("slots", Hold::No)),
        ("open", lease("interval", Hold::Yes)),
        ("settled", lease("interval", Hold::Yes)),
    ];
    run.store.renew(leases[1].1, Some(2 * HOUR)).decided().expect("it makes sense");
    assert!(run.store.release(leases[2].1).decided());
    let settled = run.store.settle(leases[4].1, Actual::Every(1)).decided();
    assert_eq!(settled, Ok(Settlement::Settled));
    run.take("total", "ann", 7, Hold::No, Some(REQUEST));
    run.store.apply(vec![Edit::Remove("retired".to_owned(), RemovalMode::Retire)]).expect("it is there");
    assert!(run.store.remove("gone", RemovalMode::Forget));
    run.wait();
    (run, leases)
}

/// Lists the state of a store as text.
fn list_state(store: &DiskStore, leases: &[(String, LeaseId)]) -> String {
    let mut text = String::new();
    for limit in store.list() {
        writeln!(text, "{} version {}", limit.id(), limit.version()).expect("a string takes everything");
        for key in [None, Some("ann"), Some("bob"), Some("vip"), Some("new")] {
            let usage = store.usage(limit.id(), key.map(str::as_bytes)).decided().expect("it is there");
            for item in usage.items {
                let (name, count) = (item.item, item.current_count);
                let last = whole_second(item.last_time.map_or(0, Timestamp::ticks));
                writeln!(text, "  {} {name} {count} {last}", key.unwrap_or("-"))
                    .expect("a string takes everything");
            }
        }
    }
    for (name, id) in leases {
        writeln!(text, "lease {name} {:032x}", id.0).expect("a string takes everything");
    }
    text
}

fn opened(image: &str) -> DiskStore {
    open(&Arc::new(from_text(image)), &Arc::new(ManualClock::at(LOOKED_AT)))
}

/// The time of the last charge of some policies is known to the second only.
fn whole_second(ticks: u64) -> u64 {
    ticks - ticks % 1_000_000_000
}

/// The part of [`KNOWN`] after a heading, with its times in whole seconds.
fn part(heading: &str) -> String {
    let lines = KNOWN.lines().skip_while(|line| *line != heading).skip(1);
    let mut text = String::new();
    for line in lines.take_while(|line| !line.starts_with('#')) {
        match line.rsplit_once(' ').filter(|_| line.starts_with("  ")) {
            Some((usage, last)) => {
                writeln!(text, "{usage} {}", whole_second(last.parse().expect("an instant")))
            }
            None => writeln!(text, "{line}"),
        }
        .expect("a string takes everything");
    }
    text
}

fn leases() -> Vec<(String, LeaseId)> {
    let read = |line: &str| {
        let [_, name, id] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("three words: {line}") };
        (name.to_owned(), LeaseId(u128::from_str_radix(id, 16).expect("digits")))
    };
    part("# log").lines().filter(|line| line.starts_with("lease ")).map(read).collect()
}

/// Writes all three files on request.
#[expect(
    clippy::disallowed_methods,
    reason = "a test takes no arguments, so an environment variable requests the files"
)]
#[test]
fn golden_store_files_are_written_on_demand() {
    let (run, leases) = play_run();
    let leases: Vec<(String, LeaseId)> =
        leases.into_iter().map(|(name, lease)| (name.to_owned(), lease)).collect();
    let killed = as_text(&run.directory.killed());
    run.clock.set(LOOKED_AT);
    let directory = Arc::new(from_text(&killed));
    let store = open(&directory, &run.clock);
    let after_log = list_state(&store, &leases);
    store.stop().expect("nothing is in the way");
    drop(store);
    directory.take("lock");
    let stopped = as_text(&directory);
    let after_snapshot = list_state(&opened(&stopped), &leases);
    assert_eq!(after_log, after_snapshot, "a clean stop changes nothing");
    if std::env::var_os("TIDEGATE_GOLDEN").is_some() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/behaviour/golden");
        let write =
            |name: &str, text: &str| std::fs::write(folder.join(name), text).expect("it can be written");
        write("records-1-log.txt", &killed);
        write("records-1-snapshot.txt", &stopped);
        write("records-1-known.txt", &format!("# log\n{after_log}# snapshot\n{after_snapshot}"));
    }
}

#[test]
fn version_1_records_are_read() {
    for (heading, image) in [("# log", LOG), ("# snapshot", SNAPSHOT)] {
        let store = opened(image);
        let leases = leases();
        assert_eq!(list_state(&store, &leases), part(heading), "{heading}");
        for spec in limits() {
            assert_eq!(store.get(&spec.id).map(|limit| limit.spec().clone()), Some(spec));
        }
        assert_eq!(store.applied(), ["total"], "{heading}");
        // A granted request is repeated and charged once.
        let asks = [Ask { limit_id: "total", key: Some(b"ann"), count: 7 }];
        let order = Order { request_id: Some(REQUEST), ..Order::acquire(&asks) };
        let answers = store.submit(&[order], Replies::new(Detail::Verdicts)).decided();
        assert!(answers.get(0).expect("one").as_ref().expect("it makes sense").at < LOOKED_AT, "{heading}");
        let before = list_state(&store, &leases);
        assert_eq!(before, part(heading), "{heading}");
        for (name, lease) in leases {
            let is_there = store.renew(lease, None).decided().expect("it makes sense").is_some();
            assert_eq!(is_there, ["held", "renewed", "open"].contains(&name.as_str()), "{heading}: {name}");
            let settled = store.settle(lease, Actual::Every(1)).decided().expect("it makes sense");
            let gone = name == "released";
            assert_eq!(settled == Settlement::Gone, gone, "{heading}: {name}");
        }
        // A retired limit returns with its usage, and a forgotten one does not.
        for (id, used) in [("retired", 3), ("gone", 0)] {
            let spec = LimitSpec::named(id).with(ItemSpec::of(Policy::Total, 30).per_key());
            store.apply(vec![Edit::Put(spec, ExpectedVersion::Absent)]).expect("it makes sense");
            let usage = store.usage(id, Some(b"ann")).decided().expect("it is there");
            assert_eq!(usage.items[0].current_count, used, "{heading}: {id}");
        }
    }
}

/// The kinds of the records in an image.
fn kinds(image: &str) -> BTreeSet<u8> {
    let mut kinds = BTreeSet::new();
    let log_options = wal::LogOptions { segment_bytes: OPTIONS.segment_bytes };
    let read = WriteAheadLog::open(Arc::new(from_text(image)), log_options, &mut |entry| {
        let (ReplayEntry::Snapshot(mut payload) | ReplayEntry::Block { mut payload, .. }) = entry else {
            return Ok(());
        };
        while let [kind, rest @ ..] = payload {
            kinds.insert(*kind);
            // The length is a base-128 varint.
            let bytes = rest.iter().take_while(|byte| **byte & 0x80 != 0).count() + 1;
            let number =
                rest[..bytes].iter().rev().fold(0, |number, byte| number << 7 | usize::from(byte & 0x7f));
            payload = &rest[bytes + number..];
        }
        Ok(())
    });
    read.unwrap_or_else(|error| panic!("{error}"));
    kinds
}

#[test]
fn golden_files_contain_every_record_kind() {
    assert_eq!(kinds(LOG), BTreeSet::from([2, 3, 4, 5, 7, 8, 9, 10, 11]));
    assert_eq!(kinds(SNAPSHOT), BTreeSet::from([1, 2, 3, 5, 6, 7, 10, 11, 12]));
}
