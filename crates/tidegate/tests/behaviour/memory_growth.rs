//! A memory store whose tables grow to several levels, and one that runs for decades.

use std::sync::Arc;
use std::time::Duration;

use tidegate::catalog::{Catalog, ExpectedVersion, RemovalMode};
use tidegate::clock::ManualClock;
use tidegate::model::{Amount, Ask, ItemSpec, LimitSpec, Policy, Timestamp, Verdict, Wait};
use tidegate::store::memory::MemoryHandle;
use tidegate::store::{MapStore, Memory, MemoryStore, Store};

use crate::memory_handles::verdict;

const START: Timestamp = Timestamp::from_ticks(1_000_000_000_000_000);
/// Enough keys for three levels of leaves everywhere.
const MANY: u64 = 400_000;

fn buckets(id: &str, burst: Amount) -> LimitSpec {
    let policy = Policy::Bucket { window: Duration::from_secs(3_600), burst: Some(burst) };
    LimitSpec::named(id).with(ItemSpec::of(policy, burst).per_key())
}

fn key(number: u64) -> [u8; 12] {
    let mut key = *b"key-00000000";
    key[4..].copy_from_slice(&number.to_be_bytes());
    key
}

/// The number of these keys that are granted a unit.
fn granted(gate: &MemoryHandle, keys: impl Iterator<Item = u64>) -> u64 {
    keys.filter(|number| gate.try_acquire(&key(*number), 1).expect("it is known") == Verdict::Granted).count()
        as u64
}

/// The same in batches of sixteen.
fn granted_in_batches(gate: &MemoryHandle, keys: impl Iterator<Item = u64>) -> u64 {
    let keys: Vec<[u8; 12]> = keys.map(key).collect();
    let mut granted = 0;
    for some in keys.chunks(16) {
        let some: Vec<&[u8]> = some.iter().map(|key| &key[..]).collect();
        let mut verdicts = vec![Verdict::Denied(Wait::Never); some.len()];
        gate.try_batch(&some, 1, &mut verdicts).expect("it is known");
        granted += verdicts.iter().filter(|verdict| **verdict == Verdict::Granted).count() as u64;
    }
    granted
}

#[test]
fn growing_table_keeps_every_count() {
    let clock = Arc::new(ManualClock::at(START));
    let store = MemoryStore::new(clock, Memory { secret: [7, 8], ..Memory::default() });
    for round in 0..2 {
        store.put(buckets("many", 2), ExpectedVersion::Absent).expect("a valid limit");
        let gate = store.handle("many").expect("it was put");
        // One unit per key while the table grows. Much older keys are requested again.
        for begin in (0..MANY).step_by(50_000) {
            assert_eq!(granted(&gate, begin..begin + 50_000), 50_000, "round {round}, from {begin}");
            assert_eq!(
                granted(&gate, (0..begin).step_by(1_000)),
                begin.min(50_000) / 1_000,
                "round {round}, at {begin}"
            );
        }
        // The second unit, for keys that have one left.
        let once = |number: &u64| !number.is_multiple_of(1_000) || *number >= MANY - 50_000;
        let rest = granted_in_batches(&gate, (0..MANY).filter(once));
        assert_eq!(rest, (0..MANY).filter(once).count() as u64, "round {round}");
        assert_eq!(granted_in_batches(&gate, 0..MANY), 0, "round {round}: no key has a third unit");
        assert_eq!(granted(&gate, 0..MANY), 0, "round {round}: nor one by one");
        let seen = store.observe("many").expect("it is there");
        assert_eq!(seen.rows, Some(MANY), "round {round}");
        assert!(store.remove("many", RemovalMode::Forget), "it was there");
    }
}

#[test]
fn handle_decides_after_base_time_wraps() {
    // Cells count 2^61 ns from the creation of the limit, which is 73 years.
    for later in [1_u64 << 60, (1 << 61) - 1, 1 << 61, (1 << 61) + 5, 1 << 62, 1 << 63] {
        for (burst, window) in [(2, 3_600), (1, 3_600), (1, 100 * 365 * 86_400), (1_000, 1)] {
            let clock = Arc::new(ManualClock::at(START));
            let store = MemoryStore::new(Arc::clone(&clock), Memory { secret: [7, 8], ..Memory::default() });
            let plain = MapStore::new(Arc::clone(&clock), 1);
            let policy = Policy::Bucket { window: Duration::from_secs(window), burst: Some(burst) };
            let spec = LimitSpec::named("each").with(ItemSpec::of(policy, burst).per_key());
            for catalog in [&store as &dyn Catalog, &plain] {
                catalog.put(spec.clone(), ExpectedVersion::Absent).expect("a valid limit");
            }
            let gate = store.handle("each").expect("it was put");
            let say = |when: &str| {
                let ask = Ask { limit_id: "each", key: Some(b"ada-lovelace"), count: 1 };
                let expected = verdict(&plain, ask);
                let verdict_of_handle = gate.try_acquire(b"ada-lovelace", 1);
                assert_eq!(verdict_of_handle, expected, "{burst} in {window} s, {when} {later}");
            };
            (0..4).for_each(|_| say("before"));
            clock.set(Timestamp::from_ticks(START.ticks().saturating_add(later)));
            (0..4).for_each(|_| say("after"));
            clock.advance(Duration::from_secs(1));
            (0..4).for_each(|_| say("a second after"));
        }
    }
}
