//! How much: what is asked for, and how much there can be.

/// A number of units: calls, messages, tokens, connections.
pub type Amount = u64;

/// The largest limit that can be written: what a signed 64-bit integer holds.
pub const MAX_LIMIT: Amount = i64::MAX as Amount;

/// How much of a thing may be in use. Absent, zero and unlimited are three different answers; the first is
/// not written here at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Capacity {
    /// Written `-1`: counted, never refused.
    Unlimited,
    /// Written `0` (refuse everything) or above.
    AtMost(Amount),
}

impl Capacity {
    /// Whether `cost` more fits beside what is used.
    #[inline]
    pub fn admits(self, used: Amount, cost: Amount) -> bool {
        match self {
            Capacity::Unlimited => true,
            Capacity::AtMost(limit) => used.checked_add(cost).is_some_and(|sum| sum <= limit),
        }
    }

    /// Whether `cost` would fit if nothing at all were in use. If not, no wait ever helps.
    #[inline]
    pub fn can_ever_hold(self, cost: Amount) -> bool {
        self.admits(0, cost)
    }

    /// What is left beside what is used; `None` if there is no end to it.
    pub fn remaining(self, used: Amount) -> Option<Amount> {
        match self {
            Capacity::Unlimited => None,
            Capacity::AtMost(limit) => Some(limit.saturating_sub(used)),
        }
    }
}
