//! The clock of lease holders and waiters in this process.
//!
//! A store decides by its own clock, which may be on another machine. A holder cannot ask the store before every step
//! whether its lease is valid, so it compares with a local clock. That clock is never set and includes suspended time:
//! after a resume, a lapsed lease is seen as lapsed.
//!
//! ```text
//!   holder   before ├───────────── ttl ─────────────┤ deadline        taken before the order is sent,
//!   store        at    ├───────────── ttl ─────────────┤ expires_at   so it is never the later of the two
//! ```
//!
//! Timers of asynchronous runtimes do not count suspended time. [`SystemHolderClock`] therefore sleeps at most
//! [`MAX_SLEEP`] at a time and then reads the clock. After a resume, a deadline is noticed late by at most that much.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// The longest time that [`SystemHolderClock`] sleeps before it reads the clock.
pub const MAX_SLEEP: Duration = Duration::from_secs(1);

/// The uptime of the machine, including suspended time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct HolderInstant(Duration);

impl HolderInstant {
    /// The instant this long after boot.
    pub const fn of(since_boot: Duration) -> HolderInstant {
        HolderInstant(since_boot)
    }

    /// The instant `more` later; saturates.
    pub const fn plus(self, more: Duration) -> HolderInstant {
        HolderInstant(self.0.saturating_add(more))
    }

    /// The next multiple of `apart` since boot. All callers before that instant get the same one.
    pub(super) fn next_multiple_of(self, apart: Duration) -> HolderInstant {
        let apart = apart.as_nanos().max(1);
        let next = (self.0.as_nanos() / apart + 1).saturating_mul(apart);
        let second = 1_000_000_000;
        let whole = u64::try_from(next / second).unwrap_or(u64::MAX);
        HolderInstant(Duration::new(whole, u32::try_from(next % second).unwrap_or(0)))
    }

    /// The time since `earlier`; zero if this is not later.
    pub const fn since(self, earlier: HolderInstant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// A future that ends at its instant.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Tells the uptime and wakes sleepers.
pub trait HolderClock: Send + Sync {
    /// The uptime of the machine. It is monotonic and includes suspended time.
    fn now(&self) -> HolderInstant;

    /// Ends when [`HolderClock::now`] reaches `until`.
    fn sleep_until(&self, until: HolderInstant) -> Sleep;
}

/// The clock of the machine. Sleeping needs a tokio runtime with timers.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemHolderClock;

impl HolderClock for SystemHolderClock {
    fn now(&self) -> HolderInstant {
        use rustix::time::{ClockId, clock_gettime};
        // On other systems the monotonic clock includes suspended time.
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let clock = ClockId::Boottime;
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let clock = ClockId::Monotonic;
        HolderInstant(Duration::try_from(clock_gettime(clock)).unwrap_or_default())
    }

    fn sleep_until(&self, until: HolderInstant) -> Sleep {
        let holder_clock = *self;
        Box::pin(async move {
            loop {
                let left = until.since(holder_clock.now());
                if left.is_zero() {
                    return;
                }
                tokio::time::sleep(left.min(MAX_SLEEP)).await;
            }
        })
    }
}

/// A clock for tests that moves only when it is advanced. Clones share one clock.
#[derive(Clone, Default)]
pub struct ManualHolderClock {
    inner: Arc<Mutex<ManualState>>,
}

#[derive(Default)]
struct ManualState {
    now: HolderInstant,
    last_sleeper: u64,
    sleepers: BTreeMap<(HolderInstant, u64), Waker>,
}

impl ManualHolderClock {
    /// A clock at zero.
    pub fn new() -> ManualHolderClock {
        ManualHolderClock::default()
    }

    /// Advances the clock and wakes the sleepers that are due.
    pub fn advance(&self, by: Duration) {
        let mut inner = self.lock();
        inner.now = inner.now.plus(by);
        let now = inner.now;
        let asleep = inner.sleepers.split_off(&(now, u64::MAX));
        let due = std::mem::replace(&mut inner.sleepers, asleep);
        drop(inner);
        due.into_values().for_each(Waker::wake);
    }

    /// Advances the clock without waking sleepers, as a suspended machine does.
    pub fn suspend(&self, by: Duration) {
        let mut inner = self.lock();
        inner.now = inner.now.plus(by);
    }

    /// The number of sleepers.
    pub fn sleepers(&self) -> usize {
        self.lock().sleepers.len()
    }

    fn lock(&self) -> MutexGuard<'_, ManualState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HolderClock for ManualHolderClock {
    fn now(&self) -> HolderInstant {
        self.lock().now
    }

    fn sleep_until(&self, until: HolderInstant) -> Sleep {
        let mut inner = self.lock();
        inner.last_sleeper += 1;
        Box::pin(ManualSleep { holder_clock: self.clone(), place: (until, inner.last_sleeper) })
    }
}

impl fmt::Debug for ManualHolderClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManualHolderClock").field("now", &self.now()).finish_non_exhaustive()
    }
}

struct ManualSleep {
    holder_clock: ManualHolderClock,
    place: (HolderInstant, u64),
}

impl Future for ManualSleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut inner = self.holder_clock.lock();
        if self.place.0 <= inner.now {
            return Poll::Ready(());
        }
        inner.sleepers.insert(self.place, context.waker().clone());
        Poll::Pending
    }
}

impl Drop for ManualSleep {
    fn drop(&mut self) {
        self.holder_clock.lock().sleepers.remove(&self.place);
    }
}
