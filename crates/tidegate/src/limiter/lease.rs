//! Leases: what a grant holds, owned.
//!
//! A lease is given back once: by [`Lease::release`], by [`Lease::settle`], or by being dropped, whichever comes first; and
//! if it lapsed before that, or somebody else gave it back by its id, the store says so and nothing is counted
//! twice. The store keeps an entry per lease and removes it once; nothing here ever counts.
//!
//! The holder goes by its own [`HolderClock`](super::HolderClock): its deadline is the time to live after the moment *before* the
//! order was sent, so it is never later than the store's end. [`Lease::lost`] ends at that deadline.
//!
//! Over a store with a log, a renewal moves the deadline when it is durable, and until then only if it comes nearer. Releasing, settling
//! and renewing block until that; dropping does not.
//!
//! Where somebody else decides, the deadline comes nearer when a renewal is sent, and moves away when it was answered; `renewal_deadline` says which
//! counts if several are on their way. A lease that is dropped is given back without waiting for the answer: inside a tokio runtime a
//! task of its own hears it and calls those who wait then, elsewhere they are called at once.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tidegate_core::{Hold, LeaseId, Limit, Timestamp};
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::Inner;
use super::error::AcquireError;
use super::holder_clock::{HolderInstant, Sleep};
use super::renewal_deadline::{Landing, RenewalDeadline};
use super::wait_queues::RowId;
use super::wakeup::WakeTarget;
use crate::reply::{GrantedLease, OrderError};
use crate::store::{Actual, Later, Reach, Settlement, StoreReply};

/// How many times a kept lease is renewed in one time to live.
const RENEWALS_PER_TTL: u32 = 3;

/// The shortest time to live that a store takes.
const SHORTEST_TTL: Duration = Duration::from_millis(1);

/// Something held until it is released, settled, dropped, or lapses.
#[must_use = "a lease that is dropped is given back"]
pub struct Lease {
    term: Arc<Term>,
    fences: Vec<(Arc<Limit>, u64)>,
}

/// What became of a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// It is held until this instant of the store's clock.
    Until(Timestamp),
    /// The lease is gone.
    Gone,
}

/// Who holds a lease here, and until when: shared with whoever keeps it alive or waits for its loss.
struct Term {
    inner: Arc<Inner>,
    id: LeaseId,
    ttl: Duration,
    /// The rows it may have taken something from, if that is known.
    rows: Option<Arc<[RowId]>>,
    hold: Hold,
    renewal_deadline: Mutex<RenewalDeadline>,
    /// Whether somebody keeps it alive.
    kept: AtomicBool,
    lease_state: watch::Sender<LeaseState>,
}

/// Whether a lease is held, as far as its holder can know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LeaseState {
    /// Until this moment.
    Held(HolderInstant),
    /// No longer: given back, handed over, or gone.
    Over,
}

/// What a store says to a renewal.
type Renewed = Result<Option<Timestamp>, OrderError>;

/// A renewal that somebody else decides on; it lands when it is dropped.
struct RenewalInFlight {
    term: Arc<Term>,
    deadline: HolderInstant,
    landing: Landing,
}

impl Drop for RenewalInFlight {
    fn drop(&mut self) {
        self.term.land(self.deadline, self.landing);
    }
}

/// A hold that somebody else settles: when this is dropped they have, or nobody will hear of it.
struct SettleInFlight(Arc<Term>);

impl Drop for SettleInFlight {
    fn drop(&mut self) {
        self.0.close_hold();
        self.0.wake_rows();
    }
}

impl Lease {
    /// The lease of an order that was sent at `before` and granted, when it was `now` by the store's clock.
    pub(super) fn granted(
        inner: &Arc<Inner>,
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

    /// The lease that somebody else was granted, renewed by an order that was sent at `before`.
    pub(super) fn adopted(
        inner: &Arc<Inner>,
        id: LeaseId,
        ttl: Duration,
        before: HolderInstant,
        renewed: Option<Timestamp>,
    ) -> Option<Lease> {
        let rows = inner.detached_leases.remove(id);
        let term = |expires_at| Term { rows, ..Term::new(inner, id, ttl, expires_at, before) };
        renewed.map(|expires_at| Lease { term: Arc::new(term(expires_at)), fences: Vec::new() })
    }

    /// Its identity.
    pub fn id(&self) -> LeaseId {
        self.term.id
    }

    /// For every limit it holds something of, a number that rises with every lease of that limit.
    pub fn fences(&self) -> &[(Arc<Limit>, u64)] {
        &self.fences
    }

    /// The fence of the first limit it holds something of.
    pub fn fence(&self) -> Option<u64> {
        self.fences.first().map(|(_, fence)| *fence)
    }

    /// When it lapses unless it is renewed, by the store's clock.
    pub fn expires_at(&self) -> Timestamp {
        self.term.renewal_deadline().expires_at
    }

    /// Whether its holder may still act on it: its own deadline has not passed, and nobody has said that it is gone.
    pub fn is_held(&self) -> bool {
        self.term.is_held()
    }

    /// Gives it back. `false` if it was gone, or if the store cannot answer. To give it back without waiting for that, drop it.
    pub fn release(self) -> bool {
        let released = self.term.give_back();
        released.is_some_and(|released| released.wait(&*self.term.inner.store).unwrap_or(false))
    }

    /// The same, blocking nobody.
    pub async fn release_async(self) -> bool {
        match self.term.give_back() {
            Some(released) => released.wait_async(&*self.term.inner.store).await.unwrap_or(false),
            None => false,
        }
    }

    /// Corrects a held charge to its true cost, then gives it back. If the costs make no sense it is given back as it was charged.
    pub fn settle(self, actual: Actual<'_>) -> Result<Settlement, AcquireError> {
        Ok(self.term.settle(actual).wait(&*self.term.inner.store)??)
    }

    /// The same, blocking nobody.
    pub async fn settle_async(self, actual: Actual<'_>) -> Result<Settlement, AcquireError> {
        Ok(self.term.settle(actual).wait_async(&*self.term.inner.store).await??)
    }

    /// Moves its end to `ttl` from now.
    pub fn renew(&self, ttl: Duration) -> Result<Renewal, AcquireError> {
        let (renewed, deadline) = self.term.renew(ttl);
        Ok(self.term.renewed(renewed.wait(&*self.term.inner.store)??, deadline))
    }

    /// The same, blocking nobody.
    pub async fn renew_async(&self, ttl: Duration) -> Result<Renewal, AcquireError> {
        self.term.renew_async(ttl).await
    }

    /// Renews it from now on, in the background, whenever a third of its time to live has passed, until it is given back,
    /// dropped or lost. Who renews it by hand meanwhile for less or for more is followed: it is kept before the nearer end, and not
    /// cut short of the later one.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn keep_alive(&self) {
        if !self.term.kept.swap(true, Ordering::AcqRel) {
            tokio::spawn(keep(Arc::clone(&self.term)));
        }
    }

    /// Ends when the lease is no longer held: its holder's own deadline has passed without a renewal, the store has
    /// said that it is gone, or it was given back or handed over. What is done by its id behind this object's back
    /// ([`Limiter::release`](super::Limiter::release) and the like, another object of the same lease) is not noticed before the store is asked again: by
    /// [`Lease::keep_alive`] at its next renewal, else when the deadline passes.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + 'static {
        lost(Arc::clone(&self.term))
    }

    /// Leaves it to lapse, or hands it over: it is no longer given back when dropped.
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
        // Nobody waits for this answer but those who wait in line.
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
    /// A term of nobody knows which rows.
    fn new(
        inner: &Arc<Inner>,
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
            kept: AtomicBool::new(false),
            lease_state: watch::Sender::new(LeaseState::Held(before.plus(ttl))),
        }
    }

    fn is_held(&self) -> bool {
        matches!(*self.lease_state.borrow(), LeaseState::Held(deadline) if self.inner.holder_clock.now() < deadline)
    }

    fn renewal_deadline(&self) -> MutexGuard<'_, RenewalDeadline> {
        self.renewal_deadline.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends it here, whatever the store says; `true` for the one who did.
    fn end(&self) -> bool {
        let ended = self.leave();
        if ended {
            self.close_hold();
        }
        ended
    }

    /// Nobody here holds it any more; `true` for the one who did.
    fn leave(&self) -> bool {
        self.lease_state.send_replace(LeaseState::Over) != LeaseState::Over
    }

    /// It will not be settled here any more.
    fn close_hold(&self) {
        if let (Hold::Yes, Some(rows)) = (self.hold, &self.rows) {
            self.inner.queues.close_hold(rows, self.id);
        }
    }

    /// Gives it back, unless that was done or it is somebody else's now.
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
            spoken => {
                if let StoreReply::Now(Ok(_)) | StoreReply::Durable(Ok(_), _) = &spoken {
                    self.end();
                    self.wake_rows();
                }
                return spoken;
            }
        };
        // What is being settled must not be given back meanwhile, whoever drops it.
        let settling = self.leave().then(|| SettleInFlight(Arc::clone(self)));
        StoreReply::Later(Box::pin(async move {
            let settled = later.await;
            if let (Some(SettleInFlight(term)), Err(_) | Ok(Err(_))) = (&settling, &settled) {
                drop(term.inner.store.release(term.id));
            }
            drop(settling);
            settled
        }))
    }

    /// Renews it at the store. The holder goes by that at once where its deadline comes nearer, and else by what [`Term::renewed`] is told:
    /// what the store says, and when the holder's own time is over, if that is not seen to already.
    fn renew(self: &Arc<Term>, ttl: Duration) -> (StoreReply<Renewed>, Option<HolderInstant>) {
        let deadline = self.inner.holder_clock.now().plus(ttl);
        match self.inner.store.renew(self.id, Some(ttl)) {
            StoreReply::Later(later) => (StoreReply::Later(self.send(later, deadline)), None),
            spoken => {
                if let StoreReply::Now(Ok(expires_at)) | StoreReply::Durable(Ok(expires_at), _) = &spoken {
                    self.decided(*expires_at, deadline);
                }
                (spoken, Some(deadline))
            }
        }
    }

    /// The store has renewed it by itself, or said that it is gone.
    fn decided(&self, expires_at: Option<Timestamp>, deadline: HolderInstant) {
        let Some(expires_at) = expires_at else {
            self.end();
            return;
        };
        let former = std::mem::replace(&mut self.renewal_deadline().expires_at, expires_at);
        self.move_deadline(|held| held.min(deadline));
        if expires_at < former {
            // It will lapse sooner than those believe who wait for it.
            self.wake_rows();
        }
    }

    /// Somebody else decides on a renewal. They may have, from now on.
    fn send(self: &Arc<Term>, later: Later<Renewed>, deadline: HolderInstant) -> Later<Renewed> {
        let lease_state = *self.lease_state.borrow();
        if let LeaseState::Held(held) = lease_state {
            self.renewal_deadline().send(held);
        }
        self.move_deadline(|held| held.min(deadline));
        let mut flight = RenewalInFlight { term: Arc::clone(self), deadline, landing: Landing::Unheard };
        Box::pin(async move {
            let renewed = later.await?;
            flight.landing = match &renewed {
                Ok(Some(expires_at)) => Landing::Moved(*expires_at),
                Ok(None) | Err(_) => Landing::Refused,
            };
            if renewed == Ok(None) {
                flight.term.end();
            }
            drop(flight);
            Ok(renewed)
        })
    }

    /// A renewal that somebody else decided on was answered, or nobody waits for it any more.
    fn land(&self, deadline: HolderInstant, landing: Landing) {
        let landed = self.renewal_deadline().land(deadline, landing);
        let Some(landed) = landed else { return };
        self.move_deadline(|_| landed.deadline);
        if landed.is_sooner {
            self.wake_rows();
        }
    }

    /// A renewal is durable: unless another has come after it, the holder goes by it from now on.
    fn renewed(&self, expires_at: Option<Timestamp>, deadline: Option<HolderInstant>) -> Renewal {
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
        Ok(self.renewed(renewed.wait_async(&*self.inner.store).await??, deadline))
    }

    /// Moves the holder's deadline, if there is one.
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

    /// Calls those who wait for what this lease held.
    fn wake_rows(&self) {
        self.inner.wake_rows(self.rows.as_deref());
    }
}

/// Ends when a lease is no longer held.
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
async fn keep(term: Arc<Term>) {
    let mut changes = term.lease_state.subscribe();
    // A lease that a repeated request speaks of may be over before it is kept.
    let ttl = term.ttl.max(SHORTEST_TTL);
    let pause = ttl / RENEWALS_PER_TTL;
    let beat = |now: HolderInstant| match term.inner.store.capabilities().reach {
        Reach::Process => now.plus(pause),
        // All leases of this process that last as long are renewed at the same moment, so that a store that combines what it is asked has
        // one heartbeat of the process to write down, and not one of every lease.
        Reach::Fleet => now.next_beat(pause),
    };
    let mut next = beat(term.inner.holder_clock.now());
    let mut known = None;
    loop {
        let lease_state = *changes.borrow_and_update();
        let LeaseState::Held(deadline) = lease_state else { return };
        let now = term.inner.holder_clock.now();
        let left = deadline.since(now);
        if known.replace(deadline) != Some(deadline) && left < ttl.saturating_sub(pause) {
            // Its holder may have renewed it for less than it had.
            next = next.min(now.plus(left / RENEWALS_PER_TTL));
        }
        if next <= now && left > ttl {
            // Or for more, which is not cut short.
            next = beat(now);
        }
        if next <= now {
            // A store that cannot answer is asked again; a lease that is gone ends the lease_state.
            let _renewal = term.renew_async(ttl).await;
            next = beat(now);
            continue;
        }
        let sleep = term.inner.holder_clock.sleep_until(next);
        changed_or(&mut changes, sleep).await;
    }
}

/// Ends when the lease_state changes or the sleep ends.
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
