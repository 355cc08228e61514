//! governor: one atomic word for each key in a sharded map.

use governor::clock::DefaultClock;
use governor::state::{InMemoryState, NotKeyed};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use tidegate_bench::keys::{LENGTH, array};
use tidegate_bench::{Asker, Rule, Said, Subject};

use super::bucket;

type Direct = RateLimiter<NotKeyed, InMemoryState, DefaultClock>;
type Keyed = DefaultKeyedRateLimiter<[u8; LENGTH]>;

/// A keyed limiter, and any number of shared ones that are asked before it.
///
/// governor has no sets: what the first limiters granted is spent even if a later one refuses. It is measured all the
/// same, as what somebody without sets would write.
pub(crate) struct Governor {
    shared: Vec<Direct>,
    keyed: Keyed,
}

impl Governor {
    /// One limiter, keyed.
    pub(crate) fn new(rule: Rule) -> Governor {
        Governor::behind(&[], rule)
    }

    /// A keyed limiter behind shared ones.
    pub(crate) fn behind(shared: &[Rule], keyed: Rule) -> Governor {
        let shared = shared.iter().map(|rule| RateLimiter::direct(quota(*rule))).collect();
        Governor { shared, keyed: RateLimiter::keyed(quota(keyed)) }
    }
}

fn quota(rule: Rule) -> Quota {
    let (burst, step) = bucket(rule);
    Quota::with_period(step).expect("no rule refills in no time").allow_burst(burst)
}

impl Subject for Governor {
    fn name(&self) -> &'static str {
        "governor"
    }

    fn asker(&self) -> Box<dyn Asker + '_> {
        if self.shared.is_empty() { Box::new(One(&self.keyed)) } else { Box::new(Several(self)) }
    }

    fn rows(&self) -> Option<u64> {
        Some(self.keyed.len() as u64)
    }
}

struct One<'a>(&'a Keyed);

impl Asker for One<'_> {
    #[inline]
    fn ask(&mut self, key: &str) -> Said {
        Said::of(self.0.check_key(&array(key)).is_ok())
    }
}

struct Several<'a>(&'a Governor);

impl Asker for Several<'_> {
    #[inline]
    fn ask(&mut self, key: &str) -> Said {
        let shared = self.0.shared.iter().all(|limiter| limiter.check().is_ok());
        Said::of(shared && self.0.keyed.check_key(&array(key)).is_ok())
    }
}

/// A keyed limiter whose keys are text of any length, as most people's are. The one above knows that every key has twelve
/// bytes, which is as well as it can do.
pub(crate) struct GovernorOfText(DefaultKeyedRateLimiter<String>);

impl GovernorOfText {
    /// One limiter, keyed.
    pub(crate) fn new(rule: Rule) -> GovernorOfText {
        GovernorOfText(RateLimiter::keyed(quota(rule)))
    }
}

impl Subject for GovernorOfText {
    fn name(&self) -> &'static str {
        "governor (String)"
    }

    fn asker(&self) -> Box<dyn Asker + '_> {
        Box::new(OfText(&self.0))
    }
}

struct OfText<'a>(&'a DefaultKeyedRateLimiter<String>);

impl Asker for OfText<'_> {
    #[inline]
    fn ask(&mut self, key: &str) -> Said {
        Said::of(self.0.check_key(&key.to_owned()).is_ok())
    }
}
