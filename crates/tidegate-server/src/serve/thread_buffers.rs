//! The desk: buffers that all connections of a worker share.
//!
//! A connection needs a buffer only while it is answered, and a worker answers one at a time. So ten thousand connections that say
//! nothing cost no buffers at all; only what is half said or not yet taken is kept by the connection itself.

use std::cell::Cell;

use crate::http::Counter;
use crate::resp::frame::LARGEST_FRAME;
use crate::resp::session::Workroom;

/// How much is read at once, beside what was kept of a frame.
const READ_AT_ONCE: usize = 64 * 1024;

/// Output buffers that have grown beyond this are not kept.
const LARGEST_KEPT_OUTPUT: usize = 1 << 20;

/// Two buffers, and room to decide in.
#[derive(Debug)]
pub(super) struct Desk {
    pub(super) input: Box<[u8]>,
    pub(super) output: Vec<u8>,
    pub(super) room: Workroom,
    pub(super) counter: Counter,
}

impl Desk {
    fn new() -> Desk {
        let input = vec![0; LARGEST_FRAME + READ_AT_ONCE].into_boxed_slice();
        Desk {
            input,
            output: Vec::with_capacity(READ_AT_ONCE),
            room: Workroom::default(),
            counter: Counter::default(),
        }
    }
}

thread_local! {
    static DESK: Cell<Option<Desk>> = const { Cell::new(None) };
}

/// Does something at this thread's desk. If it panics, the next one gets a new desk.
pub(super) fn at_the_desk<T>(work: impl FnOnce(&mut Desk) -> T) -> T {
    let mut desk = DESK.take().unwrap_or_else(Desk::new);
    let done = work(&mut desk);
    desk.output.clear();
    if desk.output.capacity() <= LARGEST_KEPT_OUTPUT {
        DESK.set(Some(desk));
    }
    done
}
