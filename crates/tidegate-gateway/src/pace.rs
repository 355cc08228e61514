//! The pace of a connection: how long it may still take over what it is doing.
//!
//! What is due moves with every step, and is nearly always later than before. So a connection has one alarm, which may ring too early and is
//! then set again; it is set to ring sooner only if it must. While requests are under way it rings every few seconds, so that a
//! wait shorter than that between two requests need not set it.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tidegate_net::Shutdown;
use tokio::time::{Instant, Sleep};

/// How far ahead the alarm is while something is under way.
const STRIDE: Duration = Duration::from_secs(5);

/// Why to stop waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interruption {
    /// It took too long.
    Overdue,
    /// The gateway is about to end.
    Ending,
}

/// What a connection is in the middle of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Midst {
    /// Of nothing: it may end.
    Nothing,
    /// Of something that may be finished.
    Something,
}

/// What a connection waits with.
pub(crate) struct Pace {
    ending: Shutdown,
    bell: Pin<Box<dyn Future<Output = ()> + Send + Sync>>,
    alarm: Pin<Box<Sleep>>,
    due: Instant,
    is_armed: bool,
    has_rung: bool,
}

impl Pace {
    pub(crate) fn new(ending: &Shutdown, now: Instant, patience: Duration) -> Pace {
        let due = later(now, patience);
        let told = ending.clone();
        Pace {
            ending: ending.clone(),
            bell: Box::pin(async move { told.triggered().await }),
            alarm: Box::pin(tokio::time::sleep_until(due)),
            due,
            is_armed: false,
            has_rung: false,
        }
    }

    /// Whether the gateway is about to end.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.is_triggered()
    }

    /// It is too late after `patience` from now.
    pub(crate) fn within(&mut self, now: Instant, patience: Duration) {
        self.due = later(now, patience);
        if self.due < self.alarm.deadline() {
            self.alarm.as_mut().reset(self.due.min(now + STRIDE));
            self.is_armed = false;
        }
    }

    /// Whether to stop waiting.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, midst: Midst) -> Poll<Interruption> {
        if midst == Midst::Nothing && self.ending.is_triggered() {
            return Poll::Ready(Interruption::Ending);
        }
        if self.is_armed && !self.alarm.is_elapsed() {
            return Poll::Pending;
        }
        if !self.has_rung && self.bell.as_mut().poll(cx).is_ready() {
            self.has_rung = true;
            if midst == Midst::Nothing {
                return Poll::Ready(Interruption::Ending);
            }
        }
        while self.alarm.as_mut().poll(cx).is_ready() {
            let now = self.alarm.deadline();
            if now >= self.due {
                return Poll::Ready(Interruption::Overdue);
            }
            let next = match midst {
                Midst::Nothing => self.due,
                Midst::Something => self.due.min(now + STRIDE),
            };
            self.alarm.as_mut().reset(next);
        }
        self.is_armed = true;
        Poll::Pending
    }
}

/// So much later; the end of time is late enough.
pub(crate) fn later(now: Instant, patience: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(365 * 86_400);
    now + patience.min(FAR)
}

impl std::fmt::Debug for Pace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pace").field("due", &self.due).finish_non_exhaustive()
    }
}
