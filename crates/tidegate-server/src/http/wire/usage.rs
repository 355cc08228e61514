//! What is counted: document 004's `CurrentData`. And which counts are to be zeroed.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use tidegate::model::Tick;
use tidegate::store::Usage;

use super::instant;

/// `CurrentData`.
#[derive(Debug, Serialize)]
pub(in crate::http) struct CurrentData {
    count: Option<u64>,
    policy_status: Vec<PolicyStatus>,
}

#[derive(Debug, Serialize)]
struct PolicyStatus {
    item: String,
    policy: &'static str,
    current_count: u64,
    last_time: Option<String>,
}

impl CurrentData {
    /// The usage that a store which keeps time in this tick has told.
    pub(in crate::http) fn of(usage: Usage, tick: Tick) -> CurrentData {
        let status = |item: tidegate::store::ItemUsage| PolicyStatus {
            item: item.item,
            policy: item.policy,
            current_count: item.current_count,
            last_time: item.last_time.map(|at| instant::of(at, tick)),
        };
        CurrentData { count: usage.count, policy_status: usage.items.into_iter().map(status).collect() }
    }
}

/// Whose counts are to be zeroed: one key's, or everything of the limit.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct Reset<'a> {
    #[serde(borrow)]
    pub(in crate::http) limit_key: Option<Cow<'a, str>>,
}
