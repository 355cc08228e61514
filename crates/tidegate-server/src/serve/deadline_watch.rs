//! Waiting on a connection: for something to read, but not for ever, and not when the server is about to end.
//!
//! A connection is woken far more often by its client than by time or by the end. So both are told once whom to wake, and afterwards
//! only looked at: a task is always woken the same way. That they have happened is seen by looking, not by having been woken,
//! because the client may have woken the task at the same moment, or the task may have been busy with something else.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tidegate_net::Shutdown;
use tokio::sync::futures::OwnedNotified;
use tokio::time::{Instant, Sleep};

/// Why a connection should stop waiting, if not for something to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitInterrupt {
    /// It took too long.
    DeadlinePassed,
    /// The server is about to end.
    Shutdown,
}

/// What a connection is in the middle of while it waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestPhase {
    /// Of nothing: it may end.
    Idle,
    /// Of a request that has begun, and may be finished.
    InRequest,
}

/// What a connection waits with.
#[derive(Debug)]
pub(super) struct DeadlineWatch {
    shutdown: Shutdown,
    notified: Pin<Box<OwnedNotified>>,
    sleep: Pin<Box<Sleep>>,
    /// When it is too late; the sleep may ring before.
    deadline: Instant,
    /// Whether notified and sleep know whom to wake.
    is_armed: bool,
}

impl DeadlineWatch {
    /// From now on it is too late after `timeout`.
    pub(super) fn new(shutdown: &Shutdown, now: Instant, timeout: Duration) -> DeadlineWatch {
        let notified = Box::pin(shutdown.notified());
        let deadline = now + timeout;
        let sleep = Box::pin(tokio::time::sleep_until(deadline));
        DeadlineWatch { shutdown: shutdown.clone(), notified, sleep, deadline, is_armed: false }
    }

    /// Moves the time at which it is too late. Later costs nothing; sooner sets the sleep anew.
    pub(super) fn set_deadline(&mut self, deadline: Instant) {
        self.deadline = deadline;
        if deadline < self.sleep.deadline() {
            self.sleep.as_mut().reset(deadline);
            self.is_armed = false;
        }
    }

    /// Whether to stop waiting.
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

    /// What a watch says when it is looked at once.
    async fn look(watch: &mut DeadlineWatch, phase: RequestPhase) -> Poll<WaitInterrupt> {
        std::future::poll_fn(|cx| Poll::Ready(watch.poll(cx, phase))).await
    }

    #[test]
    fn an_alarm_that_rang_while_nobody_waited_is_not_lost() {
        runtime().block_on(async {
            let mut watch = DeadlineWatch::new(&Shutdown::default(), Instant::now(), SHORT);
            assert_eq!(look(&mut watch, RequestPhase::Idle).await, Poll::Pending);
            // Time passes while the connection does something else, and is not looked for.
            tokio::time::sleep(2 * SHORT).await;
            assert_eq!(
                look(&mut watch, RequestPhase::Idle).await,
                Poll::Ready(WaitInterrupt::DeadlinePassed)
            );

            // The same if it may go on: whoever waits next is woken.
            let mut watch = DeadlineWatch::new(&Shutdown::default(), Instant::now(), SHORT);
            assert_eq!(look(&mut watch, RequestPhase::Idle).await, Poll::Pending);
            tokio::time::sleep(2 * SHORT).await;
            watch.set_deadline(Instant::now() + SHORT);
            let interruption = std::future::poll_fn(|cx| watch.poll(cx, RequestPhase::Idle));
            assert_eq!(tokio::time::timeout(LONG, interruption).await, Ok(WaitInterrupt::DeadlinePassed));
        });
    }

    #[test]
    fn an_end_that_was_told_while_nobody_waited_is_not_lost() {
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
    fn what_is_moved_closer_is_due_sooner() {
        runtime().block_on(async {
            let mut watch = DeadlineWatch::new(&Shutdown::default(), Instant::now(), 2 * LONG);
            assert_eq!(look(&mut watch, RequestPhase::Idle).await, Poll::Pending);
            watch.set_deadline(Instant::now() + SHORT);
            let interruption = std::future::poll_fn(|cx| watch.poll(cx, RequestPhase::Idle));
            assert_eq!(tokio::time::timeout(LONG, interruption).await, Ok(WaitInterrupt::DeadlinePassed));
        });
    }
}
