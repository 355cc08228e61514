//! A tunnel: after an upgrade, bytes are relayed in both directions without parsing.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::buffers::ReadBuffer;
use crate::deadline::{ConnectionActivity, ConnectionDeadline, Interruption};
use crate::handshake::ClientStream;
use crate::request_log::TransferProgress;
use crate::worker::ClientConnectionEnd;

/// One direction of a tunnel.
struct TunnelDirection {
    buffer: ReadBuffer,
    /// Whether the source has reached its end.
    has_ended: bool,
    /// Whether the destination was shut down.
    is_closed: bool,
    /// The number of bytes transferred.
    transferred: u64,
}

impl TunnelDirection {
    const fn new(buffer: ReadBuffer) -> TunnelDirection {
        TunnelDirection { buffer, has_ended: false, is_closed: false, transferred: 0 }
    }

    /// Relays the available bytes. Returns whether anything moved. An error ends both directions.
    fn poll(
        &mut self,
        mut from: Pin<&mut impl AsyncRead>,
        mut to: Pin<&mut impl AsyncWrite>,
        cx: &mut Context<'_>,
    ) -> std::io::Result<bool> {
        let mut has_progressed = false;
        loop {
            while !self.buffer.is_empty() {
                match to.as_mut().poll_write(cx, self.buffer.filled())? {
                    Poll::Pending => return Ok(has_progressed),
                    Poll::Ready(0) => return Err(std::io::ErrorKind::WriteZero.into()),
                    Poll::Ready(length) => {
                        self.buffer.consume(length);
                        self.transferred += length as u64;
                    }
                }
                has_progressed = true;
            }
            if self.has_ended {
                if !self.is_closed && to.as_mut().poll_shutdown(cx)?.is_ready() {
                    self.is_closed = true;
                }
                return Ok(has_progressed);
            }
            match self.buffer.poll_fill(from.as_mut(), cx)? {
                Poll::Pending => {
                    self.buffer.release_if_empty();
                    let _best_effort = to.as_mut().poll_flush(cx)?;
                    return Ok(has_progressed);
                }
                Poll::Ready(0) => self.has_ended = true,
                Poll::Ready(_) => has_progressed = true,
            }
        }
    }
}

/// Relays both directions until both have ended or nothing moves for too long. Updates `progress` on the way.
pub(super) async fn relay<S: ClientStream>(
    client: &mut S,
    input: ReadBuffer,
    mut upstream: TcpStream,
    arrived: ReadBuffer,
    deadline: &mut ConnectionDeadline,
    max_wait: Duration,
    progress: &mut TransferProgress,
) -> ClientConnectionEnd {
    let (mut to_upstream, mut to_client) = (TunnelDirection::new(input), TunnelDirection::new(arrived));
    deadline.set_timeout(Instant::now(), max_wait);
    std::future::poll_fn(|cx| {
        let moved =
            to_upstream.poll(Pin::new(&mut *client), Pin::new(&mut upstream), cx).and_then(|upload_moved| {
                Ok(to_client.poll(Pin::new(&mut upstream), Pin::new(&mut *client), cx)? || upload_moved)
            });
        (progress.received, progress.sent) = (to_upstream.transferred, to_client.transferred);
        match moved {
            Err(_) => return Poll::Ready(ClientConnectionEnd::ClientClosed),
            Ok(_) if to_upstream.is_closed && to_client.is_closed => {
                return Poll::Ready(ClientConnectionEnd::ClientClosed);
            }
            Ok(true) => deadline.set_timeout(Instant::now(), max_wait),
            Ok(false) => {}
        }
        match deadline.poll(cx, ConnectionActivity::Busy) {
            Poll::Ready(Interruption::TimedOut) => Poll::Ready(ClientConnectionEnd::Idle),
            _ => Poll::Pending,
        }
    })
    .await
}
