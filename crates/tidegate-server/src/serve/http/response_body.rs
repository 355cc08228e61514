//! What hyper sends behind a head: all of it at once, or one piece after the other.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame, SizeHint};

use super::request_tracker::OpenRequest;
use crate::http::events::EventStream;

/// The body of an answer.
#[derive(Debug)]
pub(super) enum ResponseBody {
    /// All of it.
    Whole(Full<Bytes>),
    /// One piece after the other.
    Stream {
        events: EventStream,
        /// The call lasts as long: whoever is told something is not idle.
        _call: OpenRequest,
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
