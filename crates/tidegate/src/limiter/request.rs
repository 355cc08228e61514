//! A request: the asks, the key, and options such as a hold or a time to live.
//!
//! A request borrows its parts, so that an immediate request copies nothing. Only a request that waits is copied.

use std::borrow::Cow;
use std::time::Duration;

use arrayvec::ArrayVec;
use tidegate_core::{Amount, Ask, Hold, Intent, Order};

use super::acquire::Acquire;
use super::error::{AcquireError, Refused};
use super::handle::LimitHandle;
use super::pending_reply::{Decision, PendingReply, SubmitReply};
use super::permit::Permit;
use super::{Limiter, LimiterState};
use crate::reply::Detail;
use crate::store::memory::{HandleAsk, HandleDecision, MemoryHandle};

/// A request to a [`Limiter`], made by [`LimitHandle::of`](super::LimitHandle::of). It is sent by one of its methods.
#[derive(Debug, Clone)]
#[must_use = "a request does nothing until it is sent: try_acquire, peek or within"]
pub struct Request<'a> {
    limiter: &'a Limiter,
    asks: Asks<'a>,
    hold: Hold,
    ttl: Option<Duration>,
    request_id: Option<&'a [u8]>,
    detail: Detail,
}

/// The asks of a request.
#[derive(Debug, Clone)]
enum Asks<'a> {
    /// Of handles. Few of them need no memory of their own.
    OfHandles(ArrayVec<HandleRequest<'a>, FEW_ASKS>),
    Many(Cow<'a, [Ask<'a>]>),
}

/// The number of asks that a request stores inline.
const FEW_ASKS: usize = 4;

/// An ask of a handle.
#[derive(Debug, Clone, Copy)]
struct HandleRequest<'a> {
    handle: &'a LimitHandle,
    key: Option<&'a [u8]>,
    count: Amount,
}

impl<'a> HandleRequest<'a> {
    fn ask(&self) -> Ask<'a> {
        Ask { limit_id: self.handle.limit_id(), key: self.key, count: self.count }
    }
}

impl<'a> Request<'a> {
    pub(super) fn one(limiter: &'a Limiter, handle: &'a LimitHandle, key: Option<&'a [u8]>) -> Request<'a> {
        let mut asks = ArrayVec::new();
        asks.push(HandleRequest { handle, key, count: 1 });
        Request::new(limiter, Asks::OfHandles(asks))
    }

    pub(super) fn many(limiter: &'a Limiter, asks: &'a [Ask<'a>]) -> Request<'a> {
        Request::new(limiter, Asks::Many(Cow::Borrowed(asks)))
    }

    pub(super) fn all(limiter: &'a Limiter, requests: impl IntoIterator<Item = Request<'a>>) -> Request<'a> {
        let mut all = Request::new(limiter, Asks::OfHandles(ArrayVec::new()));
        for request in requests {
            if request.hold == Hold::Yes {
                all.hold = Hold::Yes;
            }
            if request.detail == Detail::Readings {
                all.detail = Detail::Readings;
            }
            all.ttl = request.ttl.or(all.ttl);
            all.request_id = request.request_id.or(all.request_id);
            all.asks.extend(request.asks);
        }
        all
    }

    fn new(limiter: &'a Limiter, asks: Asks<'a>) -> Request<'a> {
        Request { limiter, asks, hold: Hold::No, ttl: None, request_id: None, detail: Detail::Verdicts }
    }

    /// Sets the number of units; 1 by default. If the request has several asks, it applies to each of them.
    pub fn count(mut self, count: Amount) -> Request<'a> {
        match &mut self.asks {
            Asks::OfHandles(asks) => asks.iter_mut().for_each(|ask| ask.count = count),
            Asks::Many(asks) => asks.to_mut().iter_mut().for_each(|ask| ask.count = count),
        }
        self
    }

    /// Marks the charge as an estimate that is settled later. The grant comes with a lease.
    pub fn hold(mut self) -> Request<'a> {
        self.hold = Hold::Yes;
        self
    }

    /// Sets the time to live of the lease. The default is the shortest of the charged `concurrency` items, and one
    /// minute for a [hold](Request::hold) without such items.
    pub fn ttl(mut self, ttl: Duration) -> Request<'a> {
        self.ttl = Some(ttl);
        self
    }

    /// Sets an id that makes the request safe to repeat: a repeated request gets the same reply and is charged once. A
    /// repeated grant names the same lease. The first drop or release of it gives it back for all, and later repeats
    /// return a lapsed lease.
    pub fn request_id(mut self, id: &'a (impl AsRef<[u8]> + ?Sized)) -> Request<'a> {
        self.request_id = Some(id.as_ref());
        self
    }

    /// Asks for every item's reading.
    pub fn readings(mut self) -> Request<'a> {
        self.detail = Detail::Readings;
        self
    }

    /// Takes all of it if it fits now. Waiting requests are not overtaken: if one waits for the same row, this is
    /// refused. Over a store with a log it blocks until the grant is durable, and over a remote store until the reply
    /// arrives. In tasks use [`Request::try_acquire_async`].
    pub fn try_acquire(&self) -> Decision {
        self.decide_fast().unwrap_or_else(|| self.try_acquire_by_order())
    }

    /// Decides with the engine of the memory store, if the request asks for no more than a verdict.
    #[inline]
    fn decide_fast(&self) -> Option<Decision> {
        let Asks::OfHandles(own) = &self.asks else { return None };
        let is_plain = self.hold == Hold::No
            && self.ttl.is_none()
            && self.request_id.is_none()
            && self.detail == Detail::Verdicts;
        if !is_plain {
            return None;
        }
        let mut asks: ArrayVec<HandleAsk<'_>, FEW_ASKS> = ArrayVec::new();
        for HandleRequest { handle, key, count } in own {
            let memory = handle.fast_path().filter(|_| handle.is_of(self.limiter))?;
            asks.push(HandleAsk { handle: memory, key: *key, count: *count });
        }
        match MemoryHandle::decide_set(&asks)? {
            HandleDecision::Granted => Some(Ok(Permit::EMPTY)),
            HandleDecision::Refused(refusal) => {
                let handle = asks[refusal.ask].handle;
                Some(Err(AcquireError::Refused(Refused::by_handle(handle, refusal))))
            }
        }
    }

    #[inline(never)]
    fn try_acquire_by_order(&self) -> Decision {
        let inner = &self.limiter.inner;
        let reply = self.with_order(Intent::Acquire, |order| inner.try_acquire(order, self.detail));
        self.pending_or_decision(reply).unwrap_or_else(|pending| pending.wait(&*inner.store))
    }

    /// Same as [`Request::try_acquire`], without blocking the thread. The order is sent at the first poll. A future
    /// that is dropped before it returns gives back the granted lease, unless the request has a request id. Other
    /// charges stay.
    pub async fn try_acquire_async(&self) -> Decision {
        let inner = &self.limiter.inner;
        if let Some(decision) = self.decide_fast() {
            return decision;
        }
        let reply = self.with_order(Intent::Acquire, |order| inner.try_acquire(order, self.detail));
        let pending = match self.pending_or_decision(reply) {
            Ok(decision) => return decision,
            Err(pending) => pending,
        };
        pending.wait_async(&inner.store).await
    }

    /// Returns whether it would fit now, and changes nothing. It ignores waiting requests: while some wait,
    /// [`Request::try_acquire`] may refuse what fits here.
    pub fn peek(&self) -> Decision {
        let inner = &self.limiter.inner;
        let reply = self.with_order(Intent::Peek, |order| inner.submit(order, self.detail));
        self.pending_or_decision(reply).unwrap_or_else(|pending| pending.wait(&*inner.store))
    }

    /// Same as [`Request::peek`], without blocking the thread.
    pub async fn peek_async(&self) -> Decision {
        let inner = &self.limiter.inner;
        let reply = self.with_order(Intent::Peek, |order| inner.submit(order, self.detail));
        let pending = match self.pending_or_decision(reply) {
            Ok(decision) => return decision,
            Err(pending) => pending,
        };
        pending.wait_async(&inner.store).await
    }

    /// Takes all of it as soon as it fits, first come first served, within `patience` of this call; at most one minute.
    /// The order is sent when the future is polled: polled late, it takes what fits then. See [`Acquire`].
    pub fn within(&self, patience: Duration) -> Acquire {
        self.with_order(Intent::Acquire, |order| {
            let order = Order { max_wait: patience, ..*order };
            Acquire::new(LimiterState::clone_of(self.limiter), &order, self.detail)
        })
    }

    /// Splits a reply into a decision that can be returned now and a pending one.
    fn pending_or_decision(&self, reply: SubmitReply) -> Result<Decision, PendingReply> {
        PendingReply::of(reply, self.request_id.is_some())
    }

    fn with_order<T>(&self, intent: Intent, send: impl FnOnce(&Order<'_>) -> T) -> T {
        let few: ArrayVec<Ask<'_>, FEW_ASKS>;
        let asks: &[Ask<'_>] = match &self.asks {
            Asks::OfHandles(own) => {
                few = own.iter().map(HandleRequest::ask).collect();
                &few
            }
            Asks::Many(asks) => asks,
        };
        send(&Order {
            intent,
            asks,
            request_id: self.request_id,
            hold: self.hold,
            ttl: self.ttl,
            max_wait: Duration::ZERO,
        })
    }
}

impl<'a> Asks<'a> {
    /// Adds the asks of another request.
    fn extend(&mut self, others: Asks<'a>) {
        if let (Asks::OfHandles(own), Asks::OfHandles(others)) = (&mut *self, &others)
            && own.len() + others.len() <= FEW_ASKS
        {
            others.iter().for_each(|ask| own.push(*ask));
            return;
        }
        let mut many = std::mem::replace(self, Asks::OfHandles(ArrayVec::new())).into_list();
        many.extend(others.into_list());
        *self = Asks::Many(Cow::Owned(many));
    }

    fn into_list(self) -> Vec<Ask<'a>> {
        match self {
            Asks::OfHandles(own) => own.iter().map(HandleRequest::ask).collect(),
            Asks::Many(asks) => asks.into_owned(),
        }
    }
}
