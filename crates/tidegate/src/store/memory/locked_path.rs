//! Locked path: orders decided under the locks of all their rows.
//!
//! All threads take locks in one order: the lease registry (leases and request ids) if the order may need it, then leaves
//! and `all` rows by address, then their cells by address. Under the locks, rows are converted to the current epoch and
//! new keys get a row. Every row is then taken out, decided and charged by the core, and put back.
//!
//! This path is frequent, so it allocates no memory: an order's data is on the stack, a row keeps its place while it is
//! out, and an uncharged row is put back unchanged. An order is decided under the epochs that it started with, or
//! restarted. Common sliding windows have [their own path](super::sliding_path) with the same locks.
//!
//! Alternative refused: a path for sliding rows without these locks. A row of several words cannot be taken and written
//! atomically. Such a path would need a lock per row and all handling of insertion, eviction and conversion.

use std::sync::Arc;

use arrayvec::ArrayVec;
use tidegate_core::decide::{self, Decision};
use tidegate_core::order::MAX_ASKS;
use tidegate_core::{
    AskTotals, Hold, Intent, Item, Law, Limit, Order, Per, Row, RowScope, Timestamp, UsageRecord,
};

use super::cache_line::{self, Tag};
use super::leaf::{Leaf, Means, Owned, Reserved, Spot};
use super::limit_table::{AllRow, NO_TAG, OwnedAll, Tenant, holds};
use super::lockfree::Plea;
use super::row_epoch::{Edition, RESERVED};
use super::sync::{Ordering, fence};
use super::{Desk, Shared};
use crate::reply::{GrantedLease, OrderRefusal, OrderReply, Outcome, Replies};
use crate::store::journal::{ChargeNote, LeaseAction, Notes};
use crate::store::order_path::{
    AskedRow, DecisionContext, MAX_ASKED_ROWS, OrderDecision, RowLocation, RowRoom, decide_rows, make_lease,
    refusal_of,
};

/// A limit that an order is about, in the edition it was found in.
struct Member<'a> {
    tenant: &'a Tenant,
    edition: Arc<Edition>,
}

impl Member<'_> {
    fn means(&self, now: Timestamp) -> Means<'_> {
        Means { edition: &self.edition, budget: &self.tenant.budget, now }
    }
}

/// A row that an order is about.
struct Party<'a> {
    /// Its limit,
    member: usize,
    /// the first ask it is for,
    ask: usize,
    /// and its lock.
    lock: usize,
    /// Whose row; none for that of all keys.
    tag: Option<Tag>,
    load: AskTotals,
    location: RowLocation,
    /// Where a key's row is, if it has one.
    spot: Option<Spot<'a>>,
    /// What the cell of the `all` row said.
    word: u64,
}

/// A lock that an order needs, and of which limit.
struct Lock<'a> {
    member: usize,
    door: Door<'a>,
}

enum Door<'a> {
    All(&'a AllRow, Option<OwnedAll<'a>>),
    Leaf(&'a Leaf, Option<Owned<'a>>),
}

impl<'a> Lock<'a> {
    fn address(&self) -> usize {
        match &self.door {
            Door::All(all, _) => std::ptr::from_ref(*all).addr(),
            Door::Leaf(leaf, _) => std::ptr::from_ref(*leaf).addr(),
        }
    }

    fn floor(&self) -> Timestamp {
        match &self.door {
            Door::All(all, _) => all.stamp.floor(),
            Door::Leaf(leaf, _) => leaf.stamp.floor(),
        }
    }

    fn raise(&self, now: Timestamp) {
        match &self.door {
            Door::All(all, _) => all.stamp.raise(now),
            Door::Leaf(leaf, _) => leaf.stamp.raise(now),
        }
    }

    fn leaf(&mut self) -> &mut Owned<'a> {
        match &mut self.door {
            Door::Leaf(_, Some(owned)) => owned,
            _ => unreachable!("keys are in leaves, and all of them are locked"),
        }
    }

    fn all(&mut self) -> &mut OwnedAll<'a> {
        match &mut self.door {
            Door::All(_, Some(owned)) => owned,
            _ => unreachable!("it is the lock of an `all` row, and all of them are locked"),
        }
    }
}

/// Everything that one order is about, and what of it is locked. It takes no memory but its own, and it is large: it stays where it is.
pub(super) struct Sitting<'a> {
    members: ArrayVec<Member<'a>, MAX_ASKS>,
    locks: ArrayVec<Lock<'a>, MAX_ASKED_ROWS>,
    parties: ArrayVec<Party<'a>, MAX_ASKED_ROWS>,
    now: Timestamp,
}

/// What came of a sitting.
pub(super) enum Sat {
    Answered(OrderReply),
    /// Nothing was done: a limit has changed, or rows are elsewhere.
    Outdated,
}

type AskedRows<'m> = ArrayVec<AskedRow<&'m Arc<Limit>>, MAX_ASKED_ROWS>;

impl<'a> Sitting<'a> {
    /// Nobody yet.
    pub(super) fn new() -> Sitting<'a> {
        Sitting {
            members: ArrayVec::new(),
            locks: ArrayVec::new(),
            parties: ArrayVec::new(),
            now: Timestamp::EPOCH,
        }
    }

    /// The rows that the pleas are about, with nothing locked.
    pub(super) fn enter_all(&mut self, pleas: &[Plea<'a>]) {
        for (ask, plea) in pleas.iter().enumerate() {
            self.enter(ask, plea);
        }
    }

    /// One party per row: those of a limit side by side with its `all` row first, if it has one, repeated asks added up.
    fn enter(&mut self, ask: usize, plea: &Plea<'a>) {
        let (tenant, load) = (plea.tenant, AskTotals::of(plea.count));
        let known = self.members.iter().position(|member| std::ptr::eq(member.tenant, tenant));
        let member = known.unwrap_or(self.members.len());
        if known.is_none() {
            self.members.push(Member { tenant, edition: tenant.edition() });
        }
        let limit = &self.members[member].edition.limit;
        let (first, end) = match known {
            None => (self.parties.len(), self.parties.len()),
            Some(_) => self.side_by_side(member),
        };
        let party =
            |tag, lock, location| Party { member, ask, lock, tag, load, location, spot: None, word: 0 };
        let needs_key = limit.needs_key();
        let mut end = end;
        if limit.items().iter().any(|item| item.per() == Per::All) {
            if known.is_some() {
                self.parties[first].load = self.parties[first].load.plus(load);
            } else {
                self.locks.push(Lock { member, door: Door::All(&tenant.all, None) });
                self.parties.push(party(None, self.locks.len() - 1, RowLocation::All));
                end += 1;
            }
        }
        let Some(tag) = plea.tag().filter(|_| needs_key) else { return };
        if let Some(twin) = self.parties[first..end].iter_mut().find(|party| party.tag == Some(tag)) {
            twin.load = twin.load.plus(load);
            return;
        }
        let leaf = tenant.leaf_or_new(tag);
        let same = |lock: &Lock<'_>| matches!(lock.door, Door::Leaf(other, _) if std::ptr::eq(other, leaf));
        let lock = self.locks.iter().position(same).unwrap_or_else(|| {
            self.locks.push(Lock { member, door: Door::Leaf(leaf, None) });
            self.locks.len() - 1
        });
        self.parties.insert(end, party(Some(tag), lock, RowLocation::Key(0)));
    }

    /// Where the parties of a limit begin and end.
    fn side_by_side(&self, member: usize) -> (usize, usize) {
        let own = |party: &Party<'_>| party.member == member;
        let first = self.parties.iter().position(own).unwrap_or(self.parties.len());
        (first, first + self.parties[first..].iter().take_while(|party| own(party)).count())
    }

    /// The first of the pleas whose limit counts per key, and which names none.
    pub(super) fn key_missing<'p>(&self, pleas: &'p [Plea<'a>]) -> Option<&'p Plea<'a>> {
        let needs_key = |tenant: &Tenant| {
            let own = |member: &&Member<'_>| std::ptr::eq(member.tenant, tenant);
            self.members.iter().find(own).is_some_and(|member| member.edition.limit.needs_key())
        };
        pleas.iter().find(|plea| plea.key.is_none() && needs_key(plea.tenant))
    }

    /// Whether a grant may come with a lease that nobody asked for.
    pub(super) fn may_hold(&self) -> bool {
        self.members.iter().any(|member| holds(&member.edition.limit))
    }

    /// Decides the order with its locks. The desk is given if the order may take or find something there.
    pub(super) fn sit(
        &mut self,
        shared: &Shared,
        order: &Order<'_>,
        now: Timestamp,
        desk: Option<&mut Desk>,
        answers: &mut Replies,
    ) -> Sat {
        if !self.lock(shared, now) || !self.make_rows(order) {
            return Sat::Outdated;
        }
        self.hold_rows();
        self.decide(shared, order, desk, answers)
    }

    /// Takes the locks by address, and brings the rows to the present edition. `false` if a leaf has become a branch, or a limit has
    /// changed, since it was found.
    fn lock(&mut self, shared: &Shared, now: Timestamp) -> bool {
        for (_, index) in &by_address(self.locks.iter().map(Lock::address)) {
            match &mut self.locks[*index].door {
                Door::All(all, owned) => *owned = Some(all.own()),
                Door::Leaf(leaf, owned) => {
                    *owned = Some(leaf.own());
                    if leaf.is_branch() {
                        return false;
                    }
                }
            }
        }
        // The time first, then the limits: who is told of an edit is not decided on before it under what was there before.
        let floor = self.locks.iter().map(Lock::floor).max().unwrap_or_default();
        self.now = floor.max(shared.latest(now));
        if !is_up_to_date(&self.members) {
            return false;
        }
        for Lock { member, door } in &mut self.locks {
            let Member { tenant, edition } = &self.members[*member];
            match door {
                Door::All(_, Some(owned)) => owned.adopt(tenant, edition),
                Door::Leaf(_, Some(owned)) => tenant.bring(owned, edition),
                _ => {}
            }
        }
        true
    }

    /// Finds the row of every key, and gives those one that will need it. `false` if rows have moved and everything must be found again.
    fn make_rows(&mut self, order: &Order<'_>) -> bool {
        self.forget_fresh(order.asks.len() as u64);
        if self.find_rows() {
            return true;
        }
        let needs = |party: &Party<'_>| party.load.count > 0 || order.hold == Hold::Yes;
        // Whoever only looks is to find what whoever asks would: a place is made for both, and is free again when nothing was charged.
        if !self.reserve_all(needs) {
            self.open_reserved();
            return false;
        }
        self.find_rows();
        true
    }

    /// Finds the row of every key. Whether every key has one.
    fn find_rows(&mut self) -> bool {
        let mut has_all = true;
        for Party { lock, tag, spot, .. } in &mut self.parties {
            if let Some(tag) = *tag {
                *spot = self.locks[*lock].leaf().leaf.find(tag);
                has_all &= spot.is_some();
            }
        }
        has_all
    }

    /// Makes a row for every key that will need one. `false` if rows have moved.
    fn reserve_all(&mut self, needs: impl Fn(&Party<'_>) -> bool) -> bool {
        // Making a place may forget a fresh row that is asked for as well, so go on until there is nothing to make.
        loop {
            let mut made = false;
            for party in &mut self.parties {
                let (Some(tag), true) = (party.tag, needs(party)) else { continue };
                let owned = self.locks[party.lock].leaf();
                if matches!(party.location, RowLocation::NewKey(_)) || owned.leaf.find(tag).is_some() {
                    continue;
                }
                let member = &self.members[party.member];
                let means = member.means(self.now);
                match owned.reserve(tag, means) {
                    Reserved::Here => made = true,
                    Reserved::Below => return false,
                    Reserved::Crowded(room) => {
                        party.location = RowLocation::NewKey(room);
                        // There may be fresh rows elsewhere, for whoever comes next.
                        member.tenant.move_hand(means);
                    }
                }
            }
            if !made {
                return true;
            }
        }
    }

    /// Forgets fresh rows where this many more might be too many: a key whose row is fresh is a new one there.
    fn forget_fresh(&mut self, more: u64) {
        for Party { member, lock, tag, .. } in &self.parties {
            let member = &self.members[*member];
            if tag.is_some() && !member.tenant.budget.has_rows_for(more) {
                self.locks[*lock].leaf().drop_fresh_if_due(member.means(self.now));
            }
        }
    }

    /// Makes ordinary rows of those that were reserved.
    fn open_reserved(&mut self) {
        for Party { member, lock, tag, .. } in &self.parties {
            if let Some(tag) = *tag {
                self.locks[*lock].leaf().open(tag, self.members[*member].means(self.now));
            }
        }
    }

    /// Holds every cell.
    fn hold_rows(&mut self) {
        let address = |Party { member, tag, spot, .. }: &Party<'_>| match (tag, spot) {
            (None, _) => std::ptr::from_ref(self.members[*member].tenant.all.cell()).addr(),
            (Some(_), Some(spot)) => std::ptr::from_ref(spot.cell).addr(),
            (Some(_), None) => 0,
        };
        for (_, index) in &by_address(self.parties.iter().map(address)) {
            let Party { member, tag, spot, word, .. } = &mut self.parties[*index];
            match (tag, spot) {
                (None, _) => *word = self.members[*member].tenant.all.place.hold(),
                (Some(_), Some(spot)) => spot.word = cache_line::take_any(spot.cell),
                (Some(_), None) => {}
            }
        }
    }

    /// Takes every row out, judges, charges, and puts everything back.
    fn decide(
        &mut self,
        shared: &Shared,
        order: &Order<'_>,
        desk: Option<&mut Desk>,
        answers: &mut Replies,
    ) -> Sat {
        let Sitting { members, locks, parties, now } = self;
        let mut asked_rows = AskedRows::new();
        for party in parties.iter() {
            let edition = &members[party.member].edition;
            let (row, location) = party.borrow_row(edition, &mut locks[party.lock]);
            asked_rows.push(AskedRow {
                limit: &edition.limit,
                ask: party.ask,
                location,
                row,
                load: party.load,
            });
        }
        // Rows in cells may have been charged by somebody whose clock was read after ours.
        *now = asked_rows.iter().map(|asked| asked.row.last_charge_time()).fold(*now, Timestamp::max);
        let now = *now;
        locks.iter().for_each(|lock| lock.raise(now));
        if !is_up_to_date(members) {
            put_rows(members, locks, parties, &mut asked_rows, Change::Nothing, now);
            return Sat::Outdated;
        }
        shared.has_seen(now);
        let first = answers.mark();
        let number = desk.as_ref().map_or(0, |desk| desk.granted_leases + 1);
        let (tick, secret, next_lapse) = (shared.tick, shared.lease_secret, shared.next_lapse());
        let context = DecisionContext { now, tick, secret, number, next_lapse };
        let decided = decide_rows(order, &mut asked_rows, context, answers);
        let mut change = Change::Nothing;
        let outcome = match decided.decision {
            Decision::Denied(denial) => {
                let denied = refusal_of(denial, |line| asked_rows[line].limit);
                Outcome::Denied(OrderRefusal { lapses_at: decided.lapses_at, ..denied })
            }
            Decision::Granted if order.intent == Intent::Peek => Outcome::Granted(None),
            Decision::Granted => {
                change = Change::Charged;
                if let Some(notes) = answers.notes() {
                    note_charges(members, parties, &asked_rows, now, notes);
                }
                let notes = answers.notes();
                Outcome::Granted(register(members, order, &mut asked_rows, &decided, desk, shared, notes))
            }
        };
        if order.intent == Intent::Acquire {
            count(members, parties, &decided);
        }
        put_rows(members, locks, parties, &mut asked_rows, change, now);
        locks.clear();
        for Member { tenant, edition } in members.iter() {
            tenant.keep_brief(edition, now);
        }
        Sat::Answered(OrderReply {
            outcome,
            at: now,
            degraded: decided.degraded,
            shadowed: decided.shadowed,
            readings: first..answers.mark(),
        })
    }
}

impl Party<'_> {
    /// Takes its row out. The place is kept until the row is put back.
    fn borrow_row(&self, edition: &Edition, lock: &mut Lock<'_>) -> (Row, RowLocation) {
        match (self.tag, self.spot) {
            (None, _) => (edition.borrow(Per::All, self.word, &mut lock.all().shelf), RowLocation::All),
            (Some(_), Some(spot)) => {
                let row = edition.borrow(Per::Key, spot.word, &mut lock.leaf().inner.shelf);
                (row, RowLocation::Key(0))
            }
            (Some(_), None) => match self.location {
                RowLocation::NewKey(room) => (edition.newcomer(), RowLocation::NewKey(room)),
                _ => (edition.newcomer(), RowLocation::NewKey(RowRoom::Enough)),
            },
        }
    }
}

/// What became of the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Nothing,
    Charged,
}

/// Puts the rows back; new ones only if they remember something.
fn put_rows(
    members: &[Member<'_>],
    locks: &mut [Lock<'_>],
    parties: &[Party<'_>],
    asked_rows: &mut AskedRows<'_>,
    change: Change,
    now: Timestamp,
) {
    for (party, AskedRow { row, .. }) in parties.iter().zip(asked_rows.drain(..)) {
        let (member, lock) = (&members[party.member], &mut locks[party.lock]);
        let edition = &member.edition;
        let Some(tag) = party.tag else {
            match change {
                Change::Nothing => lock.all().leave(party.word, row),
                Change::Charged => lock.all().settle_again(edition, party.word, row),
            }
            continue;
        };
        let Some(spot) = &party.spot else { continue };
        let owned = lock.leaf();
        if edition.is_forgettable(&row, edition.seat(Per::Key, tag), now) {
            Edition::let_go(spot.word, &mut owned.inner.shelf);
            owned.vacate(spot, &member.tenant.budget);
        } else if change == Change::Nothing && spot.word != RESERVED {
            owned.leave(spot, row);
            continue;
        } else {
            owned.settle_again(spot, tag, row, member.means(now));
        }
        owned.weigh(&member.tenant.budget);
    }
}

/// The lease that a grant comes with, written down at the desk.
fn register(
    members: &[Member<'_>],
    order: &Order<'_>,
    asked_rows: &mut [AskedRow<&Arc<Limit>>],
    decided: &OrderDecision,
    desk: Option<&mut Desk>,
    shared: &Shared,
    notes: Option<&mut Notes>,
) -> Option<GrantedLease> {
    let desk = desk?;
    let register = |limit: &Limit| {
        let tenant = tenant_of(members, limit).expect("its row was taken from there");
        (tenant.generation, shared.next_fence(tenant))
    };
    let (grant, lease) = make_lease(order, asked_rows, decided, register)?;
    desk.granted_leases += 1;
    if let Some(notes) = notes {
        let generation_of = |limit: &Limit| {
            lease.holdings.iter().find(|held| *held.limit_id == *limit.id()).map(|held| held.generation)
        };
        let fences = grant.fences.iter().filter_map(|(limit, fence)| Some((generation_of(limit)?, *fence)));
        let what = LeaseAction::Granted { id: grant.lease, lease: lease.clone(), fences: fences.collect() };
        notes.deeds.push(desk.deed(what));
    }
    desk.insert(grant.lease, lease);
    Some(grant)
}

/// Notes how the rows are after they were charged, for whoever keeps a log.
fn note_charges(
    members: &[Member<'_>],
    parties: &[Party<'_>],
    asked_rows: &[AskedRow<&Arc<Limit>>],
    now: Timestamp,
    notes: &mut Notes,
) {
    for (asked, party) in asked_rows.iter().zip(parties) {
        let Member { tenant, edition } = &members[party.member];
        let seat = edition.seat(asked.per(), party.tag.unwrap_or(NO_TAG));
        let line = (&**asked.limit, seat, &asked.row);
        note_row(tenant.generation, party.tag, line, now, notes, |item| decide::cost(item, asked.load) > 0);
    }
}

fn count(members: &[Member<'_>], parties: &[Party<'_>], decided: &OrderDecision) {
    match decided.decision {
        Decision::Granted => members.iter().for_each(|member| member.tenant.counts.granted()),
        Decision::Denied(denial) => {
            let Member { tenant, edition } = &members[parties[denial.binding.row].member];
            let column = edition.columns.get(denial.binding.item);
            tenant.counts.refused(column.copied().unwrap_or_default());
        }
    }
    for limit in &decided.shadowed {
        if let Some(tenant) = tenant_of(members, limit) {
            tenant.counts.shadowed();
        }
    }
}

fn tenant_of<'a>(members: &[Member<'a>], limit: &Limit) -> Option<&'a Tenant> {
    members.iter().map(|member| member.tenant).find(|tenant| *tenant.id == *limit.id())
}

/// Whether the limits are still what they were when they were found: what was read of the time before this is from before any edit of them.
fn is_up_to_date(members: &[Member<'_>]) -> bool {
    fence(Ordering::Acquire);
    members.iter().all(|member| member.tenant.is_present(&member.edition))
}

/// These addresses in their order, each with its index: everybody takes what they need in the same order.
pub(super) fn by_address(addresses: impl Iterator<Item = usize>) -> ArrayVec<(usize, usize), MAX_ASKED_ROWS> {
    let mut order: ArrayVec<(usize, usize), MAX_ASKED_ROWS> = ArrayVec::new();
    for (index, address) in addresses.enumerate() {
        order.push((address, index));
        let mut place = index;
        while place > 0 && order[place - 1].0 > address {
            order.swap(place - 1, place);
            place -= 1;
        }
    }
    order
}

/// Notes how the items of a row are, those that were charged.
pub(super) fn note_row(
    generation: u64,
    key: Option<Tag>,
    (limit, seat, row): (&Limit, RowScope<'_>, &Row),
    at: Timestamp,
    notes: &mut Notes,
    was_charged: impl Fn(&Item) -> bool,
) {
    for (index, item) in limit.items().iter().enumerate() {
        if item.per() != seat.per() || !was_charged(item) {
            continue;
        }
        let rule = seat.rule(index, item, at);
        notes.charges.extend(UsageRecord::latest(rule, row.state(item)).map(|trace| ChargeNote {
            generation,
            version: limit.version(),
            key,
            item: index,
            capacity: rule.capacity,
            trace,
            at,
            is_alone: matches!(&rule.law, Law::SlidingWindow(rolling) if rolling.is_exact()),
        }));
    }
}
