//! Property tests: words of a row match the states of the core.

use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::select;
use tidegate_core::calendar::{Unit, Zone};
use tidegate_core::{DecisionRow, ItemSpec, Limit, LimitPhase, LimitSpec, Policy, Row, RowScope};
use tidegate_testkit::history::ticks;
use tidegate_testkit::test_scale::cases;

use tidegate_core::Verdict;

use super::*;

/// The first count that does not fit beside a second.
const LONG: u64 = 1 << COUNT_BITS;
/// The first second that does not fit beside a count.
const LATE: u64 = 1 << SECOND_BITS;
/// The last second of the nanosecond clock.
const LAST: u64 = tidegate_core::time::LAST_SECOND;
const NANOS: i64 = 1_000_000_000;
/// A second of the year 2026.
const YEAR_2026: u64 = 1_790_000_000;

/// An item in words, and the core's state that they must equal.
struct Pair {
    limit: Limit,
    tick: Tick,
    slab: Slab,
    words: ItemWords,
    state: State,
}

impl Pair {
    fn new(limit: Limit, tick: Tick) -> Pair {
        let state = State::blank(&limit.items()[0].rule().law);
        Pair { limit, tick, slab: Slab::new(), words: ItemWords::default(), state }
    }

    fn item(&self) -> &Item {
        &self.limit.items()[0]
    }

    fn rule(&self) -> &Rule {
        self.item().rule()
    }

    /// The item in words, with its calendar window looked up at `now`.
    fn packed(&self, now: Timestamp) -> PackedItem {
        PackedItem::of(self.item(), 0, 0, 0, self.tick, now).expect("these policies fit words")
    }

    /// The units that are left.
    fn remaining(&self, now: Timestamp) -> Amount {
        self.rule().capacity.remaining(self.rule().used(&self.state, now)).unwrap_or(LONG)
    }

    /// The core's state as far as words keep it.
    fn kept(&self, state: &State, now: Timestamp) -> State {
        kept(self.packed(now).head, state)
    }

    /// Judges at `now`, or at the later instant that the words name. Returns the instant of the verdict.
    fn judge(&self, cost: Amount, now: Timestamp) -> (Judged, Timestamp) {
        let judged = self.packed(now).judge(self.words, cost, now, &self.slab);
        let Judged::At(later) = judged else { return (judged, now) };
        assert!(later > now, "{later:?} is not after {now:?}");
        assert_eq!(Some(later), self.rule().last_time(&self.kept(&self.state, now)));
        let judged = self.packed(later).judge(self.words, cost, later, &self.slab);
        assert!(!matches!(judged, Judged::At(_)), "{judged:?} at the instant of the last charge");
        (judged, later)
    }

    /// Judges `cost` and compares the verdict and the words after a charge. Returns whether both fit words.
    fn decide(&mut self, cost: Amount, charges: bool, now: Timestamp) -> bool {
        let (judged, now) = self.judge(cost, now);
        let context = || format!("{cost} at {now:?} of {:?}, {:?}", self.state, self.rule());
        let verdict = self.rule().check(&self.state, cost, now);
        let mut next = self.state.clone();
        let _receipt = self.rule().charge(&mut next, cost, None, now);
        match (judged, verdict) {
            (Judged::Denied(wait), Verdict::Denied(expected)) => assert_eq!(wait, expected, "{}", context()),
            (Judged::Granted(words), Verdict::Granted) => {
                assert_eq!(self.packed(now).pack(&next), Some(words), "{}", context());
                if charges {
                    (self.words, self.state) = (words, next);
                    self.compare(now);
                    self.compare_record(cost, now);
                }
            }
            (Judged::Locked, Verdict::Granted) => {
                assert_eq!(self.packed(now).pack(&next), None, "{}", context());
                return false;
            }
            (judged, verdict) => panic!("{judged:?}, but {verdict:?}: {}", context()),
        }
        true
    }

    /// Compares the state and the reading.
    fn compare(&self, now: Timestamp) {
        let packed = self.packed(now);
        let state = packed.state(self.words, &self.slab);
        assert_eq!(state, self.kept(&self.state, now));
        assert_eq!(packed.pack(&state), Some(self.words));
        assert_eq!(packed.words_of(&self.words), self.words);
        assert_eq!(self.words[0] & FULL, 0, "{:?}", self.state);
        assert_eq!(self.rule().used(&state, now), self.rule().used(&self.state, now));
        assert_eq!(self.rule().is_evictable(&state, now), self.rule().is_evictable(&self.state, now));
        if self.limit.phase(now) == LimitPhase::After {
            return;
        }
        let mut row = Row::of(self.state.clone());
        let totals = AskTotals::of(0);
        let scope = RowScope::Key { overrides: &[] };
        let expected = DecisionRow { limit: &self.limit, scope, row: &mut row, totals };
        let ends = self.limit.ends_at().unwrap_or(Timestamp::from_ticks(u64::MAX));
        let reading = packed.reading(self.words, ends, now, &self.slab);
        assert_eq!(reading, expected.reading(0, self.item(), now), "at {now:?} of {:?}", self.state);
    }

    /// Compares the record of a charge.
    fn compare_record(&self, cost: Amount, now: Timestamp) {
        if cost == 0 {
            return;
        }
        let expected = UsageRecord::latest(self.rule(), &self.kept(&self.state, now));
        assert_eq!(self.packed(now).record(self.words, &self.slab), expected, "of {:?}", self.state);
    }
}

/// A state as far as words keep it: short counts keep the second of their last charge.
fn kept(head: ItemHead, state: &State) -> State {
    let second = |at| head.at_second(head.second_of(at));
    match (head.kind(), state) {
        (PackedKind::Window, State::FixedWindow(count)) => {
            State::FixedWindow(WindowCount { last_time: second(count.last_time), ..*count })
        }
        (PackedKind::Total, State::LifetimeTotal(total)) => {
            State::LifetimeTotal(TotalCount { last_time: second(total.last_time), ..*total })
        }
        (_, state) => state.clone(),
    }
}

fn limit_of(item: ItemSpec, zone: Zone, ends_at: Option<Duration>, tick: Tick) -> Option<Limit> {
    let spec = LimitSpec { time_zone: zone, ends_at, ..LimitSpec::named("l") };
    Limit::new(spec.with(item.per_key()), tick).ok()
}

fn windows() -> impl Strategy<Value = Duration> {
    select(vec![1, 7, 1_000, 60_000, 86_400_000, 30 * 86_400_000_u64]).prop_map(Duration::from_millis)
}

fn policies() -> impl Strategy<Value = Policy> {
    prop_oneof![
        2 => (windows(), select(vec![None, Some(1), Some(3), Some(LONG), Some(i64::MAX as u64)]))
            .prop_map(|(window, burst)| Policy::Bucket { window, burst }),
        4 => select(Unit::ALL.to_vec()).prop_map(Policy::Calendar),
        2 => windows().prop_map(|window| Policy::Interval { window }),
        2 => Just(Policy::Total),
    ]
}

fn capacities() -> impl Strategy<Value = Capacity> {
    let limits = prop_oneof![
        1 => Just(0),
        3 => 1u64..6,
        3 => 6u64..2_000,
        2 => select(vec![LONG - 2, LONG - 1, LONG, LONG + 1]),
        1 => Just(i64::MAX as u64),
    ];
    prop_oneof![1 => Just(Capacity::Unlimited), 9 => limits.prop_map(Capacity::AtMost)]
}

fn zones() -> impl Strategy<Value = Zone> {
    let names = vec!["UTC", "Asia/Kolkata", "America/New_York", "Pacific/Auckland", "Africa/Monrovia"];
    select(names).prop_map(|name| Zone::named(name).expect("a zone of the database"))
}

/// Valid limits of one item and the tick of their clock.
fn limits() -> impl Strategy<Value = (Limit, Tick)> {
    let ends_at = prop_oneof![4 => Just(None), 1 => Just(Some(YEAR_2026 + 100)), 1 => Just(Some(LAST))];
    (policies(), capacities(), zones(), ends_at, ticks()).prop_filter_map(
        "not a valid limit",
        |(policy, capacity, zone, ends_at, tick)| {
            let item = ItemSpec { limit: capacity, ..ItemSpec::of(policy, 0) };
            Some((limit_of(item, zone, ends_at.map(Duration::from_secs), tick)?, tick))
        },
    )
}

#[derive(Debug, Clone)]
enum Cost {
    Units(Amount),
    /// What is left, and so many more or fewer.
    Remaining(i64),
}

#[derive(Debug, Clone)]
enum Step {
    Charge(Cost),
    Check(Cost),
    /// Moves the clock by so many nanoseconds. Negative is back.
    Move(i64),
    Tick(i64),
}

fn costs() -> impl Strategy<Value = Cost> {
    prop_oneof![
        4 => Just(Cost::Units(1)),
        2 => (0u64..6).prop_map(Cost::Units),
        2 => (6u64..3_000).prop_map(Cost::Units),
        2 => select(vec![LONG - 2, LONG - 1, LONG, LONG + 1, 1 << 31, 1 << 34, 1 << 40, 1 << 62])
            .prop_map(Cost::Units),
        1 => select(vec![i64::MAX as u64, 1 << 63, u64::MAX - 1, u64::MAX]).prop_map(Cost::Units),
        4 => (-2i64..2).prop_map(Cost::Remaining),
    ]
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => costs().prop_map(Step::Charge),
        2 => costs().prop_map(Step::Check),
        2 => (-2i64..3).prop_map(Step::Tick),
        2 => (-NANOS..2 * NANOS).prop_map(Step::Move),
        2 => (-60 * NANOS..120 * NANOS).prop_map(Step::Move),
        2 => select(vec![-3_600, -1, 1, 60, 3_600, 86_400, 31 * 86_400, 366 * 86_400])
            .prop_map(|seconds: i64| Step::Move(seconds * NANOS)),
    ]
}

/// Instants as (second, nanosecond).
fn starts() -> impl Strategy<Value = (u64, u64)> {
    let seconds = prop_oneof![
        5 => YEAR_2026..YEAR_2026 + 40_000_000,
        1 => 0u64..3,
        1 => LATE - 3..LATE + 3,
        1 => LAST - 3..LAST,
    ];
    (seconds, prop_oneof![0u64..1_000_000_000, Just(0), Just(999_999_999)])
}

fn at(tick: Tick, second: u64, nanosecond: u64) -> Timestamp {
    tick.at_second(second).plus(Span::from_ticks(nanosecond / (1_000_000_000 / tick.per_second())))
}

fn moved(now: Timestamp, ticks: i64) -> Timestamp {
    let last = 1 << 63;
    Timestamp::from_ticks(now.ticks().saturating_add_signed(ticks).min(last - 1))
}

proptest! {
    #![proptest_config(cases(4_000))]

    /// Random charges of words have the same verdicts, waits, readings and records as those of the core's state.
    #[test]
    fn packed_item_equals_core_state(
        (limit, tick) in limits(),
        (second, nanosecond) in starts(),
        steps in prop::collection::vec(steps(), 1..40),
    ) {
        let mut pair = Pair::new(limit, tick);
        let mut now = at(tick, second, nanosecond);
        let nanos = NANOS / i64::try_from(tick.per_second()).expect("small");
        for step in steps {
            let cost_of = |cost: &Cost, pair: &Pair| match *cost {
                Cost::Units(units) => units,
                Cost::Remaining(more) => pair.remaining(now).saturating_add_signed(more),
            };
            match &step {
                Step::Charge(cost) | Step::Check(cost) => {
                    let charges = matches!(step, Step::Charge(_));
                    if !pair.decide(cost_of(cost, &pair), charges, now) && charges {
                        // The row would be stored in full from here on.
                        break;
                    }
                }
                Step::Move(by) => now = moved(now, by / nanos),
                Step::Tick(by) => now = moved(now, *by),
            }
            pair.decide(1, false, now);
            if pair.rule().last_time(&pair.state).is_none_or(|last| last <= now) {
                pair.compare(now);
            }
        }
    }

    /// A state with refunds or with usage above the limit is packed without loss, or not at all.
    #[test]
    fn packed_state_is_exact_or_absent(
        (limit, tick) in limits(),
        (second, nanosecond) in starts(),
        count in prop_oneof![0u64..5, LONG - 2..LONG + 3, any::<u64>()],
        last in any::<u64>(),
        credits in prop_oneof![Just(0), any::<u64>()],
    ) {
        let pair = Pair::new(limit, tick);
        let now = at(tick, second, nanosecond);
        let last_time = instant_near(last, now);
        let law = match &pair.rule().law {
            Law::TokenBucket(law) => law.step(),
            _ => Span::ZERO,
        };
        let state = match &pair.state {
            State::TokenBucket(_) => {
                let step = if last % 5 == 0 { law.plus(Span::ONE_TICK) } else { law };
                State::TokenBucket(BucketState { tat: last_time, step, credits: Span::from_ticks(credits) })
            }
            State::FixedWindow(_) => State::FixedWindow(WindowCount { count, last_time }),
            _ => State::LifetimeTotal(TotalCount { used: count, last_time }),
        };
        let packed = pair.packed(now);
        if let Some(words) = packed.pack(&state) {
            prop_assert_eq!(words[0] & FULL, 0);
            let is_empty = matches!(
                state,
                State::FixedWindow(WindowCount { count: 0, .. }) | State::LifetimeTotal(TotalCount { used: 0, .. })
            );
            let expected = if is_empty { State::blank(&pair.rule().law) } else { kept(packed.head, &state) };
            prop_assert_eq!(packed.state(words, &pair.slab), expected);
            if packed.head.kind().words() == 1 {
                prop_assert_eq!(words[1], 0);
            }
        } else {
            let is_large = match &state {
                State::TokenBucket(bucket) => bucket.step != law || credits > 0,
                _ if packed.head.kind().words() == 1 => {
                    count >= LONG || tick.second_of(last_time) >= LATE
                }
                _ => false,
            };
            prop_assert!(is_large || last_time.ticks() & FULL != 0, "{:?} is not packed", state);
        }
    }

    /// Words of torn reads never panic.
    #[test]
    fn torn_words_never_panic(
        item in prop::array::uniform4(prop_oneof![any::<u64>(), 0u64..70, Just(u64::MAX)]),
        words in prop::array::uniform2(prop_oneof![any::<u64>(), 0u64..3, Just(u64::MAX)]),
        cost in prop_oneof![any::<u64>(), 0u64..3, Just(u64::MAX)],
        now in prop_oneof![any::<u64>(), Just(0), Just(u64::MAX)],
        row in prop::collection::vec(any::<u64>(), 0..6),
    ) {
        let (item, slab, now) = (PackedItem::from_words(item), Slab::new(), Timestamp::from_ticks(now));
        let _any = item.judge(words, cost, now, &slab);
        let _any = item.state(words, &slab);
        let _any = item.reading(words, now, now, &slab);
        let _any = item.record(words, &slab);
        let own = item.words_of(&row);
        let mut row = row;
        item.put_words(&mut row, own);
    }
}

/// An instant from any number: around `now`, or anywhere.
fn instant_near(number: u64, now: Timestamp) -> Timestamp {
    match number % 4 {
        0 => Timestamp::from_ticks(number),
        _ => moved(now, i64::try_from(number % 100).expect("small") - 50),
    }
}

/// A limit of one item, with its clock in nanoseconds.
fn pair_of(policy: Policy, capacity: Capacity) -> Pair {
    let item = ItemSpec { limit: capacity, ..ItemSpec::of(policy, 0) };
    let limit = limit_of(item, Zone::UTC, None, Tick::NANOSECOND).expect("a valid limit");
    Pair::new(limit, Tick::NANOSECOND)
}

const DAY: Policy = Policy::Calendar(Unit::Day);
const MINUTE_INTERVAL: Policy = Policy::Interval { window: Duration::from_secs(60) };

fn now_2026() -> Timestamp {
    at(Tick::NANOSECOND, YEAR_2026, 5)
}

#[test]
fn kind_follows_law_and_limit() {
    let at_most = Capacity::AtMost;
    for (policy, capacity, kind) in [
        (DAY, at_most(0), PackedKind::Window),
        (DAY, at_most(LONG - 1), PackedKind::Window),
        (DAY, at_most(LONG), PackedKind::LongWindow),
        (DAY, Capacity::Unlimited, PackedKind::LongWindow),
        (Policy::Total, at_most(LONG - 1), PackedKind::Total),
        (Policy::Total, at_most(LONG), PackedKind::LongTotal),
        (Policy::Total, Capacity::Unlimited, PackedKind::LongTotal),
        (MINUTE_INTERVAL, at_most(1), PackedKind::Interval),
        (Policy::Bucket { window: Duration::from_secs(1), burst: None }, at_most(1), PackedKind::Bucket),
    ] {
        let head = pair_of(policy, capacity).packed(now_2026()).head;
        assert_eq!(head.kind(), kind, "{policy:?} {capacity:?}");
        assert_eq!(PackedKind::from_code(head.0), kind);
        assert!(kind.words() <= MAX_ITEM_WORDS);
    }
}

#[test]
fn largest_short_count_fits_beside_its_second() {
    for policy in [DAY, Policy::Total] {
        let mut pair = pair_of(policy, Capacity::AtMost(LONG - 1));
        let now = now_2026();
        assert!(pair.decide(LONG - 2, true, now));
        assert!(pair.decide(1, true, now));
        let used = pair.rule().used(&pair.packed(now).state(pair.words, &pair.slab), now);
        assert_eq!(used, LONG - 1, "{policy:?}");
        assert!(matches!(pair.judge(1, now).0, Judged::Denied(_)), "{policy:?}");
    }
}

#[test]
fn count_above_short_limit_is_not_packed() {
    for (policy, state) in [
        (DAY, State::FixedWindow(WindowCount { count: LONG, last_time: now_2026() })),
        (Policy::Total, State::LifetimeTotal(TotalCount { used: LONG, last_time: now_2026() })),
    ] {
        let pair = pair_of(policy, Capacity::AtMost(LONG - 1));
        assert_eq!(pair.packed(now_2026()).pack(&state), None, "{policy:?}");
    }
}

#[test]
fn second_after_year_2242_takes_locked_path() {
    for policy in [DAY, Policy::Total] {
        let mut pair = pair_of(policy, Capacity::AtMost(5));
        assert_eq!(pair.judge(1, at(Tick::NANOSECOND, LATE, 0)).0, Judged::Locked, "{policy:?}");
        assert!(pair.decide(1, true, at(Tick::NANOSECOND, LATE - 1, 999_999_999)), "{policy:?}");
    }
}

#[test]
fn instant_after_63_bits_takes_locked_path() {
    let late = Timestamp::from_ticks(FULL - 1);
    let bucket = Policy::Bucket { window: Duration::from_secs(1), burst: None };
    let pair = pair_of(bucket, Capacity::AtMost(1));
    assert_eq!(pair.judge(1, late).0, Judged::Locked);
    for policy in [MINUTE_INTERVAL, DAY, Policy::Total] {
        let pair = pair_of(policy, Capacity::AtMost(LONG));
        let packed = pair.packed(late);
        assert_eq!(packed.judge(pair.words, 1, Timestamp::from_ticks(FULL), &pair.slab), Judged::Locked);
    }
}

#[test]
fn window_ends_at_its_last_tick() {
    let day = 86_400;
    let (first, last) = (at(Tick::NANOSECOND, day, 0), at(Tick::NANOSECOND, 2 * day - 1, 999_999_999));
    for limit in [1, LONG] {
        let mut pair = pair_of(DAY, Capacity::AtMost(limit));
        assert!(pair.decide(limit, true, first));
        let next = Timestamp::from_ticks(last.ticks() + 1);
        assert_eq!(pair.judge(1, last).0, Judged::Denied(Wait::Until(next)));
        assert!(matches!(pair.judge(1, next).0, Judged::Granted(_)));
    }
    let mut pair = pair_of(MINUTE_INTERVAL, Capacity::AtMost(1));
    assert!(pair.decide(1, true, first));
    let next = first.plus(Span::from_ticks(60_000_000_000));
    assert_eq!(pair.judge(1, moved(next, -1)).0, Judged::Denied(Wait::Until(next)));
    assert!(matches!(pair.judge(1, next).0, Judged::Granted(_)));
}

#[test]
fn earlier_clock_is_judged_at_second_of_last_charge() {
    let now = at(Tick::NANOSECOND, YEAR_2026, 500);
    for (policy, limit, later) in [
        (DAY, 5, at(Tick::NANOSECOND, YEAR_2026, 0)),
        (Policy::Total, 5, at(Tick::NANOSECOND, YEAR_2026, 0)),
        (DAY, LONG, now),
        (Policy::Total, LONG, now),
        (MINUTE_INTERVAL, 5, now),
    ] {
        let mut pair = pair_of(policy, Capacity::AtMost(limit));
        assert!(pair.decide(1, true, now));
        let before = moved(later, -1);
        let judged = pair.packed(before).judge(pair.words, 1, before, &pair.slab);
        assert_eq!(judged, Judged::At(later), "{policy:?} {limit}");
    }
}

#[test]
fn cost_of_zero_changes_no_word() {
    for policy in [DAY, Policy::Total, MINUTE_INTERVAL] {
        for limit in [0, 5, LONG] {
            let pair = pair_of(policy, Capacity::AtMost(limit));
            assert_eq!(
                pair.judge(0, now_2026()).0,
                Judged::Granted([0; MAX_ITEM_WORDS]),
                "{policy:?} {limit}"
            );
        }
    }
}

#[test]
fn words_of_an_item_are_at_its_offset() {
    let pair = pair_of(MINUTE_INTERVAL, Capacity::AtMost(5));
    let mut row = [1, 2, 3, 4, 5];
    for (offset, expected) in [(0, [1, 2]), (2, [3, 4]), (3, [4, 5]), (4, [5, 0])] {
        let packed = PackedItem::of(pair.item(), 3, 7, offset, pair.tick, now_2026()).expect("it fits");
        assert_eq!(packed.words_of(&row), expected);
        assert_eq!((packed.head.offset(), packed.head.item(), packed.head.column()), (offset, 3, 7));
        assert_eq!(PackedItem::from_words(packed.words()), packed);
    }
    let packed = PackedItem::of(pair.item(), 0, 0, 1, pair.tick, now_2026()).expect("it fits");
    packed.put_words(&mut row, [8, 9]);
    assert_eq!(row, [1, 8, 9, 4, 5]);
}
