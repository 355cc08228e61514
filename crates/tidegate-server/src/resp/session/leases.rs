//! Lease commands: release and renew by id.

use std::time::Duration;

use tidegate::model::{LeaseId, Timestamp};
use tidegate::reply::OrderError;
use tidegate::store::Later;
use tidegate::store::StoreReply;

use super::{PendingStoreCall, RespSession};
use crate::resp::decision_reply::DecisionWriter;
use crate::resp::deferred_reply::ReplySink;

impl RespSession {
    pub(super) fn release(&mut self, lease: &[u8], sink: &mut ReplySink<'_>) -> Option<PendingStoreCall> {
        let lease = lease_id(lease);
        let (released, durable) = match lease.map(|lease| self.service.store().release(lease)) {
            // A malformed id was never granted.
            None => (false, None),
            Some(StoreReply::Now(released)) => (released, None),
            Some(StoreReply::Durable(released, lsn)) => (released, Some(lsn)),
            Some(StoreReply::Later(later)) => {
                return Some(PendingStoreCall::Release(self.notify_waiters_after(lease, later)));
            }
        };
        if let Some(lease) = lease {
            self.service.limiter().lease_changed(lease);
        }
        let start = sink.output.len();
        self.writer(sink.output).integer(i64::from(released));
        sink.defer(start, 1, durable);
        None
    }

    pub(super) fn renew(
        &mut self,
        lease: &[u8],
        ttl: Duration,
        sink: &mut ReplySink<'_>,
    ) -> Option<PendingStoreCall> {
        let lease = lease_id(lease);
        let (renewed, durable) = match lease.map(|lease| self.service.store().renew(lease, Some(ttl))) {
            None => (Ok(None), None),
            Some(StoreReply::Now(renewed)) => (renewed, None),
            Some(StoreReply::Durable(renewed, lsn)) => (renewed, Some(lsn)),
            Some(StoreReply::Later(later)) => {
                return Some(PendingStoreCall::Renew(self.notify_waiters_after(lease, later)));
            }
        };
        // A renewal may shorten the lease, so waiters recompute their wait.
        if let Some(lease) = lease {
            self.service.limiter().lease_changed(lease);
        }
        let start = sink.output.len();
        write_renewal(&mut self.decision_writer(sink.output), renewed);
        sink.defer(start, 1, durable);
        None
    }

    /// Notifies waiters of the lease's limits when the call completes.
    fn notify_waiters_after<T: 'static>(&self, lease: Option<LeaseId>, later: Later<T>) -> Later<T> {
        let limiter = self.service.limiter().clone();
        Box::pin(async move {
            let reply = later.await;
            if let Some(lease) = lease {
                limiter.lease_changed(lease);
            }
            reply
        })
    }
}

fn lease_id(text: &[u8]) -> Option<LeaseId> {
    std::str::from_utf8(text).ok().and_then(LeaseId::parse)
}

/// Writes the expiry in milliseconds of Unix time, rounded down so that a client never overestimates it.
pub(super) fn write_renewal(
    decisions: &mut DecisionWriter<'_, '_>,
    renewed: Result<Option<Timestamp>, OrderError>,
) {
    match renewed {
        Ok(Some(expires_at)) => {
            let ms = decisions.tick.since_epoch(expires_at).as_millis();
            decisions.writer.integer(i64::try_from(ms).unwrap_or(i64::MAX));
        }
        Ok(None) => decisions.writer.null(),
        Err(rejection) => decisions.write_rejection(&rejection),
    }
}
