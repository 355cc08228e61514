//! Leases over RESP: given back and kept by their ids.

use std::time::Duration;

use tidegate::store::Later;
use tidegate::{LeaseId, OrderError, StoreReply, Timestamp};

use super::{Awaited, Session};
use crate::resp::decision_reply::Speaker;
use crate::resp::deferred_reply::Mouth;

impl Session {
    pub(super) fn release(&mut self, lease: &[u8], mouth: &mut Mouth<'_>) -> Option<Awaited> {
        let lease = lease_id(lease);
        let (released, durable) = match lease.map(|lease| self.door.store().release(lease)) {
            // What is no lease was never granted.
            None => (false, None),
            Some(StoreReply::Now(released)) => (released, None),
            Some(StoreReply::Durable(released, lsn)) => (released, Some(lsn)),
            Some(StoreReply::Later(later)) => return Some(Awaited::Release(self.then_call(lease, later))),
        };
        if let Some(lease) = lease {
            self.door.limiter().lease_changed(lease);
        }
        let start = mouth.output.len();
        self.writer(mouth.output).integer(i64::from(released));
        mouth.pledge(start, 1, durable);
        None
    }

    pub(super) fn renew(&mut self, lease: &[u8], ttl: Duration, mouth: &mut Mouth<'_>) -> Option<Awaited> {
        let lease = lease_id(lease);
        let (renewed, durable) = match lease.map(|lease| self.door.store().renew(lease, Some(ttl))) {
            None => (Ok(None), None),
            Some(StoreReply::Now(renewed)) => (renewed, None),
            Some(StoreReply::Durable(renewed, lsn)) => (renewed, Some(lsn)),
            Some(StoreReply::Later(later)) => return Some(Awaited::Renew(self.then_call(lease, later))),
        };
        // Perhaps it lapses sooner now than those believe who wait for it.
        if let Some(lease) = lease {
            self.door.limiter().lease_changed(lease);
        }
        let start = mouth.output.len();
        renewal(&mut self.speaker(mouth.output), renewed);
        mouth.pledge(start, 1, durable);
        None
    }

    /// The same answer about a lease; when it is in, those look again who wait for what the lease holds.
    fn then_call<T: 'static>(&self, lease: Option<LeaseId>, later: Later<T>) -> Later<T> {
        let limiter = self.door.limiter().clone();
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
pub(super) fn renewal(speaker: &mut Speaker<'_, '_>, renewed: Result<Option<Timestamp>, OrderError>) {
    match renewed {
        Ok(Some(expires_at)) => {
            let ms = speaker.tick.since_epoch(expires_at).as_millis();
            speaker.writer.integer(i64::try_from(ms).unwrap_or(i64::MAX));
        }
        Ok(None) => speaker.writer.nothing(),
        Err(rejection) => speaker.rejection(&rejection),
    }
}
