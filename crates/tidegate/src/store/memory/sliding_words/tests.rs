use proptest::prelude::*;
use tidegate_core::law::SlidingWindow;
use tidegate_core::{Receipt, Span, State, Verdict};
use tidegate_testkit::test_scale::cases;

use super::super::sync::Ordering;
use super::ring::HEAD_AND_COUNT;
use super::*;

fn at(ticks: u64) -> Timestamp {
    Timestamp::from_ticks(ticks)
}

/// A packed log and the core's log that it must equal.
struct Pair {
    rule: Rule,
    law: SlidingWords,
    slab: Slab,
    budget: Budget,
    word: u64,
    state: State,
}

impl Pair {
    fn new(capacity: Capacity, window: u64, is_exact: bool) -> Pair {
        let window = Span::from_ticks(window);
        let law = if is_exact { SlidingWindow::exact(window) } else { SlidingWindow::bucketed(window) };
        let rule = Rule { capacity, law: Law::SlidingWindow(law) };
        Pair {
            law: SlidingWords::of(&rule).expect("short enough"),
            state: State::blank(&rule.law),
            rule,
            slab: Slab::new(),
            budget: Budget::new(usize::MAX),
            word: 0,
        }
    }

    fn log(&self) -> &SlidingLog {
        let State::SlidingWindow(log) = &self.state else { unreachable!("a sliding rule") };
        log
    }

    fn judge(&self, cost: Amount, now: Timestamp) -> Judgement {
        self.law.judge(&self.slab, self.word, cost, now)
    }

    /// Judges until there is a verdict, and compares it.
    fn check(&mut self, cost: Amount, now: Timestamp) {
        let last_charge = self.log().last_charge().unwrap_or_default();
        let mut now = now;
        if last_charge > now {
            assert_eq!(self.judge(cost, now), Judgement::At(last_charge));
            now = last_charge;
        }
        let expected = self.rule.check(&self.state, cost, now);
        let mut judgement = self.judge(cost, now);
        if judgement == Judgement::Tidy {
            self.tidy(now);
            judgement = self.judge(cost, now);
        }
        let verdict = match judgement {
            Judgement::Granted => Verdict::Granted,
            Judgement::Denied(wait) => Verdict::Denied(wait),
            other => panic!("{other:?} after tidy"),
        };
        assert_eq!(verdict, expected, "{cost} at {now:?} of {:?}", self.state);
    }

    /// Charges both. If the packed log cannot take it, neither is changed.
    fn charge(&mut self, cost: Amount, now: Timestamp) -> bool {
        let mut next = self.state.clone();
        self.rule.charge(&mut next, cost, None, now);
        let word = self.law.charge(&self.slab, &self.budget, self.word, cost, now);
        if let Some(word) = word {
            self.word = word;
            self.state = next;
        } else {
            assert!(!self.can_pack(cost, now), "{cost} at {now:?} fits {:?}", self.state);
        }
        self.compare(now);
        word.is_some()
    }

    /// Whether a log with another charge can be packed.
    fn can_pack(&self, cost: Amount, now: Timestamp) -> bool {
        let max_units = max_units(self.law.count_bits());
        let live = self.live(now);
        let entries = live.iter().map(|&(_, amount)| amount.div_ceil(max_units)).sum::<u64>();
        let total = live.iter().map(|entry| entry.1).sum::<u64>();
        entries + cost.div_ceil(max_units) <= MAX_ENTRIES && total.checked_add(cost).is_some()
    }

    fn live(&self, now: Timestamp) -> Vec<(Timestamp, Amount)> {
        self.log().iter().filter(|(at, _)| !self.law.is_expired(at.ticks(), now.ticks())).collect()
    }

    fn tidy(&mut self, now: Timestamp) {
        self.word = self.law.tidy(&self.slab, &self.budget, self.word, now);
        let live = self.live(now);
        let last_charge = self.log().last_charge().filter(|_| !live.is_empty());
        self.state = State::SlidingWindow(SlidingLog::from_sorted(live, last_charge.unwrap_or_default()));
        self.compare(now);
        assert_eq!(self.word == 0, self.log().is_empty());
    }

    /// Gives back units of an entry and packs the log again.
    fn refund(&mut self, entry: prop::sample::Index, amount: Amount, now: Timestamp) {
        let mut state = State::SlidingWindow(self.law.read(&self.slab, self.word));
        let count = self.log().len();
        if count > 0 {
            let (at, _) = self.log().iter().nth(entry.index(count)).expect("below the count");
            self.rule.refund(&mut state, Receipt::At(at), amount, now);
            self.rule.refund(&mut self.state, Receipt::At(at), amount, now);
        }
        let State::SlidingWindow(log) = &state else { unreachable!("a sliding rule") };
        self.word = self.law.write(&self.slab, &self.budget, self.word, log).expect("it was packed");
        self.compare(now);
    }

    /// Everything that can be read is equal, and the budget counts one block at most.
    fn compare(&self, now: Timestamp) {
        let (law, slab, word) = (&self.law, &self.slab, self.word);
        let log = law.read(slab, word);
        assert_eq!(&log, self.log());
        let used = self.rule.used(&self.state, now);
        let empty_at = self.rule.empty_at(&self.state, now);
        assert_eq!(law.used(slab, word, now), used);
        assert_eq!(law.empty_at(slab, word, now), empty_at);
        assert_eq!(law.evictable_at(slab, word, now) == now, used == 0);
        assert_eq!(law.evictable_at(slab, word, now), empty_at.unwrap_or(now));
        let latest = log.latest().map(|(at, amount)| (at, amount, log.last_charge().unwrap_or_default()));
        assert_eq!(law.latest(slab, word), latest);
        assert_eq!(word >> 63, 0);
        assert_eq!(self.budget.taken(), self.block_words() * 8);
    }

    fn block_words(&self) -> usize {
        self.slab.words(block_of(self.word)).len()
    }

    fn free(self) {
        self.law.free(&self.slab, &self.budget, self.word);
        assert_eq!(self.budget.taken(), 0);
    }
}

#[derive(Debug, Clone)]
enum Step {
    /// Checks and charges of this cost, with this part of the window between two.
    Charges {
        count: u32,
        cost: Amount,
        gap: f64,
    },
    /// Moves the clock by a part of the window. Negative is back.
    Move {
        by: f64,
    },
    Tick {
        by: i64,
    },
    Check {
        cost: Amount,
    },
    Refund {
        entry: prop::sample::Index,
        amount: Amount,
    },
    Tidy,
}

fn costs() -> impl Strategy<Value = Amount> {
    prop_oneof![
        4 => Just(1),
        4 => 0u64..8,
        2 => 8u64..200,
        1 => 200u64..10_000,
        1 => prop::sample::select(vec![1 << 20, 1 << 40, 1 << 63, u64::MAX - 1, u64::MAX]),
    ]
}

fn steps() -> impl Strategy<Value = Step> {
    let parts = prop_oneof![Just(0.0), 0.0..0.03, 0.0..0.5];
    prop_oneof![
        4 => (1u32..200, costs(), parts).prop_map(|(count, cost, gap)| Step::Charges { count, cost, gap }),
        2 => (1u32..4, costs(), 0.0..1.5).prop_map(|(count, cost, gap)| Step::Charges { count, cost, gap }),
        2 => (-0.5..1.5).prop_map(|by| Step::Move { by }),
        1 => (1.0..20.0).prop_map(|by| Step::Move { by }),
        2 => (-2i64..3).prop_map(|by| Step::Tick { by }),
        3 => costs().prop_map(|cost| Step::Check { cost }),
        2 => (any::<prop::sample::Index>(), costs())
            .prop_map(|(entry, amount)| Step::Refund { entry, amount }),
        1 => Just(Step::Tidy),
    ]
}

fn windows() -> impl Strategy<Value = u64> {
    prop_oneof![1u64..300, Just(60_000_000_000), Just(31 * 86_400_000_000_000), Just((1 << 57) - 1)]
}

fn capacities() -> impl Strategy<Value = Capacity> {
    let limits = prop_oneof![0u64..6, 6u64..300, 300u64..100_000, Just(i64::MAX as u64), Just(u64::MAX)];
    prop_oneof![1 => Just(Capacity::Unlimited), 8 => limits.prop_map(Capacity::AtMost)]
}

fn starts() -> impl Strategy<Value = u64> {
    prop::sample::select(vec![0, 1, 1_790_000_000_000_000_000, PAYLOAD - 1, PAYLOAD, u64::MAX - 5])
}

/// A part of the window in ticks.
#[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "about so many")]
fn part(window: u64, by: f64) -> i64 {
    (window as f64 * by) as i64
}

proptest! {
    #![proptest_config(cases(300))]

    /// Random operations on a packed log have the same results as on the core's log.
    #[test]
    fn packed_log_equals_sliding_log(
        capacity in capacities(),
        window in windows(),
        is_exact in any::<bool>(),
        start in starts(),
        steps in prop::collection::vec(steps(), 1..40),
    ) {
        let mut pair = Pair::new(capacity, window, is_exact);
        let mut now = start;
        for step in steps {
            match step {
                Step::Charges { count, cost, gap } => {
                    for index in 0..count {
                        if index > 0 {
                            now = now.saturating_add_signed(part(window, gap));
                        }
                        pair.check(cost, at(now));
                        if !pair.charge(cost, at(now)) {
                            break;
                        }
                    }
                }
                Step::Move { by } => now = now.saturating_add_signed(part(window, by)),
                Step::Tick { by } => now = now.saturating_add_signed(by),
                Step::Check { cost } => pair.check(cost, at(now)),
                Step::Refund { entry, amount } => pair.refund(entry, amount, at(now)),
                Step::Tidy => pair.tidy(at(now)),
            }
            pair.check(1, at(now));
            pair.compare(at(now));
        }
        pair.free();
    }

    /// Reads of any words end without a panic.
    #[test]
    fn garbage_never_panics(
        class in 0u32..5,
        words in prop::collection::vec(garbage(), 128),
        head in 0u64..140,
        count in 0u64..140,
        sets_header in any::<bool>(),
        word in prop_oneof![Just(None), any::<u64>().prop_map(Some)],
        capacity in capacities(),
        window in prop_oneof![windows(), any::<u64>()],
        granularity in prop_oneof![Just(0), Just(1), any::<u64>()],
        cost in costs(),
        now in garbage(),
    ) {
        let (slab, budget) = (Slab::new(), Budget::new(usize::MAX));
        let block = slab.alloc(class, &budget);
        for (target, word) in slab.words(block).iter().zip(words) {
            target.store(word, Ordering::Relaxed);
        }
        if sets_header {
            slab.words(block)[HEAD_AND_COUNT].store(head << 32 | count, Ordering::Relaxed);
        }
        let word = word.unwrap_or(word_of(block));
        let law = SlidingWords::from_parts(capacity, window, granularity);
        law.judge(&slab, word, cost, at(now));
        law.used(&slab, word, at(now));
        law.empty_at(&slab, word, at(now));
        law.evictable_at(&slab, word, at(now));
        law.latest(&slab, word);
        law.read(&slab, word);
    }
}

fn garbage() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), 0u64..200, any::<u64>().prop_map(|word| word | u64::MAX << 50), Just(u64::MAX)]
}

#[test]
fn unit_of_exact_log_needs_no_block() {
    let mut pair = Pair::new(Capacity::AtMost(5), 15, true);
    assert!(pair.charge(1, at(100)));
    assert_eq!((pair.word, pair.budget.taken()), (100, 0));
    // The unit has expired, so that the next one takes its word.
    assert!(pair.charge(1, at(116)));
    assert_eq!((pair.word, pair.budget.taken()), (116, 0));
    assert!(pair.charge(1, at(117)));
    assert_eq!(pair.budget.taken(), 64);
    pair.tidy(at(132));
    assert_eq!((pair.word, pair.budget.taken()), (117, 0));
    pair.tidy(at(133));
    assert_eq!(pair.word, 0);
}

#[test]
fn instant_that_is_no_word_needs_a_block() {
    for now in [0, IN_BLOCK, u64::MAX - 1_000] {
        let mut pair = Pair::new(Capacity::AtMost(5), 15, true);
        assert!(pair.charge(1, at(now)));
        assert_eq!(pair.budget.taken(), 64, "at {now}");
        pair.free();
    }
}

#[test]
fn unit_of_bucketed_log_needs_a_block() {
    let mut pair = Pair::new(Capacity::AtMost(5), 640, false);
    // The last tick of a sub-window, where the charge counts.
    assert!(pair.charge(1, at(1_009)));
    assert_eq!(pair.budget.taken(), 64);
    pair.free();
}

#[test]
fn charges_of_one_instant_share_an_entry() {
    let mut pair = Pair::new(Capacity::Unlimited, 60_000_000_000, true);
    for _ in 0..1_000 {
        assert!(pair.charge(2, at(1_000)));
    }
    assert_eq!(pair.block_words(), 8);
    pair.free();
}

#[test]
fn smallest_blocks_have_4_and_12_entries() {
    let mut pair = Pair::new(Capacity::AtMost(50), 1_000, true);
    let mut sizes = Vec::new();
    for index in 0..13 {
        assert!(pair.charge(1, at(100 + index)));
        sizes.push(pair.block_words());
    }
    assert_eq!(sizes, [0, 8, 8, 8, 16, 16, 16, 16, 16, 16, 16, 16, 32]);
}

#[test]
fn short_log_shrinks_its_block() {
    let mut pair = Pair::new(Capacity::AtMost(5_000), 1_000, true);
    for index in 0..1_000 {
        assert!(pair.charge(1, at(1_000 + index)));
    }
    assert_eq!(pair.block_words(), 1_024);
    assert!(pair.charge(1, at(2_999)));
    assert_eq!(pair.block_words(), 8);
    pair.free();
}

#[test]
fn steady_charges_keep_their_block() {
    let mut pair = Pair::new(Capacity::AtMost(100), 1_000, true);
    let mut former = 0;
    for index in 0..2_000 {
        assert!(pair.charge(2, at(10_000 + index * 20)));
        if index > 100 {
            assert_eq!(pair.word, former, "after {index} charges");
        }
        former = pair.word;
    }
    pair.free();
}

#[test]
fn many_expired_entries_need_tidy() {
    let mut pair = Pair::new(Capacity::AtMost(400), 1_000, true);
    for index in 0..200 {
        assert!(pair.charge(2, at(1_000 + index)));
    }
    // The answer is within the first 64 entries.
    assert_eq!(pair.judge(128, at(2_500)), Judgement::Granted);
    assert_eq!(pair.judge(131, at(2_500)), Judgement::Tidy);
    // The scan ends at the first entry that has not expired.
    assert_eq!(pair.judge(130, at(2_010)), Judgement::Denied(Wait::Until(at(2_065))));
    pair.check(131, at(2_500));
    assert_eq!(pair.judge(400, at(2_500)), Judgement::Granted);
}

#[test]
fn earlier_clock_is_judged_at_the_last_charge() {
    for capacity in [Capacity::AtMost(5), Capacity::Unlimited] {
        let mut pair = Pair::new(capacity, 640, false);
        assert!(pair.charge(1, at(1_000)));
        assert_eq!(pair.judge(1, at(999)), Judgement::At(at(1_000)));
        assert_eq!(pair.judge(1, at(1_000)), Judgement::Granted);
    }
}

#[test]
fn log_that_cannot_be_packed_frees_its_block() {
    let mut pair = Pair::new(Capacity::Unlimited, (1 << 57) - 1, true);
    assert!(pair.charge(15 * MAX_ENTRIES, at(1_000)));
    assert_eq!(pair.budget.taken(), 1 << 20);
    assert!(!pair.charge(1, at(1_000)));
    pair.compare(at(1_000));
    for (at_first, amount) in [(1_000, 1 << 30), (1_000, 0)] {
        let (slab, budget) = (&pair.slab, &pair.budget);
        let log = SlidingLog::from_sorted([(at(at_first), amount)], at(at_first));
        assert_eq!(pair.law.write(slab, budget, pair.word, &log), None);
        assert_eq!(budget.taken(), 0);
        pair.word = 0;
    }
    // Entries of a longer window.
    let law = SlidingWords::from_parts(Capacity::Unlimited, 10, 1);
    let log = SlidingLog::from_sorted([(at(1), 1), (at(1_000), 1)], at(1_000));
    assert_eq!(law.write(&pair.slab, &pair.budget, 0, &log), None);
    assert_eq!(pair.budget.taken(), 0);
}

#[test]
fn long_window_or_other_law_is_not_packed() {
    let rule = |law| Rule { capacity: Capacity::AtMost(5), law };
    let window = |ticks| Law::SlidingWindow(SlidingWindow::exact(Span::from_ticks(ticks)));
    assert_eq!(SlidingWords::of(&rule(Law::LifetimeTotal)), None);
    assert_eq!(SlidingWords::of(&rule(window(1 << 57))), None);
    let longest = (1 << 57) - 1;
    let law = SlidingWords::of(&rule(window(longest))).expect("short enough");
    assert_eq!((law.capacity, law.window(), law.granularity()), (Capacity::AtMost(5), longest, 1));
    assert_eq!(law.count_bits(), 4);
    let minute = SlidingWords::of(&rule(window(60_000_000_000))).expect("short enough");
    assert_eq!(minute.count_bits(), 62 - (120_000_000_000_u64.ilog2() + 1));
}
