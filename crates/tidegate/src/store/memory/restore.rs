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

/// A store during its restore.
pub struct Restore {
    state: Arc<StoreState>,
    now: Timestamp,
    tables: HashMap<u64, Arc<LimitTable>>,
    leases: HashMap<LeaseId, (u64, LeaseRecord)>,
    /// Rows of keys without a place.
    waiting: Waiting,
}

/// The most rows that are placed together.
const MOST_WAITING: usize = 1 << 17;
/// Fewer rows than this are placed by one thread.
const WORTH_A_THREAD: usize = 1 << 12;
/// The most threads that place rows.
const MOST_HANDS: usize = 4;
/// The parts of a table that rows are sorted into.
const PARTS: usize = 1 << PART_BITS;
const PART_BITS: u32 = 6;
/// A table with fewer rows is one part: it has split less often, so rows of one part would crowd in it.
const FEWEST_APART: u64 = 1 << 17;

/// Rows of keys without a place.
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
    /// Adds a row of a table with this many rows.
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

/// A stored definition of a limit.
#[derive(Debug, Clone)]
pub struct StoredLimit {
    /// The generation.
    pub generation: u64,
    /// The version.
    pub version: u32,
    /// The definition.
    pub spec: LimitSpec,
    /// What its items inherit from earlier versions.
    pub descent: Vec<ItemLineage>,
    /// The instant from which it applies.
    pub at: Timestamp,
    /// An upper bound of its fences so far.
    pub fence: u64,
    /// The origin.
    pub origin: Origin,
}

/// Why records do not make a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RestoreError {
    /// An invalid limit.
    Limit {
        /// Its id.
        id: String,
        /// The mistakes.
        flaws: Vec<SpecError>,
    },
    /// A row of an unknown limit or version.
    Stray {
        /// The generation.
        generation: u64,
        /// The version.
        version: u32,
    },
    /// The rows do not fit into memory.
    Crowded {
        /// The limit without room.
        id: String,
        /// The memory for rows in bytes.
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
    /// Whether this program computes the fingerprints of stored rows. If not, no row would be found again.
    pub fn knows_fingerprints() -> bool {
        fingerprint::are_stable()
    }

    /// Creates an empty store.
    pub fn new(clock: impl Clock + 'static, memory: Memory) -> Restore {
        let state = StoreState::new(clock, memory);
        // Rows are stored with their fingerprints.
        let state = Arc::new(StoreState { secret: state.secret.kept(), ..state });
        let now = state.now();
        Restore { state, now, tables: HashMap::new(), leases: HashMap::new(), waiting: Waiting::default() }
    }

    /// The current instant.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Records that this instant was seen. No decision is earlier.
    pub fn saw(&mut self, seen: Timestamp) {
        self.now = self.state.latest(self.state.now().max(seen)).max(self.now);
    }

    /// Raises the counters of limits, leases, actions and fences to at least these.
    pub fn counters(&mut self, counters: &Counters) {
        let raise = |counter: &std::sync::atomic::AtomicU64, to| counter.fetch_max(to, Ordering::Relaxed);
        raise(&self.state.generations, counters.generations);
        raise(&self.state.highest_fence, counters.highest_fence);
        let mut registry = self.state.registry();
        registry.granted_leases = registry.granted_leases.max(counters.granted_leases);
        registry.deeds = registry.deeds.max(counters.deeds);
    }

    /// Adds a limit, its next definition, or a returning limit.
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
        // There may be more rows than a lowered bound allows.
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
        // All epochs are kept until the end, because rows of any of them may come.
        let _crowd = table.begin_epoch(draft, EpochCause::Put, PublishTime::Later, || at, |_| {});
        if was_over {
            let holdings = self.leases.values_mut().flat_map(|(_, lease)| &mut lease.holdings);
            void_holdings(holdings, |id| *id == *table.id);
        }
    }

    /// Removes a limit.
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

    /// Resets a limit, or one key.
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

    /// Creates the leaf of the rows that follow, if they are the first and the budget allows it.
    pub fn leaf(&mut self, generation: u64, spread: Spread) {
        if let Some(table) = self.tables.get(&generation) {
            table.leaf_or_new(NO_TAG);
            table.root().into_iter().for_each(|root| root.make_ready(spread, &table.budget));
        }
    }

    /// Merges the usage of a row. Rows of removed limits are ignored.
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
        // Charged before the first snapshot and stored after it: the snapshot includes it.
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

    /// Places the collected rows, one part of a table after the other, so that each thread stays in one part of memory. Rows are
    /// independent of each other.
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

    /// Adds usage that no record has: each key is assumed to have used at least this much before the crash.
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
            // It was removed, or its retirement is over.
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

    /// Applies an action on a lease or a request id.
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

    /// The limit of this id, as read so far.
    pub fn limit(&self, id: &str) -> Option<Arc<Limit>> {
        let table = self.state.table(id).or_else(|| self.state.retired(id));
        table.map(|table| table.limit())
    }

    /// All limits, including retired ones.
    pub fn limits(&self) -> impl Iterator<Item = (u64, Arc<Limit>)> {
        self.tables.iter().map(|(generation, table)| (*generation, table.limit()))
    }

    /// The restored store. It reports changes to the journal from now on.
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
        // It is set once, because no other thread has had the store.
        let _first = self.state.journal.set(journal);
        Ok(MemoryStore { state: self.state })
    }

    /// Restores the units that a lease holds of its rows.
    fn hold(&self, id: LeaseId, lease: &LeaseRecord) -> Result<(), RestoreError> {
        let tenure = LeaseTerm { lease: id, expires_at: lease.expires_at };
        // The row was dropped when its limit ended, and the lease goes on.
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

/// Numbers that must never be used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// The number of limits ever added.
    pub generations: u64,
    /// The highest fence ever issued.
    pub highest_fence: u64,
    /// The number of leases ever granted.
    pub granted_leases: u64,
    /// The number of recorded actions.
    pub deeds: u64,
}
