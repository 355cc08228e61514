//! The quick way: orders over limits whose rows lie in cells, decided without a lock, an allocation or a look at the limit.
//!
//! 1. Every row is found and read; nothing is taken. If anything refuses, that is the answer, and nothing was written.
//! 2. If all agree, every cell is taken, in the order of their addresses, if it still says what was judged. Then all are
//!    charged, and given back.
//!
//! Cells are held for a few instructions and always taken in one order, so nobody waits in a circle. What is not this simple (a
//! row that is not in a cell, a key with no row yet, a limit with exceptions for it, rows in an earlier edition) is left to
//! [`super::sitting`], which takes the locks.
//!
//! Threads read the clock before they come here, so a thread may come late with an early time. It is then decided at the latest
//! instant that its rows have seen.

use tidegate_core::{Decision, Denial, Intent, Load, Place, Reading, Timestamp, Verdict, Wait};

use super::brief::{Brief, Short};
use super::leaf::Leaf;
use super::line::{self, HELD, Line, PAYLOAD, PRESENT, Tag, WIDE};
use super::sync::{AtomicU64, pause};
use super::tenant::Tenant;

/// The most asks that are decided the quick way.
pub(super) const MOST_QUICK_ASKS: usize = 8;
const MOST_ROWS: usize = 2 * MOST_QUICK_ASKS;
/// How often an order is tried without waiting for others to be done.
const TRIES: u32 = 64;

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
    #[inline]
    pub(super) fn tag(&self) -> Option<Tag> {
        self.tag.or_else(|| self.key.map(|key| self.tenant.printer.print(key)))
    }
}

/// What the quick way came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Quick {
    /// Decided, at this instant. Places are (ask, item).
    Decided(Decision, Timestamp),
    /// It would be granted, if the key of this ask had a row.
    NeedsRow { ask: usize },
    /// Not by us.
    Otherwise,
}

/// What is done with the readings after the decision: the ask, the item, and what it said.
pub(super) type Reader<'r> = Option<&'r mut dyn FnMut(usize, usize, Reading)>;

/// A row that is asked.
#[derive(Clone, Copy)]
struct Stand<'a> {
    ask: usize,
    short: Short,
    cost: u64,
    place: Where<'a>,
    /// What its cell said.
    word: u64,
}

/// Where a row is.
#[derive(Clone, Copy)]
enum Where<'a> {
    All(&'a Tenant, u64),
    Key {
        leaf: &'a Leaf,
        line: &'a Line,
        slot: usize,
        tag: Tag,
        seen: u64,
        edition: u64,
    },
    /// Not found.
    Nowhere,
}

/// What one try came to.
enum Try {
    Done(Quick),
    /// Somebody was faster.
    Again,
}

/// The editions that an order was judged in, by ask.
pub(super) type Judged = [u64; MOST_QUICK_ASKS];

/// Decides the pleas of one order together.
#[inline]
pub(super) fn decide(
    pleas: &[Plea<'_>],
    intent: Intent,
    now: Timestamp,
    judged: &mut Judged,
    reader: &mut Reader<'_>,
) -> Quick {
    let mut turn = 0;
    for _ in 0..TRIES {
        let tried = match pleas {
            [plea] => {
                let brief = plea.tenant.board.read();
                judged[0] = brief.as_ref().map_or(0, |brief| brief.edition);
                attempt::<2>(pleas, &[brief], intent, now, reader)
            }
            _ if pleas.len() <= MOST_QUICK_ASKS => {
                let mut briefs = [None; MOST_QUICK_ASKS];
                for ((brief, plea), judged) in briefs.iter_mut().zip(pleas).zip(judged.iter_mut()) {
                    *brief = plea.tenant.board.read();
                    *judged = brief.as_ref().map_or(0, |brief| brief.edition);
                }
                attempt::<MOST_ROWS>(pleas, &briefs, intent, now, reader)
            }
            _ => return Quick::Otherwise,
        };
        match tried {
            Try::Done(quick) => return quick,
            Try::Again => pause(&mut turn),
        }
    }
    Quick::Otherwise
}

#[inline]
fn attempt<const ROWS: usize>(
    pleas: &[Plea<'_>],
    briefs: &[Option<Brief>],
    intent: Intent,
    now: Timestamp,
    reader: &mut Reader<'_>,
) -> Try {
    let mut stands: [Option<Stand<'_>>; ROWS] = [const { None }; ROWS];
    let mut rows = 0;
    let mut at = now;
    for (ask, (plea, brief)) in pleas.iter().zip(briefs).enumerate() {
        let Some(brief) = brief.as_ref().filter(|brief| brief.is_good(now)) else {
            return Try::Done(Quick::Otherwise);
        };
        if pleas[..ask].iter().any(|other| std::ptr::eq(other.tenant, plea.tenant)) {
            return Try::Done(Quick::Otherwise);
        }
        for short in brief.in_order().into_iter().flatten() {
            let of_all = brief.all.as_ref().is_some_and(|all| all.item == short.item);
            let found = if of_all { find_all(plea, brief) } else { find_key(plea, brief) };
            let (place, word) = match found {
                Found::Row(place, word) => (place, word),
                Found::Busy => return Try::Again,
                Found::Otherwise => return Try::Done(Quick::Otherwise),
            };
            at = at.max(short.latest(word & PAYLOAD));
            stands[rows] =
                Some(Stand { ask, short: *short, cost: short.cost(Load::of(plea.count)), place, word });
            rows += 1;
        }
    }
    let good = |brief: &Option<Brief>| brief.as_ref().is_none_or(|brief| brief.is_good(at));
    if at != now && !briefs.iter().all(good) {
        return Try::Done(Quick::Otherwise);
    }
    let stands = &mut stands[..rows];
    if let Some(denial) = judge(stands, at) {
        // A limit that ends may have to take back what its items promise; all of them, unless the first says never.
        let final_word = denial.wait == Wait::Never && denial.binding == denial.first;
        if !final_word && briefs.iter().flatten().any(Brief::ends) {
            return Try::Done(Quick::Otherwise);
        }
        if !all_as_seen(stands) {
            return Try::Again;
        }
        tell(stands, briefs, at, reader);
        return Try::Done(Quick::Decided(Decision::Denied(denial), at));
    }
    if let Some(missing) = stands.iter().flatten().find(|stand| matches!(stand.place, Where::Nowhere)) {
        // That a row was not found is not believed by somebody who only looks.
        let takes = intent == Intent::Acquire && missing.cost > 0;
        let ask = missing.ask;
        return Try::Done(if takes { Quick::NeedsRow { ask } } else { Quick::Otherwise });
    }
    if intent == Intent::Peek {
        if !all_as_seen(stands) {
            return Try::Again;
        }
        tell(stands, briefs, at, reader);
        return Try::Done(Quick::Decided(Decision::Granted, at));
    }
    charge::<ROWS>(stands, briefs, at, reader)
}

/// A row as it was found.
enum Found<'a> {
    Row(Where<'a>, u64),
    Busy,
    Otherwise,
}

#[inline]
fn find_all<'a>(plea: &Plea<'a>, brief: &Brief) -> Found<'a> {
    let all = &plea.tenant.all;
    if all.edition() != brief.edition {
        return Found::Otherwise;
    }
    let word = all.cell.load(super::sync::Ordering::Acquire);
    match word {
        _ if word & HELD != 0 => Found::Busy,
        _ if word & WIDE != 0 => Found::Otherwise,
        _ => Found::Row(Where::All(plea.tenant, brief.edition), word),
    }
}

#[inline]
fn find_key<'a>(plea: &Plea<'a>, brief: &Brief) -> Found<'a> {
    let Some(tag) = plea.tag() else { return Found::Otherwise };
    let nowhere = || if brief.excepts { Found::Otherwise } else { Found::Row(Where::Nowhere, PRESENT) };
    let Some(leaf) = plea.tenant.leaf(tag) else { return nowhere() };
    if leaf.edition() != brief.edition {
        return Found::Otherwise;
    }
    let Some(spot) = leaf.find(tag) else { return nowhere() };
    match spot.cell {
        word if word & HELD != 0 => Found::Busy,
        word if word & WIDE != 0 => Found::Otherwise,
        word => {
            let (line, slot, seen, edition) = (spot.line, spot.slot, spot.seen, brief.edition);
            Found::Row(Where::Key { leaf, line, slot, tag, seen, edition }, word)
        }
    }
}

/// The harshest refusal, the first written of equals.
#[inline]
fn judge(stands: &[Option<Stand<'_>>], at: Timestamp) -> Option<Denial> {
    let mut worst: Option<Denial> = None;
    for stand in stands.iter().flatten() {
        if let Verdict::Denied(wait) = stand.short.judge(stand.word & PAYLOAD, stand.cost, at) {
            let place = Place { line: stand.ask, item: stand.short.item };
            worst = Some(match worst {
                None => Denial { binding: place, wait, first: place },
                Some(worst) if wait > worst.wait => Denial { binding: place, wait, ..worst },
                Some(worst) => worst,
            });
        }
    }
    worst
}

/// Whether everything that was read belonged together, and was in the edition it was read for.
#[inline]
fn all_as_seen(stands: &[Option<Stand<'_>>]) -> bool {
    stands.iter().flatten().all(|stand| match stand.place {
        Where::All(tenant, edition) => {
            super::sync::fence(super::sync::Ordering::Acquire);
            tenant.all.edition() == edition
        }
        Where::Key { leaf, line, seen, edition, .. } => line.unchanged(seen) && leaf.edition() == edition,
        Where::Nowhere => true,
    })
}

/// Takes every cell if it still says what was judged, charges them all, and gives them back.
#[inline]
fn charge<const ROWS: usize>(
    stands: &mut [Option<Stand<'_>>],
    briefs: &[Option<Brief>],
    at: Timestamp,
    reader: &mut Reader<'_>,
) -> Try {
    let mut next = [0; ROWS];
    for (stand, next) in stands.iter().flatten().zip(&mut next) {
        match stand.short.charge(stand.word & PAYLOAD, stand.cost, at) {
            Some(payload) => *next = PRESENT | payload,
            None => return Try::Done(Quick::Otherwise),
        }
    }
    let mut order: [u8; ROWS] = std::array::from_fn(|index| u8::try_from(index).unwrap_or_default());
    let order = &mut order[..stands.len()];
    let cell = |index: u8| stands[usize::from(index)].as_ref().and_then(Stand::cell);
    order.sort_unstable_by_key(|&index| cell(index).map(std::ptr::from_ref));

    let mut taken = 0;
    while let Some(&index) = order.get(taken) {
        let Some(stand) = &stands[usize::from(index)] else { break };
        if !stand.cell().is_some_and(|cell| line::take(cell, stand.word)) {
            break;
        }
        taken += 1;
    }
    let whole = taken == stands.len() && stands.iter().flatten().all(Stand::is_its_own);
    for &index in &order[..taken] {
        let index = usize::from(index);
        if let Some(stand) = &mut stands[index] {
            let word = if whole { next[index] } else { stand.word };
            if let Some(cell) = stand.cell() {
                line::give_back(cell, word);
            }
            stand.word = word;
        }
    }
    if !whole {
        return Try::Again;
    }
    tell(stands, briefs, at, reader);
    Try::Done(Quick::Decided(Decision::Granted, at))
}

impl<'a> Stand<'a> {
    #[inline]
    fn cell(&self) -> Option<&'a AtomicU64> {
        match self.place {
            Where::All(tenant, _) => Some(&tenant.all.cell),
            Where::Key { line, slot, .. } => Some(line.cell(slot)),
            Where::Nowhere => None,
        }
    }

    /// Whether a cell that we hold is that of the row, in the edition that it was judged in.
    #[inline]
    fn is_its_own(&self) -> bool {
        match self.place {
            Where::All(tenant, edition) => tenant.all.edition() == edition,
            Where::Key { leaf, line, slot, tag, edition, .. } => {
                line.tag(slot) == tag && leaf.edition() == edition
            }
            Where::Nowhere => false,
        }
    }
}

/// Tells what every item says, if somebody wants to know.
#[inline]
fn tell(stands: &[Option<Stand<'_>>], briefs: &[Option<Brief>], at: Timestamp, reader: &mut Reader<'_>) {
    if let Some(reader) = reader {
        for stand in stands.iter().flatten() {
            if let Some(brief) = &briefs[stand.ask] {
                reader(stand.ask, stand.short.item, brief.reading(&stand.short, stand.word & PAYLOAD, at));
            }
        }
    }
}
