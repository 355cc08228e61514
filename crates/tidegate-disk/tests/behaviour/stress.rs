//! Many concurrent clients on a store that logs every charge: grants never exceed the limits.

use std::sync::Arc;

use tidegate::store::LimitStore;
use tidegate_disk::DiskStore;
use tidegate_disk::directory::SimulatedDirectory;
use tidegate_testkit::stress::SteppingClock;

use crate::store::OPTIONS;

fn new_store(clock: Arc<SteppingClock>) -> Arc<dyn LimitStore> {
    let directory: Arc<SimulatedDirectory> = Arc::default();
    let opened = DiskStore::open_files(directory, clock, OPTIONS, &mut |_, _| {});
    Arc::new(opened.unwrap_or_else(|error| panic!("{error}")).0)
}

tidegate_testkit::stress_suite!(new_store);
