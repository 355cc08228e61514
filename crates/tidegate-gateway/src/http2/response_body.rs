//! Bodies: what is sent to clients.
//!
//! hyper asks a body for more only while its client takes what there is. So a response that is not taken notices nothing by itself; the
//! worker looks after those that are under way ([`Responses`]), and lets go of the endpoint for them.
//!
//! Decided: a response is not over before its request is, if all of that is here but the word that it is over. Whoever says that word
//! by itself, behind the last byte, would be reset between the two, and many clients take that for an error. They have a moment for it.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hashbrown::HashMap;
use http_body_util::Full;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep};

use super::Open;
use super::pending_call::Pending;
use super::request_body::Progress;
use super::upstream_call::Line;
use crate::deadline::later;
use crate::endpoints::Held;
use crate::worker::Over;

/// How long a client has to say that its request is over, when everything else is.
const LAST_WORD: Duration = Duration::from_secs(1);
/// How long after a response is overdue it is let go of, if nobody else has done so.
const GRACE: Duration = Duration::from_secs(1);

/// What is sent to a client.
pub(super) enum Said {
    /// All of it at once.
    Whole(Full<Bytes>),
    /// As an endpoint says it.
    Relayed(Shared),
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
            Said::Relayed(relayed) => locked(relayed).poll_next(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Said::Whole(whole) => whole.is_end_stream(),
            Said::Relayed(relayed) => locked(relayed).is_over,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Said::Whole(whole) => whole.size_hint(),
            Said::Relayed(relayed) => {
                locked(relayed).incoming.as_ref().map_or_else(SizeHint::new, Body::size_hint)
            }
        }
    }
}

/// What is done when a response has ended.
pub(super) struct Ending {
    pub(super) line: Line,
    pub(super) held: Held,
    pub(super) pending: Pending,
    pub(super) open: Open,
}

/// A response on its way, for whoever sends it and for whoever looks after it.
type Shared = Arc<Mutex<Relayed>>;

fn locked(relayed: &Mutex<Relayed>) -> MutexGuard<'_, Relayed> {
    relayed.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The responses of a worker that are under way.
#[derive(Default)]
pub(crate) struct Responses {
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    next: u64,
    under_way: HashMap<u64, Weak<Mutex<Relayed>>>,
}

impl Responses {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, relayed: &Shared) -> u64 {
        let mut known = self.known();
        known.next += 1;
        let number = known.next;
        known.under_way.insert(number, Arc::downgrade(relayed));
        number
    }

    fn remove(&self, number: u64) {
        self.known().under_way.remove(&number);
    }

    /// Lets go of those that their clients do not take.
    pub(crate) fn sweep(&self, now: Instant) {
        // Whoever is let go of removes itself.
        let all: Vec<Shared> = self.known().under_way.values().filter_map(Weak::upgrade).collect();
        for relayed in all {
            let mut relayed = locked(&relayed);
            if relayed.alarm.deadline() + GRACE < now {
                relayed.end(Some(Over::SlowReader));
            }
        }
    }
}

/// A response on its way.
pub(super) struct Relayed {
    /// `None` when it is over.
    incoming: Option<Incoming>,
    alarm: Pin<Box<Sleep>>,
    patience: Duration,
    status: u16,
    sent: u64,
    is_over: bool,
    /// Whether the client has to be told that there is no more.
    is_broken: bool,
    /// As what it is known to its worker.
    number: Option<u64>,
    ending: Option<Ending>,
    /// How far the request is, if its end is awaited.
    trail: Option<Arc<Progress>>,
}

impl Relayed {
    pub(super) fn shared(incoming: Incoming, status: u16, patience: Duration, ending: Ending) -> Shared {
        let is_over = incoming.is_end_stream();
        let worker = Arc::clone(ending.pending.worker());
        let shared = Arc::new(Mutex::new(Relayed {
            incoming: Some(incoming),
            alarm: Box::pin(tokio::time::sleep_until(later(worker.now(), patience))),
            patience,
            status,
            sent: 0,
            is_over: false,
            is_broken: false,
            number: None,
            ending: Some(ending),
            trail: None,
        }));
        if is_over {
            locked(&shared).end(None);
        } else {
            let number = worker.responses.add(&shared);
            locked(&shared).number = Some(number);
        }
        shared
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if std::mem::take(&mut self.is_broken) {
            return Poll::Ready(Some(Err(io::ErrorKind::TimedOut.into())));
        }
        if let Some(trail) = self.trail.as_ref().filter(|_| !self.is_over) {
            self.is_over = trail.poll_end(cx).is_ready() || self.alarm.as_mut().poll(cx).is_ready();
            return if self.is_over { Poll::Ready(None) } else { Poll::Pending };
        }
        let Some(incoming) = self.incoming.as_mut().filter(|_| !self.is_over) else {
            return Poll::Ready(None);
        };
        match Pin::new(&mut *incoming).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                self.sent += frame.data_ref().map_or(0, Bytes::len) as u64;
                let is_last = incoming.is_end_stream();
                self.alarm.as_mut().reset(later(Instant::now(), self.patience));
                if is_last {
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
        self.is_over = true;
        let Some(Ending { line, held, pending, open }) = self.ending.take() else { return };
        let worker = Arc::clone(pending.worker());
        if let Some(number) = self.number.take() {
            worker.responses.remove(number);
        }
        let now = worker.now();
        let upload = pending.upload.clone();
        if let Some(upload) = upload.filter(|upload| broken.is_none() && upload.lacks_its_end()) {
            self.is_over = false;
            self.alarm.as_mut().reset(now + LAST_WORD);
            self.trail = Some(upload);
        }
        match broken {
            None => line.keep(),
            Some(over) => {
                self.is_broken = over == Over::SlowReader;
                self.incoming = None;
            }
        }
        pending.over(self.status, self.sent, broken);
        drop((held, open));
    }
}

/// A response that nobody wants any more.
impl Drop for Relayed {
    fn drop(&mut self) {
        let over = self.ending.as_ref().map_or(Over::Left, |ending| ending.pending.worker().house.parting());
        self.end(Some(over));
    }
}
