//! A response body that owns the lease of its request.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::limiter::Lease;

pin_project! {
    /// A body and the lease that is given back when the body has been sent or dropped, or a text of the layer.
    pub struct HeldBody<B> {
        #[pin]
        content: HeldContent<B>,
        lease: Option<Lease>,
    }
}

pin_project! {
    #[project = ProjectedContent]
    enum HeldContent<B> {
        /// The body of the inner service.
        Inner { #[pin] body: B },
        /// A text of the layer, until it is sent.
        Text { text: Option<Bytes> },
    }
}

impl<B> HeldBody<B> {
    pub(super) fn with_lease(body: B, lease: Option<Lease>) -> HeldBody<B> {
        HeldBody { content: HeldContent::Inner { body }, lease }
    }

    pub(super) fn text(text: impl Into<Bytes>) -> HeldBody<B> {
        HeldBody { content: HeldContent::Text { text: Some(text.into()) }, lease: None }
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
            ProjectedContent::Inner { body } => body.poll_frame(context),
            ProjectedContent::Text { text } => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
        };
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
            // The body has ended: release the lease even if the body is dropped later.
            *this.lease = None;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            HeldContent::Inner { body } => body.is_end_stream(),
            HeldContent::Text { text } => text.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            HeldContent::Inner { body } => body.size_hint(),
            HeldContent::Text { text } => {
                SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64))
            }
        }
    }
}

impl<B> fmt::Debug for HeldBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldBody").field("lease", &self.lease).finish_non_exhaustive()
    }
}
