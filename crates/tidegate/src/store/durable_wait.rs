//! Waiting for a store's log, as a task or as a thread.
//!
//! A store returns its decision at once and says when it is durable. Servers and other tasks wait with [`durable`],
//! which never blocks a thread. Programs without a runtime, and threads without other work, use [`wait_durable`].

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use super::{Lsn, Store, Unavailable};

/// Waits until everything up to this log position is durable. Returns at once if it is. Dropping the future only stops
/// the wait.
pub async fn durable<S: Store + ?Sized>(store: &S, lsn: Lsn) -> Result<(), Unavailable> {
    std::future::poll_fn(|context| store.poll_durable(lsn, context)).await
}

/// The same, blocking the thread. Not for tasks: the blocked thread may be the one that writes the log.
pub fn wait_durable<S: Store + ?Sized>(store: &S, lsn: Lsn) -> Result<(), Unavailable> {
    block_on(durable(store, lsn))
}

/// Blocks the thread until the future completes.
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

/// Wakes a parked thread.
struct Parked(Thread);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
