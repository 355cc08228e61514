//! Restore of a store from its records.
//!
//! The log supplies its records in the order of writing: limit definitions, rows, leases. Rows are merged and never added,
//! so a repeated record counts once. A row of an earlier version of its limit is converted as in memory. The store has no
//! other users during a restore.

use std::fmt;
use std::num::NonZero;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::thread;

use hashbrown::{HashMap, HashSet};
use tidegate_core::{
    ItemLineage, LeaseId, LeaseTerm, Limit, LimitPhase, LimitSpec, Per, Row, SpecError, Timestamp,
    UsageRecord,
};

use super::catalog_edits::void_holdings;
use super::fingerprint;
use super::insert::own_leaf;
pub use super::leaf::Spread;
use super::leaf::{Means, Reserved};
use super::limit_table::{Brief, NO_TAG, Tenant};
use super::row_epoch::Because;
use super::{Memory, MemoryStore, Shared};
use crate::catalog::RemovalMode;
use crate::clock::Clock;
use crate::store::journal::{Journal, LeaseAction, LeaseNote, LeaseRecord, Origin, Tag};

/// A store that is being made again.
pub struct Restore {
    shared: Arc<Shared>,
    now: Timestamp,
    tenants: HashMap<u64, Arc<Tenant>>,
    leases: HashMap<LeaseId, (u64, LeaseRecord)>,
    /// Rows of keys that have no place yet.
    waiting: Waiting,
}

/// How many rows wait to be given their places together.
const MOST_WAITING: usize = 1 << 17;
/// So few are placed before a thread has begun.
const WORTH_A_THREAD: usize = 1 << 12;
/// The most threads that give rows their places.
const MOST_HANDS: usize = 4;
/// In how many parts of a table rows are told apart.
const PARTS: usize = 1 << PART_BITS;
const PART_BITS: u32 = 6;
/// A table with fewer rows is one part. Rows of one part after the other would crowd in a table that has not split as often yet.
const FEWEST_APART: u64 = 1 << 17;

/// Rows of keys that have no place yet.
#[derive(Default)]
struct Waiting {
    parts: Vec<Vec<Waits>>,
    count: usize,
}

/// A row of a key, in the present edition of its limit.
struct Waits {
    generation: u64,
    tag: Tag,
    row: Row,
}

impl Waiting {
    /// A row of a table that has so many.
    fn push(&mut self, waits: Waits, rows: u64) {
        self.parts.resize_with(PARTS, Vec::new);
        let apart = if rows < FEWEST_APART { 0 } else { waits.tag.low >> (u64::BITS - PART_BITS) };
        self.parts[usize::try_from(apart).expect("a few bits")].push(waits);
        self.count += 1;
    }

    fn clear(&mut self) {
        self.parts.iter_mut().for_each(Vec::clear);
        self.count = 0;
    }
}

/// A text of a limit that was written down.
#[derive(Debug, Clone)]
pub struct StoredLimit {
    /// Which incarnation of its id.
    pub generation: u64,
    /// Which version of it.
    pub version: u32,
    /// The text.
    pub spec: LimitSpec,
    /// What its items have from the versions before.
    pub descent: Vec<ItemLineage>,
    /// From when on it is in force.
    pub at: Timestamp,
    /// The latest fence it gave.
    pub fence: u64,
    /// Whose it is.
    pub origin: Origin,
}

/// Why what was written down cannot be a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RestoreError {
    /// A limit that makes no sense.
    Limit {
        /// Its id.
        id: String,
        /// What is wrong with it.
        flaws: Vec<SpecError>,
    },
    /// A row of a limit, or of a version of one, that was never written down.
    Stray {
        /// Which incarnation.
        generation: u64,
        /// Which version.
        version: u32,
    },
    /// There is no room for all rows.
    Crowded {
        /// The limit whose row found none.
        id: String,
        /// How many bytes there are for rows.
        capacity_bytes: usize,
    },
}

impl fmt::Display for RestoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RestoreError::Limit { id, flaws } => {
                write!(f, "the limit '{}' makes no sense", id.escape_debug())?;
                flaws.iter().try_for_each(|flaw| write!(f, "; {flaw}"))
            }
            RestoreError::Stray { generation, version } => {
                write!(
                    f,
                    "a row of version {version} of limit number {generation}, which was never written down"
                )
            }
            RestoreError::Crowded { id, capacity_bytes } => write!(
                f,
                "the rows of limit '{}' and the others do not fit into {capacity_bytes} bytes; give the store more memory",
                id.escape_debug()
            ),
        }
    }
}

impl std::error::Error for RestoreError {}

impl Restore {
    /// Whether this program makes the fingerprints of keys that rows were written down with. If not, no row would be found again.
    pub fn knows_fingerprints() -> bool {
        fingerprint::are_as_ever()
    }

    /// A store without anything yet.
    pub fn new(clock: impl Clock + 'static, memory: Memory) -> Restore {
        let shared = Shared::new(clock, memory);
        // Rows come with their fingerprints, and leave with them.
        let shared = Arc::new(Shared { secret: shared.secret.kept(), ..shared });
        let now = shared.now();
        Restore { shared, now, tenants: HashMap::new(), leases: HashMap::new(), waiting: Waiting::default() }
    }

    /// The instant it is.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// This instant was seen before: nothing is decided at an earlier one.
    pub fn saw(&mut self, seen: Timestamp) {
        self.now = self.shared.latest(self.shared.now().max(seen)).max(self.now);
    }

    /// So many limits were ever made, so many leases granted and so many deeds done, at least; no fence is higher than this.
    pub fn counters(&mut self, counters: &Counters) {
        let raise = |counter: &std::sync::atomic::AtomicU64, to| counter.fetch_max(to, Ordering::Relaxed);
        raise(&self.shared.generations, counters.generations);
        raise(&self.shared.highest_fence, counters.highest_fence);
        let mut desk = self.shared.desk();
        desk.granted_leases = desk.granted_leases.max(counters.granted_leases);
        desk.deeds = desk.deeds.max(counters.deeds);
    }

    /// A limit, or the next text of one, or one that came back as it was.
    pub fn put(&mut self, text: StoredLimit) -> Result<(), RestoreError> {
        self.settle()?;
        let StoredLimit { generation, version, spec, descent, at, fence, origin } = text;
        self.shared.generations.fetch_max(generation, Ordering::Relaxed);
        self.shared.highest_fence.fetch_max(fence, Ordering::Relaxed);
        let id: Box<str> = spec.id.as_str().into();
        let known = self.tenants.get(&generation).map(Arc::clone);
        if known.as_ref().is_some_and(|tenant| tenant.id != id) {
            let flaw = SpecError::new("id", "is not the one that this limit had before");
            return Err(RestoreError::Limit { id: id.to_string(), flaws: vec![flaw] });
        }
        let tenant = match known {
            Some(tenant) if version <= tenant.limit().version() => tenant,
            known => {
                let limit = Limit::restore(spec, self.shared.tick, version, &descent)
                    .map(Arc::new)
                    .map_err(|flaws| RestoreError::Limit { id: id.to_string(), flaws })?;
                match known {
                    Some(tenant) => {
                        self.replace(&tenant, limit, at);
                        tenant
                    }
                    None => Arc::new(Tenant::new(
                        &limit,
                        generation,
                        fence,
                        self.shared.secret,
                        &self.shared.budget,
                        self.shared.gallery.place(),
                        at,
                    )),
                }
            }
        };
        // There may be more rows than a lowered bound allows; they are there nevertheless.
        tenant.budget.bound_rows(None);
        tenant.belongs_to(origin);
        tenant.fence.fetch_max(fence, Ordering::Relaxed);
        self.tenants.insert(generation, Arc::clone(&tenant));
        self.shared.retired.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        self.shared.limits.write().unwrap_or_else(PoisonError::into_inner).insert(id, tenant);
        Ok(())
    }

    fn replace(&mut self, tenant: &Tenant, limit: Arc<Limit>, at: Timestamp) {
        let was_over = tenant.limit().phase(at) == LimitPhase::After;
        let draft = tenant.draft(limit);
        // All editions are remembered until the end: rows of any of them may come.
        let _crowd = tenant.announce(draft, Because::Put, Brief::Later, || at, |_| {});
        if was_over {
            let holdings = self.leases.values_mut().flat_map(|(_, lease)| &mut lease.holdings);
            void_holdings(holdings, |id| *id == *tenant.id);
        }
    }

    /// A limit goes.
    pub fn remove(
        &mut self,
        generation: u64,
        parting: RemovalMode,
        until: Timestamp,
    ) -> Result<(), RestoreError> {
        self.settle()?;
        let Some(tenant) = self.tenants.get(&generation).map(Arc::clone) else { return Ok(()) };
        let mut limits = self.shared.limits.write().unwrap_or_else(PoisonError::into_inner);
        let mut retired = self.shared.retired.lock().unwrap_or_else(PoisonError::into_inner);
        if limits.get(&tenant.id).is_some_and(|present| present.generation == generation) {
            limits.remove(&tenant.id);
        }
        if parting == RemovalMode::Retire && until > self.now {
            retired.insert(tenant.id.clone(), (until, tenant));
        } else {
            retired.remove(&tenant.id);
            drop((limits, retired));
            self.tenants.remove(&generation);
        }
        Ok(())
    }

    /// Counts are zeroed: all of a limit, or those of one key.
    pub fn reset(
        &mut self,
        generation: u64,
        key: Option<(&[u8], Tag)>,
        at: Timestamp,
    ) -> Result<(), RestoreError> {
        self.settle()?;
        let Some(tenant) = self.tenants.get(&generation).map(Arc::clone) else { return Ok(()) };
        match key {
            None => {
                let draft = tenant.draft(tenant.limit());
                let _crowd = tenant.announce(draft, Because::Reset, Brief::Later, || at, |_| {});
            }
            Some((_, tag)) => {
                self.change(&tenant, Some(tag), |limit, row| row.reset(limit, Per::Key))?;
            }
        }
        for holding in self.leases.values_mut().flat_map(|(_, lease)| &mut lease.holdings) {
            let of_key = key.is_none_or(|(key, _)| holding.key.as_deref() == Some(key));
            if holding.generation == generation && of_key {
                holding.void();
            }
        }
        Ok(())
    }

    /// Rows are about to come that lay together. There is room for all of them before the first one comes, if they are the first here
    /// and if there can be.
    pub fn leaf(&mut self, generation: u64, spread: Spread) {
        if let Some(tenant) = self.tenants.get(&generation) {
            tenant.leaf_or_new(NO_TAG);
            tenant.root().into_iter().for_each(|root| root.make_ready(spread, &tenant.budget));
        }
    }

    /// A row of this version of a limit remembers at least this. One of a limit that is gone is nobody's.
    pub fn row(
        &mut self,
        generation: u64,
        version: u32,
        key: Option<Tag>,
        traces: impl IntoIterator<Item = (usize, UsageRecord)>,
    ) -> Result<(), RestoreError> {
        let stray = || RestoreError::Stray { generation, version };
        let Some(tenant) = self.tenants.get(&generation) else {
            let known = generation <= self.shared.generations.load(Ordering::Relaxed);
            return if known { Ok(()) } else { Err(stray()) };
        };
        // Charged before the snapshot that was read first, and written down after it: the snapshot knows.
        if version < tenant.first_version() {
            return Ok(());
        }
        let row = tenant.carried(version, key, traces).ok_or_else(stray)?;
        let Some(tag) = key else {
            let now = self.now;
            return self.change(tenant, key, |limit, own| {
                own.merge(&row, limit, Per::All);
                own.drop_expired(limit, Per::All, now);
            });
        };
        self.waiting.push(Waits { generation, tag, row }, tenant.budget.rows());
        if self.waiting.count >= MOST_WAITING { self.settle() } else { Ok(()) }
    }

    /// Gives the rows that wait their places, those of one part of a table after the other: told one by one they would each wait for another
    /// part of memory. Parts are shared out among a few threads, because what one row remembers does not depend on another.
    fn settle(&mut self) -> Result<(), RestoreError> {
        if self.waiting.count == 0 {
            return Ok(());
        }
        let waiting = std::mem::take(&mut self.waiting);
        let few = waiting.count < WORTH_A_THREAD;
        let hands =
            if few { 1 } else { thread::available_parallelism().map_or(1, NonZero::get).min(MOST_HANDS) };
        let (this, parts) = (&*self, &waiting.parts);
        let work = move |hand: usize| {
            parts.iter().skip(hand).step_by(hands).flatten().try_for_each(|waits| this.place(waits))
        };
        let placed = thread::scope(|scope| {
            let others: Vec<_> = (1..hands).map(|hand| scope.spawn(move || work(hand))).collect();
            let own = work(0);
            let joined =
                others.into_iter().map(|other| other.join().expect("rows have places or are refused"));
            joined.fold(own, Result::and)
        });
        self.waiting = waiting;
        self.waiting.clear();
        placed
    }

    fn place(&self, Waits { generation, tag, row }: &Waits) -> Result<(), RestoreError> {
        let merge = |limit: &Limit, own: &mut Row| {
            own.merge(row, limit, Per::Key);
            own.drop_expired(limit, Per::Key, self.now);
        };
        self.tenants.get(generation).map_or(Ok(()), |tenant| self.change(tenant, Some(*tag), merge))
    }

    /// From now on a key without a row has used this much, and a key with one at least as much: what was not written down before a
    /// crash is taken to have been used.
    pub fn haunt(
        &mut self,
        generation: u64,
        version: u32,
        traces: impl IntoIterator<Item = (usize, UsageRecord)>,
        at: Timestamp,
    ) -> Result<(), RestoreError> {
        self.settle()?;
        let stray = || RestoreError::Stray { generation, version };
        let Some(tenant) = self.tenants.get(&generation) else {
            // It was removed, or has been in retirement for too long.
            let known = generation <= self.shared.generations.load(Ordering::Relaxed);
            return if known { Ok(()) } else { Err(stray()) };
        };
        let mut draft = tenant.draft(tenant.limit());
        let mut ghost = tenant.carried(version, Some(NO_TAG), traces).ok_or_else(stray)?;
        if let Some(present) = tenant.edition().ghost() {
            ghost.merge(present, &draft.limit, Per::Key);
        }
        draft.ghost = Some(ghost);
        let _crowd = tenant.announce(draft, Because::Crash, Brief::Later, || at, |_| {});
        Ok(())
    }

    fn change(
        &self,
        tenant: &Tenant,
        key: Option<Tag>,
        change: impl FnOnce(&Limit, &mut Row),
    ) -> Result<(), RestoreError> {
        let Some(tag) = key else {
            let mut owned = tenant.all.own();
            let edition = tenant.edition();
            owned.adopt(tenant, &edition);
            let word = tenant.all.place.hold();
            let mut row = edition.unpack(Per::All, word, &mut owned.shelf);
            change(&edition.limit, &mut row);
            owned.settle(&edition, row);
            return Ok(());
        };
        loop {
            let (mut owned, edition) = own_leaf(tenant, tag);
            let means = Means { edition: &edition, budget: &tenant.budget, now: self.now };
            if owned.leaf.find(tag).is_none() {
                match owned.reserve(tag, means) {
                    Reserved::Here => {}
                    Reserved::Below => continue,
                    Reserved::Crowded(_) => {
                        let capacity_bytes = self.shared.budget.most();
                        return Err(RestoreError::Crowded { id: tenant.id.to_string(), capacity_bytes });
                    }
                }
            }
            let Some(spot) = owned.hold(tag) else { continue };
            let mut row = edition.unpack(Per::Key, spot.word, &mut owned.inner.shelf);
            change(&edition.limit, &mut row);
            if edition.is_forgettable(&row, edition.seat(Per::Key, tag), self.now) {
                owned.vacate(&spot, &tenant.budget);
            } else {
                owned.settle(&spot, tag, row, means);
            }
            owned.weigh(&tenant.budget);
            return Ok(());
        }
    }

    /// Something was done about a lease or a request id.
    pub fn deed(&mut self, deed: LeaseNote) {
        let LeaseNote { serial, what } = deed;
        let mut desk = self.shared.desk();
        desk.deeds = desk.deeds.max(serial);
        match what {
            LeaseAction::Granted { id, lease, fences } => {
                let number = u64::try_from(id.0 >> 64).expect("64 bits");
                desk.granted_leases = desk.granted_leases.max(number);
                for (generation, fence) in fences {
                    self.shared.highest_fence.fetch_max(fence, Ordering::Relaxed);
                    if let Some(tenant) = self.tenants.get(&generation) {
                        tenant.fence.fetch_max(fence, Ordering::Relaxed);
                    }
                }
                if self.leases.get(&id).is_none_or(|(known, _)| *known < serial) {
                    self.leases.insert(id, (serial, lease));
                }
            }
            LeaseAction::Renewed { id, expires_at } => {
                if let Some((known, lease)) = self.leases.get_mut(&id)
                    && *known < serial
                {
                    *known = serial;
                    lease.expires_at = expires_at;
                }
            }
            LeaseAction::Released { id } => {
                self.leases.remove(&id);
            }
            LeaseAction::Settled { id, until } => {
                self.leases.remove(&id);
                if until > self.now && !desk.leases.was_settled(id, self.now) {
                    desk.leases.remember_settled(id, until);
                }
            }
            LeaseAction::Remembered { id, grant } => {
                let known = desk.requests.get(&id, Timestamp::EPOCH).map(|known| known.until);
                if known != Some(grant.until) && grant.until > self.now {
                    desk.requests.remember(&id, grant);
                }
            }
        }
    }

    /// The limit of this id, as far as it was read.
    pub fn limit(&self, id: &str) -> Option<Arc<Limit>> {
        let tenant = self.shared.tenant(id).or_else(|| self.shared.retired(id));
        tenant.map(|tenant| tenant.limit())
    }

    /// Every limit that is there, retired ones included.
    pub fn limits(&self) -> impl Iterator<Item = (u64, Arc<Limit>)> {
        self.tenants.iter().map(|(generation, tenant)| (*generation, tenant.limit()))
    }

    /// The store. From now on changes are told to the journal.
    pub fn finish(mut self, journal: Arc<dyn Journal>) -> Result<MemoryStore, RestoreError> {
        self.settle()?;
        let gone: HashSet<u64> = self
            .leases
            .values()
            .flat_map(|(_, lease)| &lease.holdings)
            .map(|holding| holding.generation)
            .filter(|generation| !self.tenants.contains_key(generation))
            .collect();
        let mut desk = self.shared.desk();
        for (id, (_, lease)) in &self.leases {
            if lease.expires_at > self.now {
                self.hold(*id, lease)?;
                desk.leases.insert(*id, lease.clone());
            }
        }
        desk.leases.forget(&gone);
        self.shared.mind_lapses(&desk);
        drop(desk);
        for tenant in self.tenants.values() {
            tenant.budget.bound_rows(tenant.limit().spec().max_keys);
        }
        for tenant in self.shared.limits().values() {
            tenant.refresh(self.now);
        }
        // There is none yet: nobody else has had the store.
        let _first = self.shared.journal.set(journal);
        Ok(MemoryStore { shared: self.shared })
    }

    /// Makes rows know what a lease holds of them.
    fn hold(&self, id: LeaseId, lease: &LeaseRecord) -> Result<(), RestoreError> {
        let tenure = LeaseTerm { lease: id, expires_at: lease.expires_at };
        // A row that was dropped with its limit's end does not know of a lease that goes on.
        for holding in lease.holdings.iter().filter(|holding| holding.pins) {
            let Some(tenant) = self.tenants.get(&holding.generation) else { continue };
            let tag = holding.key.as_deref().map(|key| tenant.printer.print(key));
            let per = if tag.is_none() { Per::All } else { Per::Key };
            self.change(tenant, tag, |limit, row| {
                for (name, charged) in &holding.charges {
                    if let Some((index, _)) = limit.item_named(name).filter(|(_, item)| item.per() == per) {
                        row.restore_lease(limit, index, tenure, charged.cost);
                    }
                }
                row.add_hold();
            })?;
        }
        Ok(())
    }
}

impl fmt::Debug for Restore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Restore").field("limits", &self.tenants.len()).finish_non_exhaustive()
    }
}

/// What must never be used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// How many limits were ever made.
    pub generations: u64,
    /// The highest fence ever given.
    pub highest_fence: u64,
    /// How many leases were ever granted.
    pub granted_leases: u64,
    /// How many deeds were ever noted.
    pub deeds: u64,
}
