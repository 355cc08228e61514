//! The library's decisions as JSON; see [`crate::http::decision`] for how they are written.

use std::sync::Arc;

use tidegate::{Decision, Lease, Limit, Tick};

use super::instant;
use crate::http::decision_json::{Held, Said, Verdict, write_fields};

/// Room for a decision over a few items.
const ROOM: usize = 512;

/// The JSON of a decision of a store that keeps time in this tick. What a grant holds is handed over to whoever
/// reads it: it lapses, or is given back by its id.
pub(in crate::http) fn write(decision: Decision, tick: Tick) -> Vec<u8> {
    match decision {
        Decision::Granted(granted) => {
            let verdict = Verdict::Granted(granted.lease().map(held));
            let out =
                object(&Said { verdict, degraded: granted.degraded, readings: granted.readings() }, tick);
            granted.into_lease().map(Lease::into_id);
            out
        }
        Decision::Denied(denial) => {
            let wait = Some((denial.wait, denial.retry_after()));
            let verdict = Verdict::Denied { limit_id: denial.limit_id(), item: denial.item_name(), wait };
            object(&Said { verdict, degraded: denial.degraded, readings: denial.readings() }, tick)
        }
    }
}

/// The JSON of an answer by rule: the store could not tell, and the limits say what that means. `refusing` is one
/// that says no. Nothing is promised about when to come back.
pub(in crate::http) fn by_rule(refusing: Option<&Arc<Limit>>) -> Vec<u8> {
    let verdict = match refusing {
        None => Verdict::Granted(None),
        Some(limit) => {
            let item = limit.items().first().map_or("", |item| item.name());
            Verdict::Denied { limit_id: limit.id(), item, wait: None }
        }
    };
    // It has no instants.
    object(&Said { verdict, degraded: true, readings: &[] }, Tick::NANOSECOND)
}

fn held(lease: &Lease) -> Held<'_> {
    Held { id: lease.id(), expires_at: lease.expires_at(), fences: lease.fences() }
}

fn object(said: &Said<'_>, tick: Tick) -> Vec<u8> {
    let mut out = Vec::with_capacity(ROOM);
    out.push(b'{');
    write_fields(said, &mut out, &mut |at, out| instant::write(at, tick, out));
    out.push(b'}');
    out
}
