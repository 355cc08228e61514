//! Many askers at once, on a store that writes everything down: nothing is granted that the definitions do not allow.

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
