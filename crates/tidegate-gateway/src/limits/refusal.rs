//! Refusals by a limit.

use std::time::Duration;

use super::plan::LimitLevel;

/// What was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RefusalKind {
    /// A request: `Too Many Requests`.
    Requests,
    /// A connection: `Too Many Connections`.
    Connections,
}

impl RefusalKind {
    /// Both kinds.
    pub const ALL: [RefusalKind; 2] = [RefusalKind::Requests, RefusalKind::Connections];

    /// The name in logs and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            RefusalKind::Requests => "requests",
            RefusalKind::Connections => "connections",
        }
    }

    /// The body of the 429 response.
    pub const fn body(self) -> &'static str {
        match self {
            RefusalKind::Requests => "Too Many Requests",
            RefusalKind::Connections => "Too Many Connections",
        }
    }
}

/// A refusal. Nothing was spent at any level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitRefusal {
    /// What was refused.
    pub kind: RefusalKind,
    /// The first level that refused, in the order server, route, backend, client.
    pub level: LimitLevel,
    /// The limit at that level.
    pub limit: u64,
    /// When all levels could grant it. `None` if waiting alone does not help: a connection must close, or the
    /// limit is 0.
    pub retry_after: Option<Duration>,
    /// Whether the refusal is due to a full client table.
    pub degraded: bool,
}
