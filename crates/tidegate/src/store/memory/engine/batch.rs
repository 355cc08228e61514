//! Decisions on many keys of one limit, in order, as if each were requested alone.
//!
//! The lines of a group of keys are loaded into the cache before the first is read.

use tidegate_core::limit::MAX_KEY_BYTES;
use tidegate_core::{Amount, Timestamp};

use super::super::LOOK_AHEAD;
use super::super::handle::HandleDecision;
use super::super::leaf::HomeLines;
use super::super::limit_table::LimitTable;
use super::super::line::NO_TAG;
use super::Attempt;

/// Decides on each of at most [`LOOK_AHEAD`] keys. `each` receives `None` for a key that needs another path.
pub(in super::super) fn decide_batch(
    table: &LimitTable,
    keys: &[&[u8]],
    count: Amount,
    now: Timestamp,
    each: &mut dyn FnMut(usize, Option<HandleDecision>),
) {
    let mut tags = [NO_TAG; LOOK_AHEAD];
    let mut lines: [Option<HomeLines<'_>>; LOOK_AHEAD] = [None; LOOK_AHEAD];
    for ((key, tag), lines) in keys.iter().zip(&mut tags).zip(&mut lines) {
        *tag = table.printer.print(key);
        *lines = table.home_lines(*tag);
        lines.iter().for_each(HomeLines::prefetch);
    }
    for (index, key) in keys.iter().enumerate() {
        let reader = table.snapshot.read();
        let (head, epoch) = (reader.head(), reader.epoch());
        let attempt = Attempt { table, reader, head, count, now };
        let decided = match lines[index] {
            _ if key.len() > MAX_KEY_BYTES || !reader.is_valid_at(now) => None,
            Some(lines) if !head.counts_all() => attempt.decide_key(lines, tags[index]).ok(),
            _ if !head.counts_keys() => attempt.decide_all().ok(),
            _ => None,
        };
        let decided = decided.map(|decision| HandleDecision::of(decision, epoch, now));
        each(index, decided);
    }
}
