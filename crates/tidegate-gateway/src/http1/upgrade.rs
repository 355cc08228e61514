//! Protocol upgrades, such as WebSocket: the endpoint's 101 response, and the tunnel after it.
//!
//! In a tunnel, bytes are relayed in both directions without parsing. `wire/upgrade.rs` decides which upgrades a request
//! may ask for.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::Http1Connection;
use crate::buffers::ReadBuffer;
use crate::deadline::{ConnectionActivity, ConnectionDeadline, Interruption};
use crate::handshake::ClientStream;
use crate::request_log::{RequestRecord, RequestSummary, TransferProgress};
use crate::wire::WireError;
use crate::worker::ClientConnectionEnd;

/// Whether a response switches the protocol. An upgrade that was not requested is an error.
pub(super) const fn switches_protocol(status: u16, is_requested: bool) -> Result<bool, WireError> {
    match status {
        101 if is_requested => Ok(true),
        101 => Err(WireError::Malformed("the endpoint switches to a protocol that was not requested")),
        _ => Ok(false),
    }
}

impl<S: ClientStream> Http1Connection<S> {
    /// Relays a tunnel until it ends. Logs its request with the bytes of the tunnel.
    pub(super) async fn relay_upgraded(
        &mut self,
        upstream: TcpStream,
        arrived: ReadBuffer,
        max_wait: Duration,
        progress: TransferProgress,
    ) -> ClientConnectionEnd {
        let worker = Arc::clone(&self.client.worker);
        worker.metrics.count_upgrade();
        let input = std::mem::take(&mut self.input);
        let mut unrecorded = TransferProgress::default();
        let live_progress = self.record.as_mut().map_or(&mut unrecorded, RequestRecord::progress_mut);
        *live_progress = TransferProgress { sent: 0, received: 0, ..progress };
        let end =
            relay(&mut self.stream, input, upstream, arrived, &mut self.deadline, max_wait, live_progress)
                .await;
        if let Some(mut record) = self.record.take() {
            let progress = *record.progress_mut();
            let summary = || RequestSummary::from_composed(&self.request_out.bytes);
            record.finish(&worker, summary, progress, worker.now());
        }
        end
    }
}

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
async fn relay<S: ClientStream>(
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
