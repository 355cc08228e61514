//! Who may come in, and what they may do inside.

use std::fmt;
use std::sync::Arc;

/// Knows the tokens.
pub trait Doorman: Send + Sync {
    /// What the bearer of this token may do; `None` if nobody gave it out.
    fn admit(&self, token: &[u8]) -> Option<Pass>;

    /// Whether people may come in without a token, and do everything.
    fn is_open(&self) -> bool;
}

/// What somebody may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pass {
    /// Which kinds of things.
    pub role: Role,
    /// Only with limits whose ids begin with this.
    pub prefix: Option<Arc<str>>,
}

/// Kinds of things that may be done; each role may do what those before it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Look.
    Read,
    /// Take and give back.
    Decide,
    /// Change limits.
    Admin,
}

impl Pass {
    /// Everything, with every limit.
    pub const ALL: Pass = Pass { role: Role::Admin, prefix: None };

    /// Whether limits of this id are among those the pass is for.
    pub fn covers(&self, limit_id: &str) -> bool {
        self.prefix.as_deref().is_none_or(|prefix| limit_id.starts_with(prefix))
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Read => "read",
            Role::Decide => "decide",
            Role::Admin => "admin",
        })
    }
}
