//! The library's decisions as JSON; [`crate::http::decision_json`] does the encoding.

use std::sync::Arc;

use tidegate::model::{Limit, Tick};
use tidegate::{Lease, Permit, Refused};

use super::instant;
use crate::http::decision_json::{DecisionFields, DecisionVerdict, LeaseFields, write_fields};

/// Enough for a decision over a few items.
const INITIAL_CAPACITY: usize = 512;

/// Encodes a decision. The lease of a grant is detached: it expires or is released by its id.
pub(in crate::http) fn write(decision: Result<Permit, Refused>, tick: Tick) -> Vec<u8> {
    match decision {
        Ok(permit) => {
            let verdict = DecisionVerdict::Granted(permit.lease().map(lease_fields));
            let out = to_object(
                &DecisionFields { verdict, degraded: permit.is_degraded(), readings: permit.readings() },
                tick,
            );
            permit.into_lease().map(Lease::into_id);
            out
        }
        Err(refused) => {
            let wait = Some((refused.wait(), refused.retry_after()));
            let verdict =
                DecisionVerdict::Denied { limit_id: refused.limit_id(), item: refused.item(), wait };
            to_object(
                &DecisionFields { verdict, degraded: refused.is_degraded(), readings: refused.readings() },
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
