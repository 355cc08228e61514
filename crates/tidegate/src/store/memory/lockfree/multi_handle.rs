//! Handles on several limits with one item each: all or nothing, and only the verdict is reported.
//!
//! This is [`super::multi`] without readings: only a grant's writes are kept, and a refusing limit only counts its
//! refusal. All other cases go to `multi` before any change.
//!
//! Rows are taken in the order of addresses as in `multi`, because both compete for the same rows.
//!
//! Alternative refused: a path only for sets whose `all` rows share one guard. Limits that were put at different times
//! would then take the slower path.

#![expect(
    clippy::inline_always,
    reason = "the quick way is one piece of code, a few hundred instructions in all"
)]

use std::sync::Arc;

use arrayvec::ArrayVec;
use tidegate_core::limit::MAX_KEY_BYTES;
use tidegate_core::{AskTotals, Timestamp, Verdict, Wait};

use super::super::cache_line::{self, HELD, Line};
use super::super::counters;
use super::super::limit_table::Tenant;
use super::super::rule_snapshot::{AskKind, CellLaw, Head, Sheet};
use super::super::shared_rows;
use super::super::sync::{AtomicU64, Ordering, pause};
use super::{Found, Judged, MOST_ROWS, Setback, TRIES, find_key, is_in, judge, not_before};

/// Limits that are asked together, none of them twice, for one unit each.
#[derive(Clone, Copy)]
pub(in super::super) struct Together<'a> {
    pub(in super::super) tenants: &'a [Arc<Tenant>],
    /// One for each.
    pub(in super::super) keys: &'a [Option<&'a [u8]>],
}

/// A row that was judged, and what it says after a grant.
struct Judgement<'a> {
    sheet: Sheet<'a>,
    cell: &'a AtomicU64,
    next: u64,
    /// Where a key's row is, and the version before anybody looked.
    line: Option<(&'a Line, u32)>,
}

impl Judgement<'_> {
    #[inline(always)]
    fn is_as_seen(&self) -> bool {
        self.line.is_none_or(|(line, seen)| line.unchanged(seen)) && self.sheet.stands()
    }
}

/// What rows are taken by, and what that said.
#[derive(Clone, Copy)]
struct Lock<'a> {
    word: &'a AtomicU64,
    expected: u64,
    /// Whether it is the guard of `all` rows, and not a key's cell.
    is_guard: bool,
}

/// The harshest refusal, and where it is counted.
#[derive(Clone, Copy)]
struct Refusal {
    wait: Wait,
    limit: usize,
    column: usize,
}

impl Refusal {
    /// The harsher of two, the first of equals.
    #[cold]
    fn harsher(worst: Option<Refusal>, next: Refusal) -> Refusal {
        match worst {
            Some(worst) if worst.wait >= next.wait => worst,
            _ => next,
        }
    }
}

/// Decides; `None` if it is not that simple.
#[inline(always)]
pub(in super::super) fn decide_together(together: Together<'_>, now: Timestamp) -> Option<Verdict> {
    match attempt(together, now) {
        Ok(verdict) => Some(verdict),
        Err(Setback::Otherwise) => None,
        Err(Setback::Again | Setback::At(_)) => decide_again(together, now),
    }
}

#[cold]
#[inline(never)]
fn decide_again(together: Together<'_>, now: Timestamp) -> Option<Verdict> {
    let (mut turn, mut at) = (0, now);
    for _ in 0..TRIES {
        match attempt(together, at) {
            Ok(verdict) => return Some(verdict),
            Err(Setback::Again) => pause(&mut turn),
            Err(Setback::At(later)) => at = later,
            Err(Setback::Otherwise) => return None,
        }
    }
    None
}

#[inline(never)]
fn attempt(Together { tenants, keys }: Together<'_>, now: Timestamp) -> Result<Verdict, Setback> {
    let mut rows: ArrayVec<Judgement<'_>, MOST_ROWS> = ArrayVec::new();
    let mut locks: ArrayVec<Lock<'_>, MOST_ROWS> = ArrayVec::new();
    let mut refusal: Option<Refusal> = None;
    for (tenant, key) in tenants.iter().zip(keys) {
        let sheet = tenant.board.sheet();
        let head = sheet.head();
        if head.has_second() || !sheet.is_good(now) || key.is_some_and(|key| key.len() > MAX_KEY_BYTES) {
            return Err(Setback::Otherwise);
        }
        let (cell, word, line) = if head.is_of_key() {
            let tag = tenant.printer.print(key.ok_or(Setback::Otherwise)?);
            let near = tenant.near(tag).ok_or(Setback::Otherwise)?;
            let Found { cell, word, line, .. } =
                find_key(near, tag, sheet, now)?.ok_or(Setback::Otherwise)?;
            locks.push(Lock { word: cell, expected: word, is_guard: false });
            (cell, word, line)
        } else {
            let all = &tenant.all;
            is_in(&all.stamp, sheet)?;
            let guard = all.place.guard();
            // What a guard said before its first row was looked at holds for all of its rows.
            if locks.iter().all(|lock| !std::ptr::eq(lock.word, guard)) {
                let expected = guard.load(Ordering::Acquire);
                if expected & HELD != 0 {
                    return Err(Setback::Again);
                }
                locks.push(Lock { word: guard, expected, is_guard: true });
            }
            let cell = all.place.cell();
            let word = cell.load(Ordering::Acquire);
            not_before(all.stamp.floor(), now)?;
            (cell, word, None)
        };
        let next = match head.of_kind(Judge { sheet, head, word, now }) {
            Ok(Judged::Granted(next)) => next,
            Ok(Judged::Denied(wait)) => {
                // A limit that ends may have to take back what its item promises.
                if head.ends() {
                    return Err(Setback::Otherwise);
                }
                refusal = Some(Refusal::harsher(
                    refusal,
                    Refusal { wait, limit: rows.len(), column: head.column() },
                ));
                word
            }
            // An instant that was reckoned by words of two briefs is none.
            Err(Setback::At(_)) if !sheet.stands() => return Err(Setback::Again),
            Err(setback) => return Err(setback),
        };
        rows.push(Judgement { sheet, cell, next, line });
    }
    if let Some(Refusal { wait, limit, column }) = refusal {
        return if rows.iter().all(Judgement::is_as_seen) {
            tenants[limit].counts.refused(column);
            Ok(Verdict::Denied(wait))
        } else {
            Err(Setback::Again)
        };
    }
    charge(&rows, &mut locks)?;
    let stripe = counters::own();
    for tenant in tenants {
        tenant.counts.granted_on(stripe, 1);
    }
    Ok(Verdict::Granted)
}

/// Takes every row if it still says what was judged, charges them all, and gives them back.
#[inline(always)]
fn charge(rows: &[Judgement<'_>], locks: &mut [Lock<'_>]) -> Result<(), Setback> {
    // In the order in which everybody takes them: so one of those who meet gets on.
    if let [first, second] = locks {
        if std::ptr::from_ref(first.word) > std::ptr::from_ref(second.word) {
            std::mem::swap(first, second);
        }
    } else {
        locks.sort_unstable_by_key(|lock| std::ptr::from_ref(lock.word));
    }
    let taken = locks.iter().take_while(|lock| cache_line::take(lock.word, lock.expected)).count();
    if taken < locks.len() || !rows.iter().all(Judgement::is_as_seen) {
        locks[..taken].iter().for_each(|lock| cache_line::give_back(lock.word, lock.expected));
        return Err(Setback::Again);
    }
    for row in rows {
        cache_line::give_back(row.cell, row.next);
    }
    for lock in locks.iter().filter(|lock| lock.is_guard) {
        shared_rows::open(lock.word, lock.expected);
    }
    Ok(())
}

/// Judges a row by the only item of its limit.
struct Judge<'a> {
    sheet: Sheet<'a>,
    head: Head,
    word: u64,
    now: Timestamp,
}

impl AskKind for Judge<'_> {
    type Answer = Result<Judged, Setback>;

    #[inline(always)]
    fn ask<L: CellLaw>(self) -> Result<Judged, Setback> {
        let Judge { sheet, head, word, now } = self;
        let law = sheet.first_of::<L>(head);
        let cost = law.short().cost(AskTotals::of(1));
        judge(&law, word, cost, now)
    }
}
