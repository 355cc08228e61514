//! A connection of which something was read already, and which must not stand still.
//!
//! hyper knows when a head takes too long, and nothing about a client that stops in the middle of a body or does not take its answer.
//! So whatever is neither read nor written for too long ends the connection here.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

/// The rest of a connection.
#[derive(Debug)]
pub(super) struct Rest {
    stream: TcpStream,
    heard: Vec<u8>,
    /// How much of what was heard has been read again.
    read: usize,
    silence: Patience,
    deafness: Patience,
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
    /// A connection of which this was heard; how long it may say nothing, and how long it may take nothing.
    pub(super) fn new(stream: TcpStream, heard: Vec<u8>, silence: Duration, deafness: Duration) -> Rest {
        Rest { stream, heard, read: 0, silence: Patience::of(silence), deafness: Patience::of(deafness) }
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
            return Poll::Ready(Ok(()));
        }
        match Pin::new(&mut this.stream).poll_read(cx, buffer) {
            Poll::Pending => this.silence.nothing(cx),
            ready => {
                this.silence.something();
                ready
            }
        }
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
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
