//! Leases by their ids: given back, renewed, settled.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use tidegate::LeaseId;
use tidegate_core::order::MAX_ASKS;

use super::number::{Whole, optional};

/// Which lease.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct Release<'a> {
    #[serde(borrow)]
    lease_id: Cow<'a, str>,
}

impl Release<'_> {
    /// `None` if no lease can have this id.
    pub(in crate::http) fn lease(&self) -> Option<LeaseId> {
        LeaseId::parse(&self.lease_id)
    }
}

/// Which lease, and how long from now it lasts: as long as when it was granted unless said.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct Renew<'a> {
    #[serde(borrow)]
    lease_id: Cow<'a, str>,
    #[serde(default, deserialize_with = "ttl_ms")]
    ttl_ms: Option<u64>,
}

impl Renew<'_> {
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
pub(in crate::http) struct Settle<'a> {
    #[serde(borrow)]
    lease_id: Cow<'a, str>,
    pub(in crate::http) actual: Spent,
}

impl Settle<'_> {
    pub(in crate::http) fn lease(&self) -> Option<LeaseId> {
        LeaseId::parse(&self.lease_id)
    }
}

/// What was truly spent: the same for every ask, or one number for each.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::http) enum Spent {
    Every(u64),
    Each(Vec<u64>),
}

impl<'de> Deserialize<'de> for Spent {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Spent, D::Error> {
        reader.deserialize_any(SpentReader)
    }
}

struct SpentReader;

impl<'de> Visitor<'de> for SpentReader {
    type Value = Spent;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Whole("actual").expecting(f)?;
        write!(f, ", or a list of at most {MAX_ASKS} such numbers")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Spent, E> {
        Ok(Spent::Every(number))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Spent, A::Error> {
        let mut each = Vec::new();
        while let Some(number) = list.next_element()? {
            if each.len() == MAX_ASKS {
                return Err(A::Error::invalid_length(MAX_ASKS + 1, &self));
            }
            each.push(number);
        }
        Ok(Spent::Each(each))
    }
}

fn ttl_ms<'de, D: Deserializer<'de>>(reader: D) -> Result<Option<u64>, D::Error> {
    optional(reader, "ttl_ms")
}
