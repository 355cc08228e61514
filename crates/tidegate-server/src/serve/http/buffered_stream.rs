//! A connection of which something was read already, whose client has to take its answers, and which ends so that it hears the last.
//!
//! hyper knows nothing about a client that does not take its answer, so whatever is not taken for too long ends the connection here.
//! And it closes a connection on which something is unread, whereupon the kernel throws away what was said; so what is said after the
//! end is read here and thrown away for a while.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

use super::request_tracker::RequestTracker;
use crate::serve::bounds::LINGER_TIMEOUT;

/// The rest of a connection.
#[derive(Debug)]
pub(super) struct BufferedStream {
    stream: TcpStream,
    replay: Vec<u8>,
    /// How much of what was replay has been read again.
    read: usize,
    /// Caller is told that something was read.
    tracker: Option<Arc<RequestTracker>>,
    write_stall: StallTimer,
    linger: StallTimer,
}

/// How long nothing may happen.
#[derive(Debug)]
struct StallTimer {
    length: Duration,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl StallTimer {
    const fn of(length: Duration) -> StallTimer {
        StallTimer { length, sleep: None }
    }

    /// Nothing happened, again.
    fn poll_stalled<T>(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        let length = self.length;
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep(length)));
        sleep.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }

    fn reset(&mut self) {
        self.sleep = None;
    }
}

impl BufferedStream {
    /// A connection of which this was replay; how long it may take nothing, and who is told when it says something.
    pub(super) fn new(
        stream: TcpStream,
        replay: Vec<u8>,
        write_stall: Duration,
        tracker: Option<Arc<RequestTracker>>,
    ) -> BufferedStream {
        let (write_stall, linger) = (StallTimer::of(write_stall), StallTimer::of(LINGER_TIMEOUT));
        BufferedStream { stream, replay, read: 0, tracker, write_stall, linger }
    }

    fn record_read(&self) {
        if let Some(tracker) = &self.tracker {
            tracker.record_read();
        }
    }
}

impl AsyncRead for BufferedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.read < this.replay.len() {
            let rest = &this.replay[this.read..];
            let length = rest.len().min(buffer.remaining());
            buffer.put_slice(&rest[..length]);
            this.read += length;
            if this.read == this.replay.len() {
                (this.replay, this.read) = (Vec::new(), 0);
            }
            this.record_read();
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            this.record_read();
        }
        read
    }
}

impl BufferedStream {
    fn track_write<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match written {
            Poll::Pending => self.write_stall.poll_stalled(cx),
            ready => {
                self.write_stall.reset();
                ready
            }
        }
    }
}

impl AsyncWrite for BufferedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, text: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, text);
        self.track_write(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        texts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, texts);
        self.track_write(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let written = Pin::new(&mut self.stream).poll_flush(cx);
        self.track_write(cx, written)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
        let mut discarded = [0; 1024];
        loop {
            let mut room = ReadBuf::new(&mut discarded);
            match Pin::new(&mut this.stream).poll_read(cx, &mut room) {
                Poll::Ready(Ok(())) if !room.filled().is_empty() => {}
                Poll::Ready(_) => return Poll::Ready(Ok(())),
                Poll::Pending => {
                    let _time_is_up: io::Result<()> = ready!(this.linger.poll_stalled(cx));
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}
