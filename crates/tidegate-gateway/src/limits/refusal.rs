//! What is said to somebody who was refused.

use std::time::Duration;

use super::plan::Level;

/// What was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A request: `Too Many Requests`.
    Requests,
    /// A connection: `Too Many Connections`.
    Connections,
}

impl Kind {
    /// Both.
    pub const ALL: [Kind; 2] = [Kind::Requests, Kind::Connections];

    /// The word for logs and metrics.
    pub const fn word(self) -> &'static str {
        match self {
            Kind::Requests => "requests",
            Kind::Connections => "connections",
        }
    }

    /// The body of the 429.
    pub const fn body(self) -> &'static str {
        match self {
            Kind::Requests => "Too Many Requests",
            Kind::Connections => "Too Many Connections",
        }
    }
}

/// Why not: nothing was spent anywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// What was refused.
    pub kind: Kind,
    /// The first level that refused, in the order server, route, backend, client.
    pub level: Level,
    /// The limit there.
    pub limit: u64,
    /// After how long all levels could let it through; `None` if no time helps by itself: a connection must close, or the limit is 0.
    pub retry_after: Option<Duration>,
    /// Whether there was no room to count somebody new, so that nobody could tell.
    pub degraded: bool,
}
