//! Decisions on many keys of one limit, in order, as if each were requested alone.
//!
//! The lines of a group of keys are loaded into the cache before the first is read.

use tidegate_core::{Amount, Timestamp, Verdict};

use super::super::LOOK_AHEAD;
use super::super::leaf::HomeLines;
use super::super::limit_table::LimitTable;
use super::super::line::NO_TAG;
use super::{decide_key, is_one_key_row};
use crate::reply::OrderError;

/// Decides on each of at most [`LOOK_AHEAD`] keys. `otherwise` decides on a key that takes another path.
pub(in super::super) fn decide_batch(
    table: &LimitTable,
    keys: &[&[u8]],
    count: Amount,
    now: Timestamp,
    verdicts: &mut [Verdict],
    otherwise: &mut dyn FnMut(usize) -> Result<Verdict, OrderError>,
) -> Result<(), OrderError> {
    let mut tags = [NO_TAG; LOOK_AHEAD];
    let mut lines: [Option<HomeLines<'_>>; LOOK_AHEAD] = [None; LOOK_AHEAD];
    for ((key, tag), lines) in keys.iter().zip(&mut tags).zip(&mut lines) {
        *tag = table.printer.print(key);
        *lines = table.home_lines(*tag);
        lines.iter().for_each(HomeLines::prefetch);
    }
    for (index, verdict) in verdicts.iter_mut().enumerate().take(keys.len()) {
        let reader = table.snapshot.read();
        let head = reader.head();
        let decided = match lines[index] {
            Some(lines) if is_one_key_row(head) => {
                decide_key(table, (reader, head), (lines, tags[index]), count, now).ok()
            }
            _ => None,
        };
        *verdict = match decided {
            Some(decided) => decided,
            None => otherwise(index)?,
        };
    }
    Ok(())
}
