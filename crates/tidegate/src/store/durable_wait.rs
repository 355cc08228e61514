//! Waiting for a store's log: as a task, or as a thread.
//!
//! A store says at once what it decided, and when that may be told. Doors and other tasks wait with [`durable`], which never blocks a
//! thread; programs without a runtime, and threads that have nothing else to do, with [`wait_durable`].

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use super::{Lsn, Store, Unavailable};

/// Waits until everything up to this place in the store's log is durable. What is durable already is not waited for. Whoever drops it
/// has only stopped waiting.
pub async fn durable<S: Store + ?Sized>(store: &S, lsn: Lsn) -> Result<(), Unavailable> {
    std::future::poll_fn(|context| store.poll_durable(lsn, context)).await
}

/// The same, blocking this thread. Not for tasks: the log may be written by the very thread that is blocked.
pub fn wait_durable<S: Store + ?Sized>(store: &S, lsn: Lsn) -> Result<(), Unavailable> {
    block_on(durable(store, lsn))
}

/// What this future comes to; until then this thread is blocked.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Parked(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(done) => return done,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// A thread that waits.
struct Parked(Thread);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
