//! Leases over RESP: given back and pending_input by their ids.

use std::time::Duration;

use tidegate::store::Later;
use tidegate::{LeaseId, OrderError, StoreReply, Timestamp};

use super::{PendingStoreCall, RespSession};
use crate::resp::decision_reply::DecisionWriter;
use crate::resp::deferred_reply::ReplySink;

impl RespSession {
    pub(super) fn release(&mut self, lease: &[u8], sink: &mut ReplySink<'_>) -> Option<PendingStoreCall> {
        let lease = lease_id(lease);
        let (released, durable) = match lease.map(|lease| self.service.store().release(lease)) {
            // What is no lease was never granted.
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
        sink.reply(start, 1, durable);
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
        // Perhaps it lapses sooner now than those believe who wait for it.
        if let Some(lease) = lease {
            self.service.limiter().lease_changed(lease);
        }
        let start = sink.output.len();
        write_renewal(&mut self.decision_writer(sink.output), renewed);
        sink.reply(start, 1, durable);
        None
    }

    /// The same answer about a lease; when it is in, those look again who wait for what the lease holds.
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

/// The instant a lease ends at, in milliseconds of Unix time and rounded down: nobody may believe in it for longer than it lasts.
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
