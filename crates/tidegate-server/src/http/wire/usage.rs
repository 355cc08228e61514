//! Counts of a limit, and the body of a reset.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use tidegate::model::Tick;
use tidegate::store::Usage;

use super::instant;

/// The counts of a limit, or of one key.
#[derive(Debug, Serialize)]
pub(in crate::http) struct UsageBody {
    count: Option<u64>,
    policy_status: Vec<ItemUsageBody>,
}

#[derive(Debug, Serialize)]
struct ItemUsageBody {
    item: String,
    policy: &'static str,
    current_count: u64,
    last_time: Option<String>,
}

impl UsageBody {
    /// Converts the usage of a store with this tick.
    pub(in crate::http) fn of(usage: Usage, tick: Tick) -> UsageBody {
        let status = |item: tidegate::store::ItemUsage| ItemUsageBody {
            item: item.item,
            policy: item.policy,
            current_count: item.current_count,
            last_time: item.last_time.map(|at| instant::of(at, tick)),
        };
        UsageBody { count: usage.count, policy_status: usage.items.into_iter().map(status).collect() }
    }
}

/// Body of a reset: one key, or the whole limit.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct ResetBody<'a> {
    #[serde(borrow)]
    pub(in crate::http) limit_key: Option<Cow<'a, str>>,
}
