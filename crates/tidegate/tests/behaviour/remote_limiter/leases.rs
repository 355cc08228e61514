//! What is held, given back, settled and renewed.

use std::sync::Arc;
use std::time::Duration;

use tidegate::Lease;
use tidegate::limiter::Renewal;
use tidegate::model::{ItemSpec, LimitSpec, Policy};
use tidegate::reply::OrderError;
use tidegate::store::{Actual, Settlement, Store};
use tidegate_testkit::remote_stub::RemoteLink;

use super::{DOWN, FarStage, held, stage, unavailable};
use crate::stage::{DecisionExt, Handheld, Staged, lease, seconds};

type Renewing = Handheld<std::pin::Pin<Box<dyn Future<Output = Result<Renewal, tidegate::AcquireError>>>>>;

fn renewing(lease: &Arc<Lease>, ttl: Duration) -> Renewing {
    let lease = Arc::clone(lease);
    Handheld::new(Box::pin(async move { lease.renew_async(ttl).await }) as _).starts()
}

/// Somebody in line, for whom nothing is away.
fn in_line(stage: &FarStage, link: &RemoteLink) -> crate::stage::Waiter {
    let mut waiter = stage.wait(1, seconds(60)).starts();
    while link.deliver_all() > 0 {
        waiter.still_waits();
    }
    assert_eq!(stage.limiter.waiting_in_all(), 1);
    waiter
}

#[test]
fn giving_back_settling_and_resetting_are_told_when_they_are_answered() {
    let link = RemoteLink::manual_decisions();
    let stage = stage(3, &link);
    let (one, two, three) = (held(&stage, &link, 1), held(&stage, &link, 1), held(&stage, &link, 1));
    let mut released = Handheld::new(one.release_async()).starts();
    let mut settled = Handheld::new(two.settle_async(Actual::Every(1))).starts();
    let limiter = stage.limiter.clone();
    let mut reset = Handheld::new(async move { limiter.reset_async("l", None).await }).starts();
    assert_eq!(stage.store.open_leases(), 3);
    link.deliver_all();
    assert!(released.is_done());
    assert_eq!((settled.is_done(), reset.is_done()), (Ok(Settlement::Settled), Ok(())));
    assert_eq!(stage.store.open_leases(), 1);

    let id = three.into_id();
    let limiter = stage.limiter.clone();
    let mut renewed = Handheld::new(async move { limiter.renew_async(id, None).await }).starts();
    link.deliver_all();
    assert!(matches!(renewed.is_done(), Ok(Renewal::Until(_))));
    let limiter = stage.limiter.clone();
    let mut adopted = Handheld::new(async move { limiter.adopt_async(id, seconds(5)).await }).starts();
    stage.pass(seconds(2));
    link.deliver_all();
    let lease = adopted.is_done().expect("a sensible question").expect("it is there");
    stage.pass(seconds(3));
    assert!(!lease.is_held(), "its time is reckoned from before the order was sent");
    let id = lease.into_id();
    let limiter = stage.limiter.clone();
    let mut released = Handheld::new(async move { limiter.release_async(id).await }).starts();
    link.deliver_all();
    assert_eq!(released.is_done(), Ok(true));
    stage.ends();
}

#[test]
fn a_store_that_does_not_answer_is_told_to_whoever_asks_about_a_lease() {
    let link = RemoteLink::manual_decisions();
    let stage = stage(1, &link);
    let kept = Arc::new(held(&stage, &link, 1));
    let mut renewed = renewing(&kept, seconds(60));
    let (id, limiter) = (kept.id(), stage.limiter.clone());
    let mut released = Handheld::new(async move { limiter.release_async(id).await }).starts();
    let limiter = stage.limiter.clone();
    let mut settled = Handheld::new(async move { limiter.settle_async(id, Actual::Every(1)).await }).starts();
    let limiter = stage.limiter.clone();
    let mut reset = Handheld::new(async move { limiter.reset_async("l", None).await }).starts();
    link.fail_all(DOWN);
    assert_eq!(renewed.is_done(), unavailable());
    assert_eq!(released.is_done().map_err(tidegate::AcquireError::from), unavailable());
    assert_eq!((settled.is_done(), reset.is_done()), (unavailable(), unavailable()));
    assert_eq!(stage.store.open_leases(), 1);
}

#[test]
fn who_drops_a_lease_waits_for_nothing_and_calls_those_who_wait() {
    let link = RemoteLink::manual_replies();
    let stage = stage(1, &link);
    let slot = held(&stage, &link, 1);
    let mut waiter = in_line(&stage, &link);
    drop(slot);
    assert_eq!((stage.store.open_leases(), link.in_flight()), (0, 1));
    waiter.still_waits();
    link.deliver_all();
    drop(waiter.is_served());
    stage.ends();
}

/// Inside a runtime somebody hears when it was given back, and those who wait are called then and not too early.
#[tokio::test]
async fn who_drops_a_lease_in_a_task_calls_those_who_wait_when_it_is_back() {
    let link = RemoteLink::manual_decisions();
    let stage = stage(1, &link);
    let slot = held(&stage, &link, 1);
    let mut waiter = in_line(&stage, &link);
    drop(slot);
    tokio::task::yield_now().await;
    assert!(!waiter.is_woken(), "it is not back yet");
    link.deliver_all();
    tokio::task::yield_now().await;
    waiter.still_waits();
    link.deliver_all();
    let slot = waiter.is_served();
    assert!(slot.into_lease().expect("a slot").is_held());
    link.deliver_all();
    stage.ends();
}

#[test]
fn those_who_wait_are_called_when_the_answer_is_in_or_nobody_waits_for_it() {
    let link = RemoteLink::manual_decisions();
    let stage = stage(1, &link);
    for leaves in [false, true] {
        let slot = held(&stage, &link, 1);
        let mut waiter = in_line(&stage, &link);
        let releasing = Handheld::new(slot.release_async()).starts();
        assert!(!waiter.is_woken());
        if leaves {
            drop(releasing);
        } else {
            link.deliver_all();
            assert!({ releasing }.is_done());
        }
        assert!(waiter.is_woken());
        waiter.still_waits();
        link.deliver_all();
        drop(waiter.is_served());
        link.deliver_all();
        stage.ends();
    }
}

/// Only those are called who wait for what the lease held, also if it is given back a second time because nobody answered.
#[test]
fn a_lease_that_left_is_known_until_the_store_has_answered() {
    let link = RemoteLink::manual_decisions();
    let stage = stage(1, &link);
    stage.put(LimitSpec::named("other").with(crate::stage::slots_of(1)));
    let slot = held(&stage, &link, 1).into_id();
    let mut other = stage.wait_for("other", "u", 1, Duration::ZERO).starts();
    link.deliver_all();
    let other = lease(other.is_served());
    let mut here = in_line(&stage, &link);
    let mut there = stage.wait_for("other", "u", 1, seconds(60)).starts();
    while link.deliver_all() > 0 {
        there.still_waits();
    }
    for loses in [true, false] {
        let limiter = stage.limiter.clone();
        let mut releasing = Handheld::new(async move { limiter.release_async(slot).await }).starts();
        if loses {
            link.fail_all(DOWN);
            assert!(releasing.is_done().is_err());
        } else {
            link.deliver_all();
            assert_eq!(releasing.is_done(), Ok(true));
        }
        assert!(here.is_woken() && !there.is_woken());
        here.still_waits();
        link.deliver_all();
        if loses {
            here.still_waits();
        }
    }
    drop((here.is_served(), other, there));
    link.deliver_all();
    stage.ends();
}

#[test]
fn a_reset_calls_those_who_wait_when_it_is_answered() {
    let link = RemoteLink::manual_decisions();
    let stage = stage(1, &link);
    stage.put(LimitSpec::named("l").with(ItemSpec::of(Policy::Interval { window: seconds(60) }, 1)));
    for key in [None, Some(&b"u"[..])] {
        let mut taking = stage.wait(1, Duration::ZERO).starts();
        link.deliver_all();
        drop(taking.is_served());
        let waiter = in_line(&stage, &link);
        let limiter = stage.limiter.clone();
        let mut reset = Handheld::new(async move { limiter.reset_async("l", key).await }).starts();
        assert!(!waiter.is_woken());
        link.deliver_all();
        assert_eq!(reset.is_done(), Ok(()));
        assert!(waiter.is_woken());
        drop(waiter);
    }
}

/// A limit of ten units in all, some of which are held as an estimate.
fn estimate(stage: &FarStage, link: &RemoteLink) -> Lease {
    stage.put(LimitSpec::named("l").with(ItemSpec::of(Policy::Total, 10)));
    let asking = stage.limiter.ask("l", "u").count(8).hold().within(Duration::ZERO);
    let mut asking = Handheld::new(asking).starts();
    link.deliver_all();
    lease(asking.is_served())
}

fn used(stage: &FarStage) -> u64 {
    stage.store.store().usage("l", None).now().expect("a limit").items[0].current_count
}

#[test]
fn what_is_being_settled_is_not_given_back_by_whoever_stops_waiting() {
    let link = RemoteLink::manual_decisions();
    let stage = stage(1, &link);
    let hold = estimate(&stage, &link);
    drop(Handheld::new(hold.settle_async(Actual::Every(3))).starts());
    assert_eq!(link.deliver_all(), 1, "nothing but the settlement is on its way");
    assert_eq!(used(&stage), 3);
    stage.ends();
}

#[test]
fn a_settlement_that_makes_no_sense_gives_back_what_was_held() {
    let link = RemoteLink::manual_decisions();
    let stage = stage(1, &link);
    let hold = estimate(&stage, &link);
    let mut settled = Handheld::new(hold.settle_async(Actual::Each(&[1, 2]))).starts();
    link.deliver_all();
    let rejected = OrderError::CostsOutOfRange { costs: 2, asks: 1 };
    assert_eq!(settled.is_done(), Err(rejected.into()));
    link.deliver_all();
    assert_eq!(used(&stage), 8, "its charge stands");
    stage.ends();
}

/// A patient one may be served by the refund, and waits for it although its instant never comes.
#[test]
fn a_hold_may_be_settled_until_its_settlement_is_answered() {
    let link = RemoteLink::manual_decisions();
    let stage = stage(1, &link);
    let window = Policy::Interval { window: seconds(3600) };
    stage.put(LimitSpec::named("l").with(ItemSpec::of(window, 10)));
    let asking = stage.limiter.ask("l", "u").count(10).hold().within(Duration::ZERO);
    let mut asking = Handheld::new(asking).starts();
    link.deliver_all();
    let mut settling = Handheld::new(lease(asking.is_served()).settle_async(Actual::Every(1))).starts();
    let mut waiter = stage.wait(1, seconds(60)).starts();
    link.deliver(1);
    waiter.still_waits();
    assert_eq!(stage.limiter.waiting_in_all(), 1);
    link.deliver(1);
    waiter.still_waits();
    link.deliver_all();
    assert_eq!(settling.is_done(), Ok(Settlement::Settled));
    waiter.still_waits();
    link.deliver_all();
    assert!(waiter.is_done().is_granted());
}

#[test]
fn a_renewal_counts_when_it_is_answered_and_a_nearer_end_at_once() {
    let link = RemoteLink::manual_decisions();
    let stage = stage(1, &link);
    let lease = Arc::new(held(&stage, &link, 1));
    let mut long = renewing(&lease, seconds(100));
    link.deliver_all();
    stage.pass(seconds(59));
    assert!(lease.is_held());
    stage.pass(seconds(1));
    assert!(!lease.is_held(), "nobody has said yet that it lasts longer");
    assert!(matches!(long.is_done(), Ok(Renewal::Until(_))));
    assert!(lease.is_held());
    let short = renewing(&lease, seconds(1));
    stage.pass(seconds(1));
    assert!(!lease.is_held(), "it may have ended already");
    drop(short);
}

#[test]
fn of_renewals_that_are_away_at_once_the_nearest_end_counts() {
    for first in [0, 1] {
        let link = RemoteLink::manual_replies();
        let stage = stage(1, &link);
        let lease = Arc::new(held(&stage, &link, 1));
        let (mut long, mut short) = (renewing(&lease, seconds(1000)), renewing(&lease, seconds(1)));
        link.deliver(first);
        let _heard_or_not = (long.run(), short.run());
        link.deliver_all();
        let _heard_or_not = (long.run(), short.run());
        stage.pass(seconds(1));
        assert!(!lease.is_held(), "the store may have heard either last");
    }
}

#[test]
fn a_renewal_that_is_refused_or_says_that_it_is_gone() {
    let link = RemoteLink::manual_decisions();
    let stage = stage(1, &link);
    let lease = Arc::new(held(&stage, &link, 1));
    let mut refused = renewing(&lease, Duration::ZERO);
    assert!(!lease.is_held(), "if it is heard, it is over");
    link.deliver_all();
    assert!(refused.is_done().is_err());
    assert!(lease.is_held(), "it was not");
    assert!(stage.store.store().release(lease.id()).now());
    let mut gone = renewing(&lease, seconds(60));
    link.deliver_all();
    assert_eq!(gone.is_done(), Ok(Renewal::Gone));
    assert!(!lease.is_held());
}

#[test]
fn a_renewal_that_ends_a_lease_sooner_calls_those_who_wait() {
    let link = RemoteLink::manual_decisions();
    let stage = stage(1, &link);
    let lease = Arc::new(held(&stage, &link, 1));
    let mut waiter = in_line(&stage, &link);
    let mut renewed = renewing(&lease, seconds(5));
    link.deliver_all();
    assert!(renewed.is_done().is_ok());
    assert!(waiter.is_woken());
    waiter.still_waits();
    link.deliver_all();
    waiter.still_waits();
    stage.pass(seconds(5));
    waiter.still_waits();
    link.deliver_all();
    drop((waiter.is_served(), lease));
    link.deliver_all();
    stage.ends();
}

#[tokio::test]
async fn a_kept_lease_is_renewed_and_a_store_that_is_silent_loses_it() {
    let link = RemoteLink::manual_decisions();
    let stage = stage(1, &link);
    let lease = held(&stage, &link, 1);
    lease.keep_alive();
    tokio::task::yield_now().await;
    stage.pass(seconds(20));
    while link.deliver_all() == 0 {
        tokio::task::yield_now().await;
    }
    let end = lease.expires_at();
    while lease.expires_at() == end {
        tokio::task::yield_now().await;
    }
    let mut lost = Handheld::new(lease.lost()).starts();
    stage.pass(seconds(59));
    lost.still_waits();
    tokio::task::yield_now().await;
    stage.pass(seconds(1));
    assert!(!lease.is_held());
    lost.is_done();
}
