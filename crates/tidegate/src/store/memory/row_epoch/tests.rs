//! Property tests: rows are stored in words or in full, and read back unchanged.

use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::{Index, select};
use tidegate_core::calendar::Unit;
use tidegate_core::law::fixed_window::WindowCount;
use tidegate_core::law::lifetime_total::TotalCount;
use tidegate_core::law::token_bucket::BucketReceipt;
use tidegate_core::spec::Precision;
use tidegate_core::{
    Amount, Capacity, ItemSpec, LimitSpec, OverrideSpec, Policy, Receipt, Span, Tick, Verdict,
};
use tidegate_testkit::test_scale::cases;

use super::super::fingerprint::Secret;
use super::super::full_rows::CHUNK_BYTES;
use super::super::sliding_words::SlidingWords;
use super::*;

const START: Timestamp = Timestamp::from_ticks(1_790_000_000_000_000_123);
/// The first count that does not fit beside a second.
const LONG: Amount = 1 << 30;

/// A limit's first epoch and the memory of its rows.
struct Rows {
    epoch: RowEpoch,
    store: RowStore,
    budget: Budget,
    printer: Fingerprinter,
}

impl Rows {
    fn new(items: &[ItemSpec], overrides: Vec<OverrideSpec>) -> Rows {
        let mut spec = LimitSpec { overrides, ..LimitSpec::named("l") };
        for (index, item) in items.iter().enumerate() {
            spec = spec.with(ItemSpec { name: Some(index.to_string()), ..item.clone() });
        }
        let limit = Arc::new(Limit::new(spec, Tick::NANOSECOND).expect("a valid limit"));
        let printer = Fingerprinter::new(Secret::of([1, 2]), 1);
        let columns = (0..limit.items().len()).collect();
        let words = shared_words(&limit);
        let draft = EpochDraft::new(limit, columns, &printer);
        let epoch = RowEpoch::of(draft, 1, START, EpochCause::Put, None, words);
        Rows { epoch, store: RowStore::new(), budget: Budget::new(usize::MAX), printer }
    }

    fn tag(&self, per: Per, key: &[u8]) -> Tag {
        if per == Per::All { NO_TAG } else { self.printer.print(key) }
    }

    /// Charges every item of a row, as far as it fits.
    fn charge(&self, per: Per, tag: Tag, row: &Row, costs: &[Amount], now: Timestamp) -> Row {
        let scope = self.epoch.scope(per, tag);
        let items = self.items(per);
        let states = items.iter().zip(row.states()).zip(costs).map(|(((index, item), state), cost)| {
            let mut state = state.clone();
            let rule = scope.rule(*index, item, now);
            if rule.check(&state, *cost, now) == Verdict::Granted {
                let _receipt = rule.charge(&mut state, *cost, None, now);
            }
            state
        });
        let mut next = Row::from_states(states);
        (0..row.open_holds()).for_each(|_| next.add_hold());
        next
    }

    /// The items of a row, with their indices.
    fn items(&self, per: Per) -> Vec<(usize, &Item)> {
        self.epoch.limit.items().iter().enumerate().filter(|(_, item)| item.per() == per).collect()
    }

    /// A row as far as words keep it: short counts keep the second of their last charge, and counts of zero no instant.
    fn kept(&self, per: Per, row: &Row) -> Row {
        let second = |at: Timestamp| Tick::NANOSECOND.at_second(Tick::NANOSECOND.second_of(at));
        let states = self.items(per).into_iter().zip(row.states()).map(|((_, item), state)| {
            match (PackedKind::of(item.rule()), state) {
                (Some(PackedKind::Window), State::FixedWindow(count)) => {
                    State::FixedWindow(WindowCount { last_time: second(count.last_time), ..*count })
                }
                (_, State::LifetimeTotal(TotalCount { used: 0, .. })) => State::blank(&item.rule().law),
                (Some(PackedKind::Total), State::LifetimeTotal(total)) => {
                    State::LifetimeTotal(TotalCount { last_time: second(total.last_time), ..*total })
                }
                (_, state) => state.clone(),
            }
        });
        Row::from_states(states)
    }

    /// Whether these words are a row as it should be stored: in words if its layout has any and each state fits.
    #[track_caller]
    fn check(&self, per: Per, tag: Tag, words: &RowWords, row: &Row) {
        let copy = self.epoch.copy(per, words, &self.store);
        let is_full = full_slot(words).is_some();
        let is_empty = row.states().is_empty() && row.open_holds() == 0;
        let may_be_packed = self.epoch.layout(per).is_packed()
            && row.open_holds() == 0
            && !self.epoch.has_exception(per, tag)
            || is_empty;
        assert!(is_full || may_be_packed, "{row:?} must be stored in full");
        let expected = if is_full { row.clone() } else { self.kept(per, row) };
        assert_eq!(copy, expected, "of {words:x?}");
        let fits = self.items(per).into_iter().zip(row.states()).all(|((index, item), state)| {
            let packed = self.epoch.packed_item(index, START);
            is_packed_log(item, state) || packed.is_some_and(|packed| packed.pack(state).is_some())
        });
        assert_eq!(is_full, !(may_be_packed && fits), "{words:x?} of {row:?}");
        if per == Per::Key {
            let scope = self.epoch.scope(per, tag);
            let now = START.plus(Span::from_ticks(1));
            assert_eq!(
                self.epoch.evictable_at(tag, words, &self.store, now),
                expected.evictable_at(&self.epoch.limit, scope, now),
                "of {expected:?}"
            );
        }
    }
}

/// Whether a state is a sliding log that fits words.
fn is_packed_log(item: &Item, state: &State) -> bool {
    let State::SlidingWindow(log) = state else { return false };
    let (slab, budget) = (Slab::new(), Budget::new(usize::MAX));
    SlidingWords::of(item.rule()).is_some_and(|law| law.write(&slab, &budget, 0, log).is_some())
}

fn policies() -> impl Strategy<Value = Policy> {
    let window = Duration::from_secs(10);
    select(vec![
        Policy::Bucket { window, burst: None },
        Policy::Calendar(Unit::Minute),
        Policy::Calendar(Unit::Year),
        Policy::Interval { window },
        Policy::Total,
        Policy::Sliding { window, precision: Precision::Exact },
        Policy::Sliding { window, precision: Precision::Bucketed },
        // So long that its log fits no words.
        Policy::Sliding { window: Duration::from_secs(36_525 * 86_400), precision: Precision::Exact },
    ])
}

/// Items of short and of long counts.
fn items(most: usize) -> impl Strategy<Value = Vec<ItemSpec>> {
    let limit = prop_oneof![4 => Just(Capacity::AtMost(1_000)), 1 => Just(Capacity::AtMost(LONG)), 1 => Just(Capacity::Unlimited)];
    let per = select(vec![Per::Key, Per::Key, Per::Key, Per::All]);
    let item = (policies(), limit, per).prop_map(|(policy, limit, per)| {
        let few = matches!(policy, Policy::Sliding { .. } | Policy::Bucket { .. });
        let limit = if few && limit == Capacity::AtMost(LONG) { Capacity::AtMost(1_000) } else { limit };
        ItemSpec { per, limit, ..ItemSpec::of(policy, 0) }
    });
    prop::collection::vec(item, 1..most)
}

#[derive(Debug, Clone)]
enum Step {
    /// Takes a row out, charges it and stores it.
    Charge {
        row: Index,
        costs: [Amount; 8],
        at: u64,
    },
    /// Charges a count that fits no words beside its second.
    Overcharge {
        row: Index,
    },
    /// Gives back what was charged.
    Refund {
        row: Index,
    },
    Hold {
        row: Index,
    },
    Release {
        row: Index,
    },
    /// Takes a row out and puts it back.
    Restore {
        row: Index,
    },
    /// Frees a row, and stores a blank one in its place.
    Drop {
        row: Index,
    },
}

fn steps() -> impl Strategy<Value = Step> {
    let row = any::<Index>;
    let cost = || prop_oneof![3 => 0u64..3, 1 => 3u64..400];
    let costs = prop::array::uniform8(cost());
    prop_oneof![
        8 => (row(), costs, 0u64..4_000_000_000).prop_map(|(row, costs, at)| Step::Charge { row, costs, at }),
        1 => row().prop_map(|row| Step::Overcharge { row }),
        2 => row().prop_map(|row| Step::Refund { row }),
        2 => row().prop_map(|row| Step::Hold { row }),
        2 => row().prop_map(|row| Step::Release { row }),
        1 => row().prop_map(|row| Step::Restore { row }),
        1 => row().prop_map(|row| Step::Drop { row }),
    ]
}

/// The rows of a history: that of all keys, and those of these keys.
const KEYS: [Option<&[u8]>; 4] = [None, Some(b"ada"), Some(b"bob"), Some(b"own")];

proptest! {
    #![proptest_config(cases(600))]

    /// Rows of every mix of items are read back as they were stored, in words or in full, and their memory is given back.
    #[test]
    fn stored_rows_are_read_back(
        items in items(8),
        has_override in any::<bool>(),
        steps in prop::collection::vec(steps(), 1..40),
    ) {
        let own = items.iter().position(|item| item.per == Per::Key).filter(|_| has_override);
        let overrides = own.map(|index| OverrideSpec {
            key: b"own".to_vec(),
            item: index.to_string(),
            limit: Capacity::AtMost(500),
            until: None,
        });
        let rows = Rows::new(&items, overrides.into_iter().collect());
        let Rows { epoch, store, budget, .. } = &rows;
        let mut model: Vec<(Per, Tag, RowWords, Row)> = Vec::new();
        for key in KEYS {
            let per = if key.is_none() { Per::All } else { Per::Key };
            let (tag, row) = (rows.tag(per, key.unwrap_or_default()), Row::blank(&epoch.limit, per));
            let words = epoch.store_new(per, tag, row.clone(), store, budget);
            rows.check(per, tag, &words, &row);
            model.push((per, tag, words, row));
        }
        for step in &steps {
            let (Step::Charge { row, .. } | Step::Overcharge { row } | Step::Refund { row } | Step::Hold { row }
                | Step::Release { row } | Step::Restore { row } | Step::Drop { row }) = step;
            let index = row.index(model.len());
            let (per, tag, words, row) = &mut model[index];
            let (per, tag) = (*per, *tag);
            let taken = epoch.take(per, words, store, budget);
            let stored = if full_slot(words).is_some() { row.clone() } else { rows.kept(per, row) };
            prop_assert_eq!(&taken, &stored);
            let mut next = taken;
            match step {
                Step::Charge { costs, at, .. } => {
                    let now = START.plus(Span::from_ticks(*at)).max(next.last_charge_time());
                    next = rows.charge(per, tag, &next, costs, now);
                }
                Step::Overcharge { .. } => {
                    let now = START.max(next.last_charge_time());
                    let mut states = next.states().to_vec();
                    for ((_, item), state) in rows.items(per).into_iter().zip(&mut states) {
                        if !matches!(state, State::SlidingWindow(_)) {
                            let _receipt = item.rule().charge(state, LONG, None, now);
                        }
                    }
                    next = with_holds(Row::from_states(states), next.open_holds());
                }
                Step::Refund { .. } => {
                    let mut states = next.states().to_vec();
                    for ((_, item), state) in rows.items(per).into_iter().zip(&mut states) {
                        let receipt = match state {
                            State::TokenBucket(bucket) => Receipt::Bucket(
                                BucketReceipt {
                                    tat: bucket.tat,
                                    step: bucket.step,
                                    credits: bucket.credits,
                                },
                            ),
                            State::SlidingWindow(log) => match log.latest() {
                                Some((at, _)) => Receipt::At(at),
                                None => Receipt::Plain,
                            },
                            _ => Receipt::At(next.last_charge_time()),
                        };
                        item.rule().refund(state, receipt, 2, START);
                    }
                    next = with_holds(Row::from_states(states), next.open_holds());
                }
                Step::Hold { .. } => next.add_hold(),
                Step::Release { .. } => next.remove_hold(),
                Step::Restore { .. } => {
                    RowEpoch::restore(per, words, next.clone(), store, budget);
                    *row = next;
                    rows.check(per, tag, words, row);
                    continue;
                }
                Step::Drop { .. } => {
                    epoch.free(per, words, store, budget);
                    *row = Row::blank(&epoch.limit, per);
                    *words = epoch.store_new(per, tag, row.clone(), store, budget);
                    rows.check(per, tag, words, row);
                    continue;
                }
            }
            *words = epoch.store(per, tag, words, next.clone(), store, budget);
            *row = next;
            // No store has touched another row.
            for (per, tag, words, row) in &model {
                rows.check(*per, *tag, words, row);
            }
        }
        let chunks = usize::from(budget.taken() >= CHUNK_BYTES);
        for (per, _, words, _) in &model {
            let _row = epoch.take(*per, words, store, budget);
            epoch.free(*per, words, store, budget);
        }
        // A chunk of full rows is never freed.
        prop_assert_eq!(budget.taken(), chunks * CHUNK_BYTES);
    }
}

fn with_holds(mut row: Row, holds: u32) -> Row {
    (0..holds).for_each(|_| row.add_hold());
    row
}

fn total(limit: Amount) -> ItemSpec {
    ItemSpec::of(Policy::Total, limit).per_key()
}

fn interval(limit: Amount) -> ItemSpec {
    ItemSpec::of(Policy::Interval { window: Duration::from_secs(10) }, limit).per_key()
}

#[test]
fn row_of_five_words_is_packed_and_of_six_is_not() {
    for (items, words, shape) in [
        (vec![total(5)], 1, Some(Shape::Narrow)),
        (vec![interval(5)], 2, Some(Shape::Pair)),
        (vec![total(5); 2], 2, Some(Shape::Pair)),
        (vec![total(5), interval(5)], 3, Some(Shape::Wide)),
        (vec![total(5); 5], 5, Some(Shape::Wide)),
        (vec![interval(5), interval(5), total(5)], 5, Some(Shape::Wide)),
        (vec![total(5); 6], 6, None),
        (vec![interval(5); 3], 6, None),
    ] {
        let rows = Rows::new(&items, Vec::new());
        let layout = rows.epoch.layout(Per::Key);
        assert_eq!((layout.is_packed(), rows.epoch.fits_snapshot()), (shape.is_some(), shape.is_some()));
        assert_eq!(rows.epoch.key_shape(), shape.unwrap_or_default(), "{words} words");
        let used: usize = layout.items.iter().map(|(_, item)| item.head.kind().words()).sum();
        assert_eq!(used, if shape.is_some() { words } else { 0 });
    }
}

#[test]
fn row_of_concurrency_item_is_full() {
    let slots = ItemSpec::of(Policy::Concurrency { ttl: Duration::from_secs(1) }, 5).per_key();
    let rows = Rows::new(&[total(5), slots], Vec::new());
    let row = Row::blank(&rows.epoch.limit, Per::Key);
    let words = rows.epoch.store_new(Per::Key, rows.tag(Per::Key, b"ada"), row, &rows.store, &rows.budget);
    assert!(full_slot(&words).is_some() && !rows.epoch.fits_snapshot());
}

#[test]
fn row_with_hold_is_full_until_it_is_settled() {
    let rows = Rows::new(&[total(5)], Vec::new());
    let Rows { epoch, store, budget, .. } = &rows;
    let tag = rows.tag(Per::Key, b"ada");
    let mut row = rows.charge(Per::Key, tag, &Row::blank(&epoch.limit, Per::Key), &[3], START);
    row.add_hold();
    let words = epoch.store_new(Per::Key, tag, row, store, budget);
    assert!(full_slot(&words).is_some());
    let mut row = epoch.take(Per::Key, &words, store, budget);
    row.remove_hold();
    let words = epoch.store(Per::Key, tag, &words, row.clone(), store, budget);
    assert_eq!(full_slot(&words), None);
    rows.check(Per::Key, tag, &words, &row);
    assert!(store.full.has_free_slot());
    assert_eq!(budget.taken(), CHUNK_BYTES);
}

#[test]
fn row_of_key_with_override_is_full() {
    let own =
        OverrideSpec { key: b"own".to_vec(), item: "0".to_owned(), limit: Capacity::AtMost(1), until: None };
    let rows = Rows::new(&[total(5)], vec![own]);
    let blank = Row::blank(&rows.epoch.limit, Per::Key);
    for (key, is_full) in [(&b"own"[..], true), (b"ada", false)] {
        let tag = rows.tag(Per::Key, key);
        let words = rows.epoch.store_new(Per::Key, tag, blank.clone(), &rows.store, &rows.budget);
        assert_eq!(full_slot(&words).is_some(), is_full);
        rows.check(Per::Key, tag, &words, &blank);
    }
}

#[test]
fn reserved_row_is_not_full_and_has_no_slot() {
    let mut words = RowWords::default();
    words[0] = RESERVED;
    assert_eq!(full_slot(&words), None);
    for slot in [0, 1, u32::MAX] {
        assert_eq!(full_slot(&full_words(FullSlot(slot))), Some(FullSlot(slot)));
    }
    let rows = Rows::new(&[total(5)], Vec::new());
    let row = rows.epoch.take(Per::Key, &words, &rows.store, &rows.budget);
    assert_eq!(row, Row::blank(&rows.epoch.limit, Per::Key));
    assert_eq!(rows.epoch.evictable_at(NO_TAG, &words, &rows.store, START), None);
    rows.epoch.drop_row(&words, &rows.store, &rows.budget);
    assert_eq!(rows.budget.taken(), 0);
}

#[test]
fn settled_row_gives_its_slot_back() {
    let rows = Rows::new(&[total(5)], Vec::new());
    let Rows { epoch, store, budget, .. } = &rows;
    let tag = rows.tag(Per::Key, b"ada");
    let mut words = epoch.store_new(Per::Key, tag, Row::blank(&epoch.limit, Per::Key), store, budget);
    for _ in 0..1_000 {
        let mut row = epoch.take(Per::Key, &words, store, budget);
        row.add_hold();
        words = epoch.store(Per::Key, tag, &words, row, store, budget);
        let mut row = epoch.take(Per::Key, &words, store, budget);
        row.remove_hold();
        words = epoch.store(Per::Key, tag, &words, row, store, budget);
    }
    assert_eq!(budget.taken(), CHUNK_BYTES);
}

#[test]
fn dropped_rows_free_their_memory_once() {
    let exact = Policy::Sliding { window: Duration::from_secs(10), precision: Precision::Exact };
    for holds in [0, 1] {
        let rows = Rows::new(&[ItemSpec::of(exact, 9).per_key()], Vec::new());
        let Rows { epoch, store, budget, .. } = &rows;
        let tag = rows.tag(Per::Key, b"ada");
        let row = |units| {
            let row = rows.charge(Per::Key, tag, &Row::blank(&epoch.limit, Per::Key), &[units], START);
            with_holds(row, holds)
        };
        let words = epoch.store_new(Per::Key, tag, row(3), store, budget);
        epoch.drop_row(&words, store, budget);
        assert_eq!(budget.taken(), if holds > 0 { CHUNK_BYTES } else { 0 });
        let [first, second] = [4, 5].map(|units| epoch.store_new(Per::Key, tag, row(units), store, budget));
        rows.check(Per::Key, tag, &first, &row(4));
        rows.check(Per::Key, tag, &second, &row(5));
    }
}
