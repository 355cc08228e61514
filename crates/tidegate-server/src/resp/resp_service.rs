//! State shared by all RESP connections.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate::Limiter;
use tidegate::model::{Limit, Tick, Timestamp};
use tidegate::store::LimitStore;

use super::described_buckets::DescribedBuckets;
use crate::metrics::Protocol;
use crate::refusal_log::{RefusalEvent, RefusalLog};
use crate::tokens::Authenticator;
use crate::tokens::{Permissions, TokenHash};

/// The store, the authenticator and the described buckets.
pub struct RespService {
    store: Arc<dyn LimitStore>,
    limiter: Limiter,
    authenticator: Arc<dyn Authenticator>,
    described_buckets: DescribedBuckets,
    refusal_log: Option<Arc<RefusalLog>>,
    tick: Tick,
    sessions: AtomicU64,
}

impl RespService {
    /// A service over this store.
    pub fn new(store: Arc<dyn LimitStore>, authenticator: Arc<dyn Authenticator>) -> RespService {
        let described_buckets = DescribedBuckets::new(Arc::clone(&store));
        let tick = store.capabilities().tick;
        let limiter = Limiter::new(Arc::clone(&store));
        RespService {
            store,
            limiter,
            authenticator,
            described_buckets,
            refusal_log: None,
            tick,
            sessions: AtomicU64::new(0),
        }
    }

    /// Logs refusals here.
    pub fn refusal_log(mut self, refusal_log: Arc<RefusalLog>) -> RespService {
        self.refusal_log = Some(refusal_log);
        self
    }

    /// Uses this limiter, shared with other protocols, so that all waiters of a limit are in one queue.
    pub fn with_limiter(mut self, limiter: Limiter) -> RespService {
        self.limiter = limiter;
        self
    }

    /// The described buckets.
    pub fn described_buckets(&self) -> &DescribedBuckets {
        &self.described_buckets
    }

    pub(crate) fn store(&self) -> &dyn LimitStore {
        &*self.store
    }

    /// Logs that this item refused a request.
    pub(super) fn record_refusal(&self, limit: &Limit, item: usize, key: &[u8], at: Timestamp) {
        if let Some(log) = &self.refusal_log {
            let (limit, item) = (limit.id(), limit.items()[item].name());
            log.record(RefusalEvent { limit, item, key: Some(key), protocol: Protocol::Resp, at });
        }
    }

    pub(super) fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    pub(super) fn tick(&self) -> Tick {
        self.tick
    }

    /// The permissions of an unauthenticated client, if any.
    pub(super) fn anonymous_permissions(&self) -> Option<Permissions> {
        self.authenticator.allows_anonymous().then(Permissions::all)
    }

    pub(super) fn authenticate(&self, token: &[u8]) -> Option<Permissions> {
        self.authenticator.authenticate(token)
    }

    pub(super) fn generation(&self) -> u64 {
        self.authenticator.generation()
    }

    /// The current permissions of a client that showed this token, or of an unauthenticated client.
    pub(super) fn reauthenticate(&self, token_hash: Option<&TokenHash>) -> Option<Permissions> {
        token_hash
            .and_then(|token_hash| self.authenticator.reauthenticate(token_hash))
            .or_else(|| self.anonymous_permissions())
    }

    pub(super) fn allows_anonymous(&self) -> bool {
        self.authenticator.allows_anonymous()
    }

    /// The id of the next connection, from 1.
    pub(super) fn next_id(&self) -> u64 {
        self.sessions.fetch_add(1, Ordering::Relaxed) + 1
    }
}

impl fmt::Debug for RespService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RespService")
            .field("described_buckets", &self.described_buckets)
            .finish_non_exhaustive()
    }
}
