//! Grants by request id, so that a retried request gets the same reply and is charged once.
//!
//! The memory is bounded in time and in number. If it is full, the oldest grant is forgotten early. A later retry is
//! then charged a second time: the limiter may refuse too much, but never grants too much.

use std::collections::VecDeque;

use hashbrown::HashMap;
use tidegate_core::Timestamp;

use super::leases::LeaseTable;
pub(in crate::store) use crate::journal::RememberedGrant;
use crate::reply::{OrderReply, Outcome, Replies};

/// Maximum number of remembered grants.
const MOST_REQUESTS: usize = 1_000_000;

impl RememberedGrant {
    /// Repeats the reply. The expiry of its lease is the current one, or now if the lease is gone.
    pub(in crate::store) fn again(
        &self,
        leases: &LeaseTable,
        now: Timestamp,
        answers: &mut Replies,
    ) -> OrderReply {
        let first = answers.mark();
        self.readings.iter().for_each(|reading| answers.read(reading.clone()));
        let mut answer = OrderReply { readings: first..answers.mark(), ..self.answer.clone() };
        if let Outcome::Granted(Some(grant)) = &mut answer.outcome {
            let held = leases.get(grant.lease).map(|lease| lease.expires_at);
            grant.expires_at = held.unwrap_or(grant.expires_at.min(now));
        }
        answer
    }
}

/// The remembered grants.
#[derive(Debug, Default)]
pub(in crate::store) struct RequestTable {
    by_id: HashMap<Box<[u8]>, RememberedGrant>,
    oldest_first: VecDeque<(Timestamp, Box<[u8]>)>,
}

impl RequestTable {
    pub(in crate::store) fn get(&mut self, id: &[u8], now: Timestamp) -> Option<&RememberedGrant> {
        self.forget(now);
        self.by_id.get(id)
    }

    pub(in crate::store) fn remember(&mut self, id: &[u8], grant: RememberedGrant) {
        self.oldest_first.push_back((grant.until, id.into()));
        self.by_id.insert(id.into(), grant);
    }

    /// All remembered grants.
    pub(in crate::store) fn iter(&self) -> impl Iterator<Item = (&[u8], &RememberedGrant)> {
        self.by_id.iter().map(|(id, grant)| (&**id, grant))
    }

    /// Remembered request ids, oldest first.
    pub(in crate::store) fn ids(&self) -> impl Iterator<Item = &[u8]> {
        self.oldest_first.iter().map(|(_, id)| &**id)
    }

    fn forget(&mut self, now: Timestamp) {
        while let Some((until, id)) = self.oldest_first.front() {
            if now < *until && self.oldest_first.len() < MOST_REQUESTS {
                break;
            }
            // An id that was forgotten and granted again has a later entry of its own.
            if self.by_id.get(id).is_some_and(|held| held.until == *until) {
                self.by_id.remove(id);
            }
            self.oldest_first.pop_front();
        }
    }
}
