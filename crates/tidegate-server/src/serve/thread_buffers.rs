//! Buffers shared by all connections of a worker.
//!
//! A connection needs buffers only while it is polled, and a worker polls one connection at a time. So ten thousand idle connections
//! cost no buffers: only partial input and unsent output are kept per connection.

use std::cell::Cell;

use crate::http::CompactAcquireBuffers;
use crate::resp::frame::MAX_FRAME_BYTES;
use crate::resp::session::SessionBuffers;

/// How much is read at once, in addition to the rest of a partial frame.
const READ_BYTES: usize = 64 * 1024;

/// A larger output buffer is freed after use.
const MAX_KEPT_OUTPUT: usize = 1 << 20;

/// Input and output buffers, and scratch space for decisions.
#[derive(Debug)]
pub(super) struct ThreadBuffers {
    pub(super) input: Box<[u8]>,
    pub(super) output: Vec<u8>,
    pub(super) session: SessionBuffers,
    pub(super) compact_acquire: CompactAcquireBuffers,
}

impl ThreadBuffers {
    fn new() -> ThreadBuffers {
        let input = vec![0; MAX_FRAME_BYTES + READ_BYTES].into_boxed_slice();
        ThreadBuffers {
            input,
            output: Vec::with_capacity(READ_BYTES),
            session: SessionBuffers::default(),
            compact_acquire: CompactAcquireBuffers::default(),
        }
    }
}

thread_local! {
    static BUFFERS: Cell<Option<ThreadBuffers>> = const { Cell::new(None) };
}

/// Runs `work` with this thread's buffers. After a panic the next call allocates new ones.
pub(super) fn with_thread_buffers<T>(work: impl FnOnce(&mut ThreadBuffers) -> T) -> T {
    let mut buffers = BUFFERS.take().unwrap_or_else(ThreadBuffers::new);
    let done = work(&mut buffers);
    buffers.output.clear();
    if buffers.output.capacity() <= MAX_KEPT_OUTPUT {
        BUFFERS.set(Some(buffers));
    }
    done
}
