//! Property tests: random histories of acquire, wait, cancel, release, leak and edit.
//!
//! Invariants: a later arrival is never served before an earlier waiter for the same row. When no event is pending, the
//! head of every queue is unservable. After all releases the queues are empty and everything is free.

use proptest::prelude::*;
use std::task::Poll;
use tidegate::model::{Ask, LimitSpec};
use tidegate::{AcquireError, Lease, Permit};
use tidegate_testkit::test_scale;

use super::{LimiterFixture, Store};
use crate::fixture::{DecisionExt, FixtureStore, HandleExt, Waiter, seconds, slots_of};

const KEYS: [&str; 3] = ["ada", "bob", "cid"];

#[derive(Debug, Clone, Copy)]
enum Move {
    Acquire {
        key: usize,
        count: u64,
    },
    Wait {
        key: usize,
        count: u64,
        timeout: u64,
    },
    /// Requests both limits at once.
    WaitForBoth {
        key: usize,
        count: u64,
        timeout: u64,
    },
    Cancel(usize),
    Release(usize),
    Leak(usize),
    /// Polls one woken waiter.
    Poll(usize),
    PollAll,
    AdvanceTime {
        seconds: u64,
    },
    Edit {
        slots: u64,
    },
}

fn moves() -> impl Strategy<Value = Move> {
    let (key, count, timeout) = (0..KEYS.len(), 1..4_u64, 1..=60_u64);
    prop_oneof![
        2 => (key.clone(), count.clone()).prop_map(|(key, count)| Move::Acquire { key, count }),
        4 => (key.clone(), count.clone(), timeout.clone())
            .prop_map(|(key, count, timeout)| Move::Wait { key, count, timeout }),
        2 => (key, count, timeout).prop_map(|(key, count, timeout)| Move::WaitForBoth { key, count, timeout }),
        1 => any::<usize>().prop_map(Move::Cancel),
        4 => any::<usize>().prop_map(Move::Release),
        1 => any::<usize>().prop_map(Move::Leak),
        4 => any::<usize>().prop_map(Move::Poll),
        1 => Just(Move::PollAll),
        1 => (1..30_u64).prop_map(|seconds| Move::AdvanceTime { seconds }),
        1 => (1..6_u64).prop_map(|slots| Move::Edit { slots }),
    ]
}

/// The scope of the slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SlotScope {
    All,
    Key,
    AllAndKey,
}

fn spec(scope: SlotScope, slots: u64) -> LimitSpec {
    let limit = LimitSpec::named("l");
    match scope {
        SlotScope::All => limit.with(slots_of(slots)),
        SlotScope::Key => limit.with(slots_of(slots).per_key()),
        SlotScope::AllAndKey => limit.with(slots_of(slots)).with(slots_of(2).per_key()),
    }
}

/// A waiter and its request.
struct QueuedWaiter {
    waiter: Waiter,
    key: usize,
    count: u64,
    both: Vec<&'static str>,
}

struct HistoryRunner {
    fixture: LimiterFixture,
    scope: SlotScope,
    leases: Vec<Lease>,
    /// The waiters in arrival order.
    queue: Vec<QueuedWaiter>,
}

impl HistoryRunner {
    fn new(scope: SlotScope) -> HistoryRunner {
        let fixture = LimiterFixture::new();
        fixture.put(spec(scope, 3));
        fixture.put(LimitSpec::named("m").with(slots_of(3)));
        HistoryRunner { fixture, scope, leases: Vec::new(), queue: Vec::new() }
    }

    fn apply(&mut self, step: Move) {
        match step {
            Move::Acquire { key, count } => {
                let handle = self.fixture.limiter.handle("l");
                let decision = handle.of(KEYS[key]).count(count).try_acquire();
                if decision.is_granted() {
                    self.assert_not_overtaken(self.queue.len(), key, &["l"]);
                }
                self.leases.extend(decision.permit().and_then(Permit::into_lease));
            }
            Move::Wait { key, count, timeout } => self.wait(key, count, timeout, vec!["l"]),
            Move::WaitForBoth { key, count, timeout } => self.wait(key, count, timeout, vec!["m", "l"]),
            Move::Cancel(n) => drop(pick(&mut self.queue, n)),
            Move::Release(n) => drop(pick(&mut self.leases, n)),
            Move::Leak(n) => drop(pick(&mut self.leases, n).map(Lease::into_id)),
            Move::Poll(n) => {
                let woken: Vec<usize> =
                    (0..self.queue.len()).filter(|place| self.queue[*place].waiter.is_woken()).collect();
                if !woken.is_empty() {
                    self.poll(woken[n % woken.len()]);
                }
            }
            Move::PollAll => self.run_all(),
            Move::AdvanceTime { seconds: time } => self.fixture.pass(seconds(time)),
            Move::Edit { slots } => self.fixture.put(spec(self.scope, slots)),
        }
    }

    fn wait(&mut self, key: usize, count: u64, timeout: u64, both: Vec<&'static str>) {
        let asks: Vec<Ask<'_>> =
            both.iter().map(|limit_id| Ask { limit_id, key: Some(KEYS[key].as_bytes()), count }).collect();
        let waiter = Waiter::new(self.fixture.limiter.request(&asks).within(seconds(timeout)));
        self.queue.push(QueuedWaiter { waiter, key, count, both });
        self.poll(self.queue.len() - 1);
    }

    fn poll(&mut self, place: usize) {
        let Poll::Ready(answer) = self.queue[place].waiter.poll() else { return };
        let QueuedWaiter { key, both, .. } = self.queue.remove(place);
        if let Ok(granted) = answer {
            self.assert_not_overtaken(place, key, &both);
            self.leases.extend(granted.into_lease());
        }
    }

    /// Asserts that no earlier waiter waits for a row that was just charged. A waiter blocked on its own key lets others
    /// pass in the global queue, so only waiters of the same key are checked.
    fn assert_not_overtaken(&self, place: usize, key: usize, both: &[&str]) {
        for earlier in &self.queue[..place] {
            let shared = both.iter().any(|limit_id| earlier.both.contains(limit_id));
            let overtaken = match self.scope {
                SlotScope::All => shared,
                SlotScope::Key | SlotScope::AllAndKey => earlier.key == key,
            };
            assert!(!overtaken, "a waiter was overtaken");
        }
    }

    fn run_all(&mut self) {
        let mut polls = 0;
        while let Some(place) = self.queue.iter().rposition(|waiter| waiter.waiter.is_woken()) {
            self.poll(place);
            polls += 1;
            assert!(polls < 10_000, "the waiters wake each other forever");
        }
        for (place, waiter) in self.queue.iter().enumerate() {
            let fits = self.peek(waiter).is_granted();
            assert!(!fits || self.is_blocked(place), "waiter {place} waits although its request fits");
        }
    }

    fn peek(&self, waiter: &QueuedWaiter) -> Result<Permit, AcquireError> {
        let ask = |limit_id| Ask { limit_id, key: Some(KEYS[waiter.key].as_bytes()), count: waiter.count };
        let asks: Vec<Ask<'_>> = waiter.both.iter().copied().map(ask).collect();
        self.fixture.limiter.request(&asks).peek()
    }

    /// Whether an earlier waiter blocks this one: a waiter of the same key, or one in the global queue that is not blocked
    /// on its own key.
    fn is_blocked(&self, place: usize) -> bool {
        let waiter = &self.queue[place];
        let is_global = |limit_id: &str| limit_id == "m" || self.scope != SlotScope::Key;
        let keyed = self.scope != SlotScope::All;
        (0..place).any(|earlier| {
            let other = &self.queue[earlier];
            let same_key = |third: &QueuedWaiter| keyed && third.key == other.key;
            let shared = waiter.both.iter().any(|id| is_global(id) && other.both.contains(id));
            let waits_for_key =
                self.peek(other).refused().is_some_and(|denial| denial.item().starts_with("key/"))
                    || self.queue[..earlier].iter().any(same_key);
            same_key(waiter) || (shared && !waits_for_key)
        })
    }

    fn finish(mut self) {
        self.leases.clear();
        self.run_all();
        while !self.queue.is_empty() {
            // Waiters are served in turn, leaked leases expire, and timeouts end.
            self.leases.clear();
            self.run_all();
            if self.leases.is_empty() {
                self.fixture.pass(seconds(1));
                self.run_all();
            }
        }
        self.leases.clear();
        self.fixture.pass(seconds(60));
        assert_eq!((self.fixture.limiter.waiting_in_all(), self.fixture.holder_clock.sleepers()), (0, 0));
        assert_eq!(self.fixture.store.open_leases(), 0);
        self.fixture.put(spec(SlotScope::All, 3));
        self.fixture.ends_with(0);
    }
}

/// Removes one element.
fn pick<T>(list: &mut Vec<T>, n: usize) -> Option<T> {
    (!list.is_empty()).then(|| list.remove(n % list.len()))
}

fn run_history(scope: SlotScope, moves: &[Move]) {
    let mut runner = HistoryRunner::new(scope);
    for step in moves {
        runner.apply(*step);
    }
    runner.finish();
}

proptest! {
    #![proptest_config(test_scale::cases(Store::RANDOM_CASES))]

    #[test]
    fn random_history_with_global_slots_keeps_order(moves in prop::collection::vec(moves(), 0..60)) {
        run_history(SlotScope::All, &moves);
    }

    #[test]
    fn random_history_with_slots_per_key_keeps_order(moves in prop::collection::vec(moves(), 0..60)) {
        run_history(SlotScope::Key, &moves);
    }

    #[test]
    fn random_history_with_both_scopes_keeps_order(moves in prop::collection::vec(moves(), 0..60)) {
        run_history(SlotScope::AllAndKey, &moves);
    }
}
