//! Asking and waiting in line.

use std::time::Duration;

use tidegate::limiter::FLEET_POLL_INTERVAL;
use tidegate::model::{ItemSpec, LimitSpec, Policy, Wait};
use tidegate::{AcquireError, Permit};
use tidegate_testkit::remote_stub::{RemoteLink, RemoteStub};

use super::{DOWN, FarStage, held, stage, stage_of, unavailable};
use crate::stage::{DecisionExt, Handheld, Staged, granted, lease, seconds, slots_of};

/// Somebody who asks once, and what they are told.
fn asking(
    stage: &FarStage,
    count: u64,
) -> Handheld<impl Future<Output = Result<Permit, AcquireError>> + use<>> {
    let limiter = stage.limiter.clone();
    Handheld::new(async move { limiter.ask("l", "u").count(count).try_acquire_async().await })
}

#[test]
fn everybody_is_told_when_they_are_answered() {
    let link = RemoteLink::manual_replies();
    let stage = stage(2, &link);
    let (mut waiter, mut asking) = (stage.wait(1, seconds(60)).starts(), asking(&stage, 1).starts());
    assert_eq!(link.in_flight(), 2);
    for _ in 0..3 {
        assert!(waiter.poll().is_pending(), "it is asked once");
    }
    assert_eq!((link.in_flight(), stage.store.open_leases()), (2, 2));
    link.deliver(1);
    let one = granted(asking.is_done());
    assert!(!waiter.is_woken());
    link.deliver_all();
    drop((one, waiter.is_served()));
    stage.ends();
}

#[test]
fn a_look_is_told_when_it_is_answered_and_changes_nothing() {
    let link = RemoteLink::manual_decisions();
    let stage = stage(1, &link);
    let limiter = stage.limiter.clone();
    let mut look = Handheld::new(async move { limiter.ask("l", "u").peek_async().await }).starts();
    link.deliver_all();
    assert!(look.is_done().is_granted());
    stage.ends();
}

/// Whether what was asked is decided by then or not.
#[test]
fn who_leaves_while_an_order_is_away_gives_its_lease_back() {
    for link in [RemoteLink::manual_replies(), RemoteLink::manual_decisions()] {
        let stage = stage(2, &link);
        drop((stage.wait(1, seconds(60)).starts(), asking(&stage, 1).starts()));
        link.deliver_all();
        stage.ends();
        // Or when the answer is there, and nobody has looked.
        let (waiter, asking) = (stage.wait(1, seconds(60)).starts(), asking(&stage, 1).starts());
        link.deliver_all();
        assert_eq!(stage.store.open_leases(), 2);
        drop((waiter, asking));
        stage.ends();
    }
}

#[test]
fn who_leaves_the_line_while_an_order_is_away_is_followed_by_the_next() {
    let link = RemoteLink::manual_replies();
    let stage = stage(1, &link);
    let slot = held(&stage, &link, 1);
    let (mut first, mut second) = (stage.wait(1, seconds(60)).starts(), stage.wait(1, seconds(60)).starts());
    while link.deliver_all() > 0 {
        first.still_waits();
        second.still_waits();
    }
    drop(slot);
    first.still_waits();
    assert_eq!(stage.store.open_leases(), 1, "it was granted the slot, and does not know");
    drop(first);
    assert_eq!((stage.limiter.waiting_in_all(), stage.store.open_leases()), (1, 0));
    second.still_waits();
    link.deliver_all();
    drop(second.is_served());
    stage.ends();
}

/// The slot was granted to somebody who never heard of it.
#[test]
fn who_leaves_while_an_order_is_away_calls_those_in_line() {
    let link = RemoteLink::manual_replies();
    let stage = stage(1, &link);
    let leaver = asking(&stage, 1).starts();
    let mut waiter = stage.wait(1, seconds(60)).starts();
    link.deliver(1);
    waiter.still_waits();
    link.deliver(1);
    waiter.still_waits();
    assert_eq!((link.in_flight(), stage.limiter.waiting_in_all()), (1, 1));
    drop(leaver);
    waiter.still_waits();
    link.deliver_all();
    drop(waiter.is_served());
    stage.ends();
}

#[test]
fn who_may_ask_again_by_a_request_id_finds_the_lease() {
    let link = RemoteLink::manual_replies();
    let stage = stage(2, &link);
    let ask = || Handheld::new(stage.limiter.ask("l", "u").request_id("r").within(seconds(60)));
    drop(ask().starts());
    assert_eq!(stage.store.open_leases(), 1, "it lapses, or whoever repeats the request gives it back");
    let mut again = ask().starts();
    link.deliver_all();
    let lease = lease(granted(again.is_done()));
    assert!(lease.is_held());
    drop(lease);
    stage.ends();
}

/// The order that was away was decided before the slot came back.
#[test]
fn a_call_that_comes_while_an_order_is_away_is_not_lost() {
    let link = RemoteLink::manual_replies();
    let stage = stage(1, &link);
    let slot = held(&stage, &link, 1);
    let mut waiter = stage.wait(1, seconds(60)).starts();
    link.deliver_all();
    waiter.still_waits();
    assert_eq!(
        (link.in_flight(), stage.limiter.waiting_in_all()),
        (1, 1),
        "it looks again after it has joined"
    );
    drop(slot);
    assert_eq!(stage.store.open_leases(), 0);
    waiter.still_waits();
    link.deliver_all();
    waiter.still_waits();
    assert_eq!(stage.store.open_leases(), 1, "it has looked once more");
    link.deliver_all();
    drop(waiter.is_served());
    stage.ends();
}

#[test]
fn an_edit_that_comes_while_an_order_is_away_is_not_lost() {
    let link = RemoteLink::manual_replies();
    let stage = stage(1, &link);
    let slot = held(&stage, &link, 1);
    let mut waiter = stage.wait(1, seconds(60)).starts();
    link.deliver_all();
    waiter.still_waits();
    stage.put(LimitSpec::named("l").with(slots_of(2)));
    waiter.still_waits();
    link.deliver_all();
    waiter.still_waits();
    link.deliver_all();
    drop((slot, waiter.is_served()));
    stage.ends();
}

/// Who asked first comes first, whoever was answered first.
#[test]
fn places_in_line_are_those_of_the_first_orders() {
    let link = RemoteLink::manual_replies();
    let stage = stage(1, &link);
    let slot = held(&stage, &link, 1);
    let (mut first, mut second) = (stage.wait(1, seconds(60)).starts(), stage.wait(1, seconds(60)).starts());
    link.deliver(1);
    second.still_waits();
    link.deliver(0);
    first.still_waits();
    while link.deliver_all() > 0 {
        second.still_waits();
        first.still_waits();
    }
    assert_eq!(stage.limiter.waiting_in_all(), 2);
    drop(slot);
    second.still_waits();
    first.still_waits();
    link.deliver_all();
    second.still_waits();
    let slot = first.is_served();
    second.still_waits();
    link.deliver_all();
    second.still_waits();
    drop(slot);
    second.still_waits();
    link.deliver_all();
    drop(second.is_served());
    stage.ends();
}

#[test]
fn nobody_is_refused_because_somebody_has_not_been_answered_yet() {
    let link = RemoteLink::manual_decisions();
    let stage = stage(2, &link);
    let (mut patient, mut other) = (stage.wait(1, seconds(60)).starts(), asking(&stage, 1).starts());
    link.deliver_all();
    drop((granted(other.is_done()), patient.is_served()));
    link.deliver_all();
    stage.ends();
}

#[test]
fn nobody_overtakes_whoever_waits_in_line() {
    let link = RemoteLink::manual_replies();
    let stage = stage(2, &link);
    let slot = held(&stage, &link, 1);
    let mut both = stage.wait(2, seconds(60)).starts();
    while link.deliver_all() > 0 {
        both.still_waits();
    }
    let mut other = asking(&stage, 1).starts();
    link.deliver_all();
    let denial = other.is_done().refused().expect("it is not their turn");
    assert_eq!((denial.wait(), denial.limit_id()), (Wait::OnRelease, "l"));
    drop(slot);
    both.still_waits();
    link.deliver_all();
    drop(both.is_served());
    stage.ends();
}

#[test]
fn patience_that_ends_while_an_order_is_away_is_answered_by_it() {
    let link = RemoteLink::manual_replies();
    let stage = stage(1, &link);
    let slot = held(&stage, &link, 1);
    let mut late = stage.wait(1, seconds(10)).starts();
    stage.pass(seconds(11));
    late.still_waits();
    link.deliver_all();
    assert_eq!(late.is_refused().wait(), Wait::OnRelease);

    let mut hurried = stage.wait(1, seconds(10)).starts();
    link.deliver_all();
    hurried.still_waits();
    hurried.stop_waiting();
    assert!(hurried.poll().is_pending(), "the store has not answered");
    link.deliver_all();
    hurried.is_refused();

    let mut asleep = stage.wait(1, seconds(10)).starts();
    while link.deliver_all() > 0 {
        asleep.still_waits();
    }
    asleep.stop_waiting();
    assert!(asleep.poll().is_pending(), "it looks a last time");
    link.deliver_all();
    asleep.is_refused();
    drop(slot);
    stage.ends();
}

#[test]
fn a_store_that_does_not_answer_is_told_to_everybody() {
    // Whether what is lost are answers or questions.
    for (link, was_given_back) in
        [(RemoteLink::manual_replies(), true), (RemoteLink::manual_decisions(), false)]
    {
        let stage = stage(1, &link);
        let slot = held(&stage, &link, 1);
        let (mut first, mut second) =
            (stage.wait(1, seconds(60)).starts(), stage.wait(1, seconds(60)).starts());
        while link.deliver_all() > 0 {
            first.still_waits();
            second.still_waits();
        }
        let (mut asking, mut look) = (asking(&stage, 1).starts(), stage.wait(1, Duration::ZERO).starts());
        drop(slot);
        first.still_waits();
        link.fail_all(DOWN);
        assert_eq!(first.is_rejected(), unavailable::<()>().unwrap_err());
        assert_eq!(asking.is_done().map(|_| ()), unavailable());
        assert_eq!(look.is_rejected(), unavailable::<()>().unwrap_err());
        assert_eq!(stage.limiter.waiting_in_all(), 1, "the second is still in line, and is called");
        second.still_waits();
        link.deliver_all();
        if was_given_back {
            drop(second.is_served());
            stage.ends();
        } else {
            second.still_waits();
            assert_eq!((stage.limiter.waiting_in_all(), stage.store.open_leases()), (1, 1));
        }
    }
}

#[test]
fn a_thread_waits_where_it_stands() {
    let link = RemoteLink::manual_decisions();
    let stage = stage(1, &link);
    let limiter = stage.limiter.clone();
    let thread = std::thread::spawn(move || {
        assert!(limiter.ask("l", "u").peek().is_granted());
        let decision = limiter.ask("l", "u").try_acquire();
        let granted = decision.permit().expect("there is room");
        granted.into_lease().expect("a slot").release()
    });
    for _ in ["peek", "try_acquire", "release"] {
        link.wait_for_in_flight(1);
        link.deliver_all();
    }
    assert!(thread.join().expect("it does not fail"));
    stage.ends();
}

fn shared_stage(slots: u64, link: &RemoteLink) -> FarStage {
    stage_of(slots, |store| RemoteStub::shared(store, link.clone()))
}

/// Other processes release without calling anybody here.
#[test]
fn whoever_is_first_in_line_looks_for_what_others_have_given_back() {
    let link = RemoteLink::manual_replies();
    let stage = shared_stage(1, &link);
    let slot = held(&stage, &link, 1).into_id();
    let (mut first, mut second) = (stage.wait(1, seconds(60)).starts(), stage.wait(1, seconds(60)).starts());
    while link.deliver_all() > 0 {
        first.still_waits();
        second.still_waits();
    }
    for _ in 0..3 {
        stage.pass(FLEET_POLL_INTERVAL / 2);
        assert!(!first.is_woken() && !second.is_woken());
        stage.pass(FLEET_POLL_INTERVAL / 2);
        second.still_waits();
        first.still_waits();
        assert_eq!(link.deliver_all(), 1, "only the first looks");
        first.still_waits();
        assert_eq!(link.in_flight(), 0);
    }
    assert!(tidegate::store::Store::release(stage.store.store(), slot).now(), "behind everybody's back");
    stage.pass(FLEET_POLL_INTERVAL);
    first.still_waits();
    link.deliver_all();
    drop(first.is_served());
    drop(second);
    link.deliver_all();
    stage.ends();
}

#[test]
fn who_waits_for_an_instant_does_not_look_before_unless_a_hold_is_open() {
    let link = RemoteLink::manual_replies();
    let stage = shared_stage(1, &link);
    let bucket = ItemSpec::of(Policy::Bucket { window: seconds(10), burst: None }, 1);
    stage.put(LimitSpec::named("l").with(bucket));
    for hold in [false, true] {
        stage.pass(seconds(20));
        let question = stage.limiter.ask("l", "u");
        let question = if hold { question.hold() } else { question };
        let mut asking = Handheld::new(question.within(Duration::ZERO)).starts();
        link.deliver_all();
        let taken = asking.is_served();
        let mut waiter = stage.wait(1, seconds(60)).starts();
        while link.deliver_all() > 0 {
            waiter.still_waits();
        }
        stage.pass(FLEET_POLL_INTERVAL);
        assert_eq!(waiter.is_woken(), hold);
        drop((taken, waiter));
        link.deliver_all();
    }
}

/// Over a store of this process alone, whoever gives back says so.
#[test]
fn who_shares_with_nobody_looks_only_when_called() {
    let link = RemoteLink::manual_replies();
    let stage = stage(1, &link);
    let slot = held(&stage, &link, 1);
    let mut waiter = stage.wait(1, seconds(30)).starts();
    while link.deliver_all() > 0 {
        waiter.still_waits();
    }
    stage.pass(seconds(20));
    assert!(!waiter.is_woken());
    drop((slot, waiter));
    stage.ends();
}
