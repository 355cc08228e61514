//! pingora-limits: a sketch that counts hits of an interval, too high where keys collide. It forgets no key and keeps
//! none apart; it is here because it is the least that a limiter could cost.

use pingora_limits::rate::Rate;
use tidegate_bench::keys::array;
use tidegate_bench::{Asker, Rule, Said, Subject};

use super::bucket;

/// A sketch, and the count above which it means no.
pub(crate) struct Pingora {
    rate: Rate,
    most: isize,
}

impl Pingora {
    /// A sketch over the time in which everything comes back.
    pub(crate) fn new(rule: Rule) -> Pingora {
        let (burst, step) = bucket(rule);
        let most = isize::try_from(burst.get()).expect("bursts are small");
        Pingora { rate: Rate::new(step * burst.get()), most }
    }
}

impl Subject for Pingora {
    fn name(&self) -> &'static str {
        "pingora-limits"
    }

    fn asker(&self) -> Box<dyn Asker + '_> {
        Box::new(One(self))
    }
}

struct One<'a>(&'a Pingora);

impl Asker for One<'_> {
    #[inline]
    fn ask(&mut self, key: &str) -> Said {
        Said::of(self.0.rate.observe(&array(key), 1) <= self.0.most)
    }
}
