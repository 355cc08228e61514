//! The effects of an order beside its rows: its lease, its notes for a log, and its counts.

use std::sync::Arc;

use tidegate_core::decide::{self, Decision};
use tidegate_core::{Item, Law, Limit, Order, Row, RowScope, Timestamp, UsageRecord};

use super::super::limit_table::LimitTable;
use super::super::line::{NO_TAG, Tag};
use super::super::{LeaseRegistry, StoreState};
use super::{OrderLimit, OrderRow};
use crate::reply::GrantedLease;
use crate::store::journal::{ChargeNote, LeaseAction, Notes};
use crate::store::order_path::{AskedRow, OrderDecision, make_lease};

/// Registers the lease of a grant.
pub(super) fn register(
    limits: &[OrderLimit<'_>],
    order: &Order<'_>,
    asked_rows: &mut [AskedRow<&Arc<Limit>>],
    decided: &OrderDecision,
    registry: Option<&mut LeaseRegistry>,
    store: &StoreState,
    notes: Option<&mut Notes>,
) -> Option<GrantedLease> {
    let registry = registry?;
    let next_fence = |limit: &Limit| {
        let table = table_of(limits, limit).expect("the limit's row is in the order");
        (table.generation, store.next_fence(table))
    };
    let (grant, lease) = make_lease(order, asked_rows, decided, next_fence)?;
    registry.granted_leases += 1;
    if let Some(notes) = notes {
        let generation_of = |limit: &Limit| {
            lease.holdings.iter().find(|held| *held.limit_id == *limit.id()).map(|held| held.generation)
        };
        let fences = grant.fences.iter().filter_map(|(limit, fence)| Some((generation_of(limit)?, *fence)));
        let what = LeaseAction::Granted { id: grant.lease, lease: lease.clone(), fences: fences.collect() };
        notes.deeds.push(registry.note(what));
    }
    registry.insert(grant.lease, lease);
    Some(grant)
}

/// Notes the charged rows for a log.
pub(super) fn note_charges(
    limits: &[OrderLimit<'_>],
    rows: &[OrderRow<'_>],
    asked_rows: &[AskedRow<&Arc<Limit>>],
    now: Timestamp,
    notes: &mut Notes,
) {
    for (asked, order_row) in asked_rows.iter().zip(rows) {
        let OrderLimit { table, epoch } = &limits[order_row.limit];
        let scope = epoch.scope(asked.per(), order_row.tag.unwrap_or(NO_TAG));
        let row = (&**asked.limit, scope, &asked.row);
        note_row(table.generation, order_row.tag, row, now, notes, |item| decide::cost(item, asked.load) > 0);
    }
}

pub(super) fn count(limits: &[OrderLimit<'_>], rows: &[OrderRow<'_>], decided: &OrderDecision) {
    match decided.decision {
        Decision::Granted => limits.iter().for_each(|limit| limit.table.counts.granted()),
        Decision::Denied(denial) => {
            let OrderLimit { table, epoch } = &limits[rows[denial.binding.row].limit];
            let column = epoch.columns.get(denial.binding.item);
            table.counts.refused(column.copied().unwrap_or_default());
        }
    }
    for limit in &decided.shadowed {
        if let Some(table) = table_of(limits, limit) {
            table.counts.shadowed();
        }
    }
}

fn table_of<'a>(limits: &[OrderLimit<'a>], limit: &Limit) -> Option<&'a LimitTable> {
    limits.iter().map(|own| own.table).find(|table| *table.id == *limit.id())
}

/// Notes the items of a row that were charged.
pub(in super::super) fn note_row(
    generation: u64,
    key: Option<Tag>,
    (limit, scope, row): (&Limit, RowScope<'_>, &Row),
    at: Timestamp,
    notes: &mut Notes,
    was_charged: impl Fn(&Item) -> bool,
) {
    for (index, item) in limit.items().iter().enumerate() {
        if item.per() != scope.per() || !was_charged(item) {
            continue;
        }
        let rule = scope.rule(index, item, at);
        notes.charges.extend(UsageRecord::latest(rule, row.state(item)).map(|trace| ChargeNote {
            generation,
            version: limit.version(),
            key,
            item: index,
            capacity: rule.capacity,
            trace,
            at,
            is_alone: matches!(&rule.law, Law::SlidingWindow(sliding) if sliding.is_exact()),
        }));
    }
}
