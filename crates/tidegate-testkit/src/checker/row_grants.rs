//! All grants to one key or to all keys, whatever era they belong to.
//!
//! An era leaves out grants that may have been decided on either side of an edit. Such a grant may still have opened
//! the window in which a later grant was judged:
//!
//! ```text
//!   item        removed  ├──added──┤
//!   grants                       a             b      c d
//!   window                       ├─────────────────┤├──────── …     within the era, b looks like the first
//! ```

use std::collections::BTreeMap;

use super::ObservedOrder;

/// The rows of one limit.
pub(super) struct GrantsByRow<'a> {
    all: RowGrantTimes,
    each: BTreeMap<&'a [u8], RowGrantTimes>,
}

/// When a row was charged.
pub(super) struct RowGrantTimes {
    /// Earliest instant of each charge, and the latest instant of all charges so far.
    hits: Vec<(u64, u64)>,
    /// Whether every instant is known and every charge was judged.
    is_known: bool,
}

impl<'a> GrantsByRow<'a> {
    /// Groups these grants by row. They must be sorted by their earliest instant.
    pub(super) fn of(grants: &[&'a ObservedOrder]) -> GrantsByRow<'a> {
        let mut rows = GrantsByRow { all: RowGrantTimes::new(), each: BTreeMap::new() };
        // An ask of zero opens no window.
        for grant in grants.iter().filter(|grant| grant.count > 0) {
            rows.all.push(grant);
            if let Some(key) = &grant.key {
                rows.each.entry(key).or_insert_with(RowGrantTimes::new).push(grant);
            }
        }
        rows
    }

    /// The row of this key, or the `all` row.
    pub(super) fn get(&self, key: Option<&[u8]>) -> Option<&RowGrantTimes> {
        key.map_or(Some(&self.all), |key| self.each.get(key))
    }
}

impl RowGrantTimes {
    fn new() -> RowGrantTimes {
        RowGrantTimes { hits: Vec::new(), is_known: true }
    }

    fn push(&mut self, grant: &ObservedOrder) {
        let latest = self.hits.last().map_or(0, |&(_, latest)| latest);
        self.hits.push((grant.earliest(), grant.latest().max(latest)));
        self.is_known &= grant.earliest() == grant.latest() && !grant.is_forced();
    }

    /// Whether every instant is known.
    pub(super) fn is_known(&self) -> bool {
        self.is_known
    }

    /// Whether nothing was charged during `span` before this instant.
    pub(super) fn is_quiet(&self, before: u64, span: u64) -> bool {
        let earlier = self.hits.partition_point(|&(earliest, _)| earliest < before);
        earlier.checked_sub(1).is_none_or(|last| self.hits[last].1.saturating_add(span) <= before)
    }
}
