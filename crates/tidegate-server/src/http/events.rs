//! Server-sent events of a task (`text/event-stream`).
//!
//! ```text
//!   event: active    data: {"active_id":"…","expires_at":"…"}     at once
//!   event: renewed   data: {"expires_at":"…"}                     when the expiry was moved
//!   :                                                             heartbeat every 15 s
//!   event: ended     data: {"reason":"released"}                  last event
//! ```
//!
//! A stream that closes without `ended` says nothing about the task: the server shut down, or the connection broke.
//!
//! Streams do not query the store; one query serves all of them ([`tidegate::activity`]).

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tidegate::activity::{TaskState, TaskWatch};
use tidegate::model::{LeaseId, Tick};
use tidegate_net::Shutdown;
use tokio::sync::OwnedSemaphorePermit;

use super::wire::instant;

/// The most concurrent event streams.
pub const MAX_EVENT_STREAMS: usize = 10_000;

/// Interval of heartbeats.
pub const HEARTBEAT: Duration = Duration::from_secs(15);

/// The events of one task.
pub struct EventStream {
    next: Option<NextEvent>,
}

/// The next event, and the source of the one after it.
type NextEvent = Pin<Box<dyn Future<Output = Option<(Bytes, Option<EventSource>)>> + Send>>;

impl EventStream {
    pub(super) fn new(
        id: LeaseId,
        watching: TaskWatch,
        tick: Tick,
        shutdown: Shutdown,
        slot: OwnedSemaphorePermit,
    ) -> EventStream {
        let source = EventSource { id, watching, tick, shutdown, slot, has_begun: false };
        EventStream { next: Some(Box::pin(source.next_event())) }
    }

    /// The next event; `None` at the end.
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

/// Produces the next event.
struct EventSource {
    id: LeaseId,
    watching: TaskWatch,
    tick: Tick,
    shutdown: Shutdown,
    /// The permit of this stream.
    slot: OwnedSemaphorePermit,
    has_begun: bool,
}

impl EventSource {
    async fn next_event(mut self) -> Option<(Bytes, Option<EventSource>)> {
        let state = if self.has_begun {
            let (shutdown, watching) = (self.shutdown.clone(), &mut self.watching);
            tokio::select! {
                // The end of the task goes before shutdown and heartbeat.
                biased;
                state = watching.changed() => state,
                () = shutdown.triggered() => return None,
                () = tokio::time::sleep(HEARTBEAT) => return Some((Bytes::from_static(b":\n\n"), Some(self))),
            }
        } else {
            self.watching.state()
        };
        let has_begun = std::mem::replace(&mut self.has_begun, true);
        match state {
            TaskState::Until(at) => {
                let expires_at = instant::of(at, self.tick);
                let piece = if has_begun {
                    event("renewed", &json!({"expires_at": expires_at}))
                } else {
                    event("active", &json!({"active_id": self.id.to_string(), "expires_at": expires_at}))
                };
                Some((piece, Some(self)))
            }
            TaskState::Ended(ended) => {
                drop(self.slot);
                Some((event("ended", &json!({"reason": ended.word()})), None))
            }
        }
    }
}

fn event(name: &str, data: &Value) -> Bytes {
    format!("event: {name}\ndata: {data}\n\n").into()
}
