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
use crate::fixture::{DecisionExt, FixtureStore, Waiter, seconds, slots_of};

const KEYS: [&str; 3] = ["ada", "bob", "cid"];

#[derive(Debug, Clone, Copy)]
enum Move {
    Take {
        key: usize,
        count: u64,
    },
    Wait {
        key: usize,
        count: u64,
        patience: u64,
    },
    /// Requests both limits at once.
    WaitForBoth {
        key: usize,
        count: u64,
        patience: u64,
    },
    GiveUp(usize),
    GiveBack(usize),
    Leak(usize),
    /// Polls one woken waiter.
    Run(usize),
    RunAll,
    Pass {
        seconds: u64,
    },
    Edit {
        slots: u64,
    },
}

fn moves() -> impl Strategy<Value = Move> {
    let (key, count, patience) = (0..KEYS.len(), 1..4_u64, 1..=60_u64);
    prop_oneof![
        2 => (key.clone(), count.clone()).prop_map(|(key, count)| Move::Take { key, count }),
        4 => (key.clone(), count.clone(), patience.clone())
            .prop_map(|(key, count, patience)| Move::Wait { key, count, patience }),
        2 => (key, count, patience).prop_map(|(key, count, patience)| Move::WaitForBoth { key, count, patience }),
        1 => any::<usize>().prop_map(Move::GiveUp),
        4 => any::<usize>().prop_map(Move::GiveBack),
        1 => any::<usize>().prop_map(Move::Leak),
        4 => any::<usize>().prop_map(Move::Run),
        1 => Just(Move::RunAll),
        1 => (1..30_u64).prop_map(|seconds| Move::Pass { seconds }),
        1 => (1..6_u64).prop_map(|slots| Move::Edit { slots }),
    ]
}

/// The scope of the slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Counted {
    All,
    Key,
    AllAndKey,
}

fn spec(counted: Counted, slots: u64) -> LimitSpec {
    let limit = LimitSpec::named("l");
    match counted {
        Counted::All => limit.with(slots_of(slots)),
        Counted::Key => limit.with(slots_of(slots).per_key()),
        Counted::AllAndKey => limit.with(slots_of(slots)).with(slots_of(2).per_key()),
    }
}

/// A waiter and its request.
struct Patient {
    waiter: Waiter,
    key: usize,
    count: u64,
    both: Vec<&'static str>,
}

struct Play {
    fixture: LimiterFixture,
    counted: Counted,
    leases: Vec<Lease>,
    /// The waiters in arrival order.
    line: Vec<Patient>,
}

impl Play {
    fn new(counted: Counted) -> Play {
        let fixture = LimiterFixture::new();
        fixture.put(spec(counted, 3));
        fixture.put(LimitSpec::named("m").with(slots_of(3)));
        Play { fixture, counted, leases: Vec::new(), line: Vec::new() }
    }

    fn make(&mut self, step: Move) {
        match step {
            Move::Take { key, count } => {
                let question = self.fixture.limiter.ask("l", KEYS[key]).count(count);
                let decision = question.try_acquire();
                if decision.is_granted() {
                    self.assert_not_overtaken(self.line.len(), key, &["l"]);
                }
                self.leases.extend(decision.permit().and_then(Permit::into_lease));
            }
            Move::Wait { key, count, patience } => self.wait(key, count, patience, vec!["l"]),
            Move::WaitForBoth { key, count, patience } => self.wait(key, count, patience, vec!["m", "l"]),
            Move::GiveUp(n) => drop(pick(&mut self.line, n)),
            Move::GiveBack(n) => drop(pick(&mut self.leases, n)),
            Move::Leak(n) => drop(pick(&mut self.leases, n).map(Lease::into_id)),
            Move::Run(n) => {
                let woken: Vec<usize> =
                    (0..self.line.len()).filter(|place| self.line[*place].waiter.is_woken()).collect();
                if !woken.is_empty() {
                    self.poll(woken[n % woken.len()]);
                }
            }
            Move::RunAll => self.run_all(),
            Move::Pass { seconds: time } => self.fixture.pass(seconds(time)),
            Move::Edit { slots } => self.fixture.put(spec(self.counted, slots)),
        }
    }

    fn wait(&mut self, key: usize, count: u64, patience: u64, both: Vec<&'static str>) {
        let asks: Vec<Ask<'_>> =
            both.iter().map(|limit_id| Ask { limit_id, key: Some(KEYS[key].as_bytes()), count }).collect();
        let waiter = Waiter::new(self.fixture.limiter.asks(&asks).within(seconds(patience)));
        self.line.push(Patient { waiter, key, count, both });
        self.poll(self.line.len() - 1);
    }

    fn poll(&mut self, place: usize) {
        let Poll::Ready(answer) = self.line[place].waiter.poll() else { return };
        let Patient { key, both, .. } = self.line.remove(place);
        if let Ok(granted) = answer {
            self.assert_not_overtaken(place, key, &both);
            self.leases.extend(granted.into_lease());
        }
    }

    /// Asserts that no earlier waiter waits for a row that was just charged. A waiter blocked on its own key lets others
    /// pass in the global queue, so only waiters of the same key are checked.
    fn assert_not_overtaken(&self, place: usize, key: usize, both: &[&str]) {
        for earlier in &self.line[..place] {
            let shared = both.iter().any(|limit_id| earlier.both.contains(limit_id));
            let overtaken = match self.counted {
                Counted::All => shared,
                Counted::Key | Counted::AllAndKey => earlier.key == key,
            };
            assert!(!overtaken, "a waiter was overtaken");
        }
    }

    fn run_all(&mut self) {
        let mut polls = 0;
        while let Some(place) = self.line.iter().rposition(|patient| patient.waiter.is_woken()) {
            self.poll(place);
            polls += 1;
            assert!(polls < 10_000, "the waiters wake each other forever");
        }
        for (place, patient) in self.line.iter().enumerate() {
            let fits = self.peek(patient).is_granted();
            assert!(!fits || self.is_blocked(place), "waiter {place} waits although its request fits");
        }
    }

    fn peek(&self, patient: &Patient) -> Result<Permit, AcquireError> {
        let ask = |limit_id| Ask { limit_id, key: Some(KEYS[patient.key].as_bytes()), count: patient.count };
        let asks: Vec<Ask<'_>> = patient.both.iter().copied().map(ask).collect();
        self.fixture.limiter.asks(&asks).peek()
    }

    /// Whether an earlier waiter blocks this one: a waiter of the same key, or one in the global queue that is not blocked
    /// on its own key.
    fn is_blocked(&self, place: usize) -> bool {
        let patient = &self.line[place];
        let counted = |limit_id: &str| limit_id == "m" || self.counted != Counted::Key;
        let keyed = self.counted != Counted::All;
        (0..place).any(|earlier| {
            let other = &self.line[earlier];
            let same_key = |third: &Patient| keyed && third.key == other.key;
            let shared = patient.both.iter().any(|id| counted(id) && other.both.contains(id));
            let waits_for_key =
                self.peek(other).refused().is_some_and(|denial| denial.item().starts_with("key/"))
                    || self.line[..earlier].iter().any(same_key);
            same_key(patient) || (shared && !waits_for_key)
        })
    }

    fn end(mut self) {
        self.leases.clear();
        self.run_all();
        while !self.line.is_empty() {
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
        self.fixture.put(spec(Counted::All, 3));
        self.fixture.ends_with(0);
    }
}

/// Removes one element.
fn pick<T>(list: &mut Vec<T>, n: usize) -> Option<T> {
    (!list.is_empty()).then(|| list.remove(n % list.len()))
}

fn run_history(counted: Counted, moves: &[Move]) {
    let mut play = Play::new(counted);
    for step in moves {
        play.make(*step);
    }
    play.end();
}

proptest! {
    #![proptest_config(test_scale::cases(Store::RANDOM_CASES))]

    #[test]
    fn random_history_with_global_slots_keeps_order(moves in prop::collection::vec(moves(), 0..60)) {
        run_history(Counted::All, &moves);
    }

    #[test]
    fn random_history_with_slots_per_key_keeps_order(moves in prop::collection::vec(moves(), 0..60)) {
        run_history(Counted::Key, &moves);
    }

    #[test]
    fn random_history_with_both_scopes_keeps_order(moves in prop::collection::vec(moves(), 0..60)) {
        run_history(Counted::AllAndKey, &moves);
    }
}
