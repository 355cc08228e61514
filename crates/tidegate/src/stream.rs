//! Streams of messages with document 001's rules: so many in every window, all together and of each user.
//!
//! A [`Gate`] has one limit with two sliding windows, `global` and `user`, decided as one: a refused message is charged
//! to nobody, so hammering never extends a ban. [`LimitExt::limited`] puts a gate into a stream; what passes comes out
//! in order and unchanged, the rest is dropped. Several streams may share a gate, and count together then.
//!
//! ```text
//!   messages ──▶ key ──▶ gate ──passed──▶ in order, unchanged
//!                          └───refused──▶ observer, then dropped
//! ```
//!
//! With [`Limited::waiting`] messages that do not fit are kept back until they do, and what comes after them as well,
//! so that the order stays: a slower stream instead of one with gaps.
//!
//! Where the document is silent: `0` refuses everything, for users as well; a message that both rules refuse counts as
//! refused by the global one; a message without a user is from `unknown_user`.
//!
//! Refused: errors. A gate decides in this process, about users whose names it has made fit, so there is nothing that
//! could go wrong, and nothing that could let messages through because it did. To share windows between processes, put
//! [`Rules::spec`] into a store that they share.

mod gate;
mod rules;

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use pin_project_lite::pin_project;
use tidegate_core::order::MAX_WAIT;

use gate::Waiting;

pub use gate::{Counts, Gate, Stats, mean_us};
pub use rules::{Fate, Rate, Refusal, RefusedBy, Rules, User};

/// How many messages one task may take in a row before others get their turn. A flood that is refused costs less than
/// a microsecond a message; this is about as long as a task should keep its thread.
const LONGEST_RUN: u32 = 128;

/// Puts gates into streams.
pub trait LimitExt: Stream + Sized {
    /// The messages that this gate lets pass. `key` says whose a message is.
    ///
    /// ```
    /// use futures_util::{StreamExt, stream};
    /// use tidegate::stream::{Gate, LimitExt, Rules};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tidegate::catalog::PutError> {
    /// let gate = Gate::new(Rules::default())?;
    /// let messages = stream::iter((0..25).map(|n| (if n < 12 { "ada" } else { "bob" }, n)));
    /// let passed: Vec<_> = messages.limited(&gate, |(user, _)| (*user).into()).collect().await;
    /// assert_eq!(passed.len(), 20, "ten of each");
    /// # Ok(())
    /// # }
    /// ```
    fn limited<K>(self, gate: &Gate, key: K) -> Limited<Self, K>
    where
        K: FnMut(&Self::Item) -> User<'_>,
    {
        Limited {
            stream: self,
            key,
            gate: gate.clone(),
            observer: None,
            patience: Duration::ZERO,
            waiting: None,
            run: 0,
        }
    }
}

impl<S: Stream> LimitExt for S {}

/// Is told of every message that is refused.
type Observer<T> = Box<dyn FnMut(&T, &Refusal) + Send>;

pin_project! {
    /// The messages of a stream that a gate lets pass. See [`LimitExt::limited`].
    #[must_use = "streams do nothing unless they are polled"]
    pub struct Limited<S: Stream, K> {
        #[pin]
        stream: S,
        key: K,
        gate: Gate,
        observer: Option<Observer<S::Item>>,
        // How long a message may wait; if not at all, it is decided at once.
        patience: Duration,
        waiting: Option<(S::Item, Waiting)>,
        // How many messages were taken since the stream last had none, or others last had their turn.
        run: u32,
    }
}

impl<S: Stream, K> Limited<S, K> {
    /// Tells this of every message that is refused, before it is dropped.
    pub fn observed(mut self, observer: impl FnMut(&S::Item, &Refusal) + Send + 'static) -> Limited<S, K> {
        self.observer = Some(Box::new(observer));
        self
    }

    /// Lets a message that does not fit wait for as long as this, at most a minute, before it is dropped; those behind
    /// it wait too. A message that would have to wait for longer is dropped at once.
    ///
    /// Waiting needs a tokio runtime with timers. Messages of several streams that share a gate are served first come
    /// first served, except that a user who has to wait does not keep others waiting.
    pub fn waiting(mut self, patience: Duration) -> Limited<S, K> {
        self.patience = patience.min(MAX_WAIT);
        self
    }

    /// The gate, for its statistics.
    pub fn gate(&self) -> &Gate {
        &self.gate
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
                    let waiting = this.gate.wait(&user, *this.patience);
                    drop(user);
                    *this.waiting = Some((message, waiting));
                    continue;
                }
                let fate = this.gate.admit(user);
                (message, fate)
            };
            match fate {
                Fate::Passed => return Poll::Ready(Some(message)),
                Fate::Refused(refusal) => {
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
        f.debug_struct("Limited").field("gate", &self.gate).finish_non_exhaustive()
    }
}
