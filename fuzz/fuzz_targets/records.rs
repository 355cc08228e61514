//! Any bytes at all, read as records and told to a store that is being made again: refused by name, or a store that can be asked.
//!
//! Checksums keep damage away from here. What is left are records that somebody wrote by mistake; a store that panics on them
//! cannot even say so.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use tidegate::catalog::RemovalMode;
use tidegate::store::Store;
use tidegate::store::memory::Restore;
use tidegate::store::journal::{Journal, Tag, Text};
use tidegate::catalog::Catalog;
use tidegate::clock::ManualClock;
use tidegate::model::{Ask, Order};
use tidegate::reply::{Replies, Detail};
use tidegate::store::Memory;
use tidegate_core::Timestamp;
use tidegate_disk::record::RecordReader;

/// Nobody keeps a log.
struct Nobody;

impl Journal for Nobody {
    fn put(&self, _: &Text<'_>) {}
    fn remove(&self, _: u64, _: RemovalMode, _: Timestamp) {}
    fn reset(&self, _: u64, _: Option<(&[u8], Tag)>, _: Timestamp) {}
}

fuzz_target!(|bytes: &[u8]| {
    let now = Timestamp::from_ticks(1_700_000_000_000_000_000);
    let memory = Memory { capacity_bytes: 8 << 20, secret: [1, 2] };
    let mut restoring = Restore::new(ManualClock::at(now), memory);
    let mut records = RecordReader::new(bytes);
    while let Ok(Some(record)) = records.next(&|id| restoring.limit(id)) {
        if record.restore_into(&mut restoring).is_err() {
            return;
        }
    }
    let Ok(store) = restoring.finish(Arc::new(Nobody)) else { return };
    for limit in store.list() {
        let asks = [Ask { limit_id: limit.id(), key: Some(b"someone"), count: 1 }];
        let _ = store.submit(&[Order::acquire(&asks), Order::peek(&asks)], Replies::new(Detail::Readings));
        let _ = store.usage(limit.id(), Some(b"someone"));
    }
});
