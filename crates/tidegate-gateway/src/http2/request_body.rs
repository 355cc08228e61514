//! What is sent to an endpoint: the body of a request, and how long it is waited for.
//!
//! ```text
//!   going ──▶ waiting for the client ──▶ going ──▶ … ──▶ done
//!     └─ the endpoint does not take it: 504   └─ 408           └─ no response in time: 504
//! ```

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Instant, timeout_at};

use crate::deadline::later;

/// What is sent to an endpoint.
#[derive(Debug, Default)]
pub(crate) struct Upload {
    /// `None` if there is nothing.
    incoming: Option<Incoming>,
    /// How much more it may be.
    room: u64,
    progress: Option<Arc<Progress>>,
}

impl Upload {
    pub(super) fn new(incoming: Incoming, most: u64, now: Instant) -> Upload {
        if incoming.is_end_stream() {
            return Upload::default();
        }
        let mark = Mark { moved: now, state: State::Going, received: 0 };
        let progress = Progress { mark: Mutex::new(mark), endless: Mutex::default() };
        Upload { incoming: Some(incoming), room: most, progress: Some(Arc::new(progress)) }
    }

    /// Whether there is nothing.
    pub(super) const fn is_empty(&self) -> bool {
        self.incoming.is_none()
    }

    /// How long to wait for a response to it.
    pub(super) fn patience(&self, response: Duration, body: Duration) -> Patience {
        Patience { response, body, progress: self.progress.clone() }
    }

    /// Where it can be seen how far it is, if there is anything.
    pub(super) fn progress(&self) -> Option<Arc<Progress>> {
        self.progress.clone()
    }

    fn count(&self, length: usize) {
        if let Some(progress) = &self.progress {
            progress.mark().received += length as u64;
        }
    }

    fn mark(&self, state: State, has_moved: bool) {
        if let Some(progress) = &self.progress {
            let mut mark = progress.mark();
            mark.state = state;
            if has_moved {
                mark.moved = Instant::now();
            }
        }
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let upload = self.get_mut();
        let Some(incoming) = &mut upload.incoming else { return Poll::Ready(None) };
        let frame = match Pin::new(incoming).poll_frame(cx) {
            Poll::Ready(frame) => frame.map(|frame| frame.map_err(io::Error::other)),
            Poll::Pending => {
                upload.mark(State::Waiting, false);
                return Poll::Pending;
            }
        };
        let length = match &frame {
            Some(Ok(frame)) => frame.data_ref().map_or(0, Bytes::len),
            Some(Err(_)) | None => 0,
        };
        upload.count(length);
        let Some(room) = upload.room.checked_sub(length as u64) else {
            upload.mark(State::TooLarge, true);
            return Poll::Ready(Some(Err(io::Error::other("the body is too large"))));
        };
        upload.room = room;
        upload.mark(if upload.is_end_stream() || frame.is_none() { State::Done } else { State::Going }, true);
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

/// How far a body is.
#[derive(Debug)]
pub(super) struct Progress {
    mark: Mutex<Mark>,
    /// What is left of a body of which all bytes have come that were announced, but not the end.
    endless: Mutex<Option<Incoming>>,
}

/// Whoever sends a body drops it with the last byte that was announced, and does not wait for the end.
impl Drop for Upload {
    fn drop(&mut self) {
        let is_whole = |incoming: &Incoming| incoming.size_hint().exact() == Some(0);
        let incoming =
            self.incoming.take().filter(|incoming| !incoming.is_end_stream() && is_whole(incoming));
        if let (Some(incoming), Some(progress)) = (incoming, &self.progress) {
            *progress.endless() = Some(incoming);
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Mark {
    /// When something moved last.
    moved: Instant,
    state: State,
    /// How much came so far.
    received: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Going,
    /// The client is to say more.
    Waiting,
    Done,
    TooLarge,
}

impl Progress {
    /// How much came so far.
    pub(super) fn received(&self) -> u64 {
        self.mark().received
    }

    fn mark(&self) -> MutexGuard<'_, Mark> {
        self.mark.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn endless(&self) -> MutexGuard<'_, Option<Incoming>> {
        self.endless.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nothing but the end is awaited.
    pub(super) fn lacks_its_end(&self) -> bool {
        self.endless().is_some()
    }

    /// Whether the end has come, or never will.
    pub(super) fn poll_end(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut endless = self.endless();
        while let Some(incoming) = &mut *endless {
            match Pin::new(incoming).poll_frame(cx) {
                Poll::Pending => return Poll::Pending,
                // Trailers, which nobody waits for any more.
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(Some(Err(_)) | None) => *endless = None,
            }
        }
        Poll::Ready(())
    }
}

/// How long it is waited for a response.
#[derive(Debug)]
pub(super) struct Patience {
    response: Duration,
    body: Duration,
    /// `None` if there is no body.
    progress: Option<Arc<Progress>>,
}

/// Who took too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Late {
    Client,
    Endpoint,
}

impl Patience {
    /// Whether the body was more than it may be.
    pub(super) fn is_too_large(&self) -> bool {
        self.mark().is_some_and(|mark| mark.state == State::TooLarge)
    }

    /// Waits for as long as the body goes on, and then for as long as a response may take.
    pub(super) async fn wait<T>(&self, asked: impl Future<Output = T>) -> Result<T, Late> {
        let began = Instant::now();
        let mut asked = pin!(asked);
        loop {
            let (due, _) = self.due(began);
            // A body may be done at any time, and what is due then is sooner.
            let look = due.min(later(Instant::now(), self.response.min(self.body)));
            if let Ok(answer) = timeout_at(look, asked.as_mut()).await {
                return Ok(answer);
            }
            let (due, late) = self.due(began);
            if due <= Instant::now() {
                return Err(late);
            }
        }
    }

    /// Until when, and who is to blame then.
    fn due(&self, began: Instant) -> (Instant, Late) {
        match self.mark() {
            None => (later(began, self.response), Late::Endpoint),
            Some(Mark { moved, state, .. }) => match state {
                // Whatever was done before, this is another try.
                State::Done | State::TooLarge => (later(moved.max(began), self.response), Late::Endpoint),
                State::Going => (later(moved.max(began), self.body), Late::Endpoint),
                State::Waiting => (later(moved.max(began), self.body), Late::Client),
            },
        }
    }

    fn mark(&self) -> Option<Mark> {
        self.progress.as_ref().map(|progress| *progress.mark())
    }
}
