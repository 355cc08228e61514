//! A limiter on a stage: its store's clock and its holders' pulse are moved by hand, and whoever waits is polled by hand.
//!
//! The stage is the same for every store. `leases.rs` and `waiting.rs` are compiled once for each, as `limiter_over_*`, and say
//! `Stage` for the one of the store they are compiled for.
//!
//! Nothing here sleeps, and nothing runs unless a test says so: the stage polls a waiter when it was woken and counts how
//! often that was.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tidegate::catalog::ExpectedVersion;
use tidegate::clock::{Clock, ManualClock};
use tidegate::limiter::ManualHolderClock;
use tidegate::model::{Charge, ItemSpec, LimitSpec, Policy, Tick, Timestamp};
use tidegate::store::{LimitStore, MapStore, Memory, MemoryStore, StoreReply};
use tidegate::{AcquireError, Lease, Limiter, Permit, Refused};
use tidegate_testkit::logged_store::{LoggedStore, ManualLog};
use tidegate_testkit::remote_stub::{RemoteLink, RemoteStub};

/// Where the clocks begin, so that an instant before it can be told from none.
const START: Timestamp = Timestamp::from_ticks(1_000_000_000_000_000);

pub(crate) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The instant this long after the beginning.
pub(crate) fn at(since_start: Duration) -> Timestamp {
    START.plus(Tick::NANOSECOND.span(since_start))
}

/// A store that limiters are tried over.
pub(crate) trait Staged: LimitStore + Sized + 'static {
    /// How many cases of a story that is invented are tried with it. The queues are the same over every store.
    const STORIES: u32;

    fn keeping(clock: impl Clock + 'static) -> Self;

    /// How many leases are open.
    fn open_leases(&self) -> usize;
}

impl Staged for MapStore {
    const STORIES: u32 = 300;

    fn keeping(clock: impl Clock + 'static) -> MapStore {
        MapStore::new(clock, 7)
    }

    fn open_leases(&self) -> usize {
        self.leases()
    }
}

impl Staged for MemoryStore {
    const STORIES: u32 = 100;

    fn keeping(clock: impl Clock + 'static) -> MemoryStore {
        MemoryStore::new(clock, Memory { secret: [7, 8], ..Memory::default() })
    }

    fn open_leases(&self) -> usize {
        self.leases()
    }
}

impl Staged for LoggedStore<MapStore> {
    const STORIES: u32 = 50;

    fn keeping(clock: impl Clock + 'static) -> LoggedStore<MapStore> {
        LoggedStore::new(Arc::new(MapStore::keeping(clock)), ManualLog::immediate())
    }

    fn open_leases(&self) -> usize {
        self.store().leases()
    }
}

impl Staged for RemoteStub<MapStore> {
    const STORIES: u32 = 50;

    fn keeping(clock: impl Clock + 'static) -> RemoteStub<MapStore> {
        RemoteStub::new(Arc::new(MapStore::keeping(clock)), RemoteLink::immediate())
    }

    fn open_leases(&self) -> usize {
        self.store().leases()
    }
}

/// What a store has decided, told already or not.
#[track_caller]
pub(crate) fn decided<T>(spoken: StoreReply<T>) -> T {
    spoken.decided()
}

/// A limiter whose time stands still.
pub(crate) struct Stage<S> {
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) pulse: ManualHolderClock,
    pub(crate) store: Arc<S>,
    pub(crate) limiter: Limiter,
}

impl<S: Staged> Stage<S> {
    pub(crate) fn new() -> Stage<S> {
        Stage::with_bounds(
            tidegate::limiter::DEFAULT_MAX_WAITING,
            tidegate::limiter::DEFAULT_MAX_WAITING_PER_ROW,
        )
    }

    pub(crate) fn with_bounds(in_all: usize, per_row: usize) -> Stage<S> {
        Stage::over(S::keeping, in_all, per_row)
    }

    /// A stage with a store that is made like this.
    pub(crate) fn over(
        keeping: impl FnOnce(Arc<ManualClock>) -> S,
        in_all: usize,
        per_row: usize,
    ) -> Stage<S> {
        let clock = Arc::new(ManualClock::at(START));
        let pulse = ManualHolderClock::new();
        let store = Arc::new(keeping(Arc::clone(&clock)));
        let builder = Limiter::builder().store(Arc::clone(&store) as _).holder_clock(pulse.clone());
        let limiter = builder.max_waiting(in_all).max_waiting_per_row(per_row).build().expect("no mistakes");
        Stage { clock, pulse, store, limiter }
    }

    /// A stage with one limit `l` of this many slots at once, for a minute each.
    pub(crate) fn with_slots(slots: u64) -> Stage<S> {
        let stage = Stage::new();
        stage.put(LimitSpec::named("l").with(slots_of(slots)));
        stage
    }

    pub(crate) fn put(&self, spec: LimitSpec) {
        self.store.put(spec, ExpectedVersion::Anything).expect("a valid limit");
    }

    /// Lets time pass, for the store and for holders.
    pub(crate) fn pass(&self, time: Duration) {
        self.clock.advance(time);
        self.pulse.advance(time);
    }

    /// Takes this much of `l` at once.
    #[track_caller]
    pub(crate) fn take(&self, count: u64) -> Lease {
        let decision = self.limiter.ask("l", "u").count(count).try_acquire();
        lease(granted(decision))
    }

    /// Whether one of `l` is granted now; it is given back at once.
    #[track_caller]
    pub(crate) fn is_free(&self) -> bool {
        self.limiter.ask("l", "u").try_acquire().is_granted()
    }

    /// Somebody who waits for this much of `l`, for this long, not polled yet.
    pub(crate) fn wait(&self, count: u64, patience: Duration) -> Waiter {
        self.wait_for("l", "u", count, patience)
    }

    pub(crate) fn wait_for(&self, limit_id: &str, key: &str, count: u64, patience: Duration) -> Waiter {
        Waiter::new(self.limiter.ask(limit_id, key).count(count).within(patience))
    }

    /// What everything must end with: nobody waits, nobody sleeps, and of `l`'s slots exactly these are held and all others can
    /// be had.
    #[track_caller]
    pub(crate) fn ends_with(&self, held: u64) {
        assert_eq!(self.limiter.waiting_in_all(), 0, "nobody is in a queue");
        assert_eq!(self.limiter.waiting("l"), 0);
        let decision = self.limiter.ask("l", "u").count(0).readings().peek();
        let readings = match &decision {
            Ok(granted) => granted.readings(),
            Err(AcquireError::Refused(denial)) => denial.readings(),
            Err(error) => panic!("no decision: {error}"),
        };
        let reading = readings[0].reading;
        assert_eq!(reading.used, held, "what is held");
        let free = reading.remaining.expect("a bounded limit");
        let mut taken = Vec::new();
        while let Some(granted) = self.limiter.ask("l", "u").try_acquire().permit() {
            taken.push(granted);
        }
        assert_eq!(taken.len() as u64, free, "held + free = capacity");
        drop(taken);
        let again = self.limiter.ask("l", "u").count(0).readings().peek();
        assert_eq!(again.permit().expect("within capacity").readings()[0].reading.used, held);
    }
}

/// So many at once, weighed by what they ask for.
pub(crate) fn slots_of(slots: u64) -> ItemSpec {
    ItemSpec { charge: Some(Charge::Count), ..ItemSpec::of(Policy::Concurrency { ttl: seconds(60) }, slots) }
}

/// The outcome of a valid request over a store that answers.
pub(crate) type Decision = Result<Permit, AcquireError>;

/// Shorthands for decisions. All of them panic if the request was invalid or the store unavailable.
pub(crate) trait DecisionExt {
    fn is_granted(&self) -> bool;
    fn permit(self) -> Option<Permit>;
    fn refused(self) -> Option<Refused>;
}

impl DecisionExt for Decision {
    #[track_caller]
    fn is_granted(&self) -> bool {
        match self {
            Ok(_) => true,
            Err(AcquireError::Refused(_)) => false,
            Err(error) => panic!("no decision: {error}"),
        }
    }

    #[track_caller]
    fn permit(self) -> Option<Permit> {
        match self {
            Ok(permit) => Some(permit),
            Err(AcquireError::Refused(_)) => None,
            Err(error) => panic!("no decision: {error}"),
        }
    }

    #[track_caller]
    fn refused(self) -> Option<Refused> {
        match self {
            Ok(_) => None,
            Err(AcquireError::Refused(refused)) => Some(refused),
            Err(error) => panic!("no decision: {error}"),
        }
    }
}

#[track_caller]
pub(crate) fn granted(decision: Decision) -> Permit {
    decision.unwrap_or_else(|error| panic!("{error}"))
}

#[track_caller]
pub(crate) fn denied(decision: Decision) -> Refused {
    decision.refused().expect("a refusal")
}

#[track_caller]
pub(crate) fn lease(permit: Permit) -> Lease {
    permit.into_lease().expect("a lease")
}

/// Counts how often it was called.
#[derive(Default)]
struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A future that is polled by hand.
pub(crate) struct Handheld<F: Future> {
    future: Pin<Box<F>>,
    bell: Arc<Bell>,
    heard: usize,
    pub(crate) polls: usize,
}

/// Somebody who waits.
pub(crate) type Waiter = Handheld<tidegate::limiter::Acquire>;

impl<F: Future> Handheld<F> {
    pub(crate) fn new(future: F) -> Handheld<F> {
        Handheld { future: Box::pin(future), bell: Arc::default(), heard: 0, polls: 0 }
    }

    /// Polls it, woken or not.
    pub(crate) fn poll(&mut self) -> Poll<F::Output> {
        self.polls += 1;
        self.heard = self.bell.0.load(Ordering::SeqCst);
        let waker = Waker::from(Arc::clone(&self.bell));
        self.future.as_mut().poll(&mut Context::from_waker(&waker))
    }

    /// Whether it was woken since it was last polled.
    pub(crate) fn is_woken(&self) -> bool {
        self.bell.0.load(Ordering::SeqCst) > self.heard
    }

    /// Polls it for as long as it was woken.
    pub(crate) fn run(&mut self) -> Poll<F::Output> {
        while self.is_woken() {
            if let Poll::Ready(output) = self.poll() {
                return Poll::Ready(output);
            }
        }
        Poll::Pending
    }

    /// Polls it for the first time; it has to wait.
    #[track_caller]
    pub(crate) fn starts(mut self) -> Handheld<F> {
        assert!(self.poll().is_pending(), "it has to wait");
        assert!(self.run().is_pending(), "it has to wait");
        self
    }

    /// It is woken, and then it is done.
    #[track_caller]
    pub(crate) fn is_done(&mut self) -> F::Output {
        assert!(self.is_woken(), "it was not woken");
        match self.run() {
            Poll::Ready(output) => output,
            Poll::Pending => panic!("it still waits"),
        }
    }

    /// It is polled if it was not yet or was woken, and waits.
    #[track_caller]
    pub(crate) fn still_waits_or_starts(&mut self) {
        if self.polls == 0 {
            assert!(self.poll().is_pending(), "it does not wait");
        }
        self.still_waits();
    }

    /// It is polled if it was not yet or was woken, and is done.
    #[track_caller]
    pub(crate) fn is_answered(&mut self) -> F::Output {
        match if self.polls == 0 { self.poll() } else { Poll::Pending } {
            Poll::Ready(output) => output,
            Poll::Pending => self.is_done(),
        }
    }

    /// It goes on waiting, even if it was woken.
    #[track_caller]
    pub(crate) fn still_waits(&mut self) {
        assert!(self.run().is_pending(), "it does not wait any more");
    }
}

impl Waiter {
    /// Its patience is over.
    pub(crate) fn stop_waiting(&mut self) {
        self.future.stop_waiting();
    }

    /// It is served.
    #[track_caller]
    pub(crate) fn is_served(&mut self) -> Permit {
        granted(self.is_done())
    }

    /// It is refused.
    #[track_caller]
    pub(crate) fn is_refused(&mut self) -> Refused {
        denied(self.is_done())
    }

    /// It is told that its question makes no sense.
    #[track_caller]
    pub(crate) fn is_rejected(&mut self) -> AcquireError {
        self.is_done().expect_err("no sense in it")
    }
}
