//! The limiter: a store with manners.
//!
//! A store decides and forgets who asked. Programs want three things more: answers that own what they hold and give it
//! back when they are dropped ([`Lease`]), a place to wait in line ([`Question::acquire_within`]), and a way to
//! ask that reads aloud:
//!
//! ```
//! use std::sync::Arc;
//! use tidegate::{Catalog, Decision, Expect, ItemSpec, LimitSpec, Limiter, ManualClock, MapStore, Policy, Timestamp};
//!
//! let store = MapStore::new(ManualClock::at(Timestamp::EPOCH), 0);
//! let slots = ItemSpec::of(Policy::Concurrency { ttl: std::time::Duration::from_secs(60) }, 1);
//! store.put(LimitSpec::named("builds").with(slots), Expect::Absent)?;
//!
//! let limiter = Limiter::new(Arc::new(store));
//! let Decision::Granted(granted) = limiter.ask_all("builds").try_acquire()? else { panic!("nobody else is here") };
//! assert!(!limiter.ask_all("builds").try_acquire()?.is_granted(), "one at a time");
//! drop(granted);
//! assert!(limiter.ask_all("builds").try_acquire()?.is_granted(), "and then the next");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Decided: a limiter adds no arithmetic. What is granted, when a lease lapses, whether a release counts: the store's
//! answer decides, always. The limiter only knows who holds something in this process and who waits for it.
//!
//! Refused: limiters for stores that do not speak at once. Such a store's answers are [`Unavailable`] here.

pub mod decision;
pub mod lease;
pub mod pulse;
pub mod question;
pub mod waiting;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Ask, LeaseId, Order, Tick, Timestamp};

use crate::answer::{Answer, Answers, Detail, Outcome};
use crate::store::{Actual, FullStore, Settlement, Spoken, Unavailable};

pub use decision::{AskError, Decision, Denial, Granted};
pub use lease::{Lease, Renewal};
pub use pulse::{ManualPulse, Pulse, SystemPulse, Uptime};
pub use question::Question;
pub use waiting::Acquire;

/// The most who may wait for one row, unless said otherwise.
pub const MOST_WAITING_PER_ROW: usize = 10_000;

/// The most who may wait at one limiter, unless said otherwise.
pub const MOST_WAITING: usize = 100_000;

/// Asks a store, keeps what is held, and lets askers wait in line. Copies are the same limiter.
#[derive(Clone)]
pub struct Limiter {
    inner: Arc<Inner>,
}

/// What a limiter can be told when it is made.
pub struct LimiterBuilder {
    store: Arc<dyn FullStore>,
    pulse: Arc<dyn Pulse>,
    most_waiting: usize,
    most_waiting_per_row: usize,
}

impl LimiterBuilder {
    /// The holders' own sense of time, and what wakes those who wait.
    pub fn pulse(mut self, pulse: impl Pulse + 'static) -> LimiterBuilder {
        self.pulse = Arc::new(pulse);
        self
    }

    /// The most who may wait at once; [`MOST_WAITING`] unless said.
    pub fn most_waiting(mut self, most: usize) -> LimiterBuilder {
        self.most_waiting = most;
        self
    }

    /// The most who may wait at once for one row; [`MOST_WAITING_PER_ROW`] unless said.
    pub fn most_waiting_per_row(mut self, most: usize) -> LimiterBuilder {
        self.most_waiting_per_row = most;
        self
    }

    /// The limiter.
    pub fn build(self) -> Limiter {
        let tick = self.store.capabilities().tick;
        Limiter { inner: Arc::new(Inner { store: self.store, pulse: self.pulse, tick }) }
    }
}

impl Limiter {
    /// A limiter that asks this store, which must be one that speaks at once.
    pub fn new(store: Arc<dyn FullStore>) -> Limiter {
        Limiter::builder(store).build()
    }

    /// The same, with more to say.
    pub fn builder(store: Arc<dyn FullStore>) -> LimiterBuilder {
        LimiterBuilder {
            store,
            pulse: Arc::new(SystemPulse),
            most_waiting: MOST_WAITING,
            most_waiting_per_row: MOST_WAITING_PER_ROW,
        }
    }

    /// The store that decides. What is given back or reset there directly, and not through the limiter, does not wake
    /// those who wait here; edits of limits do.
    pub fn store(&self) -> &dyn FullStore {
        &*self.inner.store
    }

    /// One unit of this limit for this key.
    pub fn ask<'a>(&'a self, limit_id: &'a str, key: &'a (impl AsRef<[u8]> + ?Sized)) -> Question<'a> {
        Question::one(self, Ask::one(limit_id, Some(key.as_ref())))
    }

    /// One unit of this limit, which counts all keys together.
    pub fn ask_all<'a>(&'a self, limit_id: &'a str) -> Question<'a> {
        Question::one(self, Ask::one(limit_id, None))
    }

    /// All of these or nothing.
    pub fn asks<'a>(&'a self, asks: &'a [Ask<'a>]) -> Question<'a> {
        Question::many(self, asks)
    }

    /// Gives a lease back by its id. `false` if it is gone.
    pub fn release(&self, lease: LeaseId) -> bool {
        self.inner.release(lease)
    }

    /// Corrects a held charge to its true cost, then releases it, by the id of its lease.
    pub fn settle(&self, lease: LeaseId, actual: Actual<'_>) -> Result<Settlement, Unavailable> {
        self.inner.settle(lease, actual)
    }

    /// Takes over a lease that somebody handed over as an id, by renewing it. `None` if it is gone. Its fences are not
    /// known here.
    pub fn adopt(&self, lease: LeaseId, ttl: Duration) -> Result<Option<Lease>, AskError> {
        Lease::adopt(&self.inner, lease, ttl)
    }

    /// Zeroes counts: those of one key, or everything of the limit. Leases go on, and those who wait look again.
    pub fn reset(&self, limit_id: &str, key: Option<&[u8]>) -> Result<(), AskError> {
        Ok(at_once(self.inner.store.reset(limit_id, key))??)
    }

    /// How many wait at this moment.
    pub fn waiting_in_all(&self) -> usize {
        0
    }

    /// How many wait at this moment for this limit.
    pub fn waiting(&self, _limit_id: &str) -> usize {
        0
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter").field("waiting", &self.waiting_in_all()).finish_non_exhaustive()
    }
}

/// What copies of a limiter share.
struct Inner {
    store: Arc<dyn FullStore>,
    pulse: Arc<dyn Pulse>,
    tick: Tick,
}

impl Inner {
    fn clone_of(limiter: &Limiter) -> Arc<Inner> {
        Arc::clone(&limiter.inner)
    }

    fn try_acquire(self: &Arc<Inner>, order: &Order<'_>, detail: Detail) -> Result<Decision, AskError> {
        self.submit(order, detail)
    }

    /// Puts an order to the store, and takes into possession what it grants.
    fn submit(self: &Arc<Inner>, order: &Order<'_>, detail: Detail) -> Result<Decision, AskError> {
        let before = self.pulse.now();
        let answers = at_once(self.store.submit(std::slice::from_ref(order), Answers::new(detail)))?;
        let answer = answers.get(0).cloned().ok_or_else(speechless)??;
        let readings = answers.readings(&answer).to_vec();
        let Answer { outcome, at, degraded, shadowed, .. } = answer;
        Ok(match outcome {
            Outcome::Granted(grant) => {
                let lease = grant.map(|grant| Lease::granted(self, grant, before, at));
                Decision::Granted(Granted { at, shadowed, degraded, lease, readings })
            }
            Outcome::Denied(denied) => Decision::Denied(Denial {
                at,
                wait: denied.wait,
                degraded,
                limit: Arc::clone(&denied.limit),
                item: denied.item,
                denied: Some(denied),
                tick: self.tick,
                readings,
            }),
        })
    }

    fn release(&self, lease: LeaseId) -> bool {
        at_once(self.store.release(lease)).unwrap_or(false)
    }

    fn settle(&self, lease: LeaseId, actual: Actual<'_>) -> Result<Settlement, Unavailable> {
        at_once(self.store.settle(lease, actual))
    }

    fn renew(&self, lease: LeaseId, ttl: Option<Duration>) -> Result<Option<Timestamp>, AskError> {
        Ok(at_once(self.store.renew(lease, ttl))??)
    }
}

/// The reply of a store that speaks at once.
fn at_once<T>(spoken: Spoken<T>) -> Result<T, Unavailable> {
    match spoken {
        Spoken::Now(reply) => Ok(reply),
        Spoken::Durable(..) | Spoken::Later(_) => {
            Err(Unavailable { reason: "this store does not speak at once".to_owned() })
        }
    }
}

/// What a store that answers nothing to an order is told.
fn speechless() -> AskError {
    AskError::Unavailable(Unavailable { reason: "the store gave no answer".to_owned() })
}
