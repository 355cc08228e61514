//! What a server says it has counted: document 004's `CurrentData`.

use serde::Deserialize;

/// What is counted for a limit as a whole, or for one key of it.
#[derive(Debug, Deserialize)]
pub(crate) struct UsageReply {
    /// Every item of the row.
    pub(crate) policy_status: Vec<ItemUsage>,
}

/// What is counted of one item.
#[derive(Debug, Deserialize)]
pub(crate) struct ItemUsage {
    /// Its name.
    pub(crate) item: String,
    /// How much is in use.
    pub(crate) current_count: u64,
    /// When that was last updated, where it is kept.
    pub(crate) last_time: Option<String>,
}

impl UsageReply {
    /// What is counted of the item of this name.
    pub(crate) fn of(&self, item: &str) -> Option<&ItemUsage> {
        self.policy_status.iter().find(|status| status.item == item)
    }
}
