//! The decision: all limits that are asked, together, all or nothing.
//!
//! Every law is judged first, without changing anything; the verdicts are folded into the harshest; and only if
//! that is a grant is anything charged. There is no rollback, because nothing is ever done that would need one.
//! [`decide`] is that sentence in code.
//!
//! A decision is made over [`DecisionRow`]s. The store prepares them: one line per distinct row, those of one limit next
//! to each other with its `all` row first, and the loads of repeated asks added up.

use crate::amount::{Amount, Capacity};
use crate::law::{Law, Receipt, State};
use crate::lease::LeaseTerm;
use crate::limit::{Item, Limit, LimitPhase};
use crate::order::{AskTotals, Intent};
use crate::row::Row;
use crate::row_scope::RowScope;
use crate::spec::{Charge, Mode};
use crate::time::{Span, Timestamp};
use crate::verdict::{Verdict, Wait};

/// One row that takes part in a decision, and what is asked of it.
#[derive(Debug)]
pub struct DecisionRow<'a> {
    /// The limit it belongs to.
    pub limit: &'a Limit,
    /// Whose row it is.
    pub scope: RowScope<'a>,
    /// What it remembers.
    pub row: &'a mut Row,
    /// What is asked of it.
    pub totals: AskTotals,
}

/// Where a refusal, a reading or a receipt comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ItemPosition {
    /// The index of the line.
    pub row: usize,
    /// The index of the item in its limit.
    pub item: usize,
}

/// The answer to an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// It all fits; an acquire has charged it.
    Granted,
    /// Something does not fit; nothing was charged anywhere.
    Denied(Denial),
}

/// Which item said no the longest, and when asking again could help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Denial {
    /// The item with the longest wait; the first written of equals.
    pub binding: ItemPosition,
    /// Its wait.
    pub wait: Wait,
    /// The first written item that refuses, however short its wait.
    pub first: ItemPosition,
}

impl Denial {
    /// The harsher of what was found before and one more refusal, which is written later.
    #[cold]
    pub fn stricter(worst: Option<Denial>, place: ItemPosition, wait: Wait) -> Denial {
        match worst {
            None => Denial { binding: place, wait, first: place },
            Some(worst) if wait > worst.wait => Denial { binding: place, wait, ..worst },
            Some(worst) => worst,
        }
    }
}

/// What an item says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// How much may be in use.
    pub capacity: Capacity,
    /// How much is.
    pub used: Amount,
    /// How much is left; `None` if there is no end to it.
    pub remaining: Option<Amount>,
    /// When `used` becomes zero if nobody asks; `None` if it is, or time alone will not do it.
    pub resets_at: Option<Timestamp>,
}

/// What was charged where, so that it can be corrected later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChargeRecord {
    /// Where.
    pub position: ItemPosition,
    /// How much.
    pub cost: Amount,
    /// What it needs to be given back.
    pub receipt: Receipt,
}

/// Decides an order over its lines. `tenure` is the lease that a grant comes with, `charged` is told of every
/// charge, those of nothing included.
pub fn decide(
    lines: &mut [DecisionRow<'_>],
    intent: Intent,
    tenure: Option<&LeaseTerm>,
    now: Timestamp,
    charged: &mut dyn FnMut(ChargeRecord),
) -> Decision {
    match find_denial(lines, now) {
        Some(denial) => Decision::Denied(denial),
        None if intent == Intent::Peek => Decision::Granted,
        None => {
            charge(lines, tenure, now, charged);
            Decision::Granted
        }
    }
}

/// Whether everything fits at `now`: `None` if so, else what binds.
pub fn find_denial(lines: &[DecisionRow<'_>], now: Timestamp) -> Option<Denial> {
    let mut found: Option<Denial> = None;
    let mut at = now;
    loop {
        let Some(denial) = strictest_denial(lines, at) else { return found };
        let first = found.map_or(denial.first, |earlier| earlier.first);
        found = Some(Denial { first, ..denial });
        // What fits now may not fit at the instant we are about to promise: an override may have ended, or the
        // limit itself. Only then is a second look worth its cost.
        match denial.wait {
            Wait::Until(until) if at < until && lines.iter().any(DecisionRow::can_tighten) => at = until,
            _ => return found,
        }
    }
}

/// The harshest refusal at `at`, the first written of equals.
fn strictest_denial(lines: &[DecisionRow<'_>], at: Timestamp) -> Option<Denial> {
    let mut worst = None;
    for_each_item(lines, |place, line, item| {
        if line.limit.mode() == Mode::Enforce
            && let Verdict::Denied(wait) = line.check(place.item, item, at)
        {
            worst = Some(Denial::stricter(worst, place, wait));
        }
    });
    worst
}

/// Charges every line that agrees: all of an enforced limit (it has been judged), none of a shadow limit of which
/// any item would have refused.
fn charge(
    lines: &mut [DecisionRow<'_>],
    tenure: Option<&LeaseTerm>,
    now: Timestamp,
    charged: &mut dyn FnMut(ChargeRecord),
) {
    let mut first = 0;
    while first < lines.len() {
        let limit = lines[first].limit;
        let count = lines[first..].iter().take_while(|line| std::ptr::eq(line.limit, limit)).count();
        if limit.mode() == Mode::Enforce || !would_refuse(&lines[first..first + count], now) {
            for (offset, line) in lines[first..first + count].iter_mut().enumerate() {
                line.charge(first + offset, tenure, now, charged);
            }
        }
        first += count;
    }
}

/// Whether any item of these lines would refuse, whatever the mode of its limit.
fn would_refuse(lines: &[DecisionRow<'_>], now: Timestamp) -> bool {
    let mut refuses = false;
    for_each_item(lines, |place, line, item| {
        refuses |= line.check(place.item, item, now) != Verdict::Granted
    });
    refuses
}

/// Whether a limit that only watches would have refused this; one call per limit that would.
pub fn shadow_refusals<'a>(lines: &[DecisionRow<'a>], now: Timestamp, mut refused: impl FnMut(&'a Limit)) {
    for group in lines.chunk_by(|a, b| std::ptr::eq(a.limit, b.limit)) {
        if group[0].limit.mode() == Mode::Shadow && would_refuse(group, now) {
            refused(group[0].limit);
        }
    }
}

/// Every item that is asked, in the order written: limits as asked, their items as in the file, keys as asked.
#[inline]
pub fn for_each_item<'l, 'a>(
    lines: &'l [DecisionRow<'a>],
    mut visit: impl FnMut(ItemPosition, &'l DecisionRow<'a>, &'a Item),
) {
    let (mut first, mut rest) = (0, lines);
    while let [line, ..] = rest {
        let limit = line.limit;
        let count = rest.iter().take_while(|line| std::ptr::eq(line.limit, limit)).count();
        let (group, others) = rest.split_at(count);
        if limit.mode() != Mode::Off {
            for (index, item) in limit.items().iter().enumerate() {
                for (offset, line) in group.iter().enumerate() {
                    if line.scope.per() == item.per() {
                        visit(ItemPosition { row: first + offset, item: index }, line, item);
                    }
                }
            }
        }
        first += count;
        rest = others;
    }
}

/// The shortest time to live among the concurrency items that would be charged; `None` if there are none, so that
/// the grant needs no lease for their sake.
pub fn lease_ttl(lines: &[DecisionRow<'_>]) -> Option<Span> {
    let mut shortest: Option<Span> = None;
    for line in lines.iter().filter(|line| line.limit.mode() != Mode::Off) {
        for item in line.limit.items().iter().filter(|item| item.per() == line.scope.per()) {
            if let Law::Concurrency(law) = &item.rule().law
                && line.cost(item) > 0
            {
                shortest = Some(shortest.map_or(law.ttl, |ttl| ttl.min(law.ttl)));
            }
        }
    }
    shortest
}

/// The earliest instant at which a lease lapses that is in the way: one of an item that refuses until somebody gives
/// something back. `None` if there is no such item.
pub fn next_blocking_expiry(lines: &[DecisionRow<'_>], now: Timestamp) -> Option<Timestamp> {
    let mut earliest: Option<Timestamp> = None;
    for_each_item(lines, |place, line, item| {
        if line.limit.mode() == Mode::Enforce
            && line.check(place.item, item, now) == Verdict::Denied(Wait::OnRelease)
            && let State::Concurrency(holders) = line.row.state(item)
            && let Some(lapse) = holders.next_expiry(now)
        {
            earliest = Some(earliest.map_or(lapse, |other| other.min(lapse)));
        }
    });
    earliest
}

impl DecisionRow<'_> {
    /// What this order costs an item.
    pub fn cost(&self, item: &Item) -> Amount {
        cost(item, self.totals)
    }

    fn can_tighten(&self) -> bool {
        self.limit.ends_at().is_some() || self.scope.can_tighten()
    }

    /// Whether an item agrees at `now`, and if not, when it will.
    #[inline]
    fn check(&self, index: usize, item: &Item, now: Timestamp) -> Verdict {
        if self.limit.is_always_open() {
            self.scope.check(index, item, self.row.state(item), self.cost(item), now, None)
        } else {
            self.check_phase(index, item, now)
        }
    }

    /// The same for a limit that starts or ends: before its start only that helps, and no wait reaches past its end.
    fn check_phase(&self, index: usize, item: &Item, now: Timestamp) -> Verdict {
        let (opens, at) = match self.limit.phase(now) {
            LimitPhase::After => return Verdict::Denied(Wait::Never),
            LimitPhase::Before(start) => (Verdict::Denied(Wait::Until(start)), start),
            LimitPhase::Open => (Verdict::Granted, now),
        };
        let over = self.limit.ends_at();
        match self.scope.check(index, item, self.row.state(item), self.cost(item), at, over).and(opens) {
            Verdict::Denied(Wait::Until(until)) if self.limit.phase(until) == LimitPhase::After => {
                Verdict::Denied(Wait::Never)
            }
            verdict => verdict,
        }
    }

    fn charge(
        &mut self,
        line: usize,
        tenure: Option<&LeaseTerm>,
        now: Timestamp,
        charged: &mut dyn FnMut(ChargeRecord),
    ) {
        if self.limit.mode() == Mode::Off {
            return;
        }
        for (index, item) in self.limit.items().iter().enumerate() {
            if item.per() != self.scope.per() {
                continue;
            }
            let cost = cost(item, self.totals);
            let state = &mut self.row.states[item.state_index()];
            let rule = self.scope.catch_up(index, item, state, now);
            let receipt = rule.charge(state, cost, tenure, now);
            charged(ChargeRecord { position: ItemPosition { row: line, item: index }, cost, receipt });
        }
    }

    /// Corrects what item `index` was charged under `version` of the limit to `cost`: what is too much is given
    /// back as far as it is remembered, what is missing is charged now, past the limit if it must be, because the
    /// work was done. Concurrency is not corrected; it is released.
    pub fn settle(
        &mut self,
        index: usize,
        charged: &ChargeRecord,
        version: u32,
        cost: Amount,
        now: Timestamp,
    ) {
        let item = &self.limit.items()[index];
        if matches!(item.rule().law, Law::Concurrency(_)) || self.limit.phase(now) == LimitPhase::After {
            return;
        }
        let state = &mut self.row.states[item.state_index()];
        let rule = self.scope.catch_up(index, item, state, now);
        if cost > charged.cost {
            let _final = rule.charge(state, cost - charged.cost, None, now);
        } else if version >= item.law_version() {
            rule.refund(state, charged.receipt, charged.cost - cost, now);
        }
    }

    /// When an item has nothing in use any more: by itself, or because the limit is over.
    fn empty_at(&self, index: usize, item: &Item, now: Timestamp) -> Option<Timestamp> {
        let empties = self.scope.empty_at(index, item, self.row.state(item), now)?;
        Some(self.limit.ends_at().map_or(empties, |end| end.min(empties)))
    }

    /// What an item says about itself at `now`.
    pub fn reading(&self, index: usize, item: &Item, now: Timestamp) -> Reading {
        let (rule, state) = self.scope.effective(index, item, self.row.state(item), now);
        let over = self.limit.phase(now) == LimitPhase::After;
        let used = if over { 0 } else { rule.used(&state, now) };
        Reading {
            capacity: rule.capacity,
            used,
            remaining: rule.capacity.remaining(used),
            resets_at: if used == 0 { None } else { self.empty_at(index, item, now) },
        }
    }
}

/// What a load costs an item.
pub fn cost(item: &Item, load: AskTotals) -> Amount {
    charge_cost(item.charge(), load)
}

/// What a load costs an item that is charged like this.
#[inline]
pub fn charge_cost(charge: Charge, load: AskTotals) -> Amount {
    match charge {
        Charge::Count => load.count,
        Charge::Ask => load.asks,
    }
}
