//! A guard that wakes waiters: after a reply, or when its caller is dropped before the reply.

use std::fmt;
use std::sync::Arc;

use super::LimiterState;
use super::wait_queues::{Call, RowId};
use crate::store::Later;

/// The waiters to wake.
#[derive(Debug)]
pub(super) enum WakeTarget {
    /// The waiters of these rows, or all waiters if the rows are not known.
    Rows(Option<Arc<[RowId]>>),
    /// The waiters of this limit.
    Limit(Box<str>),
}

/// Wakes waiters when it is dropped: when a reply arrived, or when its caller was dropped.
pub(super) struct WakeOnDrop {
    inner: Arc<LimiterState>,
    target: Option<WakeTarget>,
}

impl WakeOnDrop {
    /// Drops the guard without waking waiters.
    pub(super) fn cancel(mut self) {
        self.target = None;
    }
}

impl Drop for WakeOnDrop {
    fn drop(&mut self) {
        match self.target.take() {
            None => {}
            Some(WakeTarget::Rows(rows)) => self.inner.wake_rows(rows.as_deref()),
            Some(WakeTarget::Limit(id)) => self.inner.queues.wake_limit(&id, Call::Ask),
        }
    }
}

impl fmt::Debug for WakeOnDrop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WakeOnDrop").field("target", &self.target).finish_non_exhaustive()
    }
}

impl LimiterState {
    /// A guard that wakes these waiters when it is dropped.
    pub(super) fn wake_on_drop(self: &Arc<LimiterState>, target: WakeTarget) -> WakeOnDrop {
        WakeOnDrop { inner: Arc::clone(self), target: Some(target) }
    }

    /// The same reply; these waiters are woken when it arrives or is dropped.
    pub(super) fn then_wake<T: 'static>(
        self: &Arc<LimiterState>,
        later: Later<T>,
        target: WakeTarget,
    ) -> Later<T> {
        let wake_on_drop = self.wake_on_drop(target);
        Box::pin(async move {
            let reply = later.await;
            drop(wake_on_drop);
            reply
        })
    }
}
