//! Every exactness rule of the design as a property, under its own name.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use tidegate_core::row_codec::{decode, encode, limit_version};
use tidegate_core::{
    Amount, Capacity, Charge, Decision, Intent, ItemSpec, LeaseId, LimitSpec, Per, Policy, Row, Tick,
    Timestamp, Verdict, Wait,
};
use tidegate_testkit::checker::{LimitRecord, ObservedOrder, ProofLevel, check_record};
use tidegate_testkit::history::{
    History, HistoryEvent, KEYS, START_SECONDS, SystemUnderTest, TimeStep, capacities, histories, items,
    replay, single_item_histories, steps, ticks, windows,
};
use tidegate_testkit::model::{ModelRefusal, OwnedAsk};
use tidegate_testkit::test_scale::cases;

use crate::reference_store::{Desk, seat};

/// Plays a story on a desk; the desk afterwards, and the time it is there.
fn played(history: &History) -> Result<(Desk, Timestamp), TestCaseError> {
    let mut desk = Desk::new(history.tick);
    let tally = replay(history, &mut desk).map_err(TestCaseError::fail)?;
    Ok((desk, tally.ended))
}

fn questions() -> impl Strategy<Value = Vec<OwnedAsk>> {
    let ask = (select(vec!["a", "b"]), select(KEYS.to_vec()), 0u64..=6)
        .prop_map(|(id, key, count)| OwnedAsk { limit_id: id.to_owned(), key: Some(key.to_vec()), count });
    vec(ask, 1..=3)
}

/// One limit of one item, in force, for one key; time begins somewhere interesting.
fn alone() -> impl Strategy<Value = (LimitSpec, Tick, u64)> {
    (items(), ticks(), select(START_SECONDS.to_vec())).prop_filter_map(
        "it can be meant",
        |(mut item, tick, begins)| {
            item.per = Per::Key;
            item.charge = Some(Charge::Count);
            let spec = LimitSpec::named("a").with(item);
            tidegate_core::Limit::new(spec.clone(), tick).is_ok().then_some((spec, tick, begins))
        },
    )
}

fn moved(now: Timestamp, step: TimeStep, tick: Tick) -> Timestamp {
    match step {
        TimeStep::Ticks(ticks) => Timestamp::from_ticks(now.ticks() + ticks),
        TimeStep::Millis(ms) => now.plus(tick.span(Duration::from_millis(ms % 100_000))),
        TimeStep::Back(ticks) => Timestamp::from_ticks(now.ticks().saturating_sub(ticks)),
        TimeStep::ToWait(past) | TimeStep::ToReset(_, past) => {
            Timestamp::from_ticks(now.ticks().saturating_add_signed(past))
        }
    }
}

fn start(tick: Tick, begins: u64) -> Timestamp {
    Timestamp::from_ticks(begins * tick.per_second())
}

fn ask(count: Amount) -> OwnedAsk {
    OwnedAsk { limit_id: "a".to_owned(), key: Some(b"ada".to_vec()), count }
}

/// Takes by the story, settling some of it to less, and keeps book of what was granted, net of what came back.
fn recorded(
    (spec, tick, begins): (LimitSpec, Tick, u64),
    story: &[(TimeStep, Amount, Option<Amount>)],
) -> LimitRecord {
    let mut desk = Desk::with(spec.clone(), tick);
    let mut now = start(tick, begins);
    let mut entries = Vec::new();
    let mut open: Vec<(LeaseId, usize)> = Vec::new();
    for (step, count, settled) in story {
        now = now.max(moved(now, *step, tick));
        let answer = desk.order(Intent::Acquire, &[ask(*count)], true, now);
        let lapses = answer.lease.map(|tenure| tenure.expires_at);
        let entry = ObservedOrder {
            granted: answer.refusal.is_none(),
            returned: lapses,
            ..ObservedOrder::granted_at(now, Some(b"ada"), *count)
        };
        open.extend(answer.lease.map(|tenure| (tenure.lease, entries.len())));
        entries.push(entry);
        if let (Some(less), Some((lease, index))) = (settled, open.first().copied()) {
            open.remove(0);
            let actual = entries[index].count.min((*less).max(1));
            if desk.settle(lease, actual, now) {
                entries[index].count = actual;
                entries[index].returned = Some(now);
            }
        }
    }
    LimitRecord::new(spec, tick, entries)
}

proptest! {
    #![proptest_config(cases(1000))]

    /// Over any history, grants never exceed what the definition allows, as the checker reads it.
    #[test]
    fn bound(limit in alone(), story in vec((steps(), 1u64..=4), 1..60)) {
        let story: Vec<_> = story.into_iter().map(|(step, count)| (step, count, None)).collect();
        prop_assert_eq!(check_record(&recorded(limit, &story)), Ok(ProofLevel::Exact));
    }

    /// Giving back never mints: what was granted, at its true cost, is still within the definition.
    #[test]
    fn refund_never_mints(
        limit in alone(),
        story in vec((steps(), 1u64..=4, proptest::option::of(0u64..=3)), 1..60),
    ) {
        prop_assert_eq!(check_record(&recorded(limit, &story)), Ok(ProofLevel::Exact));
    }

    /// A bucket that gives back much and often is never kinder than if refunded charges had cost their true price from
    /// the start, and never harsher than if nothing had been given back.
    #[test]
    fn refunds_of_a_bucket_lie_between(events in refunding()) {
        let bucket = Policy::Bucket { window: Duration::from_secs(1), burst: Some(10) };
        let limits = vec![LimitSpec::named("a").with(ItemSpec::of(bucket, 100))];
        played(&History { tick: Tick::MILLISECOND, begins: 5, limits, events })?;
    }

    /// The core answers what the definitions say: grants, waits, binding items and readings, over edits in
    /// mid-history, refunds, resets, forgotten rows and clocks that go back.
    #[test]
    fn equivalence(history in histories(true)) {
        played(&history)?;
    }

    /// The same, for one item and one key, seen from close by.
    #[test]
    fn equivalence_of_one_item(history in single_item_histories()) {
        played(&history)?;
    }

    /// What says it is fresh can be forgotten, whatever comes: a store that tidies up after every event is not found
    /// out, and a row is fresh when it said it would be.
    #[test]
    fn freshness(mut history in histories(true)) {
        history.events = history.events.iter().flat_map(|event| [event.clone(), HistoryEvent::Forget]).collect();
        let (mut desk, now) = played(&history)?;
        desk.forget(now);
        for (whose, row) in &desk.rows {
            let limit = &desk.limits[&whose.0];
            let seat = seat(limit, whose);
            prop_assert!(!row.is_evictable(limit, seat, now), "it was to be forgotten");
            if let Some(at) = row.evictable_at(limit, seat, now) {
                prop_assert!(row.is_evictable(limit, seat, at), "it said it would be fresh by then");
            }
        }
    }

    /// A refused order, and one that only looks, leaves every row as it was.
    #[test]
    fn no_trace(history in histories(true), asks in questions()) {
        let (desk, now) = played(&history)?;
        for intent in [Intent::Acquire, Intent::Peek] {
            let mut after = desk.clone();
            let (decision, lease) = after.decide(intent, &asks, true, now, &mut |_| ());
            if decision != Decision::Granted || intent == Intent::Peek {
                for (whose, row) in &after.rows {
                    let limit = &after.limits[&whose.0];
                    let blank = Row::blank(limit, seat(limit, whose).per());
                    prop_assert_eq!(row, desk.rows.get(whose).unwrap_or(&blank));
                }
                prop_assert_eq!(lease, None);
            }
        }
    }

    /// `Until(t)`: granted at `t`, refused at every instant before. `Never`: at no later instant.
    #[test]
    fn honest_wait(history in histories(true), asks in questions(), probes in vec(any::<u64>(), 4)) {
        let (desk, now) = played(&history)?;
        let at = |at: Timestamp| desk.clone().order(Intent::Peek, &asks, false, at).refusal;
        match at(now) {
            Some(ModelRefusal { wait: Wait::Until(until), .. }) => {
                prop_assert!(until > now);
                prop_assert_eq!(at(until), None, "granted when promised");
                let span = until.ticks() - now.ticks();
                let early = probes.iter().map(|probe| now.ticks() + probe % span).chain([until.ticks() - 1]);
                for early in early {
                    prop_assert!(at(Timestamp::from_ticks(early)).is_some(), "refused at {early}, before");
                }
            }
            Some(ModelRefusal { wait: Wait::Never, .. }) => {
                let second = history.tick.per_second();
                for later in [1, second, 60 * second, 86_400 * second, 400 * 86_400 * second] {
                    let later = Timestamp::from_ticks(now.ticks() + later);
                    prop_assert!(at(later).is_some(), "never, but it fits at {later:?}");
                }
            }
            Some(ModelRefusal { wait: Wait::OnRelease, .. }) | None => {}
        }
    }

    /// Every row reads back as it was, byte for byte.
    #[test]
    fn round_trip(history in histories(true)) {
        let (desk, _) = played(&history)?;
        for (whose, row) in &desk.rows {
            let limit = &desk.limits[&whose.0];
            let per = seat(limit, whose).per();
            let mut bytes = Vec::new();
            encode(row, limit, per, &mut bytes);
            prop_assert_eq!(limit_version(&bytes), Ok(limit.version()));
            prop_assert_eq!(decode(&bytes, limit, per), Ok(row.clone()));
        }
    }

    /// A clock that steps back never grants more: whatever is granted then is granted at the latest instant seen, and
    /// remembered the same.
    #[test]
    fn monotone_time((spec, tick, begins) in alone(), story in vec((steps(), 1u64..=4), 1..40)) {
        let held = matches!(spec.items[0].policy, Policy::Concurrency { .. });
        let mut desk = Desk::with(spec, tick);
        let mut now = start(tick, begins);
        let mut latest = Timestamp::EPOCH;
        for (step, count) in story {
            now = moved(now, step, tick);
            let mut clamped = desk.clone();
            let granted = desk.take("a", "ada", count, now) == Decision::Granted;
            if granted {
                prop_assert_eq!(clamped.take("a", "ada", count, now.max(latest)), Decision::Granted);
                latest = latest.max(now);
                // A lease lasts from when it is given, which is the store's to say.
                prop_assert!(held || desk.rows == clamped.rows);
            }
        }
    }

    /// Asking for one, n times, is asking for n.
    #[test]
    fn additivity((spec, tick, begins) in alone(), story in vec((steps(), 0u64..=4), 1..30), count in 1u64..=6) {
        let held = matches!(spec.items[0].policy, Policy::Concurrency { .. });
        let mut desk = Desk::with(spec, tick);
        let mut now = start(tick, begins);
        for (step, count) in story {
            now = now.max(moved(now, step, tick));
            desk.take("a", "ada", count, now);
        }
        let (mut at_once, mut one_by_one, mut repeated) = (desk.clone(), desk.clone(), desk);
        let whole = at_once.take("a", "ada", count, now);
        let asks = vec![ask(1); usize::try_from(count).expect("small")];
        let (together, _) = repeated.decide(Intent::Acquire, &asks, false, now, &mut |_| ());
        prop_assert_eq!(whole, together);
        prop_assert_eq!(&at_once.rows, &repeated.rows);
        let singly = (0..count).all(|_| one_by_one.take("a", "ada", 1, now) == Decision::Granted);
        prop_assert_eq!(whole == Decision::Granted, singly);
        if singly && !held {
            prop_assert_eq!(&at_once.rows, &one_by_one.rows);
        }
    }

    /// Held and free make the capacity, at all times, and what is held is what live leases hold.
    #[test]
    fn lease_conservation(
        tick in ticks(),
        limit in 1u64..=5,
        ttl in windows(),
        story in vec((steps(), 0u8..4, 0usize..6, 1u64..=3), 1..80),
    ) {
        let item = ItemSpec { charge: Some(Charge::Count), ..ItemSpec::of(Policy::Concurrency { ttl }, limit) };
        let mut desk = Desk::with(LimitSpec::named("a").with(item), tick);
        let mut now = start(tick, 5);
        let mut live: Vec<(LeaseId, Timestamp, Amount)> = Vec::new();
        for (step, what, which, count) in story {
            now = now.max(moved(now, step, tick));
            live.retain(|(_, expires_at, _)| now < *expires_at);
            let chosen = live.get(which).copied();
            match (what, chosen) {
                (0, Some((lease, ..))) => {
                    prop_assert!(desk.release(lease, now));
                    prop_assert!(!desk.release(lease, now), "a lease is released once");
                    live.retain(|(other, ..)| *other != lease);
                }
                (1, Some((lease, ..))) => {
                    let until = now.plus(tick.span(ttl));
                    prop_assert!(desk.renew(lease, until, now));
                    live.iter_mut().filter(|(other, ..)| *other == lease).for_each(|entry| entry.1 = until);
                }
                _ => {
                    let answer = desk.order(Intent::Acquire, &[ask(count)], false, now);
                    let held: Amount = live.iter().map(|(.., amount)| amount).sum();
                    prop_assert_eq!(answer.refusal.is_none(), held + count <= limit);
                    live.extend(answer.lease.map(|tenure| (tenure.lease, tenure.expires_at, count)));
                }
            }
            live.retain(|(_, expires_at, _)| now < *expires_at);
            let reading = desk.order(Intent::Peek, &[ask(0)], false, now).readings[0].clone();
            prop_assert_eq!(reading.used, live.iter().map(|(.., amount)| amount).sum::<Amount>());
            prop_assert_eq!(reading.used + reading.remaining.expect("it is limited"), limit);
        }
    }

    /// The harshest of answers does not care about order, grouping or repetition.
    #[test]
    fn semilattice(a in verdicts(), b in verdicts(), c in verdicts()) {
        prop_assert_eq!(a.and(b), b.and(a));
        prop_assert_eq!(a.and(b).and(c), a.and(b.and(c)));
        prop_assert_eq!(a.and(a), a);
        prop_assert_eq!(a.and(Verdict::Granted), a);
        prop_assert_eq!(a.and(Verdict::Denied(Wait::Never)), Verdict::Denied(Wait::Never));
    }

    /// What is left beside what is used is the capacity, if there is an end to it, and more never fits.
    #[test]
    fn capacity_is_a_sum(capacity in capacities(), used in amounts(), cost in amounts()) {
        match capacity {
            Capacity::Unlimited => prop_assert!(capacity.admits(used, cost)),
            Capacity::AtMost(limit) => {
                prop_assert_eq!(capacity.admits(used, cost), u128::from(used) + u128::from(cost) <= u128::from(limit));
            }
        }
    }
}

/// Charges and refunds within a few ticks of each other.
fn refunding() -> impl Strategy<Value = Vec<HistoryEvent>> {
    let order = (1u64..=4).prop_map(|count| HistoryEvent::Order {
        intent: Intent::Acquire,
        asks: vec![(0, 0, count)],
        hold: true,
    });
    let one = prop_oneof![
        (0u64..15).prop_map(|ticks| HistoryEvent::Time(TimeStep::Ticks(ticks))),
        order,
        (0usize..6, 0u64..=4).prop_map(|(lease, actual)| HistoryEvent::Settle(lease, actual)),
    ];
    vec(one, 1..60)
}

/// Amounts small, huge, and just below the end.
fn amounts() -> impl Strategy<Value = Amount> {
    prop_oneof![0u64..10, any::<u64>(), (0u64..10).prop_map(|below| u64::MAX - below)]
}

fn verdicts() -> impl Strategy<Value = Verdict> {
    prop_oneof![
        Just(Verdict::Granted),
        (0u64..4).prop_map(|at| Verdict::Denied(Wait::Until(Timestamp::from_ticks(at)))),
        Just(Verdict::Denied(Wait::OnRelease)),
        Just(Verdict::Denied(Wait::Never)),
    ]
}

/// The stories are worth playing: they grant, refuse, edit and settle.
#[test]
fn stories_are_not_empty() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    let mut runner = TestRunner::deterministic();
    let (mut granted, mut refused, mut edits, mut settled) = (0, 0, 0, 0);
    for _ in 0..200 {
        let history = histories(true).new_tree(&mut runner).expect("strategies draw").current();
        let mut desk = Desk::new(history.tick);
        let tally = replay(&history, &mut desk).unwrap_or_else(|difference| panic!("{difference}"));
        granted += tally.granted;
        refused += tally.refused;
        edits += tally.edits;
        settled += tally.settled;
    }
    assert!(
        granted > 1000 && refused > 500 && edits > 500 && settled > 50,
        "{granted} {refused} {edits} {settled}"
    );
}
