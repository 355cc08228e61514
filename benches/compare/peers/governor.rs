//! governor: one atomic word per key in a sharded map.

use governor::clock::DefaultClock;
use governor::state::{InMemoryState, NotKeyed};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use tidegate_bench::keys::{LENGTH, array};
use tidegate_bench::{BenchClient, BenchDecision, BenchRule, BenchSubject};

use super::bucket;

type DirectLimiter = RateLimiter<NotKeyed, InMemoryState, DefaultClock>;
type KeyedLimiter = DefaultKeyedRateLimiter<[u8; LENGTH]>;

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
    pub(crate) fn new(rule: BenchRule) -> GovernorPeer {
        GovernorPeer::with_shared(&[], rule)
    }

    /// A keyed limiter after shared ones.
    pub(crate) fn with_shared(shared: &[BenchRule], keyed: BenchRule) -> GovernorPeer {
        let shared = shared.iter().map(|rule| RateLimiter::direct(quota(*rule))).collect();
        GovernorPeer { shared, keyed: RateLimiter::keyed(quota(keyed)) }
    }
}

fn quota(rule: BenchRule) -> Quota {
    let (burst, step) = bucket(rule);
    Quota::with_period(step).expect("no rule refills in no time").allow_burst(burst)
}

impl BenchSubject for GovernorPeer {
    fn name(&self) -> &'static str {
        "governor"
    }

    fn client(&self) -> Box<dyn BenchClient + '_> {
        if self.shared.is_empty() { Box::new(KeyedClient(&self.keyed)) } else { Box::new(SetClient(self)) }
    }

    fn rows(&self) -> Option<u64> {
        Some(self.keyed.len() as u64)
    }
}

struct KeyedClient<'a>(&'a KeyedLimiter);

impl BenchClient for KeyedClient<'_> {
    #[inline]
    fn decide(&mut self, key: &str) -> BenchDecision {
        BenchDecision::of(self.0.check_key(&array(key)).is_ok())
    }
}

struct SetClient<'a>(&'a GovernorPeer);

impl BenchClient for SetClient<'_> {
    #[inline]
    fn decide(&mut self, key: &str) -> BenchDecision {
        let shared = self.0.shared.iter().all(|limiter| limiter.check().is_ok());
        BenchDecision::of(shared && self.0.keyed.check_key(&array(key)).is_ok())
    }
}

/// A keyed limiter with string keys, the common use. The one above has fixed keys of twelve bytes, its best
/// case.
pub(crate) struct StringKeyGovernor(DefaultKeyedRateLimiter<String>);

impl StringKeyGovernor {
    /// One keyed limiter.
    pub(crate) fn new(rule: BenchRule) -> StringKeyGovernor {
        StringKeyGovernor(RateLimiter::keyed(quota(rule)))
    }
}

impl BenchSubject for StringKeyGovernor {
    fn name(&self) -> &'static str {
        "governor (String)"
    }

    fn client(&self) -> Box<dyn BenchClient + '_> {
        Box::new(StringKeyClient(&self.0))
    }
}

struct StringKeyClient<'a>(&'a DefaultKeyedRateLimiter<String>);

impl BenchClient for StringKeyClient<'_> {
    #[inline]
    fn decide(&mut self, key: &str) -> BenchDecision {
        BenchDecision::of(self.0.check_key(&key.to_owned()).is_ok())
    }
}
