//! Decides an order: all its asks are charged, or none is.
//!
//! [`decide`] first checks every item without changing anything and keeps the strictest verdict. It charges only if that
//! verdict is a grant. A refused order changes nothing, so no rollback exists.
//!
//! The store prepares one [`DecisionRow`] for each row that the order touches. Rows of one limit are adjacent, the row of
//! all keys first. Repeated asks of the same row are added up beforehand.

use crate::amount::{Amount, Capacity};
use crate::law::{Law, Receipt, State};
use crate::lease::LeaseTerm;
use crate::limit::{Item, Limit, LimitPhase};
use crate::order::{AskTotals, Intent};
use crate::overrides::RowScope;
use crate::row::Row;
use crate::spec::{Charge, Mode};
use crate::time::{Span, Timestamp};
use crate::verdict::{Verdict, Wait};

/// A row that takes part in a decision, and what the order asks of it.
#[derive(Debug)]
pub struct DecisionRow<'a> {
    /// The limit it belongs to.
    pub limit: &'a Limit,
    /// All keys, or one key with its overrides.
    pub scope: RowScope<'a>,
    /// The stored state.
    pub row: &'a mut Row,
    /// What the order asks of it.
    pub totals: AskTotals,
}

/// The item that a refusal, a reading or a charge belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ItemPosition {
    /// The index of the row in the decision.
    pub row: usize,
    /// The index of the item in its limit.
    pub item: usize,
}

/// The answer to an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Everything fits. An acquire has charged it.
    Granted,
    /// At least one item does not fit. Nothing was charged.
    Denied(Denial),
}

/// Why an order was refused, and when a retry can succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Denial {
    /// The item with the longest wait. On a tie, the first in written order.
    pub binding: ItemPosition,
    /// The wait of that item.
    pub wait: Wait,
    /// The first refusing item in written order.
    pub first: ItemPosition,
}

impl Denial {
    /// Adds a refusal of an item that is later in written order.
    #[cold]
    pub fn stricter(worst: Option<Denial>, position: ItemPosition, wait: Wait) -> Denial {
        match worst {
            None => Denial { binding: position, wait, first: position },
            Some(worst) if wait > worst.wait => Denial { binding: position, wait, ..worst },
            Some(worst) => worst,
        }
    }
}

/// The usage of one item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// How much may be in use.
    pub capacity: Capacity,
    /// How much is in use.
    pub used: Amount,
    /// How much is left; `None` if the capacity is unlimited.
    pub remaining: Option<Amount>,
    /// When `used` becomes zero without further charges. `None` if it is zero, or if time alone does not reset it.
    pub resets_at: Option<Timestamp>,
}

/// One charge, kept so that it can be settled later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChargeRecord {
    /// The charged item.
    pub position: ItemPosition,
    /// The charged units.
    pub cost: Amount,
    /// What a refund needs.
    pub receipt: Receipt,
}

/// Decides an order. `term` is the lease of a grant. `charged` receives every charge, including charges of zero units.
pub fn decide(
    rows: &mut [DecisionRow<'_>],
    intent: Intent,
    term: Option<&LeaseTerm>,
    now: Timestamp,
    charged: &mut dyn FnMut(ChargeRecord),
) -> Decision {
    match find_denial(rows, now) {
        Some(denial) => Decision::Denied(denial),
        None if intent == Intent::Peek => Decision::Granted,
        None => {
            charge(rows, term, now, charged);
            Decision::Granted
        }
    }
}

/// Checks every item at `now`. Returns `None` if all of them fit.
pub fn find_denial(rows: &[DecisionRow<'_>], now: Timestamp) -> Option<Denial> {
    let mut found: Option<Denial> = None;
    let mut at = now;
    loop {
        let Some(denial) = strictest_denial(rows, at) else { return found };
        let first = found.map_or(denial.first, |earlier| earlier.first);
        found = Some(Denial { first, ..denial });
        // An item that fits now may refuse at the promised instant, because an override or the limit ends before it.
        // Only then is a second check needed.
        match denial.wait {
            Wait::Until(until) if at < until && rows.iter().any(DecisionRow::can_tighten) => at = until,
            _ => return found,
        }
    }
}

/// The strictest refusal at one instant. On a tie, the first in written order.
fn strictest_denial(rows: &[DecisionRow<'_>], at: Timestamp) -> Option<Denial> {
    let mut worst = None;
    for_each_item(rows, |position, row, item| {
        if row.limit.mode() == Mode::Enforce
            && let Verdict::Denied(wait) = row.check(position.item, item, at)
        {
            worst = Some(Denial::stricter(worst, position, wait));
        }
    });
    worst
}

/// Charges all rows of enforced limits, which have been checked. Charges a shadow limit only if none of its items would
/// refuse.
fn charge(
    rows: &mut [DecisionRow<'_>],
    term: Option<&LeaseTerm>,
    now: Timestamp,
    charged: &mut dyn FnMut(ChargeRecord),
) {
    let mut first = 0;
    while first < rows.len() {
        let limit = rows[first].limit;
        let count = rows[first..].iter().take_while(|row| std::ptr::eq(row.limit, limit)).count();
        if limit.mode() == Mode::Enforce || !would_refuse(&rows[first..first + count], now) {
            for (offset, row) in rows[first..first + count].iter_mut().enumerate() {
                row.charge(first + offset, term, now, charged);
            }
        }
        first += count;
    }
}

/// Whether any item of these rows would refuse, regardless of the mode of its limit.
fn would_refuse(rows: &[DecisionRow<'_>], now: Timestamp) -> bool {
    let mut refuses = false;
    for_each_item(rows, |position, row, item| {
        refuses |= row.check(position.item, item, now) != Verdict::Granted;
    });
    refuses
}

/// Calls `refused` for each shadow limit that would refuse the order.
pub fn shadow_refusals<'a>(rows: &[DecisionRow<'a>], now: Timestamp, mut refused: impl FnMut(&'a Limit)) {
    for group in rows.chunk_by(|a, b| std::ptr::eq(a.limit, b.limit)) {
        if group[0].limit.mode() == Mode::Shadow && would_refuse(group, now) {
            refused(group[0].limit);
        }
    }
}

/// Visits every affected item in written order: limits as asked, their items as in the file, keys as asked.
#[inline]
pub fn for_each_item<'l, 'a>(
    rows: &'l [DecisionRow<'a>],
    mut visit: impl FnMut(ItemPosition, &'l DecisionRow<'a>, &'a Item),
) {
    let (mut first, mut rest) = (0, rows);
    while let [row, ..] = rest {
        let limit = row.limit;
        let count = rest.iter().take_while(|row| std::ptr::eq(row.limit, limit)).count();
        let (group, others) = rest.split_at(count);
        if limit.mode() != Mode::Off {
            for (index, item) in limit.items().iter().enumerate() {
                for (offset, row) in group.iter().enumerate() {
                    if row.scope.per() == item.per() {
                        visit(ItemPosition { row: first + offset, item: index }, row, item);
                    }
                }
            }
        }
        first += count;
        rest = others;
    }
}

/// The shortest TTL of the concurrency items that the order charges. `None` if it charges none, so that they need no lease.
pub fn lease_ttl(rows: &[DecisionRow<'_>]) -> Option<Span> {
    let mut shortest: Option<Span> = None;
    for row in rows.iter().filter(|row| row.limit.mode() != Mode::Off) {
        for item in row.limit.items().iter().filter(|item| item.per() == row.scope.per()) {
            if let Law::Concurrency(law) = &item.rule().law
                && row.cost(item) > 0
            {
                shortest = Some(shortest.map_or(law.ttl, |ttl| ttl.min(law.ttl)));
            }
        }
    }
    shortest
}

/// The earliest lease expiry among the items that refuse until a release. `None` if there is no such item.
pub fn next_blocking_expiry(rows: &[DecisionRow<'_>], now: Timestamp) -> Option<Timestamp> {
    let mut earliest: Option<Timestamp> = None;
    for_each_item(rows, |position, row, item| {
        if row.limit.mode() == Mode::Enforce
            && row.check(position.item, item, now) == Verdict::Denied(Wait::OnRelease)
            && let State::Concurrency(holders) = row.row.state(item)
            && let Some(expiry) = holders.next_expiry(now)
        {
            earliest = Some(earliest.map_or(expiry, |other| other.min(expiry)));
        }
    });
    earliest
}

impl DecisionRow<'_> {
    /// The units that the order costs an item.
    pub fn cost(&self, item: &Item) -> Amount {
        cost(item, self.totals)
    }

    fn can_tighten(&self) -> bool {
        self.limit.ends_at().is_some() || self.scope.can_tighten()
    }

    /// Whether the order fits one item at `now`, and if not, when it will.
    #[inline]
    fn check(&self, index: usize, item: &Item, now: Timestamp) -> Verdict {
        if self.limit.is_always_open() {
            self.scope.check(index, item, self.row.state(item), self.cost(item), now, None)
        } else {
            self.check_phase(index, item, now)
        }
    }

    /// The check of a limit with a start or an end. Before the start the wait reaches at least to it. A wait past the end
    /// becomes `Never`.
    fn check_phase(&self, index: usize, item: &Item, now: Timestamp) -> Verdict {
        let (opens, at) = match self.limit.phase(now) {
            LimitPhase::After => return Verdict::Denied(Wait::Never),
            LimitPhase::Before(start) => (Verdict::Denied(Wait::Until(start)), start),
            LimitPhase::Open => (Verdict::Granted, now),
        };
        let ends_at = self.limit.ends_at();
        match self.scope.check(index, item, self.row.state(item), self.cost(item), at, ends_at).and(opens) {
            Verdict::Denied(Wait::Until(until)) if self.limit.phase(until) == LimitPhase::After => {
                Verdict::Denied(Wait::Never)
            }
            verdict => verdict,
        }
    }

    fn charge(
        &mut self,
        row: usize,
        term: Option<&LeaseTerm>,
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
            let receipt = rule.charge(state, cost, term, now);
            charged(ChargeRecord { position: ItemPosition { row, item: index }, cost, receipt });
        }
    }

    /// Corrects a charge of item `index`, made under `version` of the limit, to the true `cost`.
    ///
    /// An excess is refunded as far as the state remembers it. A shortfall is charged now, even past the limit, because the
    /// work is done. Concurrency items are released instead of corrected.
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

    /// When the usage of an item becomes zero: by its law, or because the limit ends.
    fn empty_at(&self, index: usize, item: &Item, now: Timestamp) -> Option<Timestamp> {
        let empty_at = self.scope.empty_at(index, item, self.row.state(item), now)?;
        Some(self.limit.ends_at().map_or(empty_at, |end| end.min(empty_at)))
    }

    /// The usage of an item at `now`.
    pub fn reading(&self, index: usize, item: &Item, now: Timestamp) -> Reading {
        let (rule, state) = self.scope.effective(index, item, self.row.state(item), now);
        let has_ended = self.limit.phase(now) == LimitPhase::After;
        let used = if has_ended { 0 } else { rule.used(&state, now) };
        Reading {
            capacity: rule.capacity,
            used,
            remaining: rule.capacity.remaining(used),
            resets_at: if used == 0 { None } else { self.empty_at(index, item, now) },
        }
    }
}

/// The units that asks cost an item.
pub fn cost(item: &Item, totals: AskTotals) -> Amount {
    charge_cost(item.charge(), totals)
}

/// The units that asks cost under a charge mode.
#[inline]
pub fn charge_cost(charge: Charge, totals: AskTotals) -> Amount {
    match charge {
        Charge::Count => totals.count,
        Charge::Ask => totals.asks,
    }
}
