//! Waiting on a connection: for something to read, but not for ever, and not when the server is about to end.
//!
//! A connection is woken far more often by its client than by time or by the end, so these two are looked at only when it was
//! woken and there was nothing to read. A task is always woken the same way, so it is enough to have been seen once.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;
use tokio::time::{Instant, Sleep};

/// The end, as far as connections have to know of it.
#[derive(Debug, Clone, Default)]
pub(super) struct Ending {
    inner: Arc<EndingInner>,
}

#[derive(Debug, Default)]
struct EndingInner {
    told: AtomicBool,
    bell: Arc<Notify>,
}

impl Ending {
    /// Everybody is told.
    pub(super) fn tell(&self) {
        self.inner.told.store(true, Ordering::Release);
        self.inner.bell.notify_waiters();
    }

    /// Whether everybody was told.
    pub(super) fn is_told(&self) -> bool {
        self.inner.told.load(Ordering::Acquire)
    }

    /// Waits until everybody is told.
    pub(super) async fn told(&self) {
        // Who is listening before they look cannot miss it.
        let bell = Arc::clone(&self.inner.bell).notified_owned();
        if !self.is_told() {
            bell.await;
        }
    }
}

/// Why a connection should stop waiting, if not for something to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Interruption {
    /// It took too long.
    Overdue,
    /// The server is about to end.
    Ending,
}

/// What a connection waits with.
#[derive(Debug)]
pub(super) struct Watch {
    ending: Ending,
    bell: Pin<Box<OwnedNotified>>,
    alarm: Pin<Box<Sleep>>,
    /// When it is too late; the alarm may ring before.
    due: Instant,
    /// Whether bell and alarm know whom to wake.
    is_armed: bool,
}

impl Watch {
    /// From now on it is too late after `patience`.
    pub(super) fn new(ending: &Ending, now: Instant, patience: Duration) -> Watch {
        let bell = Box::pin(Arc::clone(&ending.inner.bell).notified_owned());
        let due = now + patience;
        let alarm = Box::pin(tokio::time::sleep_until(due));
        Watch { ending: ending.clone(), bell, alarm, due, is_armed: false }
    }

    /// Moves the time at which it is too late. Later costs nothing; sooner sets the alarm anew.
    pub(super) fn due(&mut self, due: Instant) {
        self.due = due;
        if due < self.alarm.deadline() {
            self.alarm.as_mut().reset(due);
            self.is_armed = false;
        }
    }

    /// Whether to stop waiting. `woken` if there was a call before this one that found nothing to read either.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, woken: bool) -> Poll<Interruption> {
        if self.is_armed && !woken {
            return Poll::Pending;
        }
        if self.ending.is_told() || self.bell.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Interruption::Ending);
        }
        while self.alarm.as_mut().poll(cx).is_ready() {
            if self.alarm.deadline() >= self.due {
                return Poll::Ready(Interruption::Overdue);
            }
            let due = self.due;
            self.alarm.as_mut().reset(due);
        }
        self.is_armed = true;
        Poll::Pending
    }
}
