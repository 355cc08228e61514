//! Leases: what a grant holds, as an owned value.
//!
//! A lease is given back once: by [`Lease::release`], by [`Lease::settle`] or by a drop, whichever comes first. The
//! store keeps one entry per lease and removes it once. If the lease lapsed or was released by its id before, the store
//! reports it as gone and nothing is counted twice.
//!
//! The holder uses its own [`HolderClock`](super::HolderClock). Its deadline is the time to live after an instant
//! *before* the order was sent, so it is never later than the end at the store. [`Lease::lost`] ends at that deadline.
//!
//! Over a store with a log, a renewal that extends the deadline takes effect when it is durable; one that shortens it
//! takes effect at once. Release, settle and renew block until the sync; a drop does not.
//!
//! Over a remote store, the deadline is shortened when a renewal is sent, and extended when its reply arrives;
//! `renewal_deadline` handles several renewals in flight. A drop sends the release and does not wait. Inside a tokio
//! runtime a task awaits the reply and then wakes the waiters; elsewhere they are woken at once.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tidegate_core::{Hold, LeaseId, Limit, Timestamp};
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::LimiterState;
use super::error::AcquireError;
use super::holder_clock::{HolderInstant, Sleep};
use super::renewal_deadline::{RenewalDeadline, RenewalOutcome};
use super::wait_queues::RowId;
use super::wake_on_drop::WakeTarget;
use crate::reply::{GrantedLease, OrderError};
use crate::store::{Actual, Later, Reach, Settlement, StoreReply};

/// How often a lease that is kept alive is renewed in one time to live.
const RENEWALS_PER_TTL: u32 = 3;

/// The shortest time to live that a store accepts.
const SHORTEST_TTL: Duration = Duration::from_millis(1);

/// Units that are held until the lease is released, settled or dropped, or lapses.
#[must_use = "a lease that is dropped is given back"]
pub struct Lease {
    term: Arc<Term>,
    fences: Vec<(Arc<Limit>, u64)>,
}

/// The outcome of a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Renewal {
    /// The lease is held until this instant of the store's clock.
    Until(Timestamp),
    /// The lease is gone.
    Gone,
}

/// The state of a lease in this process, shared with the task that renews it and the futures that wait for its loss.
struct Term {
    inner: Arc<LimiterState>,
    id: LeaseId,
    ttl: Duration,
    /// The rows that it may have taken units from, if they are known.
    rows: Option<Arc<[RowId]>>,
    hold: Hold,
    renewal_deadline: Mutex<RenewalDeadline>,
    /// Whether a task keeps it alive.
    is_kept_alive: AtomicBool,
    lease_state: watch::Sender<LeaseState>,
}

/// Whether the lease is held, as far as its holder can know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LeaseState {
    /// Held until this deadline.
    Held(HolderInstant),
    /// No longer held: given back, detached or gone.
    Over,
}

/// The reply of a store to a renewal.
type Renewed = Result<Option<Timestamp>, OrderError>;

/// A renewal that a remote store is deciding. It finishes when this is dropped.
struct RenewalInFlight {
    term: Arc<Term>,
    deadline: HolderInstant,
    outcome: RenewalOutcome,
}

impl Drop for RenewalInFlight {
    fn drop(&mut self) {
        self.term.finish_renewal(self.deadline, self.outcome);
    }
}

/// A hold that a remote store is settling. It is dropped when the reply arrives or the caller is dropped.
struct SettleInFlight(Arc<Term>);

impl Drop for SettleInFlight {
    fn drop(&mut self) {
        self.0.close_hold();
        self.0.wake_rows();
    }
}

impl Lease {
    /// The lease of a grant. The order was sent at `before`; `now` is the time of the reply by the store's clock.
    pub(super) fn granted(
        inner: &Arc<LimiterState>,
        grant: GrantedLease,
        hold: Hold,
        rows: Vec<RowId>,
        before: HolderInstant,
        now: Timestamp,
    ) -> Lease {
        let ttl = inner.tick.duration(grant.expires_at.since(now));
        if hold == Hold::Yes {
            inner.queues.open_hold(&rows, grant.lease, before.plus(ttl));
        }
        let rows = Some(Arc::from(rows));
        let term = Term { rows, hold, ..Term::new(inner, grant.lease, ttl, grant.expires_at, before) };
        Lease { term: Arc::new(term), fences: grant.fences }
    }

    /// A lease that was adopted by its id. The renewal was sent at `before`.
    pub(super) fn adopted(
        inner: &Arc<LimiterState>,
        id: LeaseId,
        ttl: Duration,
        before: HolderInstant,
        renewed: Option<Timestamp>,
    ) -> Option<Lease> {
        let rows = inner.detached_leases.remove(id);
        let term = |expires_at| Term { rows, ..Term::new(inner, id, ttl, expires_at, before) };
        renewed.map(|expires_at| Lease { term: Arc::new(term(expires_at)), fences: Vec::new() })
    }

    /// The id of the lease.
    pub fn id(&self) -> LeaseId {
        self.term.id
    }

    /// A fencing number for every limit that it holds units of; it rises with every lease of that limit.
    pub fn fences(&self) -> &[(Arc<Limit>, u64)] {
        &self.fences
    }

    /// The fencing number of the first limit that it holds units of.
    pub fn fence(&self) -> Option<u64> {
        self.fences.first().map(|(_, fence)| *fence)
    }

    /// The instant at which it lapses unless it is renewed, by the store's clock.
    pub fn expires_at(&self) -> Timestamp {
        self.term.renewal_deadline().expires_at
    }

    /// Whether the holder may still rely on it: the deadline has not passed and the store has not reported it as gone.
    pub fn is_held(&self) -> bool {
        self.term.is_held()
    }

    /// Releases the lease. Returns `false` if it was gone or the store cannot answer. To release without waiting, drop
    /// the lease.
    pub fn release(self) -> bool {
        let released = self.term.give_back();
        released.is_some_and(|released| released.wait(&*self.term.inner.store).unwrap_or(false))
    }

    /// Same as [`Lease::release`], without blocking the thread.
    pub async fn release_async(self) -> bool {
        match self.term.give_back() {
            Some(released) => released.wait_async(&*self.term.inner.store).await.unwrap_or(false),
            None => false,
        }
    }

    /// Corrects the charge of a hold to its true cost and releases the lease. If the costs are invalid, the lease is
    /// released with its original charge.
    pub fn settle(self, actual: Actual<'_>) -> Result<Settlement, AcquireError> {
        Ok(self.term.settle(actual).wait(&*self.term.inner.store)??)
    }

    /// Same as [`Lease::settle`], without blocking the thread.
    pub async fn settle_async(self, actual: Actual<'_>) -> Result<Settlement, AcquireError> {
        Ok(self.term.settle(actual).wait_async(&*self.term.inner.store).await??)
    }

    /// Moves the end of the lease to `ttl` from now.
    pub fn renew(&self, ttl: Duration) -> Result<Renewal, AcquireError> {
        let (renewed, deadline) = self.term.renew(ttl);
        Ok(self.term.confirm_renewal(renewed.wait(&*self.term.inner.store)??, deadline))
    }

    /// Same as [`Lease::renew`], without blocking the thread.
    pub async fn renew_async(&self, ttl: Duration) -> Result<Renewal, AcquireError> {
        self.term.renew_async(ttl).await
    }

    /// Renews the lease in the background after each third of its time to live, until it is released, dropped or lost.
    /// A manual renewal is respected: after a shorter one the task renews before the nearer end, and a longer one is
    /// not cut short.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn keep_alive(&self) {
        if !self.term.is_kept_alive.swap(true, Ordering::AcqRel) {
            tokio::spawn(renew_until_over(Arc::clone(&self.term)));
        }
    }

    /// Ends when the lease is no longer held: the deadline passed without a renewal, the store reported it as gone, or
    /// it was released or detached. A release by id ([`Limiter::release`](super::Limiter::release)) or through another
    /// object of the same lease is noticed at the next reply of the store, which is the next renewal of
    /// [`Lease::keep_alive`], or else at the deadline.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + 'static {
        lost(Arc::clone(&self.term))
    }

    /// Detaches the lease, which then lapses or is released by its id. A drop no longer gives it back.
    pub fn into_id(self) -> LeaseId {
        if let (true, Some(rows)) = (self.term.end(), &self.term.rows) {
            self.term.inner.detached_leases.add(self.term.id, rows);
        }
        self.term.id
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(StoreReply::Later(mut released)) = self.term.give_back() else { return };
        // Only waiters need this reply: a task awaits it and wakes them.
        if released.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(released);
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("id", &self.term.id)
            .field("expires_at", &self.expires_at())
            .finish_non_exhaustive()
    }
}

impl Term {
    /// A term whose rows are not known.
    fn new(
        inner: &Arc<LimiterState>,
        id: LeaseId,
        ttl: Duration,
        expires_at: Timestamp,
        before: HolderInstant,
    ) -> Term {
        Term {
            inner: Arc::clone(inner),
            id,
            ttl,
            rows: None,
            hold: Hold::No,
            renewal_deadline: Mutex::new(RenewalDeadline::new(expires_at)),
            is_kept_alive: AtomicBool::new(false),
            lease_state: watch::Sender::new(LeaseState::Held(before.plus(ttl))),
        }
    }

    fn is_held(&self) -> bool {
        matches!(*self.lease_state.borrow(), LeaseState::Held(deadline) if self.inner.holder_clock.now() < deadline)
    }

    fn renewal_deadline(&self) -> MutexGuard<'_, RenewalDeadline> {
        self.renewal_deadline.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the lease in this process. Returns `true` for the first call only.
    fn end(&self) -> bool {
        let ended = self.mark_over();
        if ended {
            self.close_hold();
        }
        ended
    }

    /// Marks the lease as no longer held here. Returns `true` for the first call only.
    fn mark_over(&self) -> bool {
        self.lease_state.send_replace(LeaseState::Over) != LeaseState::Over
    }

    /// Removes its hold from the wait queues: it is not settled here any more.
    fn close_hold(&self) {
        if let (Hold::Yes, Some(rows)) = (self.hold, &self.rows) {
            self.inner.queues.close_hold(rows, self.id);
        }
    }

    /// Releases the lease at the store, unless it is over or detached.
    fn give_back(&self) -> Option<StoreReply<bool>> {
        if !self.end() {
            return None;
        }
        Some(match self.inner.store.release(self.id) {
            StoreReply::Later(later) => StoreReply::Later(
                self.inner.then_wake(later, WakeTarget::Rows(self.rows.as_ref().map(Arc::clone))),
            ),
            released => {
                self.wake_rows();
                released
            }
        })
    }

    fn settle(self: &Arc<Term>, actual: Actual<'_>) -> StoreReply<Result<Settlement, OrderError>> {
        let later = match self.inner.store.settle(self.id, actual) {
            StoreReply::Later(later) => later,
            reply => {
                if let StoreReply::Now(Ok(_)) | StoreReply::Durable(Ok(_), _) = &reply {
                    self.end();
                    self.wake_rows();
                }
                return reply;
            }
        };
        // A lease that is being settled must not be released by a drop.
        let settling = self.mark_over().then(|| SettleInFlight(Arc::clone(self)));
        StoreReply::Later(Box::pin(async move {
            let settled = later.await;
            if let (Some(SettleInFlight(term)), Err(_) | Ok(Err(_))) = (&settling, &settled) {
                drop(term.inner.store.release(term.id));
            }
            drop(settling);
            settled
        }))
    }

    /// Renews the lease at the store. A nearer deadline takes effect at once. A later one is applied by
    /// [`Term::confirm_renewal`], with the reply and the deadline. The deadline is `None` if the renewal in flight applies it.
    fn renew(self: &Arc<Term>, ttl: Duration) -> (StoreReply<Renewed>, Option<HolderInstant>) {
        let deadline = self.inner.holder_clock.now().plus(ttl);
        match self.inner.store.renew(self.id, Some(ttl)) {
            StoreReply::Later(later) => (StoreReply::Later(self.send(later, deadline)), None),
            reply => {
                if let StoreReply::Now(Ok(expires_at)) | StoreReply::Durable(Ok(expires_at), _) = &reply {
                    self.apply_renewal(*expires_at, deadline);
                }
                (reply, Some(deadline))
            }
        }
    }

    /// Applies the reply of a local store: the new end, or that the lease is gone.
    fn apply_renewal(&self, expires_at: Option<Timestamp>, deadline: HolderInstant) {
        let Some(expires_at) = expires_at else {
            self.end();
            return;
        };
        let former = std::mem::replace(&mut self.renewal_deadline().expires_at, expires_at);
        self.move_deadline(|held| held.min(deadline));
        if expires_at < former {
            // The lease lapses sooner than its waiters expect.
            self.wake_rows();
        }
    }

    /// Tracks a renewal that a remote store may apply from now on.
    fn send(self: &Arc<Term>, later: Later<Renewed>, deadline: HolderInstant) -> Later<Renewed> {
        let lease_state = *self.lease_state.borrow();
        if let LeaseState::Held(held) = lease_state {
            self.renewal_deadline().send(held);
        }
        self.move_deadline(|held| held.min(deadline));
        let mut in_flight =
            RenewalInFlight { term: Arc::clone(self), deadline, outcome: RenewalOutcome::Unknown };
        Box::pin(async move {
            let renewed = later.await?;
            in_flight.outcome = match &renewed {
                Ok(Some(expires_at)) => RenewalOutcome::Moved(*expires_at),
                Ok(None) | Err(_) => RenewalOutcome::Refused,
            };
            if renewed == Ok(None) {
                in_flight.term.end();
            }
            drop(in_flight);
            Ok(renewed)
        })
    }

    /// Finishes a renewal over a remote store, after its reply or because its caller was dropped.
    fn finish_renewal(&self, deadline: HolderInstant, outcome: RenewalOutcome) {
        let result = self.renewal_deadline().finish(deadline, outcome);
        let Some(result) = result else { return };
        self.move_deadline(|_| result.deadline);
        if result.is_sooner {
            self.wake_rows();
        }
    }

    /// Applies the deadline of a durable renewal, unless a later renewal has changed the end.
    fn confirm_renewal(&self, expires_at: Option<Timestamp>, deadline: Option<HolderInstant>) -> Renewal {
        let Some(expires_at) = expires_at else { return Renewal::Gone };
        if let Some(deadline) = deadline
            && self.renewal_deadline().expires_at == expires_at
        {
            self.move_deadline(|_| deadline);
        }
        Renewal::Until(expires_at)
    }

    async fn renew_async(self: &Arc<Term>, ttl: Duration) -> Result<Renewal, AcquireError> {
        let (renewed, deadline) = self.renew(ttl);
        Ok(self.confirm_renewal(renewed.wait_async(&*self.inner.store).await??, deadline))
    }

    /// Moves the deadline of the holder, unless the lease is over.
    fn move_deadline(&self, to: impl FnOnce(HolderInstant) -> HolderInstant) {
        let mut moved = None;
        self.lease_state.send_if_modified(|lease_state| match *lease_state {
            LeaseState::Over => false,
            LeaseState::Held(deadline) => {
                let deadline = to(deadline);
                moved = Some(deadline);
                *lease_state = LeaseState::Held(deadline);
                true
            }
        });
        if let (Hold::Yes, Some(rows), Some(deadline)) = (self.hold, &self.rows, moved) {
            self.inner.queues.move_hold(rows, self.id, deadline);
        }
    }

    /// Wakes the waiters of its rows.
    fn wake_rows(&self) {
        self.inner.wake_rows(self.rows.as_deref());
    }
}

/// Ends when the lease is no longer held.
async fn lost(term: Arc<Term>) {
    let mut changes = term.lease_state.subscribe();
    loop {
        let lease_state = *changes.borrow_and_update();
        let LeaseState::Held(deadline) = lease_state else { return };
        if deadline <= term.inner.holder_clock.now() {
            return;
        }
        let sleep = term.inner.holder_clock.sleep_until(deadline);
        changed_or(&mut changes, sleep).await;
    }
}

/// Renews a lease until it is over.
async fn renew_until_over(term: Arc<Term>) {
    let mut changes = term.lease_state.subscribe();
    // The lease of a repeated request may have lapsed already.
    let ttl = term.ttl.max(SHORTEST_TTL);
    let pause = ttl / RENEWALS_PER_TTL;
    let next_renewal = |now: HolderInstant| match term.inner.store.capabilities().reach {
        Reach::Process => now.plus(pause),
        // All leases of one time to live are renewed at the same instant, so that a store that combines renewals writes
        // one heartbeat per process instead of one per lease.
        Reach::Fleet => now.next_multiple_of(pause),
    };
    let mut next = next_renewal(term.inner.holder_clock.now());
    let mut known = None;
    loop {
        let lease_state = *changes.borrow_and_update();
        let LeaseState::Held(deadline) = lease_state else { return };
        let now = term.inner.holder_clock.now();
        let left = deadline.since(now);
        if known.replace(deadline) != Some(deadline) && left < ttl.saturating_sub(pause) {
            // The holder renewed it for less than its time to live.
            next = next.min(now.plus(left / RENEWALS_PER_TTL));
        }
        if next <= now && left > ttl {
            // The holder renewed it for more: do not cut it short.
            next = next_renewal(now);
        }
        if next <= now {
            // A store that cannot answer is asked again. A lease that is gone ends the loop through its state.
            let _renewal = term.renew_async(ttl).await;
            next = next_renewal(now);
            continue;
        }
        let sleep = term.inner.holder_clock.sleep_until(next);
        changed_or(&mut changes, sleep).await;
    }
}

/// Ends when the state of the lease changes or the sleep ends.
async fn changed_or(changes: &mut watch::Receiver<LeaseState>, mut sleep: Sleep) {
    let mut changed = std::pin::pin!(changes.changed());
    std::future::poll_fn(|context| {
        if sleep.as_mut().poll(context).is_ready() || changed.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        Poll::Pending
    })
    .await;
}
