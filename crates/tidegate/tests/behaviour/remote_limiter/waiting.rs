//! Requests and wait queues over a remote store.

use std::time::Duration;

use tidegate::limiter::FLEET_POLL_INTERVAL;
use tidegate::model::{ItemSpec, LimitSpec, Policy, Wait};
use tidegate::{AcquireError, Permit};
use tidegate_testkit::remote_stub::{RemoteLink, RemoteStub};

use super::{DOWN, RemoteFixture, fixture, fixture_of, held, unavailable};
use crate::fixture::{DecisionExt, FixtureStore, HandleExt, PolledFuture, granted, lease, seconds, slots_of};

/// A request without waiting.
fn asking(
    fixture: &RemoteFixture,
    count: u64,
) -> PolledFuture<impl Future<Output = Result<Permit, AcquireError>> + use<>> {
    let limiter = fixture.limiter.clone();
    PolledFuture::new(async move { limiter.handle("l").of("u").count(count).try_acquire_async().await })
}

#[test]
fn requests_complete_when_replies_arrive() {
    let link = RemoteLink::manual_replies();
    let fixture = fixture(2, &link);
    let (mut waiter, mut asking) = (fixture.wait(1, seconds(60)).starts(), asking(&fixture, 1).starts());
    assert_eq!(link.in_flight(), 2);
    for _ in 0..3 {
        assert!(waiter.poll().is_pending(), "it is asked once");
    }
    assert_eq!((link.in_flight(), fixture.store.open_leases()), (2, 2));
    link.deliver(1);
    let one = granted(asking.expect_ready());
    assert!(!waiter.is_woken());
    link.deliver_all();
    drop((one, waiter.expect_granted()));
    fixture.ends();
}

#[test]
fn peek_completes_at_reply_and_changes_nothing() {
    let link = RemoteLink::manual_decisions();
    let fixture = fixture(1, &link);
    let limiter = fixture.limiter.clone();
    let mut look = PolledFuture::new(async move { limiter.handle("l").of("u").peek_async().await }).starts();
    link.deliver_all();
    assert!(look.expect_ready().is_granted());
    fixture.ends();
}

/// Both before and after the store decides.
#[test]
fn waiter_dropped_with_order_in_flight_releases_lease() {
    for link in [RemoteLink::manual_replies(), RemoteLink::manual_decisions()] {
        let fixture = fixture(2, &link);
        drop((fixture.wait(1, seconds(60)).starts(), asking(&fixture, 1).starts()));
        link.deliver_all();
        fixture.ends();
        // The reply has arrived, but the future was not polled.
        let (waiter, asking) = (fixture.wait(1, seconds(60)).starts(), asking(&fixture, 1).starts());
        link.deliver_all();
        assert_eq!(fixture.store.open_leases(), 2);
        drop((waiter, asking));
        fixture.ends();
    }
}

#[test]
fn queue_head_dropped_with_order_in_flight_wakes_next_waiter() {
    let link = RemoteLink::manual_replies();
    let fixture = fixture(1, &link);
    let slot = held(&fixture, &link, 1);
    let (mut first, mut second) =
        (fixture.wait(1, seconds(60)).starts(), fixture.wait(1, seconds(60)).starts());
    while link.deliver_all() > 0 {
        first.expect_pending();
        second.expect_pending();
    }
    drop(slot);
    first.expect_pending();
    assert_eq!(fixture.store.open_leases(), 1, "the slot is granted, but the reply has not arrived");
    drop(first);
    assert_eq!((fixture.limiter.waiting_in_all(), fixture.store.open_leases()), (1, 0));
    second.expect_pending();
    link.deliver_all();
    drop(second.expect_granted());
    fixture.ends();
}

/// The dropped request was granted the slot.
#[test]
fn request_dropped_with_order_in_flight_wakes_waiter() {
    let link = RemoteLink::manual_replies();
    let fixture = fixture(1, &link);
    let leaver = asking(&fixture, 1).starts();
    let mut waiter = fixture.wait(1, seconds(60)).starts();
    link.deliver(1);
    waiter.expect_pending();
    link.deliver(1);
    waiter.expect_pending();
    assert_eq!((link.in_flight(), fixture.limiter.waiting_in_all()), (1, 1));
    drop(leaver);
    waiter.expect_pending();
    link.deliver_all();
    drop(waiter.expect_granted());
    fixture.ends();
}

#[test]
fn repeated_request_id_after_drop_finds_lease() {
    let link = RemoteLink::manual_replies();
    let fixture = fixture(2, &link);
    let ask = || PolledFuture::new(fixture.limiter.handle("l").of("u").request_id("r").within(seconds(60)));
    drop(ask().starts());
    assert_eq!(fixture.store.open_leases(), 1, "it expires, or a repeated request releases it");
    let mut again = ask().starts();
    link.deliver_all();
    let lease = lease(granted(again.expect_ready()));
    assert!(lease.is_held());
    drop(lease);
    fixture.ends();
}

/// The order in flight was decided before the release.
#[test]
fn release_with_order_in_flight_wakes_waiter() {
    let link = RemoteLink::manual_replies();
    let fixture = fixture(1, &link);
    let slot = held(&fixture, &link, 1);
    let mut waiter = fixture.wait(1, seconds(60)).starts();
    link.deliver_all();
    waiter.expect_pending();
    assert_eq!(
        (link.in_flight(), fixture.limiter.waiting_in_all()),
        (1, 1),
        "it queries again after joining the queue"
    );
    drop(slot);
    assert_eq!(fixture.store.open_leases(), 0);
    waiter.expect_pending();
    link.deliver_all();
    waiter.expect_pending();
    assert_eq!(fixture.store.open_leases(), 1, "it has queried once more");
    link.deliver_all();
    drop(waiter.expect_granted());
    fixture.ends();
}

#[test]
fn edit_with_order_in_flight_wakes_waiter() {
    let link = RemoteLink::manual_replies();
    let fixture = fixture(1, &link);
    let slot = held(&fixture, &link, 1);
    let mut waiter = fixture.wait(1, seconds(60)).starts();
    link.deliver_all();
    waiter.expect_pending();
    fixture.put(LimitSpec::named("l").with(slots_of(2)));
    waiter.expect_pending();
    link.deliver_all();
    waiter.expect_pending();
    link.deliver_all();
    drop((slot, waiter.expect_granted()));
    fixture.ends();
}

/// The order of requests counts, not the order of replies.
#[test]
fn queue_order_follows_requests_not_replies() {
    let link = RemoteLink::manual_replies();
    let fixture = fixture(1, &link);
    let slot = held(&fixture, &link, 1);
    let (mut first, mut second) =
        (fixture.wait(1, seconds(60)).starts(), fixture.wait(1, seconds(60)).starts());
    link.deliver(1);
    second.expect_pending();
    link.deliver(0);
    first.expect_pending();
    while link.deliver_all() > 0 {
        second.expect_pending();
        first.expect_pending();
    }
    assert_eq!(fixture.limiter.waiting_in_all(), 2);
    drop(slot);
    second.expect_pending();
    first.expect_pending();
    link.deliver_all();
    second.expect_pending();
    let slot = first.expect_granted();
    second.expect_pending();
    link.deliver_all();
    second.expect_pending();
    drop(slot);
    second.expect_pending();
    link.deliver_all();
    drop(second.expect_granted());
    fixture.ends();
}

#[test]
fn order_in_flight_refuses_no_other_request() {
    let link = RemoteLink::manual_decisions();
    let fixture = fixture(2, &link);
    let (mut waiter, mut other) = (fixture.wait(1, seconds(60)).starts(), asking(&fixture, 1).starts());
    link.deliver_all();
    drop((granted(other.expect_ready()), waiter.expect_granted()));
    link.deliver_all();
    fixture.ends();
}

#[test]
fn request_behind_waiter_is_refused() {
    let link = RemoteLink::manual_replies();
    let fixture = fixture(2, &link);
    let slot = held(&fixture, &link, 1);
    let mut both = fixture.wait(2, seconds(60)).starts();
    while link.deliver_all() > 0 {
        both.expect_pending();
    }
    let mut other = asking(&fixture, 1).starts();
    link.deliver_all();
    let denial = other.expect_ready().refused().expect("an earlier waiter is queued");
    assert_eq!((denial.wait(), denial.limit_id()), (Wait::OnRelease, "l"));
    drop(slot);
    both.expect_pending();
    link.deliver_all();
    drop(both.expect_granted());
    fixture.ends();
}

#[test]
fn timeout_with_order_in_flight_waits_for_reply() {
    let link = RemoteLink::manual_replies();
    let fixture = fixture(1, &link);
    let slot = held(&fixture, &link, 1);
    let mut late = fixture.wait(1, seconds(10)).starts();
    fixture.pass(seconds(11));
    late.expect_pending();
    link.deliver_all();
    assert_eq!(late.expect_refused().wait(), Wait::OnRelease);

    let mut hurried = fixture.wait(1, seconds(10)).starts();
    link.deliver_all();
    hurried.expect_pending();
    hurried.stop_waiting();
    assert!(hurried.poll().is_pending(), "the store has not answered");
    link.deliver_all();
    hurried.expect_refused();

    let mut sleeping = fixture.wait(1, seconds(10)).starts();
    while link.deliver_all() > 0 {
        sleeping.expect_pending();
    }
    sleeping.stop_waiting();
    assert!(sleeping.poll().is_pending(), "it queries a last time");
    link.deliver_all();
    sleeping.expect_refused();
    drop(slot);
    fixture.ends();
}

#[test]
fn failed_store_fails_all_requests_in_flight() {
    // Both lost replies and lost requests.
    for (link, was_given_back) in
        [(RemoteLink::manual_replies(), true), (RemoteLink::manual_decisions(), false)]
    {
        let fixture = fixture(1, &link);
        let slot = held(&fixture, &link, 1);
        let (mut first, mut second) =
            (fixture.wait(1, seconds(60)).starts(), fixture.wait(1, seconds(60)).starts());
        while link.deliver_all() > 0 {
            first.expect_pending();
            second.expect_pending();
        }
        let (mut asking, mut look) = (asking(&fixture, 1).starts(), fixture.wait(1, Duration::ZERO).starts());
        drop(slot);
        first.expect_pending();
        link.fail_all(DOWN);
        assert_eq!(first.expect_error(), unavailable::<()>().unwrap_err());
        assert_eq!(asking.expect_ready().map(|_| ()), unavailable());
        assert_eq!(look.expect_error(), unavailable::<()>().unwrap_err());
        assert_eq!(fixture.limiter.waiting_in_all(), 1, "the second is still queued and is woken");
        second.expect_pending();
        link.deliver_all();
        if was_given_back {
            drop(second.expect_granted());
            fixture.ends();
        } else {
            second.expect_pending();
            assert_eq!((fixture.limiter.waiting_in_all(), fixture.store.open_leases()), (1, 1));
        }
    }
}

#[test]
fn blocking_calls_park_their_thread() {
    let link = RemoteLink::manual_decisions();
    let fixture = fixture(1, &link);
    let limiter = fixture.limiter.clone();
    let thread = std::thread::spawn(move || {
        assert!(limiter.handle("l").of("u").peek().is_granted());
        let decision = limiter.handle("l").of("u").try_acquire();
        let granted = decision.permit().expect("there is room");
        granted.into_lease().expect("a slot").release()
    });
    for _ in ["peek", "try_acquire", "release"] {
        link.wait_for_in_flight(1);
        link.deliver_all();
    }
    assert!(thread.join().expect("it does not fail"));
    fixture.ends();
}

fn shared_fixture(slots: u64, link: &RemoteLink) -> RemoteFixture {
    fixture_of(slots, |store| RemoteStub::shared(store, link.clone()))
}

/// Releases in other processes notify no waiter here.
#[test]
fn queue_head_polls_shared_store() {
    let link = RemoteLink::manual_replies();
    let fixture = shared_fixture(1, &link);
    let slot = held(&fixture, &link, 1).into_id();
    let (mut first, mut second) =
        (fixture.wait(1, seconds(60)).starts(), fixture.wait(1, seconds(60)).starts());
    while link.deliver_all() > 0 {
        first.expect_pending();
        second.expect_pending();
    }
    for _ in 0..3 {
        fixture.pass(FLEET_POLL_INTERVAL / 2);
        assert!(!first.is_woken() && !second.is_woken());
        fixture.pass(FLEET_POLL_INTERVAL / 2);
        second.expect_pending();
        first.expect_pending();
        assert_eq!(link.deliver_all(), 1, "only the queue head polls");
        first.expect_pending();
        assert_eq!(link.in_flight(), 0);
    }
    assert!(
        tidegate::store::Store::release(fixture.store.store(), slot).now(),
        "released without a notification"
    );
    fixture.pass(FLEET_POLL_INTERVAL);
    first.expect_pending();
    link.deliver_all();
    drop(first.expect_granted());
    drop(second);
    link.deliver_all();
    fixture.ends();
}

#[test]
fn waiter_with_known_instant_polls_only_for_open_hold() {
    let link = RemoteLink::manual_replies();
    let fixture = shared_fixture(1, &link);
    let bucket = ItemSpec::of(Policy::Bucket { window: seconds(10), burst: None }, 1);
    fixture.put(LimitSpec::named("l").with(bucket));
    for hold in [false, true] {
        fixture.pass(seconds(20));
        let handle = fixture.limiter.handle("l");
        let question = handle.of("u");
        let question = if hold { question.hold() } else { question };
        let mut asking = PolledFuture::new(question.within(Duration::ZERO)).starts();
        link.deliver_all();
        let taken = asking.expect_granted();
        let mut waiter = fixture.wait(1, seconds(60)).starts();
        while link.deliver_all() > 0 {
            waiter.expect_pending();
        }
        fixture.pass(FLEET_POLL_INTERVAL);
        assert_eq!(waiter.is_woken(), hold);
        drop((taken, waiter));
        link.deliver_all();
    }
}

/// On a store of this process alone every release notifies the waiters.
#[test]
fn waiter_on_unshared_store_does_not_poll() {
    let link = RemoteLink::manual_replies();
    let fixture = fixture(1, &link);
    let slot = held(&fixture, &link, 1);
    let mut waiter = fixture.wait(1, seconds(30)).starts();
    while link.deliver_all() > 0 {
        waiter.expect_pending();
    }
    fixture.pass(seconds(20));
    assert!(!waiter.is_woken());
    drop((slot, waiter));
    fixture.ends();
}
