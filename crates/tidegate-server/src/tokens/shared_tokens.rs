//! TokenTable that are exchanged while people come and go.
//!
//! Decided: whoever came in with a token stays only as long as the token is known. A connection that lasts keeps the [`TokenHash`] of its
//! token and looks at [`SharedTokens::generation`] before everything it is told, which is one load; only when tokens were exchanged it asks
//! again. So a token that is taken out of the file is worth nothing from that moment on, on every door.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use super::{Caller, Permissions, TokenHash, TokenTable};

/// The tokens that are known at current.
pub struct SharedTokens {
    current: RwLock<TokenTable>,
    /// How often they were exchanged, and in the lowest bit whether nobody needs one.
    state: AtomicU64,
}

impl SharedTokens {
    /// These, for now.
    pub fn new(tokens: TokenTable) -> SharedTokens {
        let state = AtomicU64::new(u64::from(!tokens.are_required()));
        SharedTokens { current: RwLock::new(tokens), state }
    }

    /// From now on these.
    pub fn set(&self, tokens: TokenTable) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let exchanged = (self.state.load(Ordering::Relaxed) >> 1) + 1;
        let open = u64::from(!tokens.are_required());
        *current = tokens;
        // Whoever sees the number sees the tokens: they are read with the lock that is still held here.
        self.state.store(exchanged << 1 | open, Ordering::Release);
    }

    /// How often they were exchanged.
    pub fn generation(&self) -> u64 {
        self.state.load(Ordering::Acquire) >> 1
    }

    /// Whether nobody needs a token.
    pub fn allows_anonymous(&self) -> bool {
        self.state.load(Ordering::Acquire) & 1 == 1
    }

    /// Caller calls with this token.
    pub fn identify(&self, token: Option<&[u8]>) -> Caller {
        self.current.read().unwrap_or_else(PoisonError::into_inner).identify(token)
    }

    /// Caller calls with this `Authorization` field.
    pub fn identify_bearer(&self, authorization: Option<&[u8]>) -> Caller {
        self.current.read().unwrap_or_else(PoisonError::into_inner).identify_bearer(authorization)
    }

    /// What somebody may do by now who has token_hash this.
    pub fn identify_hash(&self, token_hash: &TokenHash) -> Caller {
        self.current.read().unwrap_or_else(PoisonError::into_inner).identify_hash(token_hash)
    }

    /// What the bearer of this token may do, if somebody gave it out.
    pub fn authenticate(&self, token: &[u8]) -> Option<Permissions> {
        self.identify(Some(token)).permissions()
    }
}

impl fmt::Debug for SharedTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedTokens").field("generation", &self.generation()).finish_non_exhaustive()
    }
}
