//! Lock-free path: orders over limits with rows in cells, decided without locks, allocations or access to the limit.
//!
//! 1. Every row is found and read, and none is taken. If an item refuses, that is the reply, and nothing was written.
//! 2. If all items grant, each row is taken if it is unchanged since it was read: a key's row by its cell, `all` rows by
//!    the guard of their [shared line](super::shared_rows). Then all rows are charged and released.
//!
//! A thread that holds rows never waits. If it cannot take all rows, it releases its rows and retries. Threads take rows
//! in the order of their addresses, so one of several competing threads makes progress. Other cases go to
//! [`super::locked_path`]: a row outside a cell, an override for the key, or a row of an earlier epoch.
//!
//! Threads read the clock before this path, so a thread may arrive with an early time. Its order is then decided at the
//! latest instant that its rows have seen.

#![expect(
    clippy::inline_always,
    reason = "the quick way is one piece of code, a few hundred instructions in all"
)]

mod batch;
mod multi;
mod multi_handle;
mod planned_multi;
mod single_order;

use tidegate_core::{AskTotals, Timestamp, Wait};

use super::cache_line::{self, HELD, Line, PRESENT, Tag};
use super::leaf::{Near, Spot};
use super::leaf_header::Stamp;
use super::limit_table::Tenant;
use super::rule_snapshot::{AskLaw, CellLaw, Next, Sheet, Short};
use super::shared_rows;
use super::sync::{AtomicU64, Ordering};

pub(super) use batch::{Several, decide_several};
pub(super) use multi::{Quick, Reader, Refused, Told, are_apart, decide};
pub(super) use multi_handle::{Together, decide_together};
pub(super) use planned_multi::Bundle;
pub(super) use single_order::{
    Single, Sought, Witness, charge_spot, decide_all, decide_near, decide_near_again, is_judged_by,
};

/// The most rows that are decided on the quick way.
pub(super) const MOST_ROWS: usize = 8;
/// How often an order is tried before the locks are taken.
const TRIES: u32 = if cfg!(tidegate_loom) { 2 } else { 64 };

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

/// Why a try came to nothing.
pub(super) enum Setback {
    /// Somebody was faster.
    Again,
    /// A row has seen this instant already.
    At(Timestamp),
    /// It is not for us.
    Otherwise,
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
    line: Option<(&'a Line, u32)>,
}

enum Judged {
    Granted(u64),
    Denied(Wait),
}

/// Whether a cost fits the row of a cell at an instant, and what the cell says after that.
#[inline(always)]
fn judge(law: &impl CellLaw, word: u64, cost: u64, now: Timestamp) -> Result<Judged, Setback> {
    match law.next(word, cost, now) {
        Next::Granted(next) => Ok(Judged::Granted(next)),
        Next::Denied(wait) => Ok(Judged::Denied(wait)),
        Next::At(latest) => Err(Setback::At(latest)),
        Next::Unsaid => Err(if word & HELD == 0 { Setback::Otherwise } else { Setback::Again }),
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
        cache_line::take(self.lock, self.expected)
    }

    /// Gives it back as it was.
    fn leave(&self) {
        cache_line::give_back(self.lock, self.expected);
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
            shared_rows::open(self.lock, self.expected);
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

/// What the cell of a new row says after this was charged to it; `None` if it does not fit.
pub(super) fn first_word(short: &Short, count: u64, now: Timestamp) -> Option<u64> {
    short.of_law(First { cost: short.cost(AskTotals::of(count)), now })
}

/// The first charge of a row.
struct First {
    cost: u64,
    now: Timestamp,
}

impl AskLaw for First {
    type Answer = Option<u64>;

    fn ask(self, law: &impl CellLaw) -> Option<u64> {
        match judge(law, PRESENT, self.cost, self.now) {
            Ok(Judged::Granted(next)) => Some(next),
            _ => None,
        }
    }
}
