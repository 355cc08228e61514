//! throttlecrab: a plain map that wants to be told the time and to be called by one at a time.

use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use throttlecrab::{AdaptiveStore, RateLimiter};
use tidegate_bench::{Asker, Rule, Said, Subject};

use super::bucket;

/// Its limiter with the store of its first example, in a mutex.
pub(crate) struct Throttlecrab {
    limiter: Mutex<RateLimiter<AdaptiveStore>>,
    burst: i64,
    /// The time in which one comes back. It counts in whole seconds.
    step: i64,
}

impl Throttlecrab {
    /// A limiter with room for so many keys; without it every call sweeps the whole map once it is three quarters full.
    pub(crate) fn new(rule: Rule, keys: usize) -> Throttlecrab {
        let (burst, step) = bucket(rule);
        assert_eq!(step.subsec_nanos(), 0, "this peer knows whole seconds only");
        Throttlecrab {
            limiter: Mutex::new(RateLimiter::new(AdaptiveStore::builder().capacity(keys).build())),
            burst: burst.get().into(),
            step: i64::try_from(step.as_secs()).expect("no rule lasts that long"),
        }
    }
}

impl Subject for Throttlecrab {
    fn name(&self) -> &'static str {
        "throttlecrab"
    }

    fn asker(&self) -> Box<dyn Asker + '_> {
        Box::new(One(self))
    }
}

struct One<'a>(&'a Throttlecrab);

impl Asker for One<'_> {
    #[inline]
    #[expect(clippy::disallowed_methods, reason = "this peer has no clock; its callers read one")]
    fn ask(&mut self, key: &str) -> Said {
        let Throttlecrab { limiter, burst, step } = self.0;
        let mut limiter = limiter.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = limiter.rate_limit(key, *burst, 1, *step, 1, SystemTime::now());
        Said::of(answer.is_ok_and(|(granted, _)| granted))
    }
}
