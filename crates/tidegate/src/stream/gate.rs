//! A gate: the rules, what they have counted, and what became of the messages.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate_core::{Ask, Order, Span};

use crate::answer::{Answers, Detail};
use crate::catalog::{Catalog, Expect, PutError};
use crate::clock::{Clock, SystemClock};
use crate::store::{MapStore, Store};

use super::rules::{Fate, RefusedBy, Rules, User};

/// The id of the one limit a gate has.
const LIMIT: &str = "messages";

/// Decides which messages pass. Clones share what is counted, so several streams can go through one gate.
///
/// ```
/// use std::time::Duration;
/// use tidegate::stream::{Fate, Gate, Rate, Rules};
///
/// let gate = Gate::new(Rules { user: Rate::of(3, Duration::from_secs(60)), ..Rules::default() })?;
/// let passed = (0..10).filter(|_| gate.admit("ada") == Fate::Passed).count();
/// assert_eq!(passed, 3);
/// assert_eq!(gate.stats().dropped_user, 7);
/// # Ok::<(), tidegate::catalog::PutError>(())
/// ```
#[derive(Clone)]
pub struct Gate {
    inner: Arc<Inner>,
}

struct Inner {
    store: Arc<MapStore>,
    /// Times the work, whatever the store's clock says.
    wall: SystemClock,
    desk: Mutex<Desk>,
}

/// What changes with every message.
#[derive(Default)]
struct Desk {
    answers: Answers,
    counts: Counts,
    spent: Span,
}

impl Gate {
    /// A gate with these rules, in the system's time.
    pub fn new(rules: Rules) -> Result<Gate, PutError> {
        Gate::keeping(rules, SystemClock::new())
    }

    /// A gate with these rules, in this clock's time.
    pub fn keeping(rules: Rules, clock: impl Clock + 'static) -> Result<Gate, PutError> {
        let store = Arc::new(MapStore::new(clock, 0));
        store.put(rules.spec(LIMIT), Expect::Absent)?;
        let desk = Desk { answers: Answers::new(Detail::Verdicts), ..Desk::default() };
        Ok(Gate { inner: Arc::new(Inner { store, wall: SystemClock::new(), desk: Mutex::new(desk) }) })
    }

    /// Decides one message of this user, now.
    pub fn admit<'a>(&self, user: impl Into<User<'a>>) -> Fate {
        let began = self.inner.wall.now();
        let user = user.into();
        let asks = [Ask::one(LIMIT, Some(user.as_bytes()))];
        let mut desk = self.desk();
        let answers =
            self.inner.store.submit(&[Order::acquire(&asks)], std::mem::take(&mut desk.answers)).now();
        let answer = answers.get(0).and_then(|answer| answer.as_ref().ok());
        let fate = Fate::of(answer.expect("the limit is there, has two items, and a user's name fits"));
        desk.answers = answers;
        desk.counts.count(fate);
        desk.spent = desk.spent.plus(self.inner.wall.now().since(began));
        fate
    }

    /// What became of the messages so far, and what the windows hold now.
    pub fn stats(&self) -> Stats {
        let usage = self.inner.store.usage(LIMIT, None).now().ok();
        let current_global = usage.and_then(|usage| usage.items.first().map(|item| item.current_count));
        let active_users = self.inner.store.live_keys(LIMIT);
        let desk = self.desk();
        Stats {
            processed: desk.counts.processed(),
            passed: desk.counts.passed,
            dropped: desk.counts.dropped(),
            dropped_global: desk.counts.dropped_global,
            dropped_user: desk.counts.dropped_user,
            current_global: current_global.unwrap_or_default(),
            active_users,
            mean_us: mean_us(desk.spent, desk.counts.processed()),
        }
    }

    /// Empties both windows. The counts of what became of messages go on.
    pub fn reset(&self) {
        let reset = self.inner.store.reset(LIMIT, None).now();
        debug_assert!(reset.is_ok(), "the limit is there");
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        // Counts that a panic left behind are still counts.
        self.inner.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("counts", &self.desk().counts).finish_non_exhaustive()
    }
}

/// Messages by what became of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Those that passed.
    pub passed: u64,
    /// Those the global rule refused.
    pub dropped_global: u64,
    /// Those the rule for users refused.
    pub dropped_user: u64,
}

impl Counts {
    /// Counts one more.
    pub fn count(&mut self, fate: Fate) {
        *match fate {
            Fate::Passed => &mut self.passed,
            Fate::Refused(refusal) => match refusal.by {
                RefusedBy::Global => &mut self.dropped_global,
                RefusedBy::User => &mut self.dropped_user,
            },
        } += 1;
    }

    /// Those that were refused.
    pub fn dropped(&self) -> u64 {
        self.dropped_global + self.dropped_user
    }

    /// All of them.
    pub fn processed(&self) -> u64 {
        self.passed + self.dropped()
    }
}

/// What a gate has done. The names are those of `tidegate pipe --stats`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stats {
    /// How many messages came.
    pub processed: u64,
    /// How many of them went on.
    pub passed: u64,
    /// How many were refused.
    pub dropped: u64,
    /// How many of those by the global rule; a message that both refuse is one of them.
    pub dropped_global: u64,
    /// How many by the rule for users.
    pub dropped_user: u64,
    /// How many messages the global window holds now.
    pub current_global: u64,
    /// How many users have a message in their window now.
    pub active_users: usize,
    /// How long deciding one message took on average, in microseconds.
    pub mean_us: f64,
}

/// Microseconds per message, to the nanosecond.
pub fn mean_us(spent: Span, processed: u64) -> f64 {
    let nanos = spent.ticks().checked_div(processed).unwrap_or_default();
    f64::from(u32::try_from(nanos).unwrap_or(u32::MAX)) / 1000.0
}
