//! Bodies: what goes to endpoints, and what comes back.
//!
//! ```text
//!   client ──▶ Upload ──▶ endpoint
//!                │ Trail: how much it was, and what is left of it
//!   client ◀── Relayed ◀── endpoint
//! ```
//!
//! Decided: a response is not over before its request is, if all of that is here but the word that it is over. Whoever says that word
//! by itself, behind the last byte, would be reset between the two, and many clients take that for an error. They have a moment for it.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep};

use super::asking::Line;
use super::fields::Kept;
use super::{Open, Pinned};
use crate::endpoints::Held;
use crate::story::{Story, Told};
use crate::worker::{Over, Worker};

/// How long a client has to say that its request is over, when everything else is.
const LAST_WORD: Duration = Duration::from_secs(1);

/// What is known of a request's body where its response is.
#[derive(Debug, Default)]
pub(super) struct Trail {
    /// How many bytes have come.
    received: AtomicU64,
    /// All bytes that were announced have come, but not the end.
    endless: Mutex<Option<Incoming>>,
}

impl Trail {
    fn endless(&self) -> std::sync::MutexGuard<'_, Option<Incoming>> {
        self.endless.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nothing but the end is awaited.
    fn lacks_its_end(&self) -> bool {
        self.endless().is_some()
    }

    /// Whether the end has come, or never will.
    fn poll_end(&self, cx: &mut Context<'_>) -> Poll<()> {
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

/// What is sent to an endpoint.
#[derive(Debug, Default)]
pub(crate) struct Upload {
    /// `None` if there is nothing.
    incoming: Option<Incoming>,
    /// How much more it may be.
    room: u64,
    trail: Arc<Trail>,
}

impl Upload {
    pub(super) fn new(incoming: Incoming, most: u64) -> Upload {
        let incoming = Some(incoming).filter(|incoming| !incoming.is_end_stream());
        Upload { incoming, room: most, trail: Arc::default() }
    }

    /// What it leaves behind.
    pub(super) fn trail(&self) -> Arc<Trail> {
        Arc::clone(&self.trail)
    }

    /// Whether there is nothing.
    pub(super) const fn is_empty(&self) -> bool {
        self.incoming.is_none()
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
        Pin::new(incoming).poll_frame(cx).map(|frame| {
            let frame = frame?.map_err(io::Error::other);
            let length = frame.as_ref().ok().and_then(Frame::data_ref).map_or(0, Bytes::len);
            upload.trail.received.fetch_add(length as u64, Ordering::Relaxed);
            match upload.room.checked_sub(length as u64) {
                Some(room) => upload.room = room,
                None => return Some(Err(io::Error::other("the body is too large"))),
            }
            Some(frame)
        })
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

/// Whoever sends it drops it with the last byte that was announced, and does not wait for the end.
impl Drop for Upload {
    fn drop(&mut self) {
        let is_whole = |incoming: &Incoming| incoming.size_hint().exact() == Some(0);
        let incoming =
            self.incoming.take().filter(|incoming| !incoming.is_end_stream() && is_whole(incoming));
        if incoming.is_some() {
            *self.trail.endless() = incoming;
        }
    }
}

/// What is sent to a client.
pub(super) enum Said {
    /// All of it at once.
    Whole(Full<Bytes>),
    /// As an endpoint says it.
    Relayed(Pinned<Relayed>),
}

impl Body for Said {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match self.get_mut() {
            Said::Whole(whole) => Pin::new(whole)
                .poll_frame(cx)
                .map(|frame| frame.map(|frame| frame.map_err(|never| match never {}))),
            Said::Relayed(relayed) => relayed.as_mut().get_mut().poll_next(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Said::Whole(whole) => whole.is_end_stream(),
            Said::Relayed(relayed) => relayed.is_over,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Said::Whole(whole) => whole.size_hint(),
            Said::Relayed(relayed) => relayed.incoming.size_hint(),
        }
    }
}

/// What is done when a response has ended.
pub(super) struct Ending {
    pub(super) line: Line,
    pub(super) held: Held,
    pub(super) story: Story,
    pub(super) kept: Kept,
    pub(super) worker: Arc<Worker>,
    pub(super) open: Open,
    /// Of the request.
    pub(super) trail: Arc<Trail>,
}

/// A response on its way.
pub(super) struct Relayed {
    incoming: Incoming,
    alarm: Pin<Box<Sleep>>,
    patience: Duration,
    told: Told,
    is_over: bool,
    ending: Option<Ending>,
    /// Of the request, if its end is awaited.
    trail: Option<Arc<Trail>>,
}

impl Relayed {
    pub(super) fn new(incoming: Incoming, status: u16, patience: Duration, ending: Ending) -> Relayed {
        let alarm = Box::pin(tokio::time::sleep(patience));
        let told = Told { status, ..Told::default() };
        let ending = Some(ending);
        let mut relayed = Relayed { is_over: false, incoming, alarm, patience, told, ending, trail: None };
        if relayed.incoming.is_end_stream() {
            relayed.end(None);
        }
        relayed
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        if let Some(trail) = &self.trail {
            let is_over = trail.poll_end(cx).is_ready() || self.alarm.as_mut().poll(cx).is_ready();
            self.is_over = is_over;
            return if is_over { Poll::Ready(None) } else { Poll::Pending };
        }
        match Pin::new(&mut self.incoming).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                self.told.sent += frame.data_ref().map_or(0, Bytes::len) as u64;
                self.alarm.as_mut().reset(Instant::now() + self.patience);
                if self.incoming.is_end_stream() {
                    self.end(None);
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(None) => {
                self.end(None);
                self.poll_next(cx)
            }
            Poll::Ready(Some(Err(error))) => {
                self.end(Some(Over::Upstream));
                Poll::Ready(Some(Err(io::Error::other(error))))
            }
            Poll::Pending => match self.alarm.as_mut().poll(cx) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(()) => {
                    self.end(Some(Over::Upstream));
                    Poll::Ready(Some(Err(io::ErrorKind::TimedOut.into())))
                }
            },
        }
    }

    /// It is over, well or not; but for the end of its request, which may still come.
    fn end(&mut self, broken: Option<Over>) {
        let Some(Ending { line, held, story, kept, worker, open, trail }) = self.ending.take() else {
            return;
        };
        let now = worker.now();
        self.told.received = trail.received.load(Ordering::Relaxed);
        if broken.is_none() && trail.lacks_its_end() {
            self.alarm.as_mut().reset(now + LAST_WORD);
            self.trail = Some(trail);
        } else {
            self.is_over = true;
        }
        match broken {
            None => {
                line.keep();
                story.finished(&worker, || kept.asked(), self.told, now);
            }
            Some(over) => story.broke(&worker, || kept.asked(), self.told, over, now),
        }
        drop((held, open));
    }
}

/// A response that nobody wants any more.
impl Drop for Relayed {
    fn drop(&mut self) {
        self.end(Some(Over::Left));
    }
}
