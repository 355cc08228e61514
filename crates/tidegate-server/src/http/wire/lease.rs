//! Leases by their ids: given back, renewed, settled.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use tidegate::LeaseId;
use tidegate_core::order::MAX_ASKS;

use super::number::{WholeNumber, optional};

/// Which lease.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct ReleaseBody<'a> {
    #[serde(borrow)]
    lease_id: Cow<'a, str>,
}

impl ReleaseBody<'_> {
    /// `None` if no lease can have this id.
    pub(in crate::http) fn lease(&self) -> Option<LeaseId> {
        LeaseId::parse(&self.lease_id)
    }
}

/// Which lease, and how long from now it lasts: as long as when it was granted unless said.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct RenewBody<'a> {
    #[serde(borrow)]
    lease_id: Cow<'a, str>,
    #[serde(default, deserialize_with = "ttl_ms")]
    ttl_ms: Option<u64>,
}

impl RenewBody<'_> {
    pub(in crate::http) fn lease(&self) -> Option<LeaseId> {
        LeaseId::parse(&self.lease_id)
    }

    pub(in crate::http) fn ttl(&self) -> Option<Duration> {
        self.ttl_ms.map(Duration::from_millis)
    }
}

/// Which lease, and what was truly spent.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct SettleBody<'a> {
    #[serde(borrow)]
    lease_id: Cow<'a, str>,
    pub(in crate::http) actual: ActualCost,
}

impl SettleBody<'_> {
    pub(in crate::http) fn lease(&self) -> Option<LeaseId> {
        LeaseId::parse(&self.lease_id)
    }
}

/// What was truly spent: the same for every ask, or one number for each.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::http) enum ActualCost {
    Every(u64),
    Each(Vec<u64>),
}

impl<'de> Deserialize<'de> for ActualCost {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<ActualCost, D::Error> {
        reader.deserialize_any(ActualCostVisitor)
    }
}

struct ActualCostVisitor;

impl<'de> Visitor<'de> for ActualCostVisitor {
    type Value = ActualCost;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        WholeNumber("actual").expecting(f)?;
        write!(f, ", or a list of at most {MAX_ASKS} such numbers")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<ActualCost, E> {
        Ok(ActualCost::Every(number))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<ActualCost, A::Error> {
        let mut each = Vec::new();
        while let Some(number) = list.next_element()? {
            if each.len() == MAX_ASKS {
                return Err(A::Error::invalid_length(MAX_ASKS + 1, &self));
            }
            each.push(number);
        }
        Ok(ActualCost::Each(each))
    }
}

fn ttl_ms<'de, D: Deserializer<'de>>(reader: D) -> Result<Option<u64>, D::Error> {
    optional(reader, "ttl_ms")
}
