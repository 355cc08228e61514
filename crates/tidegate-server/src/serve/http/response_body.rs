//! What hyper sends behind a head: all of it at once, or one piece after the other.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame, SizeHint};

use super::request_tracker::Open;
use crate::http::events::Events;

/// The body of an answer.
#[derive(Debug)]
pub(super) enum Said {
    /// All of it.
    Whole(Full<Bytes>),
    /// One piece after the other.
    Pieces {
        events: Events,
        /// The call lasts as long: whoever is told something is not idle.
        _call: Open,
    },
}

impl Body for Said {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Said::Whole(whole) => Pin::new(whole).poll_frame(cx),
            Said::Pieces { events, .. } => events.poll_next(cx).map(|piece| Some(Ok(Frame::data(piece?)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Said::Whole(whole) => whole.is_end_stream(),
            Said::Pieces { .. } => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Said::Whole(whole) => whole.size_hint(),
            Said::Pieces { .. } => SizeHint::default(),
        }
    }
}
