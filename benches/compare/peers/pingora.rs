//! pingora-limits: a sketch that counts requests per interval and overestimates colliding keys. It keeps no
//! key apart, and marks the lower bound of the cost of a limiter.

use pingora_limits::rate::Rate;
use tidegate_bench::{BenchClient, BenchDecision, BenchSubject, BucketQuota};

pub(crate) const PINGORA: &str = "pingora-limits";

/// A sketch and the count above which it refuses.
pub(crate) struct Pingora {
    rate: Rate,
    max: isize,
}

impl Pingora {
    /// A sketch over the time of a full refill.
    pub(crate) fn new(quota: BucketQuota) -> Pingora {
        let max = isize::try_from(quota.burst).expect("bursts are small");
        Pingora { rate: Rate::new(quota.refill * quota.burst), max }
    }
}

impl BenchSubject for Pingora {
    fn name(&self) -> &'static str {
        PINGORA
    }

    fn client(&self) -> Box<dyn BenchClient + '_> {
        Box::new(PingoraClient(self))
    }
}

struct PingoraClient<'a>(&'a Pingora);

impl BenchClient for PingoraClient<'_> {
    #[inline]
    fn decide(&mut self, key: &String) -> BenchDecision {
        BenchDecision::of(self.0.rate.observe(&key, 1) <= self.0.max)
    }
}
