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
use super::leaf::Reservation;
pub use super::leaf::Spread;
use super::limit_table::{LimitTable, PublishTime};
use super::line::{self, NO_TAG};
use super::row_access::with_all_row;
use super::row_epoch::{EpochCause, shared_words};
use super::{Memory, MemoryStore, StoreState};
use crate::catalog::RemovalMode;
use crate::clock::Clock;
use crate::store::journal::{Journal, LeaseAction, LeaseNote, LeaseRecord, Origin, Tag};

/// A store that is being made again.
pub struct Restore {
    state: Arc<StoreState>,
    now: Timestamp,
    tables: HashMap<u64, Arc<LimitTable>>,
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

/// A row of a key, in the present epoch of its limit.
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
        fingerprint::are_stable()
    }

    /// A store without anything yet.
    pub fn new(clock: impl Clock + 'static, memory: Memory) -> Restore {
        let state = StoreState::new(clock, memory);
        // Rows come with their fingerprints, and leave with them.
        let state = Arc::new(StoreState { secret: state.secret.kept(), ..state });
        let now = state.now();
        Restore { state, now, tables: HashMap::new(), leases: HashMap::new(), waiting: Waiting::default() }
    }

    /// The instant it is.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// This instant was seen before: nothing is decided at an earlier one.
    pub fn saw(&mut self, seen: Timestamp) {
        self.now = self.state.latest(self.state.now().max(seen)).max(self.now);
    }

    /// So many limits were ever made, so many leases granted and so many deeds done, at least; no fence is higher than this.
    pub fn counters(&mut self, counters: &Counters) {
        let raise = |counter: &std::sync::atomic::AtomicU64, to| counter.fetch_max(to, Ordering::Relaxed);
        raise(&self.state.generations, counters.generations);
        raise(&self.state.highest_fence, counters.highest_fence);
        let mut registry = self.state.registry();
        registry.granted_leases = registry.granted_leases.max(counters.granted_leases);
        registry.deeds = registry.deeds.max(counters.deeds);
    }

    /// A limit, or the next text of one, or one that came back as it was.
    pub fn put(&mut self, text: StoredLimit) -> Result<(), RestoreError> {
        self.settle()?;
        let StoredLimit { generation, version, spec, descent, at, fence, origin } = text;
        self.state.generations.fetch_max(generation, Ordering::Relaxed);
        self.state.highest_fence.fetch_max(fence, Ordering::Relaxed);
        let id: Box<str> = spec.id.as_str().into();
        let known = self.tables.get(&generation).map(Arc::clone);
        if known.as_ref().is_some_and(|table| table.id != id) {
            let flaw = SpecError::new("id", "is not the one that this limit had before");
            return Err(RestoreError::Limit { id: id.to_string(), flaws: vec![flaw] });
        }
        let table = match known {
            Some(table) if version <= table.limit().version() => table,
            known => {
                let limit = Limit::restore(spec, self.state.tick, version, &descent)
                    .map(Arc::new)
                    .map_err(|flaws| RestoreError::Limit { id: id.to_string(), flaws })?;
                match known {
                    Some(table) => {
                        self.replace(&table, limit, at);
                        table
                    }
                    None => Arc::new(LimitTable::new(
                        &limit,
                        generation,
                        fence,
                        self.state.secret,
                        &self.state.budget,
                        self.state.shared_lines.row(shared_words(&limit)),
                        at,
                    )),
                }
            }
        };
        // There may be more rows than a lowered bound allows; they are there nevertheless.
        table.budget.bound_rows(None);
        table.set_origin(origin);
        table.fence.fetch_max(fence, Ordering::Relaxed);
        self.tables.insert(generation, Arc::clone(&table));
        self.state.retired.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        self.state.limits.write().unwrap_or_else(PoisonError::into_inner).insert(id, table);
        Ok(())
    }

    fn replace(&mut self, table: &LimitTable, limit: Arc<Limit>, at: Timestamp) {
        let was_over = table.limit().phase(at) == LimitPhase::After;
        let draft = table.draft(limit);
        // All epochs are remembered until the end: rows of any of them may come.
        let _crowd = table.begin_epoch(draft, EpochCause::Put, PublishTime::Later, || at, |_| {});
        if was_over {
            let holdings = self.leases.values_mut().flat_map(|(_, lease)| &mut lease.holdings);
            void_holdings(holdings, |id| *id == *table.id);
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
        let Some(table) = self.tables.get(&generation).map(Arc::clone) else { return Ok(()) };
        let mut limits = self.state.limits.write().unwrap_or_else(PoisonError::into_inner);
        let mut retired = self.state.retired.lock().unwrap_or_else(PoisonError::into_inner);
        if limits.get(&table.id).is_some_and(|present| present.generation == generation) {
            limits.remove(&table.id);
        }
        if parting == RemovalMode::Retire && until > self.now {
            retired.insert(table.id.clone(), (until, table));
        } else {
            retired.remove(&table.id);
            drop((limits, retired));
            self.tables.remove(&generation);
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
        let Some(table) = self.tables.get(&generation).map(Arc::clone) else { return Ok(()) };
        match key {
            None => {
                let draft = table.draft(table.limit());
                let _crowd = table.begin_epoch(draft, EpochCause::Reset, PublishTime::Later, || at, |_| {});
            }
            Some((_, tag)) => {
                self.change(&table, Some(tag), |limit, row| row.reset(limit, Per::Key))?;
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
        if let Some(table) = self.tables.get(&generation) {
            table.leaf_or_new(NO_TAG);
            table.root().into_iter().for_each(|root| root.make_ready(spread, &table.budget));
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
        let Some(table) = self.tables.get(&generation) else {
            let known = generation <= self.state.generations.load(Ordering::Relaxed);
            return if known { Ok(()) } else { Err(stray()) };
        };
        // Charged before the snapshot that was read first, and written down after it: the snapshot knows.
        if version < table.first_version() {
            return Ok(());
        }
        let row = table.converted(version, key, traces).ok_or_else(stray)?;
        let Some(tag) = key else {
            let now = self.now;
            return self.change(table, key, |limit, own| {
                own.merge(&row, limit, Per::All);
                own.drop_expired(limit, Per::All, now);
            });
        };
        self.waiting.push(Waits { generation, tag, row }, table.budget.rows());
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
        self.tables.get(generation).map_or(Ok(()), |table| self.change(table, Some(*tag), merge))
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
        let Some(table) = self.tables.get(&generation) else {
            // It was removed, or has been in retirement for too long.
            let known = generation <= self.state.generations.load(Ordering::Relaxed);
            return if known { Ok(()) } else { Err(stray()) };
        };
        let mut draft = table.draft(table.limit());
        let mut assumed = table.converted(version, Some(NO_TAG), traces).ok_or_else(stray)?;
        if let Some(present) = table.epoch().assumed() {
            assumed.merge(present, &draft.limit, Per::Key);
        }
        draft.assumed = Some(assumed);
        let _crowd = table.begin_epoch(draft, EpochCause::Crash, PublishTime::Later, || at, |_| {});
        Ok(())
    }

    fn change(
        &self,
        table: &LimitTable,
        key: Option<Tag>,
        change: impl FnOnce(&Limit, &mut Row),
    ) -> Result<(), RestoreError> {
        let Some(tag) = key else {
            with_all_row(table, Timestamp::EPOCH, |epoch, _, row, _| change(&epoch.limit, row));
            return Ok(());
        };
        loop {
            let (mut locked, epoch) = table.lock_leaf(tag);
            let context = table.context(&epoch, self.now);
            if locked.find(tag).is_none() {
                match locked.reserve(tag, context) {
                    Reservation::Reserved => {}
                    Reservation::Moved => continue,
                    Reservation::NoRoom(_) => {
                        let capacity_bytes = self.state.budget.most();
                        return Err(RestoreError::Crowded { id: table.id.to_string(), capacity_bytes });
                    }
                }
            }
            let Some((place, words)) = locked.lock_row(tag) else { continue };
            let mut row = epoch.take(Per::Key, &words, &table.rows, &table.budget);
            change(&epoch.limit, &mut row);
            if !locked.vacate_if_evictable(&place, tag, &row, &words, context) {
                let words = epoch.store(Per::Key, tag, &words, row, &table.rows, &table.budget);
                locked.write(&place, tag, &words, context);
            }
            line::unlock(place.line.control(), place.seen);
            return Ok(());
        }
    }

    /// Something was done about a lease or a request id.
    pub fn deed(&mut self, deed: LeaseNote) {
        let LeaseNote { serial, what } = deed;
        let mut registry = self.state.registry();
        registry.deeds = registry.deeds.max(serial);
        match what {
            LeaseAction::Granted { id, lease, fences } => {
                let number = u64::try_from(id.0 >> 64).expect("64 bits");
                registry.granted_leases = registry.granted_leases.max(number);
                for (generation, fence) in fences {
                    self.state.highest_fence.fetch_max(fence, Ordering::Relaxed);
                    if let Some(table) = self.tables.get(&generation) {
                        table.fence.fetch_max(fence, Ordering::Relaxed);
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
                if until > self.now && !registry.leases.was_settled(id, self.now) {
                    registry.leases.remember_settled(id, until);
                }
            }
            LeaseAction::Remembered { id, grant } => {
                let known = registry.requests.get(&id, Timestamp::EPOCH).map(|known| known.until);
                if known != Some(grant.until) && grant.until > self.now {
                    registry.requests.remember(&id, grant);
                }
            }
        }
    }

    /// The limit of this id, as far as it was read.
    pub fn limit(&self, id: &str) -> Option<Arc<Limit>> {
        let table = self.state.table(id).or_else(|| self.state.retired(id));
        table.map(|table| table.limit())
    }

    /// Every limit that is there, retired ones included.
    pub fn limits(&self) -> impl Iterator<Item = (u64, Arc<Limit>)> {
        self.tables.iter().map(|(generation, table)| (*generation, table.limit()))
    }

    /// The store. From now on changes are told to the journal.
    pub fn finish(mut self, journal: Arc<dyn Journal>) -> Result<MemoryStore, RestoreError> {
        self.settle()?;
        let gone: HashSet<u64> = self
            .leases
            .values()
            .flat_map(|(_, lease)| &lease.holdings)
            .map(|holding| holding.generation)
            .filter(|generation| !self.tables.contains_key(generation))
            .collect();
        let mut registry = self.state.registry();
        for (id, (_, lease)) in &self.leases {
            if lease.expires_at > self.now {
                self.hold(*id, lease)?;
                registry.leases.insert(*id, lease.clone());
            }
        }
        registry.leases.forget(&gone);
        self.state.update_next_lapse(&registry);
        drop(registry);
        for table in self.tables.values() {
            table.budget.bound_rows(table.limit().spec().max_keys);
        }
        for table in self.state.limits().values() {
            table.refresh(self.now);
        }
        // There is none yet: nobody else has had the store.
        let _first = self.state.journal.set(journal);
        Ok(MemoryStore { state: self.state })
    }

    /// Makes rows know what a lease holds of them.
    fn hold(&self, id: LeaseId, lease: &LeaseRecord) -> Result<(), RestoreError> {
        let tenure = LeaseTerm { lease: id, expires_at: lease.expires_at };
        // A row that was dropped with its limit's end does not know of a lease that goes on.
        for holding in lease.holdings.iter().filter(|holding| holding.pins) {
            let Some(table) = self.tables.get(&holding.generation) else { continue };
            let tag = holding.key.as_deref().map(|key| table.printer.print(key));
            let per = if tag.is_none() { Per::All } else { Per::Key };
            self.change(table, tag, |limit, row| {
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
        f.debug_struct("Restore").field("limits", &self.tables.len()).finish_non_exhaustive()
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
