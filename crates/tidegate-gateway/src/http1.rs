//! HTTP/1 connections: requests one after the other, each forwarded to an endpoint and its response back.
//!
//! ```text
//!   client ──▶ input ──▶ Http1RequestHead ──▶ route, limits ──▶ Http1Exchange ──▶ response_out ──▶ client
//!                                             │                 ▲ │                ▲
//!                                             │                 │ ▼                │
//!                                             │               endpoint             │
//!                                             └──▶ LocalReply ─────────────────────┘
//! ```
//!
//! A connection is one task that the client, the endpoint and the timer wake. An idle connection holds no buffers.

mod exchange;
mod graceful_close;
mod upgrade;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::buffers::{BUFFER_SIZE, ReadBuffer, WriteBuffer};
use crate::client_connection::ClientConnection;
use crate::config_snapshot::{ConfigSnapshot, RouteTarget};
use crate::deadline::{ConnectionActivity, ConnectionDeadline, Interruption};
use crate::endpoints::UpstreamEndpoint;
use crate::handshake::ClientStream;
use crate::local_reply::LocalReply;
use crate::metrics::UpstreamFailure;
use crate::request_log::{RequestRecord, RequestSummary, TransferProgress};
use crate::upstream_connect::{classify_connect_error, connect};
use crate::wire::MAX_HEAD_BYTES;
use crate::wire::body::{BodyDecoder, BodyFraming};
use crate::wire::request_head::{Http1RequestHead, header_storage};
use crate::worker::ClientConnectionEnd;
pub(crate) use graceful_close::close_gracefully;

use exchange::{ExchangeEnd, ExchangeError, Http1Exchange};

/// The maximum size of an unwanted body that is read and discarded to keep the connection open.
const MAX_DISCARDED: u64 = 64 * 1024;
/// The maximum number of endpoints or connections tried for one request.
const MAX_ATTEMPTS: u32 = 3;
/// During shutdown, how long to wait for a request that may be in transit.
pub(crate) const SHUTDOWN_GRACE: Duration = Duration::from_millis(500);
/// How long a closing connection may take to read the last response.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// A request that is admitted and will be forwarded.
#[expect(clippy::struct_excessive_bools, reason = "independent properties of a request")]
struct RoutedRequest {
    config: Arc<ConfigSnapshot>,
    target: Arc<RouteTarget>,
    framing: BodyFraming,
    is_head_request: bool,
    is_idempotent: bool,
    keeps_alive: bool,
    minor: u8,
    wants_upgrade: bool,
    expects_continue: bool,
}

/// The result of parsing the received bytes.
enum Http1ParseResult {
    /// The head is incomplete.
    Incomplete,
    Routed(RoutedRequest),
    /// The gateway answers the request itself.
    Reply {
        reply: LocalReply,
        is_head_request: bool,
        framing: BodyFraming,
        keep_alive: bool,
    },
}

/// A client's connection.
struct Http1Connection<S> {
    stream: S,
    input: ReadBuffer,
    client: ClientConnection,
    deadline: ConnectionDeadline,
    /// Bytes for the client that are not sent yet.
    response_out: WriteBuffer,
    /// The head of the active request, as sent to the endpoint.
    request_out: WriteBuffer,
    /// Whether `input` holds an incomplete head.
    has_partial_head: bool,
    /// The number of bytes in `input` that were already parsed without a complete head.
    scanned: usize,
    /// The record of the active request until it is logged.
    record: Option<RequestRecord>,
}

/// A connection that is dropped during a request still logs the request.
impl<S> Drop for Http1Connection<S> {
    fn drop(&mut self) {
        if let Some(record) = self.record.take() {
            record.abandon(&self.client.worker, || RequestSummary::from_composed(&self.request_out.bytes));
        }
    }
}

/// Serves a connection whose first bytes are in `arrived`.
pub(crate) async fn serve<S: ClientStream>(
    stream: S,
    arrived: ReadBuffer,
    client: ClientConnection,
) -> ClientConnectionEnd {
    let idle = client.worker.config().spec.server.idle_timeout;
    let deadline = ConnectionDeadline::new(&client.worker.state.shutdown, Instant::now(), idle);
    let (response_out, request_out) = (WriteBuffer::default(), WriteBuffer::default());
    let (input, has_partial_head, scanned, record) = (arrived, false, 0, None);
    let mut connection = Http1Connection {
        stream,
        input,
        client,
        deadline,
        response_out,
        request_out,
        has_partial_head,
        scanned,
        record,
    };
    loop {
        let done = match connection.next_request().await {
            Ok(request) => connection.forward(request).await,
            Err(end) => Err(end),
        };
        if let Err(end) = done {
            if end.needs_graceful_close() {
                Box::pin(close_gracefully(&mut connection.stream)).await;
            }
            return end;
        }
        connection.request_out = WriteBuffer::default();
        // A local reply may wait here for the next request. It must not be discarded.
        if connection.response_out.is_empty() {
            connection.response_out = WriteBuffer::default();
        }
    }
}

impl<S: ClientStream> Http1Connection<S> {
    /// Waits for the next request to forward. Answers requests with local replies on the way.
    async fn next_request(&mut self) -> Result<RoutedRequest, ClientConnectionEnd> {
        loop {
            let parsed = if self.can_parse() { self.parse_request() } else { Http1ParseResult::Incomplete };
            match parsed {
                Http1ParseResult::Routed(request) => return Ok(request),
                Http1ParseResult::Incomplete if self.input.is_full() => self.input.grow(MAX_HEAD_BYTES),
                // Pipelined replies are collected and flushed before waiting for more input.
                Http1ParseResult::Incomplete if !self.response_out.is_empty() => self.flush().await?,
                Http1ParseResult::Incomplete => self.read_more().await?,
                Http1ParseResult::Reply { reply, is_head_request, framing, keep_alive } => {
                    self.send_reply(reply, is_head_request, framing, keep_alive).await?;
                }
            }
        }
    }

    /// Whether parsing can make progress. An incomplete head can only become complete with a line feed.
    fn can_parse(&self) -> bool {
        let arrived = self.input.filled();
        let unscanned = arrived.get(self.scanned..).unwrap_or(arrived);
        !arrived.is_empty() && (!self.has_partial_head || unscanned.contains(&b'\n') || self.input.is_full())
    }

    /// Waits for more input.
    async fn read_more(&mut self) -> Result<(), ClientConnectionEnd> {
        let now = Instant::now();
        let server = &self.client.worker.config().spec.server;
        let activity =
            if self.input.is_empty() { ConnectionActivity::Idle } else { ConnectionActivity::Busy };
        match activity {
            ConnectionActivity::Idle => {
                self.input.release_if_empty();
                self.deadline.set_timeout(now, server.idle_timeout);
            }
            // The whole head must arrive within the header timeout.
            ConnectionActivity::Busy if !self.has_partial_head => {
                self.deadline.set_timeout(now, server.header_timeout);
            }
            ConnectionActivity::Busy => {}
        }
        self.has_partial_head = activity == ConnectionActivity::Busy;
        let (stream, input, deadline) = (&mut self.stream, &mut self.input, &mut self.deadline);
        let mut is_in_grace_period = false;
        let filled = std::future::poll_fn(|cx| {
            let arrived = match activity {
                ConnectionActivity::Idle if stream.poll_readable(cx).is_pending() => Poll::Pending,
                _ => input.poll_fill(Pin::new(&mut *stream), cx),
            };
            match arrived {
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(Err(ClientConnectionEnd::ClientClosed)),
                Poll::Ready(Ok(_)) => return Poll::Ready(Ok(())),
                Poll::Pending => {}
            }
            loop {
                let waiting = if is_in_grace_period { ConnectionActivity::Busy } else { activity };
                return Poll::Ready(Err(match ready!(deadline.poll(cx, waiting)) {
                    // A request may already be in transit. Its response will close the connection.
                    Interruption::ShuttingDown if !is_in_grace_period => {
                        is_in_grace_period = true;
                        deadline.set_timeout(Instant::now(), SHUTDOWN_GRACE);
                        continue;
                    }
                    Interruption::ShuttingDown => ClientConnectionEnd::ShuttingDown,
                    Interruption::TimedOut if is_in_grace_period => ClientConnectionEnd::ShuttingDown,
                    Interruption::TimedOut if activity == ConnectionActivity::Idle => {
                        ClientConnectionEnd::Idle
                    }
                    Interruption::TimedOut => ClientConnectionEnd::SlowHead,
                }));
            }
        })
        .await;
        if matches!(filled, Err(ClientConnectionEnd::SlowHead)) {
            // The 408 is sent without checking that the client reads it.
            let worker = &self.client.worker;
            let record = RequestRecord::new(self.client.peer, "HTTP/1.1", worker.now());
            record.finish_with_reply(
                worker,
                &RequestSummary::from_invalid(self.input.filled()),
                LocalReply::RequestTimeout,
            );
            let _result = self.send_reply(LocalReply::RequestTimeout, false, BodyFraming::None, false).await;
        }
        filled
    }

    /// Parses the received bytes, admits the request and composes the head for the endpoint.
    fn parse_request(&mut self) -> Http1ParseResult {
        let mut storage = header_storage();
        let worker = &self.client.worker;
        let head = match Http1RequestHead::read(self.input.filled(), &mut storage) {
            Ok(Some(head)) => head,
            Ok(None) => {
                self.scanned = self.input.filled().len();
                return Http1ParseResult::Incomplete;
            }
            Err(error) => {
                let (reply, summary) =
                    (LocalReply::Invalid(error), RequestSummary::from_invalid(self.input.filled()));
                RequestRecord::new(self.client.peer, "HTTP/1.1", worker.now())
                    .finish_with_reply(worker, &summary, reply);
                let is_head_request = summary.method == "HEAD";
                return Http1ParseResult::Reply {
                    reply,
                    is_head_request,
                    framing: BodyFraming::None,
                    keep_alive: false,
                };
            }
        };
        (self.has_partial_head, self.scanned) = (false, 0);
        let config = worker.config();
        let name = config.spec.server.client_header.as_deref().and_then(|name| head.value(name.as_bytes()));
        let request_client = self.client.identify(&config, head.values(b"x-forwarded-for"), name);
        let mut record = RequestRecord::new(request_client.address, protocol(head.minor), worker.now());
        let is_head_request = head.method == "HEAD";
        let target = config.find_target(head.host, head.path).cloned();
        let admitted = match &target {
            None => Err(LocalReply::NoRoute),
            Some(target) => {
                record.set_target(target);
                self.client.admit(target, &request_client)
            }
        };
        let refused = admitted.as_ref().err().copied();
        record.set_client(worker, &request_client, refused);
        let body = BodyDecoder::new(head.framing, config.spec.server.max_body).err();
        let length = head.length;
        let parsed = match (target, refused.or(body.map(LocalReply::Invalid))) {
            (Some(target), None) => {
                self.request_out = WriteBuffer::new();
                head.compose(&self.client.forwarding_info(&config), &mut self.request_out.bytes);
                self.record = Some(record);
                Http1ParseResult::Routed(RoutedRequest {
                    framing: head.framing,
                    is_head_request,
                    is_idempotent: is_idempotent(head.method),
                    keeps_alive: head.keeps_alive && !self.client.has_reached_client_limit(),
                    minor: head.minor,
                    wants_upgrade: head.upgrade.is_some(),
                    expects_continue: head.expects_continue,
                    target,
                    config: Arc::clone(&config),
                })
            }
            (_, reply) => {
                let reply = reply.unwrap_or(LocalReply::NoRoute);
                record.finish_with_reply(worker, &RequestSummary::from_head(&head), reply);
                let is_last =
                    self.client.closes_after(&config, reply) || self.client.has_reached_client_limit();
                let keep_alive = head.keeps_alive && !head.expects_continue && !is_last;
                Http1ParseResult::Reply { reply, is_head_request, framing: head.framing, keep_alive }
            }
        };
        self.input.consume(length);
        parsed
    }

    /// Sends a local reply and discards the request's body.
    async fn send_reply(
        &mut self,
        reply: LocalReply,
        is_head_request: bool,
        framing: BodyFraming,
        keep_alive: bool,
    ) -> Result<(), ClientConnectionEnd> {
        let keep_alive = keep_alive && !self.deadline.is_shutting_down();
        let unwanted = BodyDecoder::new(framing, MAX_DISCARDED).ok().filter(|_| keep_alive);
        let keep_alive = unwanted.is_some();
        reply.write(is_head_request, !keep_alive, &mut self.response_out.bytes);
        if let Some(mut unwanted) = unwanted {
            while !unwanted.is_done() {
                let piece = unwanted.next(self.input.filled()).map(|piece| piece.used);
                match piece {
                    // The body is too large or invalid. The connection must close.
                    Err(_) => return self.flush().await.and(Err(reply.connection_end())),
                    Ok(0) => {
                        self.flush().await?;
                        self.read_unwanted_body().await?;
                    }
                    Ok(used) => self.input.consume(used),
                }
            }
        }
        // Replies to pipelined requests are collected and sent together.
        if self.input.is_empty() || !keep_alive || self.response_out.bytes.len() > BUFFER_SIZE {
            self.flush().await?;
        }
        if keep_alive { Ok(()) } else { Err(reply.connection_end()) }
    }

    /// Waits for more of a body that is discarded.
    async fn read_unwanted_body(&mut self) -> Result<(), ClientConnectionEnd> {
        let max_wait = self.client.worker.config().spec.server.body_timeout;
        self.deadline.set_timeout(Instant::now(), max_wait);
        let (stream, input, deadline) = (&mut self.stream, &mut self.input, &mut self.deadline);
        std::future::poll_fn(|cx| match input.poll_fill(Pin::new(&mut *stream), cx) {
            Poll::Ready(Ok(0) | Err(_)) => Poll::Ready(Err(ClientConnectionEnd::ClientClosed)),
            Poll::Ready(Ok(_)) => Poll::Ready(Ok(())),
            Poll::Pending => {
                let _late = ready!(deadline.poll(cx, ConnectionActivity::Busy));
                Poll::Ready(Err(ClientConnectionEnd::SlowBody))
            }
        })
        .await
    }

    /// Writes `response_out` to the client.
    async fn flush(&mut self) -> Result<(), ClientConnectionEnd> {
        let max_wait = self.client.worker.config().spec.server.body_timeout;
        let (stream, response_out, deadline) = (&mut self.stream, &mut self.response_out, &mut self.deadline);
        let mut is_set = false;
        std::future::poll_fn(|cx| {
            match response_out.poll_write(Pin::new(&mut *stream), cx, false) {
                Poll::Ready(Ok(())) => {
                    return Pin::new(&mut *stream)
                        .poll_flush(cx)
                        .map_err(|_| ClientConnectionEnd::ClientClosed);
                }
                Poll::Ready(Err(_)) => return Poll::Ready(Err(ClientConnectionEnd::ClientClosed)),
                Poll::Pending => {}
            }
            if !std::mem::replace(&mut is_set, true) {
                deadline.set_timeout(Instant::now(), max_wait);
            }
            let _late = ready!(deadline.poll(cx, ConnectionActivity::Busy));
            Poll::Ready(Err(ClientConnectionEnd::SlowReader))
        })
        .await
    }

    /// Forwards a request: picks an endpoint, sends the request and relays the response. Retries with another
    /// endpoint where that is safe.
    async fn forward(&mut self, mut request: RoutedRequest) -> Result<(), ClientConnectionEnd> {
        let mut tried: Vec<Arc<UpstreamEndpoint>> = Vec::new();
        let mut attempts = 0;
        let mut failure = LocalReply::NoEndpoint;
        loop {
            let backend = &request.target.backend;
            let picked =
                backend.pick(self.client.worker.uptime(), &tried).filter(|_| attempts < MAX_ATTEMPTS);
            let Some(endpoint) = picked else { return self.reply_failure(request, failure).await };
            attempts += 1;
            if let Some(record) = &mut self.record {
                record.set_endpoint(&self.client.worker, &endpoint, attempts);
            }
            let in_flight = endpoint.begin_request();
            let pooled = self.client.worker.http1_pool.take(&endpoint);
            let is_pooled = pooled.is_some();
            let upstream = match pooled {
                Some(upstream) => upstream,
                None => match connect(&endpoint, backend.connect_timeout).await {
                    Ok(upstream) => {
                        endpoint.record_connect();
                        upstream
                    }
                    Err(error) => {
                        let (reply, is_endpoint_fault) = classify_connect_error(&error);
                        failure = reply;
                        if is_endpoint_fault {
                            self.client.worker.record_upstream_failure(
                                &endpoint,
                                UpstreamFailure::Connect,
                                &error,
                            );
                            endpoint.record_connect_failure(self.client.worker.uptime());
                        }
                        tried.push(endpoint);
                        continue;
                    }
                },
            };
            match self.run_exchange(&mut request, &endpoint, upstream).await? {
                ExchangeOutcome::Done => {
                    drop(in_flight);
                    return Ok(());
                }
                ExchangeOutcome::Failed { reply, can_retry } => {
                    failure = reply;
                    if !can_retry {
                        return self.reply_failure(request, failure).await;
                    }
                    if !is_pooled {
                        tried.push(endpoint);
                    }
                    self.request_out.rewind();
                }
            }
        }
    }

    /// Answers a request that no endpoint could serve. The rest of its body is not read.
    async fn reply_failure(
        &mut self,
        request: RoutedRequest,
        reply: LocalReply,
    ) -> Result<(), ClientConnectionEnd> {
        let worker = Arc::clone(&self.client.worker);
        if let Some(record) = self.record.take() {
            record.finish_with_reply(&worker, &RequestSummary::from_composed(&self.request_out.bytes), reply);
        }
        let has_body = !matches!(request.framing, BodyFraming::None | BodyFraming::Length(0));
        self.send_reply(reply, request.is_head_request, BodyFraming::None, request.keeps_alive && !has_body)
            .await
    }

    async fn run_exchange(
        &mut self,
        request: &mut RoutedRequest,
        endpoint: &Arc<UpstreamEndpoint>,
        upstream: TcpStream,
    ) -> Result<ExchangeOutcome, ClientConnectionEnd> {
        let worker = Arc::clone(&self.client.worker);
        let body = match BodyDecoder::new(request.framing, request.config.spec.server.max_body) {
            Ok(body) => body,
            Err(error) => {
                return Ok(ExchangeOutcome::Failed { reply: LocalReply::Invalid(error), can_retry: false });
            }
        };
        let mut exchange = Http1Exchange::new(
            &mut self.stream,
            &mut self.input,
            upstream,
            &mut self.request_out,
            &mut self.response_out,
            body,
            &worker.state.shutdown,
        );
        exchange.set_request(request.framing, request.is_head_request, request.minor, request.keeps_alive);
        exchange.allow_upgrade(request.wants_upgrade);
        if request.expects_continue {
            exchange.send_continue();
        }
        let (response, server) = (request.target.backend.response_timeout, &request.config.spec.server);
        let (deadline, record) = (&mut self.deadline, &mut self.record);
        deadline.set_timeout(Instant::now(), response);
        let ended = std::future::poll_fn(|cx| {
            if let Poll::Ready(ended) = exchange.poll(cx) {
                return Poll::Ready(ended);
            }
            if exchange.has_progressed() {
                if let Some(record) = record {
                    *record.progress_mut() = exchange.progress();
                }
                let max_wait = if exchange.waits_for_response() { response } else { server.body_timeout };
                deadline.set_timeout(Instant::now(), max_wait);
            }
            match deadline.poll(cx, ConnectionActivity::Busy) {
                Poll::Ready(Interruption::TimedOut) => Poll::Ready(Err(exchange.timeout_error())),
                _ => Poll::Pending,
            }
        })
        .await;
        let progress = exchange.progress();
        match ended {
            Ok(ExchangeEnd::Completed { upstream, keep_alive }) => {
                let now = worker.now();
                if let Some(upstream) = upstream {
                    worker.http1_pool.keep(endpoint, upstream, now, request.target.backend.idle_timeout);
                }
                if let Some(record) = self.record.take() {
                    record.finish(
                        &worker,
                        || RequestSummary::from_composed(&self.request_out.bytes),
                        progress,
                        now,
                    );
                }
                if keep_alive { Ok(ExchangeOutcome::Done) } else { Err(ClientConnectionEnd::Completed) }
            }
            Ok(ExchangeEnd::Upgraded { upstream, arrived }) => {
                Err(self.relay_upgraded(upstream, arrived, server.tunnel_timeout, progress).await)
            }
            Err(error) => self.handle_exchange_error(request, endpoint, error, progress),
        }
    }

    /// Decides between a retry, a local reply and closing the connection after a failed exchange.
    fn handle_exchange_error(
        &mut self,
        request: &mut RoutedRequest,
        endpoint: &UpstreamEndpoint,
        error: ExchangeError,
        progress: TransferProgress,
    ) -> Result<ExchangeOutcome, ClientConnectionEnd> {
        let worker = Arc::clone(&self.client.worker);
        if let Some(failure_kind) = error.upstream_failure() {
            worker.record_upstream_failure(endpoint, failure_kind, &error);
        }
        if let (Some(reply), 0) = (error.reply(), progress.status) {
            let can_retry = error.can_retry(request.is_idempotent);
            if let Some(record) = &mut self.record {
                *record.progress_mut() = TransferProgress { sent: 0, ..progress };
            }
            return Ok(ExchangeOutcome::Failed { reply, can_retry });
        }
        // The client already has part of the response. Closing the connection is the only signal left.
        let end = error.connection_end();
        if let Some(record) = self.record.take() {
            record.fail(
                &worker,
                || RequestSummary::from_composed(&self.request_out.bytes),
                progress,
                end,
                worker.now(),
            );
        }
        Err(end)
    }
}

/// The result of an exchange if the client is still connected.
enum ExchangeOutcome {
    Done,
    /// The client has received nothing of a response.
    Failed {
        reply: LocalReply,
        can_retry: bool,
    },
}

const fn protocol(minor: u8) -> &'static str {
    if minor == 0 { "HTTP/1.0" } else { "HTTP/1.1" }
}

/// Whether the method is idempotent, so that the request may be sent twice.
fn is_idempotent(method: &str) -> bool {
    matches!(method, "GET" | "HEAD" | "OPTIONS" | "PUT" | "DELETE")
}
