//! Whoever stops waiting was never there, wherever they stop.
//!
//! A scenario is a list of moves: events, and polls of the one who will be dropped. It is played once for every point at
//! which it can be cut; there the waiter is dropped, and then everything must be as if it had never come: nobody
//! is in a queue, what is not held is free, and who stood behind it is served.

use std::task::Poll;
use std::time::Duration;

use tidegate::Lease;
use tidegate::model::{Ask, ItemSpec, LimitSpec, Order, Policy};
use tidegate::reply::{Detail, Replies};
use tidegate::store::Store;

use super::Stage;
use crate::stage::{DecisionExt, Staged, Waiter, granted, lease, seconds, slots_of};

/// What is held while a scenario is played.
type Held = Vec<Lease>;

/// Something that happens between two polls.
type Event = fn(&Stage, &mut Held);

struct Scenario {
    slots: u64,
    begin: Event,
    /// What the one who is dropped, and the one behind, want.
    wants: [u64; 2],
    events: Vec<Event>,
}

/// Plays a scenario cut at every point; how many points there are.
#[track_caller]
fn cut_everywhere(scenario: &Scenario) -> usize {
    (0..100).take_while(|moves| play(scenario, *moves).is_pending()).count()
}

/// Plays a scenario for this many moves, drops who waits, and sees whether it left a trace; whether it had been answered.
#[track_caller]
fn play(scenario: &Scenario, moves: usize) -> Poll<()> {
    let stage = Stage::with_slots(scenario.slots);
    let mut held = Held::new();
    (scenario.begin)(&stage, &mut held);
    let mut doomed = stage.wait(scenario.wants[0], seconds(60));
    let mut behind = stage.wait(scenario.wants[1], seconds(60));
    let mut answer = Poll::Pending;
    let mut events = scenario.events.iter();
    for turn in 0..moves {
        if turn % 2 == 1 {
            let event = events.next().expect("who waits is answered after the last event");
            event(&stage, &mut held);
            continue;
        }
        answer = doomed.poll();
        if turn == 0 {
            assert!(answer.is_pending() && behind.poll().is_pending(), "they wait, one behind the other");
        }
    }
    drop(doomed);
    // Whatever it was told goes with it.
    let answered = answer.map(drop);
    held.clear();
    assert_eq!(stage.store.open_leases(), 0, "after {moves} moves a lease is left behind");
    drop(granted(behind.is_answered()));
    stage.ends_with(0);
    answered
}

#[test]
fn while_waiting_for_a_release() {
    let scenario = Scenario {
        slots: 1,
        begin: |stage, held| held.push(stage.take(1)),
        wants: [1, 1],
        events: vec![|_, _| (), |_, held| held.clear()],
    };
    assert!(cut_everywhere(&scenario) >= 5);
}

#[test]
fn while_waiting_for_two_releases() {
    let scenario = Scenario {
        slots: 2,
        begin: |stage, held| held.extend([stage.take(1), stage.take(1)]),
        wants: [2, 1],
        events: vec![|_, held| drop(held.pop()), |_, _| (), |_, held| held.clear()],
    };
    assert!(cut_everywhere(&scenario) >= 6);
}

#[test]
fn while_waiting_for_a_lapse() {
    let scenario = Scenario {
        slots: 1,
        begin: |stage, held| held.push(stage.take(1)),
        wants: [1, 1],
        events: vec![|stage, _| stage.pass(seconds(30)), |stage, _| stage.pass(seconds(30))],
    };
    assert!(cut_everywhere(&scenario) >= 5);
}

#[test]
fn while_its_limit_is_edited() {
    let scenario = Scenario {
        slots: 1,
        begin: |stage, held| held.push(stage.take(1)),
        wants: [1, 1],
        events: vec![
            |stage, _| stage.put(LimitSpec::named("l").with(slots_of(1)).with(slots_of(5).per_key())),
            |stage, _| stage.put(LimitSpec::named("l").with(slots_of(1))),
            |stage, _| stage.put(LimitSpec::named("l").with(slots_of(2))),
        ],
    };
    assert!(cut_everywhere(&scenario) >= 7);
}

#[test]
fn while_its_own_key_keeps_it_waiting() {
    let both = |all| LimitSpec::named("l").with(slots_of(all)).with(slots_of(1).per_key());
    for moves in 0..=5 {
        let stage = Stage::new();
        stage.put(both(2));
        let ada = lease(granted(stage.limiter.ask("l", "ada").try_acquire()));
        let bob = lease(granted(stage.limiter.ask("l", "bob").try_acquire()));
        let mut doomed = stage.wait_for("l", "ada", 1, seconds(60));
        let mut cid = stage.wait_for("l", "cid", 1, seconds(60));
        let mut held = Some((ada, bob));
        for turn in 0..moves {
            match turn {
                0 | 2 => assert!(doomed.poll().is_pending()),
                1 => cid.still_waits_or_starts(),
                3 => held = None,
                _ => drop(doomed.poll()),
            }
        }
        drop(doomed);
        drop(held);
        drop(granted(cid.is_answered()));
        stage.put(LimitSpec::named("l").with(slots_of(2)));
        stage.ends_with(0);
    }
}

#[test]
fn while_standing_behind_somebody() {
    for cut in 0..4 {
        let stage = Stage::with_slots(2);
        let held = stage.take(2);
        let mut first = stage.wait(2, seconds(60)).starts();
        let mut doomed = stage.wait(1, seconds(60));
        for _ in 0..cut {
            assert!(doomed.poll().is_pending());
        }
        let mut last = stage.wait(1, seconds(60)).starts();
        drop(doomed);
        drop(held);
        last.still_waits();
        drop(first.is_served());
        drop(last.is_served());
        stage.ends_with(0);
    }
}

#[test]
fn the_one_behind_is_served_at_once_if_that_is_all_it_needed() {
    let stage = Stage::with_slots(2);
    let held = stage.take(1);
    let large = stage.wait(2, seconds(60)).starts();
    let mut small = stage.wait(1, seconds(60)).starts();
    assert!(!stage.is_free());
    drop(large);
    drop(small.is_served());
    drop(held);
    stage.ends_with(0);
}

#[test]
fn one_who_was_called_and_is_dropped_passes_the_call_on() {
    let stage = Stage::with_slots(1);
    let held = stage.take(1);
    let called = stage.wait(1, seconds(60)).starts();
    let mut next = stage.wait(1, seconds(60)).starts();
    drop(held);
    assert!(called.is_woken() && !next.is_woken());
    drop(called);
    drop(next.is_served());
    stage.ends_with(0);
}

#[test]
fn nothing_is_charged_that_nobody_was_told_of() {
    let spec = || LimitSpec::named("t").with(ItemSpec::of(Policy::Interval { window: seconds(10) }, 1));
    for cut in 0..5 {
        let stage = Stage::with_slots(1);
        stage.put(spec());
        assert!(stage.limiter.ask_all("t").try_acquire().is_granted());
        let mut doomed = stage.wait_for("t", "u", 1, seconds(30));
        let mut granted = 0;
        for turn in 0..cut {
            if turn == 2 {
                stage.pass(seconds(10));
            }
            if granted == 0 {
                granted += usize::from(doomed.poll().is_ready());
            }
        }
        drop(doomed);
        if cut < 3 {
            stage.pass(seconds(10));
        }
        let asks = [Ask::one("t", None)];
        let free = stage.store.submit(&[Order::peek(&asks)], Replies::new(Detail::Verdicts)).decided();
        let is_free = free.iter().flatten().all(tidegate::reply::OrderReply::is_granted);
        assert_eq!(is_free, granted == 0, "cut {cut}: {granted} told");
        stage.ends_with(0);
    }
}

#[test]
fn sets_leave_both_queues() {
    let stage = Stage::with_slots(1);
    stage.put(LimitSpec::named("m").with(slots_of(1)));
    let both = [Ask::one("l", None), Ask::one("m", None)];
    let l = stage.take(1);
    let doomed = Waiter::new(stage.limiter.asks(&both).within(seconds(60))).starts();
    let mut behind = stage.wait_for("m", "u", 1, seconds(60)).starts();
    drop(doomed);
    drop(behind.is_served());
    assert_eq!((stage.limiter.waiting("l"), stage.limiter.waiting("m")), (0, 0));
    drop(l);
    stage.ends_with(0);
}

#[test]
fn a_dropped_waiter_leaves_no_timer() {
    let stage = Stage::with_slots(1);
    let held = stage.take(1);
    let waiters: Vec<Waiter> = (0..3).map(|_| stage.wait(1, seconds(60)).starts()).collect();
    assert_eq!(stage.pulse.sleepers(), 3);
    drop(waiters);
    assert_eq!(stage.pulse.sleepers(), 0);
    drop(held);
    stage.pass(Duration::from_secs(1));
    stage.ends_with(0);
    drop(lease(granted(stage.limiter.ask_all("l").try_acquire())));
}
