//! A question: what is asked, for whom, and what else the asker says about it.
//!
//! A question borrows, so that asking at once copies nothing. Only who waits is copied, and may then outlive everything.

use std::borrow::Cow;
use std::time::Duration;

use tidegate_core::{Amount, Ask, Hold, Intent, Order};

use super::acquire::Acquire;
use super::pending_reply::{Decision, PendingReply, SubmitReply};
use super::{Inner, Limiter};
use crate::reply::Detail;

/// A question to a [`Limiter`], made by [`Limiter::ask`]. Nothing happens until it is put.
#[derive(Debug, Clone)]
#[must_use = "a question does nothing until it is put: try_acquire, peek or within"]
pub struct Request<'a> {
    limiter: &'a Limiter,
    asks: Asks<'a>,
    hold: Hold,
    ttl: Option<Duration>,
    request_id: Option<&'a [u8]>,
    detail: Detail,
}

/// One ask where it lies, or several.
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

    /// How much: 1 unless said, and of a set this much of everything.
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

    /// The charge is an estimate, to be settled to its true cost: the grant comes with a lease.
    pub fn hold(mut self) -> Request<'a> {
        self.hold = Hold::Yes;
        self
    }

    /// How long a lease lasts. Unless said it is the shortest of the `concurrency` items that are held, and a minute for a
    /// [hold](Request::hold) of others.
    pub fn ttl(mut self, ttl: Duration) -> Request<'a> {
        self.ttl = Some(ttl);
        self
    }

    /// A name that makes the question safe to repeat: it is answered again and charged once. A repeated grant speaks of
    /// the same lease; whoever drops or releases it first gives it back for all, and a question that is repeated after that is told of
    /// a lease that has lapsed.
    pub fn request_id(mut self, id: &'a (impl AsRef<[u8]> + ?Sized)) -> Request<'a> {
        self.request_id = Some(id.as_ref());
        self
    }

    /// Ask every item what it says about itself.
    pub fn readings(mut self) -> Request<'a> {
        self.detail = Detail::Readings;
        self
    }

    /// Takes it if it all fits now. Nobody who waits is overtaken: if somebody is held up by one of the same rows, this is
    /// denied. Over a store with a log it blocks until a grant is durable, and where somebody else decides until they have; in tasks
    /// [`Request::try_acquire_async`] does not.
    pub fn try_acquire(&self) -> Decision {
        let inner = &self.limiter.inner;
        let asked = inner.try_acquire(&self.order(Intent::Acquire), self.detail);
        self.owed(asked).unwrap_or_else(|owed| owed.wait(&*inner.store))
    }

    /// The same, blocking nobody. It is put when it is first polled. Whoever drops it before they are told gives back a lease that
    /// was granted, unless the question has a request id and may be repeated; what else was charged stays so.
    pub async fn try_acquire_async(&self) -> Decision {
        let inner = &self.limiter.inner;
        let owed = match self.owed(inner.try_acquire(&self.order(Intent::Acquire), self.detail)) {
            Ok(decided) => return decided,
            Err(owed) => owed,
        };
        owed.wait_async(&inner.store).await
    }

    /// Says whether it would fit now, and changes nothing. It looks at what is counted, and not at who waits in line: where somebody does,
    /// [`Request::try_acquire`] may be denied what this says would fit.
    pub fn peek(&self) -> Decision {
        let inner = &self.limiter.inner;
        let asked = inner.submit(&self.order(Intent::Peek), self.detail);
        self.owed(asked).unwrap_or_else(|owed| owed.wait(&*inner.store))
    }

    /// The same, blocking nobody.
    pub async fn peek_async(&self) -> Decision {
        let inner = &self.limiter.inner;
        let owed = match self.owed(inner.submit(&self.order(Intent::Peek), self.detail)) {
            Ok(decided) => return decided,
            Err(owed) => owed,
        };
        owed.wait_async(&inner.store).await
    }

    /// Takes it as soon as it all fits, first come first served, if that is within `patience` of this call; a minute is the longest there
    /// is. It looks when it is polled: polled late, it takes what fits by then. See [`Acquire`].
    pub fn within(&self, patience: Duration) -> Acquire {
        let order = Order { max_wait: patience, ..self.order(Intent::Acquire) };
        Acquire::new(Inner::clone_of(self.limiter), &order, self.detail)
    }

    /// What may be told at once, and what has to be waited for.
    fn owed(&self, asked: SubmitReply) -> Result<Decision, PendingReply> {
        PendingReply::of(asked, self.request_id.is_some())
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
