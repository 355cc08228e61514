//! Batches: several asks of one limit with one item, decided in sequence at one instant. Common data is read once.
//!
//! The home lines of all rows are prefetched together, so their cache misses overlap.
//!
//! The rules are read before the first ask. Each decision uses them only if they are still current while its row is held.
//! After an edit the remaining asks take another path. Consecutive asks of the same key take its row once. Otherwise the
//! row would change hands for each ask, and each ask would wait for the one before.
//!
//! Alternative refused: finding all rows before the first decision. A repeated key must see its own earlier charge.

#![expect(clippy::inline_always, reason = "a part of the quick way, which is one piece of code")]

use tidegate_core::{Amount, AskTotals, Timestamp, Verdict, Wait};

use super::super::LOOK_AHEAD;
use super::super::cache_line::{self, Tag};
use super::super::counters::Mine;
use super::super::leaf::{Elsewhere, Leaf, Near, Spot};
use super::super::limit_table::Tenant;
use super::super::rule_snapshot::{CellLaw, Sheet};
use super::single_order;
use super::{Found, Judged, Setback, judge, not_before};

/// Asks of one limit, at most [`LOOK_AHEAD`].
pub(in super::super) struct Several<'a> {
    pub(in super::super) tenant: &'a Tenant,
    pub(in super::super) keys: &'a [&'a [u8]],
    pub(in super::super) count: Amount,
    pub(in super::super) now: Timestamp,
}

/// Decides one that is not that simple, in its turn.
pub(in super::super) type Otherwise<'o, E> = &'o mut dyn FnMut(usize) -> Result<Verdict, E>;

/// What rows are judged by.
struct Means<'a, L> {
    mine: Mine<'a>,
    sheet: Sheet<'a>,
    law: L,
    cost: Amount,
    now: Timestamp,
}

/// Decides them in their order. Says how many were granted here, which the caller counts; ends with the first that cannot be decided.
///
/// # Panics
/// If there is not a verdict for each key.
#[inline(never)]
pub(in super::super) fn decide_several<L: CellLaw, E>(
    several: &Several<'_>,
    verdicts: &mut [Verdict],
    otherwise: Otherwise<'_, E>,
) -> (u64, Result<(), E>) {
    let &Several { tenant, keys, count, now } = several;
    let mut tags = [Tag::default(); LOOK_AHEAD + 1];
    let mut nears: [Option<Near<'_>>; LOOK_AHEAD] = [None; LOOK_AHEAD];
    for ((tag, near), key) in tags.iter_mut().zip(&mut nears).zip(keys) {
        *tag = tenant.printer.print(key);
        *near = tenant.near(*tag);
        near.iter().for_each(Near::fetch);
    }
    let sheet = tenant.board.sheet();
    let (head, edition) = (sheet.head(), sheet.edition());
    let is_good = head.is_only_of_key() && L::is_of(head) && sheet.is_good(now);
    let law = sheet.first_of::<L>(head);
    let cost = law.short().cost(AskTotals::of(L::count(count)));
    let means = Means { mine: tenant.counts.mine(), sheet, law, cost, now };
    let verdicts = &mut verdicts[..keys.len().min(LOOK_AHEAD)];
    let (mut granted, mut index) = (0_u64, 0);
    while index < verdicts.len() {
        let tag = tags[index];
        let mut alike = 1;
        if let Some(near) = nears[index]
            && is_good
            && near.leaf.stamp.edition() == edition
        {
            let leaf = near.leaf;
            if tags[index + 1].low == tag.low {
                alike += tags[index + 1..verdicts.len()].iter().take_while(|next| **next == tag).count();
            }
            if alike > 1 {
                if let Some(more) = settle_alike(&means, leaf, tag, &mut verdicts[index..index + alike]) {
                    granted += more;
                    index += alike;
                    continue;
                }
            } else {
                let told = match near.look(tag) {
                    Ok(spot) => settle(&means, leaf, spot).ok(),
                    Err(Elsewhere::Further) => settle_further(&means, leaf, tag),
                    Err(_) => None,
                };
                if let Some(told) = told {
                    granted += u64::from(told == Verdict::Granted);
                    verdicts[index] = told;
                    index += 1;
                    continue;
                }
            }
        }
        for _ in 0..alike {
            match otherwise(index) {
                Ok(told) => verdicts[index] = told,
                Err(end) => return (granted, Err(end)),
            }
            index += 1;
        }
    }
    (granted, Ok(()))
}

/// The same for a key whose row is not in the line it belongs into. It is kept apart, so that those that are need not meet it in the middle.
#[inline(never)]
fn settle_further<L: CellLaw>(means: &Means<'_, L>, leaf: &Leaf, tag: Tag) -> Option<Verdict> {
    settle(means, leaf, leaf.find_further(tag)?).ok()
}

#[inline(always)]
fn settle<L: CellLaw>(means: &Means<'_, L>, leaf: &Leaf, spot: Spot<'_>) -> Result<Verdict, Setback> {
    let Means { mine, sheet, law, cost, now } = means;
    not_before(leaf.stamp.floor(), *now)?;
    single_order::settle(law, *mine, *sheet, Found::of_key(spot), *cost, *now, &mut ())
}

/// Asks of one key that follow each other: they are judged one after the other, and their row is taken and charged once. Says how
/// many were granted; `None` if it is not that simple, and then nothing was done.
#[inline(never)]
fn settle_alike<L: CellLaw>(
    means: &Means<'_, L>,
    leaf: &Leaf,
    tag: Tag,
    verdicts: &mut [Verdict],
) -> Option<u64> {
    let &Means { mine, sheet, ref law, cost, now } = means;
    let found = Found::of_key(leaf.find(tag)?);
    not_before(leaf.stamp.floor(), now).ok()?;
    let mut word = found.word;
    let mut granted = 0;
    let mut refusal = None;
    while granted < verdicts.len() && refusal.is_none() {
        match judge(law, word, cost, now).ok()? {
            Judged::Granted(next) => {
                word = next;
                granted += 1;
            }
            Judged::Denied(Wait::Until(_)) if law.short().head.ends() => return None,
            Judged::Denied(wait) => refusal = Some(wait),
        }
    }
    let is_as_seen = || found.is_as_seen() && sheet.stands();
    if granted == 0 {
        if !is_as_seen() {
            return None;
        }
    } else {
        if !found.take() {
            return None;
        }
        if !is_as_seen() {
            found.leave();
            return None;
        }
        cache_line::give_back(found.cell, word);
    }
    // Nothing has changed for those behind the first that was refused.
    let (yes, no) = verdicts.split_at_mut(granted);
    yes.fill(Verdict::Granted);
    if let Some(wait) = refusal {
        mine.refused(sheet.head().column(), no.len() as u64);
        no.fill(Verdict::Denied(wait));
    }
    Some(granted as u64)
}
