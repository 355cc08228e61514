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

use super::brief::{AskLaw, Board, Brief, CellLaw, Short};
use super::leaf::Spot;
use super::line::{self, HELD, PAYLOAD, PRESENT, Tag, WIDE};
use super::sync::{AtomicU64, Ordering, fence, pause};
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
        self.tag.or_else(|| self.key.map(|key| self.tenant.printer.print(key)))
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

/// What is told after the decision of every item: the ask, the edition it was judged in, the item, and what it says.
pub(super) type Reader<'r> = Option<&'r mut dyn FnMut(usize, u64, usize, Reading)>;

/// A row that is asked: what its cell said, and what it would say after a grant.
#[derive(Clone, Copy)]
struct Stand<'a> {
    cell: &'a AtomicU64,
    word: u64,
    next: u64,
    /// Where the edition of the row is read, and which it was judged in.
    present: &'a AtomicU64,
    edition: u64,
    /// Where what it was judged by is written, and as of when.
    board: &'a Board,
    turn: u64,
    /// Where a key's row was found.
    spot: Option<(Spot<'a>, Tag)>,
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
    /// The ask of a row that was not found and would be charged.
    wants_row: Option<usize>,
    /// Whether one of the limits ends.
    ends: bool,
}

/// A refusal, where it is counted, and the editions that its places were judged in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) denial: Denial,
    column: usize,
    /// Of what binds, and of what refused first.
    pub(super) editions: [u64; 2],
}

/// Why a try came to nothing.
enum Setback {
    /// Somebody was faster.
    Again,
    /// A row has seen this instant already.
    At(Timestamp),
    /// It is not for us.
    Otherwise,
}

/// Decides the pleas of one order together.
#[inline(always)]
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

fn attempt(
    pleas: &[Plea<'_>],
    intent: Intent,
    now: Timestamp,
    reader: &mut Reader<'_>,
) -> Result<Quick, Setback> {
    let mut round =
        Round { stands: ArrayVec::new(), notes: ArrayVec::new(), denial: None, wants_row: None, ends: false };
    let reads = reader.is_some();
    for (ask, plea) in pleas.iter().enumerate() {
        if pleas[..ask].iter().any(|other| std::ptr::eq(other.tenant, plea.tenant)) {
            return Err(Setback::Otherwise);
        }
        let brief = plea.tenant.board.read().filter(|brief| brief.is_good(now)).ok_or(Setback::Otherwise)?;
        round.ends |= brief.ends();
        round.enter(ask, plea, &brief, &brief.first, now, reads)?;
        if brief.has_second() {
            let second = plea.tenant.board.second(&brief).ok_or(Setback::Again)?;
            round.enter(ask, plea, &brief, &second, now, reads)?;
        }
    }
    if let Some(refused) = round.denial {
        round.refuse(&refused.denial, reads)?;
        if intent == Intent::Acquire {
            pleas[refused.denial.binding.line].tenant.counts.refused(refused.column);
        }
        round.tell(now, reader);
        return Ok(Quick::Refused(refused, now));
    }
    if let Some(ask) = round.wants_row {
        // That a row was not found is not believed by somebody who only looks.
        return if intent == Intent::Acquire { Ok(Quick::NeedsRow { ask }) } else { Err(Setback::Otherwise) };
    }
    match intent {
        Intent::Acquire => {
            round.charge()?;
            for plea in pleas {
                plea.tenant.counts.granted();
            }
        }
        Intent::Peek if round.stands.iter().all(Stand::is_as_seen) => {}
        Intent::Peek => return Err(Setback::Again),
    }
    round.tell(now, reader);
    Ok(Quick::Granted(now))
}

impl<'a> Round<'a> {
    /// Finds the row of one item, judges it, and reckons what it would say after a grant.
    #[inline(always)]
    fn enter(
        &mut self,
        ask: usize,
        plea: &Plea<'a>,
        brief: &Brief,
        short: &Short,
        now: Timestamp,
        reads: bool,
    ) -> Result<(), Setback> {
        let found =
            if short.is_of_key() { find_key(plea, brief, now)? } else { Some(find_all(plea, brief, now)?) };
        let word = found.as_ref().map_or(PRESENT, |stand| stand.word);
        let cost = short.cost(Load::of(plea.count));
        let judged = short.of_law(JudgeAndReckon { payload: usable(word)? & PAYLOAD, cost, now })?;
        let next = match judged {
            Judged::Denied(wait) => {
                let place = Place { line: ask, item: short.item() };
                self.deny(place, wait, short.column(), brief.edition);
                word
            }
            Judged::Granted(next) => PRESENT | next,
        };
        if reads {
            let note = Note { ask, edition: brief.edition, short: *short, ends: brief.ends };
            self.notes.try_push(note).map_err(|_| Setback::Otherwise)?;
        }
        match found {
            Some(stand) => self.stands.try_push(Stand { next, ..stand }).map_err(|_| Setback::Otherwise),
            // A look at what is not there is not for us, nor is the row that nothing is charged to.
            None if cost == 0 => Err(Setback::Otherwise),
            None => {
                self.wants_row = self.wants_row.or(Some(ask));
                Ok(())
            }
        }
    }

    /// Keeps the harshest refusal, the first written of equals.
    #[inline(always)]
    fn deny(&mut self, place: Place, wait: Wait, column: usize, edition: u64) {
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

    /// Whether the refusal can be given as it is.
    #[inline(always)]
    fn refuse(&self, denial: &Denial, reads: bool) -> Result<(), Setback> {
        // A limit that ends may have to take back what its items promise; all of them, unless the first says never.
        let final_word = denial.wait == Wait::Never && denial.binding == denial.first;
        // What is read of a row that was not found is not believed.
        if (self.ends && !final_word) || (reads && self.wants_row.is_some()) {
            return Err(Setback::Otherwise);
        }
        if self.stands.iter().all(Stand::is_as_seen) { Ok(()) } else { Err(Setback::Again) }
    }

    /// Takes every cell if it still says what was judged, charges them all, and gives them back.
    #[inline(always)]
    fn charge(&mut self) -> Result<(), Setback> {
        let order = self.by_address();
        let stands = &mut self.stands;
        let taken = order.iter().take_while(|&&index| stands[usize::from(index)].take()).count();
        let whole = taken == stands.len() && stands.iter().all(Stand::is_its_own);
        for &index in &order[..taken] {
            let stand = &mut stands[usize::from(index)];
            if whole {
                stand.word = stand.next;
            }
            line::give_back(stand.cell, stand.word);
        }
        if whole { Ok(()) } else { Err(Setback::Again) }
    }

    /// The stands in the order in which their cells are taken.
    #[inline(always)]
    fn by_address(&self) -> ArrayVec<u8, MOST_ROWS> {
        let mut order: ArrayVec<u8, MOST_ROWS> = ArrayVec::new();
        let address = |index: u8| std::ptr::from_ref(self.stands[usize::from(index)].cell);
        // A handful, nearly always in order.
        for index in 0..self.stands.len() {
            let mut place = order.len();
            let index = u8::try_from(index).expect("a handful");
            while place > 0 && address(index) < address(order[place - 1]) {
                place -= 1;
            }
            order.insert(place, index);
        }
        order
    }

    /// Tells what every item says, if somebody wants to know.
    #[inline(always)]
    fn tell(&self, at: Timestamp, reader: &mut Reader<'_>) {
        let Some(reader) = reader else { return };
        for (note, stand) in self.notes.iter().zip(&self.stands) {
            let reading = note.short.reading(stand.word & PAYLOAD, note.ends, at);
            reader(note.ask, note.edition, note.short.item(), reading);
        }
    }
}

/// Whether a cost fits a payload at an instant, and what the payload is after that.
struct JudgeAndReckon {
    payload: u64,
    cost: u64,
    now: Timestamp,
}

enum Judged {
    Granted(u64),
    Denied(Wait),
}

impl AskLaw for JudgeAndReckon {
    type Answer = Result<Judged, Setback>;

    #[inline(always)]
    fn ask(self, law: &impl CellLaw) -> Result<Judged, Setback> {
        let JudgeAndReckon { payload, cost, now } = self;
        let latest = law.latest(payload);
        if latest > now {
            return Err(Setback::At(latest));
        }
        match law.judge(payload, cost, now) {
            Verdict::Denied(wait) => Ok(Judged::Denied(wait)),
            Verdict::Granted => law.charge(payload, cost, now).map(Judged::Granted).ok_or(Setback::Otherwise),
        }
    }
}

#[inline(always)]
fn find_all<'a>(plea: &Plea<'a>, brief: &Brief, now: Timestamp) -> Result<Stand<'a>, Setback> {
    let all = &plea.tenant.all;
    let word = all.cell.load(Ordering::Acquire);
    not_before(all.floor(), now)?;
    if all.edition() != brief.edition {
        return Err(Setback::Otherwise);
    }
    Ok(Stand {
        cell: &all.cell,
        word,
        next: word,
        present: all.present(),
        edition: brief.edition,
        board: &plea.tenant.board,
        turn: brief.turn(),
        spot: None,
    })
}

#[inline(always)]
fn find_key<'a>(plea: &Plea<'a>, brief: &Brief, now: Timestamp) -> Result<Option<Stand<'a>>, Setback> {
    let tag = plea.tag().ok_or(Setback::Otherwise)?;
    let nowhere = if brief.excepts() { Err(Setback::Otherwise) } else { Ok(None) };
    let Some(leaf) = plea.tenant.leaf(tag) else { return nowhere };
    let found = leaf.find(tag);
    not_before(leaf.floor(), now)?;
    if leaf.edition() != brief.edition {
        return Err(Setback::Otherwise);
    }
    let Some(spot) = found else { return nowhere };
    let (cell, word) = (spot.line.cell(spot.slot), spot.cell);
    let (present, edition) = (leaf.present(), brief.edition);
    let (board, turn) = (&plea.tenant.board, brief.turn());
    Ok(Some(Stand { cell, word, next: word, present, edition, board, turn, spot: Some((spot, tag)) }))
}

/// What is decided is not decided before somebody else's deed.
#[inline(always)]
fn not_before(floor: Timestamp, now: Timestamp) -> Result<(), Setback> {
    if floor > now { Err(Setback::At(floor)) } else { Ok(()) }
}

/// What a cell says, if it is a row that nobody holds.
#[inline(always)]
fn usable(word: u64) -> Result<u64, Setback> {
    match word {
        _ if word & HELD != 0 => Err(Setback::Again),
        _ if word & WIDE != 0 => Err(Setback::Otherwise),
        _ => Ok(word),
    }
}

impl Stand<'_> {
    #[inline(always)]
    fn take(&self) -> bool {
        line::take(self.cell, self.word)
    }

    /// Whether the row is in the edition it was judged in.
    #[inline(always)]
    fn is_in_edition(&self) -> bool {
        self.present.load(Ordering::Acquire) == self.edition
    }

    /// Whether a cell that we hold is that of the row, in the edition that it was judged in, and nobody has begun another. Who
    /// came after an edit began could be charged later than the edit's own instant, and be carried over as if before it.
    #[inline(always)]
    fn is_its_own(&self) -> bool {
        self.is_in_edition()
            && self.board.is_at(self.turn)
            && self.spot.is_none_or(|(spot, tag)| spot.line.tag(spot.slot) == tag)
    }

    /// Whether what was read belonged together, and was in the edition it was read for.
    #[inline(always)]
    fn is_as_seen(&self) -> bool {
        fence(Ordering::Acquire);
        self.spot.is_none_or(|(spot, _)| spot.line.unchanged(spot.seen)) && self.is_in_edition()
    }
}

/// What the cell of a new row says after this was charged to it; `None` if it does not fit.
pub(super) fn first_word(brief: &Brief, count: u64, now: Timestamp) -> Option<u64> {
    let cost = brief.first.cost(Load::of(count));
    match brief.first.of_law(JudgeAndReckon { payload: 0, cost, now }) {
        Ok(Judged::Granted(next)) => Some(PRESENT | next),
        _ => None,
    }
}

/// Decides one ask of a limit with one item, and says only whether and when.
#[inline(always)]
pub(super) fn decide_one(plea: &Plea<'_>, brief: &Brief, now: Timestamp) -> Option<Verdict> {
    match attempt_one(plea, brief, now) {
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
        match attempt_one(plea, &plea.tenant.board.read()?, now) {
            Ok(verdict) => return Some(verdict),
            Err(Setback::Again) => {}
            Err(_) => return None,
        }
    }
    None
}

#[inline(always)]
fn attempt_one(plea: &Plea<'_>, brief: &Brief, now: Timestamp) -> Result<Verdict, Setback> {
    let tenant = plea.tenant;
    if brief.has_second() || !brief.is_good(now) {
        return Err(Setback::Otherwise);
    }
    let short = &brief.first;
    let stand = if short.is_of_key() {
        find_key(plea, brief, now)?.ok_or(Setback::Otherwise)?
    } else {
        find_all(plea, brief, now)?
    };
    let (cell, word) = (stand.cell, stand.word);
    let cost = short.cost(Load::of(plea.count));
    match short.of_law(JudgeAndReckon { payload: usable(word)? & PAYLOAD, cost, now })? {
        Judged::Denied(Wait::Until(_)) if brief.ends() => Err(Setback::Otherwise),
        Judged::Denied(wait) => {
            if !stand.is_as_seen() {
                return Err(if stand.is_in_edition() { Setback::Again } else { Setback::Otherwise });
            }
            tenant.counts.refused(short.column());
            Ok(Verdict::Denied(wait))
        }
        Judged::Granted(next) => {
            if !line::take(cell, word) {
                return Err(Setback::Again);
            }
            let own = stand.is_its_own();
            line::give_back(cell, if own { PRESENT | next } else { word });
            if !own {
                return Err(if stand.is_in_edition() { Setback::Again } else { Setback::Otherwise });
            }
            tenant.counts.granted();
            Ok(Verdict::Granted)
        }
    }
}
