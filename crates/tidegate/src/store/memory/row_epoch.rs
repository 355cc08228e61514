//! Row epochs: the rules under which rows are stored, and the conversion from one epoch to the next.
//!
//! An edit, a reset of a whole limit, or an exhausted time base starts a new epoch. No row is changed then. Each leaf knows
//! the epoch of its rows. The next access under a later epoch converts the rows of the leaf first, as of the start of each
//! epoch. Therefore these operations take the same time for one key and for a million.

use std::sync::Arc;

use hashbrown::HashMap;
use tidegate_core::{Item, Law, Limit, LimitPhase, Mode, Per, Row, RowScope, Rule, State, Timestamp};

use super::cache_line::{PAYLOAD, PRESENT, Tag, WIDE};
use super::cell::Shape;
use super::fingerprint::Printer;
use super::limit_table::NO_TAG;
use super::overflow::{Ring, Shelf};

/// Who has no exceptions.
const NOBODY: RowScope<'static> = RowScope::Key { overrides: &[] };

/// The cell of a row that is about to be decided on for the first time. It is blank, and it is not forgotten.
pub(super) const RESERVED: u64 = PRESENT | WIDE | 1 << 59;

/// Why there is a new edition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Because {
    /// The limit was put.
    Put,
    /// Its counts were zeroed.
    Reset,
    /// Times no longer fitted the cells.
    WornOut,
    /// What was not written down before a crash is taken to have been used.
    Crash,
}

/// What rows are written under.
#[derive(Debug)]
pub(super) struct Edition {
    /// From 1, without gaps.
    pub(super) number: u64,
    /// When it was made.
    pub(super) at: Timestamp,
    pub(super) because: Because,
    pub(super) limit: Arc<Limit>,
    /// Where the refusals of each item are counted.
    pub(super) columns: Box<[usize]>,
    all: Option<Layout>,
    key: Option<Layout>,
    /// The keys with exceptions, by fingerprint.
    exceptions: HashMap<Tag, Box<[u8]>>,
    /// What a key without a row is taken to have used: after a crash nobody knows what was not written down.
    ghost: Option<Row>,
    /// Whether all items are of laws that can be told in brief.
    may_be_brief: bool,
    /// Whose rows it has, if they are alike enough for [the lean way](super::sliding_path).
    lean: Option<Per>,
}

/// How rows of one item are written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    /// The index of the item in its limit.
    pub(super) item: usize,
    pub(super) shape: Shape,
    ring: Option<Ring>,
}

/// What of an edition can be made before it is known when and after which one it comes.
pub(super) struct Draft {
    pub(super) limit: Arc<Limit>,
    columns: Box<[usize]>,
    exceptions: HashMap<Tag, Box<[u8]>>,
    /// What every key is taken to have used, if nobody knows.
    pub(super) ghost: Option<Row>,
}

impl Draft {
    pub(super) fn new(limit: Arc<Limit>, columns: Box<[usize]>, printer: &Printer) -> Draft {
        let keys = limit.spec().overrides.iter().map(|written| written.key.as_slice());
        let exceptions = keys.map(|key| (printer.print(key), key.into())).collect();
        Draft { limit, columns, exceptions, ghost: None }
    }
}

impl Edition {
    pub(super) fn new(
        number: u64,
        at: Timestamp,
        because: Because,
        limit: Arc<Limit>,
        columns: Box<[usize]>,
        printer: &Printer,
    ) -> Edition {
        Edition::of(Draft::new(limit, columns, printer), number, at, because, None)
    }

    pub(super) fn of(
        draft: Draft,
        number: u64,
        at: Timestamp,
        because: Because,
        former: Option<&Edition>,
    ) -> Edition {
        let Draft { limit, columns, exceptions, ghost } = draft;
        let (all, key) = (layout(&limit, Per::All, at), layout(&limit, Per::Key, at));
        let is_long = |item: &Item| matches!(item.rule().law, Law::SlidingWindow(_) | Law::Concurrency(_));
        let may_be_brief = !limit.items().iter().any(is_long);
        let mut edition = Edition {
            number,
            at,
            because,
            limit,
            columns,
            all,
            key,
            exceptions,
            ghost,
            may_be_brief,
            lean: None,
        };
        if let (None, Some(former)) = (&edition.ghost, former)
            && let Some(mut ghost) = former.ghost.clone().filter(|_| because != Because::Reset)
        {
            edition.adopt(former, Per::Key, NO_TAG, &mut ghost);
            edition.ghost = (!ghost.is_evictable(&edition.limit, NOBODY, at)).then_some(ghost);
        }
        edition.lean = edition.may_be_lean();
        edition
    }

    /// Whose rows there are, if the limit is one sliding window without an exception of any kind.
    fn may_be_lean(&self) -> Option<Per> {
        let [item] = self.limit.items() else { return None };
        let is_plain = self.limit.mode() == Mode::Enforce
            && self.limit.is_always_open()
            && self.exceptions.is_empty()
            && self.ghost.is_none();
        (is_plain && matches!(item.rule().law, Law::SlidingWindow(_))).then(|| item.per())
    }

    /// Whose rows there are, if they can be decided on the lean way.
    pub(super) fn lean(&self) -> Option<Per> {
        self.lean
    }

    /// The row of a key that has none.
    pub(super) fn newcomer(&self) -> Row {
        self.ghost.clone().unwrap_or_else(|| Row::blank(&self.limit, Per::Key))
    }

    /// What a key without a row is taken to have used.
    pub(super) fn ghost(&self) -> Option<&Row> {
        self.ghost.as_ref()
    }

    /// Until when a key without a row is taken to have used something; `None` if none is.
    pub(super) fn is_haunted_until(&self, now: Timestamp) -> Option<Timestamp> {
        let ghost = self.ghost.as_ref()?;
        let freshens =
            ghost.evictable_at(&self.limit, NOBODY, now).unwrap_or(Timestamp::from_ticks(u64::MAX));
        (freshens > now).then_some(freshens)
    }

    /// Whether a key's row says nothing that would not be said without it.
    pub(super) fn is_forgettable(&self, row: &Row, seat: RowScope<'_>, now: Timestamp) -> bool {
        row.is_evictable(&self.limit, seat, now) || self.ghost.as_ref().is_some_and(|ghost| ghost == row)
    }

    /// How rows are written, if they have one item.
    pub(super) fn layout(&self, per: Per) -> Option<&Layout> {
        match per {
            Per::All => self.all.as_ref(),
            Per::Key => self.key.as_ref(),
        }
    }

    /// Whether times from `now` on will soon not fit any more.
    pub(super) fn is_worn_out(&self, now: Timestamp) -> bool {
        [&self.all, &self.key].into_iter().flatten().any(|layout| layout.shape.is_worn_out(now))
    }

    /// Whether there can be a brief of it at all.
    pub(super) fn may_be_brief(&self) -> bool {
        self.may_be_brief
    }

    /// Who sits where this tag is.
    pub(super) fn seat(&self, per: Per, tag: Tag) -> RowScope<'_> {
        match per {
            Per::All => RowScope::All,
            Per::Key => {
                let key = if self.exceptions.is_empty() { None } else { self.exceptions.get(&tag) };
                RowScope::from(key.map_or(&[][..], |key| self.limit.overrides(key)))
            }
        }
    }

    fn ring(&self, per: Per) -> Option<Ring> {
        self.layout(per).and_then(|layout| layout.ring)
    }

    fn rule(&self, layout: &Layout) -> &Rule {
        self.limit.items()[layout.item].rule()
    }

    /// Takes the row out that a cell stands for.
    pub(super) fn unpack(&self, per: Per, cell: u64, shelf: &mut Shelf) -> Row {
        let row = self.borrow(per, cell, shelf);
        Edition::let_go(cell, shelf);
        row
    }

    /// Takes the row out that a cell stands for, and keeps its place: what becomes of that is said by [`Edition::repack`],
    /// [`Edition::restore`] or [`Edition::let_go`].
    pub(super) fn borrow(&self, per: Per, cell: u64, shelf: &mut Shelf) -> Row {
        if cell == RESERVED {
            return self.newcomer();
        }
        if cell & WIDE != 0 {
            return shelf.lend(cell, self.ring(per));
        }
        match self.layout(per) {
            Some(layout) if cell & PRESENT != 0 => {
                Row::of(layout.shape.read(self.rule(layout), cell & PAYLOAD))
            }
            _ => Row::blank(&self.limit, per),
        }
    }

    /// Packs a row into a cell, and onto the shelf if it must be.
    pub(super) fn pack(&self, per: Per, tag: Tag, row: Row, shelf: &mut Shelf) -> u64 {
        let layout = self.layout_of(per, tag);
        match self.word(layout, &row) {
            Some(word) => word,
            None => PRESENT | shelf.put(row, layout.and_then(|layout| layout.ring)),
        }
    }

    /// Packs a row that was borrowed when its cell said `cell`: where it was, if it can stay there.
    pub(super) fn repack(&self, per: Per, tag: Tag, cell: u64, row: Row, shelf: &mut Shelf) -> u64 {
        let layout = self.layout_of(per, tag);
        match self.word(layout, &row) {
            Some(word) => {
                Edition::let_go(cell, shelf);
                word
            }
            None if is_shelved(cell) => {
                PRESENT | shelf.put_again(cell, row, layout.and_then(|layout| layout.ring))
            }
            None => PRESENT | shelf.put(row, layout.and_then(|layout| layout.ring)),
        }
    }

    /// Puts a row back that was borrowed and has not changed: its cell goes on saying the same.
    pub(super) fn restore(cell: u64, row: Row, shelf: &mut Shelf) {
        if is_shelved(cell) {
            shelf.give_back(cell, row);
        }
    }

    /// The place of a row that was borrowed is free.
    pub(super) fn let_go(cell: u64, shelf: &mut Shelf) {
        if is_shelved(cell) {
            shelf.let_go(cell);
        }
    }

    /// How the row of a tag is written, if it has one item and no exceptions.
    fn layout_of(&self, per: Per, tag: Tag) -> Option<&Layout> {
        let excepted = per == Per::Key && !self.exceptions.is_empty() && self.exceptions.contains_key(&tag);
        self.layout(per).filter(|_| !excepted)
    }

    /// A row as a cell, if it fits one.
    fn word(&self, layout: Option<&Layout>, row: &Row) -> Option<u64> {
        let (layout, state) = (layout?, row.single_state()?);
        layout.shape.write(self.rule(layout), state).map(|payload| PRESENT | payload)
    }

    /// When the row of a cell can be forgotten; `None` if time alone will not do it.
    pub(super) fn freshens(&self, tag: Tag, cell: u64, shelf: &Shelf, now: Timestamp) -> Option<Timestamp> {
        if cell == RESERVED {
            return None;
        }
        match self.layout(Per::Key) {
            // Keys with exceptions are never in cells.
            Some(layout) if cell & WIDE == 0 => {
                let rule = self.rule(layout);
                let state: State = layout.shape.read(rule, cell & PAYLOAD);
                let empties =
                    if rule.is_evictable(&state, now) { Some(now) } else { rule.empty_at(&state, now) };
                match self.limit.ends_at() {
                    Some(end) => Some(empties.map_or(end, |at| at.min(end))),
                    None => empties,
                }
            }
            _ => {
                let seat = self.seat(Per::Key, tag);
                shelf.look(cell, self.ring(Per::Key), |row| row.evictable_at(&self.limit, seat, now))
            }
        }
    }

    /// Carries a row over from the edition before this one.
    pub(super) fn adopt(&self, former: &Edition, per: Per, tag: Tag, row: &mut Row) {
        match self.because {
            Because::WornOut => {}
            Because::Crash => {
                if let (Per::Key, Some(ghost)) = (per, &self.ghost) {
                    row.merge(ghost, &self.limit, per);
                }
            }
            Because::Reset => row.reset(&self.limit, per),
            Because::Put if former.limit.phase(self.at) == LimitPhase::After => {
                *row = Row::blank(&self.limit, per);
            }
            Because::Put => {
                let (old, new) = (former.seat(per, tag), self.seat(per, tag));
                *row = row.migrate((&former.limit, old), (&self.limit, new), self.at);
            }
        }
    }
}

/// Whether a cell says where its row is on the shelf.
fn is_shelved(cell: u64) -> bool {
    cell & WIDE != 0 && cell != RESERVED
}

/// How rows are written that have one item.
fn layout(limit: &Limit, per: Per, now: Timestamp) -> Option<Layout> {
    let mut items = limit.items().iter().enumerate().filter(|(_, item): &(usize, &Item)| item.per() == per);
    let (index, item) = items.next()?;
    let shape = Shape::of(item.rule(), per, now)?;
    items.next().is_none().then(|| Layout { item: index, shape, ring: Ring::of(item.rule()) })
}
