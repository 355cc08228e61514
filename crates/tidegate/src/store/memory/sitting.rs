//! The thorough way: orders decided with the locks of everything they are about.
//!
//! Locks are taken in one order for everybody: the desk (leases and request ids) if the order may need it, then the leaves and `all`
//! rows by address, then their cells by address. With the locks held, rows are brought to the present edition, new keys are given
//! a row, and every row is taken out, judged and charged by the core, and put back.

use std::sync::Arc;

use tidegate_core::decide::{self, Decision};
use tidegate_core::{Hold, Intent, Item, Law, Limit, Load, Order, Per, Row, Seat, Timestamp, Trace};

use super::edition::Edition;
use super::journal::{Charge, Notes, What};
use super::leaf::{Leaf, Means, Owned, Reserved, Spot};
use super::line::{self, Tag};
use super::quick::Plea;
use super::tenant::{NO_TAG, OwnedAll, Tenant};
use super::{Desk, Shared};
use crate::answer::{Answer, Answers, Denied, Outcome};
use crate::store::deciding::{
    Conclusion, Entrant, Occasion, Room, Station, conclude, grant, lease_id, put_in_words,
};

/// A row that an order is about.
struct Party<'a> {
    tenant: &'a Tenant,
    /// The first ask it is for.
    ask: usize,
    /// Whose row: the index of its leaf among the locks and its tag, or the `all` row.
    key: Option<(usize, Tag)>,
    load: Load,
    station: Station,
    spot: Option<Spot<'a>>,
}

/// A lock that an order needs.
enum Lock<'a> {
    All(&'a Tenant, Option<OwnedAll<'a>>),
    Leaf(&'a Tenant, &'a Leaf, Option<Owned<'a>>),
}

impl Lock<'_> {
    fn address(&self) -> usize {
        match self {
            Lock::All(tenant, _) => std::ptr::from_ref(&tenant.all).addr(),
            Lock::Leaf(_, leaf, _) => std::ptr::from_ref(*leaf).addr(),
        }
    }

    fn tenant(&self) -> &Tenant {
        match self {
            Lock::All(tenant, _) | Lock::Leaf(tenant, ..) => tenant,
        }
    }
}

/// Everything that is locked for one order.
struct Sitting<'a> {
    locks: Vec<Lock<'a>>,
    parties: Vec<Party<'a>>,
    editions: Vec<(&'a Tenant, Arc<Edition>)>,
    now: Timestamp,
}

impl Shared {
    /// Decides an order with its locks. The desk is given if the order may take or find something there.
    pub(super) fn sit(
        &self,
        order: &Order<'_>,
        pleas: &[Plea<'_>],
        now: Timestamp,
        mut desk: Option<&mut Desk>,
        answers: &mut Answers,
    ) -> Answer {
        loop {
            let mut sitting = Sitting::new(pleas);
            if !sitting.lock(self, now) || !sitting.make_rows(order) {
                continue;
            }
            if let Some(answer) = sitting.decide(self, order, desk.as_deref_mut(), answers) {
                return answer;
            }
        }
    }
}

impl<'a> Sitting<'a> {
    /// The rows that the pleas are about.
    fn new(pleas: &[Plea<'a>]) -> Sitting<'a> {
        let now = Timestamp::EPOCH;
        let mut sitting = Sitting { locks: Vec::new(), parties: Vec::new(), editions: Vec::new(), now };
        for (ask, plea) in pleas.iter().enumerate() {
            sitting.enter(ask, plea, plea.tag());
        }
        sitting
    }

    /// One party per row: those of a limit side by side with its `all` row first, repeated asks added up.
    fn enter(&mut self, ask: usize, plea: &Plea<'a>, tag: Option<Tag>) {
        let load = Load::of(plea.count);
        let own = |party: &Party<'_>| std::ptr::eq(party.tenant, plea.tenant);
        let first = self.parties.iter().position(own).unwrap_or(self.parties.len());
        let party =
            |key, load| Party { tenant: plea.tenant, ask, key, load, station: Station::All, spot: None };
        if first == self.parties.len() {
            self.editions.push((plea.tenant, plea.tenant.edition()));
            self.parties.push(party(None, load));
            self.locks.push(Lock::All(plea.tenant, None));
        } else {
            self.parties[first].load = self.parties[first].load.plus(load);
        }
        let needs_key = self.edition(plea.tenant).limit.needs_key();
        let Some(tag) = tag.filter(|_| needs_key) else { return };
        let end = first + self.parties[first..].iter().take_while(|party| own(party)).count();
        let twin = |party: &&mut Party<'_>| party.key.is_some_and(|(_, other)| other == tag);
        if let Some(twin) = self.parties[first + 1..end].iter_mut().find(twin) {
            twin.load = twin.load.plus(load);
            return;
        }
        let leaf = plea.tenant.leaf_or_new(tag);
        let same = |lock: &Lock<'_>| matches!(lock, Lock::Leaf(_, other, _) if std::ptr::eq(*other, leaf));
        let lock = self.locks.iter().position(same).unwrap_or_else(|| {
            self.locks.push(Lock::Leaf(plea.tenant, leaf, None));
            self.locks.len() - 1
        });
        let party = Party { station: Station::Key(0), ..party(Some((lock, tag)), load) };
        self.parties.insert(end, party);
    }

    fn edition(&self, tenant: &Tenant) -> &Arc<Edition> {
        let own = |(other, _): &&(&Tenant, Arc<Edition>)| std::ptr::eq(*other, tenant);
        &self.editions.iter().find(own).expect("every tenant that is asked is here").1
    }

    /// Takes the locks by address, and brings the rows to the present edition. `false` if a leaf has become a branch, or a limit has
    /// changed, since it was found.
    fn lock(&mut self, shared: &Shared, now: Timestamp) -> bool {
        let mut order: Vec<usize> = (0..self.locks.len()).collect();
        order.sort_unstable_by_key(|&index| self.locks[index].address());
        for index in order {
            match &mut self.locks[index] {
                Lock::All(tenant, owned) => *owned = Some(tenant.all.own()),
                Lock::Leaf(_, leaf, owned) => {
                    let held = owned.insert(leaf.own());
                    if held.leaf.is_branch() {
                        return false;
                    }
                }
            }
        }
        // The time first, then the limits: who is told of an edit is not decided on before it under what was there before.
        self.now = self.floor().max(shared.latest(now));
        if !self.is_up_to_date() {
            return false;
        }
        for index in 0..self.locks.len() {
            let edition = Arc::clone(self.edition(self.locks[index].tenant()));
            match &mut self.locks[index] {
                Lock::All(tenant, Some(owned)) => owned.adopt(tenant, &edition),
                Lock::Leaf(tenant, _, Some(owned)) => tenant.bring(owned, &edition),
                _ => {}
            }
        }
        true
    }

    /// Whether the limits are still what they were when they were found.
    fn is_up_to_date(&self) -> bool {
        self.editions.iter().all(|(tenant, edition)| tenant.edition().number == edition.number)
    }

    /// The earliest instant at which these rows may be decided on.
    fn floor(&self) -> Timestamp {
        let floor = |lock: &Lock<'_>| match lock {
            Lock::All(tenant, _) => tenant.all.stamp.floor(),
            Lock::Leaf(_, leaf, _) => leaf.stamp.floor(),
        };
        self.locks.iter().map(floor).max().unwrap_or_default()
    }

    /// Nobody is to be decided on at an earlier instant.
    fn raise(&self) {
        for lock in &self.locks {
            match lock {
                Lock::All(tenant, _) => tenant.all.stamp.raise(self.now),
                Lock::Leaf(_, leaf, _) => leaf.stamp.raise(self.now),
            }
        }
    }

    /// Gives every key a row that will need one. `false` if rows have moved and everything must be found again.
    fn make_rows(&mut self, order: &Order<'_>) -> bool {
        let needs = |party: &Party<'_>| party.load.count > 0 || order.hold == Hold::Yes;
        self.forget_fresh(order.asks.len() as u64);
        if order.intent == Intent::Peek {
            self.see_room(needs);
            return true;
        }
        // Making a place may forget a fresh row that is asked for as well, so go on until there is nothing to make.
        loop {
            let mut made = false;
            for index in 0..self.parties.len() {
                let party = &self.parties[index];
                let (Some((lock, tag)), true) = (party.key, needs(party)) else { continue };
                if matches!(party.station, Station::NewKey(_)) || self.leaf(lock).leaf.find(tag).is_some() {
                    continue;
                }
                match self.reserve(index, lock, tag) {
                    Made::Row => made = true,
                    Made::No(room) => self.parties[index].station = Station::NewKey(room),
                    Made::Moved => {
                        self.open_reserved();
                        return false;
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
        for index in 0..self.parties.len() {
            let (tenant, key) = (self.parties[index].tenant, self.parties[index].key);
            if let Some((lock, _)) = key.filter(|_| !tenant.budget.has_rows_for(more)) {
                let (edition, now) = (Arc::clone(self.edition(tenant)), self.now);
                self.leaf(lock).drop_fresh_if_due(Means { edition: &edition, budget: &tenant.budget, now });
            }
        }
    }

    /// Sees whether there would be a row for every key that would need one, for whoever only looks.
    fn see_room(&mut self, needs: impl Fn(&Party<'_>) -> bool) {
        let mut new = 0;
        for index in 0..self.parties.len() {
            let party = &self.parties[index];
            let tenant = party.tenant;
            // Those of a limit stand side by side, its `all` row first.
            let Some((lock, tag)) = party.key else {
                new = 0;
                continue;
            };
            if !needs(party) || self.leaf(lock).leaf.find(tag).is_some() {
                continue;
            }
            new += 1;
            let (edition, now) = (Arc::clone(self.edition(tenant)), self.now);
            let means = Means { edition: &edition, budget: &tenant.budget, now };
            let owned = self.leaf(lock);
            if !owned.may_have_rows(new, tag, means) {
                let room = owned.no_room(tag, now);
                self.parties[index].station = Station::NewKey(room);
            }
        }
    }

    fn reserve(&mut self, index: usize, lock: usize, tag: Tag) -> Made {
        let tenant = self.parties[index].tenant;
        let edition = Arc::clone(self.edition(tenant));
        let now = self.now;
        let means = Means { edition: &edition, budget: &tenant.budget, now };
        let owned = self.leaf(lock);
        match owned.reserve(tag, means) {
            Reserved::Here => Made::Row,
            Reserved::Below => Made::Moved,
            Reserved::Crowded(room) => {
                // There may be fresh rows elsewhere, for whoever comes next.
                tenant.move_hand(means);
                Made::No(room)
            }
        }
    }

    /// Makes ordinary rows of those that were reserved.
    fn open_reserved(&mut self) {
        for index in 0..self.parties.len() {
            let (tenant, key) = (self.parties[index].tenant, self.parties[index].key);
            if let Some((lock, tag)) = key {
                let (edition, now) = (Arc::clone(self.edition(tenant)), self.now);
                self.leaf(lock).open(tag, Means { edition: &edition, budget: &tenant.budget, now });
            }
        }
    }

    fn leaf(&mut self, lock: usize) -> &mut Owned<'a> {
        match &mut self.locks[lock] {
            Lock::Leaf(_, _, Some(owned)) => owned,
            _ => unreachable!("keys are in leaves, and all of them are locked"),
        }
    }

    /// Takes every row out of its cell.
    fn take_rows(&mut self) -> Vec<Entrant> {
        let mut order: Vec<(usize, usize)> = Vec::with_capacity(self.parties.len());
        for index in 0..self.parties.len() {
            let address = match self.parties[index].key {
                None => std::ptr::from_ref(self.parties[index].tenant.all.cell()).addr(),
                Some((lock, tag)) => {
                    self.parties[index].spot = self.leaf(lock).leaf.find(tag);
                    self.parties[index].spot.map_or(0, |spot| std::ptr::from_ref(spot.cell).addr())
                }
            };
            order.push((address, index));
        }
        order.sort_unstable();
        for (_, index) in order {
            let party = &mut self.parties[index];
            match (&party.key, &mut party.spot) {
                (None, _) => {
                    let _held = party.tenant.all.place.hold();
                }
                (Some(_), Some(spot)) => spot.word = line::take_any(spot.cell),
                (Some(_), None) => {}
            }
        }
        (0..self.parties.len()).map(|index| self.take_row(index)).collect()
    }

    fn take_row(&mut self, index: usize) -> Entrant {
        let (tenant, ask, load, key) = {
            let party = &self.parties[index];
            (party.tenant, party.ask, party.load, party.key)
        };
        let edition = Arc::clone(self.edition(tenant));
        let spot = self.parties[index].spot;
        let (row, station) = match (key, spot) {
            (None, _) => (self.take_all(tenant, &edition), Station::All),
            (Some((lock, _)), Some(spot)) => {
                let row = edition.unpack(Per::Key, spot.word, &mut self.leaf(lock).inner.shelf);
                (row, Station::Key(0))
            }
            (Some(_), None) => {
                let station = match self.parties[index].station {
                    Station::NewKey(room) => Station::NewKey(room),
                    _ => Station::NewKey(Room::Enough),
                };
                (edition.newcomer(), station)
            }
        };
        Entrant { limit: Arc::clone(&edition.limit), ask, station, row, load }
    }

    fn take_all(&mut self, tenant: &Tenant, edition: &Edition) -> Row {
        let word = tenant.all.cell().load(super::sync::Ordering::Relaxed) & !line::HELD;
        edition.unpack(Per::All, word, &mut self.all(tenant).shelf)
    }

    fn all(&mut self, tenant: &Tenant) -> &mut OwnedAll<'a> {
        let own =
            |lock: &&mut Lock<'a>| matches!(lock, Lock::All(other, Some(_)) if std::ptr::eq(*other, tenant));
        match self.locks.iter_mut().find(own) {
            Some(Lock::All(_, Some(owned))) => owned,
            _ => unreachable!("every limit that is asked has its `all` row locked"),
        }
    }

    /// Judges, charges, and puts everything back. `None` if a limit changed before the time was certain.
    fn decide(
        mut self,
        shared: &Shared,
        order: &Order<'_>,
        desk: Option<&mut Desk>,
        answers: &mut Answers,
    ) -> Option<Answer> {
        let mut entrants = self.take_rows();
        // Rows in cells may have been charged by somebody whose clock was read after ours.
        let now = entrants.iter().map(|entrant| entrant.row.latest_charge()).fold(self.now, Timestamp::max);
        self.now = now;
        self.raise();
        if !self.is_up_to_date() {
            self.put_rows(entrants);
            return None;
        }
        shared.has_seen(now);
        let first = answers.mark();
        let number = desk.as_ref().map_or(0, |desk| desk.granted_leases + 1);
        let next_lapse = shared.next_lapse();
        let lease = lease_id(shared.lease_secret, number);
        let occasion = Occasion { now, tick: shared.tick, lease, next_lapse };
        let conclusion = conclude(order, &mut entrants, occasion, answers);
        let outcome = match conclusion.decision {
            Decision::Denied(denial) => {
                let denied = put_in_words(denial, |line| &entrants[line].limit);
                Outcome::Denied(Denied { lapses_at: conclusion.lapses_at, ..denied })
            }
            Decision::Granted => {
                self.note_charges(order, &entrants, answers);
                Outcome::Granted(self.grant(order, &mut entrants, &conclusion, desk, shared, answers))
            }
        };
        self.count(order, &conclusion);
        self.put_rows(entrants);
        let Sitting { locks, editions, .. } = self;
        drop(locks);
        for (tenant, edition) in &editions {
            tenant.keep_brief(edition, now);
        }
        Some(Answer {
            outcome,
            at: now,
            degraded: conclusion.degraded,
            shadowed: conclusion.shadowed,
            readings: first..answers.mark(),
        })
    }

    fn grant(
        &self,
        order: &Order<'_>,
        entrants: &mut [Entrant],
        conclusion: &Conclusion,
        desk: Option<&mut Desk>,
        shared: &Shared,
        answers: &mut Answers,
    ) -> Option<crate::answer::Grant> {
        let desk = desk?;
        let register = |limit: &Limit| {
            let named = |(tenant, _): &&(&Tenant, Arc<Edition>)| *tenant.id == *limit.id();
            let (tenant, _) = self.editions.iter().find(named).expect("its row was taken from there");
            (tenant.generation, shared.next_fence(tenant))
        };
        let (grant, lease) = grant(order, entrants, conclusion, register)?;
        desk.granted_leases += 1;
        if let Some(notes) = answers.notes() {
            let generation_of = |limit: &Limit| {
                lease.holdings.iter().find(|held| *held.limit_id == *limit.id()).map(|held| held.generation)
            };
            let fences =
                grant.fences.iter().filter_map(|(limit, fence)| Some((generation_of(limit)?, *fence)));
            let what = What::Granted { id: grant.lease, lease: lease.clone(), fences: fences.collect() };
            notes.deeds.push(desk.deed(what));
        }
        desk.insert(grant.lease, lease);
        Some(grant)
    }

    /// Notes how the rows are after they were charged, for whoever keeps a log.
    fn note_charges(&self, order: &Order<'_>, entrants: &[Entrant], answers: &mut Answers) {
        let Some(notes) = answers.notes().filter(|_| order.intent == Intent::Acquire) else { return };
        for (entrant, party) in entrants.iter().zip(&self.parties) {
            let tag = party.key.map(|(_, tag)| tag);
            let seat = self.edition(party.tenant).seat(entrant.per(), tag.unwrap_or(NO_TAG));
            let line = (&*entrant.limit, seat, &entrant.row);
            note_row(party.tenant.generation, tag, line, self.now, notes, |item| {
                decide::cost(item, entrant.load) > 0
            });
        }
    }

    fn count(&self, order: &Order<'_>, conclusion: &Conclusion) {
        if order.intent == Intent::Peek {
            return;
        }
        match conclusion.decision {
            Decision::Granted => self.editions.iter().for_each(|(tenant, _)| tenant.counts.granted()),
            Decision::Denied(denial) => {
                let tenant = self.parties[denial.binding.line].tenant;
                let column = self.edition(tenant).columns.get(denial.binding.item);
                tenant.counts.refused(column.copied().unwrap_or_default());
            }
        }
        for limit in &conclusion.shadowed {
            let named = |(tenant, _): &&(&Tenant, Arc<Edition>)| *tenant.id == *limit.id();
            if let Some((tenant, _)) = self.editions.iter().find(named) {
                tenant.counts.shadowed();
            }
        }
    }

    /// Puts the rows back; new ones only if they remember something.
    fn put_rows(&mut self, entrants: Vec<Entrant>) {
        let now = self.now;
        for (index, entrant) in entrants.into_iter().enumerate() {
            let (tenant, key, spot) = {
                let party = &self.parties[index];
                (party.tenant, party.key, party.spot)
            };
            let edition = Arc::clone(self.edition(tenant));
            match (key, spot) {
                (None, _) => self.all(tenant).settle(&edition, entrant.row),
                (Some((lock, tag)), Some(spot)) => {
                    let means = Means { edition: &edition, budget: &tenant.budget, now };
                    let seat: Seat<'_> = edition.seat(Per::Key, tag);
                    let owned = self.leaf(lock);
                    if edition.is_forgettable(&entrant.row, seat, now) {
                        owned.vacate(&spot, &tenant.budget);
                    } else {
                        owned.settle(&spot, tag, entrant.row, means);
                    }
                    owned.weigh(&tenant.budget);
                }
                (Some(_), None) => {}
            }
        }
    }
}

/// Notes how the items of a row are, those that were charged.
pub(super) fn note_row(
    generation: u64,
    key: Option<Tag>,
    (limit, seat, row): (&Limit, Seat<'_>, &Row),
    at: Timestamp,
    notes: &mut Notes,
    was_charged: impl Fn(&Item) -> bool,
) {
    for (index, item) in limit.items().iter().enumerate() {
        if item.per() != seat.per() || !was_charged(item) {
            continue;
        }
        let rule = seat.rule(index, item, at);
        notes.charges.extend(Trace::of_latest(rule, row.state(item)).map(|trace| Charge {
            generation,
            version: limit.version(),
            key,
            item: index,
            capacity: rule.capacity,
            trace,
            at,
            is_alone: matches!(&rule.law, Law::Rolling(rolling) if rolling.is_exact()),
        }));
    }
}

enum Made {
    Row,
    No(Room),
    /// Rows are elsewhere now.
    Moved,
}
