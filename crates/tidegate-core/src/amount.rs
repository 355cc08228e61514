//! Amounts and capacities.

/// A number of units: calls, messages, tokens, connections.
pub type Amount = u64;

/// The largest limit a specification may contain: the maximum of a signed 64-bit integer.
pub const MAX_LIMIT: Amount = i64::MAX as Amount;

/// How much may be in use at once. An absent limit has no `Capacity`; it differs from zero and from unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Capacity {
    /// Usage is counted and never refused. Limits files write it as `-1`.
    Unlimited,
    /// At most this many units. Zero refuses everything.
    AtMost(Amount),
}

impl Capacity {
    /// Whether `used + cost` is within the capacity.
    #[inline]
    pub fn admits(self, used: Amount, cost: Amount) -> bool {
        match self {
            Capacity::Unlimited => true,
            Capacity::AtMost(limit) => used.checked_add(cost).is_some_and(|sum| sum <= limit),
        }
    }

    /// Whether `cost` fits an unused limit. If it does not, no wait ever helps.
    #[inline]
    pub fn can_ever_hold(self, cost: Amount) -> bool {
        self.admits(0, cost)
    }

    /// The units left; `None` if the capacity is unlimited.
    pub fn remaining(self, used: Amount) -> Option<Amount> {
        match self {
            Capacity::Unlimited => None,
            Capacity::AtMost(limit) => Some(limit.saturating_sub(used)),
        }
    }
}
