//! More keys than fit into memory: existing keys and other limits keep their exact counts.
//!
//! `cargo bench -- flood` measures the time and memory of the same with fifty million keys.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tidegate::catalog::{Catalog, ExpectedVersion};
use tidegate::clock::ManualClock;
use tidegate::model::{
    Ask, Intent, ItemSpec, LimitSpec, Order, Policy, Tick, Timestamp, Unit, Verdict, Wait,
};
use tidegate::reply::{Detail, OrderReply, Outcome, Replies};
use tidegate::store::memory::LEAST_CAPACITY;
use tidegate::store::memory::MemoryHandle;
use tidegate::store::{Memory, MemoryStore, Store};
use tidegate_testkit::test_scale;

/// Noon of a day.
const NOON: Timestamp = Timestamp::from_ticks((19_000 * 86_400 + 43_200) * 1_000_000_000);
const MIDNIGHT: Timestamp = Timestamp::from_ticks(19_001 * 86_400 * 1_000_000_000);

/// The interval, in keys, between checks of the store's memory.
const SELDOM: usize = 1_000;

fn keys() -> usize {
    test_scale::scaled(300_000)
}

/// A small store with a flooded limit and a second limit.
struct Flooded {
    clock: Arc<ManualClock>,
    store: MemoryStore,
    gate: MemoryHandle,
    /// The usage of each key of the second limit.
    other_counts: Vec<u64>,
}

impl Flooded {
    fn new(item: ItemSpec) -> Flooded {
        let clock = Arc::new(ManualClock::at(NOON));
        let memory = Memory { capacity_bytes: LEAST_CAPACITY, secret: [5, 6] };
        let store = MemoryStore::new(Arc::clone(&clock), memory);
        let other = ItemSpec::of(Policy::Total, 1_000_000);
        for spec in [LimitSpec::named("flooded").with(item), LimitSpec::named("other").with(other.per_key())]
        {
            store.put(spec, ExpectedVersion::Absent).expect("a valid limit");
        }
        let gate = store.handle("flooded").expect("it was put");
        Flooded { clock, store, gate, other_counts: vec![0; 10] }
    }

    /// Requests a unit through `submit`, which reports degraded replies.
    fn submit(&self, limit_id: &str, key: &[u8]) -> OrderReply {
        self.put(Intent::Acquire, limit_id, key)
    }

    /// Peeks through `submit`.
    fn peek(&self, limit_id: &str, key: &[u8]) -> OrderReply {
        self.put(Intent::Peek, limit_id, key)
    }

    fn put(&self, intent: Intent, limit_id: &str, key: &[u8]) -> OrderReply {
        let asks = [Ask::one(limit_id, Some(key))];
        let order = Order { intent, ..Order::acquire(&asks) };
        let answers = self.store.submit(&[order], Replies::new(Detail::Verdicts)).now();
        answers.get(0).expect("one answer").clone().expect("a valid order")
    }

    fn used(&self, limit_id: &str, key: &[u8]) -> u64 {
        let usage = self.store.usage(limit_id, Some(key)).now().expect("a known limit");
        usage.items[0].current_count
    }

    /// Requests an old and a new key of the second limit and checks both.
    fn charge_other_limit(&mut self, turn: usize) {
        let taken = self.store.bytes();
        assert!(taken <= LEAST_CAPACITY, "{taken} bytes");
        let old = turn % self.other_counts.len();
        self.other_counts.push(0);
        for number in [old, self.other_counts.len() - 1] {
            let answer = self.submit("other", &key(number));
            assert!(answer.is_granted() && !answer.degraded, "key {number}: {answer:?}");
            self.other_counts[number] += 1;
        }
    }

    fn check_other_counts(&self) {
        for (number, asked) in self.other_counts.iter().enumerate() {
            assert_eq!(self.used("other", &key(number)), *asked, "key {number}");
        }
    }
}

fn key(number: usize) -> Vec<u8> {
    format!("u{number:011}").into_bytes()
}

/// Reference model of a bucket: the instant at which all spent units have returned.
#[derive(Debug, Clone, Copy, Default)]
struct Bucket {
    back_at: u64,
}

const STEP: Duration = Duration::from_millis(100);
const BURST: u64 = 3;

impl Bucket {
    /// Grants one more unit, or returns the wait.
    fn take(&mut self, now: Timestamp) -> Verdict {
        let step = Tick::NANOSECOND.span(STEP).ticks();
        let back_at = self.back_at.max(now.ticks()) + step;
        if back_at <= now.ticks() + BURST * step {
            self.back_at = back_at;
            Verdict::Granted
        } else {
            Verdict::Denied(Wait::Until(Timestamp::from_ticks(back_at - BURST * step)))
        }
    }
}

/// Rows that soon become fresh make room for new keys. No key is refused for lack of room.
#[test]
fn flood_of_bucket_keys_stays_exact_while_rows_become_fresh() {
    const REMEMBERED: usize = 64;
    let item = ItemSpec::of(Policy::Bucket { window: STEP, burst: Some(BURST) }, 1).per_key();
    let mut flooded = Flooded::new(item);
    let mut last: VecDeque<(usize, Bucket)> = VecDeque::new();
    let (mut now, mut rng) = (NOON, 1_u64);
    let mut refused = 0;
    for number in 0..keys() {
        // About five thousand rows are in use at any time, and three times as many fit.
        now = now.plus(Tick::NANOSECOND.span(Duration::from_micros(20)));
        flooded.clock.set(now);
        last.push_back((number, Bucket::default()));
        // The new key and a recent one, which may have used up its limit.
        rng = rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let again = usize::try_from(rng >> 33).expect("31 bits") % last.len();
        let mut asked = vec![last.len() - 1, again];
        if number % 16 == 0 {
            asked.extend([again; 3]);
        }
        for index in asked {
            let (number, bucket) = &mut last[index];
            let expected = bucket.take(now);
            refused += usize::from(expected != Verdict::Granted);
            if number.is_multiple_of(SELDOM) {
                let answer = flooded.submit("flooded", &key(*number));
                assert_eq!((answer.is_granted(), answer.degraded), (expected == Verdict::Granted, false));
            } else {
                assert_eq!(flooded.gate.try_acquire(&key(*number), 1), Ok(expected), "key {number}");
            }
        }
        if last.len() > REMEMBERED {
            last.pop_front();
        }
        if number % SELDOM == 0 {
            flooded.charge_other_limit(number / SELDOM);
        }
    }
    assert!(refused > 0, "no request was above the limit");
    flooded.check_other_counts();
}

const A_DAY: u64 = 3;

/// Rows that last until midnight are kept until then. Without room, new keys are refused with the wait until midnight.
#[test]
fn flood_of_day_keys_refuses_new_keys_until_midnight() {
    let mut flooded = Flooded::new(ItemSpec::of(Policy::Calendar(Unit::Day), A_DAY).per_key());
    let mut admitted: HashMap<usize, u64> = HashMap::new();
    let mut refused_without_room = 0_usize;
    for number in 0..keys() {
        let peeked = (number % 8 == 0).then(|| flooded.peek("flooded", &key(number)));
        let answer = flooded.submit("flooded", &key(number));
        if let Some(peeked) = peeked {
            assert_eq!(
                (peeked.outcome, peeked.degraded),
                (answer.outcome.clone(), answer.degraded),
                "key {number}"
            );
        }
        match &answer.outcome {
            Outcome::Granted(_) => {
                assert!(!answer.degraded);
                admitted.insert(number, 1);
            }
            Outcome::Denied(denied) => {
                assert!(answer.degraded, "nothing else could refuse a new key");
                assert_eq!(denied.wait, Wait::Until(MIDNIGHT));
                refused_without_room += 1;
                if number % 16 == 0 {
                    assert_eq!(flooded.gate.try_acquire(&key(number), 1), Ok(Verdict::Denied(denied.wait)));
                }
            }
        }
        if number % SELDOM == 0 {
            flooded.charge_other_limit(number / SELDOM);
        }
    }
    // One limit may use half of the store.
    assert!(admitted.len() * 32 > LEAST_CAPACITY / 2, "only {} keys found room", admitted.len());
    assert!(refused_without_room > 0, "no key was refused for lack of room");
    flooded.clock.set(NOON.plus(Tick::NANOSECOND.span(Duration::from_secs(3_600))));
    exact_for(&flooded, &admitted);
    flooded.check_other_counts();

    flooded.clock.set(MIDNIGHT);
    for number in 0..admitted.len() / 2 {
        let answer = flooded.submit("flooded", &key(keys() + number));
        assert!(answer.is_granted() && !answer.degraded, "key {number} of the next day: {answer:?}");
    }
    flooded.check_other_counts();
    let taken = flooded.store.bytes();
    assert!(taken <= LEAST_CAPACITY, "{taken} bytes");
}

/// Every admitted key has its exact count and is granted exactly the rest of its day.
fn exact_for(flooded: &Flooded, admitted: &HashMap<usize, u64>) {
    for (&number, &count) in admitted {
        let key = key(number);
        assert_eq!(flooded.used("flooded", &key), count, "key {number}");
        for asked in count..=A_DAY {
            let expected =
                if asked < A_DAY { Verdict::Granted } else { Verdict::Denied(Wait::Until(MIDNIGHT)) };
            assert_eq!(flooded.gate.try_acquire(&key, 1), Ok(expected), "key {number}");
        }
        let answer = flooded.submit("flooded", &key);
        assert!(!answer.is_granted() && !answer.degraded, "spent, not crowded out: {answer:?}");
    }
}
