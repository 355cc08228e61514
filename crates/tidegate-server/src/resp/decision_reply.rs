//! Decisions on the wire: which integers are said about an answer, and to whom.
//!
//! ```text
//!   TG.ACQUIRE, TG.PEEK   allowed  limit  remaining  retry_after ms  reset_after ms  item  lease
//!   CL.THROTTLE           limited  limit  remaining  retry_after s   reset_after s
//!   THROTTLE              allowed  limit  remaining  reset_after s   retry_after s
//! ```
//!
//! Times are rounded up, so that whoever waits as long as it is told is not told to wait again. What no time helps has a retry after
//! -1; 0 would say: at once.

use std::sync::Arc;

use tidegate::{
    Amount, Answer, Capacity, ItemReading, OrderError, Outcome, Reading, Replies, Span, Tick, Timestamp, Wait,
};

use super::command::Dialect;
use super::grant_template::Grants;
use super::reply::Writer;
use super::described_buckets::{Described, Throttles};

/// What an answer is owed to, and in which words it is to be said.
#[derive(Debug)]
pub(super) enum Due {
    /// `TG.ACQUIRE` and `TG.PEEK`.
    Question,
    /// `CL.THROTTLE` and `THROTTLE`.
    Throttle(Dialect, Arc<Described>),
}

/// Says what a store answered.
pub(super) struct Speaker<'a, 'o> {
    pub(super) writer: Writer<'o>,
    pub(super) tick: Tick,
    pub(super) throttles: &'a Throttles,
}

impl Speaker<'_, '_> {
    /// Says one answer of a batch.
    pub(super) fn say(&mut self, due: &Due, answers: &Replies, index: usize) {
        match (answers.get(index), due) {
            (Some(Ok(answer)), Due::Question) => self.question(answer, answers.readings(answer)),
            (Some(Ok(answer)), Due::Throttle(dialect, described)) => {
                described.used_at(answer.at);
                self.throttle(*dialect, answer, answers.readings(answer));
            }
            (Some(Err(OrderError::UnknownLimit { .. })), Due::Throttle(_, described)) => {
                self.throttles.strike(described);
                self.writer.error("UNAVAILABLE", "somebody removed this rate just now; ask again");
            }
            (Some(Err(rejection)), _) => self.rejection(rejection),
            (None, _) => self.writer.error("UNAVAILABLE", "the store gave no answer"),
        }
    }

    /// Says why an order could not be asked.
    pub(super) fn rejection(&mut self, rejection: &OrderError) {
        let code = if matches!(rejection, OrderError::UnknownLimit { .. }) { "NOLIMIT" } else { "ERR" };
        self.writer.error(code, rejection);
    }

    fn question(&mut self, answer: &Answer, readings: &[ItemReading]) {
        self.told(answer.is_granted(), &Told::of(answer, readings, self.tick));
        match &answer.outcome {
            Outcome::Granted(None) => self.writer.nothing_twice(),
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

    /// Says that a question is granted because its limit says so while the store cannot answer. Nothing else is known.
    pub(super) fn granted_by_rule(&mut self) {
        self.writer.five(b"*7\r\n", [1, -1, -1, -1, -1]);
        self.writer.nothing_twice();
    }

    /// Says that a bid was granted.
    #[inline]
    pub(super) fn grant(&mut self, reading: &Reading, at: Timestamp, grants: &mut Grants) {
        let reset_after = reading.resets_at.map(|resets_at| {
            let span = resets_at.since(at);
            Rounded { span, tick: self.tick }.milliseconds()
        });
        self.writer.whole(grants.reply(reading.capacity, reading.remaining, reset_after));
    }

    /// Says that a bid was denied, and by which item.
    pub(super) fn denial(&mut self, reading: &Reading, wait: Wait, at: Timestamp, item: &str) {
        let told = Told::about(Some(reading), retry_at(wait), at, self.tick);
        self.told(false, &told);
        self.writer.bulk(item.as_bytes());
        self.writer.bulk(b"");
    }

    fn told(&mut self, is_granted: bool, told: &Told) {
        let retry_after = told.retry_after.map_or(-1, Rounded::milliseconds);
        let reset_after = told.reset_after.map_or(-1, Rounded::milliseconds);
        let is_granted = i64::from(is_granted);
        self.writer.five(b"*7\r\n", [is_granted, told.limit, told.remaining, retry_after, reset_after]);
    }

    fn throttle(&mut self, dialect: Dialect, answer: &Answer, readings: &[ItemReading]) {
        let told = Told::of(answer, readings, self.tick);
        let is_granted = answer.is_granted();
        let retry_after = told.retry_after.map_or(-1, Rounded::seconds);
        // Nothing in use has nothing to wait for.
        let reset_after = told.reset_after.map_or(0, Rounded::seconds);
        let integers = match dialect {
            Dialect::Cell => [i64::from(!is_granted), told.limit, told.remaining, retry_after, reset_after],
            Dialect::Crab => {
                let retry_after = if is_granted { 0 } else { retry_after };
                [i64::from(is_granted), told.limit, told.remaining, reset_after, retry_after]
            }
        };
        self.writer.five(b"*5\r\n", integers);
    }
}

/// What is told about an answer: of the item that binds, or on a grant of the one with the least left.
struct Told {
    limit: i64,
    remaining: i64,
    retry_after: Option<Rounded>,
    reset_after: Option<Rounded>,
}

impl Told {
    fn of(answer: &Answer, readings: &[ItemReading], tick: Tick) -> Told {
        let (item, retry_at) = match &answer.outcome {
            Outcome::Granted(_) => {
                (readings.iter().min_by_key(|it| it.reading.remaining.unwrap_or(Amount::MAX)), None)
            }
            Outcome::Denied(denied) => {
                let binds = |it: &&ItemReading| it.item == denied.item && it.limit.id() == denied.limit.id();
                (readings.iter().find(binds), retry_at(denied.wait))
            }
        };
        Told::about(item.map(|item| &item.reading), retry_at, answer.at, tick)
    }

    fn about(reading: Option<&Reading>, retry_at: Option<Timestamp>, at: Timestamp, tick: Tick) -> Told {
        let after = |then: Timestamp| Rounded { span: then.since(at), tick };
        Told {
            // A limit that is off says nothing, and refuses nothing.
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

/// The instant at which asking again helps, if there is one.
fn retry_at(wait: Wait) -> Option<Timestamp> {
    match wait {
        Wait::Until(at) => Some(at),
        Wait::OnRelease | Wait::Never => None,
    }
}

/// A span that will be told in whole units, rounded up.
#[derive(Clone, Copy)]
struct Rounded {
    span: Span,
    tick: Tick,
}

impl Rounded {
    fn milliseconds(self) -> i64 {
        if self.tick == Tick::NANOSECOND {
            // What it comes to below, without numbers of 128 bits.
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

/// The integers of the wire are signed. No limit is above them; what is counted without a limit may be.
pub(super) fn saturating(amount: Amount) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX)
}
