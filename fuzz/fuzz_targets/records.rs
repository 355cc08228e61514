//! Reads arbitrary bytes as log records and restores a store from them: an error, or a usable store, never a panic.
//!
//! Checksums reject damaged records before this point. The remaining input is records that a faulty program wrote. A store that
//! panics on them cannot report which record is wrong.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use tidegate::catalog::Catalog;
use tidegate::catalog::RemovalMode;
use tidegate::clock::ManualClock;
use tidegate::model::{Ask, Order};
use tidegate::reply::{Detail, Replies};
use tidegate::store::Memory;
use tidegate::store::Store;
use tidegate::store::journal::{Journal, Tag, Text};
use tidegate::store::memory::Restore;
use tidegate_core::Timestamp;
use tidegate_disk::record::RecordReader;

/// A journal that discards every record.
struct DiscardJournal;

impl Journal for DiscardJournal {
    fn put(&self, _: &Text<'_>) {}
    fn remove(&self, _: u64, _: RemovalMode, _: Timestamp) {}
    fn reset(&self, _: u64, _: Option<(&[u8], Tag)>, _: Timestamp) {}
}

fuzz_target!(|bytes: &[u8]| {
    let now = Timestamp::from_ticks(1_700_000_000_000_000_000);
    let memory = Memory { capacity_bytes: 8 << 20, secret: [1, 2] };
    let mut restore = Restore::new(ManualClock::at(now), memory);
    let mut records = RecordReader::new(bytes);
    while let Ok(Some(record)) = records.next(&|id| restore.limit(id)) {
        if record.restore_into(&mut restore).is_err() {
            return;
        }
    }
    let Ok(store) = restore.finish(Arc::new(DiscardJournal)) else { return };
    for limit in store.list() {
        let asks = [Ask { limit_id: limit.id(), key: Some(b"client"), count: 1 }];
        let _ = store.submit(&[Order::acquire(&asks), Order::peek(&asks)], Replies::new(Detail::Readings));
        let _ = store.usage(limit.id(), Some(b"client"));
    }
});
