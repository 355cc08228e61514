//! EventStream: what becomes of a task, event while it happens (`text/event-stream`).
//!
//! ```text
//!   event: active    data: {"active_id":"…","expires_at":"…"}     at once
//!   event: renewed   data: {"expires_at":"…"}                     whenever its end was moved
//!   :                                                             every 15 s, so that both sides know of each other
//!   event: ended     data: {"reason":"released"}                  once, and the stream is over
//! ```
//!
//! A stream that ends without `ended` says nothing about the task: the server was event to stop, or the connection broke.
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
use tidegate::{LeaseId, Tick};
use tidegate_net::Shutdown;
use tokio::sync::OwnedSemaphorePermit;

use super::wire::instant;

/// The most streams that may be open at once.
pub const MAX_EVENT_STREAMS: usize = 10_000;

/// How long nothing may be said.
pub const HEARTBEAT: Duration = Duration::from_secs(15);

/// What is event of one task, one piece after the other.
pub struct EventStream {
    next: Option<NextEvent>,
}

/// The next piece, and who tells the one after it.
type NextEvent = Pin<Box<dyn Future<Output = Option<(Bytes, Option<EventSource>)>> + Send>>;

impl EventStream {
    pub(super) fn new(
        id: LeaseId,
        watching: Watching,
        tick: Tick,
        shutdown: Shutdown,
        slot: OwnedSemaphorePermit,
    ) -> EventStream {
        let source = EventSource { id, watching, tick, shutdown, slot, has_begun: false };
        EventStream { next: Some(Box::pin(source.next_event())) }
    }

    /// The next piece; `None` if there will be no more.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let Some(next) = &mut self.next else { return Poll::Ready(None) };
        let event = ready!(next.as_mut().poll(cx));
        self.next = None;
        Poll::Ready(event.map(|(piece, source)| {
            if let Some(source) = source {
                self.next = Some(Box::pin(source.next_event()));
            }
            piece
        }))
    }
}

impl fmt::Debug for EventStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventStream").finish_non_exhaustive()
    }
}

/// Caller tells the next piece.
struct EventSource {
    id: LeaseId,
    watching: Watching,
    tick: Tick,
    shutdown: Shutdown,
    /// Its place among all streams.
    slot: OwnedSemaphorePermit,
    has_begun: bool,
}

impl EventSource {
    async fn next_event(mut self) -> Option<(Bytes, Option<EventSource>)> {
        let standing = if self.has_begun {
            let (shutdown, watching) = (self.shutdown.clone(), &mut self.watching);
            tokio::select! {
                // If everything happens at once, the task's own end is what matters.
                biased;
                standing = watching.changed() => standing,
                () = shutdown.triggered() => return None,
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
                drop(self.slot);
                Some((event("ended", &json!({"reason": ended.word()})), None))
            }
        }
    }
}

fn event(name: &str, data: &Value) -> Bytes {
    format!("event: {name}\ndata: {data}\n\n").into()
}
