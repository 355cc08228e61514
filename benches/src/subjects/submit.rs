//! Tidegate by its door, [`Store::submit`]: what servers, batches of orders and stores without handles go through.

use tidegate::store::memory::DEFAULT_CAPACITY;
use tidegate::clock::Clock;
use tidegate::model::{Ask, Order};
use tidegate::reply::{OrderReply, Detail, OrderError, Replies};
use tidegate::store::{MapStore, MemoryStore, Store};

use super::put;
use super::tidegate::memory;
use crate::rule::{Reach, Rule};
use crate::subject::{Asker, BATCH, Said, Subject};

/// What the memory store is called when it is asked by its door.
pub const SUBMIT: &str = "tidegate submit";
/// What the plain store is called.
pub const MAP: &str = "tidegate map";

/// A store with one limit.
pub struct Submit<S> {
    name: &'static str,
    store: S,
    limit_id: String,
}

impl Submit<MemoryStore> {
    /// The memory store under one rule for each key.
    pub fn memory(clock: impl Clock + 'static, rule: Rule) -> Submit<MemoryStore> {
        let store = memory(clock, DEFAULT_CAPACITY);
        let limit_id = put(&store, &[(rule, Reach::PerKey)]).remove(0);
        Submit { name: SUBMIT, store, limit_id }
    }
}

impl Submit<MapStore> {
    /// The plain store under one rule for each key.
    pub fn map(clock: impl Clock + 'static, rule: Rule) -> Submit<MapStore> {
        let store = MapStore::new(clock, 7);
        let limit_id = put(&store, &[(rule, Reach::PerKey)]).remove(0);
        Submit { name: MAP, store, limit_id }
    }
}

impl<S: Store> Subject for Submit<S> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn asker(&self) -> Box<dyn Asker + '_> {
        Box::new(Submitter::new(&self.store, &self.limit_id))
    }

    fn knows_batches(&self) -> bool {
        true
    }
}

/// The memory store with four limits that are asked together, in one order by its door, as the gateway does.
pub struct Together {
    store: MemoryStore,
    limit_ids: [String; 4],
    keyed: [bool; 4],
}

impl Together {
    /// The memory store under four rules; `None` if there are not four.
    pub fn memory(clock: impl Clock + 'static, rules: &[(Rule, Reach)]) -> Option<Together> {
        let store = memory(clock, DEFAULT_CAPACITY);
        let limit_ids = put(&store, rules).try_into().ok()?;
        let keyed = std::array::from_fn(|index| rules[index].1 == Reach::PerKey);
        Some(Together { store, limit_ids, keyed })
    }
}

impl Subject for Together {
    fn name(&self) -> &'static str {
        SUBMIT
    }

    fn asker(&self) -> Box<dyn Asker + '_> {
        Box::new(TogetherAsker { together: self, answers: None })
    }
}

struct TogetherAsker<'a> {
    together: &'a Together,
    answers: Option<Replies>,
}

impl Asker for TogetherAsker<'_> {
    fn ask(&mut self, key: &str) -> Said {
        let Together { store, limit_ids, keyed } = self.together;
        let key = |index: usize| keyed[index].then_some(key.as_bytes());
        let asks: [Ask<'_>; 4] = std::array::from_fn(|index| Ask::one(&limit_ids[index], key(index)));
        let buffer = self.answers.take().unwrap_or_default();
        let answers = self.answers.insert(store.submit(&[Order::acquire(&asks)], buffer).now());
        said(answers.get(0))
    }
}

/// Asks one limit of a store by its door.
pub(super) struct Submitter<'a, S> {
    store: &'a S,
    limit_id: &'a str,
    /// Moves through the store and back.
    answers: Option<Replies>,
}

impl<'a, S: Store> Submitter<'a, S> {
    pub(super) fn new(store: &'a S, limit_id: &'a str) -> Submitter<'a, S> {
        Submitter { store, limit_id, answers: Some(Replies::new(Detail::Verdicts)) }
    }

    fn submit(&mut self, orders: &[Order<'_>]) -> &Replies {
        let buffer = self.answers.take().unwrap_or_default();
        self.answers.insert(self.store.submit(orders, buffer).now())
    }
}

impl<S: Store> Asker for Submitter<'_, S> {
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

fn said(answer: Option<&Result<OrderReply, OrderError>>) -> Said {
    match answer {
        Some(Ok(answer)) if answer.degraded && answer.is_granted() => Said::GrantedByRule,
        Some(Ok(answer)) if answer.degraded => Said::RefusedByRule,
        Some(Ok(answer)) => Said::of(answer.is_granted()),
        Some(Err(rejection)) => panic!("the benchmark asked nonsense: {rejection}"),
        None => panic!("a store answers every order"),
    }
}

#[cfg(test)]
mod tests {
    use tidegate::clock::ManualClock;
    use tidegate::model::Timestamp;

    use super::*;
    use crate::keys::Keys;

    #[test]
    fn both_stores_count_each_key_alone() {
        let clock = || ManualClock::at(Timestamp::EPOCH);
        let (memory, map) = (Submit::memory(clock(), Rule::SPENT), Submit::map(clock(), Rule::SPENT));
        let subjects: [&dyn Subject; 2] = [&memory, &map];
        for subject in subjects {
            let mut asker = subject.asker();
            assert_eq!(asker.singles(&Keys::hot(7)), 5);
            assert_eq!(asker.batches(&Keys::each(32)), 32);
            assert_eq!(asker.ask("u00000012345"), Said::Refused);
        }
    }
}
