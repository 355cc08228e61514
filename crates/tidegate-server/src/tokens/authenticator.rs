//! Who may come in, and for how long.

use super::{Pass, SharedTokens, Shown, Tokens};

/// Knows who may come in, and what they may do inside.
pub trait Doorman: Send + Sync {
    /// What the bearer of this token may do; `None` if nobody gave it out.
    fn admit(&self, token: &[u8]) -> Option<Pass>;

    /// Whether people may come in without a token, and do everything.
    fn is_open(&self) -> bool;

    /// Changes whenever somebody who is inside may have to leave, or may do something else by now. It is asked very often.
    fn generation(&self) -> u64 {
        0
    }

    /// What somebody may do by now who has shown this token before.
    fn admit_again(&self, _shown: &Shown) -> Option<Pass> {
        None
    }
}

impl Doorman for Tokens {
    fn admit(&self, token: &[u8]) -> Option<Pass> {
        self.who(Some(token)).pass()
    }

    fn is_open(&self) -> bool {
        !self.are_needed()
    }

    fn admit_again(&self, shown: &Shown) -> Option<Pass> {
        self.who_showed(shown).pass()
    }
}

impl Doorman for SharedTokens {
    fn admit(&self, token: &[u8]) -> Option<Pass> {
        self.pass(token)
    }

    fn is_open(&self) -> bool {
        SharedTokens::is_open(self)
    }

    fn generation(&self) -> u64 {
        SharedTokens::generation(self)
    }

    fn admit_again(&self, shown: &Shown) -> Option<Pass> {
        self.who_showed(shown).pass()
    }
}
