//! Replies to decision commands.
//!
//! ```text
//!   TG.ACQUIRE, TG.PEEK   allowed  limit  remaining  retry_after ms  reset_after ms  item  lease
//!   CL.THROTTLE           limited  limit  remaining  retry_after s   reset_after s
//!   THROTTLE              allowed  limit  remaining  reset_after s   retry_after s
//! ```
//!
//! Times are rounded up, so that a client that waits as long as it was told does not have to wait again. `retry_after` is -1 if waiting
//! does not help, because 0 would mean "at once".

use std::sync::Arc;

use tidegate::model::{Amount, Capacity, Reading, Span, Tick, Timestamp, Wait};
use tidegate::reply::{ItemReading, OrderError, OrderReply, Outcome, Replies};

use super::command::ThrottleDialect;
use super::described_buckets::{DescribedBucket, DescribedBuckets};
use super::grant_template::GrantTemplate;
use super::reply::RespWriter;

/// The reply format of a command.
#[derive(Debug)]
pub(super) enum ReplyFormat {
    /// `TG.ACQUIRE` and `TG.PEEK`.
    Decision,
    /// `CL.THROTTLE` and `THROTTLE`.
    Throttle(ThrottleDialect, Arc<DescribedBucket>),
}

/// Writes decisions as replies.
pub(super) struct DecisionWriter<'a, 'o> {
    pub(super) writer: RespWriter<'o>,
    pub(super) tick: Tick,
    pub(super) described_buckets: &'a DescribedBuckets,
}

impl DecisionWriter<'_, '_> {
    /// Writes the reply at this index of a batch.
    pub(super) fn write_reply(&mut self, format: &ReplyFormat, replies: &Replies, index: usize) {
        match (replies.get(index), format) {
            (Some(Ok(answer)), ReplyFormat::Decision) => {
                self.write_decision(answer, replies.readings(answer));
            }
            (Some(Ok(answer)), ReplyFormat::Throttle(dialect, bucket)) => {
                bucket.record_use(answer.at);
                self.write_throttle(*dialect, answer, replies.readings(answer));
            }
            (Some(Err(OrderError::UnknownLimit { .. })), ReplyFormat::Throttle(_, bucket)) => {
                self.described_buckets.forget(bucket);
                self.writer.error("UNAVAILABLE", "the limit of this rate was removed; retry");
            }
            (Some(Err(rejection)), _) => self.write_rejection(rejection),
            (None, _) => self.writer.error("UNAVAILABLE", "the store gave no answer"),
        }
    }

    /// Writes why an order was rejected.
    pub(super) fn write_rejection(&mut self, rejection: &OrderError) {
        let code = if matches!(rejection, OrderError::UnknownLimit { .. }) { "NOLIMIT" } else { "ERR" };
        self.writer.error(code, rejection);
    }

    fn write_decision(&mut self, answer: &OrderReply, readings: &[ItemReading]) {
        self.write_numbers(answer.is_granted(), &DecisionNumbers::of(answer, readings, self.tick));
        match &answer.outcome {
            Outcome::Granted(None) => self.writer.two_empty_bulks(),
            Outcome::Granted(Some(grant)) => {
                self.writer.bulk(b"");
                self.writer.bulk(grant.lease.to_string().as_bytes());
            }
            Outcome::Denied(denied) => {
                self.writer.bulk(denied.item_name().as_bytes());
                self.writer.bulk(b"");
            }
        }
    }

    /// Writes a grant by the limit's `on_outage` policy; all numbers are unknown.
    pub(super) fn write_outage_grant(&mut self) {
        self.writer.five(b"*7\r\n", [1, -1, -1, -1, -1]);
        self.writer.two_empty_bulks();
    }

    /// Writes a grant of a compact request.
    #[inline]
    pub(super) fn write_grant(&mut self, reading: &Reading, at: Timestamp, template: &mut GrantTemplate) {
        let reset_after = reading.resets_at.map(|resets_at| {
            let span = resets_at.since(at);
            RoundedSpan { span, tick: self.tick }.milliseconds()
        });
        self.writer.raw(template.render(reading.capacity, reading.remaining, reset_after));
    }

    /// Writes a denial of a compact request with the binding item.
    pub(super) fn write_denial(&mut self, reading: &Reading, wait: Wait, at: Timestamp, item: &str) {
        let numbers = DecisionNumbers::about(Some(reading), retry_at(wait), at, self.tick);
        self.write_numbers(false, &numbers);
        self.writer.bulk(item.as_bytes());
        self.writer.bulk(b"");
    }

    fn write_numbers(&mut self, is_granted: bool, numbers: &DecisionNumbers) {
        let retry_after = numbers.retry_after.map_or(-1, RoundedSpan::milliseconds);
        let reset_after = numbers.reset_after.map_or(-1, RoundedSpan::milliseconds);
        let is_granted = i64::from(is_granted);
        self.writer.five(b"*7\r\n", [is_granted, numbers.limit, numbers.remaining, retry_after, reset_after]);
    }

    fn write_throttle(&mut self, dialect: ThrottleDialect, answer: &OrderReply, readings: &[ItemReading]) {
        let numbers = DecisionNumbers::of(answer, readings, self.tick);
        let is_granted = answer.is_granted();
        let retry_after = numbers.retry_after.map_or(-1, RoundedSpan::seconds);
        // An unused bucket needs no reset.
        let reset_after = numbers.reset_after.map_or(0, RoundedSpan::seconds);
        let integers = match dialect {
            ThrottleDialect::Cell => {
                [i64::from(!is_granted), numbers.limit, numbers.remaining, retry_after, reset_after]
            }
            ThrottleDialect::Crab => {
                let retry_after = if is_granted { 0 } else { retry_after };
                [i64::from(is_granted), numbers.limit, numbers.remaining, reset_after, retry_after]
            }
        };
        self.writer.five(b"*5\r\n", integers);
    }
}

/// The numbers of a reply: of the binding item, or for a grant of the item with the least remaining.
struct DecisionNumbers {
    limit: i64,
    remaining: i64,
    retry_after: Option<RoundedSpan>,
    reset_after: Option<RoundedSpan>,
}

impl DecisionNumbers {
    fn of(answer: &OrderReply, readings: &[ItemReading], tick: Tick) -> DecisionNumbers {
        let (item, retry_at) = match &answer.outcome {
            Outcome::Granted(_) => {
                (readings.iter().min_by_key(|it| it.reading.remaining.unwrap_or(Amount::MAX)), None)
            }
            Outcome::Denied(denied) => {
                let binds = |it: &&ItemReading| it.item == denied.item && it.limit.id() == denied.limit.id();
                (readings.iter().find(binds), retry_at(denied.wait))
            }
        };
        DecisionNumbers::about(item.map(|item| &item.reading), retry_at, answer.at, tick)
    }

    fn about(
        reading: Option<&Reading>,
        retry_at: Option<Timestamp>,
        at: Timestamp,
        tick: Tick,
    ) -> DecisionNumbers {
        let after = |then: Timestamp| RoundedSpan { span: then.since(at), tick };
        DecisionNumbers {
            // A limit that is switched off has no readings and denies nothing.
            limit: reading.map_or(-1, |reading| match reading.capacity {
                Capacity::Unlimited => -1,
                Capacity::AtMost(amount) => saturating(amount),
            }),
            remaining: reading.and_then(|reading| reading.remaining).map_or(-1, saturating),
            retry_after: retry_at.map(after),
            reset_after: reading.and_then(|reading| reading.resets_at).map(after),
        }
    }
}

/// When a retry can succeed, if that is known.
fn retry_at(wait: Wait) -> Option<Timestamp> {
    match wait {
        Wait::Until(at) => Some(at),
        Wait::OnRelease | Wait::Never => None,
    }
}

/// A span that is rounded up to whole units.
#[derive(Clone, Copy)]
struct RoundedSpan {
    span: Span,
    tick: Tick,
}

impl RoundedSpan {
    fn milliseconds(self) -> i64 {
        if self.tick == Tick::NANOSECOND {
            // The same result as below without 128-bit arithmetic.
            return saturating(self.span.ticks().div_ceil(1_000_000));
        }
        let time = self.tick.duration(self.span);
        let parts = u64::from(time.subsec_nanos().div_ceil(1_000_000));
        saturating(time.as_secs().saturating_mul(1_000).saturating_add(parts))
    }

    fn seconds(self) -> i64 {
        let time = self.tick.duration(self.span);
        saturating(time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0)))
    }
}

/// Wire integers are signed. No limit exceeds them; a counter without a limit may.
pub(super) fn saturating(amount: Amount) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX)
}
