//! Locked path: orders decided by the core, under the locks of all their lines.
//!
//! The steps are those of [the engine](super::engine). Here the lines are locked before the rows are judged, because a row
//! may be stored in full, or because the order needs more than its words say: a lease, a request id, an override.
//!
//! If all rows exist, only their lines are locked, with the engine's rule: a thread that holds a line never waits. If a row
//! is missing, the leaves of all keys are locked first, by address. Then new keys get a row that no other thread decides on.
//! The order of locks is: the lease registry, leaves by address, lines.

mod effects;

use std::sync::Arc;

use arrayvec::ArrayVec;
use tidegate_core::decide::Decision;
use tidegate_core::order::MAX_ASKS;
use tidegate_core::{AskTotals, Hold, Intent, Limit, Order, Per, Row, Timestamp};

use super::engine::ResolvedAsk;
use super::leaf::{Leaf, LockedLeaf, Reservation, RowPlace};
use super::leaf_header::LeafHeader;
use super::limit_table::{LimitTable, grants_leases};
use super::line::{self, LOCKED, NO_TAG, RowWords, Tag, read_words, write_words};
use super::row_epoch::{RESERVED, RowEpoch};
use super::sync::{AtomicU32, Ordering, fence, pause};
use super::{LeaseRegistry, StoreState};
use crate::reply::{OrderRefusal, OrderReply, Outcome, Replies};
use crate::store::order_path::{
    AskedRow, DecisionContext, MAX_ASKED_ROWS, RowLocation, RowRoom, decide_rows, refusal_of,
};
use effects::{count, note_charges, register};

pub(super) use effects::note_row;

/// The attempts to lock the lines of existing rows before their leaves are locked.
const TRIES_WITHOUT_LEAVES: u32 = if cfg!(tidegate_loom) { 1 } else { 16 };

/// A limit of the order, in the epoch in which it was found.
struct OrderLimit<'a> {
    table: &'a LimitTable,
    epoch: Arc<RowEpoch>,
}

/// A row of the order.
struct OrderRow<'a> {
    limit: usize,
    /// The first ask that it belongs to.
    ask: usize,
    /// The key's tag. `None` for the row of all keys.
    tag: Option<Tag>,
    totals: AskTotals,
    location: RowLocation,
    place: Option<RowPlace<'a>>,
    words: RowWords,
}

/// A leaf of the order.
struct OrderLeaf<'a> {
    limit: usize,
    leaf: &'a Leaf,
    locked: Option<LockedLeaf<'a>>,
}

/// An order on the locked path. It is large and stays where it is.
pub(super) struct LockedOrder<'a> {
    limits: ArrayVec<OrderLimit<'a>, MAX_ASKS>,
    rows: ArrayVec<OrderRow<'a>, MAX_ASKED_ROWS>,
    leaves: ArrayVec<OrderLeaf<'a>, MAX_ASKS>,
}

/// The result of an order on the locked path.
pub(super) enum LockedResult {
    Decided(OrderReply),
    /// Nothing was done: a limit has changed, or rows have moved.
    Outdated,
}

/// The locks of the lines. They are released when this is dropped, also after a panic.
#[derive(Default)]
struct LineLocks<'a>(ArrayVec<(&'a AtomicU32, u32), MAX_ASKED_ROWS>);

impl<'a> LineLocks<'a> {
    /// Locks a line that is still as `seen`. A line that is locked already must have been seen the same.
    fn try_lock(&mut self, control: &'a AtomicU32, seen: u32) -> bool {
        if let Some((_, own)) = self.0.iter().find(|(own, _)| std::ptr::eq(*own, control)) {
            return *own == seen;
        }
        let is_ours = seen & LOCKED == 0 && line::try_lock(control, seen);
        if is_ours {
            self.0.push((control, seen));
        }
        is_ours
    }
}

impl Drop for LineLocks<'_> {
    fn drop(&mut self) {
        for (control, seen) in &self.0 {
            line::unlock(control, *seen);
        }
    }
}

type AskedRows<'m> = ArrayVec<AskedRow<&'m Arc<Limit>>, MAX_ASKED_ROWS>;

impl<'a> LockedOrder<'a> {
    /// An order without asks.
    pub(super) fn new() -> LockedOrder<'a> {
        LockedOrder { limits: ArrayVec::new(), rows: ArrayVec::new(), leaves: ArrayVec::new() }
    }

    /// Adds the rows of these asks, with nothing locked.
    pub(super) fn enter_all(&mut self, asks: &[ResolvedAsk<'a>]) {
        for (index, ask) in asks.iter().enumerate() {
            self.enter(index, ask);
        }
    }

    /// Adds the rows of an ask. The rows of a limit are side by side with its row of all keys first, and repeated asks are
    /// added up.
    fn enter(&mut self, index: usize, ask: &ResolvedAsk<'a>) {
        let (table, totals) = (ask.table, AskTotals::of(ask.count));
        let known = self.limits.iter().position(|limit| std::ptr::eq(limit.table, table));
        let limit = known.unwrap_or(self.limits.len());
        if known.is_none() {
            self.limits.push(OrderLimit { table, epoch: table.epoch() });
        }
        let definition = &self.limits[limit].epoch.limit;
        let is_own = |row: &OrderRow<'_>| row.limit == limit;
        let first = self.rows.iter().position(is_own).unwrap_or(self.rows.len());
        let mut end = first + self.rows[first..].iter().take_while(|row| is_own(row)).count();
        let row = |tag, location| OrderRow {
            limit,
            ask: index,
            tag,
            totals,
            location,
            place: None,
            words: RowWords::default(),
        };
        let needs_key = definition.needs_key();
        if definition.items().iter().any(|item| item.per() == Per::All) {
            if known.is_some() {
                self.rows[first].totals = self.rows[first].totals.plus(totals);
            } else {
                self.rows.push(row(None, RowLocation::All));
                end += 1;
            }
        }
        let Some(tag) = ask.tag().filter(|_| needs_key) else { return };
        if let Some(same) = self.rows[first..end].iter_mut().find(|row| row.tag == Some(tag)) {
            same.totals = same.totals.plus(totals);
            return;
        }
        self.rows.insert(end, row(Some(tag), RowLocation::Key(0)));
    }

    /// The first of the asks that lacks the key its limit needs.
    pub(super) fn key_missing<'p>(&self, asks: &'p [ResolvedAsk<'a>]) -> Option<&'p ResolvedAsk<'a>> {
        let needs_key = |table: &LimitTable| {
            let mut limits = self.limits.iter();
            limits.any(|limit| std::ptr::eq(limit.table, table) && limit.epoch.limit.needs_key())
        };
        asks.iter().find(|ask| ask.key.is_none() && needs_key(ask.table))
    }

    /// Whether a grant may come with a lease that the order did not ask for.
    pub(super) fn may_grant_lease(&self) -> bool {
        self.limits.iter().any(|limit| grants_leases(&limit.epoch.limit))
    }

    /// Decides the order. The registry is given if the order may use it.
    pub(super) fn decide(
        &mut self,
        store: &StoreState,
        order: &Order<'_>,
        now: Timestamp,
        mut registry: Option<&mut LeaseRegistry>,
        replies: &mut Replies,
    ) -> LockedResult {
        self.convert_all_rows();
        let mut turn = 0;
        for _ in 0..TRIES_WITHOUT_LEAVES {
            // A limit with more rows than a lowered bound allows treats each evictable row as a new key.
            if self.limits.iter().any(|limit| limit.table.budget.has_too_many_rows()) || !self.find_rows() {
                break;
            }
            if let Some(lines) = self.lock_lines() {
                return self.decide_rows(store, order, now, registry, replies, lines);
            }
            pause(&mut turn);
        }
        let Some(now) = self.lock_leaves(store, now) else { return self.outdated() };
        if !self.create_rows(order, now) {
            return self.outdated();
        }
        loop {
            let _all_or_new = self.find_rows();
            if let Some(lines) = self.lock_lines() {
                let result = self.decide_rows(store, order, now, registry.take(), replies, lines);
                self.leaves.clear();
                return result;
            }
            pause(&mut turn);
        }
    }

    fn outdated(&mut self) -> LockedResult {
        self.leaves.clear();
        LockedResult::Outdated
    }

    /// Finds the row of every key. Returns whether each has one that can be decided without the leaf's lock.
    fn find_rows(&mut self) -> bool {
        let LockedOrder { limits, rows, .. } = self;
        let mut has_all = true;
        for row in rows {
            let Some(tag) = row.tag else { continue };
            let OrderLimit { table, epoch } = &limits[row.limit];
            let shape = epoch.key_shape();
            let leaf = table.leaf(tag).filter(|leaf| leaf.header.epoch() == epoch.number);
            row.place = leaf.and_then(|leaf| leaf.find(shape, tag));
            has_all &= row.place.is_some_and(|place| place.line.read(shape, place.slot)[0] != RESERVED);
        }
        has_all
    }

    /// Locks the lines of all rows, if they are still as they were found. Reads the rows.
    fn lock_lines(&mut self) -> Option<LineLocks<'a>> {
        let LockedOrder { limits, rows, .. } = self;
        let mut lines = LineLocks::default();
        for row in rows.iter_mut() {
            let (control, seen): (&'a AtomicU32, u32) = match (row.tag, row.place) {
                (None, _) => {
                    let control = limits[row.limit].table.all.place.control();
                    (control, control.load(Ordering::Relaxed))
                }
                (Some(_), Some(RowPlace { line, seen, .. })) => (line.control(), seen),
                (Some(_), None) => continue,
            };
            // A line that this order has locked already is seen without its lock.
            let own = lines.0.iter().find(|(own, _)| std::ptr::eq(*own, control)).map(|(_, seen)| *seen);
            if !lines.try_lock(control, own.filter(|_| seen & LOCKED != 0).unwrap_or(seen)) {
                return None;
            }
        }
        for row in rows {
            let OrderLimit { table, epoch } = &limits[row.limit];
            row.words = match (row.tag, row.place) {
                (None, _) => read_words(table.all.place.cells()),
                (Some(_), Some(place)) => place.line.read(epoch.key_shape(), place.slot),
                (Some(_), None) => RowWords::default(),
            };
        }
        Some(lines)
    }

    /// Locks the leaves of all keys by address, with their rows in the epochs of the order. Returns the time of the decision.
    /// `None` if a leaf has become a branch, or a limit has changed, since it was found.
    fn lock_leaves(&mut self, store: &StoreState, now: Timestamp) -> Option<Timestamp> {
        let LockedOrder { limits, rows, leaves } = self;
        leaves.clear();
        for row in rows.iter() {
            let Some(tag) = row.tag else { continue };
            let leaf = limits[row.limit].table.leaf_or_new(tag);
            if !leaves.iter().any(|other| std::ptr::eq(other.leaf, leaf)) {
                leaves.push(OrderLeaf { limit: row.limit, leaf, locked: None });
            }
        }
        leaves.sort_unstable_by_key(|leaf| std::ptr::from_ref(leaf.leaf).addr());
        for leaf in leaves.iter_mut() {
            leaf.locked = Some(leaf.leaf.lock());
            if leaf.leaf.is_branch() {
                return None;
            }
        }
        // The time first, then the limits: a decision after an edit is not made before it.
        let now = floor(limits, rows).max(store.latest(now));
        if !is_up_to_date(limits) {
            return None;
        }
        for OrderLeaf { limit, locked, leaf } in leaves {
            let OrderLimit { table, epoch } = &limits[*limit];
            if let Some(locked) = locked {
                table.convert_leaf(locked, epoch);
            }
            if leaf.is_branch() {
                return None;
            }
        }
        Some(now)
    }

    /// Creates a row for every key that needs one. Returns `false` if rows have moved and everything must be found again.
    fn create_rows(&mut self, order: &Order<'_>, now: Timestamp) -> bool {
        self.evict_for(order.asks.len() as u64, now);
        let needs = |row: &OrderRow<'_>| row.totals.count > 0 || order.hold == Hold::Yes;
        // An order that only looks must find what an order that charges would: both get a place. It is free again if nothing
        // was charged.
        if !self.reserve_all(needs, now) {
            self.open_reserved(now);
            return false;
        }
        true
    }

    /// Reserves a row for every key that needs one. Returns `false` if rows have moved.
    fn reserve_all(&mut self, needs: impl Fn(&OrderRow<'_>) -> bool, now: Timestamp) -> bool {
        let LockedOrder { limits, rows, leaves } = self;
        // A reservation may evict another row of the order, so this goes on until there is nothing to reserve.
        loop {
            let mut reserved = false;
            for row in rows.iter_mut() {
                let (Some(tag), true) = (row.tag, needs(row)) else { continue };
                let OrderLimit { table, epoch } = &limits[row.limit];
                let Some(locked) = leaf_of(leaves, table, tag) else { return false };
                if matches!(row.location, RowLocation::NewKey(_)) || locked.find(tag).is_some() {
                    continue;
                }
                let context = table.context(epoch, now);
                match locked.reserve(tag, context) {
                    Reservation::Reserved => reserved = true,
                    Reservation::Moved => return false,
                    Reservation::NoRoom(room) => {
                        row.location = RowLocation::NewKey(room);
                        // There may be evictable rows elsewhere, for a later order.
                        table.sweep(context);
                    }
                }
            }
            if !reserved {
                return true;
            }
        }
    }

    /// Evicts rows where so many more might be too many: there an evictable row counts as a new key.
    fn evict_for(&mut self, more: u64, now: Timestamp) {
        let LockedOrder { limits, leaves, .. } = self;
        for OrderLeaf { limit, locked, .. } in leaves {
            let OrderLimit { table, epoch } = &limits[*limit];
            if let Some(locked) = locked
                && !table.budget.has_rows_for(more)
            {
                locked.evict_if_due(table.context(epoch, now));
            }
        }
    }

    /// Makes ordinary rows of the reserved ones.
    fn open_reserved(&mut self, now: Timestamp) {
        let LockedOrder { limits, rows, leaves } = self;
        for row in rows.iter() {
            let OrderLimit { table, epoch } = &limits[row.limit];
            if let Some(tag) = row.tag
                && let Some(locked) = leaf_of(leaves, table, tag)
            {
                locked.open(tag, table.context(epoch, now));
            }
        }
    }

    /// Takes every row out, judges, charges, and puts everything back. All lines are locked.
    fn decide_rows(
        &mut self,
        store: &StoreState,
        order: &Order<'_>,
        now: Timestamp,
        registry: Option<&mut LeaseRegistry>,
        replies: &mut Replies,
        lines: LineLocks<'a>,
    ) -> LockedResult {
        // The time first, then the limits: a decision after an edit is not made before it.
        let LockedOrder { limits, rows, leaves } = self;
        let (limits, rows) = (&*limits, &*rows);
        let mut now = floor(limits, rows).max(store.latest(now));
        if !is_up_to_date(limits) || !are_in_epoch(limits, rows) {
            drop(lines);
            leaves.clear();
            return LockedResult::Outdated;
        }
        let mut asked_rows = AskedRows::new();
        for order_row in rows {
            let OrderLimit { table, epoch } = &limits[order_row.limit];
            let (row, location) = order_row.take(table, epoch);
            let (ask, load) = (order_row.ask, order_row.totals);
            asked_rows.push(AskedRow { limit: &epoch.limit, ask, location, row, load });
        }
        // A row may have been charged by a thread with a later time.
        now = asked_rows.iter().map(|asked| asked.row.last_charge_time()).fold(now, Timestamp::max);
        headers(limits, rows).for_each(|header| header.raise(now));
        if !is_up_to_date(limits) {
            put_rows(limits, rows, leaves, &mut asked_rows, RowChange::Nothing, now);
            drop(lines);
            leaves.clear();
            return LockedResult::Outdated;
        }
        store.has_seen(now);
        let first = replies.mark();
        let number = registry.as_ref().map_or(0, |registry| registry.granted_leases + 1);
        let (tick, secret, next_lapse) = (store.tick, store.lease_secret, store.next_lapse());
        let context = DecisionContext { now, tick, secret, number, next_lapse };
        let decided = decide_rows(order, &mut asked_rows, context, replies);
        let mut change = RowChange::Nothing;
        let outcome = match decided.decision {
            Decision::Denied(denial) => {
                let denied = refusal_of(denial, |row| asked_rows[row].limit);
                Outcome::Denied(OrderRefusal { lapses_at: decided.lapses_at, ..denied })
            }
            Decision::Granted if order.intent == Intent::Peek => Outcome::Granted(None),
            Decision::Granted => {
                change = RowChange::Charged;
                if let Some(notes) = replies.notes() {
                    note_charges(limits, rows, &asked_rows, now, notes);
                }
                let notes = replies.notes();
                let lease = register(limits, order, &mut asked_rows, &decided, registry, store, notes);
                Outcome::Granted(lease)
            }
        };
        if order.intent == Intent::Acquire {
            count(limits, rows, &decided);
        }
        let (degraded, shadowed) = (decided.degraded, decided.shadowed);
        put_rows(limits, rows, leaves, &mut asked_rows, change, now);
        drop(asked_rows);
        drop(lines);
        leaves.clear();
        for OrderLimit { table, epoch } in limits {
            table.refresh_if_outdated(epoch, now);
        }
        LockedResult::Decided(OrderReply {
            outcome,
            at: now,
            degraded,
            shadowed,
            readings: first..replies.mark(),
        })
    }

    /// Converts the rows of all keys that are in an earlier epoch. Nothing is locked.
    fn convert_all_rows(&self) {
        for OrderLimit { table, epoch } in &self.limits {
            if table.all.header.epoch() < epoch.number {
                table.all.lock().convert(table, epoch);
            }
        }
    }
}

/// The locked leaf of a tag, if leaves are locked.
fn leaf_of<'l, 'a>(
    leaves: &'l mut [OrderLeaf<'a>],
    table: &LimitTable,
    tag: Tag,
) -> Option<&'l mut LockedLeaf<'a>> {
    if leaves.is_empty() {
        return None;
    }
    let leaf = table.leaf(tag)?;
    let own = leaves.iter_mut().find(|own| std::ptr::eq(own.leaf, leaf))?;
    own.locked.as_mut()
}

impl OrderRow<'_> {
    /// Takes the row out. Its place stays reserved until the row is put back.
    fn take(&self, table: &LimitTable, epoch: &RowEpoch) -> (Row, RowLocation) {
        match (self.tag, self.place) {
            (None, _) => (epoch.take(Per::All, &self.words, &table.rows, &table.budget), RowLocation::All),
            (Some(_), Some(_)) => {
                (epoch.take(Per::Key, &self.words, &table.rows, &table.budget), RowLocation::Key(0))
            }
            (Some(_), None) => match self.location {
                RowLocation::NewKey(room) => (epoch.new_row(), RowLocation::NewKey(room)),
                _ => (epoch.new_row(), RowLocation::NewKey(RowRoom::Enough)),
            },
        }
    }
}

/// The effect of an order on its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RowChange {
    Nothing,
    Charged,
}

/// Puts the rows back. A new row without a charge gives up its place.
fn put_rows(
    limits: &[OrderLimit<'_>],
    rows: &[OrderRow<'_>],
    leaves: &mut [OrderLeaf<'_>],
    asked_rows: &mut [AskedRow<&Arc<Limit>>],
    change: RowChange,
    now: Timestamp,
) {
    for (order_row, asked) in rows.iter().zip(asked_rows) {
        let OrderLimit { table, epoch } = &limits[order_row.limit];
        let (row, words) = (std::mem::take(&mut asked.row), &order_row.words);
        let context = table.context(epoch, now);
        let Some(tag) = order_row.tag else {
            match change {
                RowChange::Nothing => RowEpoch::restore(Per::All, words, row, &table.rows, &table.budget),
                RowChange::Charged => {
                    let words = epoch.store(Per::All, NO_TAG, words, row, &table.rows, &table.budget);
                    write_words(table.all.place.cells(), &words);
                }
            }
            continue;
        };
        let Some(place) = &order_row.place else { continue };
        let mut locked = leaf_of(leaves, table, tag);
        if let Some(locked) = &mut locked
            && locked.vacate_if_evictable(place, tag, &row, words, context)
        {
            continue;
        }
        if change == RowChange::Nothing && words[0] != RESERVED {
            RowEpoch::restore(Per::Key, words, row, &table.rows, &table.budget);
            continue;
        }
        let words = epoch.store(Per::Key, tag, words, row, &table.rows, &table.budget);
        match locked {
            Some(locked) => locked.write(place, tag, &words, context),
            None => place.line.write(epoch.key_shape(), place.slot, &words),
        }
    }
}

/// The headers of all rows.
fn headers<'a>(
    limits: &'a [OrderLimit<'_>],
    rows: &'a [OrderRow<'_>],
) -> impl Iterator<Item = &'a LeafHeader> {
    rows.iter().filter_map(|row| {
        let table = limits[row.limit].table;
        match row.tag {
            None => Some(&table.all.header),
            Some(tag) => table.leaf(tag).map(|leaf| &leaf.header),
        }
    })
}

/// The earliest instant at which the rows may be decided.
fn floor(limits: &[OrderLimit<'_>], rows: &[OrderRow<'_>]) -> Timestamp {
    headers(limits, rows).map(LeafHeader::floor).max().unwrap_or_default()
}

/// Whether the limits are still those of the order. A clock that was read before this was read before any later edit.
fn is_up_to_date(limits: &[OrderLimit<'_>]) -> bool {
    fence(Ordering::Acquire);
    limits.iter().all(|limit| limit.table.is_present(&limit.epoch))
}

/// Whether all rows are in the epochs of the order. A key without a leaf has no row in any epoch.
fn are_in_epoch(limits: &[OrderLimit<'_>], rows: &[OrderRow<'_>]) -> bool {
    rows.iter().all(|row| {
        let OrderLimit { table, epoch } = &limits[row.limit];
        let header = match row.tag {
            None => Some(&table.all.header),
            Some(tag) => table.leaf(tag).map(|leaf| &leaf.header),
        };
        header.is_none_or(|header| header.epoch() == epoch.number)
    })
}
