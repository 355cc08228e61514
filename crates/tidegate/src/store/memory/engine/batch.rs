//! Decisions on many keys of one limit, in order, as if each were requested alone.
//!
//! The lines of a group of keys are loaded into the cache before the first is read.

use tidegate_core::limit::MAX_KEY_BYTES;
use tidegate_core::{Amount, Timestamp, Verdict};

use super::super::LOOK_AHEAD;
use super::super::handle::{HandleDecision, HandleRefusal};
use super::super::leaf::HomeLines;
use super::super::limit_table::LimitTable;
use super::super::line::NO_TAG;
use super::{decide_key, is_one_key_row};

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
        let head = reader.head();
        let decided = match lines[index] {
            Some(lines) if is_one_key_row(head) && key.len() <= MAX_KEY_BYTES => {
                decide_key(table, (reader, head), (lines, tags[index]), count, now).ok()
            }
            _ => None,
        };
        let decided = decided.map(|verdict| match verdict {
            Verdict::Granted => HandleDecision::Granted,
            Verdict::Denied(wait) => {
                let (item, epoch) = (head.first().item(), reader.epoch());
                HandleDecision::Refused(HandleRefusal { at: now, wait, item, ask: 0, epoch })
            }
        });
        each(index, decided);
    }
}
