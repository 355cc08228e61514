//! Who may come in.

use crate::tokens::{Pass, Tokens, Who};

/// Knows who may come in, and what they may do inside.
pub trait Doorman: Send + Sync {
    /// What the bearer of this token may do; `None` if nobody gave it out.
    fn admit(&self, token: &[u8]) -> Option<Pass>;

    /// Whether people may come in without a token, and do everything.
    fn is_open(&self) -> bool;
}

impl Doorman for Tokens {
    fn admit(&self, token: &[u8]) -> Option<Pass> {
        known(self.who(Some(token)))
    }

    fn is_open(&self) -> bool {
        known(self.who(None)).is_some()
    }
}

fn known(who: Who) -> Option<Pass> {
    match who {
        Who::Known(pass) => Some(pass),
        Who::Stranger => None,
    }
}
