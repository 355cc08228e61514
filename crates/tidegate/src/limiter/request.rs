//! A request: the asks, the key, and options such as a hold or a time to live.
//!
//! A request borrows its parts, so that an immediate request copies nothing. Only a request that waits is copied.

use std::borrow::Cow;
use std::time::Duration;

use tidegate_core::{Amount, Ask, Hold, Intent, Order};

use super::acquire::Acquire;
use super::pending_reply::{Decision, PendingReply, SubmitReply};
use super::{Limiter, LimiterState};
use crate::reply::Detail;

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

/// One ask inline, or several.
#[derive(Debug, Clone)]
enum Asks<'a> {
    One([Ask<'a>; 1]),
    Many(Cow<'a, [Ask<'a>]>),
}

impl<'a> Asks<'a> {
    fn as_slice(&self) -> &[Ask<'a>] {
        match self {
            Asks::One(ask) => ask,
            Asks::Many(asks) => asks,
        }
    }
}

impl<'a> Request<'a> {
    pub(super) fn one(limiter: &'a Limiter, ask: Ask<'a>) -> Request<'a> {
        Request::new(limiter, Asks::One([ask]))
    }

    pub(super) fn many(limiter: &'a Limiter, asks: &'a [Ask<'a>]) -> Request<'a> {
        Request::new(limiter, Asks::Many(Cow::Borrowed(asks)))
    }

    pub(super) fn all(limiter: &'a Limiter, requests: impl IntoIterator<Item = Request<'a>>) -> Request<'a> {
        let mut all = Request::new(limiter, Asks::Many(Cow::Owned(Vec::new())));
        let mut asks = Vec::new();
        for request in requests {
            asks.extend_from_slice(request.asks.as_slice());
            if request.hold == Hold::Yes {
                all.hold = Hold::Yes;
            }
            if request.detail == Detail::Readings {
                all.detail = Detail::Readings;
            }
            all.ttl = request.ttl.or(all.ttl);
            all.request_id = request.request_id.or(all.request_id);
        }
        all.asks = Asks::Many(Cow::Owned(asks));
        all
    }

    fn new(limiter: &'a Limiter, asks: Asks<'a>) -> Request<'a> {
        Request { limiter, asks, hold: Hold::No, ttl: None, request_id: None, detail: Detail::Verdicts }
    }

    /// Sets the number of units; 1 by default. If the request has several asks, it applies to each of them.
    pub fn count(mut self, count: Amount) -> Request<'a> {
        let asks: &mut [Ask<'a>] = match &mut self.asks {
            Asks::One(ask) => ask,
            Asks::Many(asks) => asks.to_mut(),
        };
        for ask in asks {
            ask.count = count;
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
        let inner = &self.limiter.inner;
        let reply = inner.try_acquire(&self.order(Intent::Acquire), self.detail);
        self.pending_or_decision(reply).unwrap_or_else(|pending| pending.wait(&*inner.store))
    }

    /// Same as [`Request::try_acquire`], without blocking the thread. The order is sent at the first poll. A future
    /// that is dropped before it returns gives back the granted lease, unless the request has a request id. Other
    /// charges stay.
    pub async fn try_acquire_async(&self) -> Decision {
        let inner = &self.limiter.inner;
        let pending =
            match self.pending_or_decision(inner.try_acquire(&self.order(Intent::Acquire), self.detail)) {
                Ok(decision) => return decision,
                Err(pending) => pending,
            };
        pending.wait_async(&inner.store).await
    }

    /// Returns whether it would fit now, and changes nothing. It ignores waiting requests: while some wait,
    /// [`Request::try_acquire`] may refuse what fits here.
    pub fn peek(&self) -> Decision {
        let inner = &self.limiter.inner;
        let reply = inner.submit(&self.order(Intent::Peek), self.detail);
        self.pending_or_decision(reply).unwrap_or_else(|pending| pending.wait(&*inner.store))
    }

    /// Same as [`Request::peek`], without blocking the thread.
    pub async fn peek_async(&self) -> Decision {
        let inner = &self.limiter.inner;
        let pending = match self.pending_or_decision(inner.submit(&self.order(Intent::Peek), self.detail)) {
            Ok(decision) => return decision,
            Err(pending) => pending,
        };
        pending.wait_async(&inner.store).await
    }

    /// Takes all of it as soon as it fits, first come first served, within `patience` of this call; at most one minute.
    /// The order is sent when the future is polled: polled late, it takes what fits then. See [`Acquire`].
    pub fn within(&self, patience: Duration) -> Acquire {
        let order = Order { max_wait: patience, ..self.order(Intent::Acquire) };
        Acquire::new(LimiterState::clone_of(self.limiter), &order, self.detail)
    }

    /// Splits a reply into a decision that can be returned now and a pending one.
    fn pending_or_decision(&self, reply: SubmitReply) -> Result<Decision, PendingReply> {
        PendingReply::of(reply, self.request_id.is_some())
    }

    fn order(&self, intent: Intent) -> Order<'_> {
        let asks = self.asks.as_slice();
        Order {
            intent,
            asks,
            request_id: self.request_id,
            hold: self.hold,
            ttl: self.ttl,
            max_wait: Duration::ZERO,
        }
    }
}
