//! Crashes: every reported decision holds after a crash.
//!
//! A random run uses a store on a recorded disk: grants, leases, request ids, edits, resets and snapshots, on
//! small and large limits of every law. A ledger records each reply when it is reported, which is when the
//! log is durable up to it. Then the machine crashes between any two writes, with unsynced data kept, lost,
//! torn or reordered. The store is opened from the remains and used until it refuses. The grants before and
//! after must not exceed the limit. They may fall short by unreported decisions and a slice at most.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tidegate::catalog::{Catalog, ExpectedVersion};
use tidegate::clock::ManualClock;
use tidegate::model::{
    Amount, Ask, Hold, ItemSpec, LeaseId, LimitSpec, Order, Per, Policy, Precision, Timestamp,
};
use tidegate::reply::{Detail, Outcome, Replies};
use tidegate::store::StoreReply;
use tidegate::store::{Lsn, Store};
use tidegate_core::Durability;
use tidegate_disk::DiskStore;
use tidegate_disk::directory::SimulatedDirectory;

use tidegate_testkit::test_scale::cases;

use crate::store::open;

/// The start time of every run.
const START: Timestamp = Timestamp::from_ticks(1_700_000_000_000_000_000);

/// A step of a run.
#[derive(Debug, Clone)]
enum CrashStep {
    /// Acquires from a limit for a key, in one or several orders of a batch.
    Take { limit: usize, key: u8, count: u8, times: u8 },
    /// Acquires with a request id that repeats.
    Request { limit: usize, key: u8, id: u8 },
    /// Acquires a concurrency slot.
    Hold,
    /// Releases the oldest slot.
    Release,
    /// Waits until everything is durable.
    Wait,
    /// Advances the clock.
    Pass(u8),
    /// Takes a snapshot.
    Snapshot,
    /// Edits a limit without a change of its capacity.
    Edit(usize),
    /// Resets a limit or one of its keys.
    Reset(usize, Option<u8>),
}

fn events() -> impl Strategy<Value = Vec<CrashStep>> {
    let event = prop_oneof![
        8 => (0..LIMITS, 0u8..3, 1u8..5, 1u8..9)
            .prop_map(|(limit, key, count, times)| CrashStep::Take { limit, key, count, times }),
        3 => (0..3usize, 0u8..2, 0u8..2).prop_map(|(limit, key, id)| CrashStep::Request { limit, key, id }),
        2 => Just(CrashStep::Hold),
        1 => Just(CrashStep::Release),
        3 => Just(CrashStep::Wait),
        1 => (1u8..50).prop_map(CrashStep::Pass),
        1 => Just(CrashStep::Snapshot),
        1 => (0..LIMITS).prop_map(CrashStep::Edit),
        1 => (0..LIMITS, prop::option::of(0u8..3)).prop_map(|(limit, key)| CrashStep::Reset(limit, key)),
    ];
    prop::collection::vec(event, 5..40)
}

const WINDOW: Duration = Duration::from_secs(3_600);

/// The limits of every run.
fn limits() -> Vec<LimitSpec> {
    let interval = Policy::Interval { window: WINDOW };
    let bucket = Policy::Bucket { window: Duration::from_secs(30 * 86_400), burst: Some(900) };
    let sliding = |precision| Policy::Sliding { window: WINDOW, precision };
    let limit = |id: &str, item: ItemSpec| LimitSpec::named(id).with(item);
    let sync = LimitSpec { durability: Durability::Sync, ..limit("sync", ItemSpec::of(Policy::Total, 600)) };
    vec![
        limit("total", ItemSpec::of(Policy::Total, 20)),
        limit("total-large", ItemSpec::of(Policy::Total, 1_000)),
        limit("total-key", ItemSpec::of(Policy::Total, 700).per_key()),
        limit("interval", ItemSpec::of(interval, 12).per_key()),
        limit("interval-large", ItemSpec::of(interval, 1_024).per_key()),
        limit("bucket", ItemSpec::of(bucket, 1).per_key()),
        limit("exact", ItemSpec::of(sliding(Precision::Exact), 40).per_key()),
        limit("exact-large", ItemSpec::of(sliding(Precision::Exact), 500)),
        limit("bucketed", ItemSpec::of(sliding(Precision::Bucketed), 800)),
        sync,
        limit("both", ItemSpec::of(Policy::Total, 900)).with(ItemSpec::of(interval, 600).per_key()),
    ]
}

const LIMITS: usize = 11;
const SLOTS: &str = "slots";
const MAX_SLOTS: Amount = 5;

/// The grants of one row.
#[derive(Debug, Clone, Default)]
struct RowGrants {
    /// Reported to the client.
    reported: Amount,
    /// Decided and not reported yet.
    unreported: Amount,
}

/// The expected state of the store.
struct GrantLedger {
    /// By limit and key. The last entry is the shared row.
    granted_rows: Vec<[RowGrants; 4]>,
    /// Granted request ids, and whether the grant was reported.
    requests: Vec<(usize, u8, u8, bool)>,
    leases: Vec<(LeaseId, bool)>,
    /// Leases whose release was reported.
    released: Vec<LeaseId>,
    /// Unreported decisions with their log positions.
    pending: Vec<(Lsn, ReportedEvent)>,
    /// Reported decisions with the number of disk changes at that time.
    history: Vec<(usize, ReportedEvent)>,
    directory: Option<Arc<SimulatedDirectory>>,
    crashes: Amount,
}

#[derive(Debug, Clone, Copy)]
enum ReportedEvent {
    Granted {
        limit: usize,
        key: u8,
        count: Amount,
    },
    Request {
        limit: usize,
        key: u8,
        id: u8,
    },
    Lease(LeaseId),
    Release(LeaseId),
    /// Earlier grants no longer count.
    Reset {
        limit: usize,
        key: Option<u8>,
    },
}

impl GrantLedger {
    /// Records that a limit is about to be reset.
    fn forget(&mut self, limit: usize, key: Option<u8>) {
        self.history.push((
            self.directory.as_ref().map_or(0, |directory| directory.changes()),
            ReportedEvent::Reset { limit, key },
        ));
        for row in 0..4 {
            if key.is_none_or(|key| usize::from(key) == row) {
                self.granted_rows[limit][row] = RowGrants::default();
            }
        }
    }

    fn new() -> GrantLedger {
        GrantLedger {
            granted_rows: vec![Default::default(); LIMITS],
            requests: Vec::new(),
            leases: Vec::new(),
            released: Vec::new(),
            pending: Vec::new(),
            history: Vec::new(),
            directory: None,
            crashes: 0,
        }
    }

    fn add_decision(&mut self, lsn: Option<Lsn>, reported: ReportedEvent) {
        if let ReportedEvent::Granted { limit, key, count } = reported {
            for row in [usize::from(key), 3] {
                self.granted_rows[limit][row].unreported += count;
            }
        }
        match lsn {
            Some(lsn) => self.pending.push((lsn, reported)),
            None => self.report(reported),
        }
    }

    fn report(&mut self, reported: ReportedEvent) {
        if let Some(directory) = &self.directory {
            self.history.push((directory.changes(), reported));
        }
        match reported {
            ReportedEvent::Granted { limit, key, count } => {
                for row in [usize::from(key), 3] {
                    self.granted_rows[limit][row].unreported -= count;
                    self.granted_rows[limit][row].reported += count;
                }
            }
            ReportedEvent::Request { limit, key, id } => {
                let known = self.requests.iter_mut().find(|(l, k, i, _)| (*l, *k, *i) == (limit, key, id));
                known.expect("it was noted").3 = true;
            }
            ReportedEvent::Lease(id) => {
                self.leases.iter_mut().find(|(lease, _)| *lease == id).expect("noted").1 = true;
            }
            ReportedEvent::Release(id) => self.released.push(id),
            ReportedEvent::Reset { .. } => {}
        }
    }

    /// Reports everything up to a durable position.
    fn report_durable(&mut self, durable: Lsn) {
        let (reported, pending) =
            std::mem::take(&mut self.pending).into_iter().partition(|(lsn, _)| *lsn <= durable);
        self.pending = pending;
        let reported: Vec<(Lsn, ReportedEvent)> = reported;
        for (_, reported) in reported {
            self.report(reported);
        }
    }
}

fn key_name(key: u8) -> [u8; 2] {
    [b'k', b'0' + key]
}

/// Acquires `count` units, `times` times in one batch.
fn take(store: &DiskStore, ledger: &mut GrantLedger, limit: usize, key: u8, count: u8, times: u8) -> Amount {
    let id = limits()[limit].id.clone();
    let name = key_name(key);
    let asks = [Ask { limit_id: &id, key: Some(&name), count: Amount::from(count) }];
    let orders = vec![Order::acquire(&asks); usize::from(times)];
    let (answers, lsn) = split_reply(store.submit(&orders, Replies::new(Detail::Verdicts)));
    let granted = answers
        .iter()
        .filter(|answer| answer.as_ref().is_ok_and(tidegate::reply::OrderReply::is_granted))
        .count();
    let count = Amount::from(count) * granted as Amount;
    if count > 0 {
        ledger.add_decision(lsn, ReportedEvent::Granted { limit, key, count });
    }
    count
}

fn request(store: &DiskStore, ledger: &mut GrantLedger, limit: usize, key: u8, id: u8) {
    let limit_id = limits()[limit].id.clone();
    let (name, request) = (key_name(key), [id, b'0' + u8::try_from(limit).expect("few"), key]);
    let asks = [Ask { limit_id: &limit_id, key: Some(&name), count: 1 }];
    let order = Order { request_id: Some(&request), ..Order::acquire(&asks) };
    let (answers, lsn) = split_reply(store.submit(&[order], Replies::new(Detail::Verdicts)));
    let granted = answers.get(0).expect("one").as_ref().expect("it makes sense").is_granted();
    let known = ledger.requests.iter().any(|(l, k, i, _)| (*l, *k, *i) == (limit, key, id));
    if granted && !known {
        ledger.add_decision(lsn, ReportedEvent::Granted { limit, key, count: 1 });
        ledger.requests.push((limit, key, id, false));
    }
    if granted {
        ledger.add_decision(lsn, ReportedEvent::Request { limit, key, id });
    }
    if known {
        assert!(granted, "what was granted is granted again");
    }
}

fn hold(store: &DiskStore, ledger: &mut GrantLedger) -> bool {
    let asks = [Ask::one(SLOTS, None)];
    let order = Order { hold: Hold::No, ..Order::acquire(&asks) };
    let (answers, lsn) = split_reply(store.submit(&[order], Replies::new(Detail::Verdicts)));
    let answer = answers.get(0).expect("one").as_ref().expect("it makes sense");
    let Outcome::Granted(Some(grant)) = &answer.outcome else { return false };
    ledger.leases.push((grant.lease, false));
    ledger.add_decision(lsn, ReportedEvent::Lease(grant.lease));
    true
}

pub(crate) fn split_reply<T>(reply: StoreReply<T>) -> (T, Option<Lsn>) {
    match reply {
        StoreReply::Now(reply) => (reply, None),
        StoreReply::Durable(reply, lsn) => (reply, Some(lsn)),
        StoreReply::Later(_) => panic!("the disk is well"),
    }
}

fn play(store: &DiskStore, clock: &ManualClock, ledger: &mut GrantLedger, events: &[CrashStep]) {
    for event in events {
        match *event {
            CrashStep::Take { limit, key, count, times } => {
                take(store, ledger, limit, key, count, times);
            }
            CrashStep::Request { limit, key, id } => request(store, ledger, limit, key, id),
            CrashStep::Hold => {
                hold(store, ledger);
            }
            CrashStep::Release => {
                if let Some(at) = ledger.leases.iter().position(|(_, reported)| *reported) {
                    let (lease, _) = ledger.leases.remove(at);
                    let (released, lsn) = split_reply(store.release(lease));
                    assert!(released, "it was held");
                    ledger.add_decision(lsn, ReportedEvent::Release(lease));
                }
            }
            CrashStep::Wait => wait(store, ledger),
            CrashStep::Edit(limit) => {
                let spec = limits().swap_remove(limit);
                let version = store.get(&spec.id).expect("it is there").version();
                let spec = LimitSpec { description: Some(format!("after {version}")), ..spec };
                store.put(spec, ExpectedVersion::Version(version)).expect("it makes sense");
            }
            CrashStep::Reset(limit, key) => {
                let spec = limits().swap_remove(limit);
                // The reset of a key does not affect the shared row.
                let key = key.filter(|_| spec.items.iter().all(|item| item.per == Per::Key));
                wait(store, ledger);
                ledger.forget(limit, key);
                let name = key.map(key_name);
                split_reply(store.reset(&spec.id, name.as_ref().map(|name| &name[..])))
                    .0
                    .expect("it is there");
                wait(store, ledger);
            }
            CrashStep::Pass(millis) => clock.advance(Duration::from_millis(u64::from(millis))),
            CrashStep::Snapshot => store.snapshot().expect("the disk is well"),
        }
    }
}

/// Waits until all decisions are durable, and reports them.
fn wait(store: &DiskStore, ledger: &mut GrantLedger) {
    let tip = store.log_end().expect("it has a log");
    store.wait_durable(tip).expect("the disk is well");
    ledger.report_durable(tip);
}

/// The capacity of a row, and how much of it a crash may lose.
fn bounds(spec: &LimitSpec, row: usize) -> Option<(Amount, Amount)> {
    let per = if row == 3 { Per::All } else { Per::Key };
    let item = spec.items.iter().find(|item| item.per == per)?;
    let tidegate::model::Capacity::AtMost(limit) = item.limit else { panic!("all are limited") };
    let limit = if let Policy::Bucket { burst, .. } = item.policy { burst.unwrap_or(limit) } else { limit };
    let exact = matches!(item.policy, Policy::Sliding { precision: Precision::Exact, .. });
    let slice = if exact || spec.durability == Durability::Sync { 0 } else { limit / 256 };
    Some((limit, slice))
}

/// Opens the remains and checks leases, releases and request ids.
fn check(image: SimulatedDirectory, clock: &Arc<ManualClock>, ledger: &mut GrantLedger) -> DiskStore {
    let store = open(&Arc::new(image), clock);
    ledger.crashes += 1;
    // These will never be reported. An unreported request counts as new.
    ledger.pending.clear();
    ledger.requests.retain(|(_, _, _, reported)| *reported);
    for (lease, reported) in std::mem::take(&mut ledger.leases) {
        let renewed = split_reply(store.renew(lease, None)).0.expect("it makes sense");
        assert!(renewed.is_some() || !reported, "a lease that was reported is gone");
        if renewed.is_some() {
            ledger.leases.push((lease, true));
        }
    }
    for lease in &ledger.released {
        assert!(!split_reply(store.release(*lease)).0, "what was given back is held");
    }
    for (limit, key, id, reported) in ledger.requests.clone() {
        assert!(reported, "the others were struck out");
        let used = used(&store, limit, key);
        request(&store, ledger, limit, key, id);
        assert_eq!(self::used(&store, limit, key), used, "a retried request is charged once");
    }
    store
}

fn used(store: &DiskStore, limit: usize, key: u8) -> Vec<Amount> {
    let id = limits()[limit].id.clone();
    let name = key_name(key);
    let asks = [Ask { limit_id: &id, key: Some(&name), count: 0 }];
    let answers = store.submit(&[Order::peek(&asks)], Replies::new(Detail::Readings)).decided();
    let answer = answers.get(0).expect("one").as_ref().expect("it makes sense");
    answers.readings(answer).iter().map(|each| each.reading.used).collect()
}

/// Acquires until every limit is used up.
fn sell_out(store: &DiskStore, ledger: &mut GrantLedger) {
    for (limit, spec) in limits().iter().enumerate() {
        for key in 0..3 {
            while take(store, ledger, limit, key, 1, 64) > 0 {}
        }
        for row in 0..4 {
            let Some((most, slice)) = bounds(spec, row) else { continue };
            let granted_rows = &ledger.granted_rows[limit][row];
            let reported = granted_rows.reported + granted_rows.unreported;
            let id = &spec.id;
            assert!(
                granted_rows.reported <= most,
                "{id}: {} of {most} were reported in row {row}",
                granted_rows.reported
            );
            // A key may also be refused because of the shared row.
            let alone = row == 3 || !spec.items.iter().any(|item| item.per == Per::All);
            let lost = ledger.crashes * slice;
            assert!(
                !alone || reported + lost >= most,
                "{id}: only {reported} of {most} in row {row} after {} crashes",
                ledger.crashes
            );
        }
    }
    let mut held = Amount::try_from(ledger.leases.len()).expect("few");
    while hold(store, ledger) {
        held += 1;
    }
    let open = ledger.leases.len() as Amount;
    assert_eq!(open, held);
    assert!(open <= MAX_SLOTS, "{open} slots are held");
}

fn start_run(
    directory: &Arc<SimulatedDirectory>,
    events: &[CrashStep],
    keeps_history: bool,
) -> (DiskStore, Arc<ManualClock>, GrantLedger) {
    let clock = Arc::new(ManualClock::at(START));
    let store = open(directory, &clock);
    for spec in limits() {
        store.put(spec, ExpectedVersion::Absent).expect("it makes sense");
    }
    let slots = ItemSpec::of(Policy::Concurrency { ttl: WINDOW }, MAX_SLOTS);
    store.put(LimitSpec::named(SLOTS).with(slots), ExpectedVersion::Absent).expect("it makes sense");
    store.wait_durable(store.log_end().expect("it has a log")).expect("the disk is well");
    let mut ledger = GrantLedger::new();
    ledger.directory = keeps_history.then(|| Arc::clone(directory));
    play(&store, &clock, &mut ledger, events);
    (store, clock, ledger)
}

/// Crashes at random changes of a run, and checks that the store remembers at least the reported usage and at
/// most the decided usage plus a slice.
#[test]
fn crash_at_any_change_keeps_reported_usage() {
    let result = TestRunner::new(cases(RECORDED_RUNS)).run(&(events(), any::<u64>()), |(events, seed)| {
        let directory = Arc::new(SimulatedDirectory::recorded());
        let (store, clock, mut ledger) = start_run(&directory, &events, true);
        let first_change = ledger.history.first().map_or(directory.changes(), |(change, _)| *change);
        store.wait_durable(store.log_end().expect("it has a log")).expect("the disk is well");
        ledger.report_durable(store.durable());
        drop(store);
        let moments = directory.changes() - first_change + 1;
        for image in 0..IMAGES {
            let random = seed.wrapping_add(image).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let moment = first_change + usize::try_from(random >> 33).expect("31 bits") % moments;
            check_image(directory.crash_after(moment, random), moment, &clock, &ledger);
        }
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

/// Opens an image and compares it with the reported and the decided usage.
fn check_image(image: SimulatedDirectory, moment: usize, clock: &Arc<ManualClock>, ledger: &GrantLedger) {
    let store = open(&Arc::new(image), clock);
    let reported: Vec<ReportedEvent> = ledger
        .history
        .iter()
        .filter(|(change, _)| *change <= moment)
        .map(|(_, reported)| *reported)
        .collect();
    for (limit, spec) in limits().iter().enumerate() {
        for key in 0..3 {
            let used = used(&store, limit, key);
            for (item, used) in spec.items.iter().zip(used) {
                let row = if item.per == Per::All { 3 } else { usize::from(key) };
                let own = |each: &&ReportedEvent| match each {
                    ReportedEvent::Granted { limit: other, key, .. } => {
                        *other == limit && (row == 3 || usize::from(*key) == row)
                    }
                    _ => false,
                };
                let count = |each: &ReportedEvent| {
                    if let ReportedEvent::Granted { count, .. } = each { *count } else { 0 }
                };
                let zeroed = |each: &ReportedEvent| match *each {
                    ReportedEvent::Reset { limit: other, key } => {
                        other == limit && key.is_none_or(|key| row != 3 && usize::from(key) == row)
                    }
                    _ => false,
                };
                let since = reported.iter().rposition(zeroed).map_or(0, |at| at + 1);
                let reported: Amount = reported[since..].iter().filter(own).map(count).sum();
                assert!(
                    used >= reported,
                    "{}: {used} are remembered in row {row}, and {reported} were reported",
                    spec.id
                );
                let (_, slice) = bounds(spec, row).expect("there is such a row");
                let decided: Amount =
                    ledger.history.iter().map(|(_, each)| each).filter(own).map(count).sum();
                assert!(
                    used <= decided + slice,
                    "{}: {used} are remembered in row {row} of {decided}",
                    spec.id
                );
            }
        }
    }
    let released = |id: LeaseId| {
        ledger.history.iter().any(|(_, each)| matches!(each, ReportedEvent::Release(other) if *other == id))
    };
    for each in &reported {
        match *each {
            ReportedEvent::Lease(id) if !released(id) => {
                assert!(
                    split_reply(store.renew(id, None)).0.expect("it makes sense").is_some(),
                    "a lease is gone"
                );
            }
            ReportedEvent::Release(id) => {
                assert!(!split_reply(store.release(id)).0, "what was given back is held");
            }
            ReportedEvent::Request { limit, key, id } => {
                let before = used(&store, limit, key);
                let mut again = GrantLedger::new();
                again.requests.push((limit, key, id, true));
                request(&store, &mut again, limit, key, id);
                assert_eq!(used(&store, limit, key), before, "a retried request is charged once");
            }
            _ => {}
        }
    }
}

/// The number of recorded runs, and of crash images per run.
const RECORDED_RUNS: u32 = 40;
const IMAGES: u64 = 260;

/// The number of runs with a continuation, and of crashes per run.
const RUNS: u32 = 40;
const CRASHES_PER_RUN: u64 = 3;

/// Power failure: unsynced data is kept, lost, torn or reordered.
#[test]
fn power_failure_grants_no_unit_twice() {
    crash_and_continue(SimulatedDirectory::crash);
}

/// Killed process: all written data is there.
#[test]
fn killed_process_grants_no_unit_twice() {
    crash_and_continue(|directory, _| directory.killed());
}

fn crash_and_continue(crash: impl Fn(&SimulatedDirectory, u64) -> SimulatedDirectory) {
    let mut runner = TestRunner::new(cases(RUNS));
    let inputs = (events(), events(), any::<u64>());
    let result = runner.run(&inputs, |(before, after, seed)| {
        for death in 0..CRASHES_PER_RUN {
            let directory = Arc::new(SimulatedDirectory::new());
            let (store, clock, mut ledger) = start_run(&directory, &before, false);
            // Everything durable now may have been reported. What becomes durable during the crash was not.
            ledger.report_durable(store.durable());
            let image = crash(&directory, seed.wrapping_add(death));
            drop(store);
            let store = check(image, &clock, &mut ledger);
            // The store continues after the crash.
            play(&store, &clock, &mut ledger, &after);
            ledger.report_durable(store.durable());
            sell_out(&store, &mut ledger);
        }
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}
