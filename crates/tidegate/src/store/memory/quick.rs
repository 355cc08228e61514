//! The quick way: orders over limits whose rows lie in cells, decided without a lock, an allocation or a look at the limit.
//!
//! 1. Every row is found and read; nothing is taken. If anything refuses, that is the answer, and nothing was written.
//! 2. If all agree, every cell is taken, in the order of their addresses, if it still says what was judged. Then all are
//!    charged, and given back.
//!
//! Cells are held for a few instructions and always taken in one order, so nobody waits in a circle. What is not this simple (a
//! row that is not in a cell, a limit with exceptions for the key, rows in an earlier edition) is left to [`super::sitting`], which
//! takes the locks.
//!
//! Threads read the clock before they come here, so a thread may come late with an early time. It is then decided at the latest
//! instant that its rows have seen.

#![expect(
    clippy::inline_always,
    reason = "the quick way is one piece of code, a few hundred instructions in all"
)]

use arrayvec::ArrayVec;
use tidegate_core::{Denial, Intent, Load, Place, Reading, Timestamp, Verdict, Wait};

use super::brief::{AskLaw, CellLaw, Sheet, Short};
use super::counts;
use super::leaf::{Near, Spot};
use super::line::{self, HELD, PAYLOAD, PRESENT, Tag, WIDE};
use super::stamp::Stamp;
use super::sync::pause;
use super::tenant::Tenant;

/// The most rows that are decided on the quick way.
pub(super) const MOST_ROWS: usize = 8;
/// How often an order is tried before the locks are taken.
const TRIES: u32 = if cfg!(tidegate_loom) { 3 } else { 64 };

/// An ask whose limit was found.
#[derive(Clone, Copy)]
pub(super) struct Plea<'a> {
    pub(super) tenant: &'a Tenant,
    pub(super) key: Option<&'a [u8]>,
    /// The key's fingerprint, if it was made before.
    pub(super) tag: Option<Tag>,
    pub(super) count: u64,
}

impl Plea<'_> {
    /// The key's fingerprint.
    #[inline(always)]
    pub(super) fn tag(&self) -> Option<Tag> {
        match (self.tag, self.key) {
            (Some(tag), _) => Some(tag),
            (None, Some(key)) => Some(self.tenant.printer.print(key)),
            (None, None) => None,
        }
    }
}

/// What the quick way came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Quick {
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
pub(super) struct Refused {
    pub(super) denial: Denial,
    column: usize,
    /// Of what binds, and of what refused first.
    pub(super) editions: [u64; 2],
}

/// What is told after the decision of every item: the ask, the edition it was judged in, the item, and what it says.
pub(super) type Reader<'r> = Option<&'r mut dyn FnMut(usize, u64, usize, Reading)>;

/// Why a try came to nothing.
enum Setback {
    /// Somebody was faster.
    Again,
    /// A row has seen this instant already.
    At(Timestamp),
    /// It is not for us.
    Otherwise,
}

/// A row that is asked: by which rules it was judged, where it is, what its cell said, and what it would say after a grant.
#[derive(Clone, Copy)]
struct Stand<'a> {
    sheet: Sheet<'a>,
    spot: Spot<'a>,
    next: u64,
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
pub(super) fn decide(pleas: &[Plea<'_>], intent: Intent, now: Timestamp, reader: &mut Reader<'_>) -> Quick {
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
pub(super) fn are_apart<'a>(tenants: impl ExactSizeIterator<Item = &'a Tenant> + Clone) -> bool {
    let is_first =
        |(ask, tenant): (usize, &Tenant)| !tenants.clone().take(ask).any(|other| std::ptr::eq(other, tenant));
    tenants.len() <= MOST_ROWS && tenants.clone().enumerate().all(is_first)
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
        let stripe = counts::own();
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
        let short = sheet.first();
        if !sheet.is_good(now) {
            return Err(Setback::Otherwise);
        }
        self.ends |= short.ends();
        self.enter_item(ask, plea, sheet, &short, now)?;
        if short.has_second() {
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
        self.enter_item(ask, plea, sheet, &sheet.second(), now)
    }

    #[inline(always)]
    fn enter_item(
        &mut self,
        ask: usize,
        plea: &Plea<'a>,
        sheet: Sheet<'a>,
        short: &Short,
        now: Timestamp,
    ) -> Result<(), Setback> {
        let found = if short.is_of_key() {
            find_key(plea, None, sheet, short, now)?
        } else {
            Some(find_all(plea.tenant, sheet, now)?)
        };
        let Some(spot) = found else {
            return short.of_law(EnterNew { round: self, ask, plea, sheet, short, now });
        };
        short.of_law(Enter { round: self, ask, plea, sheet, short, spot, now })
    }

    #[cold]
    fn note(&mut self, ask: usize, sheet: Sheet<'a>, short: &Short) {
        let ends = if short.ends() { sheet.ends() } else { Timestamp::from_ticks(u64::MAX) };
        self.notes.push(Note { ask, edition: sheet.edition(), short: *short, ends });
    }

    /// Keeps the harshest refusal, the first written of equals.
    #[cold]
    fn deny(&mut self, ask: usize, sheet: Sheet<'a>, short: &Short, wait: Wait) {
        let place = Place { line: ask, item: short.item() };
        let (column, edition) = (short.column(), sheet.edition());
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

    /// Takes every cell if it still says what was judged, charges them all, and gives them back.
    #[inline(always)]
    fn charge(&mut self) -> Result<(), Setback> {
        let (order, stands) = (self.by_address(), self.stands.as_mut_slice());
        let mut taken = 0;
        for &index in &order[..stands.len()] {
            let Spot { cell, word, .. } = stands[index].spot;
            if !line::take(cell, word) {
                break;
            }
            taken += 1;
        }
        let whole = taken == stands.len() && stands.iter().all(Stand::is_as_seen);
        if !whole {
            order[..taken]
                .iter()
                .for_each(|&index| line::give_back(stands[index].spot.cell, stands[index].spot.word));
            return Err(Setback::Again);
        }
        for stand in stands {
            stand.spot.word = stand.next;
            line::give_back(stand.spot.cell, stand.next);
        }
        Ok(())
    }

    /// The stands in the order in which their cells are taken, which is the same for everybody: so one of those who meet gets on.
    #[inline(always)]
    fn by_address(&self) -> [usize; MOST_ROWS] {
        let address = |stand: &Stand<'_>| std::ptr::from_ref(stand.spot.cell);
        if self.stands.is_sorted_by_key(address) {
            return [0, 1, 2, 3, 4, 5, 6, 7];
        }
        let mut order = [0; MOST_ROWS];
        for (index, stand) in self.stands.iter().enumerate() {
            let own = address(stand);
            let before = self.stands.iter().filter(|other| address(other) < own).count();
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
                pleas[refused.denial.binding.line].tenant.counts.refused(refused.column);
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
    fn tell_reader(&self, at: Timestamp, reader: &mut dyn FnMut(usize, u64, usize, Reading)) {
        for (note, stand) in self.notes.iter().zip(&self.stands) {
            let reading = note.short.reading(stand.spot.word & PAYLOAD, note.ends, at);
            reader(note.ask, note.edition, note.short.item(), reading);
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
    spot: Spot<'a>,
    now: Timestamp,
}

impl AskLaw for Enter<'_, '_> {
    type Answer = Result<(), Setback>;

    #[inline(always)]
    fn ask(self, law: &impl CellLaw) -> Result<(), Setback> {
        let Enter { round, ask, plea, sheet, short, spot, now } = self;
        let cost = short.cost(Load::of(plea.count));
        let next = match judge(law, usable(spot.word)?, cost, now) {
            Ok(Judged::Granted(next)) => PRESENT | next,
            Ok(Judged::Denied(wait)) => {
                round.deny(ask, sheet, short, wait);
                spot.word
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
        round.stands.push(Stand { sheet, spot, next });
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
        let cost = short.cost(Load::of(plea.count));
        // A look at what is not there is not for us, nor is the row that nothing is charged to.
        if cost == 0 {
            return Err(Setback::Otherwise);
        }
        if let Judged::Denied(wait) = judge(law, 0, cost, now)? {
            round.deny(ask, sheet, short, wait);
        }
        round.want_rows |= 1 << ask;
        Ok(())
    }
}

enum Judged {
    Granted(u64),
    Denied(Wait),
}

/// Whether a cost fits a payload at an instant, and what the payload is after that.
#[inline(always)]
fn judge(law: &impl CellLaw, payload: u64, cost: u64, now: Timestamp) -> Result<Judged, Setback> {
    let latest = law.latest(payload);
    if latest > now {
        return Err(Setback::At(latest));
    }
    match law.judge(payload, cost, now) {
        Verdict::Denied(wait) => Ok(Judged::Denied(wait)),
        Verdict::Granted => law.charge(payload, cost, now).map(Judged::Granted).ok_or(Setback::Otherwise),
    }
}

/// Finds the row of a key; `None` if it has none.
#[inline(always)]
fn find_key<'a>(
    plea: &Plea<'a>,
    near: Option<Near<'a>>,
    sheet: Sheet<'_>,
    short: &Short,
    now: Timestamp,
) -> Result<Option<Spot<'a>>, Setback> {
    let tag = plea.tag().ok_or(Setback::Otherwise)?;
    if let Some(near) = near.or_else(|| plea.tenant.near(tag)) {
        let stamp = &near.leaf.stamp;
        is_in(stamp, sheet)?;
        if let Some(spot) = near.find(tag) {
            not_before(stamp.floor(), now)?;
            return Ok(Some(spot));
        }
    }
    if short.excepts() { Err(Setback::Otherwise) } else { Ok(None) }
}

/// Finds the row of all keys together.
#[inline(always)]
fn find_all<'a>(tenant: &'a Tenant, sheet: Sheet<'_>, now: Timestamp) -> Result<Spot<'a>, Setback> {
    let all = &tenant.all;
    is_in(&all.stamp, sheet)?;
    let spot = all.spot();
    not_before(all.stamp.floor(), now)?;
    Ok(spot)
}

/// Rows in an earlier edition say something else.
#[inline(always)]
fn is_in(stamp: &Stamp, sheet: Sheet<'_>) -> Result<(), Setback> {
    if stamp.edition() == sheet.edition() { Ok(()) } else { Err(Setback::Otherwise) }
}

/// What is decided is not decided before somebody else's deed.
#[inline(always)]
fn not_before(floor: Timestamp, now: Timestamp) -> Result<(), Setback> {
    if floor > now { Err(Setback::At(floor)) } else { Ok(()) }
}

/// What a cell says of its row, if nobody holds it and it is there.
#[inline(always)]
fn usable(word: u64) -> Result<u64, Setback> {
    if word & (HELD | WIDE) == 0 {
        return Ok(word & PAYLOAD);
    }
    Err(if word & HELD == 0 { Setback::Otherwise } else { Setback::Again })
}

impl Stand<'_> {
    /// Whether the cell that was read, or taken, was the row's, and by its rules. The row was in their edition before; before rows are
    /// carried over to another edition the board turns.
    #[inline(always)]
    fn is_as_seen(&self) -> bool {
        self.spot.line.unchanged(self.spot.seen) && self.sheet.stands()
    }
}

/// What the cell of a new row says after this was charged to it; `None` if it does not fit.
pub(super) fn first_word(short: &Short, count: u64, now: Timestamp) -> Option<u64> {
    short.of_law(First { cost: short.cost(Load::of(count)), now })
}

/// The first charge of a row.
struct First {
    cost: u64,
    now: Timestamp,
}

impl AskLaw for First {
    type Answer = Option<u64>;

    fn ask(self, law: &impl CellLaw) -> Option<u64> {
        match judge(law, 0, self.cost, self.now) {
            Ok(Judged::Granted(next)) => Some(PRESENT | next),
            _ => None,
        }
    }
}

/// Decides one ask of a limit with one item, and says only whether and when. The caller counts what is granted.
#[inline(always)]
pub(super) fn decide_one<'a>(plea: &Plea<'a>, near: Option<Near<'a>>, now: Timestamp) -> Option<Verdict> {
    match attempt_one(plea, near, now) {
        Ok(verdict) => Some(verdict),
        Err(Setback::Again) => decide_one_again(plea, now),
        Err(_) => None,
    }
}

#[cold]
fn decide_one_again(plea: &Plea<'_>, now: Timestamp) -> Option<Verdict> {
    let mut turn = 0;
    for _ in 0..TRIES {
        pause(&mut turn);
        match attempt_one(plea, None, now) {
            Ok(verdict) => return Some(verdict),
            Err(Setback::Again) => {}
            Err(_) => return None,
        }
    }
    None
}

#[inline(always)]
fn attempt_one<'a>(plea: &Plea<'a>, near: Option<Near<'a>>, now: Timestamp) -> Result<Verdict, Setback> {
    let sheet = plea.tenant.board.sheet();
    let short = sheet.first();
    if short.has_second() || !sheet.is_good(now) {
        return Err(Setback::Otherwise);
    }
    if !short.is_of_key() {
        return attempt_all(plea, sheet, now);
    }
    let spot = find_key(plea, near, sheet, &short, now)?.ok_or(Setback::Otherwise)?;
    short.of_law(One { plea, sheet, short: &short, spot, now })
}

#[inline(never)]
fn attempt_all(plea: &Plea<'_>, sheet: Sheet<'_>, now: Timestamp) -> Result<Verdict, Setback> {
    let spot = find_all(plea.tenant, sheet, now)?;
    let short = sheet.first();
    short.of_law(One { plea, sheet, short: &short, spot, now })
}

/// The only item of an ask, with its row.
struct One<'r, 'a> {
    plea: &'r Plea<'a>,
    sheet: Sheet<'r>,
    short: &'r Short,
    spot: Spot<'a>,
    now: Timestamp,
}

impl AskLaw for One<'_, '_> {
    type Answer = Result<Verdict, Setback>;

    #[inline(always)]
    fn ask(self, law: &impl CellLaw) -> Result<Verdict, Setback> {
        let One { plea, sheet, short, spot, now } = self;
        let cost = short.cost(Load::of(plea.count));
        let stand = Stand { sheet, spot, next: 0 };
        match judge(law, usable(spot.word)?, cost, now)? {
            Judged::Denied(Wait::Until(_)) if short.ends() => Err(Setback::Otherwise),
            Judged::Denied(wait) => {
                if !stand.is_as_seen() {
                    return Err(Setback::Again);
                }
                plea.tenant.counts.refused(short.column());
                Ok(Verdict::Denied(wait))
            }
            Judged::Granted(next) => {
                if !line::take(spot.cell, spot.word) {
                    return Err(Setback::Again);
                }
                let own = stand.is_as_seen();
                line::give_back(spot.cell, if own { PRESENT | next } else { spot.word });
                if own { Ok(Verdict::Granted) } else { Err(Setback::Again) }
            }
        }
    }
}
