//! A decision as JSON: the one writer for whoever speaks of decisions, over HTTP or into a file.
//!
//! Written by hand into one buffer: a simulated day is millions of these, a busy server as many a minute, and a tree of values for
//! each would cost more than deciding it. The order of the fields is part of the contract. Ids and item names need no
//! escapes: they are letters, digits and `. _ : / -`, or they would not have become limits.
//!
//! How an instant is written is the caller's: one knows which tick its store keeps time in, another remembers dates.

use std::sync::Arc;
use std::time::Duration;

use tidegate::{Capacity, ItemReading, LeaseId, Limit, Timestamp, Wait};

/// What a decision says, whoever made it.
#[derive(Debug)]
pub struct Said<'a> {
    /// Yes or no.
    pub verdict: Verdict<'a>,
    /// Whether it was answered without knowing.
    pub degraded: bool,
    /// What the items say about themselves afterwards.
    pub readings: &'a [ItemReading],
}

/// Yes or no.
#[derive(Debug)]
pub enum Verdict<'a> {
    /// All of it, with a lease if something is held.
    Granted(Option<Held<'a>>),
    /// None of it.
    Denied {
        /// The limit that binds.
        limit_id: &'a str,
        /// The item of it.
        item: &'a str,
        /// When asking again could help, and how long from now if that is a matter of time; `None` if nobody knows.
        wait: Option<(Wait, Option<Duration>)>,
    },
}

/// A lease.
#[derive(Debug)]
pub struct Held<'a> {
    /// Its identity.
    pub id: LeaseId,
    /// When it lapses.
    pub expires_at: Timestamp,
    /// For every limit it holds something of, its fence.
    pub fences: &'a [(Arc<Limit>, u64)],
}

/// Appends the fields of a decision, from `"allowed"` to `"readings"`, without the braces around them. `instant` appends
/// an instant without its quotes.
pub fn write_fields(said: &Said<'_>, out: &mut Vec<u8>, instant: &mut impl FnMut(Timestamp, &mut Vec<u8>)) {
    match &said.verdict {
        Verdict::Granted(held) => {
            text("\"allowed\":true,\"lease\":", out);
            match held {
                Some(held) => lease(held, out, instant),
                None => text("null", out),
            }
            text(",\"binding\":null,\"wait\":null,\"retry_after_ms\":null", out);
        }
        Verdict::Denied { limit_id, item, wait } => {
            text("\"allowed\":false,\"lease\":null,\"binding\":{\"limit_id\":\"", out);
            text(limit_id, out);
            text("\",\"item\":\"", out);
            text(item, out);
            text("\"},", out);
            waits(*wait, out);
        }
    }
    text(if said.degraded { ",\"degraded\":true" } else { ",\"degraded\":false" }, out);
    text(",\"readings\":[", out);
    for (index, item) in said.readings.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        reading(item, out, instant);
    }
    out.push(b']');
}

/// `"wait"` and `"retry_after_ms"`, which is rounded up: asking then is not too early.
fn waits(wait: Option<(Wait, Option<Duration>)>, out: &mut Vec<u8>) {
    match wait {
        Some((Wait::Until(_), time)) => {
            text("\"wait\":\"until\",\"retry_after_ms\":", out);
            let time = time.unwrap_or_default();
            let part = u64::from(time.subsec_nanos().div_ceil(1_000_000));
            number(time.as_secs().saturating_mul(1000).saturating_add(part), out);
        }
        Some((Wait::OnRelease, _)) => text("\"wait\":\"on_release\",\"retry_after_ms\":null", out),
        Some((Wait::Never, _)) => text("\"wait\":\"never\",\"retry_after_ms\":null", out),
        None => text("\"wait\":null,\"retry_after_ms\":null", out),
    }
}

/// One limit has one fence; several have one each.
fn lease(held: &Held<'_>, out: &mut Vec<u8>, instant: &mut impl FnMut(Timestamp, &mut Vec<u8>)) {
    text("{\"id\":\"", out);
    text(&held.id.to_string(), out);
    text("\",\"fence\":", out);
    match held.fences {
        [(_, fence)] => number(*fence, out),
        _ => text("null", out),
    }
    text(",\"expires_at\":\"", out);
    instant(held.expires_at, out);
    out.push(b'"');
    if held.fences.len() > 1 {
        text(",\"fences\":{", out);
        for (index, (limit, fence)) in held.fences.iter().enumerate() {
            text(if index > 0 { ",\"" } else { "\"" }, out);
            text(limit.id(), out);
            text("\":", out);
            number(*fence, out);
        }
        out.push(b'}');
    }
    out.push(b'}');
}

fn reading(item: &ItemReading, out: &mut Vec<u8>, instant: &mut impl FnMut(Timestamp, &mut Vec<u8>)) {
    text("{\"limit_id\":\"", out);
    text(item.limit.id(), out);
    text("\",\"item\":\"", out);
    text(item.limit.items().get(item.item).map_or("", |item| item.name()), out);
    text("\",\"limit\":", out);
    match item.reading.capacity {
        Capacity::AtMost(limit) => number(limit, out),
        Capacity::Unlimited => text("-1", out),
    }
    text(",\"used\":", out);
    number(item.reading.used, out);
    text(",\"remaining\":", out);
    match item.reading.remaining {
        Some(remaining) => number(remaining, out),
        None => text("-1", out),
    }
    text(",\"resets_at\":", out);
    match item.reading.resets_at {
        Some(at) => {
            out.push(b'"');
            instant(at, out);
            out.push(b'"');
        }
        None => text("null", out),
    }
    out.push(b'}');
}

fn text(text: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(text.as_bytes());
}

fn number(value: u64, out: &mut Vec<u8>) {
    text(itoa::Buffer::new().format(value), out);
}
