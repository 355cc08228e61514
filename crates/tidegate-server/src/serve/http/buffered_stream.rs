//! A stream that replays bytes already read, times out slow readers, and drains its input before closing.
//!
//! hyper has no timeout for writes, so a client that accepts nothing for too long is disconnected here. hyper also closes connections
//! with unread input, which makes the kernel send a reset and drop the last response. So input after the shutdown of the write side
//! is read and discarded for a while.

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

/// The stream that hyper reads from and writes to.
#[derive(Debug)]
pub(super) struct BufferedStream {
    stream: TcpStream,
    replay: Vec<u8>,
    /// How much of `replay` hyper has read.
    read: usize,
    /// Notified when bytes are read.
    tracker: Option<Arc<RequestTracker>>,
    write_stall: StallTimer,
    linger: StallTimer,
}

/// A timer that runs while an operation is pending.
#[derive(Debug)]
struct StallTimer {
    length: Duration,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl StallTimer {
    const fn of(length: Duration) -> StallTimer {
        StallTimer { length, sleep: None }
    }

    /// Called when the operation is pending; fails when it was for too long.
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
    /// A stream that first yields `replay`. Writes may be pending for `write_stall`; reads are recorded in `tracker`.
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
                    let _timed_out: io::Result<()> = ready!(this.linger.poll_stalled(cx));
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}
