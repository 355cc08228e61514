//! The body of acquire and peek: one ask, or a set that is granted as a whole.

use std::borrow::Cow;
use std::time::Duration;

use serde::{Deserialize, Deserializer};
use tidegate::model::{Ask, Hold};
use tidegate_core::order::MAX_WAIT;

use super::number::optional;
use super::strict_object::StrictObject;
use crate::http::problem::Problem;

/// One ask, or `asks`, with options.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct AcquireBody<'a> {
    #[serde(borrow)]
    limit_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    limit_key: Option<Cow<'a, str>>,
    #[serde(default, deserialize_with = "count")]
    count: Option<u64>,
    #[serde(borrow)]
    asks: Option<Vec<StrictObject<AskBody<'a>>>>,
    #[serde(borrow)]
    request_id: Option<Cow<'a, str>>,
    hold: Option<bool>,
    #[serde(default, deserialize_with = "ttl_ms")]
    ttl_ms: Option<u64>,
    #[serde(default, deserialize_with = "max_wait_ms")]
    max_wait_ms: Option<u64>,
}

/// One ask of a set.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AskBody<'a> {
    #[serde(borrow)]
    limit_id: Cow<'a, str>,
    #[serde(borrow)]
    limit_key: Option<Cow<'a, str>>,
    #[serde(default, deserialize_with = "count")]
    count: Option<u64>,
}

impl AcquireBody<'_> {
    /// The asks. The store checks how many a set may have.
    pub(in crate::http) fn asks(&self) -> Result<Vec<Ask<'_>>, Problem> {
        match (&self.limit_id, &self.asks) {
            (Some(limit_id), None) => Ok(vec![ask(limit_id, self.limit_key.as_deref(), self.count)]),
            (None, Some(_)) if self.limit_key.is_some() || self.count.is_some() => {
                Err(Problem::bad_request("in a set, limit_key and count stand inside of asks"))
            }
            (None, Some(asks)) => Ok(asks
                .iter()
                .map(|StrictObject(one)| ask(&one.limit_id, one.limit_key.as_deref(), one.count))
                .collect()),
            (Some(_), Some(_)) => Err(Problem::bad_request("either limit_id or asks, not both")),
            (None, None) => Err(Problem::bad_request("limit_id is missing; or give a list of asks")),
        }
    }

    pub(in crate::http) fn request_id(&self) -> Option<&str> {
        self.request_id.as_deref()
    }

    pub(in crate::http) fn hold(&self) -> Hold {
        if self.hold == Some(true) { Hold::Yes } else { Hold::No }
    }

    pub(in crate::http) fn ttl(&self) -> Option<Duration> {
        self.ttl_ms.map(Duration::from_millis)
    }

    /// How long the request may wait.
    pub(in crate::http) fn max_wait(&self) -> Result<Duration, Problem> {
        let max_wait = Duration::from_millis(self.max_wait_ms.unwrap_or_default());
        if max_wait > MAX_WAIT {
            let most = MAX_WAIT.as_millis();
            return Err(Problem::bad_request(format!("max_wait_ms must be a whole number from 0 to {most}")));
        }
        Ok(max_wait)
    }
}

fn ask<'a>(limit_id: &'a str, key: Option<&'a str>, count: Option<u64>) -> Ask<'a> {
    Ask { limit_id, key: key.map(str::as_bytes), count: count.unwrap_or(1) }
}

fn count<'de, D: Deserializer<'de>>(reader: D) -> Result<Option<u64>, D::Error> {
    optional(reader, "count")
}

fn ttl_ms<'de, D: Deserializer<'de>>(reader: D) -> Result<Option<u64>, D::Error> {
    optional(reader, "ttl_ms")
}

fn max_wait_ms<'de, D: Deserializer<'de>>(reader: D) -> Result<Option<u64>, D::Error> {
    optional(reader, "max_wait_ms")
}
