//! The buffers: buffers that all connections of a worker share.
//!
//! A connection needs a buffer only while it is answered, and a worker answers one at a time. So ten thousand connections that say
//! nothing cost no buffers at all; only what is half said or not yet taken is pending_input by the connection itself.

use std::cell::Cell;

use crate::http::CompactAcquireBuffers;
use crate::resp::frame::MAX_FRAME_BYTES;
use crate::resp::session::SessionBuffers;

/// How much is read at once, beside what was pending_input of a frame.
const READ_BYTES: usize = 64 * 1024;

/// Output buffers that have grown beyond this are not pending_input.
const MAX_KEPT_OUTPUT: usize = 1 << 20;

/// Two buffers, and room to decide in.
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

/// Does something at this thread's buffers. If it panics, the next one gets a new buffers.
pub(super) fn with_thread_buffers<T>(work: impl FnOnce(&mut ThreadBuffers) -> T) -> T {
    let mut buffers = BUFFERS.take().unwrap_or_else(ThreadBuffers::new);
    let done = work(&mut buffers);
    buffers.output.clear();
    if buffers.output.capacity() <= MAX_KEPT_OUTPUT {
        BUFFERS.set(Some(buffers));
    }
    done
}
