//! Access to one row under its lock: take it out, put it back, or create it for a new key.

use std::sync::Arc;

use tidegate_core::{Per, Row, RowScope, Timestamp};

use super::cache_line::Tag;
use super::leaf::{Means, Owned, Reserved};
use super::limit_table::Tenant;
use super::lockfree::{self, Plea};
use super::row_epoch::Edition;
use super::rule_snapshot::Short;

/// One row of one limit, taken out under its lock and put back: for whoever gives something back, corrects or looks. It is done at
/// the latest instant that the row may have been decided at: what is given back later than it was charged to others counts as of then.
pub(super) fn with_row<T>(
    tenant: &Tenant,
    key: Option<&[u8]>,
    now: Timestamp,
    if_missing: Missing,
    change: impl FnOnce(&Edition, RowScope<'_>, &mut Row, Timestamp) -> T,
) -> Option<T> {
    let Some(key) = key else {
        let mut owned = tenant.all.own();
        let edition = tenant.edition();
        owned.adopt(tenant, &edition);
        let now = now.max(tenant.all.stamp.floor());
        tenant.all.stamp.raise(now);
        let word = tenant.all.place.hold();
        let mut row = edition.unpack(Per::All, word, &mut owned.shelf);
        let answer = change(&edition, RowScope::All, &mut row, now);
        owned.settle(&edition, row);
        return Some(answer);
    };
    let tag = tenant.printer.print(key);
    if if_missing != Missing::Made && tenant.leaf(tag).is_none() {
        return blank(tenant, tag, now, if_missing, change);
    }
    loop {
        let (mut owned, edition) = own_leaf(tenant, tag);
        let now = now.max(owned.leaf.stamp.floor());
        owned.leaf.stamp.raise(now);
        let means = Means { edition: &edition, budget: &tenant.budget, now };
        if if_missing == Missing::Made && owned.leaf.find(tag).is_none() {
            match owned.reserve(tag, means) {
                Reserved::Here => {}
                Reserved::Below => continue,
                Reserved::Crowded(_) => return None,
            }
        }
        let Some(spot) = owned.hold(tag) else {
            drop(owned);
            return blank(tenant, tag, now, if_missing, change);
        };
        let seat = edition.seat(Per::Key, tag);
        let mut row = edition.unpack(Per::Key, spot.word, &mut owned.inner.shelf);
        let answer = change(&edition, seat, &mut row, now);
        if edition.is_forgettable(&row, seat, now) {
            owned.vacate(&spot, &tenant.budget);
        } else {
            owned.settle(&spot, tag, row, means);
        }
        owned.weigh(&tenant.budget);
        return Some(answer);
    }
}

/// What is done about a row that is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    /// It is made, if there is room.
    Made,
    /// It is looked at as if it were blank.
    Blank,
    /// Nothing is done.
    Ignored,
}

fn blank<T>(
    tenant: &Tenant,
    tag: Tag,
    now: Timestamp,
    if_missing: Missing,
    change: impl FnOnce(&Edition, RowScope<'_>, &mut Row, Timestamp) -> T,
) -> Option<T> {
    let edition = tenant.edition();
    let mut row = edition.newcomer();
    (if_missing == Missing::Blank).then(|| change(&edition, edition.seat(Per::Key, tag), &mut row, now))
}

/// Waits for the lock of the leaf where a tag belongs, and brings its rows to the present edition.
pub(super) fn own_leaf(tenant: &Tenant, tag: Tag) -> (Owned<'_>, Arc<Edition>) {
    loop {
        let mut owned = tenant.leaf_or_new(tag).own();
        // It may have become a branch while we waited.
        if !owned.leaf.is_branch() {
            let edition = tenant.edition();
            tenant.bring(&mut owned, &edition);
            return (owned, edition);
        }
    }
}

/// A row that was begun with a grant.
pub(super) struct Begun {
    pub(super) at: Timestamp,
    /// The rules it was judged by,
    pub(super) short: Short,
    /// their edition,
    pub(super) edition: u64,
    /// and what its cell says.
    pub(super) word: u64,
}

/// Decides the first ask of a new key, where the limit has one item. `None` if it is not that simple after all.
pub(super) fn begin(plea: &Plea<'_>, tag: Tag, now: Timestamp) -> Option<Begun> {
    let tenant = plea.tenant;
    loop {
        let (mut owned, edition) = own_leaf(tenant, tag);
        let now = now.max(owned.leaf.stamp.floor());
        let brief =
            tenant.board.read().filter(|brief| brief.is_good(now) && brief.edition == edition.number)?;
        let head = brief.first.head;
        // An edit may have struck out the item that the key was asked for.
        if head.has_second() || head.excepts() || !head.is_of_key() || owned.leaf.find(tag).is_some() {
            return None;
        }
        let word = lockfree::first_word(&brief.first, plea.count, now)?;
        let means = Means { edition: &edition, budget: &tenant.budget, now };
        match owned.reserve(tag, means) {
            Reserved::Here => {
                owned.begin(tag, word, means);
                tenant.counts.granted();
                return Some(Begun { at: now, short: brief.first, edition: brief.edition, word });
            }
            Reserved::Below => {}
            Reserved::Crowded(_) => return None,
        }
    }
}

/// Gives a key a row, blank and nobody's, so that the quick way finds it. `false` if it cannot be.
pub(super) fn admit(tenant: &Tenant, tag: Tag, now: Timestamp) -> bool {
    loop {
        let (mut owned, edition) = own_leaf(tenant, tag);
        if owned.leaf.find(tag).is_some() {
            return true;
        }
        let means =
            Means { edition: &edition, budget: &tenant.budget, now: now.max(owned.leaf.stamp.floor()) };
        match owned.reserve(tag, means) {
            Reserved::Here => {
                owned.open(tag, means);
                return true;
            }
            Reserved::Below => {}
            Reserved::Crowded(_) => return false,
        }
    }
}
