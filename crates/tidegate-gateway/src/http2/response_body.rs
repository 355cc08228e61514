//! Response bodies sent to clients.
//!
//! hyper polls a body only while the client reads. A response that is not read cannot time out by itself. The worker
//! therefore sweeps all active responses ([`ActiveResponses`]) and releases the endpoints of stalled ones.
//!
//! A response does not end before its request if all of the request has arrived except the end of the stream. A client that
//! sends the end in a separate frame would otherwise get `RST_STREAM` between the two, and many clients report that as an
//! error. The client has [`REQUEST_END_TIMEOUT`] to send it.

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

use super::OpenCallGuard;
use super::pending_call::PendingCall;
use super::request_body::UploadProgress;
use super::upstream_call::UpstreamHandle;
use crate::deadline::deadline_after;
use crate::endpoints::InFlightGuard;
use crate::worker::ClientConnectionEnd;

/// How long a client may take to end its request after everything else is complete.
const REQUEST_END_TIMEOUT: Duration = Duration::from_secs(1);
/// How long after its deadline a stalled response is released by the sweep.
const SWEEP_GRACE: Duration = Duration::from_secs(1);

/// A response body.
pub(super) enum Http2ResponseBody {
    /// A complete local body.
    Local(Full<Bytes>),
    /// A body relayed from an endpoint.
    Relayed(SharedResponse),
}

impl Body for Http2ResponseBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match self.get_mut() {
            Http2ResponseBody::Local(whole) => Pin::new(whole)
                .poll_frame(cx)
                .map(|frame| frame.map(|frame| frame.map_err(|never| match never {}))),
            Http2ResponseBody::Relayed(relayed) => locked(relayed).poll_next(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Http2ResponseBody::Local(whole) => whole.is_end_stream(),
            Http2ResponseBody::Relayed(relayed) => locked(relayed).is_over,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Http2ResponseBody::Local(whole) => whole.size_hint(),
            Http2ResponseBody::Relayed(relayed) => {
                locked(relayed).incoming.as_ref().map_or_else(SizeHint::new, Body::size_hint)
            }
        }
    }
}

/// What to release when a response ends.
pub(super) struct ResponseCompletion {
    pub(super) upstream: UpstreamHandle,
    pub(super) in_flight: InFlightGuard,
    pub(super) pending: PendingCall,
    pub(super) open: OpenCallGuard,
}

/// A response shared by hyper and the sweep.
type SharedResponse = Arc<Mutex<RelayedResponse>>;

fn locked(relayed: &Mutex<RelayedResponse>) -> MutexGuard<'_, RelayedResponse> {
    relayed.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The active responses of a worker.
#[derive(Default)]
pub(crate) struct ActiveResponses {
    known: Mutex<ResponseIndex>,
}

#[derive(Default)]
struct ResponseIndex {
    next: u64,
    active: HashMap<u64, Weak<Mutex<RelayedResponse>>>,
}

impl ActiveResponses {
    fn known(&self) -> MutexGuard<'_, ResponseIndex> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, relayed: &SharedResponse) -> u64 {
        let mut known = self.known();
        known.next += 1;
        let number = known.next;
        known.active.insert(number, Arc::downgrade(relayed));
        number
    }

    fn remove(&self, number: u64) {
        self.known().active.remove(&number);
    }

    /// Ends responses that their clients do not read.
    pub(crate) fn sweep(&self, now: Instant) {
        // Collect first: a response removes itself from the index when it ends.
        let all: Vec<SharedResponse> = self.known().active.values().filter_map(Weak::upgrade).collect();
        for relayed in all {
            let mut relayed = locked(&relayed);
            if relayed.timer.deadline() + SWEEP_GRACE < now {
                relayed.finish(Some(ClientConnectionEnd::SlowReader));
            }
        }
    }
}

/// An active response.
pub(super) struct RelayedResponse {
    /// `None` when it has ended.
    incoming: Option<Incoming>,
    timer: Pin<Box<Sleep>>,
    max_wait: Duration,
    status: u16,
    sent: u64,
    is_over: bool,
    /// Whether the next poll must return an error.
    is_broken: bool,
    /// The number in the index of active responses.
    number: Option<u64>,
    completion: Option<ResponseCompletion>,
    /// The progress of the request, if only its end is awaited.
    request_end: Option<Arc<UploadProgress>>,
}

impl RelayedResponse {
    pub(super) fn shared(
        incoming: Incoming,
        status: u16,
        max_wait: Duration,
        completion: ResponseCompletion,
    ) -> SharedResponse {
        let is_over = incoming.is_end_stream();
        let worker = Arc::clone(completion.pending.worker());
        let shared = Arc::new(Mutex::new(RelayedResponse {
            incoming: Some(incoming),
            timer: Box::pin(tokio::time::sleep_until(deadline_after(worker.now(), max_wait))),
            max_wait,
            status,
            sent: 0,
            is_over: false,
            is_broken: false,
            number: None,
            completion: Some(completion),
            request_end: None,
        }));
        if is_over {
            locked(&shared).finish(None);
        } else {
            let number = worker.active_responses.add(&shared);
            locked(&shared).number = Some(number);
        }
        shared
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if std::mem::take(&mut self.is_broken) {
            return Poll::Ready(Some(Err(io::ErrorKind::TimedOut.into())));
        }
        if let Some(request_end) = self.request_end.as_ref().filter(|_| !self.is_over) {
            self.is_over = request_end.poll_end(cx).is_ready() || self.timer.as_mut().poll(cx).is_ready();
            return if self.is_over { Poll::Ready(None) } else { Poll::Pending };
        }
        let Some(incoming) = self.incoming.as_mut().filter(|_| !self.is_over) else {
            return Poll::Ready(None);
        };
        match Pin::new(&mut *incoming).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                self.sent += frame.data_ref().map_or(0, Bytes::len) as u64;
                let is_last = incoming.is_end_stream();
                self.timer.as_mut().reset(deadline_after(Instant::now(), self.max_wait));
                if is_last {
                    self.finish(None);
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(None) => {
                self.finish(None);
                self.poll_next(cx)
            }
            Poll::Ready(Some(Err(error))) => {
                self.finish(Some(ClientConnectionEnd::Upstream));
                Poll::Ready(Some(Err(io::Error::other(error))))
            }
            Poll::Pending => match self.timer.as_mut().poll(cx) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(()) => {
                    self.finish(Some(ClientConnectionEnd::Upstream));
                    Poll::Ready(Some(Err(io::ErrorKind::TimedOut.into())))
                }
            },
        }
    }

    /// Ends the response. The end of the request may still be awaited.
    fn finish(&mut self, failure: Option<ClientConnectionEnd>) {
        self.is_over = true;
        let Some(ResponseCompletion { upstream, in_flight, pending, open }) = self.completion.take() else {
            return;
        };
        let worker = Arc::clone(pending.worker());
        if let Some(number) = self.number.take() {
            worker.active_responses.remove(number);
        }
        let now = worker.now();
        let upload = pending.upload.clone();
        if let Some(upload) = upload.filter(|upload| failure.is_none() && upload.is_missing_end()) {
            self.is_over = false;
            self.timer.as_mut().reset(now + REQUEST_END_TIMEOUT);
            self.request_end = Some(upload);
        }
        match failure {
            None => upstream.release(),
            Some(end) => {
                self.is_broken = end == ClientConnectionEnd::SlowReader;
                self.incoming = None;
            }
        }
        pending.finish(self.status, self.sent, failure);
        drop((in_flight, open));
    }
}

/// A response that was dropped before its end.
impl Drop for RelayedResponse {
    fn drop(&mut self) {
        let end = self.completion.as_ref().map_or(ClientConnectionEnd::ClientClosed, |completion| {
            completion.pending.worker().state.abandon_reason()
        });
        self.finish(Some(end));
    }
}
