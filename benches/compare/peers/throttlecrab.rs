//! throttlecrab: a plain map whose callers pass the time and synchronize the calls.

use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use throttlecrab::{AdaptiveStore, RateLimiter};
use tidegate_bench::{BenchClient, BenchDecision, BenchSubject, BucketQuota};

pub(crate) const THROTTLECRAB: &str = "throttlecrab";

/// The limiter with the store of its first example, in a mutex.
pub(crate) struct Throttlecrab {
    limiter: Mutex<RateLimiter<AdaptiveStore>>,
    burst: i64,
    /// The refill time of one unit in whole seconds.
    step: i64,
}

impl Throttlecrab {
    /// A limiter with capacity for this many keys. Without it, every call sweeps the map once it is three
    /// quarters full.
    pub(crate) fn new(quota: BucketQuota, keys: usize) -> Throttlecrab {
        assert_eq!(quota.refill.subsec_nanos(), 0, "this peer knows whole seconds only");
        Throttlecrab {
            limiter: Mutex::new(RateLimiter::new(AdaptiveStore::builder().capacity(keys).build())),
            burst: quota.burst.into(),
            step: i64::try_from(quota.refill.as_secs()).expect("no rule lasts that long"),
        }
    }
}

impl BenchSubject for Throttlecrab {
    fn name(&self) -> &'static str {
        THROTTLECRAB
    }

    fn client(&self) -> Box<dyn BenchClient + '_> {
        Box::new(ThrottlecrabClient(self))
    }
}

struct ThrottlecrabClient<'a>(&'a Throttlecrab);

impl BenchClient for ThrottlecrabClient<'_> {
    #[inline]
    #[expect(clippy::disallowed_methods, reason = "this peer has no clock; its callers read one")]
    fn decide(&mut self, key: &String) -> BenchDecision {
        let Throttlecrab { limiter, burst, step } = self.0;
        let mut limiter = limiter.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = limiter.rate_limit(key, *burst, 1, *step, 1, SystemTime::now());
        BenchDecision::of(answer.is_ok_and(|(granted, _)| granted))
    }
}
