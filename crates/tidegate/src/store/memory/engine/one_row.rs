//! Decision on the row of one key with one item.
//!
//! This is [the decision on several rows](super::several_rows) compiled for one row and one law. It saves half of the
//! time of a decision on a hot key.

#![expect(
    clippy::inline_always,
    reason = "the engine is one piece of code, a few hundred instructions in all"
)]

use tidegate_core::{Amount, AskTotals, Timestamp, Verdict};

use super::super::leaf::HomeLines;
use super::super::limit_table::LimitTable;
use super::super::line::{self, LOCKED, Tag};
use super::super::packed_item::{
    Bucket, FULL, Interval, Judged, LongTotal, LongWindow, PackedKind, PackedLaw, Sliding, Total, Window,
};
use super::super::rule_snapshot::{LimitHead, SnapshotReader};
use super::super::sync::Ordering;
use super::Setback;

/// Whether a limit has one item, which counts each key alone.
#[inline(always)]
pub(in super::super) fn is_one_key_row(head: LimitHead) -> bool {
    head.items() == 1 && head.first().is_of_key()
}

/// Decides on the row of a key. The limit has [one such row](is_one_key_row).
#[inline(always)]
pub(in super::super) fn decide_key(
    table: &LimitTable,
    (reader, head): (SnapshotReader<'_>, LimitHead),
    (lines, tag): (HomeLines<'_>, Tag),
    count: Amount,
    now: Timestamp,
) -> Result<Verdict, Setback> {
    let attempt = Attempt { table, reader, head, lines, tag, count, now };
    match head.first().kind() {
        PackedKind::Bucket => attempt.decide::<Bucket, 3, 1>(),
        PackedKind::Window => attempt.decide::<Window, 3, 1>(),
        PackedKind::Total => attempt.decide::<Total, 3, 1>(),
        PackedKind::Sliding => attempt.decide::<Sliding, 3, 1>(),
        PackedKind::Interval => attempt.decide::<Interval, 2, 2>(),
        PackedKind::LongWindow => attempt.decide::<LongWindow, 2, 2>(),
        PackedKind::LongTotal => attempt.decide::<LongTotal, 2, 2>(),
    }
}

/// One attempt.
struct Attempt<'a> {
    table: &'a LimitTable,
    reader: SnapshotReader<'a>,
    head: LimitHead,
    lines: HomeLines<'a>,
    tag: Tag,
    count: Amount,
    now: Timestamp,
}

impl Attempt<'_> {
    /// Decides on a row of `W` words, `R` to a line.
    #[inline(always)]
    fn decide<L: PackedLaw, const R: usize, const W: usize>(self) -> Result<Verdict, Setback> {
        let Attempt { table, reader, head, lines, tag, count, now } = self;
        let header = &lines.leaf.header;
        if !reader.is_valid_at(now) || header.epoch() != reader.epoch() {
            return Err(Setback::Locked);
        }
        let law = L::of(&reader.item(0));
        let Some(place) = lines.find::<R>(tag) else { return Err(Setback::Absent { ask: 0 }) };
        if place.seen & LOCKED != 0 {
            return Err(Setback::Again);
        }
        let (row, control) = (place.line.row::<W>(place.slot), place.line.control());
        let mut words = [row[0].load(Ordering::Relaxed), 0];
        if W > 1 {
            words[1] = row[1].load(Ordering::Relaxed);
        }
        if header.floor() > now {
            return Err(Setback::At(header.floor()));
        }
        if words[0] & FULL != 0 {
            return Err(Setback::Locked);
        }
        let cost = head.first().cost(AskTotals::of(count));
        let mine = table.counts.mine();
        match law.judge(words, cost, now, &table.rows.slab) {
            Judged::Granted(next) => {
                if !line::try_lock(control, place.seen) {
                    return Err(Setback::Again);
                }
                if !reader.is_current() {
                    line::unlock_unchanged(control, place.seen);
                    return Err(Setback::Again);
                }
                let Some(next) = law.charge_locked(next, cost, now, &table.rows.slab, &table.budget) else {
                    line::unlock_unchanged(control, place.seen);
                    return Err(Setback::Locked);
                };
                row[0].store(next[0], Ordering::Relaxed);
                if W > 1 {
                    row[1].store(next[1], Ordering::Relaxed);
                }
                line::unlock(control, place.seen);
                mine.granted();
                Ok(Verdict::Granted)
            }
            // The promised instant of a limit that ends is checked a second time.
            Judged::Denied(_) if head.has_end() => Err(Setback::Locked),
            Judged::Denied(wait) => {
                if !line::is_unchanged(control, place.seen) || !reader.is_current() {
                    return Err(Setback::Again);
                }
                mine.refused(head.first().column(), 1);
                Ok(Verdict::Denied(wait))
            }
            Judged::At(later) => Err(Setback::At(later)),
            Judged::Locked => Err(Setback::Locked),
            Judged::Tidy => {
                let memory = (&table.rows.slab, &table.budget);
                reader.item(0).tidy(row, (control, place.seen), || reader.is_current(), now, memory);
                Err(Setback::Again)
            }
        }
    }
}
