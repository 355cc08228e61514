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

use super::brief::{AskLaw, CellLaw, Head, Sheet, Short};
use super::counts;
use super::gallery;
use super::leaf::{Elsewhere, Near, Spot};
use super::line::{self, HELD, Line, PAYLOAD, PRESENT, Tag, WIDE};
use super::stamp::Stamp;
use super::sync::{AtomicU64, Ordering, pause};
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
    found: Found<'a>,
    next: u64,
}

/// A row that was found.
#[derive(Clone, Copy)]
struct Found<'a> {
    cell: &'a AtomicU64,
    word: u64,
    /// What it is taken by, and what that said: a key's row by its cell, an `all` row by the guard of its place.
    lock: &'a AtomicU64,
    expected: u64,
    /// Where a key's row is, and the version before anybody looked.
    line: Option<(&'a Line, u64)>,
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
        let place = Place { line: ask, item: short.head.item() };
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
        let mut taken: ArrayVec<Found<'_>, MOST_ROWS> = ArrayVec::new();
        let mut whole = true;
        for &index in &order[..stands.len()] {
            let found = stands[index].found;
            // Rows in one place are taken together, if they were seen together.
            whole = match taken.last() {
                Some(former) if std::ptr::eq(former.lock, found.lock) => former.expected == found.expected,
                _ if found.take() => {
                    taken.push(found);
                    true
                }
                _ => false,
            };
            if !whole {
                break;
            }
        }
        if !whole || !stands.iter().all(Stand::is_as_seen) {
            taken.iter().for_each(Found::leave);
            return Err(Setback::Again);
        }
        for stand in stands {
            stand.found.word = stand.next;
            line::give_back(stand.found.cell, stand.next);
        }
        taken.iter().for_each(Found::open);
        Ok(())
    }

    /// The stands in the order in which they are taken, which is the same for everybody: so one of those who meet gets on.
    #[inline(always)]
    fn by_address(&self) -> [usize; MOST_ROWS] {
        let address = |stand: &Stand<'_>| std::ptr::from_ref(stand.found.lock);
        if self.stands.is_sorted_by_key(address) {
            return [0, 1, 2, 3, 4, 5, 6, 7];
        }
        let mut order = [0; MOST_ROWS];
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
            let reading = note.short.reading(stand.found.word & PAYLOAD, note.ends, at);
            reader(note.ask, note.edition, note.short.head.item(), reading);
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
        let cost = short.cost(Load::of(plea.count));
        let next = match judge(law, usable(found.word)?, cost, now) {
            Ok(Judged::Granted(next)) => PRESENT | next,
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
        let cost = short.cost(Load::of(plea.count));
        // A look at what is not there is not for us, nor is the row that nothing is charged to; nor is a key that may be an exception.
        if cost == 0 || short.head.excepts() {
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
    near: Near<'a>,
    tag: Tag,
    sheet: Sheet<'_>,
    now: Timestamp,
) -> Result<Option<Found<'a>>, Setback> {
    let stamp = &near.leaf.stamp;
    is_in(stamp, sheet)?;
    let spot = near.find(tag);
    not_before(stamp.floor(), now)?;
    Ok(spot.map(Found::of_key))
}

/// Finds the row of all keys together.
#[inline(always)]
fn find_all<'a>(tenant: &'a Tenant, sheet: Sheet<'_>, now: Timestamp) -> Result<Found<'a>, Setback> {
    let all = &tenant.all;
    is_in(&all.stamp, sheet)?;
    let lock = all.place.guard();
    let expected = lock.load(Ordering::Acquire);
    if expected & HELD != 0 {
        return Err(Setback::Again);
    }
    let cell = all.place.cell();
    let word = cell.load(Ordering::Acquire);
    not_before(all.stamp.floor(), now)?;
    Ok(Found { cell, word, lock, expected, line: None })
}

impl<'a> Found<'a> {
    #[inline(always)]
    fn of_key(spot: Spot<'a>) -> Found<'a> {
        let Spot { line, cell, word, seen } = spot;
        Found { cell, word, lock: cell, expected: word, line: Some((line, seen)) }
    }

    /// Takes it, if it still says what it said.
    #[inline(always)]
    fn take(&self) -> bool {
        line::take(self.lock, self.expected)
    }

    /// Gives it back as it was.
    fn leave(&self) {
        line::give_back(self.lock, self.expected);
    }

    /// Whether the cell that was read, or taken, was the row's.
    #[inline(always)]
    fn is_as_seen(&self) -> bool {
        self.line.is_none_or(|(line, seen)| line.unchanged(seen))
    }

    /// Opens the guard of a row that was charged. A key's cell is open again when it is written.
    #[inline(always)]
    fn open(&self) {
        if self.line.is_none() {
            gallery::open(self.lock, self.expected);
        }
    }
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
    /// Whether the row was seen, or taken, as itself, and by its rules. It was in their edition before; before rows are carried over to
    /// another edition the board turns.
    #[inline(always)]
    fn is_as_seen(&self) -> bool {
        self.found.is_as_seen() && self.sheet.stands()
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

/// One ask of a limit that may have one item only.
pub(super) struct Single<'a> {
    pub(super) tenant: &'a Tenant,
    pub(super) key: &'a [u8],
    pub(super) count: u64,
}

/// Decides one ask of a limit with one item, and says only whether and when. The caller counts what is granted.
#[inline(always)]
pub(super) fn decide_one(single: &Single<'_>, now: Timestamp) -> Option<Verdict> {
    if !single.tenant.board.sheet().head().is_of_key() {
        return again_and_again(|| attempt_all(single, now));
    }
    let tag = single.tenant.printer.print(single.key);
    decide_near(single, tag, single.tenant.near(tag), now)
}

/// The same for a key whose line is near.
#[inline(always)]
pub(super) fn decide_near<'a>(
    single: &Single<'a>,
    tag: Tag,
    near: Option<Near<'a>>,
    now: Timestamp,
) -> Option<Verdict> {
    match attempt_near(single, tag, near?, now) {
        Ok(verdict) => Some(verdict),
        Err(Setback::Again) => decide_near_again(single, tag, now),
        Err(_) => None,
    }
}

#[cold]
fn decide_near_again(single: &Single<'_>, tag: Tag, now: Timestamp) -> Option<Verdict> {
    again_and_again(|| {
        let near = single.tenant.near(tag).ok_or(Setback::Otherwise)?;
        attempt_near(single, tag, near, now)
    })
}

fn again_and_again(attempt: impl Fn() -> Result<Verdict, Setback>) -> Option<Verdict> {
    let mut turn = 0;
    for _ in 0..TRIES {
        match attempt() {
            Ok(verdict) => return Some(verdict),
            Err(Setback::Again) => pause(&mut turn),
            Err(_) => return None,
        }
    }
    None
}

#[inline(always)]
fn attempt_near(single: &Single<'_>, tag: Tag, near: Near<'_>, now: Timestamp) -> Result<Verdict, Setback> {
    let sheet = single.tenant.board.sheet();
    let head = sheet.head();
    if head.has_second() || !head.is_of_key() || !sheet.is_good(now) {
        return Err(Setback::Otherwise);
    }
    is_in(&near.leaf.stamp, sheet)?;
    match near.look(tag) {
        Ok(spot) => {
            not_before(near.leaf.stamp.floor(), now)?;
            sheet.first().of_law(One { single, sheet, found: Found::of_key(spot), now })
        }
        Err(Elsewhere::Further) => attempt_further(single, tag, near, sheet, now),
        Err(Elsewhere::Nowhere) => Err(Setback::Otherwise),
    }
}

/// The row is not in the line it belongs into.
#[inline(never)]
fn attempt_further<'a>(
    single: &Single<'a>,
    tag: Tag,
    near: Near<'a>,
    sheet: Sheet<'a>,
    now: Timestamp,
) -> Result<Verdict, Setback> {
    let found = find_key(near, tag, sheet, now)?.ok_or(Setback::Otherwise)?;
    sheet.first().of_law(One { single, sheet, found, now })
}

#[inline(never)]
fn attempt_all(single: &Single<'_>, now: Timestamp) -> Result<Verdict, Setback> {
    let sheet = single.tenant.board.sheet();
    let head = sheet.head();
    if head.has_second() || head.is_of_key() || !sheet.is_good(now) {
        return Err(Setback::Otherwise);
    }
    let found = find_all(single.tenant, sheet, now)?;
    sheet.first().of_law(One { single, sheet, found, now })
}

/// The only item of an ask, with its row.
struct One<'r, 'a> {
    single: &'r Single<'a>,
    sheet: Sheet<'a>,
    found: Found<'a>,
    now: Timestamp,
}

impl AskLaw for One<'_, '_> {
    type Answer = Result<Verdict, Setback>;

    #[inline(always)]
    fn ask(self, law: &impl CellLaw) -> Result<Verdict, Setback> {
        let One { single, sheet, found, now } = self;
        let cost = law.short().cost(Load::of(single.count));
        let stand = Stand { sheet, found, next: 0 };
        match judge(law, usable(found.word)?, cost, now)? {
            Judged::Denied(Wait::Until(_)) if law.short().head.ends() => Err(Setback::Otherwise),
            Judged::Denied(wait) => {
                if !stand.is_as_seen() {
                    return Err(Setback::Again);
                }
                single.tenant.counts.refused(law.short().head.column());
                Ok(Verdict::Denied(wait))
            }
            Judged::Granted(next) => {
                if !found.take() {
                    return Err(Setback::Again);
                }
                if !stand.is_as_seen() {
                    found.leave();
                    return Err(Setback::Again);
                }
                line::give_back(found.cell, PRESENT | next);
                found.open();
                Ok(Verdict::Granted)
            }
        }
    }
}
