//! The disk store passes the behavior suite of all stores, also with a restart after every call.

use std::sync::Arc;

use tidegate::clock::{Clock, ManualClock};
use tidegate::model::{Tick, Timestamp};
use tidegate_disk::directory::SimulatedDirectory;
use tidegate_disk::{DiskOptions, DiskStore, Maintenance};
use tidegate_testkit::suite::StoreFixture;

use crate::restarting_store::RestartingStore;

pub(crate) const OPTIONS: DiskOptions = DiskOptions {
    capacity_bytes: 64 << 20,
    segment_bytes: 64 << 10,
    snapshot_after: 1 << 20,
    maintenance: Maintenance::Manual,
};

/// Opens a store in this directory with this clock.
pub(crate) fn open(directory: &Arc<SimulatedDirectory>, clock: &Arc<ManualClock>) -> DiskStore {
    let clock: Arc<dyn Clock> = Arc::<ManualClock>::clone(clock);
    let opened =
        DiskStore::open_files(Arc::<SimulatedDirectory>::clone(directory), clock, OPTIONS, &mut |_, _| {});
    opened.unwrap_or_else(|error| panic!("{error}")).0
}

mod conformance_without_restart {
    use super::*;

    fn new_store(tick: Tick) -> StoreFixture {
        let clock = Arc::new(ManualClock::ticking(tick, Timestamp::EPOCH));
        StoreFixture::new(open(&Arc::default(), &clock), clock)
    }

    tidegate_testkit::behaviour_suite!(new_store);
}

mod conformance_with_restart_after_every_order {
    use super::*;

    fn new_store(tick: Tick) -> StoreFixture {
        let clock = Arc::new(ManualClock::ticking(tick, Timestamp::EPOCH));
        StoreFixture::new(RestartingStore::new(&clock, 1), clock)
    }

    tidegate_testkit::behaviour_suite!(new_store);
}

mod conformance_of_compact_orders_with_restart {
    use tidegate_testkit::compact_adapter::CompactAdapter;

    use super::*;

    fn new_store(tick: Tick) -> StoreFixture {
        let clock = Arc::new(ManualClock::ticking(tick, Timestamp::EPOCH));
        StoreFixture::new(CompactAdapter::new(RestartingStore::new(&clock, 1)), clock)
    }

    tidegate_testkit::behaviour_suite!(new_store);
}
