//! The deadline of a connection: when to give up on what it is doing.
//!
//! The deadline moves with every step and is nearly always later than before. So a connection keeps one timer that may fire
//! early and is then rearmed; the timer is only reset when the deadline moves forward past it. While a request is active
//! the timer fires every 5 s, so that a short wait between requests does not touch it.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tidegate_net::Shutdown;
use tokio::time::{Instant, Sleep};

/// The maximum time to the next timer event while the connection is busy.
const REARM_INTERVAL: Duration = Duration::from_secs(5);

/// Why a wait ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interruption {
    /// The deadline passed.
    TimedOut,
    /// The gateway is shutting down.
    ShuttingDown,
}

/// What a connection is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionActivity {
    /// Waiting for a request; the connection may be closed.
    Idle,
    /// Processing something that should be completed.
    Busy,
}

/// The timer and the shutdown signal of a connection.
pub(crate) struct ConnectionDeadline {
    shutdown: Shutdown,
    shutdown_signal: Pin<Box<dyn Future<Output = ()> + Send + Sync>>,
    timer: Pin<Box<Sleep>>,
    expires_at: Instant,
    is_armed: bool,
    has_seen_shutdown: bool,
}

impl ConnectionDeadline {
    pub(crate) fn new(shutdown: &Shutdown, now: Instant, max_wait: Duration) -> ConnectionDeadline {
        let expires_at = deadline_after(now, max_wait);
        let signal = shutdown.clone();
        ConnectionDeadline {
            shutdown: shutdown.clone(),
            shutdown_signal: Box::pin(async move { signal.triggered().await }),
            timer: Box::pin(tokio::time::sleep_until(expires_at)),
            expires_at,
            is_armed: false,
            has_seen_shutdown: false,
        }
    }

    /// Whether the gateway is shutting down.
    pub(crate) fn is_shutting_down(&self) -> bool {
        self.shutdown.is_triggered()
    }

    /// Sets the deadline to `max_wait` from now.
    pub(crate) fn set_timeout(&mut self, now: Instant, max_wait: Duration) {
        self.expires_at = deadline_after(now, max_wait);
        if self.expires_at < self.timer.deadline() {
            self.timer.as_mut().reset(self.expires_at.min(now + REARM_INTERVAL));
            self.is_armed = false;
        }
    }

    /// Whether to stop waiting.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, activity: ConnectionActivity) -> Poll<Interruption> {
        if activity == ConnectionActivity::Idle && self.shutdown.is_triggered() {
            return Poll::Ready(Interruption::ShuttingDown);
        }
        if self.is_armed && !self.timer.is_elapsed() {
            return Poll::Pending;
        }
        if !self.has_seen_shutdown && self.shutdown_signal.as_mut().poll(cx).is_ready() {
            self.has_seen_shutdown = true;
            if activity == ConnectionActivity::Idle {
                return Poll::Ready(Interruption::ShuttingDown);
            }
        }
        while self.timer.as_mut().poll(cx).is_ready() {
            let now = self.timer.deadline();
            if now >= self.expires_at {
                return Poll::Ready(Interruption::TimedOut);
            }
            let next = match activity {
                ConnectionActivity::Idle => self.expires_at,
                ConnectionActivity::Busy => self.expires_at.min(now + REARM_INTERVAL),
            };
            self.timer.as_mut().reset(next);
        }
        self.is_armed = true;
        Poll::Pending
    }
}

/// Adds a duration to an instant, capped at one year.
pub(crate) fn deadline_after(now: Instant, max_wait: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(365 * 86_400);
    now + max_wait.min(FAR)
}

impl std::fmt::Debug for ConnectionDeadline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConnectionDeadline").field("expires_at", &self.expires_at).finish_non_exhaustive()
    }
}
