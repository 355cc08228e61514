//! A gate: the rules, what they have counted, and what became of the messages.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tidegate_core::Span;

use crate::catalog::{Catalog, ExpectedVersion, PutError};
use crate::clock::{Clock, SystemClock};
use crate::limiter::{Acquire, AcquireError, HolderClock, Limiter, Permit, SystemHolderClock};
use crate::store::{MapStore, Store};

use super::rules::{Fate, RefusedBy, Rules, User};

/// The id of the one limit a gate has.
const LIMIT: &str = "messages";

/// Decides which messages pass. Clones share what is counted, so several streams can go through one gate.
///
/// A gate has a plain store of its own, because its stats tell how many users are active, and only the plain store counts the rows
/// that still matter. It is not the [`Gate`](crate::store::memory::MemoryHandle) of memory stores, which is a handle on one limit.
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
    limiter: Limiter,
    /// Times the work, whatever the store's clock says.
    wall: SystemClock,
    desk: Mutex<Desk>,
}

/// What changes with every message.
#[derive(Default)]
struct Desk {
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
        Gate::pulsing(rules, clock, SystemHolderClock)
    }

    /// The same, with a holder_clock of its own to wake messages that wait.
    pub fn pulsing(
        rules: Rules,
        clock: impl Clock + 'static,
        holder_clock: impl HolderClock + 'static,
    ) -> Result<Gate, PutError> {
        let store = Arc::new(MapStore::new(clock, 0));
        store.put(rules.spec(LIMIT), ExpectedVersion::Absent)?;
        let limiter = Limiter::builder(Arc::clone(&store) as Arc<_>).holder_clock(holder_clock).build();
        Ok(Gate {
            inner: Arc::new(Inner { store, limiter, wall: SystemClock::new(), desk: Mutex::default() }),
        })
    }

    /// Decides one message of this user, now. It does not overtake messages that wait.
    pub fn admit<'a>(&self, user: impl Into<User<'a>>) -> Fate {
        let began = self.inner.wall.now();
        let user = user.into();
        let decision = self.inner.limiter.ask(LIMIT, user.as_bytes()).try_acquire();
        self.decided(&decision, self.inner.wall.now().since(began))
    }

    /// Lets one message of this user wait for as long as this.
    pub(super) fn wait(&self, user: &User<'_>, patience: Duration) -> Waiting {
        let question = self.inner.limiter.ask(LIMIT, user.as_bytes());
        Waiting { gate: self.clone(), acquire: question.acquire_within(patience) }
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
        let reset = self.inner.limiter.reset(LIMIT, None);
        debug_assert!(reset.is_ok(), "the limit is there");
    }

    /// Counts a message and the time it took.
    fn decided(&self, decision: &Result<Permit, AcquireError>, spent: Span) -> Fate {
        let fate = match decision {
            Ok(_) => Fate::Passed,
            Err(AcquireError::Refused(refused)) => Fate::of_refusal(refused),
            Err(error) => panic!("the limit exists, and the key and the patience are valid: {error}"),
        };
        let mut desk = self.desk();
        desk.counts.count(fate);
        desk.spent = desk.spent.plus(spent);
        fate
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

/// A message that waits for its fate.
pub(super) struct Waiting {
    gate: Gate,
    acquire: Acquire,
}

impl Waiting {
    /// Its fate, when it is decided. Waiting is not work: only the last look is timed.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Fate> {
        let began = self.gate.inner.wall.now();
        let polled = Pin::new(&mut self.acquire).poll(context);
        polled.map(|decision| self.gate.decided(&decision, self.gate.inner.wall.now().since(began)))
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
