//! Whose rule holds for a client: route, else backend, else server.
//!
//! A level that says nothing, `-1` or `inherit` leaves the answer to the next; `0` and `unlimited` are answers. Each of the two fields
//! for clients cascades by itself; `maxQps` and `maxConnections` do not cascade at all, they hold at their own level.

use crate::settings::Allowance;
use tidegate::Capacity;

/// Where a client's rule is written.
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
    /// The word for logs and metrics.
    pub const fn word(self) -> &'static str {
        match self {
            Scope::Server => "server",
            Scope::Backend => "backend",
            Scope::Route => "route",
        }
    }
}

/// The rule that holds for a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Applied {
    /// Where it is written; what nobody limits belongs to the server.
    pub scope: Scope,
    /// What it says.
    pub capacity: Capacity,
}

/// The rule that holds where these three are written.
pub const fn cascade(route: Allowance, backend: Allowance, server: Allowance) -> Applied {
    match (route, backend) {
        (Allowance::Inherit, Allowance::Inherit) => {
            Applied { scope: Scope::Server, capacity: server.capacity() }
        }
        (Allowance::Inherit, _) => Applied { scope: Scope::Backend, capacity: backend.capacity() },
        _ => Applied { scope: Scope::Route, capacity: route.capacity() },
    }
}

/// The larger of two; nothing is larger than no limit.
pub(crate) fn larger(one: Capacity, other: Capacity) -> Capacity {
    match (one, other) {
        (Capacity::AtMost(one), Capacity::AtMost(other)) => Capacity::AtMost(one.max(other)),
        _ => Capacity::Unlimited,
    }
}
