//! A limiter over a store where somebody else decides: an order is away between two polls, and nothing is lost meanwhile.

#[path = "distance/leases.rs"]
mod leases;
#[path = "distance/waiting.rs"]
mod waiting;

use std::sync::Arc;
use std::time::Duration;

use tidegate::store::Unavailable;
use tidegate::{AskError, Lease, LimitSpec, ManualClock, MapStore};
use tidegate_testkit::elsewhere::{Elsewhere, Road};

use crate::stage::{Stage, Staged, lease, slots_of};

type FarStage = Stage<Elsewhere<MapStore>>;

const DOWN: &str = "nobody picks up";

/// A stage with so many slots, whose store is at the other end of this road.
fn stage(slots: u64, road: &Road) -> FarStage {
    stage_of(slots, |store| Elsewhere::new(store, road.clone()))
}

fn stage_of(slots: u64, far: impl Fn(Arc<MapStore>) -> Elsewhere<MapStore>) -> FarStage {
    let keeping = |clock: Arc<ManualClock>| far(Arc::new(MapStore::keeping(clock)));
    let stage = Stage::over(keeping, 10, 10);
    stage.put(LimitSpec::named("l").with(slots_of(slots)));
    stage
}

/// Slots that were granted.
#[track_caller]
fn held(stage: &FarStage, road: &Road, count: u64) -> Lease {
    let mut asking = stage.wait(count, Duration::ZERO).starts();
    road.let_go();
    lease(asking.is_served())
}

fn unavailable<T>() -> Result<T, AskError> {
    Err(AskError::Unavailable(Unavailable { reason: DOWN.to_owned() }))
}

impl FarStage {
    /// Nobody waits in line, and nothing is held.
    #[track_caller]
    fn ends(&self) {
        assert_eq!((self.limiter.waiting_in_all(), self.store.open_leases()), (0, 0));
    }
}
