//! Compact batches: a pipeline of plain acquires on few limits.
//!
//! Their frames are recognized by [prefix](super::super::frame_prefix), submitted in the store's compact form, and answered from a
//! template. If another decision joins the batch, or the store stops answering compact requests, they become ordinary orders in
//! their place.

use tidegate::model::{Intent, Verdict};
use tidegate::store::compact::MOST_LIMITS;
use tidegate::store::{CompactBatch, CompactReply, CompactRequest};

use super::{RespSession, SessionBuffers};
use crate::resp::batch::{BatchEntry, MAX_BATCH};
use crate::resp::decision_reply::{DecisionWriter, ReplyFormat};
use crate::resp::deferred_reply::ReplySink;
use crate::resp::frame::Framing;
use crate::resp::frame_prefix::LimitIds;
use crate::resp::reply::RespWriter;

/// Decisions that are collected but not made: compact requests, then entries.
#[derive(Debug)]
pub(super) struct PipelineBatch<'i> {
    pub(super) entries: Vec<BatchEntry<'i>>,
    requests: Vec<CompactRequest<'i>>,
    limit_ids: LimitIds<'i>,
}

impl<'i> PipelineBatch<'i> {
    pub(super) fn new(entries: Vec<BatchEntry<'i>>, requests: Vec<CompactRequest<'i>>) -> PipelineBatch<'i> {
        PipelineBatch { entries, requests, limit_ids: [""; MOST_LIMITS] }
    }

    /// The vectors, for the next batch.
    pub(super) fn into_buffers(self) -> (Vec<BatchEntry<'i>>, Vec<CompactRequest<'i>>) {
        (self.entries, self.requests)
    }

    pub(super) fn is_full(&self) -> bool {
        self.entries.len().max(self.requests.len()) >= MAX_BATCH
    }

    /// Adds an order behind everything before it.
    pub(super) fn push(&mut self, entry: BatchEntry<'i>) {
        self.convert_to_orders(0);
        self.entries.push(entry);
    }

    /// Converts the compact requests that were not decided into entries.
    fn convert_to_orders(&mut self, decided: usize) {
        let limit_ids = &self.limit_ids;
        self.entries.extend(self.requests.drain(..).skip(decided).map(
            |CompactRequest { limit, key, count }| BatchEntry {
                format: ReplyFormat::Decision,
                intent: Intent::Acquire,
                limit_id: limit_ids[limit],
                key,
                count,
                request_id: None,
            },
        ));
    }
}

impl RespSession {
    /// Collects compact requests from the start of `rest`; returns how many bytes they take.
    #[inline]
    pub(super) fn read_compact<'i>(&mut self, rest: &'i [u8], batch: &mut PipelineBatch<'i>) -> usize {
        if !batch.entries.is_empty() || !self.reader.is_at_frame_start() {
            return 0;
        }
        let PipelineBatch { requests, limit_ids, .. } = batch;
        let before = requests.len();
        let length = self.prefixes.read_matching(rest, requests, limit_ids, MAX_BATCH);
        self.counts.commands += (requests.len() - before) as u64;
        length
    }

    /// Adds a parsed order. A plain acquire becomes a compact request, and its frame prefix is cached.
    pub(super) fn add_entry<'i>(
        &mut self,
        entry: BatchEntry<'i>,
        rest: &'i [u8],
        framing: Framing,
        batch: &mut PipelineBatch<'i>,
    ) {
        let is_compact = entry.intent == Intent::Acquire
            && entry.request_id.is_none()
            && matches!(entry.format, ReplyFormat::Decision)
            && framing == Framing::Array
            && batch.entries.is_empty();
        let pending = !batch.requests.is_empty();
        let limit = if is_compact {
            self.prefixes.add_limit(rest, &self.reader.arguments(rest), pending)
        } else {
            None
        };
        match limit {
            Some(limit) => {
                batch.limit_ids[limit] = entry.limit_id;
                batch.requests.push(CompactRequest { limit, key: entry.key, count: entry.count });
            }
            None => batch.push(entry),
        }
    }

    /// Submits the compact requests and writes the replies. Those that the store did not decide become entries.
    pub(super) fn decide_compact(&mut self, batch: &mut PipelineBatch<'_>, sink: &mut ReplySink<'_>) {
        if batch.requests.is_empty() {
            return;
        }
        let RespSession {
            service,
            buffers: SessionBuffers { compact_replies, grant_template, .. },
            counts,
            protocol,
            ..
        } = self;
        let requests = CompactBatch { limit_ids: &batch.limit_ids, list: &batch.requests };
        let result = service.limiter().submit_compact(&requests, compact_replies);
        let start = sink.output.len();
        let writer = RespWriter::new(sink.output, *protocol);
        let mut decisions =
            DecisionWriter { writer, tick: service.tick(), described_buckets: service.described_buckets() };
        let durable = match result {
            Ok(durable) => durable,
            Err(why) => {
                batch.requests.drain(..).for_each(|_| decisions.writer.error("UNAVAILABLE", &why));
                return;
            }
        };
        let (decided, mut refused) = (compact_replies.list().len(), 0);
        for (reply, request) in compact_replies.list().iter().zip(requests.list) {
            match reply.verdict {
                Verdict::Granted => decisions.write_grant(&reply.reading, reply.at, grant_template),
                Verdict::Denied(wait) => {
                    refused += 1;
                    let CompactReply { reading, at, item, .. } = reply;
                    let limit = compact_replies.text(reply);
                    decisions.write_denial(reading, wait, *at, limit.items()[*item].name());
                    service.record_refusal(limit, *item, request.key, *at);
                }
            }
        }
        counts.granted += decided as u64 - refused;
        counts.refused += refused;
        if decided > 0 {
            sink.defer(start, decided, durable);
        }
        batch.convert_to_orders(decided);
        // Drop the references to limits that may be removed soon.
        compact_replies.clear();
    }
}
