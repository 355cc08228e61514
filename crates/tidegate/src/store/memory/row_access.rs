//! Access to one row under its lock: for releases, corrections, resets and readings.

use tidegate_core::{Per, Row, RowScope, Timestamp};

use super::leaf::Reservation;
use super::limit_table::LimitTable;
use super::line::{self, Tag};
use super::row_epoch::RowEpoch;

/// How to treat a key without a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MissingRow {
    /// Create it, if there is room.
    Create,
    /// Treat it as blank.
    Blank,
    /// Do nothing.
    Ignore,
}

/// Takes one row out, changes it, and puts it back. It happens at the latest instant at which the row may have been
/// decided: units that are given back after they were charged to others count as of then.
pub(super) fn with_row<T>(
    table: &LimitTable,
    key: Option<&[u8]>,
    now: Timestamp,
    if_missing: MissingRow,
    change: impl FnOnce(&RowEpoch, RowScope<'_>, &mut Row, Timestamp) -> T,
) -> Option<T> {
    let Some(key) = key else { return Some(with_all_row(table, now, change)) };
    let tag = table.printer.print(key);
    if if_missing != MissingRow::Create && table.leaf(tag).is_none() {
        return with_blank_row(table, tag, now, if_missing, change);
    }
    loop {
        let (mut locked, epoch) = table.lock_leaf(tag);
        let now = now.max(locked.leaf.header.floor());
        locked.leaf.header.raise(now);
        let context = table.context(&epoch, now);
        if if_missing == MissingRow::Create && locked.find(tag).is_none() {
            match locked.reserve(tag, context) {
                Reservation::Reserved => {}
                Reservation::Moved => continue,
                Reservation::NoRoom(_) => return None,
            }
        }
        let Some((place, words)) = locked.lock_row(tag) else {
            drop(locked);
            return with_blank_row(table, tag, now, if_missing, change);
        };
        let mut row = epoch.take(Per::Key, &words, &table.rows, &table.budget);
        let result = change(&epoch, epoch.scope(Per::Key, tag), &mut row, now);
        if !locked.vacate_if_evictable(&place, tag, &row, &words, context) {
            let words = epoch.store(Per::Key, tag, &words, row, &table.rows, &table.budget);
            locked.write(&place, tag, &words, context);
        }
        line::unlock(place.line.control(), place.seen);
        return Some(result);
    }
}

/// The same for the row of all keys.
pub(super) fn with_all_row<T>(
    table: &LimitTable,
    now: Timestamp,
    change: impl FnOnce(&RowEpoch, RowScope<'_>, &mut Row, Timestamp) -> T,
) -> T {
    let mut locked = table.all.lock();
    let epoch = table.epoch();
    locked.convert(table, &epoch);
    let now = now.max(table.all.header.floor());
    table.all.header.raise(now);
    let (seen, words) = locked.lock_row();
    let mut row = epoch.take(Per::All, &words, &table.rows, &table.budget);
    let result = change(&epoch, RowScope::All, &mut row, now);
    let words = epoch.store(Per::All, line::NO_TAG, &words, row, &table.rows, &table.budget);
    locked.unlock_row(seen, &words);
    result
}

fn with_blank_row<T>(
    table: &LimitTable,
    tag: Tag,
    now: Timestamp,
    if_missing: MissingRow,
    change: impl FnOnce(&RowEpoch, RowScope<'_>, &mut Row, Timestamp) -> T,
) -> Option<T> {
    let epoch = table.epoch();
    let mut row = epoch.new_row();
    (if_missing == MissingRow::Blank).then(|| change(&epoch, epoch.scope(Per::Key, tag), &mut row, now))
}
