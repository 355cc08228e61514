//! Bodies: what goes to endpoints, and what comes back.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
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

/// What is sent to an endpoint.
#[derive(Debug, Default)]
pub(crate) struct Upload {
    /// `None` if there is nothing.
    incoming: Option<Incoming>,
    /// How much more it may be.
    room: u64,
}

impl Upload {
    pub(super) fn new(incoming: Incoming, most: u64) -> Upload {
        let incoming = Some(incoming).filter(|incoming| !incoming.is_end_stream());
        Upload { incoming, room: most }
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
}

/// A response on its way.
pub(super) struct Relayed {
    incoming: Incoming,
    alarm: Pin<Box<Sleep>>,
    patience: Duration,
    told: Told,
    is_over: bool,
    ending: Option<Ending>,
}

impl Relayed {
    pub(super) fn new(incoming: Incoming, status: u16, patience: Duration, ending: Ending) -> Relayed {
        let alarm = Box::pin(tokio::time::sleep(patience));
        let told = Told { status, ..Told::default() };
        let mut relayed = Relayed { is_over: false, incoming, alarm, patience, told, ending: Some(ending) };
        if relayed.incoming.is_end_stream() {
            relayed.end(None);
        }
        relayed
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if self.is_over {
            return Poll::Ready(None);
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
                Poll::Ready(None)
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

    /// It is over, well or not.
    fn end(&mut self, broken: Option<Over>) {
        self.is_over = true;
        let Some(Ending { line, held, story, kept, worker, open }) = self.ending.take() else { return };
        let now = worker.now();
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
