//! governor: one atomic word per key in a sharded map.
//!
//! The keys are `String`, as programs with user ids or API keys have them. `check_key` takes a `&String`, so each
//! client copies the key into one buffer that it reuses: the cheapest call for a program that has a `&str`.

use std::num::NonZeroU32;

use governor::clock::DefaultClock;
use governor::state::{InMemoryState, NotKeyed};
use governor::{DefaultKeyedRateLimiter, RateLimiter};
use tidegate_bench::{BenchClient, BenchDecision, BenchSubject, Quota};

pub(crate) const GOVERNOR: &str = "governor";

type DirectLimiter = RateLimiter<NotKeyed, InMemoryState, DefaultClock>;

/// A keyed limiter, after any number of shared ones.
///
/// governor has no sets: units granted by the first limiters stay used if a later one refuses. It is measured
/// nevertheless, as the usual code without sets.
pub(crate) struct GovernorPeer {
    shared: Vec<DirectLimiter>,
    keyed: DefaultKeyedRateLimiter<String>,
}

impl GovernorPeer {
    /// One keyed limiter.
    pub(crate) fn new(quota: Quota) -> GovernorPeer {
        GovernorPeer::with_shared(&[], quota)
    }

    /// A keyed limiter after shared ones.
    pub(crate) fn with_shared(shared: &[Quota], keyed: Quota) -> GovernorPeer {
        let shared = shared.iter().map(|quota| RateLimiter::direct(quota_of(*quota))).collect();
        GovernorPeer { shared, keyed: RateLimiter::keyed(quota_of(keyed)) }
    }
}

fn quota_of(quota: Quota) -> governor::Quota {
    let burst = NonZeroU32::new(quota.burst).expect("every quota has units");
    governor::Quota::with_period(quota.refill).expect("every refill takes time").allow_burst(burst)
}

impl BenchSubject for GovernorPeer {
    fn name(&self) -> &'static str {
        GOVERNOR
    }

    fn client(&self) -> Box<dyn BenchClient + '_> {
        let (limiter, key) = (&self.keyed, String::new());
        if self.shared.is_empty() {
            Box::new(KeyedClient { limiter, key })
        } else {
            Box::new(SetClient { shared: &self.shared, keyed: KeyedClient { limiter, key } })
        }
    }

    fn rows(&self) -> Option<u64> {
        Some(self.keyed.len() as u64)
    }
}

struct KeyedClient<'a> {
    limiter: &'a DefaultKeyedRateLimiter<String>,
    key: String,
}

impl BenchClient for KeyedClient<'_> {
    #[inline]
    fn decide(&mut self, key: &str) -> BenchDecision {
        self.key.clear();
        self.key.push_str(key);
        BenchDecision::of(self.limiter.check_key(&self.key).is_ok())
    }
}

struct SetClient<'a> {
    shared: &'a [DirectLimiter],
    keyed: KeyedClient<'a>,
}

impl BenchClient for SetClient<'_> {
    #[inline]
    fn decide(&mut self, key: &str) -> BenchDecision {
        if self.shared.iter().all(|limiter| limiter.check().is_ok()) {
            self.keyed.decide(key)
        } else {
            BenchDecision::Refused
        }
    }
}
