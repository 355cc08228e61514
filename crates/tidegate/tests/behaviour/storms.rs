//! Many askers at once: nothing is granted that the definitions do not allow, as proved from the record.

use std::sync::Arc;

use tidegate::MapStore;
use tidegate_testkit::storm::SteppingClock;
use tidegate_testkit::suite::FullStore;

fn bench(clock: Arc<SteppingClock>) -> Arc<dyn FullStore> {
    Arc::new(MapStore::new(clock, 1))
}

tidegate_testkit::storms!(bench);
