//! The table of one limit: its rules and rows.

#![expect(clippy::inline_always, reason = "these functions are parts of a decision of 20 ns")]

use std::sync::atomic::AtomicU64 as ProcessCounter;
use std::sync::{Arc, PoisonError};

use tidegate_core::{Item, Law, Limit, Mode, Per, Row, Timestamp, UsageRecord};

use super::counters::Counts;
use super::fingerprint::{Fingerprinter, Secret};
use super::leaf::{HomeLines, Leaf, LeafContext, LockedLeaf, Shortcut};
use super::leaf_header::LeafHeader;
use super::line::{self, NO_TAG, RowWords, Tag, read_words, write_words};
use super::memory_budget::Budget;
use super::row_epoch::{EpochCause, EpochDraft, RowEpoch, RowStore};
use super::rule_snapshot::RuleSnapshot;
use super::shared_rows::SharedRow;
use super::sync::{AtomicU64, Mutex, MutexGuard, OnceLock, Ordering, RwLock, fence};
use crate::store::journal::{Origin, Text};

/// The most epochs that are kept for leaves without access since.
const MOST_EPOCHS: usize = 32;

/// The number of tables that this process has created.
static INSTANCES: ProcessCounter = ProcessCounter::new(0);

/// A limit and its rows.
pub(super) struct LimitTable {
    pub(super) id: Box<str>,
    /// The number of this table among all tables of the process.
    pub(super) instance: u64,
    /// The number of this limit among all limits ever added.
    pub(super) generation: u64,
    pub(super) printer: Fingerprinter,
    pub(super) snapshot: RuleSnapshot,
    pub(super) all: AllRow,
    pub(super) rows: RowStore,
    root: OnceLock<Box<Leaf>>,
    /// The leaves below the first levels, once there are that many.
    shortcut: OnceLock<Shortcut>,
    /// Moves from leaf to leaf in search of evictable rows.
    sweep: AtomicU64,
    /// The latest fence.
    pub(super) fence: AtomicU64,
    pub(super) counts: Counts,
    pub(super) budget: Budget,
    /// 1 if the limit comes from a file.
    applied: AtomicU64,
    /// The number of the present epoch, or [`NO_EPOCH`] while the next one begins.
    present: AtomicU64,
    /// The epochs that rows may be in. The last is the present one.
    epochs: RwLock<Vec<Arc<RowEpoch>>>,
}

/// The next epoch is about to begin.
const NO_EPOCH: u64 = u64::MAX;

/// When the snapshot of a new epoch is written. Until then decisions take the locked path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PublishTime {
    Now,
    /// By the next decision, or by an explicit refresh.
    Later,
}

/// Whether a limit has too many epochs.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EpochCount {
    Few,
    TooMany,
}

/// The row of all keys.
pub(super) struct AllRow {
    pub(super) header: LeafHeader,
    pub(super) place: SharedRow,
    conversion: Mutex<()>,
}

/// The row of all keys with its lock held.
pub(super) struct LockedAll<'a> {
    pub(super) row: &'a AllRow,
    _conversion: MutexGuard<'a, ()>,
}

impl LimitTable {
    pub(super) fn new(
        limit: &Arc<Limit>,
        generation: u64,
        fence: u64,
        secret: Secret,
        store: &Arc<Budget>,
        place: SharedRow,
        now: Timestamp,
    ) -> LimitTable {
        let printer = Fingerprinter::new(secret, generation);
        let budget = Budget::half_of(store);
        budget.bound_rows(limit.spec().max_keys);
        let counts = Counts::new();
        let columns = counts.columns(limit.items().iter().map(Item::name));
        let draft = EpochDraft::new(Arc::clone(limit), columns, &printer);
        let epoch = RowEpoch::of(draft, 1, now, EpochCause::Put, None, place.words());
        let table = LimitTable {
            id: limit.id().into(),
            instance: INSTANCES.fetch_add(1, Ordering::Relaxed),
            generation,
            printer,
            snapshot: RuleSnapshot::new(),
            all: AllRow { header: LeafHeader::new(1), place, conversion: Mutex::new(()) },
            rows: RowStore::new(),
            root: OnceLock::new(),
            shortcut: OnceLock::new(),
            sweep: AtomicU64::new(0),
            fence: AtomicU64::new(fence),
            counts,
            budget,
            applied: AtomicU64::new(0),
            present: AtomicU64::new(1),
            epochs: RwLock::new(vec![Arc::new(epoch)]),
        };
        let epoch = table.epoch();
        let row = Row::blank(limit, Per::All);
        let words = epoch.store_new(Per::All, NO_TAG, row, &table.rows, &table.budget);
        write_words(table.all.place.cells(), &words);
        table.refresh(now);
        table
    }

    /// The present epoch.
    pub(super) fn epoch(&self) -> Arc<RowEpoch> {
        let epochs = self.epochs.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(epochs.last().expect("a limit always has an epoch"))
    }

    /// Whether this is the present epoch, without waiting. A clock that was read before the acquire fence of the caller was
    /// read before the start of the next epoch.
    pub(super) fn is_present(&self, epoch: &RowEpoch) -> bool {
        self.present.load(Ordering::Relaxed) == epoch.number
    }

    /// The epoch of this number, if it is kept.
    pub(super) fn epoch_of(&self, number: u64) -> Option<Arc<RowEpoch>> {
        let epochs = self.epochs.read().unwrap_or_else(PoisonError::into_inner);
        epochs.iter().find(|epoch| epoch.number == number).map(Arc::clone)
    }

    /// The limit as it is.
    pub(super) fn limit(&self) -> Arc<Limit> {
        Arc::clone(&self.epoch().limit)
    }

    pub(super) fn origin(&self) -> Origin {
        if self.applied.load(Ordering::Relaxed) == 0 { Origin::Put } else { Origin::Applied }
    }

    pub(super) fn set_origin(&self, origin: Origin) {
        self.applied.store(u64::from(origin == Origin::Applied), Ordering::Relaxed);
    }

    /// The definition of the limit for a log.
    pub(super) fn text<'a>(&self, limit: &'a Arc<Limit>, at: Timestamp) -> Text<'a> {
        let fence = self.fence.load(Ordering::Relaxed);
        Text { generation: self.generation, limit, at, fence, origin: self.origin() }
    }

    /// What changes of a leaf need to know.
    pub(super) fn context<'a>(&'a self, epoch: &'a RowEpoch, now: Timestamp) -> LeafContext<'a> {
        LeafContext { epoch, rows: &self.rows, budget: &self.budget, now }
    }

    /// The leaf of a tag.
    #[inline(always)]
    pub(super) fn leaf(&self, tag: Tag) -> Option<&Leaf> {
        self.root.get().map(|root| root.descend(tag))
    }

    /// The lines of a tag.
    #[inline(always)]
    pub(super) fn home_lines(&self, tag: Tag) -> Option<HomeLines<'_>> {
        // A list that is written once and never wrong needs no model.
        let shortcut = if cfg!(tidegate_loom) { None } else { self.shortcut.get() };
        let (leaf, bits) = match shortcut {
            Some(shortcut) => shortcut.leaf(tag.low),
            None => (&**self.root.get()?, tag.low),
        };
        leaf.home_lines_below(bits)
    }

    /// The leaf of a tag. Creates the first one.
    pub(super) fn leaf_or_new(&self, tag: Tag) -> &Leaf {
        let first = || {
            self.budget.take_anyway(size_of::<Leaf>());
            let epoch = self.epoch();
            Box::new(Leaf::new(0, epoch.number, epoch.key_shape()))
        };
        let root = self.root.get_or_init(first);
        let leaf = root.descend(tag);
        if !cfg!(tidegate_loom) && Shortcut::reaches(leaf) && self.shortcut.get().is_none() {
            self.add_shortcut(root);
        }
        leaf
    }

    /// Locks the leaf of a tag with its rows in the present epoch.
    pub(super) fn lock_leaf(&self, tag: Tag) -> (LockedLeaf<'_>, Arc<RowEpoch>) {
        loop {
            let mut locked = self.leaf_or_new(tag).lock();
            let epoch = self.epoch();
            self.convert_leaf(&mut locked, &epoch);
            // Its rows may have moved while this thread waited, or when they became wider.
            if !locked.leaf.is_branch() {
                return (locked, epoch);
            }
        }
    }

    #[cold]
    fn add_shortcut(&self, root: &Leaf) {
        if let Some(shortcut) = Shortcut::of(root) {
            self.shortcut.get_or_init(|| {
                self.budget.take_anyway(Shortcut::BYTES);
                shortcut
            });
        }
    }

    /// The first leaf.
    pub(super) fn root(&self) -> Option<&Leaf> {
        self.root.get().map(|root| &**root)
    }

    /// The version of the first epoch that is kept.
    pub(super) fn first_version(&self) -> u32 {
        let epochs = self.epochs.read().unwrap_or_else(PoisonError::into_inner);
        epochs.first().map_or(0, |epoch| epoch.limit.version())
    }

    /// A row of this version of the limit with this usage, converted to the present epoch. `None` if the version is not kept,
    /// or if these are no records of it.
    pub(super) fn converted(
        &self,
        version: u32,
        key: Option<Tag>,
        records: impl IntoIterator<Item = (usize, UsageRecord)>,
    ) -> Option<Row> {
        let epochs = self.epochs.read().unwrap_or_else(PoisonError::into_inner);
        let first = epochs.iter().rposition(|epoch| epoch.limit.version() == version)?;
        let per = if key.is_none() { Per::All } else { Per::Key };
        let mut row = Row::blank(&epochs[first].limit, per);
        for (item, record) in records {
            if !row.merge_usage(&epochs[first].limit, item, record) {
                return None;
            }
        }
        for pair in epochs[first..].windows(2) {
            pair[1].convert(&pair[0], per, key.unwrap_or(NO_TAG), &mut row);
        }
        Some(row)
    }

    /// Visits every leaf that has rows of its own.
    pub(super) fn each_leaf(&self, visit: &mut dyn FnMut(&Leaf)) {
        if let Some(root) = self.root.get() {
            root.each(visit);
        }
    }

    /// Writes the snapshot anew: a window has ended, or begun.
    pub(super) fn refresh(&self, now: Timestamp) {
        let epochs = self.epochs.write().unwrap_or_else(PoisonError::into_inner);
        let present = epochs.last().expect("a limit always has an epoch");
        self.publish_snapshot(present, now);
    }

    /// Writes the snapshot of an epoch. If there are more rows than a lowered bound allows, there is none: then each
    /// evictable row counts as a new key, which only the locked path can tell.
    fn publish_snapshot(&self, epoch: &RowEpoch, now: Timestamp) {
        if self.budget.has_too_many_rows() {
            self.snapshot.clear();
        } else {
            self.snapshot.publish(epoch, now);
        }
    }

    /// Refreshes the snapshot if it is outdated and there can be one.
    pub(super) fn refresh_if_outdated(&self, epoch: &RowEpoch, now: Timestamp) {
        if epoch.fits_snapshot() && !self.budget.has_too_many_rows() && self.snapshot.is_outdated(epoch, now)
        {
            self.refresh(now);
        }
    }

    /// Removes the snapshot, so that the next decision looks whether the limit is still there.
    pub(super) fn retire(&self) {
        let _alone = self.epochs.write().unwrap_or_else(PoisonError::into_inner);
        self.snapshot.clear();
    }

    /// The parts of an epoch that can be prepared before it begins.
    pub(super) fn draft(&self, limit: Arc<Limit>) -> EpochDraft {
        let columns = self.counts.columns(limit.items().iter().map(Item::name));
        EpochDraft::new(limit, columns, &self.printer)
    }

    /// Begins a new epoch. Rows are converted at their next access.
    ///
    /// The clock is read once no decision can begin under the former epoch. So a charge of the former epoch is not later,
    /// and is converted as of then. `before` receives the instant before the first decision of the new epoch.
    pub(super) fn begin_epoch(
        &self,
        draft: EpochDraft,
        cause: EpochCause,
        publish: PublishTime,
        clock: impl Fn() -> Timestamp,
        before: impl FnOnce(Timestamp),
    ) -> EpochCount {
        let mut epochs = self.epochs.write().unwrap_or_else(PoisonError::into_inner);
        let present = epochs.last().expect("a limit always has an epoch");
        self.snapshot.clear();
        self.present.store(NO_EPOCH, Ordering::Relaxed);
        // If the clock or the log panics, the former epoch stays in force.
        let mut in_force = PresentOnDrop { present: &self.present, number: present.number };
        fence(Ordering::SeqCst);
        let now = clock();
        before(now);
        self.budget.bound_rows(draft.limit.spec().max_keys);
        let number = present.number + 1;
        let words = self.all.place.words();
        let epoch = Arc::new(RowEpoch::of(draft, number, now, cause, Some(present), words));
        if publish == PublishTime::Now {
            self.publish_snapshot(&epoch, now);
        }
        epochs.push(epoch);
        in_force.number = number;
        drop(in_force);
        if epochs.len() > MOST_EPOCHS { EpochCount::TooMany } else { EpochCount::Few }
    }

    /// Converts all rows and drops the former epochs if there are too many. No decision waits for all of it.
    pub(super) fn drop_epochs_if(&self, count: EpochCount) {
        if count == EpochCount::TooMany {
            self.drop_epochs();
        }
    }

    /// Converts all rows to the present epoch, one leaf at a time, and drops the epochs before it.
    fn drop_epochs(&self) {
        let present = self.epoch();
        self.all.lock().convert(self, &present);
        self.each_leaf(&mut |leaf| self.convert_leaf(&mut leaf.lock(), &present));
        let mut epochs = self.epochs.write().unwrap_or_else(PoisonError::into_inner);
        // A thread that holds an epoch may be about to report a decision under it or a later one.
        let is_held = |epoch: &Arc<RowEpoch>| Arc::strong_count(epoch) > 1;
        let first = epochs.iter().position(|epoch| epoch.number >= present.number || is_held(epoch));
        epochs.drain(..first.unwrap_or_default());
    }

    /// Converts the rows of a leaf to an epoch, if they are in an earlier one. The leaf may become a branch.
    pub(super) fn convert_leaf(&self, locked: &mut LockedLeaf<'_>, epoch: &Arc<RowEpoch>) {
        let former = locked.leaf.header.epoch();
        if former < epoch.number && !locked.leaf.is_branch() {
            locked.convert(&self.epochs_between(former, epoch.number), &self.rows, &self.budget);
        }
    }

    /// The epochs from one to another.
    pub(super) fn epochs_between(&self, from: u64, to: u64) -> Vec<Arc<RowEpoch>> {
        let epochs = self.epochs.read().unwrap_or_else(PoisonError::into_inner);
        epochs.iter().filter(|epoch| (from..=to).contains(&epoch.number)).map(Arc::clone).collect()
    }

    /// Evicts rows in one more leaf, if its lock is free.
    pub(super) fn sweep(&self, context: LeafContext<'_>) {
        let step = self.sweep.fetch_add(1, Ordering::Relaxed);
        let tag = Tag { low: step.wrapping_mul(0x9e37_79b9_7f4a_7c15), high: 0 };
        if let Some(mut locked) = self.leaf(tag).and_then(Leaf::try_lock)
            && !locked.leaf.is_branch()
            && locked.leaf.header.epoch() == context.epoch.number
        {
            locked.evict_if_due(context);
        }
    }

    /// The memory of the limit, about, in bytes.
    pub(super) fn bytes(&self) -> usize {
        size_of::<LimitTable>() + self.budget.taken()
    }
}

/// Sets the present epoch when it is dropped.
struct PresentOnDrop<'a> {
    present: &'a AtomicU64,
    number: u64,
}

impl Drop for PresentOnDrop<'_> {
    fn drop(&mut self) {
        self.present.store(self.number, Ordering::Relaxed);
    }
}

impl AllRow {
    /// Waits for the row's lock. It orders conversions, not decisions.
    pub(super) fn lock(&self) -> LockedAll<'_> {
        LockedAll { row: self, _conversion: self.conversion.lock().unwrap_or_else(PoisonError::into_inner) }
    }
}

impl LockedAll<'_> {
    /// Converts the row to an epoch, if it is in an earlier one.
    pub(super) fn convert(&mut self, table: &LimitTable, epoch: &Arc<RowEpoch>) {
        let former = self.row.header.epoch();
        if former >= epoch.number {
            return;
        }
        let epochs = table.epochs_between(former, epoch.number);
        let [first, .., last] = epochs.as_slice() else { return };
        self.row.header.lift();
        self.row.header.raise(last.at);
        let (seen, words) = self.lock_row();
        let mut row = first.take(Per::All, &words, &table.rows, &table.budget);
        first.free(Per::All, &words, &table.rows, &table.budget);
        for pair in epochs.windows(2) {
            pair[1].convert(&pair[0], Per::All, NO_TAG, &mut row);
        }
        let words = last.store_new(Per::All, NO_TAG, row, &table.rows, &table.budget);
        self.unlock_row(seen, &words);
        self.row.header.set_epoch(last.number);
    }

    /// Locks the line of the row. Returns its control word and the words of the row.
    pub(super) fn lock_row(&self) -> (u32, RowWords) {
        let seen = line::lock(self.row.place.control());
        (seen, read_words(self.row.place.cells()))
    }

    /// Stores the words of the row and releases its line.
    pub(super) fn unlock_row(&self, seen: u32, words: &RowWords) {
        write_words(self.row.place.cells(), words);
        line::unlock(self.row.place.control(), seen);
    }
}

/// Whether a grant of the limit may come with a lease that the order did not ask for.
pub(super) fn grants_leases(limit: &Limit) -> bool {
    limit.mode() != Mode::Off
        && limit.items().iter().any(|item| matches!(item.rule().law, Law::Concurrency(_)))
}
