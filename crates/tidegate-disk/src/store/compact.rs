//! Compact batches are decided in memory and logged like orders.

use tidegate::store::{CompactBatch, CompactReplies, Lsn, Store, Unavailable};

use super::StoreCore;

impl StoreCore {
    /// Decides a compact batch and logs its changes. Returns the position that must be durable before it is
    /// reported.
    pub(super) fn submit_compact(
        &self,
        bids: &CompactBatch<'_>,
        gists: &mut CompactReplies,
    ) -> Result<Option<Lsn>, Unavailable> {
        // While the log is unavailable, the general path finds out which orders need it.
        if self.outage().is_some() {
            gists.clear();
            return Ok(None);
        }
        gists.record_changes();
        self.memory.submit_compact(bids, gists)?;
        let Some(notes) = gists.notes() else { return Ok(None) };
        let until = self.log_notes(notes)?;
        Ok(until.filter(|lsn| *lsn > self.log.durable()))
    }
}
