//! The lane: view requests, one after the other, each answered as soon as it is whole.
//!
//! What a client asks for at once is answered with one write, unless that becomes too much ([`MAX_PENDING_OUTPUT`]) or one of its requests has
//! to wait in connection: then what was answered before is written first.

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

/// How the lane was left.
pub(super) enum FastPathExit {
    Ended(ConnectionEnd),
    /// The connection needs somebody who knows all of HTTP; these bytes were read and not answered.
    HandOver(TcpStream, Vec<u8>),
}

struct FastPathConnection {
    stream: TcpStream,
    address: IpAddr,
    worker: Arc<ServerWorker>,
    /// What was read and is not answered yet.
    pending_input: Vec<u8>,
    /// What the client has not taken yet.
    pending_output: Vec<u8>,
    /// If what is pending_input is the beginning of a request: what is missing, and when it began.
    partial: Option<(MissingPart, Instant)>,
    /// The last answer was given: the server is about to end.
    is_last_reply_written: bool,
}

/// What was read.
#[expect(clippy::large_enum_variant, reason = "it is taken apart where it was made")]
enum FastPathStep {
    Request(Request<Bytes>),
    /// It was answered; the client has not taken all of it.
    Replied,
    HandOver,
}

/// Replies view requests as long as there is nothing else.
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
        let over = match connection.next_step(&mut watch).await {
            Ok(FastPathStep::Request(request)) => connection.reply(request).await.err(),
            Ok(FastPathStep::Replied) => None,
            Ok(FastPathStep::HandOver) => match connection.flush().await {
                Ok(()) => return FastPathExit::HandOver(connection.stream, connection.pending_input),
                Err(over) => Some(over),
            },
            Err(over) => Some(over),
        };
        if let Some(over) = over {
            if connection.is_last_reply_written {
                close_with_linger(connection.stream).await;
            }
            return FastPathExit::Ended(over);
        }
    }
}

impl FastPathConnection {
    /// The next request: of what is pending_input, or of what is still to be read.
    async fn next_step(&mut self, watch: &mut DeadlineWatch) -> Result<FastPathStep, ConnectionEnd> {
        if self.is_last_reply_written {
            self.flush().await?;
            return Err(ConnectionEnd::Draining);
        }
        if !self.pending_input.is_empty() {
            // Whoever asks for much at once must not keep the others waiting, nor make the server remember all the answers.
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
        // Whoever has asked for several things at once is answered at once; only now there is time to wait.
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

    /// When it will be too late for the next request. However many pieces it comes in, it must be whole in time.
    fn schedule(&self, watch: &mut DeadlineWatch) {
        let bounds = &self.worker.state.bounds;
        watch.set_deadline(match self.partial {
            None => self.worker.clock.now() + bounds.idle,
            Some((MissingPart::Head, began)) => began + bounds.head(),
            Some((MissingPart::Body, began)) => began + bounds.request,
        });
    }

    /// Reads more. A request if it is whole by then.
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

    /// Decides the only request that was read, if it is one that can be decided in short, and counts it.
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
            // A connection on which nothing is partial written keeps nothing.
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

    /// Waits for an answer. A client that leaves meanwhile is not pending_input in anybody's connection; so what it says is read, as far as
    /// [`READ_AHEAD`].
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
                        self.pending_input.extend_from_slice(room.filled())
                    }
                    _ => return Poll::Ready(Err(ConnectionEnd::ClientClosed)),
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Writes as much as goes now, unless there is more to say first.
    fn write_now(&mut self, output: &[u8]) {
        let at_once = self.pending_output.is_empty() && self.pending_input.is_empty();
        let written = if at_once { self.stream.try_write(output).unwrap_or(0) } else { 0 };
        self.pending_output.extend_from_slice(&output[written..]);
    }

    /// Waits until the client has taken everything.
    async fn flush(&mut self) -> Result<(), ConnectionEnd> {
        if self.pending_output.is_empty() {
            return Ok(());
        }
        let pending_output = std::mem::take(&mut self.pending_output);
        write_all(&self.stream, &pending_output, self.worker.state.bounds.write).await
    }
}
