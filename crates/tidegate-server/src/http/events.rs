//! Events: what becomes of a task, told while it happens (`text/event-stream`).
//!
//! ```text
//!   event: active    data: {"active_id":"…","expires_at":"…"}     at once
//!   event: renewed   data: {"expires_at":"…"}                     whenever its end was moved
//!   :                                                             every 15 s, so that both sides know of each other
//!   event: ended     data: {"reason":"released"}                  once, and the stream is over
//! ```
//!
//! A stream that ends without `ended` says nothing about the task: the server was told to stop, or the connection broke.
//!
//! Decided: whoever watches asks the store nothing; one question is put for all of them ([`tidegate::activity`]).

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tidegate::activity::{Standing, Watching};
use tidegate::model::{LeaseId, Tick};
use tidegate_net::Ending;
use tokio::sync::OwnedSemaphorePermit;

use super::wire::instant;

/// The most streams that may be open at once.
pub const MOST_EVENT_STREAMS: usize = 10_000;

/// How long nothing may be said.
pub const HEARTBEAT: Duration = Duration::from_secs(15);

/// What is told of one task, one piece after the other.
pub struct Events {
    next: Option<Next>,
}

/// The next piece, and who tells the one after it.
type Next = Pin<Box<dyn Future<Output = Option<(Bytes, Option<Teller>)>> + Send>>;

impl Events {
    pub(super) fn new(
        id: LeaseId,
        watching: Watching,
        tick: Tick,
        ending: Ending,
        seat: OwnedSemaphorePermit,
    ) -> Events {
        let teller = Teller { id, watching, tick, ending, seat, has_begun: false };
        Events { next: Some(Box::pin(teller.tell())) }
    }

    /// The next piece; `None` if there will be no more.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let Some(next) = &mut self.next else { return Poll::Ready(None) };
        let told = ready!(next.as_mut().poll(cx));
        self.next = None;
        Poll::Ready(told.map(|(piece, teller)| {
            if let Some(teller) = teller {
                self.next = Some(Box::pin(teller.tell()));
            }
            piece
        }))
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").finish_non_exhaustive()
    }
}

/// Who tells the next piece.
struct Teller {
    id: LeaseId,
    watching: Watching,
    tick: Tick,
    ending: Ending,
    /// Its place among all streams.
    seat: OwnedSemaphorePermit,
    has_begun: bool,
}

impl Teller {
    async fn tell(mut self) -> Option<(Bytes, Option<Teller>)> {
        let standing = if self.has_begun {
            let (ending, watching) = (self.ending.clone(), &mut self.watching);
            tokio::select! {
                // If everything happens at once, the task's own end is what matters.
                biased;
                standing = watching.changed() => standing,
                () = ending.told() => return None,
                () = tokio::time::sleep(HEARTBEAT) => return Some((Bytes::from_static(b":\n\n"), Some(self))),
            }
        } else {
            self.watching.standing()
        };
        let has_begun = std::mem::replace(&mut self.has_begun, true);
        match standing {
            Standing::Until(at) => {
                let expires_at = instant::of(at, self.tick);
                let piece = if has_begun {
                    event("renewed", &json!({"expires_at": expires_at}))
                } else {
                    event("active", &json!({"active_id": self.id.to_string(), "expires_at": expires_at}))
                };
                Some((piece, Some(self)))
            }
            Standing::Ended(ended) => {
                drop(self.seat);
                Some((event("ended", &json!({"reason": ended.word()})), None))
            }
        }
    }
}

fn event(name: &str, data: &Value) -> Bytes {
    format!("event: {name}\ndata: {data}\n\n").into()
}
