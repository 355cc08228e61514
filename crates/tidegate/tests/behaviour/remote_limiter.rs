//! A limiter over a remote store. An order may be in flight between two polls, and no wakeup is lost meanwhile.

#[path = "remote_limiter/leases.rs"]
mod leases;
#[path = "remote_limiter/waiting.rs"]
mod waiting;

use std::sync::Arc;
use std::time::Duration;

use tidegate::activity::{Activity, ActivityRules, Ended, LOOK_EVERY};
use tidegate::catalog::{Catalog, ExpectedVersion};
use tidegate::clock::ManualClock;
use tidegate::limiter::ManualHolderClock;
use tidegate::model::{LimitSpec, Timestamp};
use tidegate::store::MapStore;
use tidegate::store::Unavailable;
use tidegate::{AcquireError, Lease, Limiter};
use tidegate_testkit::remote_stub::{RemoteLink, RemoteStub};

use crate::fixture::{FixtureStore, LimiterFixture, lease, slots_of};

type RemoteFixture = LimiterFixture<RemoteStub<MapStore>>;

const DOWN: &str = "connection refused";

/// A fixture with this many slots and a store behind this link.
fn fixture(slots: u64, link: &RemoteLink) -> RemoteFixture {
    fixture_of(slots, |store| RemoteStub::new(store, link.clone()))
}

fn fixture_of(slots: u64, far: impl Fn(Arc<MapStore>) -> RemoteStub<MapStore>) -> RemoteFixture {
    let with_clock = |clock: Arc<ManualClock>| far(Arc::new(MapStore::with_clock(clock)));
    let fixture = LimiterFixture::over(with_clock, 10, 10);
    fixture.put(LimitSpec::named("l").with(slots_of(slots)));
    fixture
}

/// A lease for this many granted slots.
#[track_caller]
fn held(fixture: &RemoteFixture, link: &RemoteLink, count: u64) -> Lease {
    let mut asking = fixture.wait(count, Duration::ZERO).starts();
    link.deliver_all();
    lease(asking.expect_granted())
}

fn unavailable<T>() -> Result<T, AcquireError> {
    Err(AcquireError::Unavailable(Unavailable { reason: DOWN.to_owned() }))
}

impl RemoteFixture {
    /// Asserts that no waiter is queued and no lease is open.
    #[track_caller]
    fn ends(&self) {
        assert_eq!((self.limiter.waiting_in_all(), self.store.open_leases()), (0, 0));
    }
}

/// Runs all tasks that are ready.
async fn run_ready_tasks() {
    for _ in 0..32 {
        tokio::task::yield_now().await;
    }
}

/// After an outage the store no longer knows the task. The watcher asks for the store's time before it reports the end.
#[tokio::test]
async fn task_lapsed_during_outage_is_reported_expired() {
    let (clock, link) = (Arc::new(ManualClock::at(Timestamp::EPOCH)), RemoteLink::manual_replies());
    let (inner, holder_clock) = (Arc::new(MapStore::new(Arc::clone(&clock), 7)), ManualHolderClock::new());
    let rules = ActivityRules::default();
    inner.put(rules.spec(), ExpectedVersion::Absent).expect("a new limit");
    let store = Arc::new(RemoteStub::new(inner, link.clone()));
    let activity = Activity::of_store(
        Limiter::builder().store(store).holder_clock(holder_clock.clone()).build().expect("valid settings"),
    );
    let begun = tokio::spawn({
        let activity = activity.clone();
        async move {
            let task = activity.set_active("u").await.expect("room").into_id();
            activity.watch("u", task).await.expect("an answer").expect("it runs").ended().await
        }
    });
    for _question in ["to begin", "whose it is"] {
        run_ready_tasks().await;
        assert_eq!(link.deliver_all(), 1);
    }
    run_ready_tasks().await;
    clock.advance(rules.lease_ttl);
    holder_clock.advance(LOOK_EVERY);
    run_ready_tasks().await;
    assert_eq!(link.deliver_all(), 1, "whether it is held");
    run_ready_tasks().await;
    assert_eq!(link.in_flight(), 1, "how late it is");
    link.fail_all("the database is away");
    run_ready_tasks().await;
    assert!(!begun.is_finished(), "the end is unknown");
    holder_clock.advance(LOOK_EVERY);
    for _question in ["whether it is held", "how late it is"] {
        run_ready_tasks().await;
        assert_eq!(link.deliver_all(), 1);
    }
    run_ready_tasks().await;
    assert!(begun.is_finished());
    assert_eq!(begun.await.expect("no panic"), Ended::Expired);
}
