//! A store whose replies arrive later, when a test delivers them.
//!
//! [`RemoteStub`] wraps a store that replies at once and answers every call with [`StoreReply::Later`]. A
//! [`RemoteLink`] controls the replies. With an immediate link they are ready at the first poll. With a manual link the
//! test delivers or fails each call, in any order; the call is decided either when it is made or when it is delivered.
//!
//! The stub keeps the contract of [`StoreReply::Later`]. Work starts with the call and continues if the caller is gone.
//! A lease that was granted to an absent caller is released, unless a request id allows the caller to ask again.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tidegate::catalog::{ApplyError, Origin, PutError, Watcher};
use tidegate::catalog::{Catalog, Edit, EditOutcome, ExpectedVersion, RemovalMode};
use tidegate::model::{Amount, Ask, Hold, Intent, LeaseId, LeaseTerm, Limit, LimitSpec, Order, Timestamp};
use tidegate::reply::{OrderError, OrderReply, Outcome, Replies};
use tidegate::store::{Actual, LimitStore, Settlement, Store, StoreReply};
use tidegate::store::{Capabilities, LimitStats, Reach, StoreSize, Unavailable, Usage};

/// Longest time that [`RemoteLink::wait_for_in_flight`] waits.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// The connection to a remote store. Clones are the same connection.
#[derive(Clone)]
pub struct RemoteLink {
    state: Arc<LinkState>,
}

struct LinkState {
    mode: LinkMode,
    in_flight: Mutex<Vec<Box<dyn InFlight>>>,
    /// Signals a new call.
    sent: Condvar,
}

/// When calls are decided and when their replies are ready.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LinkMode {
    Immediate,
    ManualReplies,
    ManualDecisions,
}

impl RemoteLink {
    /// Decides at the call. The reply is ready at the first poll.
    pub fn immediate() -> RemoteLink {
        RemoteLink::of(LinkMode::Immediate)
    }

    /// Decides at the call. The reply is ready when the test delivers it.
    pub fn manual_replies() -> RemoteLink {
        RemoteLink::of(LinkMode::ManualReplies)
    }

    /// Decides when the test delivers the call.
    pub fn manual_decisions() -> RemoteLink {
        RemoteLink::of(LinkMode::ManualDecisions)
    }

    fn of(mode: LinkMode) -> RemoteLink {
        RemoteLink { state: Arc::new(LinkState { mode, in_flight: Mutex::default(), sent: Condvar::new() }) }
    }

    /// Number of calls in flight.
    pub fn in_flight(&self) -> usize {
        self.lock().len()
    }

    /// Delivers all calls in the order in which they were made. Returns their number.
    pub fn deliver_all(&self) -> usize {
        let in_flight = std::mem::take(&mut *self.lock());
        let count = in_flight.len();
        in_flight.into_iter().for_each(InFlight::deliver);
        count
    }

    /// Delivers the call at this index of those in flight.
    ///
    /// # Panics
    /// If there are fewer calls.
    pub fn deliver(&self, index: usize) {
        let call = self.lock().remove(index);
        call.deliver();
    }

    /// Fails all calls in flight. Calls that are not decided yet never will be.
    pub fn fail_all(&self, reason: &str) {
        let in_flight = std::mem::take(&mut *self.lock());
        for call in in_flight {
            call.fail(Unavailable { reason: reason.to_owned() });
        }
    }

    /// Waits until this many calls are in flight.
    ///
    /// # Panics
    /// If that takes longer than a minute.
    #[track_caller]
    pub fn wait_for_in_flight(&self, count: usize) {
        let waited = self
            .state
            .sent
            .wait_timeout_while(self.lock(), WAIT_TIMEOUT, |in_flight| in_flight.len() < count);
        let (in_flight, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        assert!(!timeout.timed_out(), "{} calls are in flight, not {count}", in_flight.len());
    }

    fn send<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
        undo: impl FnOnce(T) + Send + 'static,
    ) -> StoreReply<T> {
        let call = Arc::new(Mutex::new(RemoteCall {
            work: Some(Box::new(work)),
            undo: Some(Box::new(undo)),
            reply: None,
            is_delivered: false,
            is_abandoned: false,
            waker: None,
        }));
        if self.state.mode != LinkMode::ManualDecisions {
            RemoteCall::decide(&call);
        }
        let in_flight: Box<dyn InFlight> = Box::new(Arc::clone(&call));
        if self.state.mode == LinkMode::Immediate {
            in_flight.deliver();
        } else {
            self.lock().push(in_flight);
            self.state.sent.notify_all();
        }
        StoreReply::Later(Box::pin(RemoteReply { call }))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Box<dyn InFlight>>> {
        self.state.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for RemoteLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteLink").field("in_flight", &self.in_flight()).finish_non_exhaustive()
    }
}

/// A call in flight.
trait InFlight: Send {
    fn deliver(self: Box<Self>);
    fn fail(self: Box<Self>, why: Unavailable);
}

/// A call: its work, its reply, and its waiting caller.
struct RemoteCall<T> {
    work: Option<Box<dyn FnOnce() -> T + Send>>,
    /// Reverts a reply that no caller receives.
    undo: Option<Box<dyn FnOnce(T) + Send>>,
    reply: Option<Result<T, Unavailable>>,
    is_delivered: bool,
    /// The caller is gone.
    is_abandoned: bool,
    waker: Option<Waker>,
}

impl<T> RemoteCall<T> {
    fn lock(call: &Mutex<RemoteCall<T>>) -> MutexGuard<'_, RemoteCall<T>> {
        call.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides the call unless that is done.
    fn decide(call: &Mutex<RemoteCall<T>>) {
        let work = RemoteCall::lock(call).work.take();
        if let Some(work) = work {
            let reply = work();
            RemoteCall::lock(call).reply = Some(Ok(reply));
        }
    }

    /// Reverts a reply that no caller receives.
    fn undo_reply(call: &Mutex<RemoteCall<T>>) {
        let mut guard = RemoteCall::lock(call);
        // A call that is not decided yet is reverted when it is.
        let Some(Ok(reply)) = guard.reply.take() else { return };
        let undo = guard.undo.take();
        drop(guard);
        if let Some(undo) = undo {
            undo(reply);
        }
    }

    fn deliver_reply(call: &Mutex<RemoteCall<T>>) {
        let mut guard = RemoteCall::lock(call);
        guard.is_delivered = true;
        let (waker, is_abandoned) = (guard.waker.take(), guard.is_abandoned);
        drop(guard);
        if is_abandoned {
            RemoteCall::undo_reply(call);
        }
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T: Send> InFlight for Arc<Mutex<RemoteCall<T>>> {
    fn deliver(self: Box<Self>) {
        RemoteCall::decide(&self);
        RemoteCall::deliver_reply(&self);
    }

    fn fail(self: Box<Self>, why: Unavailable) {
        RemoteCall::lock(&self).work = None;
        RemoteCall::undo_reply(&self);
        RemoteCall::lock(&self).reply = Some(Err(why));
        RemoteCall::deliver_reply(&self);
    }
}

/// The caller's side of a call.
struct RemoteReply<T> {
    call: Arc<Mutex<RemoteCall<T>>>,
}

impl<T> Future for RemoteReply<T> {
    type Output = Result<T, Unavailable>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut call = RemoteCall::lock(&self.call);
        if call.is_delivered
            && let Some(reply) = call.reply.take()
        {
            return Poll::Ready(reply);
        }
        call.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

impl<T> Drop for RemoteReply<T> {
    fn drop(&mut self) {
        RemoteCall::lock(&self.call).is_abandoned = true;
        RemoteCall::undo_reply(&self.call);
    }
}

/// A store behind a link.
#[derive(Debug)]
pub struct RemoteStub<S: ?Sized> {
    link: RemoteLink,
    reach: Option<Reach>,
    store: Arc<S>,
}

impl<S: LimitStore + ?Sized + 'static> RemoteStub<S> {
    /// Puts a store that replies at once behind this link.
    pub fn new(store: Arc<S>, link: RemoteLink) -> RemoteStub<S> {
        RemoteStub { link, reach: None, store }
    }

    /// The same, reporting that other processes share the store.
    pub fn shared(store: Arc<S>, link: RemoteLink) -> RemoteStub<S> {
        RemoteStub { link, reach: Some(Reach::Fleet), store }
    }

    /// The link.
    pub fn link(&self) -> &RemoteLink {
        &self.link
    }

    /// The store behind the link, for changes that this side does not see.
    pub fn store(&self) -> &S {
        &self.store
    }

    fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&S) -> StoreReply<T> + Send + 'static,
    ) -> StoreReply<T> {
        let store = Arc::clone(&self.store);
        self.link.send(move || work(&store).now(), drop)
    }
}

/// An order with owned ids and keys.
struct BufferedOrder {
    intent: Intent,
    asks: Vec<(String, Option<Vec<u8>>, Amount)>,
    request_id: Option<Vec<u8>>,
    hold: Hold,
    ttl: Option<Duration>,
    max_wait: Duration,
}

impl BufferedOrder {
    fn of(order: &Order<'_>) -> BufferedOrder {
        let Order { intent, asks, request_id, hold, ttl, max_wait } = *order;
        let own = |ask: &Ask<'_>| (ask.limit_id.to_owned(), ask.key.map(<[u8]>::to_vec), ask.count);
        let asks = asks.iter().map(own).collect();
        BufferedOrder { intent, asks, request_id: request_id.map(<[u8]>::to_vec), hold, ttl, max_wait }
    }

    fn asks(&self) -> Vec<Ask<'_>> {
        let asks = self.asks.iter();
        asks.map(|(limit_id, key, count)| Ask { limit_id, key: key.as_deref(), count: *count }).collect()
    }

    fn order<'a>(&'a self, asks: &'a [Ask<'a>]) -> Order<'a> {
        let BufferedOrder { intent, hold, ttl, max_wait, .. } = *self;
        Order { intent, asks, request_id: self.request_id.as_deref(), hold, ttl, max_wait }
    }
}

/// Releases leases that no caller received.
fn release_unclaimed<S: Store + ?Sized>(store: &S, has_request_id: &[bool], answers: &Replies) {
    for (answer, has_request_id) in answers.iter().zip(has_request_id) {
        if let (false, Ok(OrderReply { outcome: Outcome::Granted(Some(grant)), .. })) =
            (*has_request_id, answer)
        {
            store.release(grant.lease);
        }
    }
}

impl<S: LimitStore + ?Sized + 'static> Store for RemoteStub<S> {
    fn capabilities(&self) -> Capabilities {
        let there = self.store.capabilities();
        Capabilities { reach: self.reach.unwrap_or(there.reach), ..there }
    }

    fn submit(&self, orders: &[Order<'_>], buffer: Replies) -> StoreReply<Replies> {
        let has_request_id: Vec<bool> = orders.iter().map(|order| order.request_id.is_some()).collect();
        let own: Vec<BufferedOrder> = orders.iter().map(BufferedOrder::of).collect();
        let (store, same) = (Arc::clone(&self.store), Arc::clone(&self.store));
        let work = move || {
            let asks: Vec<Vec<Ask<'_>>> = own.iter().map(BufferedOrder::asks).collect();
            let orders: Vec<Order<'_>> = own.iter().zip(&asks).map(|(own, asks)| own.order(asks)).collect();
            store.submit(&orders, buffer).now()
        };
        self.link.send(work, move |answers| release_unclaimed(&*same, &has_request_id, &answers))
    }

    fn release(&self, lease: LeaseId) -> StoreReply<bool> {
        self.ask(move |store| store.release(lease))
    }

    fn renew(
        &self,
        lease: LeaseId,
        ttl: Option<Duration>,
    ) -> StoreReply<Result<Option<Timestamp>, OrderError>> {
        self.ask(move |store| store.renew(lease, ttl))
    }

    fn settle(&self, lease: LeaseId, actual: Actual<'_>) -> StoreReply<Result<Settlement, OrderError>> {
        match actual {
            Actual::Every(amount) => self.ask(move |store| store.settle(lease, Actual::Every(amount))),
            Actual::Each(amounts) => {
                let amounts = amounts.to_vec();
                self.ask(move |store| store.settle(lease, Actual::Each(&amounts)))
            }
        }
    }

    fn reset(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<(), OrderError>> {
        let (limit_id, key) = (limit_id.to_owned(), key.map(<[u8]>::to_vec));
        self.ask(move |store| store.reset(&limit_id, key.as_deref()))
    }

    fn usage(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<Usage, OrderError>> {
        let (limit_id, key) = (limit_id.to_owned(), key.map(<[u8]>::to_vec));
        self.ask(move |store| store.usage(&limit_id, key.as_deref()))
    }

    fn holders(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<Vec<LeaseTerm>, OrderError>> {
        let (limit_id, key) = (limit_id.to_owned(), key.map(<[u8]>::to_vec));
        self.ask(move |store| store.holders(&limit_id, key.as_deref()))
    }

    fn held_until(&self, leases: &[LeaseId]) -> StoreReply<Vec<Option<Timestamp>>> {
        let leases = leases.to_vec();
        self.ask(move |store| store.held_until(&leases))
    }

    fn observe(&self, limit_id: &str) -> Option<LimitStats> {
        self.store.observe(limit_id)
    }

    fn size(&self) -> Option<StoreSize> {
        self.store.size()
    }
}

/// Definitions are known locally. Blocking calls go to the store at once, because the test thread that blocks could not
/// deliver them. Only [`Catalog::edit`] uses the link.
impl<S: LimitStore + ?Sized + 'static> Catalog for RemoteStub<S> {
    fn get(&self, id: &str) -> Option<Arc<Limit>> {
        self.store.get(id)
    }

    fn list(&self) -> Vec<Arc<Limit>> {
        self.store.list()
    }

    fn put(&self, spec: LimitSpec, expect: ExpectedVersion) -> Result<Arc<Limit>, PutError> {
        self.store.put(spec, expect)
    }

    fn remove(&self, id: &str, parting: RemovalMode) -> bool {
        self.store.remove(id, parting)
    }

    fn apply(&self, edits: Vec<Edit>) -> Result<Vec<EditOutcome>, ApplyError> {
        self.store.apply(edits)
    }

    fn edit(&self, edits: Vec<Edit>, origin: Origin) -> StoreReply<Result<Vec<EditOutcome>, ApplyError>> {
        self.ask(move |store| store.edit(edits, origin))
    }

    fn watch(&self, watcher: Watcher) {
        self.store.watch(watcher);
    }

    fn applied(&self) -> Vec<String> {
        self.store.applied()
    }
}
