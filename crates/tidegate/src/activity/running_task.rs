//! A running task, owned by the code that runs it.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tidegate_core::{LeaseId, Timestamp};

use super::task_watcher::{Ended, LOOK_EVERY, TaskWatch};
use super::{Activity, ActivityError, ActivityRules};
use crate::limiter::{Lease, Limiter, Renewal};
use crate::store::Actual;

/// A running task. It ends when it is released or dropped, when another caller ends it, or when it is not renewed in
/// time.
///
/// A refused request returns no such value, so there is nothing that it could release.
#[must_use = "a task that is dropped gives its place back"]
pub struct RunningTask {
    activity: Activity,
    user: Box<str>,
    id: LeaseId,
    timestamp: Timestamp,
    lease: Option<Lease>,
    /// The rules at its start.
    rules: ActivityRules,
    /// The task goes on without this value.
    is_detached: Arc<AtomicBool>,
}

impl RunningTask {
    pub(super) fn new(
        activity: &Activity,
        user: &str,
        lease: Lease,
        timestamp: Timestamp,
        rules: ActivityRules,
    ) -> RunningTask {
        RunningTask {
            activity: activity.clone(),
            user: user.into(),
            id: lease.id(),
            timestamp,
            lease: Some(lease),
            rules,
            is_detached: Arc::default(),
        }
    }

    /// Id by which other processes renew and end the task.
    pub fn active_id(&self) -> LeaseId {
        self.id
    }

    /// The user.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// Start, by the store's clock.
    pub fn timestamp(&self) -> Timestamp {
        self.timestamp
    }

    /// Expiry without renewal, by the store's clock.
    pub fn expires_at(&self) -> Timestamp {
        self.lease.as_ref().map_or(self.timestamp, Lease::expires_at)
    }

    /// Whether the task is active as far as is known without asking the store.
    pub fn is_held(&self) -> bool {
        self.lease.as_ref().is_some_and(Lease::is_held)
    }

    /// Renews the task in the background as long as this value lives.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn keep_alive(&self) {
        if let Some(lease) = &self.lease {
            lease.keep_alive();
        }
    }

    /// Renews the task for its original time to live.
    pub async fn renew(&self) -> Result<Renewal, ActivityError> {
        self.renew_for(self.rules.lease_ttl).await
    }

    /// Renews the task for this time from now.
    pub async fn renew_for(&self, ttl: Duration) -> Result<Renewal, ActivityError> {
        if let Some(why) = self.rules.bad_ttl(ttl) {
            return Err(ActivityError::BadTtl(why));
        }
        let Some(lease) = &self.lease else { return Ok(Renewal::Gone) };
        let renewal = lease.renew_async(ttl).await?;
        if let Renewal::Until(until) = renewal {
            self.activity.watcher().renewed(self.id, until);
        }
        Ok(renewal)
    }

    /// Ends the task. Returns `false` if it was over.
    pub async fn release(mut self) -> bool {
        // Notifies watchers first, so that none reports an expiry.
        self.activity.watcher().report_end(self.id, Ended::Released);
        self.take().await
    }

    /// Leaves the task running without this value. It is renewed and ended by its id from now on, or it expires.
    pub fn into_id(mut self) -> LeaseId {
        self.is_detached.store(true, Ordering::Release);
        self.lease.take().map_or(self.id, Lease::into_id)
    }

    /// Completes when the task is over: ended by any caller, expired, or not renewed because the store was unreachable.
    ///
    /// The end is known within half a second. If [`MOST_WATCHED`](super::MOST_WATCHED) other tasks are watched, an end
    /// in another process is known at the next renewal. Needs a tokio runtime.
    pub fn ended(&self) -> impl Future<Output = Ended> + Send + 'static {
        let watching = self.activity.watcher().watch(&self.user, self.id, self.expires_at());
        let lost = self.lease.as_ref().map(Lease::lost);
        over(watching, lost, Arc::clone(&self.is_detached), self.activity.limiter().clone())
    }

    /// Releases the lease. With `compat` the charge to the window is refunded too.
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

impl Drop for RunningTask {
    fn drop(&mut self) {
        if self.lease.is_none() {
            return;
        }
        self.activity.watcher().report_end(self.id, Ended::Released);
        // A local store finishes at the first poll. A remote call continues on the runtime, if there is one.
        let mut giving = Box::pin(self.take());
        if giving.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()
            && let Ok(here) = tokio::runtime::Handle::try_current()
        {
            here.spawn(giving);
        }
    }
}

impl fmt::Debug for RunningTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunningTask").field("id", &self.id).field("user", &self.user).finish_non_exhaustive()
    }
}

/// Completes when the task was ended, or when its holder's time is over.
async fn over(
    watching: Option<TaskWatch>,
    lost: Option<impl Future<Output = ()>>,
    is_detached: Arc<AtomicBool>,
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
        // The task goes on without this value.
        if is_detached.load(Ordering::Acquire) {
            std::future::pending::<()>().await;
        }
        // It may have been ended elsewhere and the renewal noticed first. The next check will tell.
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
