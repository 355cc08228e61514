//! Sliding path: orders over sliding windows, decided in place.
//!
//! A sliding row has several words, so it is decided under its lock, in the lock order of the [locked
//! path](super::locked_path). Most such orders are simple: each limit has one item and no overrides, the row exists, and
//! only its charge changes. Then no row is converted, created, evicted or taken out. The limits are not read either,
//! because the rows' rules are kept next to them, under the same lock.
//!
//! All other orders go to the locked path before any change. Both paths call the core.
//!
//! An overflow row is not marked as held against lock-free threads. They hold only cells with rows, and only the lock
//! holder changes which cells contain rows. A row in a cell is held as everywhere.
//!
//! Alternative refused: orders that combine a sliding window with another policy. Rows of other policies are in cells
//! that lock-free threads take, which requires the locked path.

use std::sync::Arc;

use arrayvec::ArrayVec;
use tidegate_core::decide::charge_cost;
use tidegate_core::law::SlidingWindow;
use tidegate_core::law::sliding_window::SlidingLog;
use tidegate_core::{
    AskTotals, DecisionRow, Denial, Intent, Item, ItemPosition, Law, Order, Per, Row, Timestamp, Verdict,
};

use super::cache_line::{self, Tag, WIDE};
use super::counters;
use super::leaf::{Leaf, Means, Owned, Spot};
use super::limit_table::{AllRow, NO_TAG, OwnedAll, Tenant};
use super::locked_path::{Change, by_address, note_row};
use super::lockfree::{self, MOST_ROWS, Plea};
use super::overflow::{Shelf, is_at_full_width};
use super::row_epoch::{Edition, RESERVED};
use super::sync::{Ordering, fence};
use crate::reply::{Detail, ItemReading, OrderReply, Outcome, Replies};
use crate::store::order_path::refusal_of;

/// Whoever comes here has locks and editions that match.
const WRITTEN: &str = "what a row is written in was seen when it was locked";

/// Decides an order that neither holds anything nor has a request id; `None` if it is not for the lean way.
pub(super) fn decide(
    order: &Order<'_>,
    pleas: &[Plea<'_>],
    now: Timestamp,
    answers: &mut Replies,
) -> Option<OrderReply> {
    let mut stands = Stands { all: ArrayVec::new(), out: ArrayVec::new() };
    stands.lock(pleas)?;
    let at = stands.take_out(now);
    // The time first, then the limits: who is told of an edit is not decided on before it under what was there before.
    fence(Ordering::Acquire);
    if !stands.all.iter().all(|stand| stand.is_usual(at)) {
        stands.put_back(Change::Nothing, at);
        return None;
    }
    stands.all.iter().for_each(|stand| stand.raise(at));
    let first = answers.mark();
    let denial = stands.judge(pleas, at);
    let mut change = Change::Nothing;
    let outcome = if let Some(denial) = denial {
        let refusing = |ask: usize| stands.of(ask).edition();
        if order.intent == Intent::Acquire {
            let column = refusing(denial.binding.row).columns.first();
            pleas[denial.binding.row].tenant.counts.refused(column.copied().unwrap_or_default());
        }
        Outcome::Denied(refusal_of(denial, |ask| &refusing(ask).limit))
    } else {
        if order.intent == Intent::Acquire {
            change = Change::Charged;
            stands.charge(pleas, at, answers);
        }
        Outcome::Granted(None)
    };
    if answers.detail() == Detail::Readings {
        stands.read(pleas.len(), at, answers);
    }
    stands.put_back(change, at);
    Some(OrderReply { outcome, at, degraded: false, shadowed: Vec::new(), readings: first..answers.mark() })
}

/// Where the row of an ask is.
#[derive(Clone, Copy)]
enum Whereabouts<'a> {
    All(&'a AllRow),
    Leaf(&'a Leaf, Tag),
}

impl<'a> Whereabouts<'a> {
    /// `None` if the limit is not for the lean way, or its keys have no rows.
    #[inline]
    fn of(plea: &Plea<'a>) -> Option<Whereabouts<'a>> {
        match plea.tenant.lean()? {
            Per::All => Some(Whereabouts::All(&plea.tenant.all)),
            Per::Key => {
                let tag = plea.tag()?;
                Some(Whereabouts::Leaf(plea.tenant.leaf(tag)?, tag))
            }
        }
    }

    fn address(&self) -> usize {
        match self {
            Whereabouts::All(all) => std::ptr::from_ref(*all).addr(),
            Whereabouts::Leaf(leaf, _) => std::ptr::from_ref(*leaf).addr(),
        }
    }
}

/// What is held of a row's lock.
enum Door<'a> {
    All(OwnedAll<'a>),
    Leaf(Owned<'a>, Spot<'a>, Tag),
}

/// A row that an order is about, with its lock held.
struct Stand<'a> {
    tenant: &'a Tenant,
    door: Door<'a>,
    /// The ask it is for.
    ask: usize,
    /// What its cell says.
    word: u64,
    /// Where the row is, if it does not lie on the shelf at full width.
    out: Option<usize>,
}

/// Rows that are out.
type Out = ArrayVec<Row, MOST_ROWS>;

impl<'a> Stand<'a> {
    /// Waits for the lock of a row. `None` if the row is not there, or not in an edition that is known to be one for us.
    #[inline]
    fn lock(ask: usize, tenant: &'a Tenant, place: Whereabouts<'a>) -> Option<Stand<'a>> {
        let (door, word, number) = match place {
            Whereabouts::All(all) => {
                let owned = all.own();
                (Door::All(owned), all.cell().load(Ordering::Relaxed), all.stamp.edition())
            }
            Whereabouts::Leaf(leaf, tag) => {
                let owned = leaf.own();
                let spot = if leaf.is_branch() { None } else { leaf.find(tag) }?;
                (Door::Leaf(owned, spot, tag), spot.word, leaf.stamp.edition())
            }
        };
        let stand = Stand { tenant, door, ask, word, out: None };
        let is_ours =
            |edition: &Arc<Edition>| edition.number == number && edition.lean() == Some(stand.per());
        (word != RESERVED && stand.shelf().edition().is_some_and(is_ours)).then_some(stand)
    }

    fn per(&self) -> Per {
        match &self.door {
            Door::All(_) => Per::All,
            Door::Leaf(..) => Per::Key,
        }
    }

    fn tag(&self) -> Option<Tag> {
        match &self.door {
            Door::All(_) => None,
            Door::Leaf(_, _, tag) => Some(*tag),
        }
    }

    #[inline]
    fn shelf(&self) -> &Shelf {
        match &self.door {
            Door::All(owned) => &owned.shelf,
            Door::Leaf(owned, ..) => &owned.inner.shelf,
        }
    }

    #[inline]
    fn shelf_mut(&mut self) -> &mut Shelf {
        match &mut self.door {
            Door::All(owned) => &mut owned.shelf,
            Door::Leaf(owned, ..) => &mut owned.inner.shelf,
        }
    }

    /// What the row is written in.
    #[inline]
    fn edition(&self) -> &Arc<Edition> {
        self.shelf().edition().expect(WRITTEN)
    }

    #[inline]
    fn row<'r>(&'r self, out: &'r Out) -> &'r Row {
        match self.out {
            Some(index) => &out[index],
            None => self.shelf().at_full_width(self.word),
        }
    }

    /// The row, and what it is written in.
    #[inline]
    fn open<'r>(&'r mut self, out: &'r mut Out) -> (&'r Arc<Edition>, &'r mut Row) {
        let (word, row) = (self.word, self.out.map(|index| &mut out[index]));
        let (edition, row) = self.shelf_mut().open(word, row);
        (edition.expect(WRITTEN), row)
    }

    /// Takes the row out if it is in a cell or a ring.
    #[inline]
    fn take_out(&mut self, out: &mut Out) {
        if !is_at_full_width(self.word) {
            self.take_narrow(out);
        }
    }

    #[inline(never)]
    fn take_narrow(&mut self, out: &mut Out) {
        if self.word & WIDE == 0 {
            self.word = match &mut self.door {
                Door::All(owned) => owned.row.place.hold(),
                Door::Leaf(_, spot, _) => {
                    spot.word = cache_line::take_any(spot.cell);
                    spot.word
                }
            };
        }
        let (edition, per, word) = (Arc::clone(self.edition()), self.per(), self.word);
        let row = edition.borrow(per, word, self.shelf_mut());
        self.out = Some(out.len());
        out.push(row);
    }

    fn floor(&self) -> Timestamp {
        match &self.door {
            Door::All(owned) => owned.row.stamp.floor(),
            Door::Leaf(owned, ..) => owned.leaf.stamp.floor(),
        }
    }

    fn raise(&self, at: Timestamp) {
        match &self.door {
            Door::All(owned) => owned.row.stamp.raise(at),
            Door::Leaf(owned, ..) => owned.leaf.stamp.raise(at),
        }
    }

    /// Whether the limit is what the row is written in, and nothing has to be done about it first.
    #[inline]
    fn is_usual(&self, at: Timestamp) -> bool {
        let edition = self.edition();
        self.tenant.is_present(edition) && !edition.is_worn_out(at)
    }

    /// Puts the row back, if it is out or might not have to lie where it does.
    #[inline]
    fn put_back(&mut self, out: &mut Out, change: Change, at: Timestamp) {
        match self.out {
            Some(index) => self.put_row(std::mem::take(&mut out[index]), change, at),
            None if change == Change::Nothing => {}
            None if self.row(out).sliding_log().is_some_and(|runs| runs.len() > 1) => {}
            None => {
                let word = self.word;
                let row = self.shelf_mut().lend(word, None);
                self.put_row(row, change, at);
            }
        }
    }

    #[inline(never)]
    fn put_row(&mut self, row: Row, change: Change, at: Timestamp) {
        let (edition, word) = (Arc::clone(self.edition()), self.word);
        match (&mut self.door, change) {
            (Door::All(owned), Change::Nothing) => owned.leave(word, row),
            (Door::All(owned), Change::Charged) => owned.settle_again(&edition, word, row),
            (Door::Leaf(owned, spot, _), Change::Nothing) => owned.leave(spot, row),
            (Door::Leaf(owned, spot, tag), Change::Charged) => {
                let means = Means { edition: &edition, budget: &self.tenant.budget, now: at };
                owned.settle_again(spot, *tag, row, means);
            }
        }
    }
}

/// The rows that an order is about, in the order of their locks.
struct Stands<'a> {
    all: ArrayVec<Stand<'a>, MOST_ROWS>,
    out: Out,
}

impl<'a> Stands<'a> {
    /// Takes the locks by address, as everybody does.
    fn lock(&mut self, pleas: &[Plea<'a>]) -> Option<()> {
        if !lockfree::are_apart(pleas, |plea| plea.tenant) {
            return None;
        }
        let mut places: ArrayVec<Whereabouts<'a>, MOST_ROWS> = ArrayVec::new();
        for plea in pleas {
            // Where rows are too many, a key whose row is fresh is a new one.
            if !plea.tenant.budget.has_rows_for(pleas.len() as u64) {
                return None;
            }
            places.push(Whereabouts::of(plea)?);
        }
        for (_, ask) in &by_address(places.iter().map(Whereabouts::address)) {
            self.all.push(Stand::lock(*ask, pleas[*ask].tenant, places[*ask])?);
        }
        Some(())
    }

    /// That of an ask.
    fn of(&self, ask: usize) -> &Stand<'a> {
        self.all.iter().find(|stand| stand.ask == ask).expect("every ask has one")
    }

    /// Takes out what cannot be decided on where it is, and says at what instant everything is decided: that of the clock, or of whoever came
    /// before with a later one.
    fn take_out(&mut self, now: Timestamp) -> Timestamp {
        let mut at = now;
        let Stands { all, out } = self;
        for stand in all {
            stand.take_out(out);
            let latest = stand.row(out).sliding_log().and_then(SlidingLog::last_charge);
            at = at.max(stand.floor()).max(latest.unwrap_or_default());
        }
        at
    }

    /// What refuses, if anything does.
    fn judge(&self, pleas: &[Plea<'_>], at: Timestamp) -> Option<Denial> {
        let mut waits = [None; MOST_ROWS];
        let mut is_granted = true;
        for stand in &self.all {
            let (item, rolling) = sliding(stand.edition());
            let runs = stand.row(&self.out).sliding_log().expect(WRITTEN);
            let cost = charge_cost(item.charge(), AskTotals::of(pleas[stand.ask].count));
            if let Verdict::Denied(wait) = rolling.check(item.rule().capacity, runs, cost, at) {
                waits[stand.ask] = Some(wait);
                is_granted = false;
            }
        }
        if is_granted {
            return None;
        }
        let mut worst = None;
        for (ask, wait) in waits.iter().enumerate().filter_map(|(ask, wait)| Some((ask, (*wait)?))) {
            worst = Some(Denial::stricter(worst, ItemPosition { row: ask, item: 0 }, wait));
        }
        worst
    }

    /// Charges all of them.
    fn charge(&mut self, pleas: &[Plea<'_>], at: Timestamp, answers: &mut Replies) {
        let stripe = counters::own();
        let Stands { all, out } = self;
        for stand in all {
            let plea = &pleas[stand.ask];
            let (edition, row) = stand.open(out);
            let (item, rolling) = sliding(edition);
            let cost = charge_cost(item.charge(), AskTotals::of(plea.count));
            if cost > 0 {
                let before = row.memory_bytes();
                let _no_refund = rolling.charge(row.sliding_log_mut().expect(WRITTEN), cost, at);
                let after = row.memory_bytes();
                if stand.out.is_none() {
                    stand.shelf_mut().reweigh(before, after);
                }
            }
            plea.tenant.counts.granted_on(stripe, 1);
            if let Some(notes) = answers.notes() {
                let (edition, tag) = (stand.edition(), stand.tag());
                let seat = edition.seat(stand.per(), tag.unwrap_or(NO_TAG));
                let row = (&*edition.limit, seat, stand.row(out));
                note_row(plea.tenant.generation, tag, row, at, notes, |_| cost > 0);
            }
        }
    }

    /// Tells what every item says.
    #[inline(never)]
    fn read(&mut self, asks: usize, at: Timestamp, answers: &mut Replies) {
        let Stands { all, out } = self;
        for ask in 0..asks {
            let Some(stand) = all.iter_mut().find(|stand| stand.ask == ask) else { continue };
            let (per, tag) = (stand.per(), stand.tag().unwrap_or(NO_TAG));
            let (edition, row) = stand.open(out);
            let limit = Arc::clone(&edition.limit);
            let line = DecisionRow {
                limit: &limit,
                scope: edition.seat(per, tag),
                row,
                totals: AskTotals::default(),
            };
            let reading = line.reading(0, &limit.items()[0], at);
            answers.read(ItemReading { limit: Arc::clone(&limit), item: 0, reading });
        }
    }

    /// Puts back what is out, and takes note of what everything takes.
    fn put_back(&mut self, change: Change, at: Timestamp) {
        let Stands { all, out } = self;
        for stand in all {
            stand.put_back(out, change, at);
            if let (Door::Leaf(owned, ..), Change::Charged) = (&mut stand.door, change) {
                owned.weigh(&stand.tenant.budget);
            }
        }
    }
}

/// The only item of a limit that is for the lean way, and its law.
#[inline]
fn sliding(edition: &Edition) -> (&Item, &SlidingWindow) {
    let item = &edition.limit.items()[0];
    match &item.rule().law {
        Law::SlidingWindow(rolling) => (item, rolling),
        _ => unreachable!("{WRITTEN}"),
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use std::time::Duration;

    use tidegate_core::spec::Precision;
    use tidegate_core::{Amount, Ask, ItemSpec, LimitSpec, Mode, Policy};

    use super::*;
    use crate::catalog::{Catalog, ExpectedVersion};
    use crate::clock::ManualClock;
    use crate::store::Store;
    use crate::store::memory::{Memory, MemoryStore};

    const START: Timestamp = Timestamp::from_ticks(1_000_000_000_000);
    const WINDOW: Duration = Duration::from_secs(1);
    /// Two for everybody, two for each key: one whose rows are packed as rings, and one whose rows are not.
    const LIMITS: [&str; 4] = ["all-exact", "all-bucketed", "key-exact", "key-bucketed"];

    fn spec(id: &str, limit: Amount) -> LimitSpec {
        let precision = if id.ends_with("exact") { Precision::Exact } else { Precision::Bucketed };
        let item = ItemSpec::of(Policy::Sliding { window: WINDOW, precision }, limit);
        LimitSpec::named(id).with(if id.starts_with("key") { item.per_key() } else { item })
    }

    fn store(clock: &Arc<ManualClock>) -> MemoryStore {
        let store = MemoryStore::new(Arc::clone(clock), Memory { secret: [1, 2], ..Memory::default() });
        for (id, limit) in LIMITS.into_iter().zip([12, 60, 7, 9]) {
            store.put(spec(id, limit), ExpectedVersion::Absent).expect("it makes sense");
        }
        store
    }

    /// Asks once, the lean way only.
    fn lean(store: &MemoryStore, asks: &[Ask<'_>], intent: Intent) -> Option<OrderReply> {
        let limits = store.shared.limits();
        let pleas: Vec<_> = asks.iter().map(|ask| super::super::order_path::plea(&limits, ask)).collect();
        let pleas: Vec<_> = pleas.into_iter().map(|plea| plea.expect("it is there")).collect();
        let order = Order { intent, ..Order::acquire(asks) };
        decide(&order, &pleas, store.shared.now(), &mut Replies::new(Detail::Verdicts))
    }

    fn told(store: &MemoryStore, order: Order<'_>) -> String {
        let answers = store.submit(&[order], Replies::new(Detail::Readings)).now();
        let answer = answers.get(0).expect("one order").as_ref().expect("it can be asked");
        let outcome = match &answer.outcome {
            Outcome::Granted(_) => "granted".to_owned(),
            Outcome::Denied(denied) => {
                format!("{} {} {:?} {}", denied.limit.id(), denied.item, denied.wait, denied.first.0.id())
            }
        };
        let readings: Vec<_> =
            answers.readings(answer).iter().map(|read| (read.limit.id(), read.reading)).collect();
        format!("{outcome} at {:?}: {readings:?}", answer.at)
    }

    /// One store is asked as usual, and another with request ids, which is not for the lean way: whatever happens, both say the same, count
    /// the same and take the same room.
    #[test]
    fn sliding_path_matches_locked_path() {
        let clock = Arc::new(ManualClock::at(START));
        let (usual, other) = (store(&clock), store(&clock));
        let (mut random, mut granted, mut was_lean) = (7_u64, 0, 0);
        let mut pick = |of: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % of
        };
        for step in 0..20_000 {
            let key = [b'a' + u8::try_from(pick(4)).expect("few")];
            let count = [0, 1, 1, 1, 2, 3, 50][usize::try_from(pick(7)).expect("few")];
            let mut ids = LIMITS.to_vec();
            for _ in 0..pick(4) {
                ids.remove(usize::try_from(pick(ids.len() as u64)).expect("few"));
            }
            let asks: Vec<_> = ids.iter().map(|id| Ask { count, ..Ask::one(id, Some(&key[..])) }).collect();
            let intent = if pick(5) == 0 { Intent::Peek } else { Intent::Acquire };
            was_lean += u32::from(lean(&usual, &asks, Intent::Peek).is_some());
            let order = Order { intent, ..Order::acquire(&asks) };
            let id = format!("{step}");
            let thorough = told(&other, Order { request_id: Some(id.as_bytes()), ..order });
            let said = told(&usual, order);
            assert_eq!(said, thorough, "step {step}: {order:?}");
            granted += u32::from(said.starts_with("granted"));
            if pick(500) == 0 {
                let id = LIMITS[usize::try_from(pick(4)).expect("few")];
                for store in [&usual, &other] {
                    store.put(spec(id, 5 + pick(1)), ExpectedVersion::Present).expect("it makes sense");
                    store.put(spec(id, 12), ExpectedVersion::Present).expect("it makes sense");
                }
            }
            for id in LIMITS {
                let [ours, theirs] = [&usual, &other].map(|store| store.observe(id).expect("it is there"));
                assert_eq!(
                    (ours.granted, ours.refused),
                    (theirs.granted, theirs.refused),
                    "step {step}: {id}"
                );
                // Who only looks at a fresh row does not forget it.
                assert!(ours.rows >= theirs.rows, "step {step}: {id}");
                if ours.rows == theirs.rows {
                    assert_eq!(ours.bytes, theirs.bytes, "step {step}: {id}");
                }
            }
            clock.advance(Duration::from_millis(if pick(60) == 0 { 900 } else { pick(25) }));
        }
        assert!(granted > 2_000 && was_lean > 10_000, "{granted} granted, {was_lean} the lean way");
    }

    /// A key without a row, rows that an edit has left behind, limits of another kind: nothing is decided, and nothing done.
    #[test]
    fn unusual_row_is_left_to_locked_path() {
        let clock = Arc::new(ManualClock::at(START));
        let store = store(&clock);
        let asks = LIMITS.map(|id| Ask::one(id, Some(b"key")));
        let used = || {
            LIMITS.map(|id| {
                let key = id.starts_with("key").then_some(&b"key"[..]);
                store.usage(id, key).now().expect("it is there").items[0].current_count
            })
        };
        let ask = || store.submit(&[Order::acquire(&asks)], Replies::new(Detail::Verdicts)).now();
        assert!(lean(&store, &asks, Intent::Acquire).is_none(), "nobody has a row");
        assert_eq!(used(), [0; 4]);
        ask();
        assert!(lean(&store, &asks, Intent::Acquire).is_some_and(|answer| answer.is_granted()));
        assert_eq!(used(), [2; 4]);
        store.put(spec("all-exact", 20), ExpectedVersion::Present).expect("it makes sense");
        assert!(lean(&store, &asks, Intent::Acquire).is_none(), "its row is in a former edition");
        ask();
        assert!(lean(&store, &asks, Intent::Acquire).is_some_and(|answer| answer.is_granted()));
        assert_eq!(used(), [4; 4]);
        let twice = [asks[0], asks[0]];
        assert!(lean(&store, &twice, Intent::Acquire).is_none(), "one row is asked twice");
        let watching = LimitSpec { mode: Mode::Shadow, ..spec("all-exact", 20) };
        store.put(watching, ExpectedVersion::Present).expect("it makes sense");
        ask();
        assert!(lean(&store, &asks, Intent::Acquire).is_none(), "it only watches");
        assert_eq!(used(), [5; 4]);
    }

    /// The row of a key goes to the shelf with its second charge and back into its cell when that is enough.
    #[test]
    fn sliding_row_is_stored_where_it_fits() {
        let clock = Arc::new(ManualClock::at(START));
        let store = store(&clock);
        // A ring, and what is too long for one.
        store.put(spec("key-long-exact", 100), ExpectedVersion::Absent).expect("it makes sense");
        for id in ["key-exact", "key-long-exact"] {
            let asks = [Ask::one(id, Some(b"key"))];
            let tenant = store.shared.tenant(id).expect("it was put");
            let tag = tenant.printer.print(b"key");
            let is_wide =
                || tenant.leaf(tag).and_then(|leaf| leaf.find(tag)).map(|spot| spot.word & WIDE != 0);
            store.submit(&[Order::acquire(&asks)], Replies::new(Detail::Verdicts)).now();
            assert_eq!(is_wide(), Some(false));
            for (milliseconds, wide) in [(100, true), (100, true), (1_001, false), (1, true), (5_000, false)]
            {
                clock.advance(Duration::from_millis(milliseconds));
                assert!(lean(&store, &asks, Intent::Acquire).is_some_and(|answer| answer.is_granted()));
                assert_eq!(is_wide(), Some(wide), "{id} after {milliseconds} ms");
            }
        }
    }
}
