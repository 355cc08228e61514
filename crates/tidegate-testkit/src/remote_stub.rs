//! A store that is far away, and answers when a test says so.
//!
//! [`RemoteStub`] makes any store that speaks at once one where somebody else decides: every call is answered later. The [`RemoteLink`] between
//! here and there is the test's. On a prompt one the answers are there when they are first looked for; on one by hand they wait until the
//! test lets them go or loses them, in whatever order, and what was asked is decided when it was asked or only when its answer is let go.
//!
//! The store keeps what [`StoreReply::Later`] promises: it begins when it is called, goes on if nobody waits, and gives back leases that were
//! granted to nobody, unless they can be asked for again by a request id.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tidegate::catalog::{ApplyError, Origin, PutError, Watcher};
use tidegate::store::{Capabilities, LimitStats, Reach, StoreSize, Unavailable, Usage};
use tidegate::{
    Actual, Amount, Answer, Ask, Catalog, Edit, EditOutcome, ExpectedVersion, Hold, Intent, LeaseId,
    LeaseTerm, Limit, LimitSpec, LimitStore, Order, OrderError, Outcome, RemovalMode, Replies, Settlement,
    Store, StoreReply, Timestamp,
};

/// The longest that [`RemoteLink::wait_for_in_flight`] waits before it says that nobody comes.
const LONG: Duration = Duration::from_secs(60);

/// The way to a store and back. Copies are the same link.
#[derive(Clone)]
pub struct RemoteLink {
    inner: Arc<Inner>,
}

struct Inner {
    manner: Manner,
    away: Mutex<Vec<Box<dyn Errand>>>,
    /// Something was sent.
    sent: Condvar,
}

/// How things go on a link.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Manner {
    Prompt,
    AnsweredByHand,
    DecidedByHand,
}

impl RemoteLink {
    /// Everything is answered when somebody first looks.
    pub fn immediate() -> RemoteLink {
        RemoteLink::of(Manner::Prompt)
    }

    /// Everything is decided when it is asked, and answered when a test says so.
    pub fn manual_replies() -> RemoteLink {
        RemoteLink::of(Manner::AnsweredByHand)
    }

    /// Everything is decided and answered when a test says so.
    pub fn manual_decisions() -> RemoteLink {
        RemoteLink::of(Manner::DecidedByHand)
    }

    fn of(manner: Manner) -> RemoteLink {
        RemoteLink { inner: Arc::new(Inner { manner, away: Mutex::default(), sent: Condvar::new() }) }
    }

    /// How many are on their way.
    pub fn in_flight(&self) -> usize {
        self.lock().len()
    }

    /// Everybody who is on their way is answered, in the order in which they were sent; how many that were.
    pub fn deliver_all(&self) -> usize {
        let away = std::mem::take(&mut *self.lock());
        let count = away.len();
        away.into_iter().for_each(Errand::arrive);
        count
    }

    /// The one that was sent as the so-manieth of those on their way, from 0, is answered.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn deliver(&self, index: usize) {
        let errand = self.lock().remove(index);
        errand.arrive();
    }

    /// The answers of everybody who is on their way are lost; and what was not decided yet never will be.
    pub fn fail_all(&self, reason: &str) {
        let away = std::mem::take(&mut *self.lock());
        for errand in away {
            errand.get_lost(Unavailable { reason: reason.to_owned() });
        }
    }

    /// Waits until so many are on their way.
    ///
    /// # Panics
    /// If they do not come.
    #[track_caller]
    pub fn wait_for_in_flight(&self, count: usize) {
        let waited = self.inner.sent.wait_timeout_while(self.lock(), LONG, |away| away.len() < count);
        let (away, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        assert!(!timeout.timed_out(), "{} are on their way, not {count}", away.len());
    }

    fn send<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
        undo: impl FnOnce(T) + Send + 'static,
    ) -> StoreReply<T> {
        let desk = Arc::new(Mutex::new(Desk {
            work: Some(Box::new(work)),
            undo: Some(Box::new(undo)),
            reply: None,
            is_told: false,
            is_alone: false,
            waker: None,
        }));
        if self.inner.manner != Manner::DecidedByHand {
            Desk::decide(&desk);
        }
        let errand: Box<dyn Errand> = Box::new(Arc::clone(&desk));
        if self.inner.manner == Manner::Prompt {
            errand.arrive();
        } else {
            self.lock().push(errand);
            self.inner.sent.notify_all();
        }
        StoreReply::Later(Box::pin(Hoping { desk }))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Box<dyn Errand>>> {
        self.inner.away.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for RemoteLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteLink").field("away", &self.in_flight()).finish_non_exhaustive()
    }
}

/// Something that is on its way.
trait Errand: Send {
    fn arrive(self: Box<Self>);
    fn get_lost(self: Box<Self>, why: Unavailable);
}

/// Where somebody asks and somebody else answers.
struct Desk<T> {
    work: Option<Box<dyn FnOnce() -> T + Send>>,
    /// What is done about an answer that nobody hears.
    undo: Option<Box<dyn FnOnce(T) + Send>>,
    reply: Option<Result<T, Unavailable>>,
    is_told: bool,
    /// Nobody waits.
    is_alone: bool,
    waker: Option<Waker>,
}

impl<T> Desk<T> {
    fn lock(desk: &Mutex<Desk<T>>) -> MutexGuard<'_, Desk<T>> {
        desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides, if that was not done.
    fn decide(desk: &Mutex<Desk<T>>) {
        let work = Desk::lock(desk).work.take();
        if let Some(work) = work {
            let reply = work();
            Desk::lock(desk).reply = Some(Ok(reply));
        }
    }

    /// Undoes what nobody will hear of.
    fn undo(desk: &Mutex<Desk<T>>) {
        let mut open = Desk::lock(desk);
        // What is not decided yet is undone when it is.
        let Some(Ok(reply)) = open.reply.take() else { return };
        let undo = open.undo.take();
        drop(open);
        if let Some(undo) = undo {
            undo(reply);
        }
    }

    fn tell(desk: &Mutex<Desk<T>>) {
        let mut open = Desk::lock(desk);
        open.is_told = true;
        let (waker, is_alone) = (open.waker.take(), open.is_alone);
        drop(open);
        if is_alone {
            Desk::undo(desk);
        }
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T: Send> Errand for Arc<Mutex<Desk<T>>> {
    fn arrive(self: Box<Self>) {
        Desk::decide(&self);
        Desk::tell(&self);
    }

    fn get_lost(self: Box<Self>, why: Unavailable) {
        Desk::lock(&self).work = None;
        Desk::undo(&self);
        Desk::lock(&self).reply = Some(Err(why));
        Desk::tell(&self);
    }
}

/// Somebody who waits for an answer.
struct Hoping<T> {
    desk: Arc<Mutex<Desk<T>>>,
}

impl<T> Future for Hoping<T> {
    type Output = Result<T, Unavailable>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut desk = Desk::lock(&self.desk);
        if desk.is_told
            && let Some(reply) = desk.reply.take()
        {
            return Poll::Ready(reply);
        }
        desk.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

impl<T> Drop for Hoping<T> {
    fn drop(&mut self) {
        Desk::lock(&self.desk).is_alone = true;
        Desk::undo(&self.desk);
    }
}

/// A store at the other end of a link.
#[derive(Debug)]
pub struct RemoteStub<S: ?Sized> {
    link: RemoteLink,
    reach: Option<Reach>,
    store: Arc<S>,
}

impl<S: LimitStore + ?Sized + 'static> RemoteStub<S> {
    /// This store, which speaks at once, at the other end of this link.
    pub fn new(store: Arc<S>, link: RemoteLink) -> RemoteStub<S> {
        RemoteStub { link, reach: None, store }
    }

    /// The same, and it says that other processes share it.
    pub fn shared(store: Arc<S>, link: RemoteLink) -> RemoteStub<S> {
        RemoteStub { link, reach: Some(Reach::Fleet), store }
    }

    /// The link.
    pub fn link(&self) -> &RemoteLink {
        &self.link
    }

    /// The store at its other end: what others do to it whom nobody here hears of.
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

/// An order that owns its words.
struct OwnOrder {
    intent: Intent,
    asks: Vec<(String, Option<Vec<u8>>, Amount)>,
    request_id: Option<Vec<u8>>,
    hold: Hold,
    ttl: Option<Duration>,
    patience: Duration,
}

impl OwnOrder {
    fn of(order: &Order<'_>) -> OwnOrder {
        let Order { intent, asks, request_id, hold, ttl, max_wait: patience } = *order;
        let own = |ask: &Ask<'_>| (ask.limit_id.to_owned(), ask.key.map(<[u8]>::to_vec), ask.count);
        let asks = asks.iter().map(own).collect();
        OwnOrder { intent, asks, request_id: request_id.map(<[u8]>::to_vec), hold, ttl, patience }
    }

    fn asks(&self) -> Vec<Ask<'_>> {
        let asks = self.asks.iter();
        asks.map(|(limit_id, key, count)| Ask { limit_id, key: key.as_deref(), count: *count }).collect()
    }

    fn order<'a>(&'a self, asks: &'a [Ask<'a>]) -> Order<'a> {
        let OwnOrder { intent, hold, ttl, patience, .. } = *self;
        Order { intent, asks, request_id: self.request_id.as_deref(), hold, ttl, max_wait: patience }
    }
}

/// Gives back leases that were granted to nobody.
fn give_back<S: Store + ?Sized>(store: &S, may_be_repeated: &[bool], answers: &Replies) {
    for (answer, may_be_repeated) in answers.iter().zip(may_be_repeated) {
        if let (false, Ok(Answer { outcome: Outcome::Granted(Some(grant)), .. })) = (*may_be_repeated, answer)
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
        let may_be_repeated: Vec<bool> = orders.iter().map(|order| order.request_id.is_some()).collect();
        let own: Vec<OwnOrder> = orders.iter().map(OwnOrder::of).collect();
        let (store, same) = (Arc::clone(&self.store), Arc::clone(&self.store));
        let work = move || {
            let asks: Vec<Vec<Ask<'_>>> = own.iter().map(OwnOrder::asks).collect();
            let orders: Vec<Order<'_>> = own.iter().zip(&asks).map(|(own, asks)| own.order(asks)).collect();
            store.submit(&orders, buffer).now()
        };
        self.link.send(work, move |answers| give_back(&*same, &may_be_repeated, &answers))
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

    fn extent(&self) -> Option<StoreSize> {
        self.store.extent()
    }
}

/// What there is to know of limits is known here too. Calls that would have to block go there at once, and only [`Catalog::edit`] takes
/// the link: whoever stands at it cannot let anybody go while they are blocked.
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
