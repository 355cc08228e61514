//! Tokens that are exchanged while people come and go.
//!
//! Decided: whoever came in with a token stays only as long as the token is known. A connection that lasts keeps the [`Shown`] of its
//! token and looks at [`SharedTokens::generation`] before everything it is told, which is one load; only when tokens were exchanged it asks
//! again. So a token that is taken out of the file is worth nothing from that moment on, on every door.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use super::{Pass, Shown, Tokens, Who};

/// The tokens that are known at present.
pub struct SharedTokens {
    present: RwLock<Tokens>,
    /// How often they were exchanged, and in the lowest bit whether nobody needs one.
    standing: AtomicU64,
}

impl SharedTokens {
    /// These, for now.
    pub fn new(tokens: Tokens) -> SharedTokens {
        let standing = AtomicU64::new(u64::from(!tokens.are_needed()));
        SharedTokens { present: RwLock::new(tokens), standing }
    }

    /// From now on these.
    pub fn set(&self, tokens: Tokens) {
        let mut present = self.present.write().unwrap_or_else(PoisonError::into_inner);
        let exchanged = (self.standing.load(Ordering::Relaxed) >> 1) + 1;
        let open = u64::from(!tokens.are_needed());
        *present = tokens;
        // Whoever sees the number sees the tokens: they are read with the lock that is still held here.
        self.standing.store(exchanged << 1 | open, Ordering::Release);
    }

    /// How often they were exchanged.
    pub fn generation(&self) -> u64 {
        self.standing.load(Ordering::Acquire) >> 1
    }

    /// Whether nobody needs a token.
    pub fn is_open(&self) -> bool {
        self.standing.load(Ordering::Acquire) & 1 == 1
    }

    /// Who calls with this token.
    pub fn who(&self, token: Option<&[u8]>) -> Who {
        self.present.read().unwrap_or_else(PoisonError::into_inner).who(token)
    }

    /// Who calls with this `Authorization` field.
    pub fn who_says(&self, authorization: Option<&[u8]>) -> Who {
        self.present.read().unwrap_or_else(PoisonError::into_inner).who_says(authorization)
    }

    /// What somebody may do by now who has shown this.
    pub fn who_showed(&self, shown: &Shown) -> Who {
        self.present.read().unwrap_or_else(PoisonError::into_inner).who_showed(shown)
    }

    /// What the bearer of this token may do, if somebody gave it out.
    pub fn pass(&self, token: &[u8]) -> Option<Pass> {
        self.who(Some(token)).pass()
    }
}

impl fmt::Debug for SharedTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedTokens").field("generation", &self.generation()).finish_non_exhaustive()
    }
}
