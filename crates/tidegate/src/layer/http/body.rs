//! A response's body that carries what its request holds.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::limiter::Lease;

pin_project! {
    /// A body, and the lease that is given back when it has been sent or is dropped; or a few words of the layer's own.
    pub struct HeldBody<B> {
        #[pin]
        content: Content<B>,
        lease: Option<Lease>,
    }
}

pin_project! {
    #[project = Projected]
    enum Content<B> {
        /// The inner service's.
        Passed { #[pin] body: B },
        /// The layer's, until they are said.
        Told { words: Option<Bytes> },
    }
}

impl<B> HeldBody<B> {
    pub(super) fn holding(body: B, lease: Option<Lease>) -> HeldBody<B> {
        HeldBody { content: Content::Passed { body }, lease }
    }

    pub(super) fn telling(words: impl Into<Bytes>) -> HeldBody<B> {
        HeldBody { content: Content::Told { words: Some(words.into()) }, lease: None }
    }
}

impl<B: Body<Data = Bytes>> Body for HeldBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        let polled = match this.content.project() {
            Projected::Passed { body } => body.poll_frame(context),
            Projected::Told { words } => Poll::Ready(words.take().map(|words| Ok(Frame::data(words)))),
        };
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
            // Nothing more comes: whoever keeps the body for longer does not keep the lease.
            *this.lease = None;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Passed { body } => body.is_end_stream(),
            Content::Told { words } => words.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Passed { body } => body.size_hint(),
            Content::Told { words } => {
                SizeHint::with_exact(words.as_ref().map_or(0, |words| words.len() as u64))
            }
        }
    }
}

impl<B> fmt::Debug for HeldBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldBody").field("lease", &self.lease).finish_non_exhaustive()
    }
}
