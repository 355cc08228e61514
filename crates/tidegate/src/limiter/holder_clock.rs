//! The holder_clock: this process's own sense of time.
//!
//! A store decides by its clock, and another machine may keep it. Whoever holds a lease cannot ask it "am I still the
//! holder?" before every step, so holders go by a clock of their own: one that is never set and that goes on counting
//! while the machine is suspended. A laptop that slept through its lease must wake up knowing so.
//!
//! ```text
//!   holder   before ├───────────── ttl ─────────────┤ deadline        taken before the order is sent,
//!   store        at    ├───────────── ttl ─────────────┤ expires_at   so it is never the later of the two
//! ```
//!
//! Timers of asynchronous runtimes do not count suspended time. [`SystemHolderClock`] therefore sleeps in naps of at most
//! [`MAX_SLEEP`] and looks at the clock after each: that is how late, after a resume, an end can be noticed at most.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// The longest that [`SystemHolderClock`] sleeps without looking at the clock.
pub const MAX_SLEEP: Duration = Duration::from_secs(1);

/// How long the machine has been up, suspended time included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct HolderInstant(Duration);

impl HolderInstant {
    /// This long after the machine started.
    pub const fn of(since_boot: Duration) -> HolderInstant {
        HolderInstant(since_boot)
    }

    /// This much later; it stays at the end of time rather than wrap.
    pub const fn plus(self, more: Duration) -> HolderInstant {
        HolderInstant(self.0.saturating_add(more))
    }

    /// The next moment of those that lie this far apart, counted from the start of the machine: the same for all who ask before it.
    pub(super) fn next_beat(self, apart: Duration) -> HolderInstant {
        let apart = apart.as_nanos().max(1);
        let next = (self.0.as_nanos() / apart + 1).saturating_mul(apart);
        let second = 1_000_000_000;
        let whole = u64::try_from(next / second).unwrap_or(u64::MAX);
        HolderInstant(Duration::new(whole, u32::try_from(next % second).unwrap_or(0)))
    }

    /// How long after `earlier` this is; zero if it is not after it.
    pub const fn since(self, earlier: HolderInstant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// Ends when its instant has come.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Tells how long the machine has been up, and wakes whoever sleeps.
pub trait HolderClock: Send + Sync {
    /// How long the machine has been up. It never goes back and counts suspended time.
    fn now(&self) -> HolderInstant;

    /// Ends as soon as [`HolderClock::now`] has reached `until`.
    fn sleep_until(&self, until: HolderInstant) -> Sleep;
}

/// The machine's own. Sleeping needs a tokio runtime with timers.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemHolderClock;

impl HolderClock for SystemHolderClock {
    fn now(&self) -> HolderInstant {
        use rustix::time::{ClockId, clock_gettime};
        // Elsewhere the monotonic clock is the one that goes on during suspend.
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

/// A holder_clock that beats when it is told to: for tests. Copies beat together.
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
    /// A holder_clock that stands at the machine's start.
    pub fn new() -> ManualHolderClock {
        ManualHolderClock::default()
    }

    /// Moves it ahead and wakes whose instant has come.
    pub fn advance(&self, by: Duration) {
        let mut inner = self.lock();
        inner.now = inner.now.plus(by);
        let now = inner.now;
        let asleep = inner.sleepers.split_off(&(now, u64::MAX));
        let due = std::mem::replace(&mut inner.sleepers, asleep);
        drop(inner);
        due.into_values().for_each(Waker::wake);
    }

    /// Moves it ahead and wakes nobody, as a suspended machine does.
    pub fn suspend(&self, by: Duration) {
        let mut inner = self.lock();
        inner.now = inner.now.plus(by);
    }

    /// How many sleep.
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
