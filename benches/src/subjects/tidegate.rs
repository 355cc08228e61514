//! Tidegate as a subject: the memory store, asked through its handles.

use tidegate::store::memory::DEFAULT_CAPACITY;
use tidegate::clock::Clock;
use tidegate::model::Verdict;
use tidegate::reply::OrderError;
use tidegate::store::{Memory, MemoryStore, Store};
use tidegate::store::memory::{MemoryHandle, MemoryHandleSet};

use super::put;
use super::submit::Submitter;
use crate::rule::{Reach, Rule};
use crate::subject::{Asker, BATCH, Said, Subject};

/// What it is called in the tables.
pub const NAME: &str = "tidegate";

/// The same secret in every run, so that rows lie where they lay in the last one.
const SECRET: [u64; 2] = [0x0123_4567_89ab_cdef, 0x0fed_cba9_8765_4321];

/// Whose spending the limits of a set count together.
const SET: [Reach; 4] = [Reach::Shared, Reach::Shared, Reach::Shared, Reach::PerKey];

/// A memory store of this many bytes.
pub(super) fn memory(clock: impl Clock + 'static, bytes: usize) -> MemoryStore {
    MemoryStore::new(clock, Memory { capacity_bytes: bytes, secret: SECRET })
}

/// A store with some limits, all of which are asked together.
#[derive(Debug)]
pub struct Tidegate {
    store: MemoryStore,
    limits: Vec<(String, Reach)>,
}

impl Tidegate {
    /// A store that holds these rules, one limit each, and asks all of them for every decision.
    pub fn new(clock: impl Clock + 'static, rules: &[(Rule, Reach)]) -> Tidegate {
        Tidegate::capped(clock, rules, DEFAULT_CAPACITY)
    }

    /// The same with so many bytes for everything it remembers.
    pub fn capped(clock: impl Clock + 'static, rules: &[(Rule, Reach)], bytes: usize) -> Tidegate {
        let store = memory(clock, bytes);
        let ids = put(&store, rules);
        Tidegate { store, limits: ids.into_iter().zip(rules.iter().map(|rule| rule.1)).collect() }
    }

    /// An asker for one limit of several, as if it were the only one.
    pub fn asker_of(&self, limit: usize) -> Box<dyn Asker + '_> {
        Box::new(One(self.store.handle(&self.limits[limit].0).expect("it was put")))
    }

    /// The same by the store's door, which also says what was answered by rule.
    pub fn submitter_of(&self, limit: usize) -> Box<dyn Asker + '_> {
        Box::new(Submitter::new(&self.store, &self.limits[limit].0))
    }

    /// How much of a limit is in use by a key.
    pub fn used(&self, limit: usize, key: &str) -> u64 {
        let usage = self.store.usage(&self.limits[limit].0, Some(key.as_bytes())).now();
        usage.expect("it was put").items.first().map_or(0, |item| item.current_count)
    }

    /// How many rows a limit has.
    pub fn rows_of(&self, limit: usize) -> u64 {
        self.store.observe(&self.limits[limit].0).map_or(0, |seen| seen.rows.unwrap_or(0))
    }

    /// How many bytes the store says it takes.
    pub fn bytes(&self) -> usize {
        self.store.bytes()
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
        let ids: Vec<&str> = self.limits.iter().map(|(id, _)| id.as_str()).collect();
        let reaches: Vec<Reach> = self.limits.iter().map(|(_, reach)| *reach).collect();
        assert_eq!(reaches, SET, "the only set that is asked for");
        Box::new(Set(self.store.handle_set(&ids).expect("they were put")))
    }

    fn knows_batches(&self) -> bool {
        true
    }

    fn rows(&self) -> Option<u64> {
        Some(self.rows_of(self.limits.len() - 1))
    }
}

/// Asks one limit.
struct One(MemoryHandle);

impl Asker for One {
    #[inline]
    fn ask(&mut self, key: &str) -> Said {
        said(self.0.try_acquire(key.as_bytes(), 1))
    }

    #[inline]
    fn ask_batch(&mut self, keys: &[&str]) -> usize {
        let Some(keys) = keys.first_chunk::<BATCH>() else { return 0 };
        let mut verdicts = [Verdict::Granted; BATCH];
        if let Err(rejection) = self.0.try_batch(&keys.map(str::as_bytes), 1, &mut verdicts) {
            nonsense(&rejection);
        }
        verdicts.iter().filter(|verdict| **verdict == Verdict::Granted).count()
    }
}

/// Asks several limits together, all or nothing.
struct Set(MemoryHandleSet);

impl Asker for Set {
    #[inline]
    fn ask(&mut self, key: &str) -> Said {
        said(self.0.try_acquire(&[None, None, None, Some(key.as_bytes())]))
    }
}

#[inline]
fn said(verdict: Result<Verdict, OrderError>) -> Said {
    match verdict {
        Ok(verdict) => Said::of(verdict == Verdict::Granted),
        Err(rejection) => nonsense(&rejection),
    }
}

#[cold]
fn nonsense(rejection: &OrderError) -> ! {
    panic!("the benchmark asked nonsense: {rejection}")
}

#[cfg(test)]
mod tests {
    use tidegate::clock::ManualClock;
    use tidegate::model::Timestamp;

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
        assert_eq!(subject.submitter_of(0).ask("u00000012345"), Said::Refused);
        assert_eq!((subject.used(0, "u00000012345"), subject.rows()), (5, Some(33)));
    }

    #[test]
    fn a_set_is_granted_by_all_or_charged_by_none() {
        let shared = [(Rule::LIVE, Reach::Shared), (Rule::SPENT, Reach::Shared), (Rule::LIVE, Reach::Shared)];
        let subject = Tidegate::new(clock(), &[&shared[..], &[(Rule::LIVE, Reach::PerKey)]].concat());
        assert_eq!(subject.asker().singles(&Keys::each(100)), 5);
    }
}
