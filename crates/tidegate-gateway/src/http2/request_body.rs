//! The request body sent to an endpoint, and the timeouts that depend on its progress.
//!
//! ```text
//!   in progress ──▶ waiting for the client ──▶ in progress ──▶ … ──▶ done
//!     └─ the endpoint does not read it: 504   └─ 408                   └─ no response in time: 504
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

use crate::deadline::deadline_after;

/// A body that counts bytes and enforces the size limit.
#[derive(Debug, Default)]
pub(crate) struct Http2RequestBody {
    /// `None` if the request has no body.
    incoming: Option<Incoming>,
    /// The number of bytes still allowed.
    remaining: u64,
    progress: Option<Arc<UploadProgress>>,
}

impl Http2RequestBody {
    pub(super) fn new(incoming: Incoming, max: u64, now: Instant) -> Http2RequestBody {
        if incoming.is_end_stream() {
            return Http2RequestBody::default();
        }
        let mark = ProgressMark { last_progress: now, state: UploadPhase::InProgress, received: 0 };
        let progress = UploadProgress { mark: Mutex::new(mark), unfinished: Mutex::default() };
        Http2RequestBody { incoming: Some(incoming), remaining: max, progress: Some(Arc::new(progress)) }
    }

    /// Whether the request has no body.
    pub(super) const fn is_empty(&self) -> bool {
        self.incoming.is_none()
    }

    /// The timeouts for the response to this body.
    pub(super) fn response_timeout(&self, response: Duration, body: Duration) -> ResponseTimeout {
        ResponseTimeout { response, body, progress: self.progress.clone() }
    }

    /// The shared progress, if there is a body.
    pub(super) fn progress(&self) -> Option<Arc<UploadProgress>> {
        self.progress.clone()
    }

    fn count(&self, length: usize) {
        if let Some(progress) = &self.progress {
            progress.mark().received += length as u64;
        }
    }

    fn mark(&self, state: UploadPhase, has_progressed: bool) {
        if let Some(progress) = &self.progress {
            let mut mark = progress.mark();
            mark.state = state;
            if has_progressed {
                mark.last_progress = Instant::now();
            }
        }
    }
}

impl Body for Http2RequestBody {
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
                upload.mark(UploadPhase::WaitingForClient, false);
                return Poll::Pending;
            }
        };
        let length = match &frame {
            Some(Ok(frame)) => frame.data_ref().map_or(0, Bytes::len),
            Some(Err(_)) | None => 0,
        };
        upload.count(length);
        let Some(remaining) = upload.remaining.checked_sub(length as u64) else {
            upload.mark(UploadPhase::TooLarge, true);
            return Poll::Ready(Some(Err(io::Error::other("the body is too large"))));
        };
        upload.remaining = remaining;
        upload.mark(
            if upload.is_end_stream() || frame.is_none() {
                UploadPhase::Done
            } else {
                UploadPhase::InProgress
            },
            true,
        );
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

/// The progress of a body, shared with the response side.
#[derive(Debug)]
pub(super) struct UploadProgress {
    mark: Mutex<ProgressMark>,
    /// A body of which all announced bytes have arrived, but not the end of the stream.
    unfinished: Mutex<Option<Incoming>>,
}

/// hyper drops a body after its last announced byte, before the end of the stream. Keep it to await the end.
impl Drop for Http2RequestBody {
    fn drop(&mut self) {
        let is_whole = |incoming: &Incoming| incoming.size_hint().exact() == Some(0);
        let incoming =
            self.incoming.take().filter(|incoming| !incoming.is_end_stream() && is_whole(incoming));
        if let (Some(incoming), Some(progress)) = (incoming, &self.progress) {
            *progress.unfinished() = Some(incoming);
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct ProgressMark {
    /// When bytes last moved.
    last_progress: Instant,
    state: UploadPhase,
    /// The number of bytes received.
    received: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UploadPhase {
    InProgress,
    /// The client must send more.
    WaitingForClient,
    Done,
    TooLarge,
}

impl UploadProgress {
    /// The number of bytes received.
    pub(super) fn received(&self) -> u64 {
        self.mark().received
    }

    fn mark(&self) -> MutexGuard<'_, ProgressMark> {
        self.mark.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unfinished(&self) -> MutexGuard<'_, Option<Incoming>> {
        self.unfinished.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether only the end of the stream is missing.
    pub(super) fn is_missing_end(&self) -> bool {
        self.unfinished().is_some()
    }

    /// Ready when the stream has ended or failed.
    pub(super) fn poll_end(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut unfinished = self.unfinished();
        while let Some(incoming) = &mut *unfinished {
            match Pin::new(incoming).poll_frame(cx) {
                Poll::Pending => return Poll::Pending,
                // Trailers are discarded.
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(Some(Err(_)) | None) => *unfinished = None,
            }
        }
        Poll::Ready(())
    }
}

/// The timeouts for a response.
#[derive(Debug)]
pub(super) struct ResponseTimeout {
    response: Duration,
    body: Duration,
    /// `None` if there is no body.
    progress: Option<Arc<UploadProgress>>,
}

/// Which side timed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LateParty {
    Client,
    Endpoint,
}

impl ResponseTimeout {
    /// Whether the body exceeded its limit.
    pub(super) fn is_too_large(&self) -> bool {
        self.mark().is_some_and(|mark| mark.state == UploadPhase::TooLarge)
    }

    /// Waits for a response. While the body makes progress the body timeout applies, then the response
    /// timeout.
    pub(super) async fn wait<T>(&self, response: impl Future<Output = T>) -> Result<T, LateParty> {
        let started = Instant::now();
        let mut response = pin!(response);
        loop {
            let (due, _) = self.due(started);
            // The body may complete at any time, which makes the deadline earlier. So check again after the
            // shorter timeout.
            let next_check = due.min(deadline_after(Instant::now(), self.response.min(self.body)));
            if let Ok(answer) = timeout_at(next_check, response.as_mut()).await {
                return Ok(answer);
            }
            let (due, late) = self.due(started);
            if due <= Instant::now() {
                return Err(late);
            }
        }
    }

    /// The deadline, and which side is late then.
    fn due(&self, started: Instant) -> (Instant, LateParty) {
        match self.mark() {
            None => (deadline_after(started, self.response), LateParty::Endpoint),
            Some(ProgressMark { last_progress, state, .. }) => match state {
                // Progress before this attempt does not count.
                UploadPhase::Done | UploadPhase::TooLarge => {
                    (deadline_after(last_progress.max(started), self.response), LateParty::Endpoint)
                }
                UploadPhase::InProgress => {
                    (deadline_after(last_progress.max(started), self.body), LateParty::Endpoint)
                }
                UploadPhase::WaitingForClient => {
                    (deadline_after(last_progress.max(started), self.body), LateParty::Client)
                }
            },
        }
    }

    fn mark(&self) -> Option<ProgressMark> {
        self.progress.as_ref().map(|progress| *progress.mark())
    }
}
