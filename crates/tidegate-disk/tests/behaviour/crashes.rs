//! Crashes: whatever was told before one holds after it.
//!
//! A *life* is a story on a store whose disk records every write: grants, leases, request ids, edits, resets, snapshots, on limits of
//! every law, small and large. The clock stands or moves with the story. Every answer is written into a diary when it may be told, which
//! is when the log is durable up to it. Then the machine dies: between any two writes, with everything that was not synced kept, lost, torn
//! or reordered. The store is opened from what is left and asked until it refuses, and what it sells then and what was told before
//! together must not be more than the limit. Nor much less: what was decided and not told, and a slice.

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

/// A moment of a life at which the machine may die.
const START: Timestamp = Timestamp::from_ticks(1_700_000_000_000_000_000);

/// Something that happens.
#[derive(Debug, Clone)]
enum Event {
    /// So many of this limit for this key, one order or several at once.
    Take { limit: usize, key: u8, count: u8, times: u8 },
    /// With a request id, asked again and again.
    Request { limit: usize, key: u8, id: u8 },
    /// A concurrency slot is taken.
    Hold,
    /// The oldest slot is given back.
    GiveBack,
    /// What was said before is waited for.
    Wait,
    /// Time passes.
    Pass(u8),
    /// A snapshot takes the place of the log.
    Snapshot,
    /// The limit gets another text that allows the same.
    Edit(usize),
    /// The counts of a limit, or of one key of it, are zeroed.
    Reset(usize, Option<u8>),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        8 => (0..LIMITS, 0u8..3, 1u8..5, 1u8..9)
            .prop_map(|(limit, key, count, times)| Event::Take { limit, key, count, times }),
        3 => (0..3usize, 0u8..2, 0u8..2).prop_map(|(limit, key, id)| Event::Request { limit, key, id }),
        2 => Just(Event::Hold),
        1 => Just(Event::GiveBack),
        3 => Just(Event::Wait),
        1 => (1u8..50).prop_map(Event::Pass),
        1 => Just(Event::Snapshot),
        1 => (0..LIMITS).prop_map(Event::Edit),
        1 => (0..LIMITS, prop::option::of(0u8..3)).prop_map(|(limit, key)| Event::Reset(limit, key)),
    ];
    prop::collection::vec(event, 5..40)
}

const WINDOW: Duration = Duration::from_secs(3_600);

/// The limits of every life, with what each may sell in an hour.
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
const MOST_SLOTS: Amount = 5;

/// What was sold of one row, as far as it matters later.
#[derive(Debug, Clone, Default)]
struct Sold {
    /// Told: the client has it.
    told: Amount,
    /// Decided, and perhaps never told.
    untold: Amount,
}

/// What a life leaves behind.
struct Diary {
    /// By limit and key; all keys together under the last.
    sold: Vec<[Sold; 4]>,
    /// Request ids with what they were granted for, and whether that was told.
    requests: Vec<(usize, u8, u8, bool)>,
    leases: Vec<(LeaseId, bool)>,
    /// Leases whose release was told.
    released: Vec<LeaseId>,
    /// What is not told yet, with its place in the log.
    pending: Vec<(Lsn, Told)>,
    /// What was told, and after how many changes of the disk.
    history: Vec<(usize, Told)>,
    directory: Option<Arc<SimulatedDirectory>>,
    deaths: Amount,
}

#[derive(Debug, Clone, Copy)]
enum Told {
    Sold {
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
    /// What was told before does not count any more.
    Reset {
        limit: usize,
        key: Option<u8>,
    },
}

impl Diary {
    /// The counts of a limit are about to be zeroed.
    fn forget(&mut self, limit: usize, key: Option<u8>) {
        self.history.push((
            self.directory.as_ref().map_or(0, |directory| directory.changes()),
            Told::Reset { limit, key },
        ));
        for row in 0..4 {
            if key.is_none_or(|key| usize::from(key) == row) {
                self.sold[limit][row] = Sold::default();
            }
        }
    }

    fn new() -> Diary {
        Diary {
            sold: vec![Default::default(); LIMITS],
            requests: Vec::new(),
            leases: Vec::new(),
            released: Vec::new(),
            pending: Vec::new(),
            history: Vec::new(),
            directory: None,
            deaths: 0,
        }
    }

    fn note(&mut self, lsn: Option<Lsn>, told: Told) {
        if let Told::Sold { limit, key, count } = told {
            for row in [usize::from(key), 3] {
                self.sold[limit][row].untold += count;
            }
        }
        match lsn {
            Some(lsn) => self.pending.push((lsn, told)),
            None => self.tell(told),
        }
    }

    fn tell(&mut self, told: Told) {
        if let Some(directory) = &self.directory {
            self.history.push((directory.changes(), told));
        }
        match told {
            Told::Sold { limit, key, count } => {
                for row in [usize::from(key), 3] {
                    self.sold[limit][row].untold -= count;
                    self.sold[limit][row].told += count;
                }
            }
            Told::Request { limit, key, id } => {
                let known = self.requests.iter_mut().find(|(l, k, i, _)| (*l, *k, *i) == (limit, key, id));
                known.expect("it was noted").3 = true;
            }
            Told::Lease(id) => {
                self.leases.iter_mut().find(|(lease, _)| *lease == id).expect("noted").1 = true;
            }
            Told::Release(id) => self.released.push(id),
            Told::Reset { .. } => {}
        }
    }

    /// Whatever the log is durable up to is told.
    fn hear(&mut self, durable: Lsn) {
        let (told, pending) =
            std::mem::take(&mut self.pending).into_iter().partition(|(lsn, _)| *lsn <= durable);
        self.pending = pending;
        let told: Vec<(Lsn, Told)> = told;
        for (_, told) in told {
            self.tell(told);
        }
    }
}

fn key_name(key: u8) -> [u8; 2] {
    [b'k', b'0' + key]
}

/// Takes `count`, `times` in one batch.
fn take(store: &DiskStore, diary: &mut Diary, limit: usize, key: u8, count: u8, times: u8) -> Amount {
    let id = limits()[limit].id.clone();
    let name = key_name(key);
    let asks = [Ask { limit_id: &id, key: Some(&name), count: Amount::from(count) }];
    let orders = vec![Order::acquire(&asks); usize::from(times)];
    let (answers, lsn) = spoken(store.submit(&orders, Replies::new(Detail::Verdicts)));
    let granted = answers
        .iter()
        .filter(|answer| answer.as_ref().is_ok_and(tidegate::reply::OrderReply::is_granted))
        .count();
    let count = Amount::from(count) * granted as Amount;
    if count > 0 {
        diary.note(lsn, Told::Sold { limit, key, count });
    }
    count
}

fn request(store: &DiskStore, diary: &mut Diary, limit: usize, key: u8, id: u8) {
    let limit_id = limits()[limit].id.clone();
    let (name, request) = (key_name(key), [id, b'0' + u8::try_from(limit).expect("few"), key]);
    let asks = [Ask { limit_id: &limit_id, key: Some(&name), count: 1 }];
    let order = Order { request_id: Some(&request), ..Order::acquire(&asks) };
    let (answers, lsn) = spoken(store.submit(&[order], Replies::new(Detail::Verdicts)));
    let granted = answers.get(0).expect("one").as_ref().expect("it makes sense").is_granted();
    let known = diary.requests.iter().any(|(l, k, i, _)| (*l, *k, *i) == (limit, key, id));
    if granted && !known {
        diary.note(lsn, Told::Sold { limit, key, count: 1 });
        diary.requests.push((limit, key, id, false));
    }
    if granted {
        diary.note(lsn, Told::Request { limit, key, id });
    }
    if known {
        assert!(granted, "what was granted is granted again");
    }
}

fn hold(store: &DiskStore, diary: &mut Diary) -> bool {
    let asks = [Ask::one(SLOTS, None)];
    let order = Order { hold: Hold::No, ..Order::acquire(&asks) };
    let (answers, lsn) = spoken(store.submit(&[order], Replies::new(Detail::Verdicts)));
    let answer = answers.get(0).expect("one").as_ref().expect("it makes sense");
    let Outcome::Granted(Some(grant)) = &answer.outcome else { return false };
    diary.leases.push((grant.lease, false));
    diary.note(lsn, Told::Lease(grant.lease));
    true
}

pub(crate) fn spoken<T>(spoken: StoreReply<T>) -> (T, Option<Lsn>) {
    match spoken {
        StoreReply::Now(reply) => (reply, None),
        StoreReply::Durable(reply, lsn) => (reply, Some(lsn)),
        StoreReply::Later(_) => panic!("the disk is well"),
    }
}

fn live(store: &DiskStore, clock: &ManualClock, diary: &mut Diary, events: &[Event]) {
    for event in events {
        match *event {
            Event::Take { limit, key, count, times } => {
                take(store, diary, limit, key, count, times);
            }
            Event::Request { limit, key, id } => request(store, diary, limit, key, id),
            Event::Hold => {
                hold(store, diary);
            }
            Event::GiveBack => {
                if let Some(at) = diary.leases.iter().position(|(_, told)| *told) {
                    let (lease, _) = diary.leases.remove(at);
                    let (released, lsn) = spoken(store.release(lease));
                    assert!(released, "it was held");
                    diary.note(lsn, Told::Release(lease));
                }
            }
            Event::Wait => wait(store, diary),
            Event::Edit(limit) => {
                let spec = limits().swap_remove(limit);
                let version = store.get(&spec.id).expect("it is there").version();
                let spec = LimitSpec { description: Some(format!("after {version}")), ..spec };
                store.put(spec, ExpectedVersion::Version(version)).expect("it makes sense");
            }
            Event::Reset(limit, key) => {
                let spec = limits().swap_remove(limit);
                // A key's reset leaves what all keys have used together.
                let key = key.filter(|_| spec.items.iter().all(|item| item.per == Per::Key));
                wait(store, diary);
                diary.forget(limit, key);
                let name = key.map(key_name);
                spoken(store.reset(&spec.id, name.as_ref().map(|name| &name[..]))).0.expect("it is there");
                wait(store, diary);
            }
            Event::Pass(millis) => clock.advance(Duration::from_millis(u64::from(millis))),
            Event::Snapshot => store.snapshot().expect("the disk is well"),
        }
    }
}

/// Waits until everything that was decided can be told, and tells it.
fn wait(store: &DiskStore, diary: &mut Diary) {
    let tip = store.tip().expect("it has a log");
    store.wait_durable(tip).expect("the disk is well");
    diary.hear(tip);
}

/// What may be sold of a row in an hour, and what a crash may lose of it.
fn bounds(spec: &LimitSpec, row: usize) -> Option<(Amount, Amount)> {
    let per = if row == 3 { Per::All } else { Per::Key };
    let item = spec.items.iter().find(|item| item.per == per)?;
    let tidegate::model::Capacity::AtMost(limit) = item.limit else { panic!("all are limited") };
    let limit = if let Policy::Bucket { burst, .. } = item.policy { burst.unwrap_or(limit) } else { limit };
    let exact = matches!(item.policy, Policy::Sliding { precision: Precision::Exact, .. });
    let slice = if exact || spec.durability == Durability::Sync { 0 } else { limit / 256 };
    Some((limit, slice))
}

/// Opens what is left, sells the rest, and looks whether it was too much or too little.
fn check(image: SimulatedDirectory, clock: &Arc<ManualClock>, diary: &mut Diary) -> DiskStore {
    let store = open(&Arc::new(image), clock);
    diary.deaths += 1;
    // Nobody will ever be told of these; a request of which nobody heard is as good as new.
    diary.pending.clear();
    diary.requests.retain(|(_, _, _, told)| *told);
    for (lease, told) in std::mem::take(&mut diary.leases) {
        let renewed = spoken(store.renew(lease, None)).0.expect("it makes sense");
        assert!(renewed.is_some() || !told, "a lease that was told is gone");
        if renewed.is_some() {
            diary.leases.push((lease, true));
        }
    }
    for lease in &diary.released {
        assert!(!spoken(store.release(*lease)).0, "what was given back is held");
    }
    for (limit, key, id, told) in diary.requests.clone() {
        assert!(told, "the others were struck out");
        let used = used(&store, limit, key);
        request(&store, diary, limit, key, id);
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

/// Sells until nobody buys any more.
fn sell_out(store: &DiskStore, diary: &mut Diary) {
    for (limit, spec) in limits().iter().enumerate() {
        for key in 0..3 {
            while take(store, diary, limit, key, 1, 64) > 0 {}
        }
        for row in 0..4 {
            let Some((most, slice)) = bounds(spec, row) else { continue };
            let sold = &diary.sold[limit][row];
            let told = sold.told + sold.untold;
            let id = &spec.id;
            assert!(sold.told <= most, "{id}: {} of {most} were told in row {row}", sold.told);
            // A key may also be stopped by what all keys have used.
            let alone = row == 3 || !spec.items.iter().any(|item| item.per == Per::All);
            let lost = diary.deaths * slice;
            assert!(
                !alone || told + lost >= most,
                "{id}: only {told} of {most} in row {row} after {} deaths",
                diary.deaths
            );
        }
    }
    let mut held = Amount::try_from(diary.leases.len()).expect("few");
    while hold(store, diary) {
        held += 1;
    }
    let open = diary.leases.len() as Amount;
    assert_eq!(open, held);
    assert!(open <= MOST_SLOTS, "{open} slots are held");
}

fn a_life(
    directory: &Arc<SimulatedDirectory>,
    events: &[Event],
    keeps_history: bool,
) -> (DiskStore, Arc<ManualClock>, Diary) {
    let clock = Arc::new(ManualClock::at(START));
    let store = open(directory, &clock);
    for spec in limits() {
        store.put(spec, ExpectedVersion::Absent).expect("it makes sense");
    }
    let slots = ItemSpec::of(Policy::Concurrency { ttl: WINDOW }, MOST_SLOTS);
    store.put(LimitSpec::named(SLOTS).with(slots), ExpectedVersion::Absent).expect("it makes sense");
    store.wait_durable(store.tip().expect("it has a log")).expect("the disk is well");
    let mut diary = Diary::new();
    diary.directory = keeps_history.then(|| Arc::clone(directory));
    live(&store, &clock, &mut diary, events);
    (store, clock, diary)
}

/// Dies at any moment of a life, once for every image, and looks whether less is remembered than was told by then, or more than was ever
/// decided and a slice.
#[test]
fn every_moment_is_survived() {
    let lived = TestRunner::new(cases(CHRONICLES)).run(&(events(), any::<u64>()), |(events, seed)| {
        let directory = Arc::new(SimulatedDirectory::recorded());
        let (store, clock, mut diary) = a_life(&directory, &events, true);
        let born = diary.history.first().map_or(directory.changes(), |(change, _)| *change);
        store.wait_durable(store.tip().expect("it has a log")).expect("the disk is well");
        diary.hear(store.durable());
        drop(store);
        let moments = directory.changes() - born + 1;
        for image in 0..IMAGES {
            let dice = seed.wrapping_add(image).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let moment = born + usize::try_from(dice >> 33).expect("31 bits") % moments;
            look_at(directory.crash_after(moment, dice), moment, &clock, &diary);
        }
        Ok(())
    });
    lived.unwrap_or_else(|error| panic!("{error}"));
}

/// Opens an image, and compares what it remembers with what was told by then and with what was ever decided.
fn look_at(image: SimulatedDirectory, moment: usize, clock: &Arc<ManualClock>, diary: &Diary) {
    let store = open(&Arc::new(image), clock);
    let told: Vec<Told> =
        diary.history.iter().filter(|(change, _)| *change <= moment).map(|(_, told)| *told).collect();
    for (limit, spec) in limits().iter().enumerate() {
        for key in 0..3 {
            let used = used(&store, limit, key);
            for (item, used) in spec.items.iter().zip(used) {
                let row = if item.per == Per::All { 3 } else { usize::from(key) };
                let own = |each: &&Told| match each {
                    Told::Sold { limit: other, key, .. } => {
                        *other == limit && (row == 3 || usize::from(*key) == row)
                    }
                    _ => false,
                };
                let count = |each: &Told| if let Told::Sold { count, .. } = each { *count } else { 0 };
                let zeroed = |each: &Told| match *each {
                    Told::Reset { limit: other, key } => {
                        other == limit && key.is_none_or(|key| row != 3 && usize::from(key) == row)
                    }
                    _ => false,
                };
                let since = told.iter().rposition(zeroed).map_or(0, |at| at + 1);
                let told: Amount = told[since..].iter().filter(own).map(count).sum();
                assert!(
                    used >= told,
                    "{}: {used} are remembered in row {row}, and {told} were told",
                    spec.id
                );
                let (_, slice) = bounds(spec, row).expect("there is such a row");
                let decided: Amount = diary.history.iter().map(|(_, each)| each).filter(own).map(count).sum();
                assert!(
                    used <= decided + slice,
                    "{}: {used} are remembered in row {row} of {decided}",
                    spec.id
                );
            }
        }
    }
    let released = |id: LeaseId| {
        diary.history.iter().any(|(_, each)| matches!(each, Told::Release(other) if *other == id))
    };
    for each in &told {
        match *each {
            Told::Lease(id) if !released(id) => {
                assert!(
                    spoken(store.renew(id, None)).0.expect("it makes sense").is_some(),
                    "a lease is gone"
                );
            }
            Told::Release(id) => assert!(!spoken(store.release(id)).0, "what was given back is held"),
            Told::Request { limit, key, id } => {
                let before = used(&store, limit, key);
                let mut again = Diary::new();
                again.requests.push((limit, key, id, true));
                request(&store, &mut again, limit, key, id);
                assert_eq!(used(&store, limit, key), before, "a retried request is charged once");
            }
            _ => {}
        }
    }
}

/// How many lives are written down in full, and how many deaths are looked at in each.
const CHRONICLES: u32 = 40;
const IMAGES: u64 = 260;

/// How many lives are lived, and how many deaths died in each.
const LIVES: u32 = 40;
const DEATHS: u64 = 3;

/// The machine loses power: what was not synced is kept, lost, torn or reordered.
#[test]
fn a_machine_that_loses_power_sells_nothing_twice() {
    die_often(SimulatedDirectory::crash);
}

/// The process is killed: everything that was written is there.
#[test]
fn a_process_that_is_killed_sells_nothing_twice() {
    die_often(|directory, _| directory.killed());
}

fn die_often(die: impl Fn(&SimulatedDirectory, u64) -> SimulatedDirectory) {
    let mut runner = TestRunner::new(cases(LIVES));
    let stories = (events(), events(), any::<u64>());
    let lived = runner.run(&stories, |(before, after, seed)| {
        for death in 0..DEATHS {
            let directory = Arc::new(SimulatedDirectory::new());
            let (store, clock, mut diary) = a_life(&directory, &before, false);
            // What is durable now may have been told; what becomes durable while the machine dies was not.
            diary.hear(store.durable());
            let image = die(&directory, seed.wrapping_add(death));
            drop(store);
            let store = check(image, &clock, &mut diary);
            // It goes on living, and dies once more.
            live(&store, &clock, &mut diary, &after);
            diary.hear(store.durable());
            sell_out(&store, &mut diary);
        }
        Ok(())
    });
    lived.unwrap_or_else(|error| panic!("{error}"));
}
