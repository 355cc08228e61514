//! CompactBatch are decided and written down like orders: in memory first, and spoken of when the log has allowed for them.

use tidegate::store::{CompactBatch, CompactReplies, Lsn, Store, Unavailable};

use super::StoreCore;

impl StoreCore {
    /// Decides bids, and writes down what they changed. Where the log must be durable before they are spoken of, if it is not yet.
    pub(super) fn bid(
        &self,
        bids: &CompactBatch<'_>,
        gists: &mut CompactReplies,
    ) -> Result<Option<Lsn>, Unavailable> {
        // While the log cannot be written, which of them need it is for orders to find out.
        if self.trouble().is_some() {
            gists.clear();
            return Ok(None);
        }
        gists.keep_notes();
        self.memory.bid(bids, gists)?;
        let Some(notes) = gists.notes() else { return Ok(None) };
        let until = self.log_notes(notes)?;
        Ok(until.filter(|lsn| *lsn > self.log.durable()))
    }
}
