//! Interrupts a wait for input by a deadline or by the shutdown.
//!
//! Input wakes a connection far more often than time or shutdown. So the wakers of both are registered once and then only checked.
//! Their events are detected by their state, not by the wake-up: input may wake the task at the same moment, or the task may be
//! busy elsewhere.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tidegate_net::Shutdown;
use tokio::sync::futures::OwnedNotified;
use tokio::time::{Instant, Sleep};

/// Why a connection stops waiting for input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitInterrupt {
    /// The deadline has passed.
    DeadlinePassed,
    /// The server shuts down.
    Shutdown,
}

/// Whether a connection may be closed by a shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestPhase {
    /// No request is in progress.
    Idle,
    /// A request is in progress and may finish.
    InRequest,
}

/// The deadline and the shutdown signal of one connection.
#[derive(Debug)]
pub(super) struct DeadlineWatch {
    shutdown: Shutdown,
    notified: Pin<Box<OwnedNotified>>,
    sleep: Pin<Box<Sleep>>,
    /// The deadline; `sleep` may fire earlier.
    deadline: Instant,
    /// Whether the wakers of `notified` and `sleep` are registered.
    is_armed: bool,
}

impl DeadlineWatch {
    /// A watch whose deadline is `timeout` after `now`.
    pub(super) fn new(shutdown: &Shutdown, now: Instant, timeout: Duration) -> DeadlineWatch {
        let notified = Box::pin(shutdown.notified());
        let deadline = now + timeout;
        let sleep = Box::pin(tokio::time::sleep_until(deadline));
        DeadlineWatch { shutdown: shutdown.clone(), notified, sleep, deadline, is_armed: false }
    }

    /// Moves the deadline. Only an earlier one resets the timer.
    pub(super) fn set_deadline(&mut self, deadline: Instant) {
        self.deadline = deadline;
        if deadline < self.sleep.deadline() {
            self.sleep.as_mut().reset(deadline);
            self.is_armed = false;
        }
    }

    /// Checks for an interrupt and registers the waker.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, phase: RequestPhase) -> Poll<WaitInterrupt> {
        if phase == RequestPhase::Idle && self.shutdown.is_triggered() {
            return Poll::Ready(WaitInterrupt::Shutdown);
        }
        if self.is_armed && !self.sleep.is_elapsed() {
            return Poll::Pending;
        }
        let is_notified = self.notified.as_mut().poll(cx).is_ready();
        if is_notified && phase == RequestPhase::Idle {
            return Poll::Ready(WaitInterrupt::Shutdown);
        }
        while self.sleep.as_mut().poll(cx).is_ready() {
            if self.sleep.deadline() >= self.deadline {
                return Poll::Ready(WaitInterrupt::DeadlinePassed);
            }
            let deadline = self.deadline;
            self.sleep.as_mut().reset(deadline);
        }
        self.is_armed = true;
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(1);

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
    }

    /// The result of a single poll.
    async fn look(watch: &mut DeadlineWatch, phase: RequestPhase) -> Poll<WaitInterrupt> {
        std::future::poll_fn(|cx| Poll::Ready(watch.poll(cx, phase))).await
    }

    #[test]
    fn deadline_that_passed_between_polls_is_reported() {
        runtime().block_on(async {
            let mut watch = DeadlineWatch::new(&Shutdown::default(), Instant::now(), SHORT);
            assert_eq!(look(&mut watch, RequestPhase::Idle).await, Poll::Pending);
            // The deadline passes while nothing polls.
            tokio::time::sleep(2 * SHORT).await;
            assert_eq!(
                look(&mut watch, RequestPhase::Idle).await,
                Poll::Ready(WaitInterrupt::DeadlinePassed)
            );

            // A deadline that was moved meanwhile wakes the next wait.
            let mut watch = DeadlineWatch::new(&Shutdown::default(), Instant::now(), SHORT);
            assert_eq!(look(&mut watch, RequestPhase::Idle).await, Poll::Pending);
            tokio::time::sleep(2 * SHORT).await;
            watch.set_deadline(Instant::now() + SHORT);
            let interruption = std::future::poll_fn(|cx| watch.poll(cx, RequestPhase::Idle));
            assert_eq!(tokio::time::timeout(LONG, interruption).await, Ok(WaitInterrupt::DeadlinePassed));
        });
    }

    #[test]
    fn shutdown_that_was_triggered_between_polls_is_reported() {
        runtime().block_on(async {
            let shutdown = Shutdown::default();
            let mut watch = DeadlineWatch::new(&shutdown, Instant::now(), LONG);
            assert_eq!(look(&mut watch, RequestPhase::Idle).await, Poll::Pending);
            shutdown.trigger();
            assert_eq!(
                look(&mut watch, RequestPhase::InRequest).await,
                Poll::Pending,
                "what has begun may be finished"
            );
            assert_eq!(look(&mut watch, RequestPhase::Idle).await, Poll::Ready(WaitInterrupt::Shutdown));
        });
    }

    #[test]
    fn earlier_deadline_fires_earlier() {
        runtime().block_on(async {
            let mut watch = DeadlineWatch::new(&Shutdown::default(), Instant::now(), 2 * LONG);
            assert_eq!(look(&mut watch, RequestPhase::Idle).await, Poll::Pending);
            watch.set_deadline(Instant::now() + SHORT);
            let interruption = std::future::poll_fn(|cx| watch.poll(cx, RequestPhase::Idle));
            assert_eq!(tokio::time::timeout(LONG, interruption).await, Ok(WaitInterrupt::DeadlinePassed));
        });
    }
}
