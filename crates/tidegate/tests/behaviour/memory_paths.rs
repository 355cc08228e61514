//! The path of each kind of decision: which ones read and write words only, and which ones take the locked path.

use std::sync::Arc;
use std::time::Duration;

use tidegate::Limiter;
use tidegate::catalog::{Catalog, ExpectedVersion};
use tidegate::clock::ManualClock;
use tidegate::model::{
    Amount, Ask, Capacity, Hold, ItemSpec, LimitSpec, Mode, Order, OverrideSpec, Policy, Precision,
    Timestamp, Unit, Verdict,
};
use tidegate::reply::{Detail, Outcome, Replies};
use tidegate::store::{CompactBatch, CompactReplies, CompactRequest, Memory, MemoryStore, Store};

/// 2026-09-21, a minute after the start of a day.
const START: Timestamp = Timestamp::from_ticks((1_789_948_800 + 60) * 1_000_000_000);
const BILLION: Amount = 1_000_000_000;
const MINUTES: Duration = Duration::from_secs(1_000);

fn store() -> (MemoryStore, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::at(START));
    (MemoryStore::new(Arc::clone(&clock), Memory { secret: [7, 8], ..Memory::default() }), clock)
}

fn put(store: &MemoryStore, spec: LimitSpec) {
    store.put(spec, ExpectedVersion::Anything).expect("a valid limit");
}

fn calendar(unit: Unit) -> Policy {
    Policy::Calendar(unit)
}

fn bucket() -> Policy {
    Policy::Bucket { window: MINUTES, burst: None }
}

fn sliding(precision: Precision) -> Policy {
    Policy::Sliding { window: MINUTES, precision }
}

/// Every policy whose grants need no lease.
fn policies() -> Vec<Policy> {
    let mut policies = vec![bucket(), Policy::Interval { window: MINUTES }, Policy::Total];
    policies.extend([sliding(Precision::Exact), sliding(Precision::Bucketed)]);
    policies.extend(Unit::ALL.map(calendar));
    policies
}

/// The items of all limits of the matrix, with this many units each.
fn matrix(limit: Amount) -> Vec<Vec<ItemSpec>> {
    let item = |policy| {
        let is_exact = matches!(policy, Policy::Sliding { precision: Precision::Exact, .. });
        ItemSpec::of(policy, if is_exact { limit.min(1_000_000) } else { limit })
    };
    let keyed = |policy| item(policy).per_key();
    let mut all: Vec<Vec<ItemSpec>> = Vec::new();
    for policy in policies() {
        all.push(vec![keyed(policy)]);
        all.push(vec![item(policy)]);
        all.push(vec![item(policy), keyed(policy)]);
        all.push(vec![keyed(bucket()), keyed(policy)].into_iter().filter(distinct()).collect());
    }
    let calendars = [Unit::Minute, Unit::Hour, Unit::Day, Unit::Month].map(calendar);
    all.push(calendars.map(keyed).to_vec());
    all.push(calendars.map(item).to_vec());
    all.push(
        [bucket(), Policy::Total, sliding(Precision::Exact), sliding(Precision::Bucketed)]
            .map(keyed)
            .to_vec(),
    );
    all.push(vec![item(bucket()), keyed(bucket()), item(Policy::Total), keyed(calendar(Unit::Day))]);
    all.push(vec![ItemSpec { limit: Capacity::Unlimited, ..keyed(Policy::Total) }]);
    all.push(vec![
        ItemSpec { limit: Capacity::Unlimited, ..keyed(calendar(Unit::Year)) },
        item(Policy::Total),
    ]);
    all
}

/// A filter that keeps the first item of each policy.
fn distinct() -> impl FnMut(&ItemSpec) -> bool {
    let mut seen = Vec::new();
    move |item| {
        let is_new = !seen.contains(&item.policy);
        seen.push(item.policy);
        is_new
    }
}

/// A limit with items of different names.
fn limit_of(items: &[ItemSpec]) -> LimitSpec {
    items.iter().enumerate().fold(LimitSpec::named("l"), |spec, (index, item)| {
        spec.with(ItemSpec { name: Some(index.to_string()), ..item.clone() })
    })
}

/// How a limit is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Api {
    MemoryHandle,
    MemoryBatch,
    MemorySet,
    LimitHandle,
    LimitBatch,
    Order,
    OrderWithReadings,
    PeekWithReadings,
    Compact,
}

impl Api {
    const ALL: [Api; 9] = [
        Api::MemoryHandle,
        Api::MemoryBatch,
        Api::MemorySet,
        Api::LimitHandle,
        Api::LimitBatch,
        Api::Order,
        Api::OrderWithReadings,
        Api::PeekWithReadings,
        Api::Compact,
    ];

    /// Asks for `count` units of each key. Returns the number of grants.
    fn ask(self, store: &MemoryStore, keys: &[&[u8]], count: Amount) -> usize {
        let handle = || store.handle("l").expect("it was put");
        let is_granted = |verdict: &Verdict| *verdict == Verdict::Granted;
        match self {
            Api::MemoryHandle => {
                let handle = handle();
                let verdicts = keys.iter().map(|key| handle.try_acquire(key, count).expect("a valid key"));
                verdicts.filter(is_granted).count()
            }
            Api::MemoryBatch => {
                let mut verdicts = vec![Verdict::Granted; keys.len()];
                handle().try_batch(keys, count, &mut verdicts).expect("valid keys");
                verdicts.iter().filter(|verdict| is_granted(verdict)).count()
            }
            Api::MemorySet => {
                let set = store.handle_set(&["shared", "l", "keyed"]).expect("they were put");
                let ask = |key: &&[u8]| set.try_acquire(&[None, Some(key), Some(key)]).expect("valid keys");
                keys.iter().map(ask).filter(is_granted).count()
            }
            Api::LimitHandle | Api::LimitBatch => {
                let limiter = Limiter::new(Arc::new(store.clone()));
                let handle = limiter.limit("l").expect("it was put");
                if self == Api::LimitBatch {
                    return handle.try_acquire_batch(keys).iter().filter(|permit| permit.is_ok()).count();
                }
                keys.iter().filter(|key| handle.try_acquire(key).is_ok()).count()
            }
            Api::Order | Api::OrderWithReadings | Api::PeekWithReadings => {
                let detail = if self == Api::Order { Detail::Verdicts } else { Detail::Readings };
                let asks: Vec<[Ask<'_>; 1]> =
                    keys.iter().map(|key| [Ask { limit_id: "l", key: Some(key), count }]).collect();
                let order = if self == Api::PeekWithReadings { Order::peek } else { Order::acquire };
                let orders: Vec<Order<'_>> = asks.iter().map(|asks| order(asks)).collect();
                let replies = store.submit(&orders, Replies::new(detail)).now();
                let replies =
                    (0..keys.len()).map(|index| replies.get(index).expect("one reply for each order"));
                replies.filter(|reply| reply.as_ref().expect("a valid order").is_granted()).count()
            }
            Api::Compact => {
                let list: Vec<_> = keys.iter().map(|key| CompactRequest { limit: 0, key, count }).collect();
                let mut replies = CompactReplies::default();
                let batch = CompactBatch { limit_ids: &["l"], list: &list };
                store.submit_compact(&batch, &mut replies).expect("the store is available");
                // The compact form ends before a request that needs the locked path.
                assert_eq!(replies.list().len(), keys.len());
                replies.list().iter().filter(|reply| is_granted(&reply.verdict)).count()
            }
        }
    }

    /// The same, or an order that charges.
    fn charging(self) -> Api {
        if self == Api::PeekWithReadings { Api::Order } else { self }
    }

    /// Whether this way to ask exists for such a limit.
    fn supports(self, items: &[ItemSpec], count: Amount) -> bool {
        match self {
            Api::Compact => items.len() == 1,
            Api::MemorySet | Api::LimitHandle | Api::LimitBatch => count == 1,
            _ => true,
        }
    }
}

fn key(number: u64) -> [u8; 8] {
    number.to_le_bytes()
}

/// A store with a limit of these items, and two limits beside it for sets.
fn warm_store(items: &[ItemSpec], api: Api, count: Amount) -> MemoryStore {
    let (store, _) = store();
    put(&store, limit_of(items));
    put(&store, LimitSpec::named("shared").with(ItemSpec::of(bucket(), BILLION)));
    put(&store, LimitSpec::named("keyed").with(ItemSpec::of(calendar(Unit::Day), BILLION).per_key()));
    // The first rows of a table have no lines to look for.
    let charges = api.charging();
    charges.ask(&store, &[&key(0)], count);
    charges.ask(&store, &[&key(0)], count);
    store
}

const DECISIONS: u64 = 100;

/// Decides on these keys, and returns the grants and the decisions on the locked path.
fn decide(store: &MemoryStore, api: Api, keys: impl Iterator<Item = u64>, count: Amount) -> (usize, u64) {
    let keys: Vec<[u8; 8]> = keys.map(key).collect();
    let keys: Vec<&[u8]> = keys.iter().map(<[u8; 8]>::as_slice).collect();
    let before = store.locked_decisions();
    let granted = api.ask(store, &keys, count);
    (granted, store.locked_decisions() - before)
}

#[test]
fn hot_key_takes_no_locked_path() {
    for items in matrix(BILLION) {
        for (api, count) in Api::ALL.into_iter().flat_map(|api| [(api, 1), (api, 1_000)]) {
            if api.supports(&items, count) {
                let store = warm_store(&items, api, count);
                let decided = decide(&store, api, (0..DECISIONS).map(|_| 0), count);
                assert_eq!(decided, (100, 0), "{count} units by {api:?} of {items:#?}");
            }
        }
    }
}

#[test]
fn new_keys_take_no_locked_path() {
    for items in matrix(BILLION) {
        for (api, count) in Api::ALL.into_iter().flat_map(|api| [(api, 1), (api, 1_000)]) {
            // Without a lock a missing row proves nothing, so a peek at a new key takes the lock.
            if api.supports(&items, count) && api != Api::PeekWithReadings {
                let store = warm_store(&items, api, count);
                let decided = decide(&store, api, 1..=DECISIONS, count);
                assert_eq!(decided, (100, 0), "{count} units by {api:?} of {items:#?}");
            }
        }
    }
}

#[test]
fn refused_hot_key_takes_no_locked_path() {
    for items in matrix(10) {
        for api in Api::ALL.into_iter().filter(|api| api.supports(&items, 1)) {
            let is_unlimited = items.iter().all(|item| item.limit == Capacity::Unlimited);
            let store = warm_store(&items, api, 1);
            decide(&store, api.charging(), (0..DECISIONS).map(|_| 0), 1);
            let decided = decide(&store, api, (0..DECISIONS).map(|_| 0), 1);
            assert_eq!(decided, (if is_unlimited { 100 } else { 0 }, 0), "by {api:?} of {items:#?}");
        }
    }
}

#[test]
fn refused_new_keys_take_no_locked_path() {
    for items in matrix(10) {
        // Readings of a key without a row are taken under the lock.
        let has_readings = |api| matches!(api, Api::OrderWithReadings | Api::PeekWithReadings | Api::Compact);
        for api in Api::ALL.into_iter().filter(|api| api.supports(&items, 11) && !has_readings(*api)) {
            if items.iter().any(|item| item.limit != Capacity::Unlimited) {
                let store = warm_store(&items, api, 1);
                let decided = decide(&store, api, 1..=DECISIONS, 11);
                assert_eq!(decided, (0, 0), "by {api:?} of {items:#?}");
            }
        }
    }
}

#[test]
fn large_counts_take_no_locked_path() {
    for items in matrix(BILLION) {
        let is_exact =
            |item: &ItemSpec| matches!(item.policy, Policy::Sliding { precision: Precision::Exact, .. });
        let count = if items.iter().any(is_exact) { 9_000 } else { 9_000_000 };
        for api in Api::ALL.into_iter().filter(|api| api.supports(&items, count)) {
            let store = warm_store(&items, api, count);
            let charged = decide(&store, api.charging(), (0..DECISIONS - 2).map(|_| 0), count);
            assert_eq!(charged, (98, 0), "by {api:?} of {items:#?}");
            let used = store.usage("l", Some(&key(0))).now().expect("it was put");
            let all = store.usage("l", None).now().expect("it was put");
            for item in used.items.iter().chain(&all.items) {
                // A bucket gives nothing back: its clock stands still.
                assert_eq!(item.current_count, 100 * count, "by {api:?} of {items:#?}");
            }
            let before = store.locked_decisions();
            assert_eq!(api.ask(&store, &[&key(0)], 1), 1);
            assert_eq!(
                store.locked_decisions(),
                before,
                "after the usage was read, by {api:?} of {items:#?}"
            );
        }
    }
}

#[test]
fn end_of_calendar_window_takes_locked_path_once() {
    let (store, clock) = store();
    put(&store, LimitSpec::named("l").with(ItemSpec::of(calendar(Unit::Minute), BILLION).per_key()));
    let handle = store.handle("l").expect("it was put");
    assert_eq!(handle.try_acquire(b"ada", 1), Ok(Verdict::Granted));
    for _ in 0..3 {
        clock.advance(Duration::from_secs(60));
        let before = store.locked_decisions();
        for number in 0..10 {
            assert_eq!(handle.try_acquire(&key(number % 2), 1), Ok(Verdict::Granted));
        }
        assert_eq!(store.locked_decisions() - before, 1);
    }
}

#[test]
fn edit_takes_locked_path_once() {
    let (store, _) = store();
    let limit = |most| LimitSpec::named("l").with(ItemSpec::of(Policy::Total, most).per_key());
    put(&store, limit(100));
    let handle = store.handle("l").expect("it was put");
    for edit in 0..3 {
        put(&store, limit(1_000 + edit));
        handle.try_acquire(b"ada", 1).expect("a valid key");
        let before = store.locked_decisions();
        for _ in 0..10 {
            assert_eq!(handle.try_acquire(b"ada", 1), Ok(Verdict::Granted));
        }
        assert_eq!(store.locked_decisions(), before);
    }
}

/// Submits orders one by one, and returns the decisions on the locked path.
fn locked(store: &MemoryStore, orders: &[Order<'_>]) -> u64 {
    let before = store.locked_decisions();
    for order in orders {
        let replies = store.submit(&[*order], Replies::new(Detail::Verdicts)).now();
        let reply = replies.get(0).expect("one reply").as_ref().expect("a valid order");
        assert!(matches!(reply.outcome, Outcome::Granted(_)));
    }
    store.locked_decisions() - before
}

fn keyed_total() -> ItemSpec {
    ItemSpec::of(Policy::Total, 1_000).per_key()
}

#[test]
fn key_with_override_takes_locked_path() {
    let (store, _) = store();
    let own = OverrideSpec {
        key: b"own".to_vec(),
        item: "0".to_owned(),
        limit: Capacity::AtMost(500),
        until: None,
    };
    put(&store, LimitSpec { overrides: vec![own], ..limit_of(&[keyed_total()]) });
    for (key, expected) in [(&b"own"[..], 10), (b"ada", 0)] {
        let asks = [Ask::one("l", Some(key))];
        locked(&store, &[Order::acquire(&asks)]);
        assert_eq!(locked(&store, &[Order::acquire(&asks); 10]), expected);
    }
}

#[test]
fn hold_and_row_with_hold_take_locked_path() {
    let (store, _) = store();
    put(&store, limit_of(&[keyed_total()]));
    let asks = [Ask::one("l", Some(b"ada"))];
    let order = Order::acquire(&asks);
    assert_eq!(locked(&store, &[Order { hold: Hold::Yes, ..order }; 10]), 10);
    assert_eq!(locked(&store, &[order; 10]), 10);
    let other = [Ask::one("l", Some(b"bob"))];
    assert_eq!(locked(&store, &[Order::acquire(&other); 10]), 0);
}

#[test]
fn concurrency_takes_locked_path() {
    let (store, _) = store();
    let slots = ItemSpec::of(Policy::Concurrency { ttl: MINUTES }, 1_000).per_key();
    put(&store, limit_of(&[keyed_total(), slots]));
    let asks = [Ask::one("l", Some(b"ada"))];
    assert_eq!(locked(&store, &[Order::acquire(&asks); 10]), 10);
}

#[test]
fn limit_that_does_not_enforce_takes_locked_path() {
    for mode in [Mode::Shadow, Mode::Off] {
        let (store, _) = store();
        put(&store, LimitSpec { mode, ..limit_of(&[keyed_total()]) });
        let asks = [Ask::one("l", Some(b"ada"))];
        assert_eq!(locked(&store, &[Order::acquire(&asks); 10]), 10, "{mode:?}");
    }
}

#[test]
fn request_id_takes_locked_path() {
    let (store, _) = store();
    put(&store, limit_of(&[keyed_total()]));
    let asks = [Ask::one("l", Some(b"ada"))];
    let order = Order { request_id: Some(b"retried"), ..Order::acquire(&asks) };
    assert_eq!(locked(&store, &[order; 10]), 10);
    assert_eq!(locked(&store, &[Order::acquire(&asks); 10]), 0);
}

#[test]
fn limit_asked_twice_takes_locked_path() {
    let (store, _) = store();
    put(&store, limit_of(&[keyed_total()]));
    let asks = [Ask::one("l", Some(b"ada")), Ask::one("l", Some(b"bob"))];
    assert_eq!(locked(&store, &[Order::acquire(&asks); 10]), 10);
}

#[test]
fn row_of_more_than_five_words_takes_locked_path() {
    let (store, _) = store();
    put(&store, limit_of(&vec![keyed_total(); 6]));
    let asks = [Ask::one("l", Some(b"ada"))];
    assert_eq!(locked(&store, &[Order::acquire(&asks); 10]), 10);
}
