//! The limiter of message streams: its rules, its counts, and its statistics.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tidegate_core::Span;

use crate::catalog::{Catalog, ExpectedVersion, PutError};
use crate::clock::{Clock, SystemClock};
use crate::limiter::{Acquire, AcquireError, HolderClock, LimitHandle, Limiter, Permit, SystemHolderClock};
use crate::store::{MapStore, Store};

use super::rules::{MessageDecision, RefusedBy, StreamRules, User};

/// Id of the only limit.
const LIMIT: &str = "messages";

/// Decides which messages pass. Clones share their counts, so several streams can share one limiter.
///
/// It has a map store of its own, because its statistics tell how many users are active, and only the map store counts the
/// rows that are not evictable.
///
/// ```
/// use std::time::Duration;
/// use tidegate::stream::{MessageDecision, StreamLimiter, MessageRate, StreamRules};
///
/// let limiter = StreamLimiter::new(StreamRules { user: MessageRate::of(3, Duration::from_secs(60)), ..StreamRules::default() })?;
/// let passed = (0..10).filter(|_| limiter.admit("ada") == MessageDecision::Passed).count();
/// assert_eq!(passed, 3);
/// assert_eq!(limiter.stats().dropped_user, 7);
/// # Ok::<(), tidegate::catalog::PutError>(())
/// ```
#[derive(Clone)]
pub struct StreamLimiter {
    inner: Arc<StreamLimiterState>,
}

struct StreamLimiterState {
    store: Arc<MapStore>,
    limiter: Limiter,
    limit: LimitHandle,
    /// Measures the work, whatever the store's clock shows.
    wall: SystemClock,
    totals: Mutex<MessageTotals>,
}

/// What changes with every message.
#[derive(Default)]
struct MessageTotals {
    counts: MessageCounts,
    spent: Span,
}

impl StreamLimiter {
    /// A limiter with these rules and the system clock.
    pub fn new(rules: StreamRules) -> Result<StreamLimiter, PutError> {
        StreamLimiter::with_clock(rules, SystemClock::new())
    }

    /// A limiter with these rules and this clock.
    pub fn with_clock(rules: StreamRules, clock: impl Clock + 'static) -> Result<StreamLimiter, PutError> {
        StreamLimiter::with_clocks(rules, clock, SystemHolderClock)
    }

    /// The same, with its own clock to wake delayed messages.
    pub fn with_clocks(
        rules: StreamRules,
        clock: impl Clock + 'static,
        holder_clock: impl HolderClock + 'static,
    ) -> Result<StreamLimiter, PutError> {
        let store = Arc::new(MapStore::new(clock, 0));
        store.put(rules.spec(LIMIT), ExpectedVersion::Absent)?;
        let builder = Limiter::builder().store(Arc::clone(&store) as Arc<_>).holder_clock(holder_clock);
        let limiter = builder.build().expect("a builder with a store and no limits has no mistakes");
        let limit = limiter.limit(LIMIT).expect("it was put above");
        Ok(StreamLimiter {
            inner: Arc::new(StreamLimiterState {
                store,
                limiter,
                limit,
                wall: SystemClock::new(),
                totals: Mutex::default(),
            }),
        })
    }

    /// Decides one message of this user now. It does not overtake delayed messages.
    pub fn admit<'a>(&self, user: impl Into<User<'a>>) -> MessageDecision {
        let began = self.inner.wall.now();
        let user = user.into();
        let decision = self.inner.limit.try_acquire(user.as_bytes());
        self.decided(&decision, self.inner.wall.now().since(began))
    }

    /// Delays one message of this user for at most this long.
    pub(super) fn wait(&self, user: &User<'_>, patience: Duration) -> DelayedMessage {
        let acquire = self.inner.limit.of(user.as_bytes()).within(patience);
        DelayedMessage { limiter: self.clone(), acquire }
    }

    /// Counts so far, and the current content of the windows.
    pub fn stats(&self) -> StreamStats {
        let usage = self.inner.store.usage(LIMIT, None).now().ok();
        let current_global = usage.and_then(|usage| usage.items.first().map(|item| item.current_count));
        let active_users = self.inner.store.live_keys(LIMIT);
        let totals = self.totals();
        StreamStats {
            processed: totals.counts.processed(),
            passed: totals.counts.passed,
            dropped: totals.counts.dropped(),
            dropped_global: totals.counts.dropped_global,
            dropped_user: totals.counts.dropped_user,
            current_global: current_global.unwrap_or_default(),
            active_users,
            mean_us: mean_us(totals.spent, totals.counts.processed()),
        }
    }

    /// Empties both windows. The counts of messages go on.
    pub fn reset(&self) {
        let reset = self.inner.limiter.reset(LIMIT, None);
        debug_assert!(reset.is_ok(), "the limit is there");
    }

    /// Counts a message and the time of its decision.
    fn decided(&self, decision: &Result<Permit, AcquireError>, spent: Span) -> MessageDecision {
        let fate = match decision {
            Ok(_) => MessageDecision::Passed,
            Err(AcquireError::Refused(refused)) => MessageDecision::of_refusal(refused),
            Err(error) => panic!("the limit exists, and the key and the patience are valid: {error}"),
        };
        let mut totals = self.totals();
        totals.counts.count(fate);
        totals.spent = totals.spent.plus(spent);
        fate
    }

    fn totals(&self) -> MutexGuard<'_, MessageTotals> {
        // Counts after a panic are still counts.
        self.inner.totals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for StreamLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamLimiter").field("counts", &self.totals().counts).finish_non_exhaustive()
    }
}

/// A delayed message.
pub(super) struct DelayedMessage {
    limiter: StreamLimiter,
    acquire: Acquire,
}

impl DelayedMessage {
    /// The decision, once it is made. Only the last poll is timed, because waiting is not work.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<MessageDecision> {
        let began = self.limiter.inner.wall.now();
        let polled = Pin::new(&mut self.acquire).poll(context);
        polled.map(|decision| self.limiter.decided(&decision, self.limiter.inner.wall.now().since(began)))
    }
}

/// Messages by decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct MessageCounts {
    /// Passed messages.
    pub passed: u64,
    /// Messages refused by the global rate.
    pub dropped_global: u64,
    /// Messages refused by the user rate.
    pub dropped_user: u64,
}

impl MessageCounts {
    /// Counts a message.
    pub fn count(&mut self, fate: MessageDecision) {
        *match fate {
            MessageDecision::Passed => &mut self.passed,
            MessageDecision::Refused(refusal) => match refusal.by {
                RefusedBy::Global => &mut self.dropped_global,
                RefusedBy::User => &mut self.dropped_user,
            },
        } += 1;
    }

    /// Refused messages.
    pub fn dropped(&self) -> u64 {
        self.dropped_global + self.dropped_user
    }

    /// All messages.
    pub fn processed(&self) -> u64 {
        self.passed + self.dropped()
    }
}

/// Statistics of a limiter. The names are those of `tidegate pipe --stats`.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct StreamStats {
    /// Number of messages.
    pub processed: u64,
    /// Number of passed messages.
    pub passed: u64,
    /// Number of refused messages.
    pub dropped: u64,
    /// Number refused by the global rate, or by both.
    pub dropped_global: u64,
    /// Number refused by the user rate only.
    pub dropped_user: u64,
    /// Messages in the global window now.
    pub current_global: u64,
    /// Users with a message in their window now.
    pub active_users: usize,
    /// Mean time of a decision in microseconds.
    pub mean_us: f64,
}

/// Microseconds per message, to the nanosecond.
pub fn mean_us(spent: Span, processed: u64) -> f64 {
    let nanos = spent.ticks().checked_div(processed).unwrap_or_default();
    f64::from(u32::try_from(nanos).unwrap_or(u32::MAX)) / 1000.0
}
