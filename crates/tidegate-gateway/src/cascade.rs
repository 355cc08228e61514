//! Selects the rule for a client: the route's, else the backend's, else the server's.
//!
//! A level with no value, `-1` or `inherit` defers to the next level; `0` and `unlimited` are values. The two per-client
//! fields cascade independently. `maxQps` and `maxConnections` do not cascade: each applies at its own level.

use crate::settings::Allowance;
use tidegate::model::Capacity;

/// The level at which a client's rule is configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Under `server`.
    Server,
    /// Under the backend.
    Backend,
    /// Under the route.
    Route,
}

impl Scope {
    /// The name in logs and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Scope::Server => "server",
            Scope::Backend => "backend",
            Scope::Route => "route",
        }
    }
}

/// The rule that applies to a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EffectiveLimit {
    /// Where the rule is configured. A client without any rule belongs to the server scope.
    pub scope: Scope,
    /// The limit.
    pub capacity: Capacity,
}

/// Selects the rule from the values at the three levels.
pub const fn cascade(route: Allowance, backend: Allowance, server: Allowance) -> EffectiveLimit {
    match (route, backend) {
        (Allowance::Inherit, Allowance::Inherit) => {
            EffectiveLimit { scope: Scope::Server, capacity: server.capacity() }
        }
        (Allowance::Inherit, _) => EffectiveLimit { scope: Scope::Backend, capacity: backend.capacity() },
        _ => EffectiveLimit { scope: Scope::Route, capacity: route.capacity() },
    }
}

/// The larger of two capacities.
pub(crate) fn larger(one: Capacity, other: Capacity) -> Capacity {
    match (one, other) {
        (Capacity::AtMost(one), Capacity::AtMost(other)) => Capacity::AtMost(one.max(other)),
        _ => Capacity::Unlimited,
    }
}
