//! Rate limits for streams of messages: so many per window, for all messages and per user.
//!
//! A [`StreamLimiter`] has one limit with two sliding windows, `global` and `user`. Both are decided together, and a
//! refused message charges neither, so repeated attempts never extend a refusal. [`LimitExt::limited`] applies the
//! limiter to a stream. Passed messages come out in order and unchanged; the rest is dropped. Several streams may share
//! a limiter and its counts.
//!
//! ```text
//!   messages ──▶ key ──▶ limiter ──passed──▶ in order, unchanged
//!                           └──────refused──▶ observer, then dropped
//! ```
//!
//! With [`Limited::waiting`] messages that do not fit are delayed until they do. Later messages wait too, so the order
//! stays.
//!
//! `0` refuses everything, also for users. A message that both rates refuse counts as refused by the global one. A
//! message without a user belongs to `unknown_user`.
//!
//! There are no errors: the limiter decides in this process, about user names that always fit a key. To share windows
//! between processes, put [`StreamRules::spec`] into a shared store.

mod limiter;
mod rules;

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use pin_project_lite::pin_project;
use tidegate_core::order::MAX_WAIT;

use limiter::DelayedMessage;

pub use limiter::{MessageCounts, StreamLimiter, StreamStats, mean_us};
pub use rules::{MessageDecision, MessageRate, MessageRefusal, RefusedBy, StreamRules, User};

/// Messages that one task takes in a row before it yields. A refused message costs less than a microsecond, so this
/// bounds how long the task keeps its thread.
const LONGEST_RUN: u32 = 128;

/// Applies limiters to streams.
pub trait LimitExt: Stream + Sized {
    /// The messages that this limiter passes. `key` returns the user of a message.
    ///
    /// ```
    /// use futures_util::{StreamExt, stream};
    /// use tidegate::stream::{StreamLimiter, LimitExt, StreamRules};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tidegate::catalog::PutError> {
    /// let limiter = StreamLimiter::new(StreamRules::default())?;
    /// let messages = stream::iter((0..25).map(|n| (if n < 12 { "ada" } else { "bob" }, n)));
    /// let passed: Vec<_> = messages.limited(&limiter, |(user, _)| (*user).into()).collect().await;
    /// assert_eq!(passed.len(), 20, "ten of each");
    /// # Ok(())
    /// # }
    /// ```
    fn limited<K>(self, limiter: &StreamLimiter, key: K) -> Limited<Self, K>
    where
        K: FnMut(&Self::Item) -> User<'_>,
    {
        Limited {
            stream: self,
            key,
            limiter: limiter.clone(),
            observer: None,
            patience: Duration::ZERO,
            waiting: None,
            run: 0,
        }
    }
}

impl<S: Stream> LimitExt for S {}

/// A callback for every refused message.
type Observer<T> = Box<dyn FnMut(&T, &MessageRefusal) + Send>;

pin_project! {
    /// The messages of a stream that a limiter passes. See [`LimitExt::limited`].
    #[must_use = "streams do nothing unless they are polled"]
    pub struct Limited<S: Stream, K> {
        #[pin]
        stream: S,
        key: K,
        limiter: StreamLimiter,
        observer: Option<Observer<S::Item>>,
        // How long a message may wait. Zero decides at once.
        patience: Duration,
        waiting: Option<(S::Item, DelayedMessage)>,
        // Messages taken since the stream was last pending or the task last yielded.
        run: u32,
    }
}

impl<S: Stream, K> Limited<S, K> {
    /// Calls this function for every refused message before it is dropped.
    pub fn observed(
        mut self,
        observer: impl FnMut(&S::Item, &MessageRefusal) + Send + 'static,
    ) -> Limited<S, K> {
        self.observer = Some(Box::new(observer));
        self
    }

    /// Lets a message that does not fit wait for this long, at most a minute, before it is dropped. Messages behind it
    /// wait too. A message that would have to wait longer is dropped at once.
    ///
    /// Waiting needs a tokio runtime with timers. Streams that share a limiter pass messages in order of arrival,
    /// but a user whose own window is full does not delay other users.
    pub fn waiting(mut self, patience: Duration) -> Limited<S, K> {
        self.patience = patience.min(MAX_WAIT);
        self
    }

    /// The limiter, for its statistics.
    pub fn limiter(&self) -> &StreamLimiter {
        &self.limiter
    }
}

impl<S: Stream, K> Stream for Limited<S, K>
where
    K: FnMut(&S::Item) -> User<'_>,
{
    type Item = S::Item;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<S::Item>> {
        let mut this = self.project();
        loop {
            let (message, fate) = if let Some((message, mut waiting)) = this.waiting.take() {
                let Poll::Ready(fate) = waiting.poll(context) else {
                    *this.waiting = Some((message, waiting));
                    *this.run = 0;
                    return Poll::Pending;
                };
                (message, fate)
            } else {
                if *this.run >= LONGEST_RUN {
                    *this.run = 0;
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                let Poll::Ready(next) = this.stream.as_mut().poll_next(context) else {
                    *this.run = 0;
                    return Poll::Pending;
                };
                let Some(message) = next else { return Poll::Ready(None) };
                *this.run += 1;
                let user = (this.key)(&message);
                if *this.patience > Duration::ZERO {
                    let waiting = this.limiter.wait(&user, *this.patience);
                    drop(user);
                    *this.waiting = Some((message, waiting));
                    continue;
                }
                let fate = this.limiter.admit(user);
                (message, fate)
            };
            match fate {
                MessageDecision::Passed => return Poll::Ready(Some(message)),
                MessageDecision::Refused(refusal) => {
                    if let Some(observer) = this.observer {
                        observer(&message, &refusal);
                    }
                }
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, self.stream.size_hint().1)
    }
}

impl<S: Stream, K> fmt::Debug for Limited<S, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limited").field("limiter", &self.limiter).finish_non_exhaustive()
    }
}
