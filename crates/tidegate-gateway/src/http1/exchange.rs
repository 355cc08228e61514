//! One exchange: sends a request to an endpoint and relays its response.
//!
//! ```text
//!   client ──▶ input ──▶ BodyDecoder ──▶ upload_out ──▶ endpoint
//!   client ◀── response_out ◀── BodyDecoder ◀── response_in ◀── endpoint
//! ```
//!
//! Both directions run at the same time and do not wait for each other. Neither reads more input before its output is
//! written.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use tidegate_net::Shutdown;
use tokio::net::TcpStream;

use super::upgrade::switches_protocol;
use crate::buffers::{BUFFER_SIZE, ReadBuffer, WriteBuffer};
use crate::handshake::ClientStream;
use crate::local_reply::LocalReply;
use crate::metrics::UpstreamFailure;
use crate::request_log::TransferProgress;
use crate::wire::body::{BodyDecoder, BodyEncoder, BodyFraming};
use crate::wire::request_head::header_storage;
use crate::wire::response_head::{Http1ResponseHead, ResponseOptions};
use crate::wire::{MAX_HEAD_BYTES, WireError};
use crate::worker::ClientConnectionEnd;

/// The interim response to `Expect: 100-continue`.
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// The maximum number of bytes collected for one write.
const MAX_BATCH: usize = 2 * BUFFER_SIZE;

/// A successful end.
pub(super) enum ExchangeEnd {
    /// The response is complete.
    Completed {
        /// The connection to the endpoint, if it can be reused.
        upstream: Option<TcpStream>,
        /// Whether the client's connection can be reused.
        keep_alive: bool,
    },
    /// The protocol was switched.
    Upgraded {
        upstream: TcpStream,
        /// Bytes that the endpoint has already sent in the new protocol.
        arrived: ReadBuffer,
    },
}

/// A failed end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExchangeError {
    /// The client closed the connection.
    ClientClosed,
    /// The request body is malformed or too large.
    InvalidRequestBody(WireError),
    /// The client does not send its body in time.
    SlowBody,
    /// The client does not read the response in time.
    SlowReader,
    /// The endpoint closed the connection. `nothing_sent` is set if no byte of the request was written.
    UpstreamClosed { nothing_sent: bool, has_body: bool, nothing_received: bool },
    /// The response is malformed.
    InvalidResponse(WireError),
    /// The endpoint does not respond in time.
    UpstreamTimeout,
}

impl ExchangeError {
    /// The reply for the client, if it has not received anything yet.
    pub(super) const fn reply(self) -> Option<LocalReply> {
        match self {
            ExchangeError::ClientClosed | ExchangeError::SlowReader => None,
            ExchangeError::InvalidRequestBody(error) => Some(LocalReply::Invalid(error)),
            ExchangeError::SlowBody => Some(LocalReply::RequestTimeout),
            ExchangeError::UpstreamClosed { .. } | ExchangeError::InvalidResponse(_) => {
                Some(LocalReply::BadGateway)
            }
            ExchangeError::UpstreamTimeout => Some(LocalReply::GatewayTimeout),
        }
    }

    /// Whether the request may be retried: the endpoint cannot have processed it, or the request is
    /// idempotent.
    pub(super) const fn can_retry(self, is_idempotent: bool) -> bool {
        match self {
            ExchangeError::UpstreamClosed { nothing_sent, has_body, nothing_received } => {
                nothing_received && !has_body && (nothing_sent || is_idempotent)
            }
            _ => false,
        }
    }

    /// The failure to count for the endpoint.
    pub(super) const fn upstream_failure(self) -> Option<UpstreamFailure> {
        match self {
            ExchangeError::UpstreamClosed { .. } => Some(UpstreamFailure::Closed),
            ExchangeError::InvalidResponse(_) => Some(UpstreamFailure::Protocol),
            ExchangeError::UpstreamTimeout => Some(UpstreamFailure::Timeout),
            _ => None,
        }
    }

    /// How the client's connection ends.
    pub(super) const fn connection_end(self) -> ClientConnectionEnd {
        match self {
            ExchangeError::ClientClosed => ClientConnectionEnd::ClientClosed,
            ExchangeError::InvalidRequestBody(WireError::BodyTooLarge) => ClientConnectionEnd::TooLarge,
            ExchangeError::InvalidRequestBody(_) => ClientConnectionEnd::Protocol,
            ExchangeError::SlowBody => ClientConnectionEnd::SlowBody,
            ExchangeError::SlowReader => ClientConnectionEnd::SlowReader,
            ExchangeError::UpstreamClosed { .. }
            | ExchangeError::InvalidResponse(_)
            | ExchangeError::UpstreamTimeout => ClientConnectionEnd::Upstream,
        }
    }
}

impl fmt::Display for ExchangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExchangeError::ClientClosed => f.write_str("the client closed the connection"),
            ExchangeError::InvalidRequestBody(error) | ExchangeError::InvalidResponse(error) => error.fmt(f),
            ExchangeError::SlowBody => f.write_str("the request body did not arrive in time"),
            ExchangeError::SlowReader => f.write_str("the client does not read the response"),
            ExchangeError::UpstreamClosed { .. } => f.write_str("the endpoint closed the connection early"),
            ExchangeError::UpstreamTimeout => f.write_str("the endpoint did not answer in time"),
        }
    }
}

/// The progress of the response.
enum ResponseStage {
    Head,
    Body { body: BodyDecoder, frames: BodyEncoder, is_finished: bool },
    Upgraded,
}

/// The progress of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UploadState {
    InProgress,
    Done,
    /// The endpoint does not accept more of it. It may still send a response.
    Rejected,
}

#[expect(clippy::struct_excessive_bools, reason = "independent flags of two connections")]
pub(super) struct Http1Exchange<'e, S> {
    client: &'e mut S,
    input: &'e mut ReadBuffer,
    upstream: Option<TcpStream>,
    response_in: ReadBuffer,
    /// During shutdown the client's connection is closed after the response.
    shutdown: &'e Shutdown,
    request_out: &'e mut WriteBuffer,
    upload_out: WriteBuffer,
    response_out: &'e mut WriteBuffer,
    body: BodyDecoder,
    frames: BodyEncoder,
    /// Whether the end of the request body is written.
    is_finished: bool,
    has_body: bool,
    upload: UploadState,
    stage: ResponseStage,
    is_head_request: bool,
    /// Whether the client asked for a protocol upgrade.
    allows_upgrade: bool,
    options: ResponseOptions,
    /// Whether each connection can be reused.
    client_keep_alive: bool,
    upstream_keep_alive: bool,
    has_progressed: bool,
    progress: TransferProgress,
}

impl<'e, S: ClientStream> Http1Exchange<'e, S> {
    pub(super) fn new(
        client: &'e mut S,
        input: &'e mut ReadBuffer,
        upstream: TcpStream,
        request_out: &'e mut WriteBuffer,
        response_out: &'e mut WriteBuffer,
        body: BodyDecoder,
        shutdown: &'e Shutdown,
    ) -> Http1Exchange<'e, S> {
        Http1Exchange {
            client,
            input,
            upstream: Some(upstream),
            response_in: ReadBuffer::default(),
            shutdown,
            request_out,
            upload_out: WriteBuffer::default(),
            response_out,
            body,
            frames: BodyEncoder::Plain,
            is_finished: false,
            has_body: false,
            upload: UploadState::InProgress,
            stage: ResponseStage::Head,
            is_head_request: false,
            allows_upgrade: false,
            options: ResponseOptions { minor: 1, keeps_alive: true },
            client_keep_alive: true,
            upstream_keep_alive: false,
            has_progressed: false,
            progress: TransferProgress::default(),
        }
    }

    /// Sets the properties of the request.
    pub(super) fn set_request(
        &mut self,
        framing: BodyFraming,
        is_head_request: bool,
        minor: u8,
        keeps_alive: bool,
    ) {
        self.has_body = !matches!(framing, BodyFraming::None | BodyFraming::Length(0));
        if self.has_body {
            self.upload_out = WriteBuffer::new();
        }
        self.frames = if framing == BodyFraming::Chunked { BodyEncoder::Chunks } else { BodyEncoder::Plain };
        (self.is_head_request, self.options) = (is_head_request, ResponseOptions { minor, keeps_alive });
    }

    /// Allows a 101 response. Without it a 101 is an error.
    pub(super) fn allow_upgrade(&mut self, upgrades: bool) {
        self.allows_upgrade = upgrades;
    }

    /// Sends `100 Continue` to a client that waits for it.
    pub(super) fn send_continue(&mut self) {
        if self.has_body && self.input.is_empty() {
            self.response_out.bytes.extend_from_slice(CONTINUE);
        }
    }

    /// Whether anything was transferred since the last call.
    pub(super) fn has_progressed(&mut self) -> bool {
        std::mem::take(&mut self.has_progressed)
    }

    /// Whether the request is sent and no response has started.
    pub(super) fn waits_for_response(&self) -> bool {
        matches!(self.stage, ResponseStage::Head) && self.upload != UploadState::InProgress
    }

    /// The status and the byte counts so far.
    pub(super) const fn progress(&self) -> TransferProgress {
        self.progress
    }

    /// The error to report when the deadline passes.
    pub(super) fn timeout_error(&self) -> ExchangeError {
        match self.stage {
            _ if !self.response_out.is_empty() => ExchangeError::SlowReader,
            ResponseStage::Head
                if self.upload == UploadState::InProgress
                    && self.request_out.is_empty()
                    && self.upload_out.is_empty() =>
            {
                ExchangeError::SlowBody
            }
            _ => ExchangeError::UpstreamTimeout,
        }
    }

    /// Transfers as much as possible in both directions.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<ExchangeEnd, ExchangeError>> {
        if self.upload == UploadState::InProgress {
            self.poll_upload(cx)?;
        }
        match self.poll_download(cx)? {
            Poll::Ready(()) => Poll::Ready(Ok(self.finish())),
            Poll::Pending => {
                if self.upload == UploadState::Done {
                    self.check_client(cx)?;
                }
                Poll::Pending
            }
        }
    }

    fn finish(&mut self) -> ExchangeEnd {
        let is_uploaded = self.upload == UploadState::Done;
        match (self.upstream.take(), &self.stage) {
            (Some(upstream), ResponseStage::Upgraded) => {
                ExchangeEnd::Upgraded { upstream, arrived: std::mem::take(&mut self.response_in) }
            }
            (upstream, _) => ExchangeEnd::Completed {
                // Unread bytes after the response would become the next response. Do not reuse the
                // connection.
                upstream: upstream
                    .filter(|_| is_uploaded && self.upstream_keep_alive && self.response_in.is_empty()),
                keep_alive: is_uploaded && self.client_keep_alive,
            },
        }
    }

    /// Sends as much of the request as the endpoint accepts.
    fn poll_upload(&mut self, cx: &mut Context<'_>) -> Result<(), ExchangeError> {
        loop {
            if self.poll_write_upload(cx).is_pending() || self.upload != UploadState::InProgress {
                return Ok(());
            }
            if self.body.is_done() {
                if std::mem::replace(&mut self.is_finished, true) || !self.has_body {
                    self.upload = UploadState::Done;
                    return Ok(());
                }
                self.frames.finish(self.body.trailers(), &mut self.upload_out.bytes);
                continue;
            }
            if self.decode_request_piece()? {
                // Small chunks are collected and sent together.
                while self.upload_out.bytes.len() < MAX_BATCH && self.decode_request_piece()? {}
                continue;
            }
            if self.input.is_full() {
                self.input.grow(2 * BUFFER_SIZE);
            }
            match self.input.poll_fill(Pin::new(&mut *self.client), cx) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(0) | Err(_)) => return Err(ExchangeError::ClientClosed),
                Poll::Ready(Ok(_)) => self.has_progressed = true,
            }
        }
    }

    /// Writes the head and the buffered body. Ready if nothing is left.
    fn poll_write_upload(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(upstream) = self.upstream.as_mut() else { return Poll::Ready(()) };
        let mut upstream = Pin::new(upstream);
        for (buffer, keep) in [(&mut *self.request_out, true), (&mut self.upload_out, false)] {
            if buffer.is_empty() {
                continue;
            }
            let before = buffer.remaining();
            match buffer.poll_write(upstream.as_mut(), cx, keep) {
                Poll::Pending => {
                    self.has_progressed |= buffer.remaining() < before;
                    return Poll::Pending;
                }
                Poll::Ready(Ok(())) => self.has_progressed = true,
                Poll::Ready(Err(_)) => self.upload = UploadState::Rejected,
            }
        }
        Poll::Ready(())
    }

    /// Decodes a piece of the request body. Returns whether there was one.
    fn decode_request_piece(&mut self) -> Result<bool, ExchangeError> {
        let piece = self.body.next(self.input.filled()).map_err(ExchangeError::InvalidRequestBody)?;
        let used = piece.used;
        self.progress.received += piece.data.len() as u64;
        self.frames.write(piece.data, &mut self.upload_out.bytes);
        self.input.consume(used);
        Ok(used > 0)
    }

    /// Relays as much of the response as is available and as the client accepts. Ready when the response is
    /// complete.
    fn poll_download(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ExchangeError>> {
        loop {
            let is_over = self.parse_response()?;
            // `response_in` may hold more than one batch.
            let has_more = self.response_out.bytes.len() >= MAX_BATCH;
            // Writes everything to the client before reading more, so that a slow client slows the endpoint
            // down.
            if !self.response_out.is_empty() {
                let before = self.response_out.remaining();
                match self.response_out.poll_write(Pin::new(&mut *self.client), cx, false) {
                    Poll::Pending => {
                        // A client that reads slowly still makes progress.
                        self.has_progressed |= self.response_out.remaining() < before;
                        return Poll::Pending;
                    }
                    Poll::Ready(Ok(())) => self.has_progressed = true,
                    Poll::Ready(Err(_)) => return Poll::Ready(Err(ExchangeError::ClientClosed)),
                }
            }
            if is_over {
                return Pin::new(&mut *self.client).poll_flush(cx).map_err(|_| ExchangeError::ClientClosed);
            }
            if has_more {
                continue;
            }
            let Some(upstream) = self.upstream.as_mut() else { return Poll::Ready(Err(self.closed_error())) };
            let read = match self.response_in.poll_fill(Pin::new(upstream), cx) {
                Poll::Pending => {
                    // A TLS stream buffers data until it is flushed.
                    let _best_effort = Pin::new(&mut *self.client).poll_flush(cx);
                    return Poll::Pending;
                }
                Poll::Ready(read) => read,
            };
            match (read, &mut self.stage) {
                (Ok(length), _) if length > 0 => self.has_progressed = true,
                (Ok(_), ResponseStage::Body { body, frames, is_finished }) if body.ends_with_connection() => {
                    frames.finish(&[], &mut self.response_out.bytes);
                    *is_finished = true;
                    self.upstream_keep_alive = false;
                }
                _ => return Poll::Ready(Err(self.closed_error())),
            }
        }
    }

    /// Parses the available response bytes. Returns whether the response is complete.
    fn parse_response(&mut self) -> Result<bool, ExchangeError> {
        loop {
            match &mut self.stage {
                ResponseStage::Upgraded | ResponseStage::Body { is_finished: true, .. } => return Ok(true),
                ResponseStage::Head => {
                    if self.response_in.is_empty() || !self.parse_response_head()? {
                        return Ok(false);
                    }
                }
                ResponseStage::Body { body, frames, is_finished } => {
                    while !body.is_done() && self.response_out.bytes.len() < MAX_BATCH {
                        let piece =
                            body.next(self.response_in.filled()).map_err(ExchangeError::InvalidResponse)?;
                        let used = piece.used;
                        self.progress.sent += piece.data.len() as u64;
                        frames.write(piece.data, &mut self.response_out.bytes);
                        self.response_in.consume(used);
                        if used == 0 {
                            break;
                        }
                    }
                    if !body.is_done() {
                        return Ok(false);
                    }
                    frames.finish(body.trailers(), &mut self.response_out.bytes);
                    *is_finished = true;
                }
            }
        }
    }

    /// Parses the response head. Returns whether it was complete.
    fn parse_response_head(&mut self) -> Result<bool, ExchangeError> {
        let mut storage = header_storage();
        let head = Http1ResponseHead::read(self.response_in.filled(), &mut storage, self.is_head_request)
            .map_err(ExchangeError::InvalidResponse)?;
        let Some(head) = head else {
            if self.response_in.is_full() {
                self.response_in.grow(MAX_HEAD_BYTES);
            }
            return Ok(false);
        };
        let length = head.length;
        if matches!(head.status, 100..=199) && head.status != 101 {
            // Interim responses are not forwarded.
            self.response_in.consume(length);
            return Ok(!self.response_in.is_empty());
        }
        let is_upgrade =
            switches_protocol(head.status, self.allows_upgrade).map_err(ExchangeError::InvalidResponse)?;
        if self.response_out.bytes.capacity() == 0 {
            *self.response_out = WriteBuffer::new();
        }
        let options = ResponseOptions {
            keeps_alive: self.options.keeps_alive && !self.shutdown.is_triggered(),
            ..self.options
        };
        let (frames, keep_alive) = head.compose(options, &mut self.response_out.bytes);
        self.progress.status = head.status;
        self.client_keep_alive = keep_alive;
        self.upstream_keep_alive = head.keeps_alive;
        self.stage = if is_upgrade {
            ResponseStage::Upgraded
        } else {
            let body = BodyDecoder::new(head.framing, u64::MAX).map_err(ExchangeError::InvalidResponse)?;
            ResponseStage::Body { body, frames, is_finished: false }
        };
        self.response_in.consume(length);
        Ok(true)
    }

    /// Detects whether the client has closed the connection.
    fn check_client(&mut self, cx: &mut Context<'_>) -> Result<(), ExchangeError> {
        while !self.input.is_full() {
            match self.input.poll_fill(Pin::new(&mut *self.client), cx) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(0) | Err(_)) => return Err(ExchangeError::ClientClosed),
                Poll::Ready(Ok(_)) => {}
            }
        }
        Ok(())
    }

    fn closed_error(&self) -> ExchangeError {
        ExchangeError::UpstreamClosed {
            nothing_sent: self.request_out.is_unsent(),
            has_body: self.progress.received > 0,
            nothing_received: matches!(self.stage, ResponseStage::Head) && self.response_in.is_empty(),
        }
    }
}
