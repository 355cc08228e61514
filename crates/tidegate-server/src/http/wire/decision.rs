//! The library's decisions as JSON; [`crate::http::decision_json`] does the encoding.

use std::sync::Arc;

use tidegate::{Decision, Lease, Limit, Tick};

use super::instant;
use crate::http::decision_json::{DecisionFields, DecisionVerdict, LeaseFields, write_fields};

/// Enough for a decision over a few items.
const INITIAL_CAPACITY: usize = 512;

/// Encodes a decision. The lease of a grant is detached: it expires or is released by its id.
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

/// Encodes a decision made by policy during a store outage: denied by the limit `refusal`, or granted. No retry time is known.
pub(in crate::http) fn write_outage_decision(refusal: Option<&Arc<Limit>>) -> Vec<u8> {
    let verdict = match refusal {
        None => DecisionVerdict::Granted(None),
        Some(limit) => {
            let item = limit.items().first().map_or("", |item| item.name());
            DecisionVerdict::Denied { limit_id: limit.id(), item, wait: None }
        }
    };
    // No instants are written, so the tick does not matter.
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
