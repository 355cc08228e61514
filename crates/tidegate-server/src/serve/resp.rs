//! One RESP connection: moves bytes between the socket and a session.
//!
//! Input is answered inside the poll that read it, with one write. The connection waits only for a slow client, for the store's log,
//! and for decisions of a remote store. Ready replies are written before such a wait, and nothing is read during it.

use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tidegate::store::durable;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::ConnectionEnd;
use super::bounds::YIELD_AFTER_BYTES;
use super::busy_poll::PollWindow;
use super::deadline_watch::{DeadlineWatch, RequestPhase, WaitInterrupt};
use super::reply_writer::{close_with_linger, write_all};
use super::thread_buffers::{ThreadBuffers, with_thread_buffers};
use super::worker::ServerWorker;
use crate::metrics::CutReason;
use crate::resp::reply::RespWriter;
use crate::resp::{DeferredReply, FeedNext, PendingStoreCall, RespSession, SessionCounts};

/// The error text after too many failed attempts; the seconds match `Retry-After`.
fn too_many_failures(wait: Duration) -> String {
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    format!("too many failed attempts from this address; try again in {seconds} s")
}

/// A connection and what it keeps between polls.
struct RespConnection {
    stream: TcpStream,
    address: IpAddr,
    session: RespSession,
    worker: Arc<ServerWorker>,
    /// A partial frame, or the input behind a pending store call.
    pending_input: Vec<u8>,
    /// Output that the client has not accepted yet.
    pending_output: Vec<u8>,
    /// Replies that wait for the store's log, and the output behind them.
    deferred_output: Option<DeferredOutput>,
    /// When the first byte of the partial frame arrived.
    partial_since: Option<Instant>,
    /// Number of bytes processed in the last turn.
    batch_bytes: usize,
    /// The current window of busy polling.
    poll_window: Option<PollWindow>,
    /// A reply was written after the shutdown was triggered.
    is_last_reply_written: bool,
}

/// Output with replies that wait for the log.
struct DeferredOutput {
    text: Vec<u8>,
    deferred: Vec<DeferredReply>,
}

/// What to do after a poll.
enum RespStep {
    Read,
    /// Write the pending output; the input may hold more whole frames.
    Write,
    Wait(PendingStoreCall),
    /// Write the pending output, then close.
    Close,
}

/// Serves a connection until either side closes it.
pub(super) async fn serve(stream: TcpStream, address: IpAddr, worker: Arc<ServerWorker>) -> ConnectionEnd {
    let session = RespSession::new(Arc::clone(&worker.state.resp));
    let mut watch = DeadlineWatch::new(&worker.state.shutdown, worker.clock.now(), worker.state.bounds.idle);
    let mut connection = RespConnection {
        stream,
        address,
        session,
        worker,
        pending_input: Vec::new(),
        pending_output: Vec::new(),
        deferred_output: None,
        partial_since: None,
        batch_bytes: 0,
        poll_window: None,
        is_last_reply_written: false,
    };
    let end = connection.run(&mut watch).await;
    if connection.is_last_reply_written || end == ConnectionEnd::Completed {
        close_with_linger(connection.stream).await;
    }
    connection.session.cut().map_or(end, ConnectionEnd::Cut)
}

impl RespConnection {
    /// Reads and answers until the connection ends.
    async fn run(&mut self, watch: &mut DeadlineWatch) -> ConnectionEnd {
        loop {
            let next = match self.read_step(watch).await {
                Ok(next) => next,
                Err(end) => return end,
            };
            if let Some(end) = self.finish_step(next).await {
                return end;
            }
            if self.is_last_reply_written {
                return ConnectionEnd::Draining;
            }
            if self.batch_bytes >= YIELD_AFTER_BYTES {
                // A client that sends without pause must not starve the others.
                tokio::task::yield_now().await;
            }
        }
    }

    /// Waits for input and processes it.
    async fn read_step(&mut self, watch: &mut DeadlineWatch) -> Result<RespStep, ConnectionEnd> {
        let bounds = &self.worker.state.bounds;
        // The deadline of a frame does not move when more pieces of it arrive.
        let (phase, deadline) = match self.partial_since {
            None => (RequestPhase::Idle, self.worker.clock.now() + bounds.idle),
            Some(since) => (RequestPhase::InRequest, since + bounds.head()),
        };
        watch.set_deadline(deadline);
        poll_fn(|cx| {
            if let Poll::Ready(next) = with_thread_buffers(|buffers| self.poll_read(cx, buffers)) {
                return Poll::Ready(next);
            }
            let Poll::Ready(interruption) = watch.poll(cx, phase) else {
                self.keep_polling(cx);
                return Poll::Pending;
            };
            Poll::Ready(Err(match interruption {
                WaitInterrupt::Shutdown => ConnectionEnd::Draining,
                WaitInterrupt::DeadlinePassed if phase == RequestPhase::Idle => {
                    ConnectionEnd::Cut(CutReason::Idle)
                }
                WaitInterrupt::DeadlinePassed => ConnectionEnd::Cut(CutReason::SlowRequest),
            }))
        })
        .await
    }

    /// Inside the busy-poll window, schedules another poll after the worker has polled its sockets.
    fn keep_polling(&mut self, cx: &mut Context<'_>) {
        let Some(poll_window) = self.poll_window else { return };
        if self.worker.busy_poll.is_active(poll_window, self.worker.since(poll_window.since)) {
            let _again = pin!(tokio::task::yield_now()).poll(cx);
        } else {
            self.poll_window = None;
        }
    }

    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffers: &mut ThreadBuffers,
    ) -> Poll<Result<RespStep, ConnectionEnd>> {
        let before = self.pending_input.len();
        buffers.input[..before].copy_from_slice(&self.pending_input);
        let mut room = ReadBuf::new(&mut buffers.input[before..]);
        let read = std::task::ready!(Pin::new(&mut self.stream).poll_read(cx, &mut room));
        let length = room.filled().len();
        Poll::Ready(match read {
            Ok(()) if length == 0 => Err(ConnectionEnd::ClientClosed),
            Ok(()) => Ok(self.process_input(before + length, buffers)),
            Err(_) => Err(ConnectionEnd::ClientClosed),
        })
    }

    /// Processes the first `length` bytes of the input buffer.
    fn process_input(&mut self, length: usize, buffers: &mut ThreadBuffers) -> RespStep {
        let (mut done, mut counts) = (0, SessionCounts::default());
        self.batch_bytes = length;
        buffers.session.swap(&mut self.session);
        let start = self.worker.timer.raw();
        self.worker
            .busy_poll
            .begin_batch(self.worker.timer.delta_as_nanos(self.worker.busy_poll.last_end(), start));
        loop {
            let fed = self.session.feed(&buffers.input[done..length], &mut buffers.output);
            done += fed.consumed;
            counts += fed.counts;
            let next = match fed.then {
                FeedNext::Feed if self.has_failed_too_often(&mut buffers.output) => RespStep::Close,
                FeedNext::Feed => RespStep::Write,
                FeedNext::Read => RespStep::Read,
                FeedNext::Wait(awaited) => RespStep::Wait(awaited),
                FeedNext::Close => RespStep::Close,
            };
            self.defer_output(fed.deferred, &mut buffers.output);
            let is_flushed = self.write_now(&mut buffers.output);
            if matches!(next, RespStep::Write) && is_flushed && self.deferred_output.is_none() {
                continue;
            }
            buffers.session.swap(&mut self.session);
            self.retain_input(&buffers.input[done..length], done);
            let end = self.worker.timer.raw();
            self.worker.metrics.resp_fed(&counts, self.worker.timer.delta_as_nanos(start, end));
            let poll_window = self.worker.busy_poll.end_batch(counts.commands, end);
            self.poll_window = poll_window.filter(|_| is_flushed && self.deferred_output.is_none());
            return if is_flushed || !matches!(next, RespStep::Read) { next } else { RespStep::Write };
        }
    }

    /// Moves all output from the first deferred reply on out of the shared buffer.
    fn defer_output(&mut self, mut deferred: Vec<DeferredReply>, output: &mut Vec<u8>) {
        let Some(first) = deferred.first().map(|reply| reply.span.start) else { return };
        for DeferredReply { span, .. } in &mut deferred {
            *span = span.start - first..span.end - first;
        }
        // An exact copy: the shared buffer is large and stays where it is.
        self.deferred_output = Some(DeferredOutput { text: output[first..].to_vec(), deferred });
        output.truncate(first);
    }

    /// Sends deferred replies in order as the log becomes durable. If the log fails, sends errors instead.
    async fn send_deferred(&mut self) -> Result<(), ConnectionEnd> {
        let Some(DeferredOutput { text, deferred }) = self.deferred_output.take() else { return Ok(()) };
        let (service, mut done) = (Arc::clone(&self.worker.state.resp), 0);
        for reply in deferred {
            self.pending_output.extend_from_slice(&text[done..reply.span.start]);
            done = reply.span.end;
            let mut durable = pin!(durable(service.store(), reply.lsn));
            let has_output = !self.pending_output.is_empty();
            let polled = poll_fn(|cx| match durable.as_mut().poll(cx) {
                Poll::Pending if has_output => Poll::Ready(None),
                polled => polled.map(Some),
            });
            let durable = if let Some(durable) = polled.await {
                durable
            } else {
                self.flush().await?;
                durable.await
            };
            match durable {
                // Common case: one reply spans all of the text, which is moved, not copied.
                Ok(()) if self.pending_output.is_empty() && reply.span == (0..text.len()) => {
                    self.pending_output = text;
                    return Ok(());
                }
                Ok(()) => self.pending_output.extend_from_slice(&text[reply.span]),
                Err(why) => reply.write_errors(&why, self.session.protocol(), &mut self.pending_output),
            }
        }
        self.pending_output.extend_from_slice(&text[done..]);
        Ok(())
    }

    /// Keeps the unprocessed rest of the input after `done` bytes were processed.
    fn retain_input(&mut self, rest: &[u8], done: usize) {
        self.is_last_reply_written |= done > 0 && self.worker.state.shutdown.is_triggered();
        if rest.is_empty() {
            // An idle connection keeps no buffer.
            self.pending_input = Vec::new();
            self.partial_since = None;
        } else {
            self.pending_input.clear();
            self.pending_input.extend_from_slice(rest);
            let is_another = done > 0 || self.partial_since.is_none();
            self.partial_since = if is_another { Some(Instant::now()) } else { self.partial_since };
        }
    }

    fn has_failed_too_often(&mut self, output: &mut Vec<u8>) -> bool {
        let failures = self.session.take_failures();
        let failed_auths = &self.worker.state.failed_auths;
        let wait = (0..failures).find_map(|_| failed_auths.record_failure(self.address));
        if let Some(wait) = wait {
            RespWriter::new(output, self.session.protocol()).error("ERR", too_many_failures(wait));
        }
        wait.is_some()
    }

    /// Writes as much as the socket accepts now. Returns whether everything was written.
    fn write_now(&mut self, output: &mut Vec<u8>) -> bool {
        if output.is_empty() && self.pending_output.is_empty() {
            return true;
        }
        let written = if self.pending_output.is_empty() { self.stream.try_write(output) } else { Ok(0) };
        match written {
            Ok(length) => self.pending_output.extend_from_slice(&output[length..]),
            // Other errors are reported by the next blocking write.
            Err(_) => self.pending_output.extend_from_slice(output),
        }
        output.clear();
        self.pending_output.is_empty()
    }

    /// Completes a step that needs to wait. `Some` if the connection has ended.
    async fn finish_step(&mut self, mut next: RespStep) -> Option<ConnectionEnd> {
        loop {
            if let Err(end) = self.send_deferred().await {
                return Some(end);
            }
            if let Err(end) = self.flush().await {
                return Some(end);
            }
            match next {
                RespStep::Read => return None,
                RespStep::Close => return Some(ConnectionEnd::Completed),
                RespStep::Write => {}
                RespStep::Wait(awaited) => {
                    let answered = awaited.resolve().await;
                    self.session.resume(answered, &mut self.pending_output);
                }
            }
            next = with_thread_buffers(|buffers| {
                let length = self.pending_input.len();
                buffers.input[..length].copy_from_slice(&self.pending_input);
                self.process_input(length, buffers)
            });
        }
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
