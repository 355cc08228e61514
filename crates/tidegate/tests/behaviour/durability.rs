//! A limiter over a logged store: replies wait until their log records are durable, and for nothing else.

use std::sync::Arc;
use std::time::Duration;

use tidegate::catalog::{Catalog, ExpectedVersion};
use tidegate::clock::ManualClock;
use tidegate::limiter::Renewal;
use tidegate::model::LimitSpec;
use tidegate::store::Unavailable;
use tidegate::store::{Actual, MapStore, Settlement};
use tidegate::{AcquireError, Lease};
use tidegate_testkit::logged_store::{LoggedStore, ManualLog};

use crate::fixture::{
    DecisionExt, FixtureStore, HandleExt, LimiterFixture, PolledFuture, granted, lease, seconds, slots_of,
};

type LoggedFixture = LimiterFixture<LoggedStore<MapStore>>;

const FULL: &str = "the disk is full";

/// A fixture with two slots and a manual log. The limit itself is durable.
fn fixture() -> (LoggedFixture, ManualLog) {
    let log = ManualLog::manual();
    let with_clock =
        |clock: Arc<ManualClock>| LoggedStore::new(Arc::new(MapStore::with_clock(clock)), log.clone());
    let fixture = LimiterFixture::over(with_clock, 10, 10);
    fixture.put(LimitSpec::named("l").with(slots_of(2)));
    log.sync_all();
    (fixture, log)
}

/// A durable lease of one slot.
fn held(fixture: &LoggedFixture, log: &ManualLog) -> Lease {
    let mut asking = fixture.wait(1, Duration::ZERO).starts();
    log.sync_all();
    lease(asking.expect_granted())
}

fn failed<T>() -> Result<T, AcquireError> {
    Err(AcquireError::Unavailable(Unavailable { reason: FULL.to_owned() }))
}

#[test]
fn waiter_completes_when_grant_is_durable() {
    let (fixture, log) = fixture();
    let mut first = fixture.wait(1, seconds(60)).starts();
    let mut second = fixture.wait(1, seconds(60)).starts();
    log.sync_to(tidegate::store::Lsn(log.log_end().0 - 1));
    let first = first.expect_granted();
    second.expect_pending();
    log.sync_all();
    drop((first, second.expect_granted()));
    fixture.ends_with_log(&log);
}

#[test]
fn durable_grant_completes_at_once() {
    let (fixture, log) = fixture();
    log.sync_to(tidegate::store::Lsn(100));
    assert!(fixture.wait(1, seconds(60)).poll_to_end().is_granted());
    assert!(fixture.limiter.handle("l").of("u").try_acquire().is_granted());
}

#[test]
fn refusals_and_peeks_do_not_wait_for_log() {
    let (fixture, log) = fixture();
    let taken = fixture.wait(2, Duration::ZERO).starts();
    assert_eq!(log.waiter_count(), 1);
    assert!(!fixture.limiter.handle("l").of("u").try_acquire().is_granted());
    assert!(!fixture.limiter.handle("l").of("u").peek().is_granted());
    assert!(!fixture.limiter.release(tidegate::model::LeaseId(7)), "the lease is unknown");
    drop(taken);
}

#[test]
fn waiter_dropped_before_sync_releases_lease() {
    let (fixture, log) = fixture();
    let waiter = fixture.wait(2, seconds(60)).starts();
    assert_eq!(fixture.store.open_leases(), 1);
    drop(waiter);
    assert_eq!(fixture.store.open_leases(), 0);

    let limiter = fixture.limiter.clone();
    let asking = async move { limiter.handle("l").of("u").count(2).try_acquire_async().await };
    let asking = PolledFuture::new(asking).starts();
    assert_eq!(fixture.store.open_leases(), 1);
    drop(asking);
    fixture.ends_with_log(&log);
}

#[test]
fn repeated_request_id_finds_lease_of_dropped_waiter() {
    let (fixture, log) = fixture();
    let ask = || PolledFuture::new(fixture.limiter.handle("l").of("u").request_id("r").within(seconds(60)));
    drop(ask().starts());
    assert_eq!(fixture.store.open_leases(), 1, "it expires, or a repeated request releases it");
    let mut again = ask().starts();
    log.sync_all();
    let lease = lease(granted(again.expect_ready()));
    assert!(lease.is_held());
    drop(lease);
    fixture.ends_with_log(&log);
}

#[test]
fn waiters_do_not_wait_for_log_of_earlier_waiters() {
    let (fixture, log) = fixture();
    let both = fixture.wait(2, Duration::ZERO).starts();
    let mut first = fixture.wait(2, seconds(60)).starts();
    let mut second = fixture.wait(1, seconds(60)).starts();
    drop(both);
    first.expect_pending();
    assert_eq!(fixture.limiter.waiting_in_all(), 1, "the first was served and waits only for the log");
    drop(first);
    second.expect_pending();
    assert_eq!(fixture.limiter.waiting_in_all(), 0, "so was the second");
    log.sync_all();
    drop(second.expect_granted());
    fixture.ends_with_log(&log);
}

#[test]
fn failed_log_fails_all_waiters() {
    let (fixture, log) = fixture();
    let mut waiter = fixture.wait(1, seconds(60)).starts();
    let limiter = fixture.limiter.clone();
    let mut asking =
        PolledFuture::new(async move { limiter.handle("l").of("u").try_acquire_async().await.map(|_| ()) })
            .starts();
    log.fail(FULL);
    assert_eq!(waiter.expect_error(), failed::<()>().unwrap_err());
    assert_eq!(asking.expect_ready(), failed());
    assert_eq!(fixture.store.open_leases(), 0, "what they were not told of they do not hold");
    assert_eq!(fixture.limiter.handle("l").of("u").try_acquire().map(|_| ()), failed());
    assert_eq!(fixture.limiter.reset("l", None), failed());
    assert!(fixture.limiter.handle("l").of("u").peek().is_ok(), "a look changes nothing");
}

#[test]
fn renewal_extends_when_durable_and_shortens_at_once() {
    let (fixture, log) = fixture();
    let lease = Arc::new(held(&fixture, &log));
    let renewing = |ttl: Duration| {
        let lease = Arc::clone(&lease);
        PolledFuture::new(async move { lease.renew_async(ttl).await })
    };
    let mut long = renewing(seconds(100)).starts();
    fixture.pass(seconds(60));
    assert!(!lease.is_held(), "nobody has said yet that it lasts longer");
    log.sync_all();
    assert!(matches!(long.expect_ready(), Ok(Renewal::Until(_))));
    assert!(lease.is_held());
    let short = renewing(seconds(1)).starts();
    fixture.pass(seconds(1));
    assert!(!lease.is_held(), "it may have ended already");
    drop(short);
}

#[test]
fn latest_decided_renewal_wins_in_any_reply_order() {
    let (fixture, log) = fixture();
    let lease = Arc::new(held(&fixture, &log));
    let renewing = |ttl: Duration| {
        let lease = Arc::clone(&lease);
        PolledFuture::new(async move { lease.renew_async(ttl).await })
    };
    let (mut long, mut short) = (renewing(seconds(1000)).starts(), renewing(seconds(1)).starts());
    log.sync_all();
    assert!(short.expect_ready().is_ok() && long.expect_ready().is_ok());
    fixture.pass(seconds(1));
    assert!(!lease.is_held(), "the store has ended it by now");
}

#[test]
fn dropped_lease_does_not_wait_for_log() {
    let (fixture, log) = fixture();
    let lease = held(&fixture, &log);
    drop(lease);
    assert_eq!((fixture.store.open_leases(), log.waiter_count()), (0, 0));
}

#[test]
fn release_settle_and_reset_complete_when_durable() {
    let (fixture, log) = fixture();
    let (one, other) = (held(&fixture, &log), held(&fixture, &log));
    let mut released = PolledFuture::new(one.release_async()).starts();
    let mut settled = PolledFuture::new(other.settle_async(Actual::Every(1))).starts();
    let limiter = fixture.limiter.clone();
    let mut reset = PolledFuture::new(async move { limiter.reset_async("l", None).await }).starts();
    log.sync_all();
    assert!(released.expect_ready());
    assert_eq!(settled.expect_ready(), Ok(Settlement::Settled));
    assert_eq!(reset.expect_ready(), Ok(()));

    let (one, other) = (held(&fixture, &log).into_id(), held(&fixture, &log).into_id());
    let limiter = fixture.limiter.clone();
    let mut released = PolledFuture::new(async move { limiter.release_async(one).await }).starts();
    let limiter = fixture.limiter.clone();
    let mut renewed = PolledFuture::new(async move { limiter.renew_async(other, None).await }).starts();
    log.fail(FULL);
    assert_eq!(released.expect_ready().map_err(AcquireError::from), failed());
    assert_eq!(renewed.expect_ready(), failed());
}

#[test]
fn batch_waits_for_one_sync() {
    let (fixture, log) = fixture();
    let limiter = fixture.limiter.clone();
    let thread = std::thread::spawn(move || limiter.handle("l").try_acquire_batch(&["a", "b", "c"]));
    log.wait_for_waiters(1);
    assert_eq!(fixture.store.open_leases(), 2);
    log.sync_all();
    let decisions = thread.join().expect("it does not fail");
    assert_eq!(decisions.iter().map(DecisionExt::is_granted).collect::<Vec<_>>(), [true, true, false]);
    drop(decisions);
    fixture.ends_with_log(&log);
}

#[test]
fn batch_with_failed_log_gives_leases_back() {
    let (fixture, log) = fixture();
    log.fail(FULL);
    let decisions = fixture.limiter.handle("l").try_acquire_batch(&["a", "b", "c"]);
    assert!(decisions.into_iter().all(|decision| decision.map(|_| ()) == failed()));
    assert_eq!(fixture.store.open_leases(), 0);
}

/// A blocking call on its own thread parks that thread.
#[test]
fn blocking_call_parks_its_thread() {
    let (fixture, log) = fixture();
    let limiter = fixture.limiter.clone();
    let thread = std::thread::spawn(move || {
        let decision = limiter.handle("l").of("u").try_acquire();
        let granted = decision.permit().expect("there is room");
        granted.into_lease().expect("a slot").release()
    });
    log.wait_for_waiters(1);
    assert_eq!(fixture.store.open_leases(), 1);
    log.sync_all();
    log.wait_for_waiters(1);
    assert_eq!(fixture.store.open_leases(), 0);
    log.sync_all();
    assert!(thread.join().expect("it does not fail"));
}

#[tokio::test]
async fn automatic_renewal_blocks_no_other_call() {
    let (fixture, log) = fixture();
    let lease = held(&fixture, &log);
    lease.keep_alive();
    tokio::task::yield_now().await;
    fixture.pass(seconds(20));
    while log.waiter_count() == 0 {
        tokio::task::yield_now().await;
    }
    log.sync_all();
    let end = lease.expires_at();
    while !{
        fixture.pass(seconds(1));
        tokio::task::yield_now().await;
        log.sync_all();
        lease.expires_at() > end
    } {}
    assert!(lease.is_held());
}

impl LoggedFixture {
    /// Asserts that no call is pending and all slots are free.
    #[track_caller]
    fn ends_with_log(&self, log: &ManualLog) {
        log.sync_to(tidegate::store::Lsn(u64::MAX));
        self.ends_with(0);
        assert_eq!(self.store.open_leases(), 0);
    }
}

/// Putting a limit does not wait for the log. Only its confirmation does.
#[test]
fn log_tip_covers_every_catalog_change() {
    let (fixture, log) = fixture();
    let before = log.log_end();
    fixture.store.put(LimitSpec::named("other").with(slots_of(1)), ExpectedVersion::Absent).expect("a limit");
    let tip = tidegate::store::Store::log_end(&*fixture.store).expect("it has a log");
    assert!(before < tip);
    let mut durable = PolledFuture::new({
        let store = Arc::clone(&fixture.store);
        async move { tidegate::store::durable(&*store, tip).await }
    })
    .starts();
    log.sync_all();
    assert_eq!(durable.expect_ready(), Ok(()));
}
