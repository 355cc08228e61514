//! Cancellation: a waiter that is dropped at any point leaves no trace.
//!
//! A scenario alternates polls of a waiter with events. It runs once per step, and the waiter is dropped at that step.
//! Afterwards the queues must be empty, all released slots free, and the next waiter served.

use std::task::Poll;
use std::time::Duration;

use tidegate::Lease;
use tidegate::model::{Ask, ItemSpec, LimitSpec, Order, Policy};
use tidegate::reply::{Detail, Replies};
use tidegate::store::Store;

use super::LimiterFixture;
use crate::fixture::{DecisionExt, FixtureStore, HandleExt, Waiter, granted, lease, seconds, slots_of};

/// The leases that a scenario holds.
type Held = Vec<Lease>;

/// An event between two polls.
type Event = fn(&LimiterFixture, &mut Held);

struct Scenario {
    slots: u64,
    begin: Event,
    /// The slots requested by the dropped waiter and by the one behind it.
    wants: [u64; 2],
    events: Vec<Event>,
}

/// Runs a scenario once for each step at which the waiter can be dropped. Returns the number of steps.
#[track_caller]
fn drop_at_every_step(scenario: &Scenario) -> usize {
    (0..100).take_while(|moves| play(scenario, *moves).is_pending()).count()
}

/// Runs this many steps of a scenario, drops the waiter and checks for traces. Returns whether the waiter had a reply.
#[track_caller]
fn play(scenario: &Scenario, moves: usize) -> Poll<()> {
    let fixture = LimiterFixture::with_slots(scenario.slots);
    let mut held = Held::new();
    (scenario.begin)(&fixture, &mut held);
    let mut dropped = fixture.wait(scenario.wants[0], seconds(60));
    let mut behind = fixture.wait(scenario.wants[1], seconds(60));
    let mut answer = Poll::Pending;
    let mut events = scenario.events.iter();
    for turn in 0..moves {
        if turn % 2 == 1 {
            let event = events.next().expect("the waiter has a reply after the last event");
            event(&fixture, &mut held);
            continue;
        }
        answer = dropped.poll();
        if turn == 0 {
            assert!(answer.is_pending() && behind.poll().is_pending(), "they wait, one behind the other");
        }
    }
    drop(dropped);
    // Its grant, if any, is dropped too.
    let answered = answer.map(drop);
    held.clear();
    assert_eq!(fixture.store.open_leases(), 0, "after {moves} moves a lease is left behind");
    drop(granted(behind.poll_to_end()));
    fixture.ends_with(0);
    answered
}

#[test]
fn waiter_dropped_before_release_leaves_no_trace() {
    let scenario = Scenario {
        slots: 1,
        begin: |fixture, held| held.push(fixture.take(1)),
        wants: [1, 1],
        events: vec![|_, _| (), |_, held| held.clear()],
    };
    assert!(drop_at_every_step(&scenario) >= 5);
}

#[test]
fn waiter_dropped_between_releases_leaves_no_trace() {
    let scenario = Scenario {
        slots: 2,
        begin: |fixture, held| held.extend([fixture.take(1), fixture.take(1)]),
        wants: [2, 1],
        events: vec![|_, held| drop(held.pop()), |_, _| (), |_, held| held.clear()],
    };
    assert!(drop_at_every_step(&scenario) >= 6);
}

#[test]
fn waiter_dropped_before_expiry_leaves_no_trace() {
    let scenario = Scenario {
        slots: 1,
        begin: |fixture, held| held.push(fixture.take(1)),
        wants: [1, 1],
        events: vec![|fixture, _| fixture.pass(seconds(30)), |fixture, _| fixture.pass(seconds(30))],
    };
    assert!(drop_at_every_step(&scenario) >= 5);
}

#[test]
fn waiter_dropped_during_edits_leaves_no_trace() {
    let scenario = Scenario {
        slots: 1,
        begin: |fixture, held| held.push(fixture.take(1)),
        wants: [1, 1],
        events: vec![
            |fixture, _| fixture.put(LimitSpec::named("l").with(slots_of(1)).with(slots_of(5).per_key())),
            |fixture, _| fixture.put(LimitSpec::named("l").with(slots_of(1))),
            |fixture, _| fixture.put(LimitSpec::named("l").with(slots_of(2))),
        ],
    };
    assert!(drop_at_every_step(&scenario) >= 7);
}

#[test]
fn waiter_dropped_while_blocked_on_own_key_leaves_no_trace() {
    let both = |all| LimitSpec::named("l").with(slots_of(all)).with(slots_of(1).per_key());
    for moves in 0..=5 {
        let fixture = LimiterFixture::new();
        fixture.put(both(2));
        let ada = lease(granted(fixture.limiter.handle("l").of("ada").try_acquire()));
        let bob = lease(granted(fixture.limiter.handle("l").of("bob").try_acquire()));
        let mut dropped = fixture.wait_for("l", "ada", 1, seconds(60));
        let mut cid = fixture.wait_for("l", "cid", 1, seconds(60));
        let mut held = Some((ada, bob));
        for turn in 0..moves {
            match turn {
                0 | 2 => assert!(dropped.poll().is_pending()),
                1 => cid.expect_pending_or_start(),
                3 => held = None,
                _ => drop(dropped.poll()),
            }
        }
        drop(dropped);
        drop(held);
        drop(granted(cid.poll_to_end()));
        fixture.put(LimitSpec::named("l").with(slots_of(2)));
        fixture.ends_with(0);
    }
}

#[test]
fn waiter_dropped_behind_another_leaves_no_trace() {
    for cut in 0..4 {
        let fixture = LimiterFixture::with_slots(2);
        let held = fixture.take(2);
        let mut first = fixture.wait(2, seconds(60)).starts();
        let mut dropped = fixture.wait(1, seconds(60));
        for _ in 0..cut {
            assert!(dropped.poll().is_pending());
        }
        let mut last = fixture.wait(1, seconds(60)).starts();
        drop(dropped);
        drop(held);
        last.expect_pending();
        drop(first.expect_granted());
        drop(last.expect_granted());
        fixture.ends_with(0);
    }
}

#[test]
fn drop_of_queue_head_serves_next_waiter() {
    let fixture = LimiterFixture::with_slots(2);
    let held = fixture.take(1);
    let large = fixture.wait(2, seconds(60)).starts();
    let mut small = fixture.wait(1, seconds(60)).starts();
    assert!(!fixture.is_free());
    drop(large);
    drop(small.expect_granted());
    drop(held);
    fixture.ends_with(0);
}

#[test]
fn drop_of_woken_waiter_wakes_next_waiter() {
    let fixture = LimiterFixture::with_slots(1);
    let held = fixture.take(1);
    let called = fixture.wait(1, seconds(60)).starts();
    let mut next = fixture.wait(1, seconds(60)).starts();
    drop(held);
    assert!(called.is_woken() && !next.is_woken());
    drop(called);
    drop(next.expect_granted());
    fixture.ends_with(0);
}

#[test]
fn waiter_dropped_before_reply_is_not_charged() {
    let spec = || LimitSpec::named("t").with(ItemSpec::of(Policy::Interval { window: seconds(10) }, 1));
    for cut in 0..5 {
        let fixture = LimiterFixture::with_slots(1);
        fixture.put(spec());
        assert!(fixture.limiter.handle("t").without_key().try_acquire().is_granted());
        let mut dropped = fixture.wait_for("t", "u", 1, seconds(30));
        let mut granted = 0;
        for turn in 0..cut {
            if turn == 2 {
                fixture.pass(seconds(10));
            }
            if granted == 0 {
                granted += usize::from(dropped.poll().is_ready());
            }
        }
        drop(dropped);
        if cut < 3 {
            fixture.pass(seconds(10));
        }
        let asks = [Ask::one("t", None)];
        let free = fixture.store.submit(&[Order::peek(&asks)], Replies::new(Detail::Verdicts)).decided();
        let is_free = free.iter().flatten().all(tidegate::reply::OrderReply::is_granted);
        assert_eq!(is_free, granted == 0, "cut {cut}: {granted} granted");
        fixture.ends_with(0);
    }
}

#[test]
fn dropped_set_leaves_both_queues() {
    let fixture = LimiterFixture::with_slots(1);
    fixture.put(LimitSpec::named("m").with(slots_of(1)));
    let both = [Ask::one("l", None), Ask::one("m", None)];
    let l = fixture.take(1);
    let dropped = Waiter::new(fixture.limiter.request(&both).within(seconds(60))).starts();
    let mut behind = fixture.wait_for("m", "u", 1, seconds(60)).starts();
    drop(dropped);
    drop(behind.expect_granted());
    assert_eq!((fixture.limiter.waiting("l"), fixture.limiter.waiting("m")), (0, 0));
    drop(l);
    fixture.ends_with(0);
}

#[test]
fn dropped_waiter_leaves_no_timer() {
    let fixture = LimiterFixture::with_slots(1);
    let held = fixture.take(1);
    let waiters: Vec<Waiter> = (0..3).map(|_| fixture.wait(1, seconds(60)).starts()).collect();
    assert_eq!(fixture.holder_clock.sleepers(), 3);
    drop(waiters);
    assert_eq!(fixture.holder_clock.sleepers(), 0);
    drop(held);
    fixture.pass(Duration::from_secs(1));
    fixture.ends_with(0);
    drop(lease(granted(fixture.limiter.handle("l").without_key().try_acquire())));
}
