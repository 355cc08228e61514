//! The reply of a store to a call, and when it is complete.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

/// A position in a store's log. Replies that wait for it are complete when everything up to it is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

/// A pending reply. It outlives the call that made it. [`StoreReply::Later`] states what its maker promises.
pub type Later<T> = Pin<Box<dyn Future<Output = Result<T, Unavailable>> + Send>>;

/// A reply, and when it is complete.
pub enum StoreReply<T> {
    /// Complete now.
    Now(T),
    /// Complete when the store's log is durable up to this position.
    Durable(T, Lsn),
    /// Complete when another machine has decided.
    ///
    /// The work starts with the call, not with the first poll, and it continues if the future is dropped. If the caller
    /// is gone when a lease is granted, the store releases the lease, unless the order has a request id: then a
    /// repeated order finds the lease. Charges without a lease stay. [`Unavailable`] means that the outcome is unknown.
    ///
    /// Two calls in flight may take effect in either order.
    Later(Later<T>),
}

impl<T> fmt::Debug for StoreReply<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StoreReply::Now(_) => "Now",
            StoreReply::Durable(..) => "Durable",
            StoreReply::Later(_) => "Later",
        })
    }
}

/// The store could not answer. Each limit's `on_outage` decides what that means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unavailable {
    /// What happened, for the log.
    pub reason: String,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the store cannot answer: {}", self.reason)
    }
}

impl std::error::Error for Unavailable {}
