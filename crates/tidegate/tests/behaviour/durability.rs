//! A limiter over a store with a log: nobody is told what is not durable, and nobody waits for more than that.

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

use crate::stage::{DecisionExt, Handheld, Stage, Staged, granted, lease, seconds, slots_of};

type LoggedStage = Stage<LoggedStore<MapStore>>;

const FULL: &str = "the disk is full";

/// A stage with two slots and a log that is written by hand; the limit itself is durable.
fn stage() -> (LoggedStage, ManualLog) {
    let log = ManualLog::manual();
    let keeping = |clock: Arc<ManualClock>| LoggedStore::new(Arc::new(MapStore::keeping(clock)), log.clone());
    let stage = Stage::over(keeping, 10, 10);
    stage.put(LimitSpec::named("l").with(slots_of(2)));
    log.sync_all();
    (stage, log)
}

/// A slot that was granted, durably.
fn held(stage: &LoggedStage, log: &ManualLog) -> Lease {
    let mut asking = stage.wait(1, Duration::ZERO).starts();
    log.sync_all();
    lease(asking.is_served())
}

fn failed<T>() -> Result<T, AcquireError> {
    Err(AcquireError::Unavailable(Unavailable { reason: FULL.to_owned() }))
}

#[test]
fn waiter_completes_when_grant_is_durable() {
    let (stage, log) = stage();
    let mut first = stage.wait(1, seconds(60)).starts();
    let mut second = stage.wait(1, seconds(60)).starts();
    log.sync_to(tidegate::store::Lsn(log.tip().0 - 1));
    let first = first.is_served();
    second.still_waits();
    log.sync_all();
    drop((first, second.is_served()));
    stage.ends_with_log(&log);
}

#[test]
fn durable_grant_completes_at_once() {
    let (stage, log) = stage();
    log.sync_to(tidegate::store::Lsn(100));
    assert!(stage.wait(1, seconds(60)).is_answered().is_granted());
    assert!(stage.limiter.ask("l", "u").try_acquire().is_granted());
}

#[test]
fn refusals_and_peeks_do_not_wait_for_log() {
    let (stage, log) = stage();
    let taken = stage.wait(2, Duration::ZERO).starts();
    assert_eq!(log.waiter_count(), 1);
    assert!(!stage.limiter.ask("l", "u").try_acquire().is_granted());
    assert!(!stage.limiter.ask("l", "u").peek().is_granted());
    assert!(!stage.limiter.release(tidegate::model::LeaseId(7)), "nobody has it");
    drop(taken);
}

#[test]
fn waiter_dropped_before_sync_releases_lease() {
    let (stage, log) = stage();
    let waiter = stage.wait(2, seconds(60)).starts();
    assert_eq!(stage.store.open_leases(), 1);
    drop(waiter);
    assert_eq!(stage.store.open_leases(), 0);

    let limiter = stage.limiter.clone();
    let asking = async move { limiter.ask("l", "u").count(2).try_acquire_async().await };
    let asking = Handheld::new(asking).starts();
    assert_eq!(stage.store.open_leases(), 1);
    drop(asking);
    stage.ends_with_log(&log);
}

#[test]
fn repeated_request_id_finds_lease_of_dropped_waiter() {
    let (stage, log) = stage();
    let ask = || Handheld::new(stage.limiter.ask("l", "u").request_id("r").within(seconds(60)));
    drop(ask().starts());
    assert_eq!(stage.store.open_leases(), 1, "it lapses, or whoever repeats the request gives it back");
    let mut again = ask().starts();
    log.sync_all();
    let lease = lease(granted(again.is_done()));
    assert!(lease.is_held());
    drop(lease);
    stage.ends_with_log(&log);
}

#[test]
fn waiters_do_not_wait_for_log_of_earlier_waiters() {
    let (stage, log) = stage();
    let both = stage.wait(2, Duration::ZERO).starts();
    let mut first = stage.wait(2, seconds(60)).starts();
    let mut second = stage.wait(1, seconds(60)).starts();
    drop(both);
    first.still_waits();
    assert_eq!(stage.limiter.waiting_in_all(), 1, "the first was served and waits only for the log");
    drop(first);
    second.still_waits();
    assert_eq!(stage.limiter.waiting_in_all(), 0, "so was the second");
    log.sync_all();
    drop(second.is_served());
    stage.ends_with_log(&log);
}

#[test]
fn failed_log_fails_all_waiters() {
    let (stage, log) = stage();
    let mut waiter = stage.wait(1, seconds(60)).starts();
    let limiter = stage.limiter.clone();
    let mut asking =
        Handheld::new(async move { limiter.ask("l", "u").try_acquire_async().await.map(|_| ()) }).starts();
    log.fail(FULL);
    assert_eq!(waiter.is_rejected(), failed::<()>().unwrap_err());
    assert_eq!(asking.is_done(), failed());
    assert_eq!(stage.store.open_leases(), 0, "what they were not told of they do not hold");
    assert_eq!(stage.limiter.ask("l", "u").try_acquire().map(|_| ()), failed());
    assert_eq!(stage.limiter.reset("l", None), failed());
    assert!(stage.limiter.ask("l", "u").peek().is_ok(), "a look changes nothing");
}

#[test]
fn renewal_extends_when_durable_and_shortens_at_once() {
    let (stage, log) = stage();
    let lease = Arc::new(held(&stage, &log));
    let renewing = |ttl: Duration| {
        let lease = Arc::clone(&lease);
        Handheld::new(async move { lease.renew_async(ttl).await })
    };
    let mut long = renewing(seconds(100)).starts();
    stage.pass(seconds(60));
    assert!(!lease.is_held(), "nobody has said yet that it lasts longer");
    log.sync_all();
    assert!(matches!(long.is_done(), Ok(Renewal::Until(_))));
    assert!(lease.is_held());
    let short = renewing(seconds(1)).starts();
    stage.pass(seconds(1));
    assert!(!lease.is_held(), "it may have ended already");
    drop(short);
}

#[test]
fn latest_decided_renewal_wins_in_any_reply_order() {
    let (stage, log) = stage();
    let lease = Arc::new(held(&stage, &log));
    let renewing = |ttl: Duration| {
        let lease = Arc::clone(&lease);
        Handheld::new(async move { lease.renew_async(ttl).await })
    };
    let (mut long, mut short) = (renewing(seconds(1000)).starts(), renewing(seconds(1)).starts());
    log.sync_all();
    assert!(short.is_done().is_ok() && long.is_done().is_ok());
    stage.pass(seconds(1));
    assert!(!lease.is_held(), "the store has ended it by now");
}

#[test]
fn dropped_lease_does_not_wait_for_log() {
    let (stage, log) = stage();
    let lease = held(&stage, &log);
    drop(lease);
    assert_eq!((stage.store.open_leases(), log.waiter_count()), (0, 0));
}

#[test]
fn release_settle_and_reset_complete_when_durable() {
    let (stage, log) = stage();
    let (one, other) = (held(&stage, &log), held(&stage, &log));
    let mut released = Handheld::new(one.release_async()).starts();
    let mut settled = Handheld::new(other.settle_async(Actual::Every(1))).starts();
    let limiter = stage.limiter.clone();
    let mut reset = Handheld::new(async move { limiter.reset_async("l", None).await }).starts();
    log.sync_all();
    assert!(released.is_done());
    assert_eq!(settled.is_done(), Ok(Settlement::Settled));
    assert_eq!(reset.is_done(), Ok(()));

    let (one, other) = (held(&stage, &log).into_id(), held(&stage, &log).into_id());
    let limiter = stage.limiter.clone();
    let mut released = Handheld::new(async move { limiter.release_async(one).await }).starts();
    let limiter = stage.limiter.clone();
    let mut renewed = Handheld::new(async move { limiter.renew_async(other, None).await }).starts();
    log.fail(FULL);
    assert_eq!(released.is_done().map_err(AcquireError::from), failed());
    assert_eq!(renewed.is_done(), failed());
}

/// Somebody on a thread of their own waits where they stand.
#[test]
fn blocking_call_parks_its_thread() {
    let (stage, log) = stage();
    let limiter = stage.limiter.clone();
    let thread = std::thread::spawn(move || {
        let decision = limiter.ask("l", "u").try_acquire();
        let granted = decision.permit().expect("there is room");
        granted.into_lease().expect("a slot").release()
    });
    log.wait_for_waiters(1);
    assert_eq!(stage.store.open_leases(), 1);
    log.sync_all();
    log.wait_for_waiters(1);
    assert_eq!(stage.store.open_leases(), 0);
    log.sync_all();
    assert!(thread.join().expect("it does not fail"));
}

#[tokio::test]
async fn automatic_renewal_blocks_no_other_call() {
    let (stage, log) = stage();
    let lease = held(&stage, &log);
    lease.keep_alive();
    tokio::task::yield_now().await;
    stage.pass(seconds(20));
    while log.waiter_count() == 0 {
        tokio::task::yield_now().await;
    }
    log.sync_all();
    let end = lease.expires_at();
    while !{
        stage.pass(seconds(1));
        tokio::task::yield_now().await;
        log.sync_all();
        lease.expires_at() > end
    } {}
    assert!(lease.is_held());
}

impl LoggedStage {
    /// Nobody waits for anything any more, and everything can be had.
    #[track_caller]
    fn ends_with_log(&self, log: &ManualLog) {
        log.sync_to(tidegate::store::Lsn(u64::MAX));
        self.ends_with(0);
        assert_eq!(self.store.open_leases(), 0);
    }
}

/// The log is not in anybody's way who puts a limit, only of who must say so.
#[test]
fn log_tip_covers_every_catalog_change() {
    let (stage, log) = stage();
    let before = log.tip();
    stage.store.put(LimitSpec::named("other").with(slots_of(1)), ExpectedVersion::Absent).expect("a limit");
    let tip = tidegate::store::Store::tip(&*stage.store).expect("it has a log");
    assert!(before < tip);
    let mut durable = Handheld::new({
        let store = Arc::clone(&stage.store);
        async move { tidegate::store::durable(&*store, tip).await }
    })
    .starts();
    log.sync_all();
    assert_eq!(durable.is_done(), Ok(()));
}
