//! One ask of one limit with one item. Most orders are of this form.

#![expect(
    clippy::inline_always,
    reason = "the quick way is one piece of code, a few hundred instructions in all"
)]

use tidegate_core::{AskTotals, Timestamp, Verdict, Wait};

use super::super::cache_line::{self, PAYLOAD, Tag};
use super::super::counters::Mine;
use super::super::leaf::{Leaf, Near, Spot};
use super::super::limit_table::Tenant;
use super::super::rule_snapshot::{AskKind, AskLaw, CellLaw, Head, Sheet, Short};
use super::super::sync::pause;
use super::{Found, Judged, Setback, TRIES, find_all, judge, not_before};

/// One ask of a limit that may have one item only.
pub(in super::super) struct Single<'a> {
    pub(in super::super) tenant: &'a Tenant,
    pub(in super::super) count: u64,
}

/// Sees how the row is after the decision, for whoever tells more than whether and when.
pub(in super::super) trait Witness {
    /// Whether it looks.
    const SEES: bool;
    /// The rules it was judged by, their edition, and what its cell says.
    fn saw(&mut self, short: &Short, edition: u64, payload: u64);
}

/// Nobody wants to know.
impl Witness for () {
    const SEES: bool = false;

    #[inline(always)]
    fn saw(&mut self, _: &Short, _: u64, _: u64) {}
}

/// Decides one ask of a limit with one item that counts all keys together.
pub(in super::super) fn decide_all(
    single: &Single<'_>,
    now: Timestamp,
    witness: &mut impl Witness,
) -> Option<Verdict> {
    again_and_again(|| attempt_all(single, now, witness))
}

/// Decides one ask of a key whose line is near.
#[inline(always)]
pub(in super::super) fn decide_near<'a>(
    single: &Single<'a>,
    tag: Tag,
    near: Option<Near<'a>>,
    now: Timestamp,
    witness: &mut impl Witness,
) -> Option<Verdict> {
    let ask = NearOne { tenant: single.tenant, tag, near: near?, count: single.count, now, witness };
    match single.tenant.board.head().of_kind(ask) {
        Ok(verdict) => Some(verdict),
        Err(Setback::Again) => decide_near_again(single.tenant, single.count, tag, now, witness),
        Err(_) => None,
    }
}

/// One ask of a key whose line is near.
struct NearOne<'r, 'a, W> {
    tenant: &'a Tenant,
    tag: Tag,
    near: Near<'a>,
    count: u64,
    now: Timestamp,
    witness: &'r mut W,
}

impl<W: Witness> AskKind for NearOne<'_, '_, W> {
    type Answer = Result<Verdict, Setback>;

    #[inline(always)]
    fn ask<L: CellLaw>(self) -> Result<Verdict, Setback> {
        let NearOne { tenant, tag, near, count, now, witness } = self;
        attempt::<L>(tenant, tag, near, count, now, witness)
    }
}

/// Tries again to decide one ask of a key, until nobody is faster.
#[cold]
pub(in super::super) fn decide_near_again(
    tenant: &Tenant,
    count: u64,
    tag: Tag,
    now: Timestamp,
    witness: &mut impl Witness,
) -> Option<Verdict> {
    again_and_again(|| {
        let near = tenant.near(tag).ok_or(Setback::Otherwise)?;
        tenant.board.head().of_kind(NearOne { tenant, tag, near, count, now, witness })
    })
}

fn again_and_again(mut attempt: impl FnMut() -> Result<Verdict, Setback>) -> Option<Verdict> {
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

/// Tries to decide one ask of a key whose limit has only an item of this law.
#[inline(always)]
pub(in super::super) fn attempt<L: CellLaw>(
    tenant: &Tenant,
    tag: Tag,
    near: Near<'_>,
    count: u64,
    now: Timestamp,
    witness: &mut impl Witness,
) -> Result<Verdict, Setback> {
    let sheet = tenant.board.sheet();
    let head = sheet.head();
    if !is_judged_by::<L>(near.leaf, sheet, head, now) {
        return Err(Setback::Otherwise);
    }
    let mine = tenant.counts.mine();
    let spot = near.find(tag).ok_or(Setback::Otherwise)?;
    charge_spot::<L>(Sought { mine, sheet, head, leaf: near.leaf, count, now }, spot, witness)
}

/// An ask of a key whose row was found.
#[derive(Clone, Copy)]
pub(in super::super) struct Sought<'a> {
    pub(in super::super) mine: Mine<'a>,
    pub(in super::super) sheet: Sheet<'a>,
    pub(in super::super) head: Head,
    pub(in super::super) leaf: &'a Leaf,
    pub(in super::super) count: u64,
    pub(in super::super) now: Timestamp,
}

/// Whether the rows of a leaf can be judged by what is written of an item of this law.
#[inline(always)]
pub(in super::super) fn is_judged_by<L: CellLaw>(
    leaf: &Leaf,
    sheet: Sheet<'_>,
    head: Head,
    now: Timestamp,
) -> bool {
    head.is_only_of_key() && L::is_of(head) && sheet.is_good(now) && leaf.stamp.edition() == sheet.edition()
}

#[inline(always)]
pub(in super::super) fn charge_spot<L: CellLaw>(
    sought: Sought<'_>,
    spot: Spot<'_>,
    witness: &mut impl Witness,
) -> Result<Verdict, Setback> {
    let Sought { mine, sheet, head, leaf, count, now } = sought;
    not_before(leaf.stamp.floor(), now)?;
    let law = sheet.first_of::<L>(head);
    let cost = law.short().cost(AskTotals::of(count));
    settle(&law, mine, sheet, Found::of_key(spot), cost, now, witness)
}

#[inline(never)]
fn attempt_all(single: &Single<'_>, now: Timestamp, witness: &mut impl Witness) -> Result<Verdict, Setback> {
    let sheet = single.tenant.board.sheet();
    let head = sheet.head();
    if head.has_second() || head.is_of_key() || !sheet.is_good(now) {
        return Err(Setback::Otherwise);
    }
    let found = find_all(single.tenant, sheet, now)?;
    sheet.first().of_law(One { single, sheet, found, now, witness })
}

/// The only item of an ask, with its row.
struct One<'r, 'a, W> {
    single: &'r Single<'a>,
    sheet: Sheet<'a>,
    found: Found<'a>,
    now: Timestamp,
    witness: &'r mut W,
}

impl<W: Witness> AskLaw for One<'_, '_, W> {
    type Answer = Result<Verdict, Setback>;

    #[inline(always)]
    fn ask(self, law: &impl CellLaw) -> Result<Verdict, Setback> {
        let One { single, sheet, found, now, witness } = self;
        let cost = law.short().cost(AskTotals::of(single.count));
        settle(law, single.tenant.counts.mine(), sheet, found, cost, now, witness)
    }
}

/// Judges a row that was found, and charges it if that is granted.
#[inline(always)]
pub(super) fn settle<W: Witness>(
    law: &impl CellLaw,
    mine: Mine<'_>,
    sheet: Sheet<'_>,
    found: Found<'_>,
    cost: u64,
    now: Timestamp,
    witness: &mut W,
) -> Result<Verdict, Setback> {
    // What nobody wants to know is not read; what is read is read before it is seen whether the rules stand.
    let edition = if W::SEES { sheet.edition() } else { 0 };
    let is_as_seen = || found.is_as_seen() && sheet.stands();
    match judge(law, found.word, cost, now)? {
        Judged::Denied(Wait::Until(_)) if law.short().head.ends() => Err(Setback::Otherwise),
        Judged::Denied(wait) => {
            if !is_as_seen() {
                return Err(Setback::Again);
            }
            mine.refused(sheet.head().column(), 1);
            witness.saw(law.short(), edition, found.word & PAYLOAD);
            Ok(Verdict::Denied(wait))
        }
        Judged::Granted(next) => {
            if !found.take() {
                return Err(Setback::Again);
            }
            if !is_as_seen() {
                found.leave();
                return Err(Setback::Again);
            }
            cache_line::give_back(found.cell, next);
            found.open();
            witness.saw(law.short(), edition, next & PAYLOAD);
            Ok(Verdict::Granted)
        }
    }
}
