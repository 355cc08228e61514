//! Many askers at once: nothing is granted that the definitions do not allow, as proved from the record.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::{
    Answers, Ask, Catalog, Charge, Clock, Detail, Expect, ItemSpec, LimitSpec, MapStore, Order, Outcome,
    Policy, Precision, Store, Tick, Timestamp, Unit,
};
use tidegate_testkit::checker::{Entry, Proof, Record, check};

const ASKERS: usize = 8;
const ORDERS_EACH: usize = 300;

/// A window short enough to roll over many times while the test runs.
const WINDOW: Duration = Duration::from_millis(2);

/// A clock on which a microsecond passes whenever somebody looks, so that nothing depends on how fast the machine is.
struct SteppingClock(AtomicU64);

impl Clock for SteppingClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_ticks(self.0.fetch_add(1_000, Ordering::SeqCst))
    }
}

/// Eight threads ask for one limit; the record of what they were told.
fn record(spec: LimitSpec) -> Record {
    let clock = Arc::new(SteppingClock(AtomicU64::new(1_700_000_000_000_000_000)));
    let store = MapStore::new(Arc::clone(&clock), 1);
    store.put(spec.clone(), Expect::Absent).expect("a valid limit");
    let entries = std::thread::scope(|scope| {
        let asker = |asker: usize| {
            let (store, clock, id) = (&store, &clock, &spec.id);
            move || -> Vec<Entry> {
                let mut buffer = Answers::new(Detail::Verdicts);
                let mut entries = Vec::new();
                for turn in 0..ORDERS_EACH {
                    let key = [b'a' + u8::try_from((asker + turn) % 3).expect("one of three")];
                    let count = 1 + (turn as u64 % 2);
                    let asks = [Ask { limit_id: id, key: Some(&key), count }];
                    let start = clock.now();
                    buffer = store.submit(&[Order::acquire(&asks)], buffer).now();
                    let end = clock.now();
                    let answer =
                        buffer.get(0).and_then(|answer| answer.as_ref().ok()).expect("a sensible order");
                    let mut entry = Entry::granted_within(start, end, Some(&key), count);
                    entry.at = Some(answer.at);
                    entry.granted = answer.is_granted();
                    if let Outcome::Granted(Some(grant)) = &answer.outcome {
                        entry.returned = Some(clock.now());
                        store.release(grant.lease).now();
                    }
                    entries.push(entry);
                }
                entries
            }
        };
        let askers: Vec<_> = (0..ASKERS).map(|index| scope.spawn(asker(index))).collect();
        askers.into_iter().flat_map(|asker| asker.join().expect("askers do not panic")).collect()
    });
    Record { spec, tick: Tick::NANOSECOND, entries }
}

#[track_caller]
fn proved(policy: Policy) {
    let item = |limit| ItemSpec { charge: Some(Charge::Count), ..ItemSpec::of(policy, limit) };
    let record = record(LimitSpec::named("l").with(item(20)).with(item(9).per_key()));
    let granted = record.entries.iter().filter(|entry| entry.granted).count();
    assert!(granted > 0 && granted < record.entries.len(), "{granted} granted: the limit was not tried");
    match check(&record) {
        Ok(proof) => assert_eq!(proof, Proof::Exact),
        Err(violation) => panic!("{violation}"),
    }
}

#[test]
fn total() {
    proved(Policy::Total);
}

#[test]
fn calendar() {
    proved(Policy::Calendar(Unit::Hour));
}

#[test]
fn interval() {
    proved(Policy::Interval { window: WINDOW });
}

#[test]
fn sliding() {
    proved(Policy::Sliding { window: WINDOW, precision: Precision::Exact });
}

#[test]
fn bucketed() {
    proved(Policy::Sliding { window: WINDOW, precision: Precision::Bucketed });
}

#[test]
fn bucket() {
    proved(Policy::Bucket { window: WINDOW, burst: None });
}

#[test]
fn concurrency() {
    let policy = Policy::Concurrency { ttl: Duration::from_secs(60) };
    let item = |limit| ItemSpec { charge: Some(Charge::Count), ..ItemSpec::of(policy, limit) };
    let record = record(LimitSpec::named("l").with(item(6)).with(item(3).per_key()));
    assert!(record.entries.iter().any(|entry| entry.granted));
    check(&record).unwrap_or_else(|violation| panic!("{violation}"));
}
