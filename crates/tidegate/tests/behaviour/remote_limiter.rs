//! A limiter over a store where somebody else decides: an order is away between two polls, and nothing is lost meanwhile.

#[path = "remote_limiter/leases.rs"]
mod leases;
#[path = "remote_limiter/waiting.rs"]
mod waiting;

use std::sync::Arc;
use std::time::Duration;

use tidegate::activity::{Activity, Ended, LOOK_EVERY, Rules};
use tidegate::catalog::{Catalog, ExpectedVersion};
use tidegate::clock::ManualClock;
use tidegate::limiter::ManualHolderClock;
use tidegate::model::{LimitSpec, Timestamp};
use tidegate::store::MapStore;
use tidegate::store::Unavailable;
use tidegate::{AcquireError, Lease, Limiter};
use tidegate_testkit::remote_stub::{RemoteLink, RemoteStub};

use crate::stage::{Stage, Staged, lease, slots_of};

type FarStage = Stage<RemoteStub<MapStore>>;

const DOWN: &str = "nobody picks up";

/// A stage with so many slots, whose store is at the other end of this link.
fn stage(slots: u64, link: &RemoteLink) -> FarStage {
    stage_of(slots, |store| RemoteStub::new(store, link.clone()))
}

fn stage_of(slots: u64, far: impl Fn(Arc<MapStore>) -> RemoteStub<MapStore>) -> FarStage {
    let keeping = |clock: Arc<ManualClock>| far(Arc::new(MapStore::keeping(clock)));
    let stage = Stage::over(keeping, 10, 10);
    stage.put(LimitSpec::named("l").with(slots_of(slots)));
    stage
}

/// Slots that were granted.
#[track_caller]
fn held(stage: &FarStage, link: &RemoteLink, count: u64) -> Lease {
    let mut asking = stage.wait(count, Duration::ZERO).starts();
    link.deliver_all();
    lease(asking.is_served())
}

fn unavailable<T>() -> Result<T, AcquireError> {
    Err(AcquireError::Unavailable(Unavailable { reason: DOWN.to_owned() }))
}

impl FarStage {
    /// Nobody waits in line, and nothing is held.
    #[track_caller]
    fn ends(&self) {
        assert_eq!((self.limiter.waiting_in_all(), self.store.open_leases()), (0, 0));
    }
}

/// Lets everything run that can.
async fn breath() {
    for _ in 0..32 {
        tokio::task::yield_now().await;
    }
}

/// A task is gone, and nobody can say how late it is: that is asked again before anybody is told how it ended.
#[tokio::test]
async fn task_lapsed_during_outage_is_reported_expired() {
    let (clock, link) = (Arc::new(ManualClock::at(Timestamp::EPOCH)), RemoteLink::manual_replies());
    let (inner, pulse) = (Arc::new(MapStore::new(Arc::clone(&clock), 7)), ManualHolderClock::new());
    let rules = Rules::default();
    inner.put(rules.spec(), ExpectedVersion::Absent).expect("a new limit");
    let store = Arc::new(RemoteStub::new(inner, link.clone()));
    let activity = Activity::of_store(
        Limiter::builder().store(store).holder_clock(pulse.clone()).build().expect("no mistakes"),
    );
    let begun = tokio::spawn({
        let activity = activity.clone();
        async move {
            let task = activity.set_active("u").await.expect("room").into_id();
            activity.watch("u", task).await.expect("an answer").expect("it runs").ended().await
        }
    });
    for _question in ["to begin", "whose it is"] {
        breath().await;
        assert_eq!(link.deliver_all(), 1);
    }
    breath().await;
    clock.advance(rules.lease_ttl);
    pulse.advance(LOOK_EVERY);
    breath().await;
    assert_eq!(link.deliver_all(), 1, "whether it is held");
    breath().await;
    assert_eq!(link.in_flight(), 1, "how late it is");
    link.fail_all("the database is away");
    breath().await;
    assert!(!begun.is_finished(), "nobody knows");
    pulse.advance(LOOK_EVERY);
    for _question in ["whether it is held", "how late it is"] {
        breath().await;
        assert_eq!(link.deliver_all(), 1);
    }
    breath().await;
    assert!(begun.is_finished());
    assert_eq!(begun.await.expect("no panic"), Ended::Expired);
}
