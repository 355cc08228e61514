//! Authentication of tokens, as both protocols use it.

use super::{Permissions, SharedTokens, TokenHash, TokenTable};

/// Checks tokens.
pub trait Authenticator: Send + Sync {
    /// The permissions of a token; `None` if it is invalid.
    fn authenticate(&self, token: &[u8]) -> Option<Permissions>;

    /// Whether callers without a token may do everything.
    fn allows_anonymous(&self) -> bool;

    /// Changes whenever tokens or permissions change. Called before every batch, so it must be cheap.
    fn generation(&self) -> u64 {
        0
    }

    /// The current permissions of a token that was valid before.
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
