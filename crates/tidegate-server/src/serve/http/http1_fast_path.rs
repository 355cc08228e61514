//! The HTTP/1.1 fast path: simple requests, one after the other, each answered when it is complete.
//!
//! Replies to pipelined requests are written together, unless they exceed [`MAX_PENDING_OUTPUT`] or a request has to wait: then the
//! replies before it are written first.

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use ::http::header::AUTHORIZATION;
use ::http::{Method, Request};
use bytes::Bytes;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::http1_request::{self, MissingPart, ParsedRequest, ParsedView, Persistence, RequestView};
use crate::http::{ACQUIRE_PATH, AnsweredRequest, CompactAcquireBuffers, RouteName};
use crate::metrics::{CutReason, Protocol};
use crate::serve::ConnectionEnd;
use crate::serve::bounds::{MAX_PENDING_OUTPUT, READ_AHEAD};
use crate::serve::deadline_watch::{DeadlineWatch, RequestPhase, WaitInterrupt};
use crate::serve::reply_writer::{close_with_linger, write_all};
use crate::serve::thread_buffers::{ThreadBuffers, with_thread_buffers};
use crate::serve::worker::ServerWorker;

/// Why the fast path was left.
pub(super) enum FastPathExit {
    Ended(ConnectionEnd),
    /// The connection needs the full HTTP implementation; these bytes were read and not answered.
    HandOver(TcpStream, Vec<u8>),
}

struct FastPathConnection {
    stream: TcpStream,
    address: IpAddr,
    worker: Arc<ServerWorker>,
    /// Input that is not answered yet.
    pending_input: Vec<u8>,
    /// Output that the client has not accepted yet.
    pending_output: Vec<u8>,
    /// If the input holds a partial request: the missing part, and when the first byte arrived.
    partial: Option<(MissingPart, Instant)>,
    /// The last reply before the shutdown was written.
    is_last_reply_written: bool,
}

/// What the input holds.
#[expect(clippy::large_enum_variant, reason = "the value is moved once, into the caller")]
enum FastPathStep {
    Request(Request<Bytes>),
    /// A request that was answered; the client has not accepted all of the reply.
    Replied,
    HandOver,
}

/// Serves simple requests until the connection ends or sends something else.
pub(super) async fn serve(stream: TcpStream, address: IpAddr, worker: &Arc<ServerWorker>) -> FastPathExit {
    let state = &worker.state;
    let mut watch = DeadlineWatch::new(&state.shutdown, worker.clock.now(), state.bounds.idle);
    let worker = Arc::clone(worker);
    let mut connection = FastPathConnection {
        stream,
        address,
        worker,
        pending_input: Vec::new(),
        pending_output: Vec::new(),
        partial: None,
        is_last_reply_written: false,
    };
    loop {
        let end = match connection.next_step(&mut watch).await {
            Ok(FastPathStep::Request(request)) => connection.reply(request).await.err(),
            Ok(FastPathStep::Replied) => None,
            Ok(FastPathStep::HandOver) => match connection.flush().await {
                Ok(()) => return FastPathExit::HandOver(connection.stream, connection.pending_input),
                Err(end) => Some(end),
            },
            Err(end) => Some(end),
        };
        if let Some(end) = end {
            if connection.is_last_reply_written {
                close_with_linger(connection.stream).await;
            }
            return FastPathExit::Ended(end);
        }
    }
}

impl FastPathConnection {
    /// The next request, from the pending input or from the socket.
    async fn next_step(&mut self, watch: &mut DeadlineWatch) -> Result<FastPathStep, ConnectionEnd> {
        if self.is_last_reply_written {
            self.flush().await?;
            return Err(ConnectionEnd::Draining);
        }
        if !self.pending_input.is_empty() {
            // A client that pipelines much must not starve the others or fill the memory with replies.
            tokio::task::consume_budget().await;
            if self.pending_output.len() >= MAX_PENDING_OUTPUT {
                self.flush().await?;
            }
            match http1_request::parse(&self.pending_input) {
                ParsedRequest::Whole(request, length) => {
                    self.pending_input.drain(..length);
                    return Ok(FastPathStep::Request(request));
                }
                ParsedRequest::Unsupported => return Ok(FastPathStep::HandOver),
                ParsedRequest::Partial(missing) => self.partial = Some((missing, Instant::now())),
            }
        }
        // Write all replies before waiting for more input.
        self.flush().await?;
        self.schedule(watch);
        std::future::poll_fn(|cx| {
            while let Poll::Ready(read) = with_thread_buffers(|buffers| self.poll_read(cx, buffers)) {
                if let Some(next) = read? {
                    return Poll::Ready(Ok(next));
                }
                self.schedule(watch);
            }
            let phase = if self.partial.is_some() { RequestPhase::InRequest } else { RequestPhase::Idle };
            let interruption = ready!(watch.poll(cx, phase));
            Poll::Ready(Err(match interruption {
                WaitInterrupt::Shutdown => ConnectionEnd::Draining,
                WaitInterrupt::DeadlinePassed if phase == RequestPhase::InRequest => {
                    ConnectionEnd::Cut(CutReason::SlowRequest)
                }
                WaitInterrupt::DeadlinePassed => ConnectionEnd::Cut(CutReason::Idle),
            }))
        })
        .await
    }

    /// Sets the deadline of the next request. It does not move when more pieces of the request arrive.
    fn schedule(&self, watch: &mut DeadlineWatch) {
        let bounds = &self.worker.state.bounds;
        watch.set_deadline(match self.partial {
            None => self.worker.clock.now() + bounds.idle,
            Some((MissingPart::Head, began)) => began + bounds.head(),
            Some((MissingPart::Body, began)) => began + bounds.request,
        });
    }

    /// Reads more input. Returns a request if it is complete.
    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffers: &mut ThreadBuffers,
    ) -> Poll<Result<Option<FastPathStep>, ConnectionEnd>> {
        let before = self.pending_input.len();
        buffers.input[..before].copy_from_slice(&self.pending_input);
        let mut room = ReadBuf::new(&mut buffers.input[before..]);
        let read = ready!(Pin::new(&mut self.stream).poll_read(cx, &mut room));
        let length = before + room.filled().len();
        if read.is_err() || length == before {
            return Poll::Ready(Err(ConnectionEnd::ClientClosed));
        }
        let input = &buffers.input[..length];
        let mut fields = http1_request::empty_header_slots();
        let parsed = match http1_request::parse_view(input, &mut fields) {
            ParsedView::Whole(view)
                if view.length == length && self.try_decide_compact(&view, &mut buffers.compact_acquire) =>
            {
                self.partial = None;
                self.keep(&[]);
                http1_request::write_decision(
                    &buffers.compact_acquire.body,
                    &self.worker.clock.date(),
                    &mut buffers.output,
                );
                self.write_now(&buffers.output);
                return Poll::Ready(Ok((!self.pending_output.is_empty()).then_some(FastPathStep::Replied)));
            }
            ParsedView::Whole(view) => view.to_request(),
            ParsedView::Partial(missing) => ParsedRequest::Partial(missing),
            ParsedView::Unsupported => ParsedRequest::Unsupported,
        };
        let (next, rest) = match parsed {
            ParsedRequest::Whole(request, length) => (Some(FastPathStep::Request(request)), &input[length..]),
            ParsedRequest::Partial(missing) => {
                let began = self.partial.map_or_else(Instant::now, |(_, began)| began);
                self.partial = Some((missing, began));
                self.keep(input);
                return Poll::Ready(Ok(None));
            }
            ParsedRequest::Unsupported => (Some(FastPathStep::HandOver), input),
        };
        self.partial = None;
        self.keep(rest);
        Poll::Ready(Ok(next))
    }

    /// Decides a single compact acquire request in place and counts it. Returns whether it was decided.
    fn try_decide_compact(&self, view: &RequestView<'_, '_>, buffers: &mut CompactAcquireBuffers) -> bool {
        let state = &self.worker.state;
        if !view.is("POST", ACQUIRE_PATH) || state.shutdown.is_triggered() {
            return false;
        }
        let start = self.worker.timer.raw();
        let Some(permissions) = state.authorize(view.field(&AUTHORIZATION)) else { return false };
        let Some(is_granted) = state.api.try_acquire_compact(view.body, &permissions, buffers) else {
            return false;
        };
        self.worker.metrics.http_request(RouteName::Acquire, 200, self.worker.since(start));
        self.worker.metrics.decided(Protocol::Http, u64::from(is_granted), u64::from(!is_granted));
        true
    }

    fn keep(&mut self, rest: &[u8]) {
        if rest.is_empty() {
            // An idle connection keeps no buffer.
            self.pending_input = Vec::new();
        } else {
            self.pending_input.clear();
            self.pending_input.extend_from_slice(rest);
        }
    }

    async fn reply(&mut self, request: Request<Bytes>) -> Result<(), ConnectionEnd> {
        let is_head = request.method() == Method::HEAD;
        let start = self.worker.timer.raw();
        let state = Arc::clone(&self.worker.state);
        let mut response_future = std::pin::pin!(state.respond(request, self.address));
        let first_poll = std::future::poll_fn(|cx| Poll::Ready(response_future.as_mut().poll(cx))).await;
        let answered = match first_poll {
            Poll::Ready(answered) => answered,
            Poll::Pending => {
                self.flush().await?;
                self.wait_unless_disconnected(response_future).await?
            }
        };
        self.worker.metrics.http_answered(&answered, self.worker.since(start));
        let response = answered.response;
        self.is_last_reply_written = state.shutdown.is_triggered()
            && !matches!(http1_request::parse(&self.pending_input), ParsedRequest::Whole(..));
        let persistence =
            if self.is_last_reply_written { Persistence::Close } else { Persistence::KeepAlive };
        let date = self.worker.clock.date();
        with_thread_buffers(|buffers| {
            http1_request::write_response(&response, is_head, persistence, &date, &mut buffers.output);
            self.write_now(&buffers.output);
        });
        Ok(())
    }

    /// Waits for the response. Meanwhile input is read, up to [`READ_AHEAD`], to notice a disconnect: a client that is gone must not
    /// stay in a queue.
    async fn wait_unless_disconnected(
        &mut self,
        mut call: Pin<&mut impl Future<Output = AnsweredRequest>>,
    ) -> Result<AnsweredRequest, ConnectionEnd> {
        std::future::poll_fn(|cx| {
            if let Poll::Ready(answered) = call.as_mut().poll(cx) {
                return Poll::Ready(Ok(answered));
            }
            while self.pending_input.len() < READ_AHEAD {
                let mut ahead = [0; 1024];
                let mut room = ReadBuf::new(&mut ahead);
                match ready!(Pin::new(&mut self.stream).poll_read(cx, &mut room)) {
                    Ok(()) if !room.filled().is_empty() => {
                        self.pending_input.extend_from_slice(room.filled());
                    }
                    _ => return Poll::Ready(Err(ConnectionEnd::ClientClosed)),
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Writes as much as the socket accepts now, unless more requests are pending.
    fn write_now(&mut self, output: &[u8]) {
        let at_once = self.pending_output.is_empty() && self.pending_input.is_empty();
        let written = if at_once { self.stream.try_write(output).unwrap_or(0) } else { 0 };
        self.pending_output.extend_from_slice(&output[written..]);
    }

    /// Waits until the client has accepted all pending output.
    async fn flush(&mut self) -> Result<(), ConnectionEnd> {
        if self.pending_output.is_empty() {
            return Ok(());
        }
        let pending_output = std::mem::take(&mut self.pending_output);
        write_all(&self.stream, &pending_output, self.worker.state.bounds.write).await
    }
}
