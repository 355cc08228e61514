//! Tidegate as a subject: the one file that knows which store is measured, and how it is asked.
//!
//! It is the plain store by way of [`Store::submit`]. A store that can be asked through handles gets them in [`Tidegate::new`]
//! and uses them in the two askers; nothing else changes.

use std::time::Duration;

use tidegate::{
    Answer, Answers, Ask, Catalog, Clock, Detail, Expect, ItemSpec, LimitSpec, MapStore, Order, Policy,
    Precision, Rejection, Store, Unit,
};

use crate::rule::{Reach, Rule};
use crate::subject::{Asker, BATCH, Said, Subject};

/// What it is called in the tables.
pub const NAME: &str = "tidegate (map)";

/// How many bytes a row of the plain store takes at most; it counts keys where others count bytes.
const BYTES_PER_ROW: u64 = 190;

/// A store with some limits, all of which are asked together.
#[derive(Debug)]
pub struct Tidegate {
    store: MapStore,
    limits: Vec<(String, Reach)>,
}

impl Tidegate {
    /// A store that holds these rules, one limit each, and asks all of them for every decision.
    pub fn new(clock: impl Clock + 'static, rules: &[(Rule, Reach)]) -> Tidegate {
        Tidegate::with_room(clock, rules, None)
    }

    /// The same with so many bytes for everything it remembers.
    pub fn capped(clock: impl Clock + 'static, rules: &[(Rule, Reach)], bytes: u64) -> Tidegate {
        Tidegate::with_room(clock, rules, Some(bytes))
    }

    fn with_room(clock: impl Clock + 'static, rules: &[(Rule, Reach)], bytes: Option<u64>) -> Tidegate {
        let store = MapStore::new(clock, 7);
        let limits = rules.iter().enumerate().map(|(index, &(rule, reach))| {
            let id = format!("limit-{index}");
            let spec =
                LimitSpec { max_keys: bytes.map(|bytes| bytes / BYTES_PER_ROW), ..spec(&id, rule, reach) };
            store.put(spec, Expect::Absent).expect("the rules of the benchmarks make sense");
            (id, reach)
        });
        let limits = limits.collect();
        Tidegate { store, limits }
    }

    /// An asker for one limit of several, as if it were the only one.
    pub fn asker_of(&self, limit: usize) -> Box<dyn Asker + '_> {
        Box::new(One {
            store: &self.store,
            limit_id: &self.limits[limit].0,
            answers: Some(Answers::new(Detail::Verdicts)),
        })
    }
}

impl Subject for Tidegate {
    fn name(&self) -> &'static str {
        NAME
    }

    fn asker(&self) -> Box<dyn Asker + '_> {
        if self.limits.len() == 1 {
            return self.asker_of(0);
        }
        Box::new(Set {
            store: &self.store,
            limits: &self.limits,
            answers: Some(Answers::new(Detail::Verdicts)),
        })
    }
}

/// Asks one limit.
struct One<'a> {
    store: &'a MapStore,
    limit_id: &'a str,
    /// Moves through the store and back.
    answers: Option<Answers>,
}

impl One<'_> {
    fn submit(&mut self, orders: &[Order<'_>]) -> &Answers {
        let buffer = self.answers.take().unwrap_or_default();
        self.answers.insert(self.store.submit(orders, buffer).now())
    }
}

impl Asker for One<'_> {
    #[inline]
    fn ask(&mut self, key: &str) -> Said {
        let ask = [Ask::one(self.limit_id, Some(key.as_bytes()))];
        said(self.submit(&[Order::acquire(&ask)]).get(0))
    }

    fn ask_batch(&mut self, keys: &[&str]) -> usize {
        let Some(keys) = keys.first_chunk::<BATCH>() else { return 0 };
        let asks: [[Ask<'_>; 1]; BATCH] = keys.map(|key| [Ask::one(self.limit_id, Some(key.as_bytes()))]);
        let orders: [Order<'_>; BATCH] = std::array::from_fn(|index| Order::acquire(&asks[index]));
        self.submit(&orders).iter().filter(|answer| said(Some(answer)) == Said::Granted).count()
    }
}

/// Asks several limits together, all or nothing.
struct Set<'a> {
    store: &'a MapStore,
    limits: &'a [(String, Reach)],
    answers: Option<Answers>,
}

impl Asker for Set<'_> {
    #[inline]
    fn ask(&mut self, key: &str) -> Said {
        let asks: [Ask<'_>; 4] = std::array::from_fn(|index| {
            let (id, reach) = &self.limits[index];
            Ask::one(id, (*reach == Reach::PerKey).then_some(key.as_bytes()))
        });
        let buffer = self.answers.take().unwrap_or_default();
        let answers = self.store.submit(&[Order::acquire(&asks)], buffer).now();
        said(self.answers.insert(answers).get(0))
    }
}

fn said(answer: Option<&Result<Answer, Rejection>>) -> Said {
    match answer {
        Some(Ok(answer)) if answer.degraded && answer.is_granted() => Said::GrantedByRule,
        Some(Ok(answer)) if answer.degraded => Said::RefusedByRule,
        Some(Ok(answer)) => Said::of(answer.is_granted()),
        Some(Err(rejection)) => panic!("the benchmark asked nonsense: {rejection}"),
        None => panic!("a store answers every order"),
    }
}

fn spec(id: &str, rule: Rule, reach: Reach) -> LimitSpec {
    let minute = Duration::from_secs(60);
    let (policy, capacity) = match rule {
        Rule::Bucket { capacity, window } => (Policy::Bucket { window, burst: None }, capacity),
        Rule::Day(capacity) => (Policy::Calendar(Unit::Day), capacity),
        Rule::Interval(capacity) => (Policy::Interval { window: minute }, capacity),
        Rule::Sliding(capacity) => {
            (Policy::Sliding { window: minute, precision: Precision::Exact }, capacity)
        }
    };
    let item = ItemSpec::of(policy, capacity.into());
    LimitSpec::named(id).with(match reach {
        Reach::Shared => item,
        Reach::PerKey => item.per_key(),
    })
}

#[cfg(test)]
mod tests {
    use tidegate::{ManualClock, Timestamp};

    use super::*;
    use crate::keys::Keys;

    fn clock() -> ManualClock {
        ManualClock::at(Timestamp::EPOCH)
    }

    #[test]
    fn one_limit_counts_each_key_alone() {
        let subject = Tidegate::new(clock(), &[(Rule::SPENT, Reach::PerKey)]);
        let mut asker = subject.asker();
        assert_eq!(asker.singles(&Keys::hot(7)), 5);
        assert_eq!(asker.batches(&Keys::each(32)), 32);
        assert_eq!(asker.ask("u00000012345"), Said::Refused);
    }

    #[test]
    fn a_set_is_granted_by_all_or_charged_by_none() {
        let shared = [(Rule::FREE, Reach::Shared), (Rule::SPENT, Reach::Shared), (Rule::FREE, Reach::Shared)];
        let subject = Tidegate::new(clock(), &[&shared[..], &[(Rule::PLENTY, Reach::PerKey)]].concat());
        assert_eq!(subject.asker().singles(&Keys::each(100)), 5);
    }
}
