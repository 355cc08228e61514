//! The library's decisions as JSON; see [`crate::http::decision`] for how they are written.

use std::sync::Arc;

use tidegate::{Decision, Lease, Limit, Tick};

use super::instant;
use crate::http::decision_json::{DecisionFields, DecisionVerdict, LeaseFields, write_fields};

/// Room for a decision over a few items.
const INITIAL_CAPACITY: usize = 512;

/// The JSON of a decision of a store that keeps time in this tick. What a grant holds is handed over to whoever
/// reads it: it lapses, or is given back by its id.
pub(in crate::http) fn write(decision: Decision, tick: Tick) -> Vec<u8> {
    match decision {
        Decision::Granted(granted) => {
            let verdict = DecisionVerdict::Granted(granted.lease().map(lease_fields));
            let out = to_object(
                &DecisionFields { verdict, degraded: granted.degraded, readings: granted.readings() },
                tick,
            );
            granted.into_lease().map(Lease::into_id);
            out
        }
        Decision::Denied(denial) => {
            let wait = Some((denial.wait, denial.retry_after()));
            let verdict =
                DecisionVerdict::Denied { limit_id: denial.limit_id(), item: denial.item_name(), wait };
            to_object(
                &DecisionFields { verdict, degraded: denial.degraded, readings: denial.readings() },
                tick,
            )
        }
    }
}

/// The JSON of an answer by rule: the store could not tell, and the limits say what that means. `refusal` is one
/// that says no. Nothing is promised about when to come back.
pub(in crate::http) fn write_outage_decision(refusal: Option<&Arc<Limit>>) -> Vec<u8> {
    let verdict = match refusal {
        None => DecisionVerdict::Granted(None),
        Some(limit) => {
            let item = limit.items().first().map_or("", |item| item.name());
            DecisionVerdict::Denied { limit_id: limit.id(), item, wait: None }
        }
    };
    // It has no instants.
    to_object(&DecisionFields { verdict, degraded: true, readings: &[] }, Tick::NANOSECOND)
}

fn lease_fields(lease: &Lease) -> LeaseFields<'_> {
    LeaseFields { id: lease.id(), expires_at: lease.expires_at(), fences: lease.fences() }
}

fn to_object(fields: &DecisionFields<'_>, tick: Tick) -> Vec<u8> {
    let mut out = Vec::with_capacity(INITIAL_CAPACITY);
    out.push(b'{');
    write_fields(fields, &mut out, &mut |at, out| instant::write(at, tick, out));
    out.push(b'}');
    out
}
