//! A task that is running, in the hands of whoever runs it.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tidegate_core::{LeaseId, Timestamp};

use super::vigil::{Ended, LOOK_EVERY, Watching};
use super::{Activity, ActivityError, Rules};
use crate::limiter::{Lease, Limiter, Renewal};
use crate::store::Actual;

/// A task that is running: it has a place until it is released, dropped or stopped by somebody, or until nobody renews it.
///
/// Only what was set active is ever given back: whoever is refused has no such thing to drop.
#[must_use = "a task that is dropped gives its place back"]
pub struct Active {
    activity: Activity,
    user: Box<str>,
    id: LeaseId,
    timestamp: Timestamp,
    lease: Option<Lease>,
    /// The rules it began under.
    rules: Rules,
    /// Whether it goes on without whoever had it here.
    is_handed_over: Arc<AtomicBool>,
}

impl Active {
    pub(super) fn new(
        activity: &Activity,
        user: &str,
        lease: Lease,
        timestamp: Timestamp,
        rules: Rules,
    ) -> Active {
        Active {
            activity: activity.clone(),
            user: user.into(),
            id: lease.id(),
            timestamp,
            lease: Some(lease),
            rules,
            is_handed_over: Arc::default(),
        }
    }

    /// Its name, by which it can be renewed and released from elsewhere.
    pub fn active_id(&self) -> LeaseId {
        self.id
    }

    /// Whose it is.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// When it began, by the store's clock.
    pub fn timestamp(&self) -> Timestamp {
        self.timestamp
    }

    /// When it loses its place unless it is renewed, by the store's clock.
    pub fn expires_at(&self) -> Timestamp {
        self.lease.as_ref().map_or(self.timestamp, Lease::expires_at)
    }

    /// Whether it has its place, as far as can be known here without asking.
    pub fn is_held(&self) -> bool {
        self.lease.as_ref().is_some_and(Lease::is_held)
    }

    /// Renews it from now on, in the background, as long as it is here.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn keep_alive(&self) {
        if let Some(lease) = &self.lease {
            lease.keep_alive();
        }
    }

    /// Keeps its place for as long from now as when it began.
    pub async fn renew(&self) -> Result<Renewal, ActivityError> {
        self.renew_for(self.rules.lease_ttl).await
    }

    /// Keeps its place for this long from now.
    pub async fn renew_for(&self, ttl: Duration) -> Result<Renewal, ActivityError> {
        if let Some(why) = self.rules.bad_ttl(ttl) {
            return Err(ActivityError::BadTtl(why));
        }
        let Some(lease) = &self.lease else { return Ok(Renewal::Gone) };
        let renewal = lease.renew_async(ttl).await?;
        if let Renewal::Until(until) = renewal {
            self.activity.vigil().renewed(self.id, until);
        }
        Ok(renewal)
    }

    /// Gives its place back. `false` if that was done before, or if it had lost it.
    pub async fn release(mut self) -> bool {
        // Before anybody can think that it was lost.
        self.activity.vigil().tell(self.id, Ended::Released);
        self.take().await
    }

    /// Leaves it running without anybody here: it is renewed and released by its name from now on, or lapses.
    pub fn into_id(mut self) -> LeaseId {
        self.is_handed_over.store(true, Ordering::Release);
        self.lease.take().map_or(self.id, Lease::into_id)
    }

    /// Ends when it is over: released by anybody anywhere, lapsed, or not renewed in time because the store could not be reached. That
    /// is known within half a second of when it happened; if [`MOST_WATCHED`](super::MOST_WATCHED) others are watched already, what
    /// happens elsewhere is known when it would have to be renewed.
    ///
    /// Needs a tokio runtime.
    pub fn ended(&self) -> impl Future<Output = Ended> + Send + 'static {
        let watching = self.activity.vigil().watch(&self.user, self.id, self.expires_at());
        let lost = self.lease.as_ref().map(Lease::lost);
        over(watching, lost, Arc::clone(&self.is_handed_over), self.activity.limiter().clone())
    }

    /// Gives back what it holds; to the letter also its place in the window.
    fn take(&mut self) -> impl Future<Output = bool> + Send + use<> {
        let (lease, compat) = (self.lease.take(), self.rules.compat);
        async move {
            match lease {
                None => false,
                Some(lease) if compat => lease.settle_async(Actual::Every(0)).await.is_ok(),
                Some(lease) => lease.release_async().await,
            }
        }
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        if self.lease.is_none() {
            return;
        }
        self.activity.vigil().tell(self.id, Ended::Released);
        // A store that decides here has done so when this was polled once. Who else decides is waited for by nobody, if there is a
        // runtime where that can be left to.
        let mut giving = Box::pin(self.take());
        if giving.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()
            && let Ok(here) = tokio::runtime::Handle::try_current()
        {
            here.spawn(giving);
        }
    }
}

impl fmt::Debug for Active {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Active").field("id", &self.id).field("user", &self.user).finish_non_exhaustive()
    }
}

/// Ends when somebody says so, or when its holder's own time is over.
async fn over(
    watching: Option<Watching>,
    lost: Option<impl Future<Output = ()>>,
    is_handed_over: Arc<AtomicBool>,
    limiter: Limiter,
) -> Ended {
    let told = async {
        match watching {
            Some(watching) => watching.ended().await,
            None => std::future::pending().await,
        }
    };
    let given_up = async {
        if let Some(lost) = lost {
            lost.await;
        }
        // What was handed over goes on.
        if is_handed_over.load(Ordering::Acquire) {
            std::future::pending::<()>().await;
        }
        // Perhaps it was released elsewhere, and whoever renews it was told first: the next look will say so.
        let holder_clock = limiter.holder_clock();
        holder_clock.sleep_until(holder_clock.now().plus(LOOK_EVERY)).await;
    };
    let (mut told, mut given_up) = (pin!(told), pin!(given_up));
    poll_fn(|cx| {
        if let Poll::Ready(ended) = told.as_mut().poll(cx) {
            return Poll::Ready(ended);
        }
        given_up.as_mut().poll(cx).map(|()| Ended::Expired)
    })
    .await
}
