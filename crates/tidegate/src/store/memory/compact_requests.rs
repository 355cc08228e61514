//! Compact batches: requests of one ask each, on limits with one item, decided in sequence by [the engine](super::engine).
//!
//! Processing stops at the first request that only the locked path can decide. That request has no effect yet.

use std::sync::Arc;

use arrayvec::ArrayVec;
use tidegate_core::limit::MAX_KEY_BYTES;
use tidegate_core::{Intent, Timestamp, Verdict};

use super::engine::{self, ObservedItem, ResolvedAsk, RowsDecision};
use super::leaf::HomeLines;
use super::limit_table::LimitTable;
use super::row_epoch::RowEpoch;
use super::{LOOK_AHEAD, Limits, StoreState};
use crate::store::compact::{CompactBatch, CompactReplies, CompactReply, CompactRequest, MOST_LIMITS};

/// A limit of the batch.
struct BatchLimit<'a> {
    table: &'a LimitTable,
    /// While it is held, no later epoch is dropped.
    held: Arc<RowEpoch>,
    /// The last epoch that decided, and the index of its limit in the replies.
    reported: Option<(u64, usize)>,
}

/// The limits of a batch, found when they are first asked.
struct BatchLimits<'a> {
    limits: &'a Limits,
    limit_ids: &'a [&'a str],
    /// `None` for unknown limits and those with several items.
    found: ArrayVec<Option<BatchLimit<'a>>, MOST_LIMITS>,
    places: [Option<usize>; MOST_LIMITS],
}

impl<'a> BatchLimits<'a> {
    /// The limit of a request, if the compact form can report it.
    fn of(&mut self, request: &CompactRequest<'_>) -> Option<&mut BatchLimit<'a>> {
        let place = if let Some(place) = *self.places.get(request.limit)? {
            place
        } else {
            let table = self.limits.get(*self.limit_ids.get(request.limit)?);
            let one = table.filter(|table| table.snapshot.read().head().items() == 1);
            let one = one.map(|table| BatchLimit { table, held: table.epoch(), reported: None });
            self.places[request.limit] = Some(self.found.len());
            self.found.push(one);
            self.found.len() - 1
        };
        self.found.get_mut(place)?.as_mut()
    }
}

impl BatchLimit<'_> {
    /// The index of an epoch's limit in the replies.
    fn text(&mut self, epoch: u64, replies: &mut CompactReplies) -> usize {
        if let Some((number, text)) = self.reported
            && number == epoch
        {
            return text;
        }
        let limit = if self.held.number == epoch {
            Arc::clone(&self.held.limit)
        } else {
            let later = self.table.epoch_of(epoch).expect("while an epoch is held, no later one is dropped");
            Arc::clone(&later.limit)
        };
        let text = replies.add_limit(limit);
        self.reported = Some((epoch, text));
        text
    }
}

impl StoreState {
    /// Decides requests until one needs the locked path.
    pub(super) fn submit_compact(&self, batch: &CompactBatch<'_>, replies: &mut CompactReplies) {
        let limits = self.limits();
        let mut found = BatchLimits {
            limits: &limits,
            limit_ids: batch.limit_ids,
            found: ArrayVec::new(),
            places: [None; MOST_LIMITS],
        };
        if batch.list.first().is_none_or(|first| found.of(first).is_none()) {
            return;
        }
        let mut now = self.now();
        for group in batch.list.chunks(LOOK_AHEAD) {
            if !decide_group(group, &mut found, &mut now, replies) {
                break;
            }
        }
    }
}

/// Decides a group. Returns `false` if not all of it was decided.
fn decide_group(
    group: &[CompactRequest<'_>],
    limits: &mut BatchLimits<'_>,
    now: &mut Timestamp,
    replies: &mut CompactReplies,
) -> bool {
    let mut asks: ArrayVec<Option<ResolvedAsk<'_>>, LOOK_AHEAD> = ArrayVec::new();
    for request in group {
        let ask = limits.of(request).map(|limit| {
            let table = limit.table;
            let tag = table.printer.print(request.key);
            table.home_lines(tag).iter().for_each(HomeLines::prefetch);
            ResolvedAsk { table, key: Some(request.key), tag: Some(tag), count: request.count }
        });
        asks.push(ask);
    }
    for (request, ask) in group.iter().zip(asks) {
        let (Some(ask), Some(limit)) = (ask, limits.of(request)) else { return false };
        let decided = if request.key.len() > MAX_KEY_BYTES { None } else { decide(ask, limit, now, replies) };
        let Some(reply) = decided else { return false };
        replies.push(reply);
    }
    true
}

/// Decides one request. `None` if only the locked path can.
fn decide(
    ask: ResolvedAsk<'_>,
    limit: &mut BatchLimit<'_>,
    now: &mut Timestamp,
    replies: &mut CompactReplies,
) -> Option<CompactReply> {
    if ask.table.snapshot.read().head().items() != 1 {
        return None;
    }
    let (mut observed, mut note) = (None, None);
    let mut observer = |item: &ObservedItem<'_>| {
        observed = Some((item.epoch, item.item, item.reading));
        note = item.charge_note(0);
    };
    let decision = engine::decide_rows(&[ask], Intent::Acquire, *now, &mut Some(&mut observer))?;
    let (verdict, at) = match decision {
        RowsDecision::Granted(at) => (Verdict::Granted, at),
        RowsDecision::Refused(refusal, at) => (Verdict::Denied(refusal.denial.wait), at),
    };
    *now = at;
    let (epoch, item, reading) = observed?;
    let text = limit.text(epoch, replies);
    let reply = CompactReply { verdict, reading, at, text, item };
    if let Some(mut note) = note {
        note.version = replies.text(&reply).version();
        if let Some(notes) = replies.notes() {
            notes.charges.push(note);
        }
    }
    Some(reply)
}
