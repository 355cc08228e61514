//! Bodies of lease requests.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use tidegate::model::LeaseId;
use tidegate_core::order::MAX_ASKS;

use super::number::{WholeNumber, optional};

/// Body of release.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct ReleaseBody<'a> {
    #[serde(borrow)]
    lease_id: Cow<'a, str>,
}

impl ReleaseBody<'_> {
    /// The id; `None` if it is malformed.
    pub(in crate::http) fn lease(&self) -> Option<LeaseId> {
        LeaseId::parse(&self.lease_id)
    }
}

/// Body of renew; without `ttl_ms` the original time to live applies.
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

/// Body of settle.
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

/// The actual cost: the same for every ask, or one number each.
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
