//! Waiting on a connection: for something to read, but not for ever, and not when the server is about to end.
//!
//! A connection is woken far more often by its client than by time or by the end. So both are told once whom to wake, and afterwards
//! only looked at: a task is always woken the same way. That they have happened is seen by looking, not by having been woken,
//! because the client may have woken the task at the same moment, or the task may have been busy with something else.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tidegate_net::Ending;
use tokio::sync::futures::OwnedNotified;
use tokio::time::{Instant, Sleep};

/// Why a connection should stop waiting, if not for something to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Interruption {
    /// It took too long.
    Overdue,
    /// The server is about to end.
    Ending,
}

/// What a connection is in the middle of while it waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Midst {
    /// Of nothing: it may end.
    Nothing,
    /// Of a request that has begun, and may be finished.
    Request,
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
        let bell = Box::pin(ending.bell());
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

    /// Whether to stop waiting.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, midst: Midst) -> Poll<Interruption> {
        if midst == Midst::Nothing && self.ending.is_told() {
            return Poll::Ready(Interruption::Ending);
        }
        if self.is_armed && !self.alarm.is_elapsed() {
            return Poll::Pending;
        }
        let rang = self.bell.as_mut().poll(cx).is_ready();
        if rang && midst == Midst::Nothing {
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

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(1);

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
    }

    /// What a watch says when it is looked at once.
    async fn look(watch: &mut Watch, midst: Midst) -> Poll<Interruption> {
        std::future::poll_fn(|cx| Poll::Ready(watch.poll(cx, midst))).await
    }

    #[test]
    fn an_alarm_that_rang_while_nobody_waited_is_not_lost() {
        runtime().block_on(async {
            let mut watch = Watch::new(&Ending::default(), Instant::now(), SHORT);
            assert_eq!(look(&mut watch, Midst::Nothing).await, Poll::Pending);
            // Time passes while the connection does something else, and is not looked for.
            tokio::time::sleep(2 * SHORT).await;
            assert_eq!(look(&mut watch, Midst::Nothing).await, Poll::Ready(Interruption::Overdue));

            // The same if it may go on: whoever waits next is woken.
            let mut watch = Watch::new(&Ending::default(), Instant::now(), SHORT);
            assert_eq!(look(&mut watch, Midst::Nothing).await, Poll::Pending);
            tokio::time::sleep(2 * SHORT).await;
            watch.due(Instant::now() + SHORT);
            let interruption = std::future::poll_fn(|cx| watch.poll(cx, Midst::Nothing));
            assert_eq!(tokio::time::timeout(LONG, interruption).await, Ok(Interruption::Overdue));
        });
    }

    #[test]
    fn an_end_that_was_told_while_nobody_waited_is_not_lost() {
        runtime().block_on(async {
            let ending = Ending::default();
            let mut watch = Watch::new(&ending, Instant::now(), LONG);
            assert_eq!(look(&mut watch, Midst::Nothing).await, Poll::Pending);
            ending.tell();
            assert_eq!(
                look(&mut watch, Midst::Request).await,
                Poll::Pending,
                "what has begun may be finished"
            );
            assert_eq!(look(&mut watch, Midst::Nothing).await, Poll::Ready(Interruption::Ending));
        });
    }

    #[test]
    fn what_is_moved_closer_is_due_sooner() {
        runtime().block_on(async {
            let mut watch = Watch::new(&Ending::default(), Instant::now(), 2 * LONG);
            assert_eq!(look(&mut watch, Midst::Nothing).await, Poll::Pending);
            watch.due(Instant::now() + SHORT);
            let interruption = std::future::poll_fn(|cx| watch.poll(cx, Midst::Nothing));
            assert_eq!(tokio::time::timeout(LONG, interruption).await, Ok(Interruption::Overdue));
        });
    }
}
