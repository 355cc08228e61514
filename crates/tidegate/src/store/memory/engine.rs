//! The decision engine: finds rows, judges all of them, locks them, charges them, releases them.
//!
//! 1. Every row is found and read without a lock. If an item refuses, that is the answer, once no row has changed since.
//!    Nothing was written.
//! 2. If all items grant, each row's line is locked by compare-and-swap from what was read, so the rows are still what was
//!    judged. The rules are checked once more. Then all rows are charged and released.
//!
//! A thread that holds a line never waits. If it cannot lock all lines, it releases what it has, pauses, and starts again.
//! So no order of locks is needed.
//!
//! Some rows cannot be judged from their words: a key with an override, a row with leases or open holds, a limit that is in
//! shadow mode or not open, a request with a request id. They take [the locked path](super::locked_path): the same steps
//! with the lines locked before the rows are judged by the core.
//!
//! Threads read the clock before they decide, so a thread may arrive with an early time. Its order is then decided at the
//! latest instant that its rows have seen.

#![expect(
    clippy::inline_always,
    reason = "the engine is one piece of code, a few hundred instructions in all"
)]

mod batch;
mod one_row;
mod several_rows;

use tidegate_core::Timestamp;

use super::leaf::Reservation;
use super::limit_table::LimitTable;
use super::line::Tag;

pub(super) use batch::decide_batch;
pub(super) use one_row::{Attempt, RowDecision};
pub(super) use several_rows::{ObservedItem, Refusal, RowsDecision, are_distinct, decide_rows};

/// The most asks that are decided from words.
pub(super) const MOST_ASKS: usize = 8;
/// The number of attempts before the locked path.
const TRIES: u32 = if cfg!(tidegate_loom) { 2 } else { 64 };

/// An ask whose limit was found.
#[derive(Clone, Copy)]
pub(super) struct ResolvedAsk<'a> {
    pub(super) table: &'a LimitTable,
    pub(super) key: Option<&'a [u8]>,
    /// The key's fingerprint, if it was computed before.
    pub(super) tag: Option<Tag>,
    pub(super) count: u64,
}

impl ResolvedAsk<'_> {
    /// The key's fingerprint.
    #[inline(always)]
    pub(super) fn tag(&self) -> Option<Tag> {
        match (self.tag, self.key) {
            (Some(tag), _) => Some(tag),
            (None, Some(key)) => Some(self.table.printer.print(key)),
            (None, None) => None,
        }
    }
}

/// Why an attempt failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Setback {
    /// Another thread changed a row or a rule.
    Again,
    /// A row has seen this later instant.
    At(Timestamp),
    /// The key of this ask has no row.
    Absent { ask: usize },
    /// Only the locked path can decide.
    Locked,
}

/// A blank row for a key, so that the next attempt finds it. Returns whether the key has a row now.
pub(super) fn admit(table: &LimitTable, tag: Tag, now: Timestamp) -> bool {
    loop {
        let (mut locked, epoch) = table.lock_leaf(tag);
        if locked.find(tag).is_some() {
            return true;
        }
        let context = table.context(&epoch, now.max(locked.leaf.header.floor()));
        match locked.reserve(tag, context) {
            Reservation::Reserved => {
                locked.open(tag, context);
                return true;
            }
            Reservation::Moved => {}
            Reservation::NoRoom(_) => return false,
        }
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests;
