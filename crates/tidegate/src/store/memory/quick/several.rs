//! Several asks of one limit with one item, one after the other at one instant: what they have in common is read once.
//!
//! Decided: the rules are read before the first and believed for each of them only if they still stand when its row is held, as for one ask
//! alone; after an edit the rest are decided otherwise. Refused: finding all rows first and deciding afterwards, because a key that
//! comes twice must meet its own charge.

#![expect(
    clippy::inline_always,
    reason = "the quick way is one piece of code, a few hundred instructions in all"
)]

use tidegate_core::{Load, Timestamp, Verdict};

use super::super::brief::{AskLaw, CellLaw, Sheet};
use super::super::leaf::{Elsewhere, Near};
use super::super::line::Tag;
use super::super::tenant::Tenant;
use super::single;
use super::{Found, Setback, is_in, not_before};

/// Asks of one limit: as many lines as tags, where they were found.
pub(in super::super) struct Several<'a> {
    pub(in super::super) tenant: &'a Tenant,
    pub(in super::super) tags: &'a [Tag],
    pub(in super::super) nears: &'a [Option<Near<'a>>],
    pub(in super::super) count: u64,
}

/// Decides one that is not that simple, in its turn.
pub(in super::super) type Otherwise<'o, E> = &'o mut dyn FnMut(usize) -> Result<Verdict, E>;

/// Decides them in their order. Says how many were granted here, which the caller counts; ends with the first that cannot be decided.
pub(in super::super) fn decide_several<E>(
    several: &Several<'_>,
    now: Timestamp,
    verdicts: &mut [Verdict],
    otherwise: Otherwise<'_, E>,
) -> (u64, Result<(), E>) {
    let sheet = several.tenant.board.sheet();
    let head = sheet.head();
    if head.has_second() || !head.is_of_key() || !sheet.is_good(now) {
        let mut each = verdicts.iter_mut().enumerate();
        return (0, each.try_for_each(|(index, verdict)| otherwise(index).map(|told| *verdict = told)));
    }
    sheet.first().of_law(Each { several, sheet, now, verdicts, otherwise })
}

/// All of them, by their law.
struct Each<'r, 'a, E> {
    several: &'r Several<'a>,
    sheet: Sheet<'a>,
    now: Timestamp,
    verdicts: &'r mut [Verdict],
    otherwise: Otherwise<'r, E>,
}

impl<E> AskLaw for Each<'_, '_, E> {
    type Answer = (u64, Result<(), E>);

    #[inline(always)]
    fn ask(self, law: &impl CellLaw) -> (u64, Result<(), E>) {
        let Each { several, sheet, now, verdicts, otherwise } = self;
        let &Several { tenant, tags, nears, count } = several;
        let cost = law.short().cost(Load::of(count));
        let mut granted = 0;
        for (index, ((verdict, tag), near)) in verdicts.iter_mut().zip(tags).zip(nears).enumerate() {
            let attempt = find(*near, *tag, sheet, now)
                .and_then(|found| single::settle(law, tenant, sheet, found, cost, now, &mut ()));
            let quick = match attempt {
                Ok(quick) => Some(quick),
                Err(Setback::Again) => single::decide_near_again(tenant, count, *tag, now, &mut ()),
                Err(_) => None,
            };
            *verdict = match quick {
                Some(quick) => {
                    granted += u64::from(quick == Verdict::Granted);
                    quick
                }
                None => match otherwise(index) {
                    Ok(thorough) => thorough,
                    Err(end) => return (granted, Err(end)),
                },
            };
        }
        (granted, Ok(()))
    }
}

/// The row of a key whose line is near.
#[inline(always)]
fn find<'a>(
    near: Option<Near<'a>>,
    tag: Tag,
    sheet: Sheet<'_>,
    now: Timestamp,
) -> Result<Found<'a>, Setback> {
    let near = near.ok_or(Setback::Otherwise)?;
    is_in(&near.leaf.stamp, sheet)?;
    match near.look(tag) {
        Ok(spot) => {
            not_before(near.leaf.stamp.floor(), now)?;
            Ok(Found::of_key(spot))
        }
        Err(Elsewhere::Further) => {
            let spot = near.leaf.find_further(tag).ok_or(Setback::Otherwise)?;
            not_before(near.leaf.stamp.floor(), now)?;
            Ok(Found::of_key(spot))
        }
        Err(Elsewhere::Nowhere) => Err(Setback::Otherwise),
    }
}
