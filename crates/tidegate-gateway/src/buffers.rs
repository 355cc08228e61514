//! Buffers: bytes that have arrived and are not settled yet. A connection has one only while it needs it; between, they lie with its thread.

use std::cell::RefCell;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::{io, mem};

use tokio::io::{AsyncRead, ReadBuf};

/// How large a buffer is, unless a head is larger.
pub(crate) const USUAL: usize = 16 * 1024;
/// How many a thread keeps for later.
const MOST_SPARE: usize = 256;

thread_local! {
    static SPARE: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
    static SPARE_LISTS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// What has arrived and is not settled.
#[derive(Debug, Default)]
pub(crate) struct Buffer {
    /// Empty until something is about to arrive.
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Buffer {
    /// What has arrived.
    pub(crate) fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// That many of the first bytes are settled.
    pub(crate) fn settle(&mut self, length: usize) {
        self.start = (self.start + length).min(self.end);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Whether nothing more can arrive before something is settled or the buffer has grown.
    pub(crate) fn is_full(&self) -> bool {
        self.end - self.start == self.bytes.len() && !self.bytes.is_empty()
    }

    /// Becomes larger, for heads that are.
    pub(crate) fn grow(&mut self, to: usize) {
        if to > self.bytes.len() {
            let mut larger = vec![0; to].into_boxed_slice();
            let length = self.end - self.start;
            larger[..length].copy_from_slice(self.filled());
            *self = Buffer { bytes: larger, start: 0, end: length };
        }
    }

    /// Lets go of its memory, if nothing is in it.
    pub(crate) fn rest(&mut self) {
        if self.is_empty() {
            give_back(mem::take(&mut self.bytes));
            (self.start, self.end) = (0, 0);
        }
    }

    /// A buffer with this in it.
    pub(crate) fn of(bytes: &[u8]) -> Buffer {
        let mut buffer = Buffer::default();
        if !bytes.is_empty() {
            buffer.prepare();
            buffer.grow(bytes.len());
            buffer.bytes[..bytes.len()].copy_from_slice(bytes);
            buffer.end = bytes.len();
        }
        buffer
    }

    fn prepare(&mut self) {
        if self.bytes.is_empty() {
            let spare = SPARE.with_borrow_mut(Vec::pop);
            self.bytes = spare.unwrap_or_else(|| vec![0; USUAL].into_boxed_slice());
        } else if self.end == self.bytes.len() && self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
    }

    /// Reads more; how much that was. Nothing is the end. Must not be full.
    pub(crate) fn poll_fill(
        &mut self,
        from: Pin<&mut impl AsyncRead>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        self.prepare();
        let mut room = ReadBuf::new(&mut self.bytes[self.end..]);
        ready!(from.poll_read(cx, &mut room))?;
        let length = room.filled().len();
        self.end += length;
        Poll::Ready(Ok(length))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        give_back(mem::take(&mut self.bytes));
    }
}

fn give_back(bytes: Box<[u8]>) {
    if bytes.len() == USUAL {
        // A thread that is about to end keeps nothing.
        let _kept = SPARE.try_with(|spare| {
            if let Ok(mut spare) = spare.try_borrow_mut()
                && spare.len() < MOST_SPARE
            {
                spare.push(bytes);
            }
        });
    }
}

/// What is still to be said, and how much of it was.
#[derive(Debug, Default)]
pub(crate) struct Unsaid {
    pub(crate) bytes: Vec<u8>,
    said: usize,
}

impl Unsaid {
    /// An empty one, with room.
    pub(crate) fn new() -> Unsaid {
        let bytes = SPARE_LISTS.with_borrow_mut(Vec::pop).unwrap_or_default();
        Unsaid { bytes, said: 0 }
    }

    /// Whether everything was said.
    pub(crate) fn is_empty(&self) -> bool {
        self.said == self.bytes.len()
    }

    /// How much is to be said still.
    pub(crate) fn left(&self) -> usize {
        self.bytes.len() - self.said
    }

    /// Whether nothing was said so far.
    pub(crate) fn is_untouched(&self) -> bool {
        self.said == 0
    }

    /// Says it from the beginning again.
    pub(crate) fn rewind(&mut self) {
        self.said = 0;
    }

    /// Says as much as is taken. Once all is said it is forgotten, unless it `stays`.
    pub(crate) fn poll_say(
        &mut self,
        mut to: Pin<&mut impl tokio::io::AsyncWrite>,
        cx: &mut Context<'_>,
        stays: bool,
    ) -> Poll<io::Result<()>> {
        while self.said < self.bytes.len() {
            let length = ready!(to.as_mut().poll_write(cx, &self.bytes[self.said..]))?;
            if length == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.said += length;
        }
        if !stays {
            self.bytes.clear();
            self.said = 0;
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for Unsaid {
    fn drop(&mut self) {
        let mut bytes = mem::take(&mut self.bytes);
        if (1..=4 * USUAL).contains(&bytes.capacity()) {
            bytes.clear();
            let _kept = SPARE_LISTS.try_with(|spare| {
                if let Ok(mut spare) = spare.try_borrow_mut()
                    && spare.len() < MOST_SPARE
                {
                    spare.push(bytes);
                }
            });
        }
    }
}
