//! Tokens that can be replaced while connections are open.
//!
//! A connection loses its permissions when its token is removed. It keeps the [`TokenHash`] and compares
//! [`SharedTokens::generation`] before every batch, which is one atomic load. Only after a replacement it authenticates again. So a
//! token that is removed from the file is invalid at once, for both protocols.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use super::{Caller, Permissions, TokenHash, TokenTable};

/// The current tokens.
pub struct SharedTokens {
    current: RwLock<TokenTable>,
    /// Number of replacements, and in the lowest bit whether tokens are optional.
    state: AtomicU64,
}

impl SharedTokens {
    /// Shares these tokens.
    pub fn new(tokens: TokenTable) -> SharedTokens {
        let state = AtomicU64::new(u64::from(!tokens.are_required()));
        SharedTokens { current: RwLock::new(tokens), state }
    }

    /// Replaces the tokens.
    pub fn set(&self, tokens: TokenTable) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let replacements = (self.state.load(Ordering::Relaxed) >> 1) + 1;
        let open = u64::from(!tokens.are_required());
        *current = tokens;
        // A thread that reads the new number also reads the new tokens: the lock is still held.
        self.state.store(replacements << 1 | open, Ordering::Release);
    }

    /// Number of replacements.
    pub fn generation(&self) -> u64 {
        self.state.load(Ordering::Acquire) >> 1
    }

    /// Whether callers without a token may do everything.
    pub fn allows_anonymous(&self) -> bool {
        self.state.load(Ordering::Acquire) & 1 == 1
    }

    /// The caller with this token.
    pub fn identify(&self, token: Option<&[u8]>) -> Caller {
        self.current.read().unwrap_or_else(PoisonError::into_inner).identify(token)
    }

    /// The caller with this `Authorization` header.
    pub fn identify_bearer(&self, authorization: Option<&[u8]>) -> Caller {
        self.current.read().unwrap_or_else(PoisonError::into_inner).identify_bearer(authorization)
    }

    /// The caller with this token hash.
    pub fn identify_hash(&self, token_hash: &TokenHash) -> Caller {
        self.current.read().unwrap_or_else(PoisonError::into_inner).identify_hash(token_hash)
    }

    /// The permissions of a token; `None` if it is invalid.
    pub fn authenticate(&self, token: &[u8]) -> Option<Permissions> {
        self.identify(Some(token)).permissions()
    }
}

impl fmt::Debug for SharedTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedTokens").field("generation", &self.generation()).finish_non_exhaustive()
    }
}
