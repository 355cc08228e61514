//! Orders over several rows: all rows are checked, then charged together or not at all.

#![expect(
    clippy::inline_always,
    reason = "the quick way is one piece of code, a few hundred instructions in all"
)]

use arrayvec::ArrayVec;
use tidegate_core::{AskTotals, Denial, Intent, ItemPosition, Reading, Timestamp, Wait};

use super::super::cache_line::{self, PAYLOAD, PRESENT};
use super::super::counters;
use super::super::limit_table::Tenant;
use super::super::rule_snapshot::{AskLaw, CellLaw, Head, Sheet, Short};
use super::super::sync::pause;
use super::{Found, Judged, MOST_ROWS, Plea, Setback, TRIES, find_all, find_key, is_in, judge, not_before};
use crate::store::journal::ChargeNote;

/// What the quick way came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Quick {
    /// Granted, at this instant.
    Granted(Timestamp),
    /// Refused, at this instant. Places are (ask, item).
    Refused(Refused, Timestamp),
    /// It would be granted, if the key of this ask had a row.
    NeedsRow { ask: usize },
    /// Not by us.
    Otherwise,
}

/// A refusal, where it is counted, and the editions that its places were judged in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Refused {
    pub(in super::super) denial: Denial,
    column: usize,
    /// Of what binds, and of what refused first.
    pub(in super::super) editions: [u64; 2],
}

/// Is told of every item after the decision.
pub(in super::super) type Reader<'r> = Option<&'r mut dyn FnMut(&Told<'_>)>;

/// What there is to tell about an item after the decision.
pub(in super::super) struct Told<'a> {
    /// Which ask it was for.
    pub(in super::super) ask: usize,
    /// The edition it was judged in.
    pub(in super::super) edition: u64,
    pub(in super::super) short: &'a Short,
    /// What its cell says.
    pub(in super::super) payload: u64,
    /// When its limit is over.
    pub(in super::super) ends: Timestamp,
    pub(in super::super) at: Timestamp,
}

impl Told<'_> {
    /// What it says about itself.
    pub(in super::super) fn reading(&self) -> Reading {
        self.short.reading(self.payload, self.ends, self.at)
    }

    /// How it is after the plea was charged to it, if it was.
    pub(in super::super) fn charge(&self, plea: &Plea<'_>, version: u32) -> Option<ChargeNote> {
        if self.short.cost(AskTotals::of(plea.count)) == 0 {
            return None;
        }
        Some(ChargeNote {
            generation: plea.tenant.generation,
            version,
            key: if self.short.head.is_of_key() { plea.tag() } else { None },
            item: self.short.head.item(),
            capacity: self.short.capacity(),
            trace: self.short.trace(self.payload)?,
            at: self.at,
            is_alone: false,
        })
    }
}

/// A row that is asked: by which rules it was judged, where it is, what its cell said, and what it would say after a grant.
#[derive(Clone, Copy)]
struct Stand<'a> {
    sheet: Sheet<'a>,
    found: Found<'a>,
    next: u64,
}

impl Stand<'_> {
    /// Whether the row was seen, or taken, as itself, and by its rules. It was in their edition before; before rows are carried over to
    /// another edition the board turns.
    #[inline(always)]
    fn is_as_seen(&self) -> bool {
        self.found.is_as_seen() && self.sheet.stands()
    }
}

/// What is kept of an item for whoever wants to read it.
struct Note {
    ask: usize,
    edition: u64,
    short: Short,
    ends: Timestamp,
}

/// What is gathered about an order while its rows are found.
struct Round<'a> {
    stands: ArrayVec<Stand<'a>, MOST_ROWS>,
    notes: ArrayVec<Note, MOST_ROWS>,
    denial: Option<Refused>,
    /// The asks of rows that were not found and would be charged, by bits.
    want_rows: u32,
    /// Whether one of the limits ends.
    ends: bool,
    /// Whether somebody wants to read what the items say.
    reads: bool,
}

/// Decides the pleas of one order together. They are of [different](are_apart) limits.
pub(in super::super) fn decide(
    pleas: &[Plea<'_>],
    intent: Intent,
    now: Timestamp,
    reader: &mut Reader<'_>,
) -> Quick {
    let (mut turn, mut at) = (0, now);
    for _ in 0..TRIES {
        match attempt(pleas, intent, at, reader) {
            Ok(quick) => return quick,
            Err(Setback::Otherwise) => return Quick::Otherwise,
            Err(Setback::Again) => pause(&mut turn),
            Err(Setback::At(later)) => at = later,
        }
    }
    Quick::Otherwise
}

/// Whether these are few enough, and no limit among them is asked twice: the second would be judged as if there were no first.
#[inline]
pub(in super::super) fn are_apart<'a, T>(asked: &'a [T], tenant: impl Fn(&'a T) -> &'a Tenant) -> bool {
    let is_first = |(ask, one): (usize, &'a T)| {
        asked[..ask].iter().all(|other| !std::ptr::eq(tenant(other), tenant(one)))
    };
    asked.len() <= MOST_ROWS && asked.iter().enumerate().all(is_first)
}

#[inline(always)]
fn attempt(
    pleas: &[Plea<'_>],
    intent: Intent,
    now: Timestamp,
    reader: &mut Reader<'_>,
) -> Result<Quick, Setback> {
    let mut round = Round::new(reader.is_some());
    for (ask, plea) in pleas.iter().enumerate() {
        round.enter(ask, plea, now)?;
    }
    if round.denial.is_none() && round.want_rows == 0 && intent == Intent::Acquire {
        round.charge()?;
        let stripe = counters::own();
        for plea in pleas {
            plea.tenant.counts.granted_on(stripe, 1);
        }
        round.tell(now, reader);
        return Ok(Quick::Granted(now));
    }
    round.end(pleas, intent, now, reader)
}

impl<'a> Round<'a> {
    #[inline(always)]
    fn new(reads: bool) -> Round<'a> {
        Round {
            stands: ArrayVec::new(),
            notes: ArrayVec::new(),
            denial: None,
            want_rows: 0,
            ends: false,
            reads,
        }
    }

    /// Finds the rows of an ask, judges them, and reckons what they would say after a grant.
    #[inline(always)]
    fn enter(&mut self, ask: usize, plea: &Plea<'a>, now: Timestamp) -> Result<(), Setback> {
        let sheet = plea.tenant.board.sheet();
        let head = sheet.head();
        if !sheet.is_good(now) {
            return Err(Setback::Otherwise);
        }
        self.ends |= head.ends();
        self.enter_item(ask, plea, sheet, head, now, Sheet::first)?;
        if head.has_second() {
            self.enter_second(ask, plea, sheet, now)?;
        }
        Ok(())
    }

    #[inline(never)]
    fn enter_second(
        &mut self,
        ask: usize,
        plea: &Plea<'a>,
        sheet: Sheet<'a>,
        now: Timestamp,
    ) -> Result<(), Setback> {
        self.enter_item(ask, plea, sheet, sheet.second().head, now, Sheet::second)
    }

    #[inline(always)]
    fn enter_item(
        &mut self,
        ask: usize,
        plea: &Plea<'a>,
        sheet: Sheet<'a>,
        head: Head,
        now: Timestamp,
        short: impl Fn(&Sheet<'a>) -> Short,
    ) -> Result<(), Setback> {
        let found = if head.is_of_key() {
            let tag = plea.tag().ok_or(Setback::Otherwise)?;
            match plea.tenant.near(tag) {
                Some(near) => find_key(near, tag, sheet, now)?,
                None => None,
            }
        } else {
            Some(find_all(plea.tenant, sheet, now)?)
        };
        // Only now, so that nobody has to remember it meanwhile.
        let short = &short(&sheet);
        let Some(found) = found else {
            return short.of_law(EnterNew { round: self, ask, plea, sheet, short, now });
        };
        short.of_law(Enter { round: self, ask, plea, sheet, short, found, now })
    }

    #[cold]
    fn note(&mut self, ask: usize, sheet: Sheet<'a>, short: &Short) {
        let ends = if short.head.ends() { sheet.ends() } else { Timestamp::from_ticks(u64::MAX) };
        self.notes.push(Note { ask, edition: sheet.edition(), short: *short, ends });
    }

    /// Keeps the harshest refusal, the first written of equals.
    #[cold]
    fn deny(&mut self, ask: usize, sheet: Sheet<'a>, short: &Short, wait: Wait) {
        let place = ItemPosition { row: ask, item: short.head.item() };
        let (column, edition) = (short.head.column(), sheet.edition());
        match &mut self.denial {
            None => {
                let denial = Denial { binding: place, wait, first: place };
                self.denial = Some(Refused { denial, column, editions: [edition; 2] });
            }
            Some(worst) if wait > worst.denial.wait => {
                (worst.denial.binding, worst.denial.wait) = (place, wait);
                (worst.column, worst.editions[0]) = (column, edition);
            }
            Some(_) => {}
        }
    }

    /// Takes every row if it still says what was judged, charges them all, and gives them back.
    #[inline(always)]
    fn charge(&mut self) -> Result<(), Setback> {
        let order = self.by_address();
        let stands = self.stands.as_mut_slice();
        let mut taken: ArrayVec<usize, MOST_ROWS> = ArrayVec::new();
        let all_taken = order[..stands.len()].iter().all(|&index| {
            let found = &stands[index].found;
            match taken.last().map(|&former| &stands[former].found) {
                // Rows in one place are taken together, if they were seen together.
                Some(former) if std::ptr::eq(former.lock, found.lock) => former.expected == found.expected,
                _ if found.take() => {
                    taken.push(index);
                    true
                }
                _ => false,
            }
        });
        if !all_taken || !stands.iter().all(Stand::is_as_seen) {
            taken.iter().for_each(|&index| stands[index].found.leave());
            return Err(Setback::Again);
        }
        for stand in &mut *stands {
            stand.found.word = stand.next;
            cache_line::give_back(stand.found.cell, stand.next);
        }
        taken.iter().for_each(|&index| stands[index].found.open());
        Ok(())
    }

    /// The stands in the order in which they are taken, which is the same for everybody: so one of those who meet gets on.
    #[inline(always)]
    fn by_address(&self) -> [usize; MOST_ROWS] {
        let address = |stand: &Stand<'_>| std::ptr::from_ref(stand.found.lock);
        let mut order = std::array::from_fn(|index| index);
        if self.stands.is_sorted_by_key(address) {
            return order;
        }
        for (index, stand) in self.stands.iter().enumerate() {
            let own = address(stand);
            let (earlier, later) = self.stands.split_at(index);
            let before = earlier.iter().filter(|other| address(other) <= own).count()
                + later.iter().filter(|other| address(other) < own).count();
            order[before] = index;
        }
        order
    }

    /// What is not simply granted.
    #[inline(never)]
    fn end(
        &self,
        pleas: &[Plea<'a>],
        intent: Intent,
        now: Timestamp,
        reader: &mut Reader<'_>,
    ) -> Result<Quick, Setback> {
        if let Some(refused) = self.denial {
            self.refuse(pleas, &refused.denial, now)?;
            if intent == Intent::Acquire {
                pleas[refused.denial.binding.row].tenant.counts.refused(refused.column);
            }
            self.tell(now, reader);
            return Ok(Quick::Refused(refused, now));
        }
        match intent {
            Intent::Acquire => {
                let ask = usize::try_from(self.want_rows.trailing_zeros()).expect("below 32");
                Ok(Quick::NeedsRow { ask })
            }
            // That a row was not found is not believed by somebody who only looks.
            Intent::Peek if self.want_rows != 0 => Err(Setback::Otherwise),
            Intent::Peek if self.stands.iter().all(Stand::is_as_seen) => {
                self.tell(now, reader);
                Ok(Quick::Granted(now))
            }
            Intent::Peek => Err(Setback::Again),
        }
    }

    /// Whether the refusal can be given as it is.
    fn refuse(&self, pleas: &[Plea<'a>], denial: &Denial, now: Timestamp) -> Result<(), Setback> {
        // A limit that ends may have to take back what its items promise; all of them, unless the first says never.
        let final_word = denial.wait == Wait::Never && denial.binding == denial.first;
        // Nobody has read what is not there.
        if (self.ends && !final_word) || (self.reads && self.want_rows != 0) {
            return Err(Setback::Otherwise);
        }
        if self.want_rows != 0 {
            self.are_without_rows(pleas, now)?;
        }
        if self.stands.iter().all(Stand::is_as_seen) { Ok(()) } else { Err(Setback::Again) }
    }

    /// Whether the rows that were not found are not there: one of them might refuse for longer.
    fn are_without_rows(&self, pleas: &[Plea<'a>], now: Timestamp) -> Result<(), Setback> {
        for (_, plea) in pleas.iter().enumerate().filter(|(ask, _)| self.want_rows >> ask & 1 == 1) {
            let tag = plea.tag().ok_or(Setback::Otherwise)?;
            let sheet = plea.tenant.board.sheet();
            if let Some(leaf) = plea.tenant.leaf(tag) {
                is_in(&leaf.stamp, sheet)?;
                if !leaf.lacks(tag) {
                    return Err(Setback::Otherwise);
                }
                not_before(leaf.stamp.floor(), now)?;
            }
            if !sheet.is_good(now) || !sheet.stands() {
                return Err(Setback::Again);
            }
        }
        Ok(())
    }

    /// Tells what every item says, if somebody wants to know.
    #[inline(always)]
    fn tell(&self, at: Timestamp, reader: &mut Reader<'_>) {
        if let Some(reader) = reader {
            self.tell_reader(at, reader);
        }
    }

    #[inline(never)]
    fn tell_reader(&self, at: Timestamp, reader: &mut dyn FnMut(&Told<'_>)) {
        for (Note { ask, edition, short, ends }, stand) in self.notes.iter().zip(&self.stands) {
            let payload = stand.found.word & PAYLOAD;
            reader(&Told { ask: *ask, edition: *edition, short, payload, ends: *ends, at });
        }
    }
}

/// An item of an ask that enters a round, with its row.
struct Enter<'r, 'a> {
    round: &'r mut Round<'a>,
    ask: usize,
    plea: &'r Plea<'a>,
    sheet: Sheet<'a>,
    short: &'r Short,
    found: Found<'a>,
    now: Timestamp,
}

impl AskLaw for Enter<'_, '_> {
    type Answer = Result<(), Setback>;

    #[inline(always)]
    fn ask(self, law: &impl CellLaw) -> Result<(), Setback> {
        let Enter { round, ask, plea, sheet, short, found, now } = self;
        let cost = short.cost(AskTotals::of(plea.count));
        let next = match judge(law, found.word, cost, now) {
            Ok(Judged::Granted(next)) => next,
            Ok(Judged::Denied(wait)) => {
                round.deny(ask, sheet, short, wait);
                found.word
            }
            Err(Setback::At(_)) if !sheet.stands() => return Err(Setback::Again),
            Err(setback) => return Err(setback),
        };
        if round.stands.is_full() {
            return Err(Setback::Otherwise);
        }
        if round.reads {
            round.note(ask, sheet, short);
        }
        round.stands.push(Stand { sheet, found, next });
        Ok(())
    }
}

/// An item of an ask whose key has no row: it is judged as if it had a blank one.
struct EnterNew<'r, 'a> {
    round: &'r mut Round<'a>,
    ask: usize,
    plea: &'r Plea<'a>,
    sheet: Sheet<'a>,
    short: &'r Short,
    now: Timestamp,
}

impl AskLaw for EnterNew<'_, '_> {
    type Answer = Result<(), Setback>;

    #[inline(never)]
    fn ask(self, law: &impl CellLaw) -> Result<(), Setback> {
        let EnterNew { round, ask, plea, sheet, short, now } = self;
        let cost = short.cost(AskTotals::of(plea.count));
        // A look at what is not there is not for us, nor is the row that nothing is charged to; nor is a key that may be an exception.
        if cost == 0 || short.head.excepts() {
            return Err(Setback::Otherwise);
        }
        if let Judged::Denied(wait) = judge(law, PRESENT, cost, now)? {
            round.deny(ask, sheet, short, wait);
        }
        round.want_rows |= 1 << ask;
        Ok(())
    }
}
