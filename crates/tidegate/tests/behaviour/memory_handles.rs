//! Handles on the limits of a memory store. They match `submit` for valid and invalid requests.
//!
//! The map store is the reference.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate::Limiter;
use tidegate::catalog::{Catalog, ExpectedVersion, RemovalMode};
use tidegate::clock::{ManualClock, SystemClock};
use tidegate::model::{
    Amount, Ask, Capacity, ItemSpec, LimitSpec, Mode, Order, OverrideSpec, Policy, Span, Timestamp, Verdict,
    Wait,
};
use tidegate::reply::{Detail, GrantedLease, OrderError, Outcome, Replies};
use tidegate::store::memory::MemoryHandle;
use tidegate::store::{MapStore, Memory, MemoryStore, Settlement, Store};
use tidegate_testkit::suite::every_policy;

use crate::fixture::{DecisionExt, HandleExt};

/// Start of the clock. Earlier instants exist.
const START: Timestamp = Timestamp::from_ticks(1_000_000_000_000_000);
const CENTURY: Duration = Duration::from_secs(36_525 * 86_400);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn memory(clock: &Arc<ManualClock>) -> MemoryStore {
    MemoryStore::new(Arc::clone(clock), Memory { secret: [7, 8], ..Memory::default() })
}

/// A store with these limits and its clock.
fn store_with(limits: impl IntoIterator<Item = LimitSpec>) -> (MemoryStore, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::at(START));
    let store = memory(&clock);
    limits.into_iter().for_each(|limit| put(&store, limit));
    (store, clock)
}

#[track_caller]
fn put(store: &impl Catalog, spec: LimitSpec) {
    store.put(spec, ExpectedVersion::Anything).expect("a valid limit");
}

#[track_caller]
fn gate(store: &MemoryStore, limit_id: &str) -> MemoryHandle {
    store.handle(limit_id).expect("it was put")
}

fn total(id: &str, limit: Amount) -> LimitSpec {
    LimitSpec::named(id).with(ItemSpec::of(Policy::Total, limit))
}

fn total_per_key(id: &str, limit: Amount) -> LimitSpec {
    LimitSpec::named(id).with(ItemSpec::of(Policy::Total, limit).per_key())
}

fn slots(id: &str, slots: Amount) -> LimitSpec {
    LimitSpec::named(id).with(ItemSpec::of(Policy::Concurrency { ttl: seconds(60) }, slots))
}

fn unknown(id: &str) -> OrderError {
    OrderError::UnknownLimit { limit_id: id.to_owned() }
}

/// The usage of a key, or of all keys.
#[track_caller]
fn used(store: &impl Store, limit_id: &str, key: Option<&[u8]>) -> Vec<Amount> {
    let usage = store.usage(limit_id, key).now().expect("a valid request");
    usage.items.iter().map(|item| item.current_count).collect()
}

/// The verdict of a store on one ask.
pub(crate) fn verdict(store: &impl Store, ask: Ask<'_>) -> Result<Verdict, OrderError> {
    let answers = store.submit(&[Order::acquire(&[ask])], Replies::new(Detail::Verdicts)).now();
    let answer = answers.get(0).cloned().expect("one answer for one order")?;
    Ok(match answer.outcome {
        Outcome::Granted(_) => Verdict::Granted,
        Outcome::Denied(denied) => Verdict::Denied(denied.wait),
    })
}

/// Every policy that a handle supports, with five units, in each scope and in both.
fn limits_of_five() -> Vec<LimitSpec> {
    let holds = |item: &ItemSpec| matches!(item.policy, Policy::Concurrency { .. });
    let mut limits = Vec::new();
    for item in every_policy(5).into_iter().filter(|item| !holds(item)) {
        limits.push(LimitSpec::named("l").with(item.clone()));
        limits.push(LimitSpec::named("l").with(item.clone().per_key()));
        limits.push(LimitSpec::named("l").with(item.clone()).with(ItemSpec::of(Policy::Total, 7).per_key()));
        let ends_at = Some(Duration::from_nanos(START.ticks()) + seconds(15));
        limits.push(LimitSpec { ends_at, ..LimitSpec::named("l").with(item.per_key()) });
    }
    limits
}

#[test]
fn extreme_costs_match_map_store() {
    for spec in limits_of_five() {
        let (store, clock) = store_with([spec.clone()]);
        let plain = MapStore::new(Arc::clone(&clock), 7);
        put(&plain, spec.clone());
        let gate = gate(&store, "l");
        for (step, count) in
            [0, 1, 0, 6, Amount::MAX, 3, 0, Amount::MAX - 1, 1, 1, 0, 5, 2, 0].into_iter().enumerate()
        {
            for key in [&b"ada"[..], b"bob"] {
                let ask = Ask { limit_id: "l", key: Some(key), count };
                let decided = gate.try_acquire(key, count);
                assert_eq!(decided, verdict(&plain, ask), "step {step}, a cost of {count}, {spec:?}");
                assert_eq!(
                    used(&store, "l", Some(key)),
                    used(&plain, "l", Some(key)),
                    "step {step}, {spec:?}"
                );
            }
            assert_eq!(used(&store, "l", None), used(&plain, "l", None), "step {step}, {spec:?}");
            clock.advance(Duration::from_millis(1_500));
        }
    }
}

#[test]
fn cost_of_zero_leaves_no_row() {
    let (store, _) = store_with([total_per_key("l", 5)]);
    let gate = gate(&store, "l");
    assert_eq!(gate.try_acquire(b"ada", 0), Ok(Verdict::Granted));
    assert_eq!(store.observe("l").expect("it was put").rows, Some(0));
    assert_eq!(gate.try_acquire(b"ada", 6), Ok(Verdict::Denied(Wait::Never)));
    assert_eq!(store.observe("l").expect("it was put").rows, Some(0), "nor does a refusal");
}

#[test]
fn keys_of_0_to_1024_bytes_are_accepted() {
    let (store, _) = store_with([total_per_key("l", 1)]);
    let (gate, gates) = (gate(&store, "l"), store.handle_set(&["l"]).expect("it was put"));
    let keys = [vec![], vec![0], vec![b'k'; 1023], vec![b'k'; 1024]];
    for key in &keys {
        assert_eq!(gate.try_acquire(key, 1), Ok(Verdict::Granted), "{} bytes", key.len());
    }
    for key in &keys {
        assert_eq!(gates.try_acquire(&[Some(key)]), Ok(Verdict::Denied(Wait::Never)), "{} bytes", key.len());
        assert_eq!(used(&store, "l", Some(key)), [1]);
    }
}

#[test]
fn key_above_1024_bytes_is_rejected_without_charge() {
    let (store, _) = store_with([total_per_key("l", 1)]);
    let (gate, gates) = (gate(&store, "l"), store.handle_set(&["l", "l"]).expect("it was put"));
    for bytes in [1025, 65_536] {
        let key = vec![b'k'; bytes];
        let too_long = OrderError::KeyTooLong { bytes };
        assert_eq!(gate.try_acquire(&key, 1), Err(too_long.clone()));
        let mut verdicts = [Verdict::Granted; 2];
        assert_eq!(gate.try_batch(&[b"ada", &key], 1, &mut verdicts), Err(too_long.clone()));
        assert_eq!(gates.try_acquire(&[Some(b"ada"), Some(&key)]), Err(too_long.clone()));
        assert_eq!(verdict(&store, Ask::one("l", Some(&key))), Err(too_long.clone()));
        assert_eq!(store.reset("l", Some(&key)).now(), Err(too_long.clone()));
        assert_eq!(store.usage("l", Some(&key)).now(), Err(too_long));
    }
    assert_eq!(used(&store, "l", Some(b"ada")), [0]);
    assert_eq!(store.observe("l").expect("it was put").rows, Some(0));
}

/// This also holds for limits that ignore keys, and for handles with cached rules.
#[test]
fn key_above_1024_bytes_is_rejected_by_warm_handle() {
    let bucket = |id: &str| {
        LimitSpec::named(id).with(ItemSpec::of(Policy::Bucket { window: seconds(60), burst: None }, 100))
    };
    let mut keyed = bucket("keyed");
    keyed.items = keyed.items.into_iter().map(ItemSpec::per_key).collect();
    let (store, _) = store_with([bucket("all"), keyed]);
    let gates = store.handle_set(&["all", "keyed"]).expect("they were put");
    let long = vec![b'k'; 1025];
    for turn in 0..3 {
        let too_long = Err(OrderError::KeyTooLong { bytes: 1025 });
        assert_eq!(gates.try_acquire(&[Some(&long), Some(b"ada")]), too_long, "turn {turn}");
        assert_eq!(gates.try_acquire(&[Some(b"ada"), Some(&long)]), too_long, "turn {turn}");
        assert_eq!(gates.try_acquire(&[None, Some(b"ada")]), Ok(Verdict::Granted), "turn {turn}");
        let longest = vec![b'k'; 1024];
        assert_eq!(gates.try_acquire(&[Some(&longest), Some(b"ada")]), Ok(Verdict::Granted), "turn {turn}");
    }
    assert_eq!(used(&store, "all", None), [6]);
    assert_eq!(used(&store, "keyed", Some(b"ada")), [6]);
}

#[test]
fn handle_on_concurrency_limit_needs_lease() {
    let counted = total("both", 5).with(slots("both", 1).items.remove(0));
    let (store, _) = store_with([slots("slots", 1), counted, total("plain", 5)]);
    for id in ["slots", "both"] {
        let gate = gate(&store, id);
        assert_eq!(gate.try_acquire(b"ada", 1), Err(OrderError::NeedsLease), "{id}");
        assert_eq!(gate.try_acquire(b"ada", 0), Err(OrderError::NeedsLease), "{id}");
        assert_eq!(gate.try_batch(&[b"ada"], 1, &mut [Verdict::Granted]), Err(OrderError::NeedsLease));
        let gates = store.handle_set(&["plain", id]).expect("both were put");
        assert_eq!(gates.try_acquire(&[None, None]), Err(OrderError::NeedsLease), "{id}");
        assert!(used(&store, id, None).iter().all(|used| *used == 0), "nothing is charged");
    }
    assert_eq!((used(&store, "plain", None), store.leases()), (vec![0], 0));
    assert_eq!(OrderError::NeedsLease.code(), "bad_request");
    let words = OrderError::NeedsLease.to_string();
    assert_eq!(words, "a grant of this limit comes with a lease; ask the store for it");
}

#[test]
fn handle_fails_while_limit_has_concurrency_item() {
    let (store, _) = store_with([total("l", 5)]);
    let gate = gate(&store, "l");
    assert_eq!(gate.try_acquire(b"ada", 1), Ok(Verdict::Granted));
    put(&store, total("l", 5).with(slots("l", 1).items.remove(0)));
    assert_eq!(gate.try_acquire(b"ada", 1), Err(OrderError::NeedsLease));
    put(&store, total("l", 5));
    assert_eq!(gate.try_acquire(b"ada", 4), Ok(Verdict::Granted));
    assert_eq!((used(&store, "l", None), store.leases()), (vec![5], 0));
}

/// A limit may gain a concurrency item between the handle's check and its decision. The charge is then returned: counts
/// equal the reported grants, and no lease is leaked.
#[test]
fn concurrent_edits_of_concurrency_item_leave_no_lease() {
    let store = MemoryStore::new(SystemClock::new(), Memory::default());
    put(&store, total("l", Amount::from(u32::MAX)));
    let (gate, done) = (gate(&store, "l"), AtomicBool::new(false));
    let granted: u64 = std::thread::scope(|scope| {
        let ask = || {
            let mut granted = 0;
            while !done.load(Ordering::Relaxed) {
                match gate.try_acquire(b"ada", 1) {
                    Ok(verdict) => granted += u64::from(verdict == Verdict::Granted),
                    Err(rejection) => assert_eq!(rejection, OrderError::NeedsLease),
                }
            }
            granted
        };
        let askers = [scope.spawn(ask), scope.spawn(ask)];
        for _ in 0..400 {
            put(&store, total("l", Amount::from(u32::MAX)).with(slots("l", 1_000).items.remove(0)));
            std::thread::yield_now();
            put(&store, total("l", Amount::from(u32::MAX)));
            std::thread::yield_now();
        }
        done.store(true, Ordering::Relaxed);
        askers.into_iter().map(|asker| asker.join().expect("no panic")).sum()
    });
    assert_eq!(store.leases(), 0);
    assert_eq!(used(&store, "l", None), [granted]);
}

#[test]
fn handle_of_removed_limit_reports_unknown_limit() {
    let (store, _) = store_with([total_per_key("l", 5), total("m", 5)]);
    let (gate, gates) = (gate(&store, "l"), store.handle_set(&["m", "l"]).expect("both were put"));
    assert_eq!(gate.try_acquire(b"ada", 1), Ok(Verdict::Granted));
    assert!(store.remove("l", RemovalMode::Forget));
    assert_eq!(gate.try_acquire(b"ada", 1), Err(unknown("l")));
    assert_eq!(gate.try_acquire(b"bob", 0), Err(unknown("l")));
    assert_eq!(gate.try_batch(&[b"ada"], 1, &mut [Verdict::Granted]), Err(unknown("l")));
    assert_eq!(gate.try_batch(&[], 1, &mut []), Ok(()), "nothing was asked");
    assert_eq!(gates.try_acquire(&[None, Some(b"ada")]), Err(unknown("l")));
    assert_eq!(used(&store, "m", None), [0]);
    assert!(store.handle("l").is_none() && store.handle_set(&["m", "l"]).is_none());
}

#[test]
fn limit_added_again_needs_new_handle() {
    let (store, _) = store_with([total_per_key("l", 1)]);
    let old = gate(&store, "l");
    assert_eq!(old.try_acquire(b"ada", 1), Ok(Verdict::Granted));
    assert!(store.remove("l", RemovalMode::Forget));
    put(&store, total_per_key("l", 1));
    assert_eq!(old.try_acquire(b"ada", 1), Err(unknown("l")));
    let new = gate(&store, "l");
    assert_eq!(new.try_acquire(b"ada", 1), Ok(Verdict::Granted), "it has counted nothing yet");
    assert_eq!(used(&store, "l", Some(b"ada")), [1]);
}

/// Regression test: an old handle found the new limit by its id and leaked the lease of its grant.
#[test]
fn old_handle_gets_no_lease_from_limit_added_again() {
    let (store, _) = store_with([total("l", 5)]);
    let old = gate(&store, "l");
    assert!(store.remove("l", RemovalMode::Forget));
    put(&store, slots("l", 1));
    assert_eq!(old.try_acquire(b"ada", 1), Err(unknown("l")));
    assert_eq!((store.leases(), used(&store, "l", None)), (0, vec![0]));
}

#[test]
fn handle_follows_retired_limit_that_returns() {
    let (store, _) = store_with([total_per_key("l", 2)]);
    let gate = gate(&store, "l");
    assert_eq!(gate.try_acquire(b"ada", 1), Ok(Verdict::Granted));
    assert!(store.remove("l", RemovalMode::Retire));
    assert_eq!(gate.try_acquire(b"ada", 1), Err(unknown("l")));
    put(&store, total_per_key("l", 2));
    assert_eq!(gate.try_acquire(b"ada", 1), Ok(Verdict::Granted));
    assert_eq!(gate.try_acquire(b"ada", 1), Ok(Verdict::Denied(Wait::Never)), "what was counted is kept");
}

#[test]
fn handle_follows_edits_at_once() {
    let (store, clock) = store_with([total_per_key("l", 2)]);
    let gate = gate(&store, "l");
    let ask = |key: &[u8], count| gate.try_acquire(key, count).expect("a valid request");
    let never = Verdict::Denied(Wait::Never);
    assert_eq!([ask(b"ada", 2), ask(b"ada", 1)], [Verdict::Granted, never]);
    put(&store, total_per_key("l", 5));
    assert_eq!([ask(b"ada", 3), ask(b"ada", 1)], [Verdict::Granted, never], "more, with what is counted");
    put(&store, total_per_key("l", 1));
    assert_eq!([ask(b"bob", 1), ask(b"bob", 1)], [Verdict::Granted, never], "less");
    let item = "key/total".to_owned();
    let except = OverrideSpec { key: b"bob".into(), item, limit: Capacity::AtMost(3), until: None };
    put(&store, LimitSpec { overrides: vec![except], ..total_per_key("l", 1) });
    assert_eq!([ask(b"bob", 2), ask(b"bob", 1), ask(b"cid", 2)], [Verdict::Granted, never, never], "for one");
    store.reset("l", None).now().expect("it is there");
    assert_eq!([ask(b"cid", 1), ask(b"ada", 1)], [Verdict::Granted; 2], "from nothing");
    let hourly = ItemSpec::of(Policy::Interval { window: seconds(3600) }, 1).per_key();
    put(&store, LimitSpec::named("l").with(hourly.clone()));
    let later = START.plus(tidegate::model::Tick::NANOSECOND.span(seconds(3600)));
    assert_eq!([ask(b"ada", 1), ask(b"ada", 1)], [Verdict::Granted, Verdict::Denied(Wait::Until(later))]);
    let starts_at = Some(Duration::from_nanos(START.ticks()) + seconds(7200));
    put(&store, LimitSpec { starts_at, ..LimitSpec::named("l").with(hourly) });
    let starts = START.plus(tidegate::model::Tick::NANOSECOND.span(seconds(7200)));
    assert_eq!(ask(b"dan", 1), Verdict::Denied(Wait::Until(starts)), "not yet");
    clock.advance(seconds(7200));
    assert_eq!(ask(b"dan", 1), Verdict::Granted);
}

#[test]
fn handle_set_without_needed_key_is_error() {
    let (store, _) = store_with([total("all", 5), total_per_key("keyed", 5)]);
    let gates = store.handle_set(&["all", "keyed"]).expect("both were put");
    let missing = OrderError::KeyMissing { limit_id: "keyed".to_owned() };
    assert_eq!(gates.try_acquire(&[Some(b"ada"), None]), Err(missing));
    assert_eq!(used(&store, "all", None), [0]);
    assert_eq!(gates.try_acquire(&[None, Some(b"")]), Ok(Verdict::Granted), "an empty key is a key");
    assert_eq!(gates.try_acquire(&[Some(b"ignored"), Some(b"")]), Ok(Verdict::Granted));
    assert_eq!((used(&store, "all", None), used(&store, "keyed", Some(b""))), (vec![2], vec![2]));
}

#[test]
fn handle_sets_of_any_size_are_all_or_nothing() {
    for many in [1, 2, 8, 9, 17, 32] {
        let ids: Vec<String> = (0..many).map(|n| format!("l{n}")).collect();
        let spec = |(n, id): (usize, &String)| {
            let least = if n + 1 == many { 2 } else { 3 };
            if n % 2 == 0 { total(id, least) } else { total_per_key(id, least) }
        };
        let (store, _) = store_with(ids.iter().enumerate().map(spec));
        let limits: Vec<&str> = ids.iter().map(String::as_str).collect();
        let gates = store.handle_set(&limits).expect("all were put");
        let keys = vec![Some(&b"ada"[..]); many];
        for expected in [Verdict::Granted, Verdict::Granted, Verdict::Denied(Wait::Never)] {
            assert_eq!(gates.try_acquire(&keys), Ok(expected), "{many} limits");
        }
        for (n, id) in limits.iter().enumerate() {
            let key = (n % 2 == 1).then_some(&b"ada"[..]);
            assert_eq!(used(&store, id, key), [2], "{id} of {many}");
            let seen = store.observe(id).expect("it was put");
            let refused = u64::from(n + 1 == many);
            assert_eq!((seen.granted, seen.refused), (2, refused), "{id} of {many}: the last one refused");
        }
    }
}

#[test]
fn handle_set_needs_1_to_32_known_limits() {
    let (store, _) = store_with([total("l", 100)]);
    assert!(store.handle_set(&[]).is_none());
    assert!(store.handle_set(&["l"; 32]).is_some());
    assert!(store.handle_set(&["l"; 33]).is_none());
    assert!(store.handle_set(&["l", "nobody"]).is_none());
    assert!(store.handle("nobody").is_none());
}

#[test]
fn handle_set_with_repeated_limit_charges_twice() {
    let (store, _) = store_with([total("all", 3), total_per_key("keyed", 3)]);
    let never = Verdict::Denied(Wait::Never);
    let gates = store.handle_set(&["all", "all"]).expect("it was put");
    assert_eq!(gates.try_acquire(&[None, None]), Ok(Verdict::Granted));
    assert_eq!(gates.try_acquire(&[None, None]), Ok(never), "one is left, and two are asked for");
    assert_eq!(used(&store, "all", None), [2]);
    let gates = store.handle_set(&["keyed", "keyed"]).expect("it was put");
    assert_eq!(gates.try_acquire(&[Some(b"ada"), Some(b"bob")]), Ok(Verdict::Granted), "one of each");
    assert_eq!(gates.try_acquire(&[Some(b"ada"), Some(b"ada")]), Ok(Verdict::Granted), "two of one");
    assert_eq!(gates.try_acquire(&[Some(b"bob"), Some(b"ada")]), Ok(never), "ada has had three");
    assert_eq!(
        (used(&store, "keyed", Some(b"ada")), used(&store, "keyed", Some(b"bob"))),
        (vec![3], vec![1])
    );
}

#[test]
fn batch_matches_single_calls() {
    let names: Vec<String> = (0..40).map(|n| format!("user-{}", n * n % 11)).collect();
    let keys: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
    for spec in limits_of_five() {
        let clock = Arc::new(ManualClock::at(START));
        let (one, many) = (memory(&clock), memory(&clock));
        put(&one, spec.clone());
        put(&many, spec.clone());
        let (one_gate, many_gate) = (gate(&one, "l"), gate(&many, "l"));
        for (round, count) in [1, 0, 2, 6, 1, 1].into_iter().enumerate() {
            let singles: Vec<Verdict> =
                keys.iter().map(|key| one_gate.try_acquire(key, count).expect("a valid key")).collect();
            let mut verdicts = vec![Verdict::Denied(Wait::Never); keys.len()];
            many_gate.try_batch(&keys, count, &mut verdicts).expect("valid keys");
            assert_eq!(verdicts, singles, "round {round} of {count}, {spec:?}");
            for key in &keys {
                assert_eq!(
                    used(&many, "l", Some(key)),
                    used(&one, "l", Some(key)),
                    "round {round}, {spec:?}"
                );
            }
            clock.advance(seconds(4));
        }
        let seen =
            |store: &MemoryStore| store.observe("l").map(|seen| (seen.granted, seen.refused, seen.items));
        assert_eq!(seen(&many), seen(&one), "{spec:?}");
    }
}

/// Batches of every length with consecutive repeated keys, also above the limit, match single calls on the map store.
#[test]
fn batch_with_repeated_keys_matches_map_store() {
    let names = ["ada", "bob", "a key that is longer than most"];
    let mut state = 3_u64;
    let mut below = |bound: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % bound
    };
    for spec in limits_of_five() {
        let clock = Arc::new(ManualClock::at(START));
        let (store, plain) = (memory(&clock), MapStore::new(Arc::clone(&clock), 1));
        put(&store, spec.clone());
        put(&plain, spec.clone());
        let gate = gate(&store, "l");
        let (mut granted, mut refused) = (0, 0);
        for round in 0..1_500 {
            let mut keys: Vec<&[u8]> = Vec::new();
            for _ in 0..below(8) {
                let name = names[usize::try_from(below(3)).expect("few")];
                keys.extend((0..=below(7)).map(|_| name.as_bytes()));
            }
            let count = [1, 1, 1, 0, 2, 6][usize::try_from(below(6)).expect("few")];
            let mut verdicts = vec![Verdict::Denied(Wait::Never); keys.len()];
            gate.try_batch(&keys, count, &mut verdicts).expect("valid keys");
            for (at, key) in keys.iter().enumerate() {
                let ask = Ask { limit_id: "l", key: Some(key), count };
                let expected = verdict(&plain, ask).expect("a valid key");
                assert_eq!(verdicts[at], expected, "round {round} of {count}, {at} of {keys:?}, {spec:?}");
                *(if expected == Verdict::Granted { &mut granted } else { &mut refused }) += 1;
            }
            clock.advance(Duration::from_millis(below(3_000)));
        }
        let seen = store.observe("l").expect("it is there");
        assert_eq!((seen.granted, seen.refused), (granted, refused), "{spec:?}");
    }
}

#[test]
#[should_panic(expected = "one verdict for each key")]
fn batch_with_too_few_verdicts_panics() {
    let (store, _) = store_with([total("l", 1)]);
    let _never = gate(&store, "l").try_batch(&[b"ada"], 1, &mut []);
}

#[test]
#[should_panic(expected = "one key for each limit")]
fn handle_set_with_too_few_keys_panics() {
    let (store, _) = store_with([total("l", 1)]);
    let _never = store.handle_set(&["l"]).expect("it was put").try_acquire(&[]);
}

/// Requests one unit of this limit with this time to live.
fn lease(
    store: &impl Store,
    limit_id: &str,
    ttl: Option<Duration>,
) -> Result<Option<GrantedLease>, OrderError> {
    let asks = [Ask::one(limit_id, None)];
    let order = Order { ttl, ..Order::acquire(&asks) };
    let answers = store.submit(&[order], Replies::new(Detail::Verdicts)).now();
    match answers.get(0).cloned().expect("one answer for one order")?.outcome {
        Outcome::Granted(grant) => Ok(grant),
        Outcome::Denied(denied) => panic!("{denied:?}"),
    }
}

#[test]
fn lease_ttl_ranges_from_millisecond_to_century() {
    let (store, clock) = store_with([slots("l", 10)]);
    let bad = [Duration::ZERO, Duration::from_micros(999), CENTURY + Duration::from_nanos(1), Duration::MAX];
    for ttl in bad {
        assert_eq!(lease(&store, "l", Some(ttl)), Err(OrderError::TtlOutOfRange), "{ttl:?}");
    }
    assert_eq!(store.leases(), 0);
    let long = lease(&store, "l", Some(CENTURY)).expect("a century").expect("a lease");
    let short = lease(&store, "l", Some(Duration::from_millis(1))).expect("a millisecond").expect("a lease");
    for ttl in bad {
        assert_eq!(store.renew(long.lease, Some(ttl)).now(), Err(OrderError::TtlOutOfRange), "{ttl:?}");
    }
    assert_eq!(store.leases(), 2);
    clock.advance(Duration::from_millis(1));
    assert_eq!((store.leases(), used(&store, "l", None)), (1, vec![1]));
    assert!(!store.release(short.lease).now());
    clock.set(long.expires_at.minus(Span::ONE_TICK));
    assert_eq!(used(&store, "l", None), [1], "a century is not over");
    clock.advance(Duration::from_nanos(1));
    assert_eq!((store.leases(), used(&store, "l", None)), (0, vec![0]));
    assert!(!store.release(long.lease).now());
}

#[test]
fn deletion_of_limit_drops_its_leases() {
    let (store, clock) = store_with([slots("l", 1), slots("m", 1)]);
    let asks = [Ask::one("l", None), Ask::one("m", None)];
    let answers = store.submit(&[Order::acquire(&asks)], Replies::new(Detail::Verdicts)).now();
    let Some(Ok(answer)) = answers.get(0) else { panic!("a valid order") };
    let Outcome::Granted(Some(both)) = &answer.outcome else { panic!("both are free") };
    assert!(store.remove("l", RemovalMode::Forget));
    put(&store, slots("l", 1));
    assert_eq!((used(&store, "l", None), used(&store, "m", None)), (vec![0], vec![1]));
    let fresh = lease(&store, "l", None).expect("a question").expect("the new limit is free");
    assert!(fresh.fences[0].1 > both.fences[0].1, "fences go on rising");
    assert!(store.release(both.lease).now(), "it still holds the other");
    assert_eq!((used(&store, "l", None), used(&store, "m", None)), (vec![1], vec![0]));
    assert!(store.remove("l", RemovalMode::Forget) && store.remove("m", RemovalMode::Forget));
    assert_eq!(store.leases(), 0);
    assert!(!store.release(fresh.lease).now());
    assert_eq!(store.renew(fresh.lease, None).now(), Ok(None));
    assert_eq!(store.settle(fresh.lease, tidegate::store::Actual::Every(1)).now(), Ok(Settlement::Gone));
    clock.advance(seconds(3600));
    put(&store, slots("l", 1));
    assert!(lease(&store, "l", None).expect("a question").is_some());
}

#[test]
fn shadow_limit_grants_through_handle() {
    let (store, _) =
        store_with([LimitSpec { mode: Mode::Shadow, ..total_per_key("watched", 1) }, total("enforced", 4)]);
    let gate = gate(&store, "watched");
    for count in [1, 1, Amount::MAX] {
        assert_eq!(gate.try_acquire(b"ada", count), Ok(Verdict::Granted));
    }
    let seen = store.observe("watched").expect("it was put");
    assert_eq!((seen.granted, seen.refused, seen.shadowed), (3, 0, 2));
    assert_eq!(used(&store, "watched", Some(b"ada")), [1], "what it would have refused is not charged to it");
    let gates = store.handle_set(&["watched", "enforced"]).expect("both were put");
    let never = Verdict::Denied(Wait::Never);
    for _ in 0..4 {
        assert_eq!(gates.try_acquire(&[Some(b"bob"), None]), Ok(Verdict::Granted));
    }
    assert_eq!(gates.try_acquire(&[Some(b"bob"), None]), Ok(never), "the other one refuses");
    put(&store, total_per_key("watched", 1));
    assert_eq!(gate.try_acquire(b"ada", 1), Ok(never), "and now this one as well");
}

#[test]
fn limit_in_mode_off_grants_through_handle() {
    let (store, _) = store_with([LimitSpec { mode: Mode::Off, ..total_per_key("l", 1) }]);
    let gate = gate(&store, "l");
    for count in [1, 1, Amount::MAX] {
        assert_eq!(gate.try_acquire(b"ada", count), Ok(Verdict::Granted));
    }
    assert_eq!(used(&store, "l", Some(b"ada")), [0]);
    assert_eq!(store.observe("l").expect("it was put").rows, Some(0));
    put(&store, LimitSpec { mode: Mode::Off, ..slots("l", 1) });
    assert_eq!(gate.try_acquire(b"ada", 1), Ok(Verdict::Granted), "slots that are off hold nothing");
    assert_eq!(store.leases(), 0);
    put(&store, total_per_key("l", 1));
    let decided = [gate.try_acquire(b"ada", 1), gate.try_acquire(b"ada", 1)];
    assert_eq!(decided, [Ok(Verdict::Granted), Ok(Verdict::Denied(Wait::Never))]);
}

#[test]
fn handles_limiters_and_store_clones_share_counts() {
    let (store, _) = store_with([total_per_key("l", 3)]);
    let limiter = Limiter::new(Arc::new(store.clone()));
    let gate = gate(&store, "l");
    assert_eq!(gate.clone().try_acquire(b"ada", 1), Ok(Verdict::Granted));
    assert!(limiter.handle("l").of("ada").try_acquire().is_granted());
    assert_eq!(verdict(&store, Ask::one("l", Some(b"ada"))), Ok(Verdict::Granted));
    assert!(!limiter.handle("l").of("ada").try_acquire().is_granted());
    drop((store, limiter));
    assert_eq!(gate.try_acquire(b"ada", 1), Ok(Verdict::Denied(Wait::Never)), "it keeps its store");
}
