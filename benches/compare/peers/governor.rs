//! governor: one atomic word per key in a sharded map.
//!
//! The keys are `String`, as programs with user ids or API keys have them. The caller owns them, so that a check
//! copies nothing.

use std::num::NonZeroU32;

use governor::clock::DefaultClock;
use governor::state::{InMemoryState, NotKeyed};
use governor::{DefaultKeyedRateLimiter, RateLimiter};
use tidegate_bench::{BenchClient, BenchDecision, BenchSubject, BucketQuota};

pub(crate) const GOVERNOR: &str = "governor";

type KeyedLimiter = DefaultKeyedRateLimiter<String>;
type DirectLimiter = RateLimiter<NotKeyed, InMemoryState, DefaultClock>;

/// A keyed limiter, after any number of shared ones.
///
/// governor has no sets: units granted by the first limiters stay used if a later one refuses. It is measured
/// nevertheless, as the usual code without sets.
pub(crate) struct GovernorPeer {
    shared: Vec<DirectLimiter>,
    keyed: KeyedLimiter,
}

impl GovernorPeer {
    /// One keyed limiter.
    pub(crate) fn new(quota: BucketQuota) -> GovernorPeer {
        GovernorPeer::with_shared(&[], quota)
    }

    /// A keyed limiter after shared ones.
    pub(crate) fn with_shared(shared: &[BucketQuota], keyed: BucketQuota) -> GovernorPeer {
        let shared = shared.iter().map(|quota| RateLimiter::direct(quota_of(*quota))).collect();
        GovernorPeer { shared, keyed: RateLimiter::keyed(quota_of(keyed)) }
    }
}

fn quota_of(quota: BucketQuota) -> governor::Quota {
    let burst = NonZeroU32::new(quota.burst).expect("every quota has units");
    governor::Quota::with_period(quota.refill).expect("every refill takes time").allow_burst(burst)
}

impl BenchSubject for GovernorPeer {
    fn name(&self) -> &'static str {
        GOVERNOR
    }

    fn client(&self) -> Box<dyn BenchClient + '_> {
        if self.shared.is_empty() {
            Box::new(KeyedClient(&self.keyed))
        } else {
            Box::new(DirectAndKeyedClient(self))
        }
    }

    fn rows(&self) -> Option<u64> {
        Some(self.keyed.len() as u64)
    }
}

struct KeyedClient<'a>(&'a KeyedLimiter);

impl BenchClient for KeyedClient<'_> {
    #[inline]
    fn decide(&mut self, key: &String) -> BenchDecision {
        BenchDecision::of(self.0.check_key(key).is_ok())
    }
}

struct DirectAndKeyedClient<'a>(&'a GovernorPeer);

impl BenchClient for DirectAndKeyedClient<'_> {
    #[inline]
    fn decide(&mut self, key: &String) -> BenchDecision {
        let shared = self.0.shared.iter().all(|limiter| limiter.check().is_ok());
        BenchDecision::of(shared && self.0.keyed.check_key(key).is_ok())
    }
}
