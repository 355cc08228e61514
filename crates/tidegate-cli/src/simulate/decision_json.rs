//! Decisions of a simulation as JSON. The server's encoder writes them, so both outputs agree. A cache of formatted
//! dates is added, because a simulation may have millions of lines.

use std::time::Duration;

use tidegate::model::{Timestamp, Wait};
use tidegate::reply::{OrderReply, Outcome, Replies};
use tidegate_server::http::decision_json::{DecisionFields, DecisionVerdict, LeaseFields, write_fields};

use crate::instant;

/// Writes decisions.
#[derive(Debug, Default)]
pub(super) struct DecisionJsonWriter {
    instants: instant::InstantWriter,
}

impl DecisionJsonWriter {
    /// Appends the fields of a decision, from `"allowed"` to `"readings"`, without braces.
    pub(super) fn write(&mut self, answer: &OrderReply, answers: &Replies, out: &mut Vec<u8>) {
        let verdict =
            match &answer.outcome {
                Outcome::Granted(grant) => DecisionVerdict::Granted(grant.as_ref().map(|grant| {
                    LeaseFields { id: grant.lease, expires_at: grant.expires_at, fences: &grant.fences }
                })),
                Outcome::Denied(denied) => DecisionVerdict::Denied {
                    limit_id: denied.limit.id(),
                    item: denied.item_name(),
                    wait: Some((denied.wait, wait_time(denied.wait, answer.at))),
                },
            };
        let decision =
            DecisionFields { verdict, degraded: answer.degraded, readings: answers.readings(answer) };
        write_fields(&decision, out, &mut |at, out| self.instants.write(at, out));
    }

    /// Appends an instant in quotes.
    pub(super) fn instant(&mut self, at: Timestamp, out: &mut Vec<u8>) {
        out.push(b'"');
        self.instants.write(at, out);
        out.push(b'"');
    }
}

/// The time to wait, if it is known. A tick of a simulated store is a nanosecond.
fn wait_time(wait: Wait, decided_at: Timestamp) -> Option<Duration> {
    match wait {
        Wait::Until(until) => Some(Duration::from_nanos(until.since(decided_at).ticks())),
        Wait::OnRelease | Wait::Never => None,
    }
}

/// Appends a whole number.
pub(super) fn number(value: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}
