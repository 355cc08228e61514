//! Handles on several limits of a memory store. Their decisions and counts match the map store. Concurrent sets are
//! charged in full or not at all.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::catalog::{Catalog, ExpectedVersion};
use tidegate::clock::{ManualClock, SystemClock};
use tidegate::model::{Amount, Ask, ItemSpec, LimitSpec, Order, Policy, Timestamp, Unit, Verdict};
use tidegate::reply::{Detail, OrderError, Outcome, Replies};
use tidegate::store::{MapStore, Memory, MemoryStore, Store};

const START: Timestamp = Timestamp::from_ticks(1_000_000_000_000_000);
/// Limits of both scopes with every lock-free policy. More global limits than one cache line holds.
const LIMITS: [&str; 12] = [
    "all-total",
    "key-bucket",
    "all-bucket",
    "all-hour",
    "key-hour",
    "all-day",
    "key-total",
    "all-b",
    "all-c",
    "all-d",
    "all-e",
    "key-free",
];

fn spec(id: &str, limit: Amount) -> LimitSpec {
    let policy = match id.split_once('-').map_or("", |(_, law)| law) {
        law if law.starts_with("bucket") => Policy::Bucket { window: Duration::from_secs(10), burst: None },
        "hour" => Policy::Interval { window: Duration::from_secs(3) },
        "day" => Policy::Calendar(Unit::Day),
        _ => Policy::Total,
    };
    let item = ItemSpec::of(policy, limit);
    LimitSpec::named(id).with(if id.starts_with("key") { item.per_key() } else { item })
}

/// Deterministic pseudo-random numbers.
struct TestRng(u64);

impl TestRng {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % bound
    }
}

#[test]
fn handle_sets_match_map_store() {
    let clock = Arc::new(ManualClock::at(START));
    let store = MemoryStore::new(Arc::clone(&clock), Memory { secret: [7, 8], ..Memory::default() });
    let plain = MapStore::new(Arc::clone(&clock), 1);
    let mut rng = TestRng(11);
    let put = |id: &str, limit: Amount| {
        for catalog in [&store as &dyn Catalog, &plain] {
            catalog.put(spec(id, limit), ExpectedVersion::Anything).expect("a valid limit");
        }
    };
    for id in LIMITS {
        put(id, 400);
    }
    let place = |id: &str| LIMITS.iter().position(|other| *other == id).expect("it is one of them");
    let (mut granted, mut refused) = ([0; LIMITS.len()], [0; LIMITS.len()]);
    for step in 0..20_000 {
        let mut ids: Vec<&str> = Vec::new();
        for _ in 0..=rng.below(8) {
            let id = LIMITS[rng.below(LIMITS.len())];
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
        let key = [b'a' + u8::try_from(rng.below(5)).expect("few")];
        let keys: Vec<Option<&[u8]>> =
            ids.iter().map(|id| id.starts_with("key").then_some(&key[..])).collect();
        let gates = store.handle_set(&ids).expect("they were put");
        let decided = gates.try_acquire(&keys).expect("a valid request");
        let asks: Vec<_> = ids.iter().zip(&keys).map(|(id, key)| Ask::one(id, *key)).collect();
        let answers = plain.submit(&[Order::acquire(&asks)], Replies::new(Detail::Verdicts)).now();
        let expected = match &answers.get(0).expect("one order").as_ref().expect("a valid request").outcome {
            Outcome::Granted(_) => {
                for id in &ids {
                    granted[place(id)] += 1;
                }
                Verdict::Granted
            }
            Outcome::Denied(denied) => {
                refused[place(denied.limit.id())] += 1;
                Verdict::Denied(denied.wait)
            }
        };
        assert_eq!(decided, expected, "step {step}: {ids:?}");
        if rng.below(100) == 0 {
            put(LIMITS[rng.below(LIMITS.len())], 300 + rng.below(5_000) as u64);
        }
        if rng.below(300) == 0 {
            let id = LIMITS[rng.below(LIMITS.len())];
            for each in [&store as &dyn Store, &plain] {
                each.reset(id, None).now().expect("it is there");
            }
        }
        clock.advance(Duration::from_millis(rng.below(120) as u64));
    }
    for (at, id) in LIMITS.iter().enumerate() {
        let seen = store.observe(id).expect("it is there");
        assert_eq!((seen.granted, seen.refused), (granted[at], refused[at]), "{id}");
    }
    let [granted, refused] = [granted, refused].map(|each| each.iter().sum::<u64>());
    assert!(granted > 2_000 && refused > 2_000, "{granted} granted, {refused} refused");
}

/// The verdict of a store as a handle reports it, and the refusing limit.
fn verdict(store: &impl Store, asks: &[Ask<'_>]) -> Result<(Verdict, Option<String>), OrderError> {
    let answers = store.submit(&[Order::acquire(asks)], Replies::new(Detail::Verdicts)).now();
    match answers.get(0).expect("one order") {
        Ok(answer) => Ok(match &answer.outcome {
            Outcome::Granted(_) => (Verdict::Granted, None),
            Outcome::Denied(denied) => (Verdict::Denied(denied.wait), Some(denied.limit.id().to_owned())),
        }),
        Err(rejection) => Err(rejection.clone()),
    }
}

/// Handles stay open while their limits change policy, scope and expiry, are reset, removed and added again.
/// Cached rules never outlive an edit.
#[test]
fn reused_handle_sets_match_map_store() {
    const IDS: [&str; 10] = ["a", "b", "c", "d", "e", "f", "g", "h", "one", "other"];
    const SETS: [&[&str]; 6] = [
        &["a", "b", "c", "one"],
        &["one", "a"],
        &["b", "other", "d", "c", "a"],
        // More limits than one guard covers.
        &["a", "h", "one"],
        &["one", "other", "a"],
        &["e", "f", "g", "other"],
    ];
    let clock = Arc::new(ManualClock::at(START));
    let store = MemoryStore::new(Arc::clone(&clock), Memory { secret: [7, 8], ..Memory::default() });
    let plain = MapStore::new(Arc::clone(&clock), 1);
    let both = [&store as &dyn Catalog, &plain];
    let put = |id: &str, law: &str, limit: Amount| {
        let spec = LimitSpec { id: id.into(), ..spec(law, limit) };
        for catalog in both {
            catalog.put(spec.clone(), ExpectedVersion::Anything).expect("a valid limit");
        }
    };
    let usual = |id: &str| if id.len() > 1 { "key-bucket" } else { "all-bucket" };
    let anew = || {
        for id in IDS {
            put(id, usual(id), 120);
        }
    };
    anew();
    let handles = SETS.map(|ids| store.handle_set(ids).expect("they were put"));
    let mut rng = TestRng(5);
    let place = |id: &str| IDS.iter().position(|other| *other == id).expect("it is one of them");
    let (mut granted, mut refused) = ([0; IDS.len()], [0; IDS.len()]);
    for step in 0..60_000 {
        let at = rng.below(SETS.len());
        let key = [b'a' + u8::try_from(rng.below(4)).expect("few"), b'x'];
        let keys = vec![Some(&key[..]); SETS[at].len()];
        let decided = handles[at].try_acquire(&keys).expect("a valid request");
        let asks: Vec<_> = SETS[at].iter().map(|id| Ask::one(id, Some(&key[..]))).collect();
        let (expected, by) = verdict(&plain, &asks).expect("a valid request");
        assert_eq!(decided, expected, "step {step}: {:?}", SETS[at]);
        match by {
            Some(id) => refused[place(&id)] += 1,
            None => SETS[at].iter().for_each(|id| granted[place(id)] += 1),
        }
        let id = IDS[rng.below(IDS.len())];
        match rng.below(1_200) {
            0..4 => put(id, usual(id), 50 + rng.below(400) as u64),
            4 => {
                let law = ["all-hour", "key-hour", "all-total", "key-bucket", "all-bucket"][rng.below(5)];
                put(id, law, 50 + rng.below(2_000) as u64);
            }
            5 => anew(),
            6 => {
                for each in [&store as &dyn Store, &plain] {
                    each.reset(id, None).now().expect("it is there");
                }
            }
            7 => {
                for each in [&store as &dyn Store, &plain] {
                    each.reset(id, Some(&key)).now().expect("it is there");
                }
            }
            _ => {}
        }
        let most = if rng.below(2_000) == 0 { 40_000 } else { 60 };
        clock.advance(Duration::from_millis(rng.below(most) as u64));
    }
    for (at, id) in IDS.iter().enumerate() {
        let seen = store.observe(id).expect("it is there");
        assert_eq!((seen.granted, seen.refused), (granted[at], refused[at]), "{id}");
    }
    let [granted, refused] = [granted, refused].map(|each| each.iter().sum::<u64>());
    assert!(granted > 10_000 && refused > 2_000, "{granted} granted, {refused} refused");
}

/// Threads charge buckets that do not refill during the test. The counts equal the grants on every path.
#[test]
fn concurrent_sets_of_buckets_are_all_or_nothing() {
    const EACH: usize = 30_000;
    const MOST: Amount = 40_000;
    const SETS: [&[usize]; 4] = [&[0, 1, 2], &[2, 1, 0], &[0, 3], &[1, 3, 0]];
    let ids = ["all-bucket-a", "all-bucket-b", "key-bucket-c", "key-bucket-d"];
    let store = MemoryStore::new(ManualClock::at(START), Memory::default());
    for id in ids {
        store.put(spec(id, MOST), ExpectedVersion::Absent).expect("a valid limit");
    }
    let taken = [(); 4].map(|()| AtomicU64::new(0));
    let key = |at: usize| ids[at].starts_with("key").then_some(&b"one"[..]);
    std::thread::scope(|scope| {
        for set in SETS {
            let names: Vec<&str> = set.iter().map(|&at| ids[at]).collect();
            let gates = store.handle_set(&names).expect("they were put");
            let taken = &taken;
            scope.spawn(move || {
                let keys: Vec<Option<&[u8]>> = set.iter().map(|&at| key(at)).collect();
                for _ in 0..EACH {
                    if gates.try_acquire(&keys).expect("a valid request") == Verdict::Granted {
                        for &at in set {
                            taken[at].fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
        scope.spawn(|| {
            for round in 0..40 {
                // The rates stay the same, so counts are not rescaled and usage stays equal to the grants.
                let description = Some(format!("the {round}th edit"));
                let edited = LimitSpec { description, ..spec(ids[round % 4], MOST) };
                store.put(edited, ExpectedVersion::Present).expect("a valid limit");
                std::thread::yield_now();
            }
        });
    });
    for (at, id) in ids.iter().enumerate() {
        let used = store.usage(id, key(at)).now().expect("it is there").items[0].current_count;
        let granted = taken[at].load(Ordering::Relaxed);
        assert_eq!(used, granted, "{id}");
        assert!(granted <= MOST, "{id}: {granted}");
        assert_eq!(store.observe(id).expect("it is there").granted, granted, "{id}");
    }
    assert_eq!(taken[0].load(Ordering::Relaxed), MOST, "all of it was wanted");
}

/// Threads request the same limits in different orders. Other threads request some of them through `submit`, and limits
/// are edited meanwhile. At every limit the counts equal the grants.
#[test]
fn concurrent_sets_of_limits_are_all_or_nothing() {
    const EACH: usize = 20_000;
    const SETS: [&[usize]; 4] = [&[0, 1, 2, 3], &[3, 2, 1, 0], &[2, 4, 0], &[4, 3]];
    let ids = ["all-a", "all-b", "key-c", "all-d", "key-e"];
    let store = MemoryStore::new(SystemClock::new(), Memory::default());
    let most: Amount = 25_000;
    for id in ids {
        store.put(spec(id, most), ExpectedVersion::Absent).expect("a valid limit");
    }
    let taken = [(); 5].map(|()| AtomicU64::new(0));
    let count = |set: &[usize]| {
        for &at in set {
            taken[at].fetch_add(1, Ordering::Relaxed);
        }
    };
    let key = |at: usize| ids[at].starts_with("key").then_some(&b"one"[..]);
    std::thread::scope(|scope| {
        for set in SETS {
            let names: Vec<&str> = set.iter().map(|&at| ids[at]).collect();
            let gates = store.handle_set(&names).expect("they were put");
            scope.spawn(move || {
                let keys: Vec<Option<&[u8]>> = set.iter().map(|&at| key(at)).collect();
                for _ in 0..EACH {
                    if gates.try_acquire(&keys).expect("a valid request") == Verdict::Granted {
                        count(set);
                    }
                }
            });
        }
        scope.spawn(|| {
            for round in 0..EACH / 4 {
                let set = SETS[round % SETS.len()];
                let asks: Vec<_> = set.iter().map(|&at| Ask::one(ids[at], key(at))).collect();
                let answers = store.submit(&[Order::acquire(&asks)], Replies::new(Detail::Verdicts)).now();
                let answer = answers.get(0).expect("one order").as_ref().expect("a valid request");
                if answer.is_granted() {
                    count(set);
                }
                if round % 500 == 0 {
                    let edited = spec(ids[round / 500 % 5], most + 1);
                    store.put(edited, ExpectedVersion::Present).expect("a valid limit");
                }
            }
        });
    });
    for (at, id) in ids.iter().enumerate() {
        let used = store.usage(id, key(at)).now().expect("it is there").items[0].current_count;
        let granted = taken[at].load(Ordering::Relaxed);
        assert_eq!(used, granted, "{id}");
        assert!(granted <= most + 1, "{id}: {granted}");
        assert_eq!(store.observe(id).expect("it is there").granted, granted, "{id}");
    }
    let least = taken.iter().map(|count| count.load(Ordering::Relaxed)).min();
    assert!(least.is_some_and(|least| least > 0), "{least:?}: a limit was never granted");
}

#[test]
fn grant_of_set_is_counted_by_each_existing_limit() {
    let clock = Arc::new(ManualClock::at(START));
    let store = MemoryStore::new(clock, Memory { secret: [7, 8], ..Memory::default() });
    for id in ["all-bucket", "key-bucket"] {
        store.put(spec(id, 1_000), ExpectedVersion::Absent).expect("a valid limit");
    }
    let granted = |id: &str| store.observe(id).expect("it is there").granted;
    let gates = store.handle_set(&["all-bucket", "key-bucket"]).expect("they were put");
    let ada: &[Option<&[u8]>] = &[None, Some(b"ada-lovelace")];
    let take = |gates: &tidegate::store::memory::MemoryHandleSet| {
        assert_eq!(gates.try_acquire(ada), Ok(Verdict::Granted));
    };
    (0..10).for_each(|_| take(&gates));
    assert_eq!((granted("all-bucket"), granted("key-bucket")), (10, 10));
    let (clone, other) =
        (gates.clone(), store.handle_set(&["all-bucket", "key-bucket"]).expect("they were put"));
    (0..5).for_each(|_| take(&clone));
    (0..3).for_each(|_| take(&other));
    drop(gates);
    assert_eq!((granted("all-bucket"), granted("key-bucket")), (18, 18));
    take(&clone);
    drop((clone, other));
    assert_eq!((granted("all-bucket"), granted("key-bucket")), (19, 19), "handles are gone, grants are not");
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let gates = store.handle_set(&["all-bucket", "key-bucket"]).expect("they were put");
                (0..200).for_each(|_| take(&gates));
            });
        }
        for _ in 0..200 {
            assert!(granted("all-bucket") <= 419, "nothing is counted twice");
        }
    });
    assert_eq!((granted("all-bucket"), granted("key-bucket")), (419, 419));
}
