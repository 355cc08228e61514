//! Response bodies for hyper: whole, or a stream of events.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame, SizeHint};

use super::request_tracker::OpenRequest;
use crate::http::events::EventStream;

/// The body of a response.
#[derive(Debug)]
pub(super) enum ResponseBody {
    /// A complete body.
    Whole(Full<Bytes>),
    /// A stream of events.
    Stream {
        events: EventStream,
        /// Keeps the request open as long as the stream, so that the connection is not idle.
        _request: OpenRequest,
    },
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            ResponseBody::Whole(whole) => Pin::new(whole).poll_frame(cx),
            ResponseBody::Stream { events, .. } => {
                events.poll_next(cx).map(|piece| Some(Ok(Frame::data(piece?))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            ResponseBody::Whole(whole) => whole.is_end_stream(),
            ResponseBody::Stream { .. } => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            ResponseBody::Whole(whole) => whole.size_hint(),
            ResponseBody::Stream { .. } => SizeHint::default(),
        }
    }
}
