//! Names of rows in the states table, and the rows that a job needs.

use std::collections::BTreeMap;

use tidegate_core::{Hold, Intent};

use crate::job::{Job, JobTask, QueuedOrder};
use crate::limit_snapshot::{LimitEntry, LimitSnapshot, may_hold};

/// The key column of the row of all keys.
pub(crate) const ALL: &[u8] = &[0];

/// The key column of a key.
pub(crate) fn column_of(key: Option<&[u8]>) -> Vec<u8> {
    match key {
        None => ALL.to_vec(),
        Some(key) => [&[1], key].concat(),
    }
}

/// The key of a key column; `None` for the row of all keys.
pub(crate) fn key_of(column: &[u8]) -> Option<&[u8]> {
    match column {
        [1, key @ ..] => Some(key),
        _ => None,
    }
}

/// The name of a row: the generation of its limit and its key column. All transactions lock rows in this order.
pub(crate) type RowName = (i64, Vec<u8>);

/// The access that a job needs to a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RowAccess {
    /// Read the row if it exists.
    Read,
    /// Change the row. Create it if it does not exist.
    Write,
}

/// The rows that jobs need, in the order of their names.
pub(crate) type NeededRows = BTreeMap<RowName, RowAccess>;

/// Adds the rows of a job. The rows of leases are added later, when the leases are read.
pub(crate) fn add_rows_of_job(job: &Job, limits: &LimitSnapshot, needs: &mut NeededRows) {
    match &job.task {
        JobTask::Orders { orders, .. } => {
            for order in orders {
                add_rows_of_order(order, limits, needs);
            }
        }
        JobTask::Reset { limit_id, key, .. } => {
            if let Some(entry) = limits.get(limit_id) {
                need(entry, Some(key), RowAccess::Write, needs);
            }
        }
        JobTask::Usage { limit_id, key, .. } | JobTask::Holders { limit_id, key, .. } => {
            if let Some(entry) = limits.get(limit_id) {
                need(entry, key.as_deref(), RowAccess::Read, needs);
            }
        }
        JobTask::CleanUp { rows, .. } => {
            for (generation, column) in rows {
                if let Some(entry) = limits.entry_of_generation(*generation) {
                    need(entry, key_of(column), RowAccess::Read, needs);
                }
            }
        }
        JobTask::Release { .. } | JobTask::Renew { .. } | JobTask::Settle { .. } => {}
    }
}

fn add_rows_of_order(order: &QueuedOrder, limits: &LimitSnapshot, needs: &mut NeededRows) {
    let how = if changes(order) { RowAccess::Write } else { RowAccess::Read };
    // A lease has a fence of every limit in its order. The row of all keys stores the latest fence.
    let may_lease = |id: &str| limits.get(id).is_some_and(|entry| may_hold(&entry.limit));
    let leases = order.hold == Hold::Yes || order.asks.iter().any(|ask| may_lease(&ask.limit_id));
    for ask in &order.asks {
        let Some(entry) = limits.get(&ask.limit_id) else { continue };
        if entry.needs_all || leases {
            need(entry, None, how, needs);
        }
        if let Some(key) = ask.key.as_deref().filter(|_| entry.limit.needs_key()) {
            need(entry, Some(key), how, needs);
        }
    }
}

/// Whether an order can change rows.
pub(crate) fn changes(order: &QueuedOrder) -> bool {
    let takes = order.asks.iter().any(|ask| ask.count > 0);
    order.intent == Intent::Acquire && (takes || order.hold == Hold::Yes || order.request_id.is_some())
}

/// Adds a row. If the limit counts its rows, the row of all keys is needed as well, because the count may change.
pub(crate) fn need(entry: &LimitEntry, key: Option<&[u8]>, how: RowAccess, needs: &mut NeededRows) {
    let count = (key.is_some() && entry.bounds_keys()).then(|| ALL.to_vec());
    for column in [Some(column_of(key)), count].into_iter().flatten() {
        let slot = needs.entry((entry.generation, column)).or_insert(how);
        *slot = how.max(*slot);
    }
}
