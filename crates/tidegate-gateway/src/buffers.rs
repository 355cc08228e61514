//! Read and write buffers of connections. A connection holds memory only while it needs it; spare buffers
//! return to a per-thread pool.

use std::cell::RefCell;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::{io, mem};

use tokio::io::{AsyncRead, ReadBuf};

/// The size of a buffer, unless a message head needs more.
pub(crate) const BUFFER_SIZE: usize = 16 * 1024;
/// The maximum number of spare buffers per thread.
const MAX_SPARE: usize = 256;

thread_local! {
    static SPARE_BUFFERS: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
    static SPARE_VECS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Received bytes that are not consumed yet.
#[derive(Debug, Default)]
pub(crate) struct ReadBuffer {
    /// Empty until the first read.
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl ReadBuffer {
    /// The received bytes.
    pub(crate) fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Consumes the first `length` bytes.
    pub(crate) fn consume(&mut self, length: usize) {
        self.start = (self.start + length).min(self.end);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Whether nothing more fits until bytes are consumed or the buffer grows.
    pub(crate) fn is_full(&self) -> bool {
        self.end - self.start == self.bytes.len() && !self.bytes.is_empty()
    }

    /// Grows the buffer, for large heads.
    pub(crate) fn grow(&mut self, to: usize) {
        if to > self.bytes.len() {
            let mut larger = vec![0; to].into_boxed_slice();
            let length = self.end - self.start;
            larger[..length].copy_from_slice(self.filled());
            *self = ReadBuffer { bytes: larger, start: 0, end: length };
        }
    }

    /// Returns the memory to the pool if the buffer is empty.
    pub(crate) fn release_if_empty(&mut self) {
        if self.is_empty() {
            recycle(mem::take(&mut self.bytes));
            (self.start, self.end) = (0, 0);
        }
    }

    /// Creates a buffer with this content.
    pub(crate) fn from_bytes(bytes: &[u8]) -> ReadBuffer {
        let mut buffer = ReadBuffer::default();
        if !bytes.is_empty() {
            buffer.reserve();
            buffer.grow(bytes.len());
            buffer.bytes[..bytes.len()].copy_from_slice(bytes);
            buffer.end = bytes.len();
        }
        buffer
    }

    fn reserve(&mut self) {
        if self.bytes.is_empty() {
            let spare = SPARE_BUFFERS.with_borrow_mut(Vec::pop);
            self.bytes = spare.unwrap_or_else(|| vec![0; BUFFER_SIZE].into_boxed_slice());
        } else if self.end == self.bytes.len() && self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
    }

    /// Reads more and returns the number of bytes; 0 is the end of the stream. The buffer must not be full.
    pub(crate) fn poll_fill(
        &mut self,
        from: Pin<&mut impl AsyncRead>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        self.reserve();
        let mut unfilled = ReadBuf::new(&mut self.bytes[self.end..]);
        ready!(from.poll_read(cx, &mut unfilled))?;
        let length = unfilled.filled().len();
        self.end += length;
        Poll::Ready(Ok(length))
    }
}

impl Drop for ReadBuffer {
    fn drop(&mut self) {
        recycle(mem::take(&mut self.bytes));
    }
}

fn recycle(bytes: Box<[u8]>) {
    if bytes.len() == BUFFER_SIZE {
        // A thread that is exiting keeps no buffers.
        let _kept = SPARE_BUFFERS.try_with(|spare| {
            if let Ok(mut spare) = spare.try_borrow_mut()
                && spare.len() < MAX_SPARE
            {
                spare.push(bytes);
            }
        });
    }
}

/// Bytes to write, and how many of them are written.
#[derive(Debug, Default)]
pub(crate) struct WriteBuffer {
    pub(crate) bytes: Vec<u8>,
    written: usize,
}

impl WriteBuffer {
    /// Creates an empty buffer with pooled memory.
    pub(crate) fn new() -> WriteBuffer {
        let bytes = SPARE_VECS.with_borrow_mut(Vec::pop).unwrap_or_default();
        WriteBuffer { bytes, written: 0 }
    }

    /// Whether everything is written.
    pub(crate) fn is_empty(&self) -> bool {
        self.written == self.bytes.len()
    }

    /// The number of bytes left to write.
    pub(crate) fn remaining(&self) -> usize {
        self.bytes.len() - self.written
    }

    /// Whether nothing is written yet.
    pub(crate) fn is_unsent(&self) -> bool {
        self.written == 0
    }

    /// Starts writing from the beginning again.
    pub(crate) fn rewind(&mut self) {
        self.written = 0;
    }

    /// Writes as much as the stream takes. Clears the buffer once everything is written, unless `keep` is
    /// set.
    pub(crate) fn poll_write(
        &mut self,
        mut to: Pin<&mut impl tokio::io::AsyncWrite>,
        cx: &mut Context<'_>,
        keep: bool,
    ) -> Poll<io::Result<()>> {
        while self.written < self.bytes.len() {
            let length = ready!(to.as_mut().poll_write(cx, &self.bytes[self.written..]))?;
            if length == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += length;
        }
        if !keep {
            self.bytes.clear();
            self.written = 0;
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for WriteBuffer {
    fn drop(&mut self) {
        let mut bytes = mem::take(&mut self.bytes);
        if (1..=4 * BUFFER_SIZE).contains(&bytes.capacity()) {
            bytes.clear();
            let _kept = SPARE_VECS.try_with(|spare| {
                if let Ok(mut spare) = spare.try_borrow_mut()
                    && spare.len() < MAX_SPARE
                {
                    spare.push(bytes);
                }
            });
        }
    }
}
