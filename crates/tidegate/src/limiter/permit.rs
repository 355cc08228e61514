//! A granted request.
//!
//! A permit owns the lease that came with the grant, if there is one. Dropping the permit gives the lease back.
//! Most grants come without lease, readings or shadowed limits, so those parts lie behind pointers and a permit stays
//! small.

use std::sync::Arc;

use tidegate_core::{Limit, Timestamp};

use super::lease::Lease;
use crate::reply::ItemReading;

/// Proof that everything a request asked for was charged. The permit of a peek proves only that it would fit.
#[derive(Debug)]
#[must_use = "a permit may own a lease, which is given back when the permit is dropped"]
pub struct Permit {
    at: Option<Timestamp>,
    lease: Option<Lease>,
    details: Option<Box<PermitDetails>>,
}

/// What few permits have.
#[derive(Debug, Default)]
pub(super) struct PermitDetails {
    pub(super) shadowed: Vec<Arc<Limit>>,
    pub(super) is_degraded: bool,
    pub(super) readings: Vec<ItemReading>,
}

impl Permit {
    /// The permit of the fast path, which has no lease and reads no clock.
    pub(super) const EMPTY: Permit = Permit { at: None, lease: None, details: None };

    /// A permit with everything the store replied.
    pub(super) fn new(at: Timestamp, lease: Option<Lease>, details: PermitDetails) -> Permit {
        let PermitDetails { shadowed, is_degraded, readings } = &details;
        let has_details = !shadowed.is_empty() || *is_degraded || !readings.is_empty();
        Permit { at: Some(at), lease, details: has_details.then(|| Box::new(details)) }
    }

    /// The instant of the decision, by the store's clock. `None` for grants of
    /// [`LimitHandle::try_acquire`](super::LimitHandle::try_acquire) over a memory store, which does not report it.
    pub fn at(&self) -> Option<Timestamp> {
        self.at
    }

    /// The instant of the decision of an order, which always has one.
    pub(crate) fn decided_at(&self) -> Timestamp {
        self.at.unwrap_or(Timestamp::EPOCH)
    }

    /// The lease, if the request was a hold or a `concurrency` item was charged.
    pub fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    /// Takes the lease out of the permit, so that it can be kept, renewed or settled.
    pub fn into_lease(self) -> Option<Lease> {
        self.lease
    }

    /// Limits in shadow mode that would have refused.
    pub fn shadowed(&self) -> &[Arc<Limit>] {
        self.details.as_ref().map_or(&[], |details| &details.shadowed)
    }

    /// Whether the store granted without counting. The stores of this workspace never do; a store may.
    pub fn is_degraded(&self) -> bool {
        self.details.as_ref().is_some_and(|details| details.is_degraded)
    }

    /// Every item's reading after the decision; empty unless the request asked for readings.
    pub fn readings(&self) -> &[ItemReading] {
        self.details.as_ref().map_or(&[], |details| &details.readings)
    }

    /// The readings alone.
    pub(super) fn into_readings(self) -> Vec<ItemReading> {
        self.details.map(|details| details.readings).unwrap_or_default()
    }
}
