//! Encodes decisions as JSON, for HTTP responses and simulation output.
//!
//! Written by hand into one buffer: a simulated day has millions of decisions, and building a value tree for each would cost more than
//! deciding it. The order of the fields is part of the contract. Ids and item names need no escapes: validation admits only letters,
//! digits and `. _ : / -`.
//!
//! The caller formats instants: the server converts store ticks, the simulator caches dates.

use std::sync::Arc;
use std::time::Duration;

use tidegate::model::{Capacity, LeaseId, Limit, Timestamp, Wait};
use tidegate::reply::ItemReading;

/// The content of a decision.
#[derive(Debug)]
pub struct DecisionFields<'a> {
    /// Granted or denied.
    pub verdict: DecisionVerdict<'a>,
    /// Whether it was made by policy during a store outage.
    pub degraded: bool,
    /// The items' readings after the decision.
    pub readings: &'a [ItemReading],
}

/// Granted or denied.
#[derive(Debug)]
pub enum DecisionVerdict<'a> {
    /// Granted, with a lease if something is held.
    Granted(Option<LeaseFields<'a>>),
    /// Denied.
    Denied {
        /// The binding limit.
        limit_id: &'a str,
        /// Its binding item.
        item: &'a str,
        /// When a retry can succeed, and after how long if that is a matter of time; `None` if unknown.
        wait: Option<(Wait, Option<Duration>)>,
    },
}

/// A lease.
#[derive(Debug)]
pub struct LeaseFields<'a> {
    /// Its id.
    pub id: LeaseId,
    /// When it expires.
    pub expires_at: Timestamp,
    /// Its fencing token for every limit.
    pub fences: &'a [(Arc<Limit>, u64)],
}

/// Appends the fields from `"allowed"` to `"readings"`, without braces. `instant` appends an instant without quotes.
pub fn write_fields(
    decision: &DecisionFields<'_>,
    out: &mut Vec<u8>,
    instant: &mut impl FnMut(Timestamp, &mut Vec<u8>),
) {
    match &decision.verdict {
        DecisionVerdict::Granted(lease) => {
            push("\"allowed\":true,\"lease\":", out);
            match lease {
                Some(lease) => write_lease(lease, out, instant),
                None => push("null", out),
            }
            push(",\"binding\":null,\"wait\":null,\"retry_after_ms\":null", out);
        }
        DecisionVerdict::Denied { limit_id, item, wait } => {
            push("\"allowed\":false,\"lease\":null,\"binding\":{\"limit_id\":\"", out);
            push(limit_id, out);
            push("\",\"item\":\"", out);
            push(item, out);
            push("\"},", out);
            write_wait(*wait, out);
        }
    }
    push(if decision.degraded { ",\"degraded\":true" } else { ",\"degraded\":false" }, out);
    push(",\"readings\":[", out);
    for (index, item) in decision.readings.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write_reading(item, out, instant);
    }
    out.push(b']');
}

/// `"wait"` and `"retry_after_ms"`, rounded up so that a retry then is not too early.
fn write_wait(wait: Option<(Wait, Option<Duration>)>, out: &mut Vec<u8>) {
    match wait {
        Some((Wait::Until(_), time)) => {
            push("\"wait\":\"until\",\"retry_after_ms\":", out);
            let time = time.unwrap_or_default();
            let part = u64::from(time.subsec_nanos().div_ceil(1_000_000));
            push_number(time.as_secs().saturating_mul(1000).saturating_add(part), out);
        }
        Some((Wait::OnRelease, _)) => push("\"wait\":\"on_release\",\"retry_after_ms\":null", out),
        Some((Wait::Never, _)) => push("\"wait\":\"never\",\"retry_after_ms\":null", out),
        None => push("\"wait\":null,\"retry_after_ms\":null", out),
    }
}

/// A single limit has one `fence`; several have `fences`.
fn write_lease(
    lease: &LeaseFields<'_>,
    out: &mut Vec<u8>,
    instant: &mut impl FnMut(Timestamp, &mut Vec<u8>),
) {
    push("{\"id\":\"", out);
    push(&lease.id.to_string(), out);
    push("\",\"fence\":", out);
    match lease.fences {
        [(_, fence)] => push_number(*fence, out),
        _ => push("null", out),
    }
    push(",\"expires_at\":\"", out);
    instant(lease.expires_at, out);
    out.push(b'"');
    if lease.fences.len() > 1 {
        push(",\"fences\":{", out);
        for (index, (limit, fence)) in lease.fences.iter().enumerate() {
            push(if index > 0 { ",\"" } else { "\"" }, out);
            push(limit.id(), out);
            push("\":", out);
            push_number(*fence, out);
        }
        out.push(b'}');
    }
    out.push(b'}');
}

fn write_reading(item: &ItemReading, out: &mut Vec<u8>, instant: &mut impl FnMut(Timestamp, &mut Vec<u8>)) {
    push("{\"limit_id\":\"", out);
    push(item.limit.id(), out);
    push("\",\"item\":\"", out);
    push(item.limit.items().get(item.item).map_or("", |item| item.name()), out);
    push("\",\"limit\":", out);
    match item.reading.capacity {
        Capacity::AtMost(limit) => push_number(limit, out),
        Capacity::Unlimited => push("-1", out),
    }
    push(",\"used\":", out);
    push_number(item.reading.used, out);
    push(",\"remaining\":", out);
    match item.reading.remaining {
        Some(remaining) => push_number(remaining, out),
        None => push("-1", out),
    }
    push(",\"resets_at\":", out);
    match item.reading.resets_at {
        Some(at) => {
            out.push(b'"');
            instant(at, out);
            out.push(b'"');
        }
        None => push("null", out),
    }
    out.push(b'}');
}

fn push(text: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(text.as_bytes());
}

fn push_number(value: u64, out: &mut Vec<u8>) {
    push(itoa::Buffer::new().format(value), out);
}
