//! The reply of `GET /v1/limits/{id}/usage`.

use serde::Deserialize;

/// Usage of a limit or of one of its keys.
#[derive(Debug, Deserialize)]
pub(crate) struct UsageReply {
    /// Usage per item.
    pub(crate) policy_status: Vec<ItemUsageReply>,
}

/// Usage of one item.
#[derive(Debug, Deserialize)]
pub(crate) struct ItemUsageReply {
    /// Name of the item.
    pub(crate) item: String,
    /// Units in use.
    pub(crate) current_count: u64,
    /// Time of the last charge, if stored.
    pub(crate) last_time: Option<String>,
}

impl UsageReply {
    /// Usage of the item with this name.
    pub(crate) fn of(&self, item: &str) -> Option<&ItemUsageReply> {
        self.policy_status.iter().find(|status| status.item == item)
    }
}
