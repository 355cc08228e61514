//! The door: what all connections share.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate::{Limit, LimitStore, Limiter, Tick, Timestamp};

use crate::tokens::Doorman;
use super::described_buckets::Throttles;
use crate::metrics::DoorName;
use crate::refusal_log::{Refusal, Refusals};
use crate::tokens::{Pass, Shown};

/// A store, who may come in to it, and the buckets that were described so far.
pub struct Door {
    store: Arc<dyn LimitStore>,
    limiter: Limiter,
    doorman: Arc<dyn Doorman>,
    throttles: Throttles,
    refusals: Option<Arc<Refusals>>,
    tick: Tick,
    sessions: AtomicU64,
}

impl Door {
    /// The door to this store.
    pub fn new(store: Arc<dyn LimitStore>, doorman: Arc<dyn Doorman>) -> Door {
        let throttles = Throttles::new(Arc::clone(&store));
        let tick = store.capabilities().tick;
        let limiter = Limiter::new(Arc::clone(&store));
        Door { store, limiter, doorman, throttles, refusals: None, tick, sessions: AtomicU64::new(0) }
    }

    /// Tells these of every refusal.
    pub fn refusals(mut self, refusals: Arc<Refusals>) -> Door {
        self.refusals = Some(refusals);
        self
    }

    /// The same beside others who ask this limiter of the store: nobody who waits there is overtaken here.
    pub fn beside(mut self, limiter: Limiter) -> Door {
        self.limiter = limiter;
        self
    }

    /// The buckets that were described so far.
    pub fn throttles(&self) -> &Throttles {
        &self.throttles
    }

    pub(crate) fn store(&self) -> &dyn LimitStore {
        &*self.store
    }

    /// Somebody was refused by this item.
    pub(super) fn refused(&self, limit: &Limit, item: usize, key: &[u8], at: Timestamp) {
        if let Some(refusals) = &self.refusals {
            let (limit, item) = (limit.id(), limit.items()[item].name());
            refusals.refused(Refusal { limit, item, key: Some(key), door: DoorName::Resp, at });
        }
    }

    pub(super) fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    pub(super) fn tick(&self) -> Tick {
        self.tick
    }

    /// What somebody may do who has shown nothing.
    pub(super) fn unknown_guest(&self) -> Option<Pass> {
        self.doorman.is_open().then(Pass::everything)
    }

    pub(super) fn admit(&self, token: &[u8]) -> Option<Pass> {
        self.doorman.admit(token)
    }

    pub(super) fn generation(&self) -> u64 {
        self.doorman.generation()
    }

    /// What somebody may do by now: by the token that was shown, or as anybody may.
    pub(super) fn admit_again(&self, shown: Option<&Shown>) -> Option<Pass> {
        shown.and_then(|shown| self.doorman.admit_again(shown)).or_else(|| self.unknown_guest())
    }

    pub(super) fn is_open(&self) -> bool {
        self.doorman.is_open()
    }

    /// A number for the next connection, from 1.
    pub(super) fn next_id(&self) -> u64 {
        self.sessions.fetch_add(1, Ordering::Relaxed) + 1
    }
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Door").field("throttles", &self.throttles).finish_non_exhaustive()
    }
}
