//! Waiting in line.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tidegate_core::{Amount, Ask, Hold, Intent, Order};

use super::Inner;
use super::decision::{AskError, Decision};
use crate::answer::Detail;

/// The answer to a question that may wait: a future that owns all it needs.
///
/// It is cancel-safe: the order is put to the store inside a poll that then returns the answer, so that a dropped
/// waiter was either never charged or has handed its grant over. Whoever stood behind it moves up.
#[must_use = "nobody waits in a line they do not stand in: await it"]
pub struct Acquire {
    inner: Arc<Inner>,
    wish: Wish,
}

/// An ask that owns its words: which limit, for which key, how much.
type OwnAsk = (Box<str>, Option<Box<[u8]>>, Amount);

/// An order that owns its words.
struct Wish {
    asks: Vec<OwnAsk>,
    request_id: Option<Box<[u8]>>,
    hold: Hold,
    ttl: Option<Duration>,
    patience: Duration,
    detail: Detail,
}

impl Wish {
    fn of(order: &Order<'_>, detail: Detail) -> Wish {
        let own = |ask: &Ask<'_>| (ask.limit_id.into(), ask.key.map(Into::into), ask.count);
        Wish {
            asks: order.asks.iter().map(own).collect(),
            request_id: order.request_id.map(Into::into),
            hold: order.hold,
            ttl: order.ttl,
            patience: order.patience,
            detail,
        }
    }

    fn asks(&self) -> Vec<Ask<'_>> {
        self.asks
            .iter()
            .map(|(limit_id, key, count)| Ask { limit_id, key: key.as_deref(), count: *count })
            .collect()
    }
}

impl Acquire {
    pub(super) fn new(inner: Arc<Inner>, order: &Order<'_>, detail: Detail) -> Acquire {
        Acquire { inner, wish: Wish::of(order, detail) }
    }
}

impl Future for Acquire {
    type Output = Result<Decision, AskError>;

    fn poll(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<Self::Output> {
        let wish = &self.wish;
        let order = Order {
            intent: Intent::Acquire,
            asks: &wish.asks(),
            request_id: wish.request_id.as_deref(),
            hold: wish.hold,
            ttl: wish.ttl,
            patience: wish.patience,
        };
        Poll::Ready(self.inner.try_acquire(&order, wish.detail))
    }
}

impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire").finish_non_exhaustive()
    }
}
