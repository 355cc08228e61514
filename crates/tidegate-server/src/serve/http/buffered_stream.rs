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

use super::request_tracker::Calls;
use crate::serve::bounds::FAREWELL;

/// The rest of a connection.
#[derive(Debug)]
pub(super) struct Rest {
    stream: TcpStream,
    heard: Vec<u8>,
    /// How much of what was heard has been read again.
    read: usize,
    /// Who is told that something was read.
    calls: Option<Arc<Calls>>,
    deafness: Patience,
    farewell: Patience,
}

/// How long nothing may happen.
#[derive(Debug)]
struct Patience {
    length: Duration,
    alarm: Option<Pin<Box<Sleep>>>,
}

impl Patience {
    const fn of(length: Duration) -> Patience {
        Patience { length, alarm: None }
    }

    /// Nothing happened, again.
    fn nothing<T>(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        let length = self.length;
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(tokio::time::sleep(length)));
        alarm.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }

    fn something(&mut self) {
        self.alarm = None;
    }
}

impl Rest {
    /// A connection of which this was heard; how long it may take nothing, and who is told when it says something.
    pub(super) fn new(
        stream: TcpStream,
        heard: Vec<u8>,
        deafness: Duration,
        calls: Option<Arc<Calls>>,
    ) -> Rest {
        let (deafness, farewell) = (Patience::of(deafness), Patience::of(FAREWELL));
        Rest { stream, heard, read: 0, calls, deafness, farewell }
    }

    fn has_heard(&self) {
        if let Some(calls) = &self.calls {
            calls.heard();
        }
    }
}

impl AsyncRead for Rest {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.read < this.heard.len() {
            let rest = &this.heard[this.read..];
            let length = rest.len().min(buffer.remaining());
            buffer.put_slice(&rest[..length]);
            this.read += length;
            if this.read == this.heard.len() {
                (this.heard, this.read) = (Vec::new(), 0);
            }
            this.has_heard();
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            this.has_heard();
        }
        read
    }
}

impl Rest {
    fn noticed<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match written {
            Poll::Pending => self.deafness.nothing(cx),
            ready => {
                self.deafness.something();
                ready
            }
        }
    }
}

impl AsyncWrite for Rest {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, text: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, text);
        self.noticed(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        texts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, texts);
        self.noticed(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let written = Pin::new(&mut self.stream).poll_flush(cx);
        self.noticed(cx, written)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
        let mut heard = [0; 1024];
        loop {
            let mut room = ReadBuf::new(&mut heard);
            match Pin::new(&mut this.stream).poll_read(cx, &mut room) {
                Poll::Ready(Ok(())) if !room.filled().is_empty() => {}
                Poll::Ready(_) => return Poll::Ready(Ok(())),
                Poll::Pending => {
                    let _time_is_up: io::Result<()> = ready!(this.farewell.nothing(cx));
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}
