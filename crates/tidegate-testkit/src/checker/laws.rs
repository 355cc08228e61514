//! The bound of one item for one key, policy by policy.
//!
//! Each bound is checked at the last grant of an interval, where it would be broken. That grant was judged with
//! everything before it, by a definition in force at that instant. Across a reset, and for windows that cannot be
//! rebuilt, the most generous definition of the interval counts, once per stretch in which everything may have been
//! spent:
//!
//! ```text
//!             from ├───────────────┼──reset──┼──────────────┤ to
//!                    at most `most`            at most `most`
//! ```

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use tidegate_core::{Charge, Per, Policy, Timestamp, Unit};

use super::ObservedOrder;
use super::era::{ItemEra, charge};
use super::grant_sum_tree::GrantSumTree;
use super::row_grants::{GrantsByRow, RowGrantTimes};
use crate::reference_calendar::ReferenceCalendar;

/// The bound of one item for one key, and its grants.
pub(super) struct ItemBound<'a> {
    era: &'a ItemEra<'a>,
    /// All grants to the key, in and between eras.
    row: Option<&'a RowGrantTimes>,
    /// Sorted by their latest instant.
    grants: Vec<&'a ObservedOrder>,
    /// Position of each grant by its earliest instant.
    ranks: Vec<usize>,
    /// The earliest instants, sorted.
    earliest: Vec<u64>,
    /// Start and end of each reset that concerns this row.
    resets: Vec<(u64, u64)>,
}

/// An interval, the units admitted in it, and the units allowed.
pub(super) struct BoundViolation {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) admitted: u128,
    pub(super) allowed: u128,
}

impl<'a> ItemBound<'a> {
    pub(super) fn new(
        era: &'a ItemEra<'a>,
        rows: &'a GrantsByRow<'a>,
        key: Option<&[u8]>,
        mut grants: Vec<&'a ObservedOrder>,
    ) -> ItemBound<'a> {
        grants.retain(|grant| weight(era, grant) > 0);
        grants.sort_by_key(|grant| (grant.latest(), grant.earliest()));
        let mut by_earliest: Vec<usize> = (0..grants.len()).collect();
        by_earliest.sort_by_key(|&index| grants[index].earliest());
        let mut ranks = vec![0; grants.len()];
        for (rank, &index) in by_earliest.iter().enumerate() {
            ranks[index] = rank;
        }
        let earliest = by_earliest.iter().map(|&index| grants[index].earliest()).collect();
        // A reset keeps leases, and the reset of one key keeps the `all` row.
        let held = matches!(era.item().policy, Policy::Concurrency { .. });
        let concerns = |whose: Option<&[u8]>| whose.is_none() || (era.item().per == Per::Key && whose == key);
        let resets = era.resets.iter().filter(|reset| !held && concerns(reset.key.as_deref()));
        let resets = resets.map(|reset| (reset.start.ticks(), reset.end.ticks())).collect();
        let row = rows.get(key);
        ItemBound { era, row, grants, ranks, earliest, resets }
    }

    pub(super) fn exceeded(&self) -> Option<BoundViolation> {
        match self.era.item().policy {
            Policy::Total => self.exceeded_windows(1, |_| Some(0)),
            Policy::Calendar(unit) => self.exceeded_in_unit(unit),
            Policy::Interval { .. } => self.exceeded_interval(),
            Policy::Sliding { .. } => {
                let longest = self.era.longest_window();
                self.exceeded_windows(1, |grant| {
                    let to = grant.latest();
                    let window = self.era.shortest_window(to.saturating_sub(longest), to);
                    Some(to.saturating_sub(window))
                })
            }
            Policy::Bucket { .. } => self.exceeded_rate(),
            Policy::Concurrency { ttl } => self.exceeded_concurrency(self.era.tick.span(ttl).ticks()),
        }
    }

    fn weight(&self, grant: &ObservedOrder) -> u128 {
        weight(self.era, grant)
    }

    /// Units of a grant after its settlement.
    fn kept(&self, grant: &ObservedOrder) -> u128 {
        let refunded = match (charge(self.era.item()), grant.refunded) {
            (Charge::Count, Some((_, refunded))) => u128::from(refunded),
            _ => 0,
        };
        self.weight(grant).saturating_sub(refunded)
    }

    /// Number of resets that may have happened from `from` to `to`.
    fn resets_within(&self, from: u64, to: u64) -> u128 {
        (self.resets_started_by(to) - self.resets_ended_before(from)) as u128
    }

    fn resets_started_by(&self, by: u64) -> usize {
        self.resets.partition_point(|&(start, _)| start <= by)
    }

    fn resets_ended_before(&self, before: u64) -> usize {
        self.resets.partition_point(|&(_, end)| end < before)
    }

    /// Checks whether more than `windows` times the capacity was admitted in an interval that ends with a grant. `from`
    /// gives the start of the interval; `None` skips the grant.
    fn exceeded_windows(
        &self,
        windows: u128,
        mut from: impl FnMut(&ObservedOrder) -> Option<u64>,
    ) -> Option<BoundViolation> {
        let mut sums = GrantSumTree::new(self.grants.len());
        // Charges without a check. Only the last stretch of an interval is judged together with them.
        let mut forced = GrantSumTree::new(self.grants.len());
        let mut forced_charges = ForcedCharges::default();
        // Refunds, earliest first.
        let mut refunds = BinaryHeap::new();
        for (grant, &rank) in self.grants.iter().zip(&self.ranks) {
            let to = grant.latest();
            if grant.is_forced() {
                forced_charges.add(grant, rank);
                continue;
            }
            sums.insert(rank, signed(self.weight(grant)), 0);
            for (former, rank) in forced_charges.before(grant) {
                sums.insert(rank, signed(self.weight(former)), 0);
                forced.insert(rank, signed(self.weight(former)), 0);
            }
            refunds.extend(grant.refunded.map(|(at, _)| Reverse((at.ticks(), rank, self.kept(grant)))));
            while let Some(&Reverse((at, rank, kept))) = refunds.peek()
                && at <= to
            {
                sums.insert(rank, signed(kept), 0);
                refunds.pop();
            }
            let Some(from) = from(grant) else { continue };
            let exceeds = |from: u64, stretches: u128, most: u128| {
                let first = self.earliest.partition_point(|&earliest| earliest < from);
                let beyond = if stretches > 1 { forced.since(first) } else { 0 };
                let admitted = unsigned(sums.since(first));
                let allowed = stretches * most + unsigned(beyond);
                (admitted > allowed).then_some(BoundViolation { from, to, admitted, allowed })
            };
            let begun = self.resets_started_by(to);
            let reset = begun.checked_sub(1).map(|last| self.resets[last].1);
            // Since the last reset, if it has certainly ended.
            let sharp = if reset.is_none_or(|end| end < to) {
                let from = reset.map_or(from, |end| from.max(end + 1));
                let judged_since = if windows == 1 { grant.earliest() } else { from };
                self.era.most(judged_since, to).and_then(|most| exceeds(from, windows, most))
            } else {
                None
            };
            let whole = || {
                let resets = self.resets_within(from, to);
                self.era.most(from, to).and_then(|most| exceeds(from, windows + resets, most))
            };
            let excess = sharp.or_else(whole);
            if excess.is_some() {
                return excess;
            }
        }
        None
    }

    fn exceeded_in_unit(&self, unit: Unit) -> Option<BoundViolation> {
        let mut calendar = ReferenceCalendar::new(unit, &self.era.spec.time_zone, self.era.spec.week_start);
        let per_second = self.era.tick.per_second();
        let mut latest = (0, 0);
        self.exceeded_windows(1, |grant| {
            if !(latest.0..latest.1).contains(&grant.latest()) {
                let second =
                    i64::try_from(grant.latest() / per_second).expect("tests stay before the end of time");
                let (start, end) = calendar.window_around(second);
                let ticks = |second: i64| u64::try_from(second).expect("not before 1970") * per_second;
                latest = (ticks(start), ticks(end));
            }
            (latest.0 <= grant.earliest()).then_some(latest.0)
        })
    }

    /// Checks interval windows. A window opens with the first charge after the former window. Three facts are certain:
    /// after a pause as long as the longest window, the next charge opens one; from there on, windows can be rebuilt if
    /// every instant is known and no edit or reset intervenes; and a stretch shorter than a window meets at most two
    /// windows.
    fn exceeded_interval(&self) -> Option<BoundViolation> {
        let row = self.row?;
        let longest = self.era.longest_window();
        let excess = if row.is_known() && self.era.terms.len() == 1 && self.resets.is_empty() {
            self.exceeded_rebuilt_window(row, longest)
        } else {
            self.exceeded_after_pause(row, longest)
        };
        excess.or_else(|| {
            self.exceeded_windows(2, |grant| {
                let to = grant.latest();
                let window = self.era.shortest_window(to.saturating_sub(longest), to);
                Some(to.saturating_sub(window - 1))
            })
        })
    }

    /// Checks the windows that can be rebuilt after the first pause.
    fn exceeded_rebuilt_window(&self, row: &RowGrantTimes, window: u64) -> Option<BoundViolation> {
        let mut opened: Option<u64> = None;
        self.exceeded_windows(1, |grant| {
            let at = grant.latest();
            let opens = match opened {
                Some(opened) => opened.saturating_add(window) <= at,
                None => row.is_quiet(at, window),
            };
            if opens {
                opened = Some(at);
            }
            opened
        })
    }

    /// Checks the windows that opened after a pause.
    fn exceeded_after_pause(&self, row: &RowGrantTimes, longest: u64) -> Option<BoundViolation> {
        let mut by_earliest = self.grants.clone();
        by_earliest.sort_by_key(|grant| grant.earliest());
        let mut hits: &[&ObservedOrder] = &by_earliest;
        while let Some(hit) = hits.first() {
            let from = hit.earliest();
            if row.is_quiet(from, longest)
                && let Some(excess) = self.exceeded_since_hit(hits, from, longest)
            {
                return Some(excess);
            }
            // Another charge at the same instant opened the same window.
            hits = &hits[hits.partition_point(|hit| hit.earliest() <= from)..];
        }
        None
    }

    /// Checks the window that opened at `from`. These windows do not overlap, so each grant is visited once.
    fn exceeded_since_hit(
        &self,
        grants: &[&ObservedOrder],
        from: u64,
        longest: u64,
    ) -> Option<BoundViolation> {
        let window = self.era.shortest_window(from, from.saturating_add(longest));
        let to = from.saturating_add(window - 1);
        let near = grants.iter().take_while(|grant| grant.earliest() <= to && !grant.is_forced());
        let admitted: u128 = near.filter(|grant| grant.latest() <= to).map(|grant| self.kept(grant)).sum();
        let allowed = self.era.most(from, to)? * (1 + self.resets_within(from, to));
        (admitted > allowed).then_some(BoundViolation { from, to, admitted, allowed })
    }

    /// Checks a bucket: between any two instants no more than the burst and the refill. A bucket forgets when a charge
    /// was made, so refunded units count as never spent. Charges without a check count only where no reset may have
    /// dropped them.
    fn exceeded_rate(&self) -> Option<BoundViolation> {
        let refill = self.era.refill();
        // A reset refills a whole burst at once.
        let boost = signed(self.era.most(0, u64::MAX)?) * refill.unit;
        let boosts = |resets: usize| i128::try_from(resets).expect("resets are few") * boost;
        let by_then = |to: u64| refill.by(to) + boosts(self.resets_started_by(to));
        let before = |from: u64| refill.by(from) + boosts(self.resets_ended_before(from));
        let mut sums = GrantSumTree::new(self.grants.len());
        let mut forced_charges = ForcedCharges::default();
        let mut spent: Vec<&ObservedOrder> = Vec::new();
        for (grant, &rank) in self.grants.iter().zip(&self.ranks) {
            if grant.is_forced() {
                if self.resets.is_empty() {
                    forced_charges.add(grant, rank);
                }
                continue;
            }
            for (grant, rank) in forced_charges.before(grant).chain([(*grant, rank)]) {
                sums.insert(rank, signed(self.kept(grant)) * refill.unit, before(grant.earliest()));
                spent.push(grant);
            }
            let to = grant.latest();
            let burst = signed(self.era.most(grant.earliest(), to)?);
            if sums.worst() - by_then(to) > burst * refill.unit + refill.slack {
                let since = |from: u64| {
                    let inside = spent.iter().filter(|grant| grant.earliest() >= from);
                    inside.map(|grant| signed(self.kept(grant))).sum::<i128>()
                };
                let worst = spent.iter().map(|grant| grant.earliest());
                let from = worst.max_by_key(|&from| since(from) * refill.unit + before(from))?;
                let allowed = burst + (by_then(to) - before(from)) / refill.unit;
                let positive = |number: i128| u128::try_from(number).unwrap_or(0);
                let (admitted, allowed) = (positive(since(from)), positive(allowed));
                return Some(BoundViolation { from, to, admitted, allowed });
            }
        }
        None
    }

    /// Checks the units that are certainly held at the instant of each grant.
    fn exceeded_concurrency(&self, ttl: u64) -> Option<BoundViolation> {
        let returned = |grant: &ObservedOrder| {
            let own = grant.returned.map_or_else(|| grant.earliest().saturating_add(ttl), Timestamp::ticks);
            own.min(self.era.ends())
        };
        // Held units are released, not settled.
        let holds = |grant: &&ObservedOrder| !grant.is_forced() && grant.latest() < returned(grant);
        let held: Vec<&ObservedOrder> = self.grants.iter().copied().filter(holds).collect();
        let mut by_return = held.clone();
        by_return.sort_by_key(|grant| returned(grant));
        let mut back = by_return.into_iter().peekable();
        let mut holding: u128 = 0;
        for grant in held {
            let at = grant.latest();
            holding += self.weight(grant);
            // What returned by now was granted before now.
            while let Some(former) = back.next_if(|former| returned(former) <= at) {
                holding -= self.weight(former);
            }
            if let Some(allowed) = self.era.most(grant.earliest(), at).filter(|&most| holding > most) {
                return Some(BoundViolation { from: at, to: at, admitted: holding, allowed });
            }
        }
        None
    }
}

/// Charges without a check, until an order was certainly judged together with them.
///
/// The last decision of a set did not come before the start of any order in it:
///
/// ```text
///   forced            ├────┤
///   judged     ├──────────────────┤     returned later, but perhaps decided before
///   judged                  ├──┤        decided after, so the last decision was judged together with the forced charge
/// ```
#[derive(Default)]
struct ForcedCharges<'a> {
    /// Sorted by their latest instant, with their ranks.
    waiting: VecDeque<(&'a ObservedOrder, usize)>,
    /// The last judged order was certainly not decided before this instant.
    last: u64,
}

impl<'a> ForcedCharges<'a> {
    fn add(&mut self, forced: &'a ObservedOrder, rank: usize) {
        self.waiting.push_back((forced, rank));
    }

    /// The charges that became certain with this grant.
    fn before(&mut self, judged: &ObservedOrder) -> impl Iterator<Item = (&'a ObservedOrder, usize)> {
        self.last = self.last.max(judged.earliest());
        let certain = self.waiting.partition_point(|(forced, _)| forced.latest() < self.last);
        self.waiting.drain(..certain)
    }
}

fn weight(era: &ItemEra<'_>, grant: &ObservedOrder) -> u128 {
    u128::from(match charge(era.item()) {
        Charge::Count => grant.count,
        Charge::Ask => grant.asks.min(grant.count),
    })
}

fn signed(weight: u128) -> i128 {
    i128::try_from(weight).expect("counts have 64 bits")
}

fn unsigned(sum: i128) -> u128 {
    u128::try_from(sum).expect("a sum of counts")
}
