//! The exactness rules of the core as properties.

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
use tidegate_testkit::reference_model::{ModelRefusal, OwnedAsk};
use tidegate_testkit::test_scale::cases;

use crate::minimal_store::{MinimalStore, scope_of};

/// Replays a history on a new store. Returns the store and the final time.
fn replay_into_store(history: &History) -> Result<(MinimalStore, Timestamp), TestCaseError> {
    let mut store = MinimalStore::new(history.tick);
    let tally = replay(history, &mut store).map_err(TestCaseError::fail)?;
    Ok((store, tally.ended))
}

fn peek_orders() -> impl Strategy<Value = Vec<OwnedAsk>> {
    let ask = (select(vec!["a", "b"]), select(KEYS.to_vec()), 0u64..=6)
        .prop_map(|(id, key, count)| OwnedAsk { limit_id: id.to_owned(), key: Some(key.to_vec()), count });
    vec(ask, 1..=3)
}

/// One limit with one item for one key, and a start time.
fn single_item_limit() -> impl Strategy<Value = (LimitSpec, Tick, u64)> {
    (items(), ticks(), select(START_SECONDS.to_vec())).prop_filter_map(
        "a valid specification",
        |(mut item, tick, begins)| {
            item.per = Per::Key;
            item.charge = Some(Charge::Count);
            let spec = LimitSpec::named("a").with(item);
            tidegate_core::Limit::new(spec.clone(), tick).is_ok().then_some((spec, tick, begins))
        },
    )
}

fn advance(now: Timestamp, step: TimeStep, tick: Tick) -> Timestamp {
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

/// Acquires by the events, settles some grants to less, and records the grants net of refunds.
fn record_history(
    (spec, tick, begins): (LimitSpec, Tick, u64),
    events: &[(TimeStep, Amount, Option<Amount>)],
) -> LimitRecord {
    let mut store = MinimalStore::with(spec.clone(), tick);
    let mut now = start(tick, begins);
    let mut entries = Vec::new();
    let mut open: Vec<(LeaseId, usize)> = Vec::new();
    for (step, count, settled) in events {
        now = now.max(advance(now, *step, tick));
        let answer = store.order(Intent::Acquire, &[ask(*count)], true, now);
        let expires_at = answer.lease.map(|term| term.expires_at);
        let entry = ObservedOrder {
            granted: answer.refusal.is_none(),
            returned: expires_at,
            ..ObservedOrder::granted_at(now, Some(b"ada"), *count)
        };
        open.extend(answer.lease.map(|term| (term.lease, entries.len())));
        entries.push(entry);
        if let (Some(less), Some((lease, index))) = (settled, open.first().copied()) {
            open.remove(0);
            let actual = entries[index].count.min((*less).max(1));
            if store.settle(lease, actual, now) {
                entries[index].count = actual;
                entries[index].returned = Some(now);
            }
        }
    }
    LimitRecord::new(spec, tick, entries)
}

proptest! {
    #![proptest_config(cases(1000))]

    /// Over any history, grants stay within the definition of the limit.
    #[test]
    fn grants_never_exceed_limit(limit in single_item_limit(), events in vec((steps(), 1u64..=4), 1..60)) {
        let events: Vec<_> = events.into_iter().map(|(step, count)| (step, count, None)).collect();
        prop_assert_eq!(check_record(&record_history(limit, &events)), Ok(ProofLevel::Exact));
    }

    /// With refunds, grants at their true cost stay within the definition of the limit.
    #[test]
    fn refund_never_creates_capacity(
        limit in single_item_limit(),
        events in vec((steps(), 1u64..=4, proptest::option::of(0u64..=3)), 1..60),
    ) {
        prop_assert_eq!(check_record(&record_history(limit, &events)), Ok(ProofLevel::Exact));
    }

    /// With many refunds a bucket grants no more than if the true cost had been charged at once, and no less than if nothing had
    /// been refunded.
    #[test]
    fn bucket_refunds_stay_within_bounds(events in refund_events()) {
        let bucket = Policy::Bucket { window: Duration::from_secs(1), burst: Some(10) };
        let limits = vec![LimitSpec::named("a").with(ItemSpec::of(bucket, 100))];
        replay_into_store(&History { tick: Tick::MILLISECOND, begins: 5, limits, events })?;
    }

    /// Grants, waits, binding items and readings equal the reference model, with edits, refunds, resets, evicted rows and
    /// clocks that go back.
    #[test]
    fn decisions_equal_reference_model(history in histories(true)) {
        replay_into_store(&history)?;
    }

    /// The same for one item and one key, with denser events.
    #[test]
    fn single_item_decisions_equal_reference_model(history in single_item_histories()) {
        replay_into_store(&history)?;
    }

    /// A store that evicts after every event gives the same answers, and a row is evictable at the instant that it predicts.
    #[test]
    fn evictable_row_equals_no_row(mut history in histories(true)) {
        history.events = history.events.iter().flat_map(|event| [event.clone(), HistoryEvent::Forget]).collect();
        let (mut store, now) = replay_into_store(&history)?;
        store.forget(now);
        for (row_key, row) in &store.rows {
            let limit = &store.limits[&row_key.0];
            let scope = scope_of(limit, row_key);
            prop_assert!(!row.is_evictable(limit, scope, now), "an evictable row was kept");
            if let Some(at) = row.evictable_at(limit, scope, now) {
                prop_assert!(row.is_evictable(limit, scope, at), "not evictable at the predicted instant");
            }
        }
    }

    /// A refused order and a peek leave every row unchanged.
    #[test]
    fn refusal_and_peek_leave_rows_unchanged(history in histories(true), asks in peek_orders()) {
        let (store, now) = replay_into_store(&history)?;
        for intent in [Intent::Acquire, Intent::Peek] {
            let mut after = store.clone();
            let (decision, lease) = after.decide(intent, &asks, true, now, &mut |_| ());
            if decision != Decision::Granted || intent == Intent::Peek {
                for (row_key, row) in &after.rows {
                    let limit = &after.limits[&row_key.0];
                    let blank = Row::blank(limit, scope_of(limit, row_key).per());
                    prop_assert_eq!(row, store.rows.get(row_key).unwrap_or(&blank));
                }
                prop_assert_eq!(lease, None);
            }
        }
    }

    /// `Until(t)`: granted at `t` and refused at every earlier instant. `Never`: refused at every later instant.
    #[test]
    fn wait_is_exact(history in histories(true), asks in peek_orders(), probes in vec(any::<u64>(), 4)) {
        let (store, now) = replay_into_store(&history)?;
        let at = |at: Timestamp| store.clone().order(Intent::Peek, &asks, false, at).refusal;
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
                    prop_assert!(at(later).is_some(), "Never, but it fits at {later:?}");
                }
            }
            Some(ModelRefusal { wait: Wait::OnRelease, .. }) | None => {}
        }
    }

    /// Every row decodes to itself, byte for byte.
    #[test]
    fn row_decodes_to_itself(history in histories(true)) {
        let (store, _) = replay_into_store(&history)?;
        for (row_key, row) in &store.rows {
            let limit = &store.limits[&row_key.0];
            let per = scope_of(limit, row_key).per();
            let mut bytes = Vec::new();
            encode(row, limit, per, &mut bytes);
            prop_assert_eq!(limit_version(&bytes), Ok(limit.version()));
            prop_assert_eq!(decode(&bytes, limit, per), Ok(row.clone()));
        }
    }

    /// A clock that goes back grants no more than a clock that stays at the latest instant, and leaves the same state.
    #[test]
    fn clock_going_back_never_grants_more((spec, tick, begins) in single_item_limit(), events in vec((steps(), 1u64..=4), 1..40)) {
        let held = matches!(spec.items[0].policy, Policy::Concurrency { .. });
        let mut store = MinimalStore::with(spec, tick);
        let mut now = start(tick, begins);
        let mut latest = Timestamp::EPOCH;
        for (step, count) in events {
            now = advance(now, step, tick);
            let mut clamped = store.clone();
            let granted = store.take("a", "ada", count, now) == Decision::Granted;
            if granted {
                prop_assert_eq!(clamped.take("a", "ada", count, now.max(latest)), Decision::Granted);
                latest = latest.max(now);
                // The store sets the expiry of a lease, so it differs here.
                prop_assert!(held || store.rows == clamped.rows);
            }
        }
    }

    /// One order of `n` units equals `n` orders of one unit.
    #[test]
    fn one_order_of_n_equals_n_orders_of_one((spec, tick, begins) in single_item_limit(), events in vec((steps(), 0u64..=4), 1..30), count in 1u64..=6) {
        let held = matches!(spec.items[0].policy, Policy::Concurrency { .. });
        let mut store = MinimalStore::with(spec, tick);
        let mut now = start(tick, begins);
        for (step, count) in events {
            now = now.max(advance(now, step, tick));
            store.take("a", "ada", count, now);
        }
        let (mut at_once, mut one_by_one, mut repeated) = (store.clone(), store.clone(), store);
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

    /// Held and free units add up to the capacity, and live leases hold exactly the held units.
    #[test]
    fn held_plus_free_equals_capacity(
        tick in ticks(),
        limit in 1u64..=5,
        ttl in windows(),
        events in vec((steps(), 0u8..4, 0usize..6, 1u64..=3), 1..80),
    ) {
        let item = ItemSpec { charge: Some(Charge::Count), ..ItemSpec::of(Policy::Concurrency { ttl }, limit) };
        let mut store = MinimalStore::with(LimitSpec::named("a").with(item), tick);
        let mut now = start(tick, 5);
        let mut live: Vec<(LeaseId, Timestamp, Amount)> = Vec::new();
        for (step, what, which, count) in events {
            now = now.max(advance(now, step, tick));
            live.retain(|(_, expires_at, _)| now < *expires_at);
            let chosen = live.get(which).copied();
            match (what, chosen) {
                (0, Some((lease, ..))) => {
                    prop_assert!(store.release(lease, now));
                    prop_assert!(!store.release(lease, now), "a lease is released once");
                    live.retain(|(other, ..)| *other != lease);
                }
                (1, Some((lease, ..))) => {
                    let until = now.plus(tick.span(ttl));
                    prop_assert!(store.renew(lease, until, now));
                    live.iter_mut().filter(|(other, ..)| *other == lease).for_each(|entry| entry.1 = until);
                }
                _ => {
                    let answer = store.order(Intent::Acquire, &[ask(count)], false, now);
                    let held: Amount = live.iter().map(|(.., amount)| amount).sum();
                    prop_assert_eq!(answer.refusal.is_none(), held + count <= limit);
                    live.extend(answer.lease.map(|term| (term.lease, term.expires_at, count)));
                }
            }
            live.retain(|(_, expires_at, _)| now < *expires_at);
            let reading = store.order(Intent::Peek, &[ask(0)], false, now).readings[0].clone();
            prop_assert_eq!(reading.used, live.iter().map(|(.., amount)| amount).sum::<Amount>());
            prop_assert_eq!(reading.used + reading.remaining.expect("it is limited"), limit);
        }
    }

    /// Combining verdicts does not depend on order, grouping or repetition.
    #[test]
    fn verdicts_form_a_semilattice(a in verdicts(), b in verdicts(), c in verdicts()) {
        prop_assert_eq!(a.and(b), b.and(a));
        prop_assert_eq!(a.and(b).and(c), a.and(b.and(c)));
        prop_assert_eq!(a.and(a), a);
        prop_assert_eq!(a.and(Verdict::Granted), a);
        prop_assert_eq!(a.and(Verdict::Denied(Wait::Never)), Verdict::Denied(Wait::Never));
    }

    /// A cost fits if and only if the exact sum is within the capacity.
    #[test]
    fn capacity_admits_by_exact_sum(capacity in capacities(), used in amounts(), cost in amounts()) {
        match capacity {
            Capacity::Unlimited => prop_assert!(capacity.admits(used, cost)),
            Capacity::AtMost(limit) => {
                prop_assert_eq!(capacity.admits(used, cost), u128::from(used) + u128::from(cost) <= u128::from(limit));
            }
        }
    }
}

/// Charges and refunds within a few ticks of each other.
fn refund_events() -> impl Strategy<Value = Vec<HistoryEvent>> {
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

/// Small amounts, arbitrary amounts, and amounts near the maximum.
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

/// Generated histories contain enough grants, refusals, edits and settlements.
#[test]
fn generated_histories_cover_all_outcomes() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    let mut runner = TestRunner::deterministic();
    let (mut granted, mut refused, mut edits, mut settled) = (0, 0, 0, 0);
    for _ in 0..200 {
        let history = histories(true).new_tree(&mut runner).expect("strategies draw").current();
        let mut store = MinimalStore::new(history.tick);
        let tally = replay(&history, &mut store).unwrap_or_else(|difference| panic!("{difference}"));
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
