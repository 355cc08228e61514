//! A decision as JSON, written by hand into one buffer.
//!
//! The order of the fields is part of the contract. Ids and item names need no escapes: they are letters, digits and
//! `. _ : / -`, or they would not have become limits.

use std::sync::Arc;

use tidegate::{Capacity, Decision, Denial, Granted, ItemReading, Lease, Limit, Tick, Wait};

use super::instant;

/// The JSON of a decision of a store that keeps time in this tick. What a grant holds is handed over to whoever
/// reads it: it lapses, or is given back by its id.
pub(in crate::http) fn write(decision: Decision, tick: Tick) -> Vec<u8> {
    let mut out = Writer { out: Vec::with_capacity(512), tick };
    match decision {
        Decision::Granted(granted) => out.granted(granted),
        Decision::Denied(denial) => out.denied(&denial),
    }
    out.out
}

/// The JSON of an answer by rule: the store could not tell, and the limits say what that means. `refusing` is one
/// that says no. Nothing is promised about when to come back.
pub(in crate::http) fn by_rule(refusing: Option<&Arc<Limit>>) -> Vec<u8> {
    let mut out = Vec::with_capacity(192);
    match refusing {
        None => out.extend_from_slice(b"{\"allowed\":true,\"lease\":null,\"binding\":null,"),
        Some(limit) => {
            out.extend_from_slice(b"{\"allowed\":false,\"lease\":null,");
            let item = limit.items().first().map_or("", |item| item.name());
            binding(&mut out, limit.id(), item);
        }
    }
    out.extend_from_slice(b"\"wait\":null,\"retry_after_ms\":null,\"degraded\":true,\"readings\":[]}");
    out
}

/// `"binding"` and its comma.
fn binding(out: &mut Vec<u8>, limit_id: &str, item: &str) {
    out.extend_from_slice(b"\"binding\":{\"limit_id\":\"");
    out.extend_from_slice(limit_id.as_bytes());
    out.extend_from_slice(b"\",\"item\":\"");
    out.extend_from_slice(item.as_bytes());
    out.extend_from_slice(b"\"},");
}

struct Writer {
    out: Vec<u8>,
    tick: Tick,
}

impl Writer {
    fn granted(&mut self, granted: Granted) {
        self.text("{\"allowed\":true,\"lease\":");
        match granted.lease() {
            Some(lease) => self.lease(lease),
            None => self.text("null"),
        }
        self.text(",\"binding\":null,\"wait\":null,\"retry_after_ms\":null");
        self.rest(granted.degraded, granted.readings());
        granted.into_lease().map(Lease::into_id);
    }

    fn denied(&mut self, denial: &Denial) {
        self.text("{\"allowed\":false,\"lease\":null,");
        binding(&mut self.out, denial.limit_id(), denial.item_name());
        match (denial.wait, denial.retry_after()) {
            (Wait::Until(_), wait) => {
                self.text("\"wait\":\"until\",\"retry_after_ms\":");
                // Rounded up: asking then is not too early.
                let nanos = wait.unwrap_or_default().as_nanos();
                self.number(u64::try_from(nanos.div_ceil(1_000_000)).unwrap_or(u64::MAX));
            }
            (Wait::OnRelease, _) => self.text("\"wait\":\"on_release\",\"retry_after_ms\":null"),
            (Wait::Never, _) => self.text("\"wait\":\"never\",\"retry_after_ms\":null"),
        }
        self.rest(denial.degraded, denial.readings());
    }

    fn rest(&mut self, degraded: bool, readings: &[ItemReading]) {
        self.text(if degraded { ",\"degraded\":true" } else { ",\"degraded\":false" });
        self.text(",\"readings\":[");
        for (index, reading) in readings.iter().enumerate() {
            if index > 0 {
                self.text(",");
            }
            self.reading(reading);
        }
        self.text("]}");
    }

    /// One limit has one fence; several have one each.
    fn lease(&mut self, lease: &Lease) {
        self.text("{\"id\":\"");
        self.text(&lease.id().to_string());
        self.text("\",\"fence\":");
        match lease.fences() {
            [(_, fence)] => self.number(*fence),
            _ => self.text("null"),
        }
        self.text(",\"expires_at\":\"");
        self.text(&instant::of(lease.expires_at(), self.tick));
        self.text("\"");
        if lease.fences().len() > 1 {
            self.text(",\"fences\":{");
            for (index, (limit, fence)) in lease.fences().iter().enumerate() {
                self.text(if index > 0 { ",\"" } else { "\"" });
                self.text(limit.id());
                self.text("\":");
                self.number(*fence);
            }
            self.text("}");
        }
        self.text("}");
    }

    fn reading(&mut self, item: &ItemReading) {
        self.text("{\"limit_id\":\"");
        self.text(item.limit.id());
        self.text("\",\"item\":\"");
        self.text(item.limit.items().get(item.item).map_or("", |item| item.name()));
        self.text("\",\"limit\":");
        match item.reading.capacity {
            Capacity::AtMost(limit) => self.number(limit),
            Capacity::Unlimited => self.text("-1"),
        }
        self.text(",\"used\":");
        self.number(item.reading.used);
        self.text(",\"remaining\":");
        match item.reading.remaining {
            Some(remaining) => self.number(remaining),
            None => self.text("-1"),
        }
        self.text(",\"resets_at\":");
        match item.reading.resets_at {
            Some(at) => {
                self.text("\"");
                self.text(&instant::of(at, self.tick));
                self.text("\"");
            }
            None => self.text("null"),
        }
        self.text("}");
    }

    fn text(&mut self, text: &str) {
        self.out.extend_from_slice(text.as_bytes());
    }

    fn number(&mut self, value: u64) {
        self.text(itoa::Buffer::new().format(value));
    }
}
