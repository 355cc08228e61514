//! A simulated week of traffic: the size of the directory and the cost of a decision do not depend on the age
//! of the store.
//!
//! Keys come and go, some rows are hot, leases are taken, renewed and released, orders have request ids, and
//! limits are edited, reset, removed and put again. Maintenance runs once per minute. The clock is manual, so
//! a week takes seconds.

use std::sync::Arc;
use std::time::Duration;

use tidegate::catalog::{Catalog, ExpectedVersion, RemovalMode};
use tidegate::clock::ManualClock;
use tidegate::model::{Ask, ItemSpec, LeaseId, LimitSpec, Order, Policy, Precision, Timestamp};
use tidegate::reply::{Detail, Outcome, Replies};
use tidegate::store::{Lsn, Store};
use tidegate_disk::DiskStore;
use tidegate_disk::directory::SimulatedDirectory;

use crate::store::{OPTIONS, open};

const START: Timestamp = Timestamp::from_ticks(1_700_000_000_000_000_000);
const MINUTE: Duration = Duration::from_secs(60);
const MINUTES_A_DAY: u64 = 24 * 60;
const DAYS: u64 = 7;
/// The number of active keys. Every minute some are replaced.
const KEYS: u64 = 400;
const NEW_A_MINUTE: u64 = 20;
/// The number of orders of each kind per minute.
const ORDERS: u64 = 12;

/// The maximum size of the directory: a log of `snapshot_after`, two snapshots, and the unused rest of
/// segments.
const MOST_BYTES: u64 = 2 * OPTIONS.snapshot_after + 4 * OPTIONS.segment_bytes;

fn limits() -> Vec<LimitSpec> {
    let limit = |id: &str, item: ItemSpec| LimitSpec::named(id).with(item);
    let minutes = |minutes: u32| MINUTE * minutes;
    let sliding = Policy::Sliding { window: minutes(10), precision: Precision::Exact };
    vec![
        limit("hot", ItemSpec::of(Policy::Interval { window: minutes(60) }, 1_000_000)),
        limit("few", ItemSpec::of(Policy::Interval { window: minutes(30) }, 100).per_key()),
        limit("many", ItemSpec::of(Policy::Bucket { window: MINUTE, burst: None }, 1_024).per_key()),
        limit("sliding", ItemSpec::of(sliding, 1_000).per_key()),
        limit("slots", ItemSpec::of(Policy::Concurrency { ttl: minutes(5) }, 1_000)),
    ]
}

struct WeekRun {
    store: DiskStore,
    directory: Arc<SimulatedDirectory>,
    clock: Arc<ManualClock>,
    leases: Vec<LeaseId>,
    decisions: u64,
    /// The largest size of the directory since the last check.
    largest: u64,
}

impl WeekRun {
    fn order(&mut self, limit: &str, key: u64, request: Option<u64>) {
        let (name, request) = (key.to_string(), request.map(u64::to_le_bytes));
        let asks = [Ask::one(limit, Some(name.as_bytes()))];
        let request_id = request.as_ref().map(|id| &id[..]);
        let order = Order { request_id, ..Order::acquire(&asks) };
        let answers = self.store.submit(&[order], Replies::new(Detail::Verdicts)).decided();
        let answer = answers.get(0).expect("one").as_ref().expect("it makes sense");
        if let Outcome::Granted(Some(grant)) = &answer.outcome {
            self.leases.push(grant.lease);
        }
        self.decisions += 1;
    }

    fn minute(&mut self, minute: u64) {
        for index in 0..ORDERS {
            let random = (minute * ORDERS + index).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            let key = minute * NEW_A_MINUTE + random % KEYS;
            for limit in ["hot", "few", "many", "sliding"] {
                self.order(limit, key, None);
            }
            self.order("slots", key, None);
            self.order("few", key, (index == 0).then_some(minute));
        }
        // Half of the leases are released, some are renewed, and the rest expires.
        for lease in std::mem::take(&mut self.leases) {
            match lease.0 >> 64 & 3 {
                0 | 1 => drop(self.store.release(lease).decided()),
                2 => drop(self.store.renew(lease, None).decided()),
                _ => {}
            }
        }
        if minute.is_multiple_of(60) {
            self.edit(minute);
        }
        self.store.wait_durable(self.store.log_end().expect("it has a log")).expect("the disk is well");
        self.largest = self.largest.max(self.directory.used());
        self.store.run_maintenance();
        self.largest = self.largest.max(self.directory.used());
        self.clock.advance(MINUTE);
    }

    /// Runs once per hour.
    fn edit(&mut self, minute: u64) {
        let spec = limits().swap_remove(usize::try_from(minute / 60 % 4).expect("few"));
        let id = spec.id.clone();
        self.store.reset(&id, None).decided().expect("it is there");
        if minute.is_multiple_of(360) {
            assert!(self.store.remove(&id, RemovalMode::Forget));
        }
        let spec = LimitSpec { description: Some(format!("of minute {minute}")), ..spec };
        self.store.put(spec, ExpectedVersion::Anything).expect("it makes sense");
    }

    fn log_end(&self) -> Lsn {
        self.store.log_end().expect("it has a log")
    }
}

#[test]
fn directory_size_after_week_equals_day() {
    let (directory, clock) = (Arc::new(SimulatedDirectory::new()), Arc::new(ManualClock::at(START)));
    let store = open(&directory, &clock);
    for spec in limits() {
        store.put(spec, ExpectedVersion::Absent).expect("it makes sense");
    }
    let mut week = WeekRun { store, directory, clock, leases: Vec::new(), decisions: 0, largest: 0 };
    let mut days = Vec::new();
    for day in 0..DAYS {
        let (tip, decisions) = (week.log_end(), week.decisions);
        for minute in 0..MINUTES_A_DAY {
            week.minute(day * MINUTES_A_DAY + minute);
        }
        let written = week.log_end().0 - tip.0;
        days.push((week.largest, written * 1_000 / (week.decisions - decisions)));
        week.largest = 0;
    }
    // The first day starts with an empty store.
    let (_, usual) = days[1];
    for (largest, per_thousand) in &days[1..] {
        assert!(*largest <= MOST_BYTES, "{largest} bytes, at most {MOST_BYTES}; {days:?}");
        assert!(
            *per_thousand <= usual + usual / 20,
            "{per_thousand} bytes for a thousand decisions; {days:?}"
        );
    }
    assert!(week.store.log_bytes() < OPTIONS.snapshot_after, "maintenance has shortened the log");
    let size = week.store.size().expect("it knows");
    assert!(size.leases < 1_000, "{size:?}");
}
