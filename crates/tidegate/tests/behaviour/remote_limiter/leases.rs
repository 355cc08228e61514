//! Release, settlement and renewal over a remote store.

use std::sync::Arc;
use std::time::Duration;

use tidegate::Lease;
use tidegate::limiter::Renewal;
use tidegate::model::{ItemSpec, LimitSpec, Policy};
use tidegate::reply::OrderError;
use tidegate::store::{Actual, Settlement, Store};
use tidegate_testkit::remote_stub::RemoteLink;

use super::{DOWN, RemoteFixture, fixture, held, unavailable};
use crate::fixture::{DecisionExt, FixtureStore, HandleExt, PolledFuture, lease, seconds};

type Renewing =
    PolledFuture<std::pin::Pin<Box<dyn Future<Output = Result<Renewal, tidegate::AcquireError>>>>>;

fn renewing(lease: &Arc<Lease>, ttl: Duration) -> Renewing {
    let lease = Arc::clone(lease);
    PolledFuture::new(Box::pin(async move { lease.renew_async(ttl).await }) as _).starts()
}

/// A queued waiter without an order in flight.
fn in_line(fixture: &RemoteFixture, link: &RemoteLink) -> crate::fixture::Waiter {
    let mut waiter = fixture.wait(1, seconds(60)).starts();
    while link.deliver_all() > 0 {
        waiter.expect_pending();
    }
    assert_eq!(fixture.limiter.waiting_in_all(), 1);
    waiter
}

#[test]
fn lease_calls_complete_when_replies_arrive() {
    let link = RemoteLink::manual_decisions();
    let fixture = fixture(3, &link);
    let (one, two, three) = (held(&fixture, &link, 1), held(&fixture, &link, 1), held(&fixture, &link, 1));
    let mut released = PolledFuture::new(one.release_async()).starts();
    let mut settled = PolledFuture::new(two.settle_async(Actual::Every(1))).starts();
    let limiter = fixture.limiter.clone();
    let mut reset = PolledFuture::new(async move { limiter.reset_async("l", None).await }).starts();
    assert_eq!(fixture.store.open_leases(), 3);
    link.deliver_all();
    assert!(released.expect_ready());
    assert_eq!((settled.expect_ready(), reset.expect_ready()), (Ok(Settlement::Settled), Ok(())));
    assert_eq!(fixture.store.open_leases(), 1);

    let id = three.into_id();
    let limiter = fixture.limiter.clone();
    let mut renewed = PolledFuture::new(async move { limiter.renew_async(id, None).await }).starts();
    link.deliver_all();
    assert!(matches!(renewed.expect_ready(), Ok(Renewal::Until(_))));
    let limiter = fixture.limiter.clone();
    let mut adopted = PolledFuture::new(async move { limiter.adopt_async(id, seconds(5)).await }).starts();
    fixture.pass(seconds(2));
    link.deliver_all();
    let lease = adopted.expect_ready().expect("a valid request").expect("it is there");
    fixture.pass(seconds(3));
    assert!(!lease.is_held(), "the lifetime counts from before the order was sent");
    let id = lease.into_id();
    let limiter = fixture.limiter.clone();
    let mut released = PolledFuture::new(async move { limiter.release_async(id).await }).starts();
    link.deliver_all();
    assert_eq!(released.expect_ready(), Ok(true));
    fixture.ends();
}

#[test]
fn failed_store_fails_lease_calls() {
    let link = RemoteLink::manual_decisions();
    let fixture = fixture(1, &link);
    let kept = Arc::new(held(&fixture, &link, 1));
    let mut renewed = renewing(&kept, seconds(60));
    let (id, limiter) = (kept.id(), fixture.limiter.clone());
    let mut released = PolledFuture::new(async move { limiter.release_async(id).await }).starts();
    let limiter = fixture.limiter.clone();
    let mut settled =
        PolledFuture::new(async move { limiter.settle_async(id, Actual::Every(1)).await }).starts();
    let limiter = fixture.limiter.clone();
    let mut reset = PolledFuture::new(async move { limiter.reset_async("l", None).await }).starts();
    link.fail_all(DOWN);
    assert_eq!(renewed.expect_ready(), unavailable());
    assert_eq!(released.expect_ready().map_err(tidegate::AcquireError::from), unavailable());
    assert_eq!((settled.expect_ready(), reset.expect_ready()), (unavailable(), unavailable()));
    assert_eq!(fixture.store.open_leases(), 1);
}

#[test]
fn dropped_lease_wakes_waiter_without_blocking() {
    let link = RemoteLink::manual_replies();
    let fixture = fixture(1, &link);
    let slot = held(&fixture, &link, 1);
    let mut waiter = in_line(&fixture, &link);
    drop(slot);
    assert_eq!((fixture.store.open_leases(), link.in_flight()), (0, 1));
    waiter.expect_pending();
    link.deliver_all();
    drop(waiter.expect_granted());
    fixture.ends();
}

/// Inside a runtime the release runs as a task, and waiters are woken when its reply arrives, not earlier.
#[tokio::test]
async fn lease_dropped_in_task_wakes_waiter_after_release() {
    let link = RemoteLink::manual_decisions();
    let fixture = fixture(1, &link);
    let slot = held(&fixture, &link, 1);
    let mut waiter = in_line(&fixture, &link);
    drop(slot);
    tokio::task::yield_now().await;
    assert!(!waiter.is_woken(), "the release has no reply yet");
    link.deliver_all();
    tokio::task::yield_now().await;
    waiter.expect_pending();
    link.deliver_all();
    let slot = waiter.expect_granted();
    assert!(slot.into_lease().expect("a slot").is_held());
    link.deliver_all();
    fixture.ends();
}

#[test]
fn release_wakes_waiter_at_reply_or_cancellation() {
    let link = RemoteLink::manual_decisions();
    let fixture = fixture(1, &link);
    for leaves in [false, true] {
        let slot = held(&fixture, &link, 1);
        let mut waiter = in_line(&fixture, &link);
        let releasing = PolledFuture::new(slot.release_async()).starts();
        assert!(!waiter.is_woken());
        if leaves {
            drop(releasing);
        } else {
            link.deliver_all();
            assert!({ releasing }.expect_ready());
        }
        assert!(waiter.is_woken());
        waiter.expect_pending();
        link.deliver_all();
        drop(waiter.expect_granted());
        link.deliver_all();
        fixture.ends();
    }
}

/// Only waiters for the rows of the lease are woken, also if the release is repeated after a failed call.
#[test]
fn released_lease_wakes_its_waiters_until_store_replies() {
    let link = RemoteLink::manual_decisions();
    let fixture = fixture(1, &link);
    fixture.put(LimitSpec::named("other").with(crate::fixture::slots_of(1)));
    let slot = held(&fixture, &link, 1).into_id();
    let mut other = fixture.wait_for("other", "u", 1, Duration::ZERO).starts();
    link.deliver_all();
    let other = lease(other.expect_granted());
    let mut here = in_line(&fixture, &link);
    let mut there = fixture.wait_for("other", "u", 1, seconds(60)).starts();
    while link.deliver_all() > 0 {
        there.expect_pending();
    }
    for loses in [true, false] {
        let limiter = fixture.limiter.clone();
        let mut releasing = PolledFuture::new(async move { limiter.release_async(slot).await }).starts();
        if loses {
            link.fail_all(DOWN);
            assert!(releasing.expect_ready().is_err());
        } else {
            link.deliver_all();
            assert_eq!(releasing.expect_ready(), Ok(true));
        }
        assert!(here.is_woken() && !there.is_woken());
        here.expect_pending();
        link.deliver_all();
        if loses {
            here.expect_pending();
        }
    }
    drop((here.expect_granted(), other, there));
    link.deliver_all();
    fixture.ends();
}

#[test]
fn reset_wakes_waiter_at_reply() {
    let link = RemoteLink::manual_decisions();
    let fixture = fixture(1, &link);
    fixture.put(LimitSpec::named("l").with(ItemSpec::of(Policy::Interval { window: seconds(60) }, 1)));
    for key in [None, Some(&b"u"[..])] {
        let mut taking = fixture.wait(1, Duration::ZERO).starts();
        link.deliver_all();
        drop(taking.expect_granted());
        let waiter = in_line(&fixture, &link);
        let limiter = fixture.limiter.clone();
        let mut reset = PolledFuture::new(async move { limiter.reset_async("l", key).await }).starts();
        assert!(!waiter.is_woken());
        link.deliver_all();
        assert_eq!(reset.expect_ready(), Ok(()));
        assert!(waiter.is_woken());
        drop(waiter);
    }
}

/// Puts a limit of ten units and holds eight of them as an estimate.
fn estimate(fixture: &RemoteFixture, link: &RemoteLink) -> Lease {
    fixture.put(LimitSpec::named("l").with(ItemSpec::of(Policy::Total, 10)));
    let asking = fixture.limiter.handle("l").of("u").count(8).hold().within(Duration::ZERO);
    let mut asking = PolledFuture::new(asking).starts();
    link.deliver_all();
    lease(asking.expect_granted())
}

fn used(fixture: &RemoteFixture) -> u64 {
    fixture.store.store().usage("l", None).now().expect("a limit").items[0].current_count
}

#[test]
fn cancelled_settlement_does_not_release_hold() {
    let link = RemoteLink::manual_decisions();
    let fixture = fixture(1, &link);
    let hold = estimate(&fixture, &link);
    drop(PolledFuture::new(hold.settle_async(Actual::Every(3))).starts());
    assert_eq!(link.deliver_all(), 1, "only the settlement is in flight");
    assert_eq!(used(&fixture), 3);
    fixture.ends();
}

#[test]
fn invalid_settlement_releases_hold() {
    let link = RemoteLink::manual_decisions();
    let fixture = fixture(1, &link);
    let hold = estimate(&fixture, &link);
    let mut settled = PolledFuture::new(hold.settle_async(Actual::Each(&[1, 2]))).starts();
    link.deliver_all();
    let rejected = OrderError::CostsOutOfRange { costs: 2, asks: 1 };
    assert_eq!(settled.expect_ready(), Err(rejected.into()));
    link.deliver_all();
    assert_eq!(used(&fixture), 8, "the charge remains");
    fixture.ends();
}

/// A waiter may be served by the refund, so it waits although its own instant is too late.
#[test]
fn hold_in_settlement_stays_open_until_reply() {
    let link = RemoteLink::manual_decisions();
    let fixture = fixture(1, &link);
    let window = Policy::Interval { window: seconds(3600) };
    fixture.put(LimitSpec::named("l").with(ItemSpec::of(window, 10)));
    let asking = fixture.limiter.handle("l").of("u").count(10).hold().within(Duration::ZERO);
    let mut asking = PolledFuture::new(asking).starts();
    link.deliver_all();
    let mut settling =
        PolledFuture::new(lease(asking.expect_granted()).settle_async(Actual::Every(1))).starts();
    let mut waiter = fixture.wait(1, seconds(60)).starts();
    link.deliver(1);
    waiter.expect_pending();
    assert_eq!(fixture.limiter.waiting_in_all(), 1);
    link.deliver(1);
    waiter.expect_pending();
    link.deliver_all();
    assert_eq!(settling.expect_ready(), Ok(Settlement::Settled));
    waiter.expect_pending();
    link.deliver_all();
    assert!(waiter.expect_ready().is_granted());
}

#[test]
fn renewal_extends_at_reply_and_shortens_at_once() {
    let link = RemoteLink::manual_decisions();
    let fixture = fixture(1, &link);
    let lease = Arc::new(held(&fixture, &link, 1));
    let mut long = renewing(&lease, seconds(100));
    link.deliver_all();
    fixture.pass(seconds(59));
    assert!(lease.is_held());
    fixture.pass(seconds(1));
    assert!(!lease.is_held(), "the renewal has no reply yet");
    assert!(matches!(long.expect_ready(), Ok(Renewal::Until(_))));
    assert!(lease.is_held());
    let short = renewing(&lease, seconds(1));
    fixture.pass(seconds(1));
    assert!(!lease.is_held(), "it may have ended already");
    drop(short);
}

#[test]
fn concurrent_renewals_use_earliest_expiry() {
    for first in [0, 1] {
        let link = RemoteLink::manual_replies();
        let fixture = fixture(1, &link);
        let lease = Arc::new(held(&fixture, &link, 1));
        let (mut long, mut short) = (renewing(&lease, seconds(1000)), renewing(&lease, seconds(1)));
        link.deliver(first);
        let _heard_or_not = (long.run(), short.run());
        link.deliver_all();
        let _heard_or_not = (long.run(), short.run());
        fixture.pass(seconds(1));
        assert!(!lease.is_held(), "either renewal may have been last in the store");
    }
}

#[test]
fn renewal_reply_restores_or_ends_lease() {
    let link = RemoteLink::manual_decisions();
    let fixture = fixture(1, &link);
    let lease = Arc::new(held(&fixture, &link, 1));
    let mut refused = renewing(&lease, Duration::ZERO);
    assert!(!lease.is_held(), "if the store applies it, the lease is over");
    link.deliver_all();
    assert!(refused.expect_ready().is_err());
    assert!(lease.is_held(), "the store did not apply it");
    assert!(fixture.store.store().release(lease.id()).now());
    let mut gone = renewing(&lease, seconds(60));
    link.deliver_all();
    assert_eq!(gone.expect_ready(), Ok(Renewal::Gone));
    assert!(!lease.is_held());
}

#[test]
fn shortening_renewal_wakes_waiter() {
    let link = RemoteLink::manual_decisions();
    let fixture = fixture(1, &link);
    let lease = Arc::new(held(&fixture, &link, 1));
    let mut waiter = in_line(&fixture, &link);
    let mut renewed = renewing(&lease, seconds(5));
    link.deliver_all();
    assert!(renewed.expect_ready().is_ok());
    assert!(waiter.is_woken());
    waiter.expect_pending();
    link.deliver_all();
    waiter.expect_pending();
    fixture.pass(seconds(5));
    waiter.expect_pending();
    link.deliver_all();
    drop((waiter.expect_granted(), lease));
    link.deliver_all();
    fixture.ends();
}

#[tokio::test]
async fn automatic_renewal_loses_lease_of_silent_store() {
    let link = RemoteLink::manual_decisions();
    let fixture = fixture(1, &link);
    let lease = held(&fixture, &link, 1);
    lease.keep_alive();
    tokio::task::yield_now().await;
    fixture.pass(seconds(20));
    while link.deliver_all() == 0 {
        tokio::task::yield_now().await;
    }
    let end = lease.expires_at();
    while lease.expires_at() == end {
        tokio::task::yield_now().await;
    }
    let mut lost = PolledFuture::new(lease.lost()).starts();
    fixture.pass(seconds(59));
    lost.expect_pending();
    tokio::task::yield_now().await;
    fixture.pass(seconds(1));
    assert!(!lease.is_held());
    lost.expect_ready();
}
