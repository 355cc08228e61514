//! A limiter with manual clocks for its store and its lease holders, and waiters that are polled by hand.
//!
//! The fixture works with every store. `leases.rs` and `waiting.rs` are compiled once per store, as `limiter_over_*`,
//! which define `LimiterFixture` for their store.
//!
//! Nothing sleeps or runs by itself: the fixture polls a waiter when it was woken and counts the polls.

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
use tidegate::{AcquireError, Lease, LimitHandle, Limiter, Permit, Refused};
use tidegate_testkit::logged_store::{LoggedStore, ManualLog};
use tidegate_testkit::remote_stub::{RemoteLink, RemoteStub};

/// Start of the clocks. It is not zero, so earlier instants exist.
const START: Timestamp = Timestamp::from_ticks(1_000_000_000_000_000);

pub(crate) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The instant this long after the start.
pub(crate) fn at(since_start: Duration) -> Timestamp {
    START.plus(Tick::NANOSECOND.span(since_start))
}

/// A store for the limiter tests.
pub(crate) trait FixtureStore: LimitStore + Sized + 'static {
    /// The number of random histories per property test. The queues are the same over every store.
    const RANDOM_CASES: u32;

    fn with_clock(clock: impl Clock + 'static) -> Self;

    /// The number of open leases.
    fn open_leases(&self) -> usize;
}

impl FixtureStore for MapStore {
    const RANDOM_CASES: u32 = 300;

    fn with_clock(clock: impl Clock + 'static) -> MapStore {
        MapStore::new(clock, 7)
    }

    fn open_leases(&self) -> usize {
        self.leases()
    }
}

impl FixtureStore for MemoryStore {
    const RANDOM_CASES: u32 = 100;

    fn with_clock(clock: impl Clock + 'static) -> MemoryStore {
        MemoryStore::new(clock, Memory { secret: [7, 8], ..Memory::default() })
    }

    fn open_leases(&self) -> usize {
        self.leases()
    }
}

impl FixtureStore for LoggedStore<MapStore> {
    const RANDOM_CASES: u32 = 50;

    fn with_clock(clock: impl Clock + 'static) -> LoggedStore<MapStore> {
        LoggedStore::new(Arc::new(MapStore::with_clock(clock)), ManualLog::immediate())
    }

    fn open_leases(&self) -> usize {
        self.store().leases()
    }
}

impl FixtureStore for RemoteStub<MapStore> {
    const RANDOM_CASES: u32 = 50;

    fn with_clock(clock: impl Clock + 'static) -> RemoteStub<MapStore> {
        RemoteStub::new(Arc::new(MapStore::with_clock(clock)), RemoteLink::immediate())
    }

    fn open_leases(&self) -> usize {
        self.store().leases()
    }
}

/// The decision of a store, whether or not its reply is due.
#[track_caller]
pub(crate) fn decided<T>(reply: StoreReply<T>) -> T {
    reply.decided()
}

/// A limiter with manual clocks.
pub(crate) struct LimiterFixture<S> {
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) holder_clock: ManualHolderClock,
    pub(crate) store: Arc<S>,
    pub(crate) limiter: Limiter,
}

impl<S: FixtureStore> LimiterFixture<S> {
    pub(crate) fn new() -> LimiterFixture<S> {
        LimiterFixture::with_bounds(
            tidegate::limiter::DEFAULT_MAX_WAITING,
            tidegate::limiter::DEFAULT_MAX_WAITING_PER_ROW,
        )
    }

    pub(crate) fn with_bounds(in_all: usize, per_row: usize) -> LimiterFixture<S> {
        LimiterFixture::over(S::with_clock, in_all, per_row)
    }

    /// A fixture whose store is created by this function.
    pub(crate) fn over(
        with_clock: impl FnOnce(Arc<ManualClock>) -> S,
        in_all: usize,
        per_row: usize,
    ) -> LimiterFixture<S> {
        let clock = Arc::new(ManualClock::at(START));
        let holder_clock = ManualHolderClock::new();
        let store = Arc::new(with_clock(Arc::clone(&clock)));
        let builder = Limiter::builder().store(Arc::clone(&store) as _).holder_clock(holder_clock.clone());
        let limiter =
            builder.max_waiting(in_all).max_waiting_per_row(per_row).build().expect("valid settings");
        LimiterFixture { clock, holder_clock, store, limiter }
    }

    /// A fixture with one limit `l` of this many concurrent slots and a time to live of a minute.
    pub(crate) fn with_slots(slots: u64) -> LimiterFixture<S> {
        let fixture = LimiterFixture::new();
        fixture.put(LimitSpec::named("l").with(slots_of(slots)));
        fixture
    }

    pub(crate) fn put(&self, spec: LimitSpec) {
        self.store.put(spec, ExpectedVersion::Anything).expect("a valid limit");
    }

    /// Advances the clocks of the store and of the holders.
    pub(crate) fn pass(&self, time: Duration) {
        self.clock.advance(time);
        self.holder_clock.advance(time);
    }

    /// Acquires this many slots of `l`.
    #[track_caller]
    pub(crate) fn take(&self, count: u64) -> Lease {
        let decision = self.limiter.handle("l").of("u").count(count).try_acquire();
        lease(granted(decision))
    }

    /// Whether a slot of `l` is granted now. It is released at once.
    #[track_caller]
    pub(crate) fn is_free(&self) -> bool {
        self.limiter.handle("l").of("u").try_acquire().is_granted()
    }

    /// A waiter for this many slots of `l` with this timeout, not polled yet.
    pub(crate) fn wait(&self, count: u64, timeout: Duration) -> Waiter {
        self.wait_for("l", "u", count, timeout)
    }

    pub(crate) fn wait_for(&self, limit_id: &str, key: &str, count: u64, timeout: Duration) -> Waiter {
        Waiter::new(self.limiter.handle(limit_id).of(key).count(count).within(timeout))
    }

    /// Asserts the end state of a test: no waiter, exactly this many slots of `l` held, and all others free.
    #[track_caller]
    pub(crate) fn ends_with(&self, held: u64) {
        assert_eq!(self.limiter.waiting_in_all(), 0, "the queues are empty");
        assert_eq!(self.limiter.waiting("l"), 0);
        let decision = self.limiter.handle("l").of("u").count(0).readings().peek();
        let readings = match &decision {
            Ok(granted) => granted.readings(),
            Err(AcquireError::Refused(denial)) => denial.readings(),
            Err(error) => panic!("no decision: {error}"),
        };
        let reading = readings[0].reading;
        assert_eq!(reading.used, held, "what is held");
        let free = reading.remaining.expect("a bounded limit");
        let mut taken = Vec::new();
        while let Some(granted) = self.limiter.handle("l").of("u").try_acquire().permit() {
            taken.push(granted);
        }
        assert_eq!(taken.len() as u64, free, "held + free = capacity");
        drop(taken);
        let again = self.limiter.handle("l").of("u").count(0).readings().peek();
        assert_eq!(again.permit().expect("within capacity").readings()[0].reading.used, held);
    }
}

/// This many concurrent slots, charged by the count of the request.
pub(crate) fn slots_of(slots: u64) -> ItemSpec {
    ItemSpec { charge: Some(Charge::Count), ..ItemSpec::of(Policy::Concurrency { ttl: seconds(60) }, slots) }
}

/// Handles on limits that exist.
pub(crate) trait HandleExt {
    /// A handle on this limit.
    fn handle(&self, limit_id: &str) -> LimitHandle;
}

impl HandleExt for Limiter {
    #[track_caller]
    fn handle(&self, limit_id: &str) -> LimitHandle {
        self.limit(limit_id).expect("the limit exists")
    }
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

/// A waker that counts its calls.
#[derive(Default)]
struct WakeCounter(AtomicUsize);

impl Wake for WakeCounter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A future that tests poll by hand.
pub(crate) struct PolledFuture<F: Future> {
    future: Pin<Box<F>>,
    wakes: Arc<WakeCounter>,
    seen_wakes: usize,
    pub(crate) polls: usize,
}

/// A waiting request.
pub(crate) type Waiter = PolledFuture<tidegate::limiter::Acquire>;

impl<F: Future> PolledFuture<F> {
    pub(crate) fn new(future: F) -> PolledFuture<F> {
        PolledFuture { future: Box::pin(future), wakes: Arc::default(), seen_wakes: 0, polls: 0 }
    }

    /// Polls the future, woken or not.
    pub(crate) fn poll(&mut self) -> Poll<F::Output> {
        self.polls += 1;
        self.seen_wakes = self.wakes.0.load(Ordering::SeqCst);
        let waker = Waker::from(Arc::clone(&self.wakes));
        self.future.as_mut().poll(&mut Context::from_waker(&waker))
    }

    /// Whether it was woken since its last poll.
    pub(crate) fn is_woken(&self) -> bool {
        self.wakes.0.load(Ordering::SeqCst) > self.seen_wakes
    }

    /// Polls until it is ready or no longer woken.
    pub(crate) fn run(&mut self) -> Poll<F::Output> {
        while self.is_woken() {
            if let Poll::Ready(output) = self.poll() {
                return Poll::Ready(output);
            }
        }
        Poll::Pending
    }

    /// Polls for the first time and expects `Pending`.
    #[track_caller]
    pub(crate) fn starts(mut self) -> PolledFuture<F> {
        assert!(self.poll().is_pending(), "it must be pending");
        assert!(self.run().is_pending(), "it must be pending");
        self
    }

    /// Expects that it was woken and completes.
    #[track_caller]
    pub(crate) fn expect_ready(&mut self) -> F::Output {
        assert!(self.is_woken(), "it was not woken");
        match self.run() {
            Poll::Ready(output) => output,
            Poll::Pending => panic!("it is still pending"),
        }
    }

    /// Expects `Pending`, after a first poll if necessary.
    #[track_caller]
    pub(crate) fn expect_pending_or_start(&mut self) {
        if self.polls == 0 {
            assert!(self.poll().is_pending(), "it does not wait");
        }
        self.expect_pending();
    }

    /// Expects completion, after a first poll if necessary.
    #[track_caller]
    pub(crate) fn poll_to_end(&mut self) -> F::Output {
        match if self.polls == 0 { self.poll() } else { Poll::Pending } {
            Poll::Ready(output) => output,
            Poll::Pending => self.expect_ready(),
        }
    }

    /// Expects `Pending`, whether woken or not.
    #[track_caller]
    pub(crate) fn expect_pending(&mut self) {
        assert!(self.run().is_pending(), "it is not pending any more");
    }
}

impl Waiter {
    /// Ends the wait as at its timeout.
    pub(crate) fn stop_waiting(&mut self) {
        self.future.stop_waiting();
    }

    /// Expects a grant.
    #[track_caller]
    pub(crate) fn expect_granted(&mut self) -> Permit {
        granted(self.expect_ready())
    }

    /// Expects a refusal.
    #[track_caller]
    pub(crate) fn expect_refused(&mut self) -> Refused {
        denied(self.expect_ready())
    }

    /// Expects an error other than a refusal.
    #[track_caller]
    pub(crate) fn expect_error(&mut self) -> AcquireError {
        self.expect_ready().expect_err("an error")
    }
}
