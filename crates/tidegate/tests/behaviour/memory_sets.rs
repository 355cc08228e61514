//! Handles on several limits of a memory store: whatever is asked of them, they say and count what the plain store does, and threads that meet
//! over them take all or nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::{
    Amount, Answers, Ask, Catalog, Detail, Expect, ItemSpec, LimitSpec, ManualClock, MapStore, Memory,
    MemoryStore, Order, Outcome, Policy, Store, SystemClock, Timestamp, Unit, Verdict,
};

const START: Timestamp = Timestamp::from_ticks(1_000_000_000_000_000);
/// Limits for everybody and for each key, of every law that is decided without a lock; more of the former than lie in one place.
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
        "bucket" => Policy::Bucket { window: Duration::from_secs(10), burst: None },
        "hour" => Policy::Interval { window: Duration::from_secs(3) },
        "day" => Policy::Calendar(Unit::Day),
        _ => Policy::Total,
    };
    let item = ItemSpec::of(policy, limit);
    LimitSpec::named(id).with(if id.starts_with("key") { item.per_key() } else { item })
}

/// Numbers that are the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % bound
    }
}

#[test]
fn handles_on_several_limits_say_what_the_plain_store_says() {
    let clock = Arc::new(ManualClock::at(START));
    let store = MemoryStore::new(Arc::clone(&clock), Memory { secret: [7, 8], ..Memory::default() });
    let plain = MapStore::new(Arc::clone(&clock), 1);
    let mut dice = Dice(11);
    let put = |id: &str, limit: Amount| {
        for catalog in [&store as &dyn Catalog, &plain] {
            catalog.put(spec(id, limit), Expect::Anything).expect("it makes sense");
        }
    };
    for id in LIMITS {
        put(id, 400);
    }
    let place = |id: &str| LIMITS.iter().position(|other| *other == id).expect("it is one of them");
    let (mut granted, mut refused) = ([0; LIMITS.len()], [0; LIMITS.len()]);
    for step in 0..20_000 {
        let mut ids: Vec<&str> = Vec::new();
        for _ in 0..=dice.below(8) {
            let id = LIMITS[dice.below(LIMITS.len())];
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
        let key = [b'a' + u8::try_from(dice.below(5)).expect("few")];
        let keys: Vec<Option<&[u8]>> =
            ids.iter().map(|id| id.starts_with("key").then_some(&key[..])).collect();
        let gates = store.gates(&ids).expect("they were put");
        let said = gates.try_acquire(&keys).expect("it can be asked");
        let asks: Vec<_> = ids.iter().zip(&keys).map(|(id, key)| Ask::one(id, *key)).collect();
        let answers = plain.submit(&[Order::acquire(&asks)], Answers::new(Detail::Verdicts)).now();
        let expected = match &answers.get(0).expect("one order").as_ref().expect("it can be asked").outcome {
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
        assert_eq!(said, expected, "step {step}: {ids:?}");
        if dice.below(100) == 0 {
            put(LIMITS[dice.below(LIMITS.len())], 300 + dice.below(5_000) as u64);
        }
        if dice.below(300) == 0 {
            let id = LIMITS[dice.below(LIMITS.len())];
            for each in [&store as &dyn Store, &plain] {
                each.reset(id, None).now().expect("it is there");
            }
        }
        clock.advance(Duration::from_millis(dice.below(120) as u64));
    }
    for (at, id) in LIMITS.iter().enumerate() {
        let seen = store.observe(id).expect("it is there");
        assert_eq!((seen.granted, seen.refused), (granted[at], refused[at]), "{id}");
    }
    let [granted, refused] = [granted, refused].map(|each| each.iter().sum::<u64>());
    assert!(granted > 2_000 && refused > 2_000, "{granted} granted, {refused} refused");
}

/// Threads ask for the same limits in different orders, others in between for some of them by the store's own door; limits are edited all the
/// while. What was granted is what was counted, at every limit.
#[test]
fn threads_that_meet_over_sets_take_all_or_nothing() {
    const EACH: usize = 20_000;
    const SETS: [&[usize]; 4] = [&[0, 1, 2, 3], &[3, 2, 1, 0], &[2, 4, 0], &[4, 3]];
    let ids = ["all-a", "all-b", "key-c", "all-d", "key-e"];
    let store = MemoryStore::new(SystemClock::new(), Memory::default());
    let most: Amount = 25_000;
    for id in ids {
        store.put(spec(id, most), Expect::Absent).expect("it makes sense");
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
            let gates = store.gates(&names).expect("they were put");
            scope.spawn(move || {
                let keys: Vec<Option<&[u8]>> = set.iter().map(|&at| key(at)).collect();
                for _ in 0..EACH {
                    if gates.try_acquire(&keys).expect("it can be asked") == Verdict::Granted {
                        count(set);
                    }
                }
            });
        }
        scope.spawn(|| {
            for round in 0..EACH / 4 {
                let set = SETS[round % SETS.len()];
                let asks: Vec<_> = set.iter().map(|&at| Ask::one(ids[at], key(at))).collect();
                let answers = store.submit(&[Order::acquire(&asks)], Answers::new(Detail::Verdicts)).now();
                let answer = answers.get(0).expect("one order").as_ref().expect("it can be asked");
                if answer.is_granted() {
                    count(set);
                }
                if round % 500 == 0 {
                    let edited = spec(ids[round / 500 % 5], most + 1);
                    store.put(edited, Expect::Present).expect("it makes sense");
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
    assert!(least.is_some_and(|least| least > 1_000), "{least:?}: they never met");
}
