//! Caller may come in, and for how long.

use super::{Permissions, SharedTokens, TokenHash, TokenTable};

/// Knows who may come in, and what they may do inside.
pub trait Authenticator: Send + Sync {
    /// What the bearer of this token may do; `None` if nobody gave it out.
    fn authenticate(&self, token: &[u8]) -> Option<Permissions>;

    /// Whether people may come in without a token, and do everything.
    fn allows_anonymous(&self) -> bool;

    /// Changes whenever somebody who is inside may have to leave, or may do something else by now. It is asked very often.
    fn generation(&self) -> u64 {
        0
    }

    /// What somebody may do by now who has token_hash this token before.
    fn reauthenticate(&self, _token_hash: &TokenHash) -> Option<Permissions> {
        None
    }
}

impl Authenticator for TokenTable {
    fn authenticate(&self, token: &[u8]) -> Option<Permissions> {
        self.identify(Some(token)).permissions()
    }

    fn allows_anonymous(&self) -> bool {
        !self.are_required()
    }

    fn reauthenticate(&self, token_hash: &TokenHash) -> Option<Permissions> {
        self.identify_hash(token_hash).permissions()
    }
}

impl Authenticator for SharedTokens {
    fn authenticate(&self, token: &[u8]) -> Option<Permissions> {
        SharedTokens::authenticate(self, token)
    }

    fn allows_anonymous(&self) -> bool {
        SharedTokens::allows_anonymous(self)
    }

    fn generation(&self) -> u64 {
        SharedTokens::generation(self)
    }

    fn reauthenticate(&self, token_hash: &TokenHash) -> Option<Permissions> {
        self.identify_hash(token_hash).permissions()
    }
}
