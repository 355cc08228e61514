//! The wire form of a decision, as JSON.
//!
//! Written by hand into one buffer: a simulated day is millions of these, and a tree of values for each would cost
//! more than deciding it. The order of the fields is part of the contract. Ids and item names need no escapes: they
//! are letters, digits and `. _ : / -`, or they would not have become limits.

use tidegate::{Answer, Answers, Capacity, Grant, ItemReading, Outcome, Timestamp, Wait};

use crate::instant;

/// Writes decisions.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    instants: instant::Writer,
}

impl Writer {
    /// Appends the fields of a decision, from `"allowed"` to `"readings"`, without the braces around them.
    pub(crate) fn write(&mut self, answer: &Answer, answers: &Answers, out: &mut Vec<u8>) {
        match &answer.outcome {
            Outcome::Granted(grant) => {
                out.extend_from_slice(b"\"allowed\":true,\"lease\":");
                match grant {
                    Some(grant) => self.lease(grant, out),
                    None => out.extend_from_slice(b"null"),
                }
                out.extend_from_slice(b",\"binding\":null,\"wait\":null,\"retry_after_ms\":null");
            }
            Outcome::Denied(denied) => {
                out.extend_from_slice(b"\"allowed\":false,\"lease\":null,\"binding\":{\"limit_id\":\"");
                out.extend_from_slice(denied.limit.id().as_bytes());
                out.extend_from_slice(b"\",\"item\":\"");
                out.extend_from_slice(denied.item_name().as_bytes());
                out.extend_from_slice(b"\"},");
                wait(denied.wait, answer.at, out);
            }
        }
        out.extend_from_slice(if answer.degraded { b",\"degraded\":true" } else { b",\"degraded\":false" });
        out.extend_from_slice(b",\"readings\":[");
        for (index, reading) in answers.readings(answer).iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            self.reading(reading, out);
        }
        out.push(b']');
    }

    /// Appends an instant in quotes.
    pub(crate) fn instant(&mut self, at: Timestamp, out: &mut Vec<u8>) {
        out.push(b'"');
        self.instants.write(at, out);
        out.push(b'"');
    }

    /// One limit has one fence; several have one each.
    fn lease(&mut self, grant: &Grant, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"id\":\"");
        out.extend_from_slice(grant.lease.to_string().as_bytes());
        out.extend_from_slice(b"\",\"fence\":");
        match &*grant.fences {
            [(_, fence)] => number(*fence, out),
            _ => out.extend_from_slice(b"null"),
        }
        out.extend_from_slice(b",\"expires_at\":");
        self.instant(grant.expires_at, out);
        if grant.fences.len() > 1 {
            out.extend_from_slice(b",\"fences\":{");
            for (index, (limit, fence)) in grant.fences.iter().enumerate() {
                out.extend_from_slice(if index > 0 { b",\"" } else { b"\"" });
                out.extend_from_slice(limit.id().as_bytes());
                out.extend_from_slice(b"\":");
                number(*fence, out);
            }
            out.push(b'}');
        }
        out.push(b'}');
    }

    fn reading(&mut self, item: &ItemReading, out: &mut Vec<u8>) {
        let reading = &item.reading;
        out.extend_from_slice(b"{\"limit_id\":\"");
        out.extend_from_slice(item.limit.id().as_bytes());
        out.extend_from_slice(b"\",\"item\":\"");
        out.extend_from_slice(item.limit.items()[item.item].name().as_bytes());
        out.extend_from_slice(b"\",\"limit\":");
        match reading.capacity {
            Capacity::AtMost(limit) => number(limit, out),
            Capacity::Unlimited => out.extend_from_slice(b"-1"),
        }
        out.extend_from_slice(b",\"used\":");
        number(reading.used, out);
        out.extend_from_slice(b",\"remaining\":");
        match reading.remaining {
            Some(remaining) => number(remaining, out),
            None => out.extend_from_slice(b"-1"),
        }
        out.extend_from_slice(b",\"resets_at\":");
        match reading.resets_at {
            Some(at) => self.instant(at, out),
            None => out.extend_from_slice(b"null"),
        }
        out.push(b'}');
    }
}

/// `"wait"` and `"retry_after_ms"`, which is rounded up: asking then is not too early.
fn wait(wait: Wait, decided_at: Timestamp, out: &mut Vec<u8>) {
    match wait {
        Wait::Until(until) => {
            out.extend_from_slice(b"\"wait\":\"until\",\"retry_after_ms\":");
            number(until.since(decided_at).ticks().div_ceil(1_000_000), out);
        }
        Wait::OnRelease => out.extend_from_slice(b"\"wait\":\"on_release\",\"retry_after_ms\":null"),
        Wait::Never => out.extend_from_slice(b"\"wait\":\"never\",\"retry_after_ms\":null"),
    }
}

/// Appends a whole number.
pub(crate) fn number(value: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}
