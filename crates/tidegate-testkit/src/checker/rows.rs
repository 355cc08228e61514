//! GrantedRows: everything that was ever granted to one key, or to all together, whichever era it belongs to.
//!
//! An era leaves out what may have been decided on either side of an edit. Left out is not undone: it may have opened the
//! window that a later grant was judged in.
//!
//! ```text
//!   item      struck out ├──written back──┤
//!   grants                       a             b      c d
//!   window                       ├─────────────────┤├──────── …     to the era, b looks like the first
//! ```

use std::collections::BTreeMap;

use super::ObservedOrder;

/// The rows of one limit.
pub(super) struct GrantedRows<'a> {
    all: GrantedRow,
    each: BTreeMap<&'a [u8], GrantedRow>,
}

/// When something was granted to a row, or taken of it by settling.
pub(super) struct GrantedRow {
    /// For each in turn its earliest instant, and the latest instant of all so far.
    hits: Vec<(u64, u64)>,
    /// Whether the instant of each is known, and each was judged.
    is_known: bool,
}

impl<'a> GrantedRows<'a> {
    /// The rows of these grants, which are given by their earliest instant.
    pub(super) fn of(grants: &[&'a ObservedOrder]) -> GrantedRows<'a> {
        let mut rows = GrantedRows { all: GrantedRow::new(), each: BTreeMap::new() };
        // What costs nothing opens nothing.
        for grant in grants.iter().filter(|grant| grant.count > 0) {
            rows.all.push(grant);
            if let Some(key) = &grant.key {
                rows.each.entry(key).or_insert_with(GrantedRow::new).push(grant);
            }
        }
        rows
    }

    /// The row of this key, or that of all.
    pub(super) fn get(&self, key: Option<&[u8]>) -> Option<&GrantedRow> {
        key.map_or(Some(&self.all), |key| self.each.get(key))
    }
}

impl GrantedRow {
    fn new() -> GrantedRow {
        GrantedRow { hits: Vec::new(), is_known: true }
    }

    fn push(&mut self, grant: &ObservedOrder) {
        let latest = self.hits.last().map_or(0, |&(_, latest)| latest);
        self.hits.push((grant.earliest(), grant.latest().max(latest)));
        self.is_known &= grant.earliest() == grant.latest() && !grant.is_forced();
    }

    /// Whether the instant of everything is known.
    pub(super) fn is_known(&self) -> bool {
        self.is_known
    }

    /// Whether nothing was granted from `span` before this instant until it.
    pub(super) fn is_quiet(&self, before: u64, span: u64) -> bool {
        let earlier = self.hits.partition_point(|&(earliest, _)| earliest < before);
        earlier.checked_sub(1).is_none_or(|last| self.hits[last].1.saturating_add(span) <= before)
    }
}
