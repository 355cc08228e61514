//! The table of one limit: its rules and rows.

#![expect(clippy::inline_always, reason = "these are parts of the quick way, which is one piece of code")]

use std::sync::{Arc, PoisonError};

use tidegate_core::{Item, Law, Limit, Mode, Per, Row, Timestamp, UsageRecord};

use super::cache_line::{self, Tag};
use super::counters::Counts;
use super::fingerprint::{Printer, Secret};
use super::leaf::{Leaf, Means, Near, Owned, Shortcut};
use super::leaf_header::Stamp;
use super::memory_budget::Budget;
use super::overflow::Shelf;
use super::row_epoch::{Because, Draft, Edition};
use super::rule_snapshot::Board;
use super::shared_rows::Place;
use super::sync::{AtomicU64, Mutex, MutexGuard, OnceLock, Ordering, RwLock, fence};
use crate::store::journal::{Origin, Text};

/// How many editions may be remembered for leaves that nobody came to since.
const MOST_EDITIONS: usize = 32;

/// No key has this tag that matters: it stands for all of them.
pub(super) const NO_TAG: Tag = Tag { low: 0, high: 0 };

/// A limit and its rows.
pub(super) struct Tenant {
    pub(super) id: Box<str>,
    /// Which incarnation of its id it is.
    pub(super) generation: u64,
    pub(super) printer: Printer,
    pub(super) board: Board,
    pub(super) all: AllRow,
    root: OnceLock<Box<Leaf>>,
    /// The way past its first levels, once there are that many.
    shortcut: OnceLock<Shortcut>,
    /// Moves from leaf to leaf, looking for fresh rows.
    hand: AtomicU64,
    /// The latest fence it gave.
    pub(super) fence: AtomicU64,
    pub(super) counts: Counts,
    pub(super) budget: Budget,
    /// Whether it was put with others, as files are.
    applied: AtomicU64,
    /// The number of the present edition, or none while there is about to be another.
    present: AtomicU64,
    /// Whose rows it has if they can be decided on the lean way, as somebody thinks who only looks.
    lean: AtomicU64,
    /// The editions that rows may still be in; the last is the present one.
    editions: RwLock<Vec<Arc<Edition>>>,
}

/// There is about to be another edition.
const IN_BETWEEN: u64 = u64::MAX;

const LEAN_ALL: u64 = 1;
const LEAN_KEY: u64 = 2;

fn lean_word(lean: Option<Per>) -> u64 {
    match lean {
        None => 0,
        Some(Per::All) => LEAN_ALL,
        Some(Per::Key) => LEAN_KEY,
    }
}

/// When the brief of a new edition is written. Until it is, everybody is decided on with the locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Brief {
    Now,
    /// By whoever comes, or is told to.
    Later,
}

/// How many editions a limit has.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Crowd {
    Few,
    /// More than may be remembered.
    TooMany,
}

/// The limit's `all` row, found without looking for it.
pub(super) struct AllRow {
    pub(super) stamp: Stamp,
    pub(super) place: Place,
    shelf: Mutex<Shelf>,
}

/// The `all` row with its lock held.
pub(super) struct OwnedAll<'a> {
    pub(super) row: &'a AllRow,
    pub(super) shelf: MutexGuard<'a, Shelf>,
}

impl Tenant {
    pub(super) fn new(
        limit: &Arc<Limit>,
        generation: u64,
        fence: u64,
        secret: Secret,
        whole: &Arc<Budget>,
        place: Place,
        now: Timestamp,
    ) -> Tenant {
        let printer = Printer::new(secret, generation);
        let budget = Budget::half_of(whole);
        budget.bound_rows(limit.spec().max_keys);
        let counts = Counts::new();
        let columns = counts.columns(limit.items().iter().map(Item::name));
        let edition = Edition::new(1, now, Because::Put, Arc::clone(limit), columns, &printer);
        let tenant = Tenant {
            id: limit.id().into(),
            generation,
            printer,
            board: Board::new(place.clone()),
            all: AllRow { stamp: Stamp::new(1), place, shelf: Mutex::new(Shelf::default()) },
            root: OnceLock::new(),
            shortcut: OnceLock::new(),
            hand: AtomicU64::new(0),
            fence: AtomicU64::new(fence),
            counts,
            budget,
            applied: AtomicU64::new(0),
            present: AtomicU64::new(1),
            lean: AtomicU64::new(lean_word(edition.lean())),
            editions: RwLock::new(vec![Arc::new(edition)]),
        };
        tenant.all.own().settle(tenant.edition().as_ref(), Row::blank(limit, Per::All));
        tenant.refresh(now);
        tenant
    }

    /// The present edition.
    pub(super) fn edition(&self) -> Arc<Edition> {
        let editions = self.editions.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(editions.last().expect("there is always one"))
    }

    /// Whether this is the present edition, as somebody sees it who waits for nobody. What was read of the time before [`fence`] was called
    /// was read before the instant of whatever edition comes next.
    pub(super) fn is_present(&self, edition: &Edition) -> bool {
        self.present.load(Ordering::Relaxed) == edition.number
    }

    /// Whose rows it has if they can be decided on the lean way. Before anything is decided it is seen whether that is still so.
    #[inline]
    pub(super) fn lean(&self) -> Option<Per> {
        match self.lean.load(Ordering::Relaxed) {
            LEAN_ALL => Some(Per::All),
            LEAN_KEY => Some(Per::Key),
            _ => None,
        }
    }

    /// The edition of this number, if it is remembered.
    pub(super) fn edition_of(&self, number: u64) -> Option<Arc<Edition>> {
        let editions = self.editions.read().unwrap_or_else(PoisonError::into_inner);
        editions.iter().find(|edition| edition.number == number).map(Arc::clone)
    }

    /// The limit as it is.
    pub(super) fn limit(&self) -> Arc<Limit> {
        Arc::clone(&self.edition().limit)
    }

    /// Whose it is.
    pub(super) fn origin(&self) -> Origin {
        if self.applied.load(Ordering::Relaxed) == 0 { Origin::Put } else { Origin::Applied }
    }

    /// Whose it is from now on.
    pub(super) fn belongs_to(&self, origin: Origin) {
        self.applied.store(u64::from(origin == Origin::Applied), Ordering::Relaxed);
    }

    /// A text of the limit, as whoever keeps a log is told of it.
    pub(super) fn text<'a>(&self, limit: &'a Arc<Limit>, at: Timestamp) -> Text<'a> {
        let fence = self.fence.load(Ordering::Relaxed);
        Text { generation: self.generation, limit, at, fence, origin: self.origin() }
    }

    /// The leaf where a tag belongs.
    #[inline(always)]
    pub(super) fn leaf(&self, tag: Tag) -> Option<&Leaf> {
        self.root.get().map(|root| root.descend(tag))
    }

    /// The line where a tag belongs.
    #[inline(always)]
    pub(super) fn near(&self, tag: Tag) -> Option<Near<'_>> {
        self.near_of(tag.low)
    }

    /// The same by the half of the tag that says so.
    #[inline(always)]
    pub(super) fn near_of(&self, low: u64) -> Option<Near<'_>> {
        // A list that is written once and never wrong is nothing to try every order of.
        let shortcut = if cfg!(tidegate_loom) { None } else { self.shortcut.get() };
        let (leaf, bits) = match shortcut {
            Some(shortcut) => shortcut.leaf(low),
            None => (&**self.root.get()?, low),
        };
        leaf.near_below(bits)
    }

    /// The leaf where a tag belongs, with a first one if there was none.
    pub(super) fn leaf_or_new(&self, tag: Tag) -> &Leaf {
        let first = || {
            self.budget.take_anyway(size_of::<Leaf>());
            Box::new(Leaf::new(0, self.edition().number))
        };
        let root = self.root.get_or_init(first);
        let leaf = root.descend(tag);
        if !cfg!(tidegate_loom) && Shortcut::reaches(leaf) && self.shortcut.get().is_none() {
            self.shorten(root);
        }
        leaf
    }

    /// Makes the shortcut if the table has grown that far.
    #[cold]
    fn shorten(&self, root: &Leaf) {
        if let Some(shortcut) = Shortcut::of(root) {
            self.shortcut.get_or_init(|| {
                self.budget.take_anyway(Shortcut::BYTES);
                shortcut
            });
        }
    }

    /// Where the rows of keys begin.
    pub(super) fn root(&self) -> Option<&Leaf> {
        self.root.get().map(|root| &**root)
    }

    /// The version of the first edition that is remembered.
    pub(super) fn first_version(&self) -> u32 {
        let editions = self.editions.read().unwrap_or_else(PoisonError::into_inner);
        editions.first().map_or(0, |edition| edition.limit.version())
    }

    /// A row of an earlier or the present version of the limit that remembers these traces, carried over to the present edition. `None` if
    /// the version is not remembered, or if these are no traces of it.
    pub(super) fn carried(
        &self,
        version: u32,
        key: Option<Tag>,
        traces: impl IntoIterator<Item = (usize, UsageRecord)>,
    ) -> Option<Row> {
        let editions = self.editions.read().unwrap_or_else(PoisonError::into_inner);
        let first = editions.iter().rposition(|edition| edition.limit.version() == version)?;
        let per = if key.is_none() { Per::All } else { Per::Key };
        let mut row = Row::blank(&editions[first].limit, per);
        for (item, trace) in traces {
            if !row.merge_usage(&editions[first].limit, item, trace) {
                return None;
            }
        }
        for pair in editions[first..].windows(2) {
            pair[1].adopt(&pair[0], per, key.unwrap_or(NO_TAG), &mut row);
        }
        Some(row)
    }

    /// Every leaf that has rows of its own.
    pub(super) fn each_leaf(&self, visit: &mut dyn FnMut(&Leaf)) {
        if let Some(root) = self.root.get() {
            root.each(visit);
        }
    }

    /// Writes the brief anew: a window has ended, or begun.
    pub(super) fn refresh(&self, now: Timestamp) {
        let editions = self.editions.write().unwrap_or_else(PoisonError::into_inner);
        let present = editions.last().expect("there is always one");
        self.show(present, now);
    }

    /// Writes the brief of an edition. Where rows are too many already, every key has to be looked at with the locks: one whose row
    /// is fresh is a new one.
    fn show(&self, edition: &Edition, now: Timestamp) {
        if self.budget.has_too_many_rows() {
            self.board.clear();
        } else {
            self.board.show(edition, now);
        }
    }

    /// Sees to it that the brief is good, if there can be one.
    pub(super) fn keep_brief(&self, edition: &Edition, now: Timestamp) {
        if edition.may_be_brief() && !self.budget.has_too_many_rows() && self.board.is_behind(edition, now) {
            self.refresh(now);
        }
        if edition.is_worn_out(now) {
            self.publish(Arc::clone(&edition.limit), Because::WornOut, || now);
        }
    }

    /// Nobody is to be decided on without looking again whether the limit is there.
    pub(super) fn retire(&self) {
        let _alone = self.editions.write().unwrap_or_else(PoisonError::into_inner);
        self.board.clear();
    }

    /// Makes a new edition, and carries all rows over if there are too many editions.
    pub(super) fn publish(&self, limit: Arc<Limit>, because: Because, clock: impl Fn() -> Timestamp) {
        let draft = self.draft(limit);
        self.catch_up_if(self.announce(draft, because, Brief::Now, clock, |_| {}));
    }

    /// What can be made of an edition before it comes.
    pub(super) fn draft(&self, limit: Arc<Limit>) -> Draft {
        let columns = self.counts.columns(limit.items().iter().map(Item::name));
        Draft::new(limit, columns, &self.printer)
    }

    /// Makes a new edition. Rows follow when somebody comes to them. Its instant is read once nobody can be decided on by the former
    /// edition any more who has not been already: what was charged under that one was charged no later, and is carried over as of then.
    /// `before` is told the instant while nobody has been decided on by the new edition.
    pub(super) fn announce(
        &self,
        draft: Draft,
        because: Because,
        brief: Brief,
        clock: impl Fn() -> Timestamp,
        before: impl FnOnce(Timestamp),
    ) -> Crowd {
        let mut editions = self.editions.write().unwrap_or_else(PoisonError::into_inner);
        let present = editions.last().expect("there is always one");
        if because == Because::WornOut && !present.is_worn_out(clock()) {
            return Crowd::Few;
        }
        self.board.clear();
        self.present.store(IN_BETWEEN, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let now = clock();
        before(now);
        self.budget.bound_rows(draft.limit.spec().max_keys);
        let number = present.number + 1;
        let edition = Arc::new(Edition::of(draft, number, now, because, Some(present)));
        if brief == Brief::Now {
            self.show(&edition, now);
        }
        self.lean.store(lean_word(edition.lean()), Ordering::Relaxed);
        editions.push(edition);
        self.present.store(number, Ordering::Relaxed);
        if editions.len() > MOST_EDITIONS { Crowd::TooMany } else { Crowd::Few }
    }

    /// Forgets editions if there are too many. This goes to every row; nobody has to wait for all of it.
    pub(super) fn catch_up_if(&self, crowd: Crowd) {
        if crowd == Crowd::TooMany {
            self.catch_up();
        }
    }

    /// Carries every row over to the present edition, a leaf at a time, and forgets the editions before it.
    fn catch_up(&self) {
        let present = self.edition();
        self.all.own().adopt(self, &present);
        self.each_leaf(&mut |leaf| self.bring(&mut leaf.own(), &present));
        let mut editions = self.editions.write().unwrap_or_else(PoisonError::into_inner);
        // Whoever holds one may be about to tell what was decided in it, or in one after it. Nobody takes one while we are here.
        let is_held = |edition: &Arc<Edition>| Arc::strong_count(edition) > 1;
        let first = editions.iter().position(|edition| edition.number >= present.number || is_held(edition));
        editions.drain(..first.unwrap_or_default());
    }

    /// Carries the rows of a leaf over to an edition, if they are not in it.
    pub(super) fn bring(&self, owned: &mut Owned<'_>, edition: &Arc<Edition>) {
        if owned.leaf.stamp.edition() < edition.number {
            owned.adopt(&self.since(owned.leaf.stamp.edition(), edition.number));
        }
        if owned.leaf.stamp.edition() == edition.number {
            owned.inner.shelf.is_in(edition);
        }
    }

    /// The editions from one to another.
    pub(super) fn since(&self, from: u64, to: u64) -> Vec<Arc<Edition>> {
        let editions = self.editions.read().unwrap_or_else(PoisonError::into_inner);
        editions.iter().filter(|edition| (from..=to).contains(&edition.number)).map(Arc::clone).collect()
    }

    /// Looks for fresh rows in one leaf more, if nobody is busy there.
    pub(super) fn move_hand(&self, means: Means<'_>) {
        let step = self.hand.fetch_add(1, Ordering::Relaxed);
        let tag = Tag { low: step.wrapping_mul(0x9e37_79b9_7f4a_7c15), high: 0 };
        if let Some(mut owned) = self.leaf(tag).and_then(Leaf::try_own)
            && !owned.leaf.is_branch()
            && owned.leaf.stamp.edition() == means.edition.number
        {
            owned.drop_fresh_if_due(means);
        }
    }

    /// About how many bytes it takes.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Tenant>() + self.budget.taken()
    }
}

impl AllRow {
    /// Its cell.
    #[inline(always)]
    pub(super) fn cell(&self) -> &AtomicU64 {
        self.place.cell()
    }

    /// Waits for the row's lock.
    pub(super) fn own(&self) -> OwnedAll<'_> {
        OwnedAll { row: self, shelf: self.shelf.lock().unwrap_or_else(PoisonError::into_inner) }
    }
}

impl OwnedAll<'_> {
    /// Carries the row over to an edition, if it is not in it.
    pub(super) fn adopt(&mut self, tenant: &Tenant, edition: &Arc<Edition>) {
        let former = self.row.stamp.edition();
        if former < edition.number {
            self.carry(tenant, former, edition);
        }
        if self.row.stamp.edition() == edition.number {
            self.shelf.is_in(edition);
        }
    }

    fn carry(&mut self, tenant: &Tenant, former: u64, edition: &Edition) {
        let editions = tenant.since(former, edition.number);
        let [first, .., last] = editions.as_slice() else { return };
        self.row.stamp.lift();
        self.row.stamp.raise(last.at);
        let word = self.row.place.hold();
        let mut row = first.unpack(Per::All, word, &mut self.shelf);
        for pair in editions.windows(2) {
            pair[1].adopt(&pair[0], Per::All, NO_TAG, &mut row);
        }
        self.shelf.forget_rings();
        self.settle(last, row);
        self.row.stamp.set(last.number);
    }

    /// Writes the row down; its cell is held, or new.
    pub(super) fn settle(&mut self, edition: &Edition, row: Row) {
        let word = edition.pack(Per::All, NO_TAG, row, &mut self.shelf);
        cache_line::give_back(self.row.cell(), word);
    }

    /// Writes a row down that was borrowed when its cell said `word`.
    pub(super) fn settle_again(&mut self, edition: &Edition, word: u64, row: Row) {
        let word = edition.repack(Per::All, NO_TAG, word, row, &mut self.shelf);
        cache_line::give_back(self.row.cell(), word);
    }

    /// Puts a row back that was borrowed when its cell said `word`, and has not changed.
    pub(super) fn leave(&mut self, word: u64, row: Row) {
        Edition::restore(word, row, &mut self.shelf);
        cache_line::give_back(self.row.cell(), word);
    }
}

/// Whether a grant of the limit may come with a lease that nobody asked for.
pub(super) fn holds(limit: &Limit) -> bool {
    limit.mode() != Mode::Off
        && limit.items().iter().any(|item| matches!(item.rule().law, Law::Concurrency(_)))
}
