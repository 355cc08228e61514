//! Tests of the checker with records small enough to be judged by hand.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate_core::{Capacity, Mode, Precision, Unit};

use super::*;

const WINDOW: Duration = Duration::from_millis(10);

fn ms(ms: u64) -> Timestamp {
    Timestamp::from_ticks(ms)
}

fn record(policy: Policy, limit: Amount, entries: Vec<ObservedOrder>) -> LimitRecord {
    let spec = LimitSpec::named("x").with(ItemSpec::of(policy, limit));
    LimitRecord::new(spec, Tick::MILLISECOND, entries)
}

fn at(times: &[u64]) -> Vec<ObservedOrder> {
    times.iter().map(|&at| ObservedOrder::granted_at(ms(at), None, 1)).collect()
}

fn within(times: &[(u64, u64)]) -> Vec<ObservedOrder> {
    times.iter().map(|&(start, end)| ObservedOrder::granted_within(ms(start), ms(end), None, 1)).collect()
}

#[track_caller]
fn refuted(policy: Policy, limit: Amount, entries: Vec<ObservedOrder>, from: u64, to: u64, admitted: u128) {
    let violation = check_record(&record(policy, limit, entries)).expect_err("it was planted");
    assert_eq!(
        (violation.from, violation.to, violation.admitted),
        (ms(from), ms(to), admitted),
        "{violation}"
    );
}

#[track_caller]
fn explained(policy: Policy, limit: Amount, entries: Vec<ObservedOrder>, proof: ProofLevel) {
    assert_eq!(check_record(&record(policy, limit, entries)), Ok(proof));
}

const SLIDING: Policy = Policy::Sliding { window: WINDOW, precision: Precision::Exact };

#[test]
fn total_is_checked_as_sum() {
    explained(Policy::Total, 2, within(&[(0, 9), (3, 4)]), ProofLevel::Unrefuted);
    let violation =
        check_record(&record(Policy::Total, 2, within(&[(0, 9), (3, 4), (5, 99)]))).expect_err("planted");
    assert_eq!((violation.admitted, violation.allowed), (3, 2));
}

#[test]
fn sliding_window_is_closed_interval() {
    explained(SLIDING, 1, at(&[0, 11]), ProofLevel::Exact);
    refuted(SLIDING, 1, at(&[0, 10]), 0, 10, 2);
}

#[test]
fn grant_possibly_outside_window_is_not_counted() {
    explained(SLIDING, 1, within(&[(0, 3), (8, 14)]), ProofLevel::Unrefuted);
    refuted(SLIDING, 1, within(&[(0, 3), (8, 10)]), 0, 10, 2);
}

#[test]
fn reported_decision_time_is_used() {
    let mut entries = within(&[(0, 3), (8, 14)]);
    entries[0].at = Some(ms(3));
    entries[1].at = Some(ms(13));
    refuted(SLIDING, 1, entries, 3, 13, 2);
}

#[test]
fn interval_window_starts_at_first_charge() {
    let interval = Policy::Interval { window: WINDOW };
    explained(interval, 2, at(&[0, 9, 10, 19]), ProofLevel::Exact);
    refuted(interval, 2, at(&[0, 9, 9, 10]), 0, 9, 3);
    // After a pause the next charge opens a window, whenever exactly it was made.
    refuted(interval, 1, within(&[(0, 2), (12, 14), (15, 17)]), 12, 21, 2);
    // Two windows may meet inside a stretch, three may not.
    explained(interval, 1, within(&[(0, 5), (7, 12)]), ProofLevel::Unrefuted);
    refuted(interval, 1, within(&[(0, 5), (7, 12), (8, 13), (9, 14)]), 5, 14, 3);
}

#[test]
fn calendar_unit_follows_civil_time() {
    let second = Policy::Calendar(Unit::Second);
    explained(second, 1, at(&[999, 1000]), ProofLevel::Exact);
    explained(second, 1, within(&[(900, 1000), (950, 999)]), ProofLevel::Unrefuted);
    refuted(second, 1, at(&[1000, 1999]), 1000, 1999, 2);
}

#[test]
fn bucket_allows_burst_and_refill() {
    let bucket = Policy::Bucket { window: WINDOW, burst: Some(3) };
    // One unit per five milliseconds.
    explained(bucket, 2, at(&[0, 0, 0, 5, 10]), ProofLevel::Exact);
    refuted(bucket, 2, at(&[0, 0, 0, 5, 9]), 0, 9, 5);
    explained(bucket, 2, within(&[(0, 0), (0, 0), (0, 0), (0, 5)]), ProofLevel::Unrefuted);
    refuted(bucket, 2, within(&[(0, 0), (0, 0), (0, 0), (0, 4)]), 0, 4, 4);
}

#[test]
fn refunded_units_count_until_refund() {
    let interval = Policy::Interval { window: WINDOW };
    for policy in [Policy::Total, SLIDING, interval, Policy::Calendar(Unit::Second)] {
        let mut entries =
            vec![ObservedOrder::granted_at(ms(0), None, 3), ObservedOrder::granted_at(ms(5), None, 1)];
        entries[0].refunded = Some((ms(5), 2));
        explained(policy, 3, entries.clone(), ProofLevel::Exact);
        explained(policy, 2, entries[1..].to_vec(), ProofLevel::Exact);
        entries[0].refunded = Some((ms(6), 2));
        refuted(policy, 3, entries, 0, 5, 4);
    }
}

#[test]
fn forced_charge_counts_for_later_orders() {
    let bucket = Policy::Bucket { window: Duration::from_secs(1), burst: Some(2) };
    for policy in [Policy::Total, SLIDING, Policy::Calendar(Unit::Second), bucket] {
        let mut entries = at(&[0, 8]);
        entries.push(ObservedOrder {
            forced: Some(ms(0)),
            ..ObservedOrder::granted_within(ms(3), ms(5), None, 7)
        });
        explained(policy, 2, vec![entries[0].clone(), entries[2].clone()], ProofLevel::Exact);
        let violation = check_record(&record(policy, 2, entries)).expect_err("there was no room left");
        assert_eq!((violation.to, violation.admitted), (ms(8), 9), "{policy:?}");
    }
    let mut entries = at(&[0, 8]);
    entries
        .push(ObservedOrder { forced: Some(ms(0)), ..ObservedOrder::granted_within(ms(3), ms(5), None, 7) });
    let interval = Policy::Interval { window: WINDOW };
    explained(interval, 2, entries.clone(), ProofLevel::Unrefuted);
    // Before a reset the row may have been above the limit. After it everything may have been spent again.
    let mut reset_between = record(Policy::Total, 2, entries);
    reset_between.resets.push(reset(6, 7, None));
    reset_between.entries[1].count = 2;
    assert_eq!(check_record(&reset_between), Ok(ProofLevel::Unrefuted));
    reset_between.entries[1].count = 3;
    assert!(check_record(&reset_between).is_err());
}

/// A settlement between a decision and its return: the order was judged before the settlement and returned after it.
#[test]
fn forced_charge_may_follow_order_that_returned_later() {
    let bucket = Policy::Bucket { window: Duration::from_secs(1), burst: Some(2) };
    for policy in [Policy::Total, SLIDING, Policy::Calendar(Unit::Second), bucket] {
        let mut entries = within(&[(0, 0), (2, 8)]);
        entries.push(ObservedOrder {
            forced: Some(ms(0)),
            ..ObservedOrder::granted_within(ms(3), ms(5), None, 7)
        });
        explained(policy, 2, entries.clone(), ProofLevel::Unrefuted);
        // This order started after the settlement, so the last decision came after it.
        entries.push(ObservedOrder::granted_within(ms(6), ms(7), None, 1));
        let violation = check_record(&record(policy, 2, entries)).expect_err("there was no room left");
        assert_eq!((violation.to, violation.admitted), (ms(7), 9), "{policy:?}");
    }
}

#[test]
fn held_units_count_where_they_certainly_overlap() {
    let concurrency = Policy::Concurrency { ttl: WINDOW };
    let mut entries = within(&[(0, 2), (3, 5)]);
    refuted(concurrency, 1, entries.clone(), 5, 5, 2);
    entries[0].returned = Some(ms(4));
    explained(concurrency, 1, entries, ProofLevel::Unrefuted);
    // One time to live after the earliest grant the units may be free.
    explained(concurrency, 1, within(&[(0, 2), (3, 10)]), ProofLevel::Unrefuted);
}

#[test]
fn refusals_shadow_limits_and_overrides_are_skipped() {
    let mut entries = at(&[0, 0]);
    entries[1].granted = false;
    explained(SLIDING, 1, entries, ProofLevel::Exact);
    let mut shadow = record(SLIDING, 1, at(&[0, 0]));
    shadow.spec.mode = Mode::Shadow;
    assert_eq!(check_record(&shadow), Ok(ProofLevel::Exact));
}

#[test]
fn items_count_per_key_or_for_all() {
    let two = |per: Per| {
        let entries = [b"a", b"b"].map(|key| ObservedOrder::granted_at(ms(0), Some(key), 1)).to_vec();
        let mut record = record(SLIDING, 1, entries);
        record.spec.items[0].per = per;
        record
    };
    assert_eq!(check_record(&two(Per::Key)), Ok(ProofLevel::Exact));
    assert!(check_record(&two(Per::All)).is_err());
}

/// The same limit with another capacity and window, put in force from `start` to `end`.
fn edited(record: &LimitRecord, (start, end): (u64, u64), limit: Amount, window: u64) -> ObservedEdit {
    let mut spec = record.spec.clone();
    spec.items[0].name = Some(record.spec.items[0].effective_name());
    spec.items[0].limit = Capacity::AtMost(limit);
    if let Policy::Sliding { window: own, .. }
    | Policy::Bucket { window: own, .. }
    | Policy::Interval { window: own } = &mut spec.items[0].policy
    {
        *own = Duration::from_millis(window);
    }
    ObservedEdit { start: ms(start), end: ms(end), spec }
}

fn reset(start: u64, end: u64, key: Option<&[u8]>) -> ObservedReset {
    ObservedReset { start: ms(start), end: ms(end), key: key.map(<[u8]>::to_vec) }
}

#[test]
fn edit_may_act_from_start_to_end() {
    let raised = |times: &[u64]| {
        let mut record = record(Policy::Total, 1, at(times));
        record.edits.push(edited(&record, (10, 20), 3, 0));
        check_record(&record)
    };
    assert_eq!(raised(&[0, 10, 20]), Ok(ProofLevel::Unrefuted));
    assert!(raised(&[0, 9]).is_err(), "it was not raised before it was asked for");
    let lowered = |times: &[u64]| {
        let mut record = record(Policy::Total, 3, at(times));
        record.edits.push(edited(&record, (10, 20), 1, 0));
        check_record(&record)
    };
    assert_eq!(
        lowered(&[0, 1, 20]),
        Ok(ProofLevel::Unrefuted),
        "it may be the last instant of the former text"
    );
    assert!(lowered(&[0, 1, 21]).is_err(), "what was spent before is judged by the new text");
}

#[test]
fn edited_window_counts_shorter_one_around_edit() {
    let mut short = record(SLIDING, 1, at(&[0, 12, 20]));
    short.edits.push(edited(&short, (15, 16), 1, 6));
    assert_eq!(check_record(&short), Ok(ProofLevel::Unrefuted));
    short.entries = at(&[0, 12, 18]);
    assert!(check_record(&short).is_err());
}

#[test]
fn edited_bucket_refills_at_faster_rate_around_edit() {
    // One unit per ten milliseconds, then one per five.
    let bucket = Policy::Bucket { window: WINDOW, burst: None };
    let filled = |times: &[u64]| {
        let mut record = record(bucket, 1, at(times));
        record.edits.push(edited(&record, (20, 22), 2, 10));
        check_record(&record)
    };
    assert_eq!(
        filled(&[0, 10, 20, 25, 25]),
        Ok(ProofLevel::Unrefuted),
        "a burst of two, and half of one by 25"
    );
    assert!(filled(&[0, 10, 19]).is_err());
    assert!(filled(&[30, 30, 34]).is_err());
    assert_eq!(filled(&[30, 30, 35]), Ok(ProofLevel::Unrefuted));
}

#[test]
fn reset_allows_capacity_once_more() {
    for policy in
        [Policy::Total, SLIDING, Policy::Interval { window: WINDOW }, Policy::Calendar(Unit::Second)]
    {
        let reset_at = |times: &[u64]| {
            let mut record = record(policy, 2, at(times));
            record.resets.push(reset(4, 5, None));
            check_record(&record)
        };
        assert_eq!(reset_at(&[0, 1, 4, 5]), Ok(ProofLevel::Unrefuted), "{policy:?}");
        assert!(reset_at(&[0, 1, 4, 5, 6]).is_err(), "{policy:?}");
    }
    // After the end of the reset, only what follows it counts.
    for policy in [Policy::Total, SLIDING, Policy::Calendar(Unit::Second)] {
        let mut record = record(policy, 2, at(&[6, 7, 8]));
        record.resets.push(reset(4, 5, None));
        assert!(check_record(&record).is_err(), "{policy:?}");
    }
}

#[test]
fn reset_of_one_key_concerns_that_key_only() {
    let mut all = record(Policy::Total, 1, at(&[0, 9]));
    all.resets.push(reset(4, 5, Some(b"a")));
    assert!(check_record(&all).is_err());
    let keyed = |key: &[u8]| {
        let entries = [0, 9].map(|at| ObservedOrder::granted_at(ms(at), Some(key), 1)).to_vec();
        let mut record = record(Policy::Total, 1, entries);
        record.spec.items[0].per = Per::Key;
        record.resets.push(reset(4, 5, Some(b"a")));
        check_record(&record)
    };
    assert_eq!(keyed(b"a"), Ok(ProofLevel::Unrefuted));
    assert!(keyed(b"b").is_err());
}

#[test]
fn leases_survive_reset_and_end_with_item() {
    let concurrency = Policy::Concurrency { ttl: Duration::from_secs(1) };
    let mut held = record(concurrency, 1, at(&[0, 9]));
    held.resets.push(reset(4, 5, None));
    assert!(check_record(&held).is_err());
    held.resets.clear();
    held.edits.push(ObservedEdit {
        start: ms(4),
        end: ms(5),
        spec: LimitSpec::named("x").with(ItemSpec::of(Policy::Total, 9)),
    });
    held.edits.push(ObservedEdit { start: ms(7), end: ms(8), spec: held.spec.clone() });
    assert_eq!(check_record(&held), Ok(ProofLevel::Unrefuted));
    held.entries = at(&[0, 1, 9]);
    assert!(check_record(&held).is_err());
}

/// An interval of two that is removed from 5 to 6 and added back from 20 to 24.
fn removed_and_added_back(entries: Vec<ObservedOrder>) -> Result<ProofLevel, LimitViolation> {
    let mut record = record(Policy::Interval { window: WINDOW }, 2, entries);
    let without = LimitSpec::named("x").with(ItemSpec::of(Policy::Total, 99));
    record.edits.push(ObservedEdit { start: ms(5), end: ms(6), spec: without });
    record.edits.push(ObservedEdit { start: ms(20), end: ms(24), spec: record.spec.clone() });
    check_record(&record)
}

#[test]
fn interval_is_checked_after_edit() {
    let edited_at_20 = |entries: Vec<ObservedOrder>, limit: Amount, window: u64| {
        let mut record = record(Policy::Interval { window: WINDOW }, 2, entries);
        record.edits.push(edited(&record, (20, 24), limit, window));
        check_record(&record)
    };
    let violation = edited_at_20(at(&[0, 1, 45, 46, 50]), 2, 20).expect_err("45 opens a window for two");
    assert_eq!((violation.from, violation.to, violation.admitted), (ms(45), ms(64), 3));
    assert!(edited_at_20(within(&[(0, 2), (45, 47), (46, 48), (50, 55)]), 2, 20).is_err());
    assert!(edited_at_20(at(&[0, 1, 45, 46, 50]), 1, 10).is_err(), "and the number since then");
    assert_eq!(edited_at_20(at(&[0, 1, 45, 46, 50]), 3, 20), Ok(ProofLevel::Unrefuted));
    // A charge under the former definition, less than a window ago, may have opened the current window.
    assert_eq!(edited_at_20(at(&[19, 28, 29, 30]), 2, 10), Ok(ProofLevel::Unrefuted));
    assert!(edited_at_20(at(&[19, 29, 29, 30]), 2, 10).is_err());
    assert!(removed_and_added_back(at(&[0, 1, 34, 35, 36])).is_err());
    // Once a window has certainly opened, those after it are known too.
    assert!(removed_and_added_back(at(&[23, 34, 43, 44, 45, 53])).is_err());
}

#[test]
fn charge_outside_era_may_have_opened_window() {
    // 23 may have opened a window, and then 33 opened the next, though neither belongs to the era.
    assert_eq!(removed_and_added_back(at(&[23, 32, 33, 34])), Ok(ProofLevel::Unrefuted));
    assert_eq!(
        removed_and_added_back(within(&[(23, 25), (32, 33), (33, 34), (34, 35)])),
        Ok(ProofLevel::Unrefuted)
    );
    assert!(removed_and_added_back(at(&[22, 32, 33, 34])).is_err(), "that would have been over by 32");
    // So may a hold from before the era that was settled for more.
    let mut entries = at(&[0, 32, 33, 34]);
    assert!(removed_and_added_back(entries.clone()).is_err());
    entries.push(ObservedOrder { forced: Some(ms(0)), ..ObservedOrder::granted_at(ms(26), None, 1) });
    assert_eq!(removed_and_added_back(entries), Ok(ProofLevel::Unrefuted));
    // So may an order that started before the era's last instant and returned after it.
    let mut record =
        record(Policy::Interval { window: WINDOW }, 2, within(&[(0, 40), (5, 8), (11, 12), (12, 13)]));
    let without = LimitSpec::named("x").with(ItemSpec::of(Policy::Total, 99));
    record.edits.push(ObservedEdit { start: ms(30), end: ms(31), spec: without });
    assert_eq!(check_record(&record), Ok(ProofLevel::Unrefuted));
    record.entries.remove(0);
    assert!(check_record(&record).is_err());
}

/// Tries every interval between two instants of the record for a violation.
fn brute_force_finds_violation(policy: Policy, limit: Amount, entries: &[ObservedOrder]) -> bool {
    let window = WINDOW.as_millis();
    let inside = |from: u64, to: u64| -> u128 {
        let inside = entries.iter().filter(|entry| from <= entry.earliest() && entry.latest() <= to);
        inside.map(|entry| u128::from(entry.count)).sum()
    };
    let limit = u128::from(limit);
    let (starts, ends) =
        (entries.iter().map(ObservedOrder::earliest), entries.iter().map(ObservedOrder::latest));
    let exceeds = |from: u64, to: u64| {
        let length = u128::from(to - from);
        match policy {
            Policy::Total => inside(from, to) > limit,
            Policy::Sliding { .. } => length <= window && inside(from, to) > limit,
            Policy::Bucket { .. } => {
                let step = window.div_ceil(limit);
                inside(from, to) * step > length + limit * step
            }
            Policy::Concurrency { .. } => {
                let returned =
                    |entry: &ObservedOrder| entry.returned.map_or(entry.earliest() + 10, Timestamp::ticks);
                let held = entries.iter().filter(|entry| entry.latest() <= to && to < returned(entry));
                held.map(|entry| u128::from(entry.count)).sum::<u128>() > limit
            }
            _ => false,
        }
    };
    starts.into_iter().any(|from| ends.clone().any(|to| from <= to && exceeds(from, to)))
}

proptest! {
    #![proptest_config(crate::test_scale::cases(400))]

    /// Sorting and sums find exactly what trying every interval finds.
    #[test]
    fn it_is_as_sharp_as_trying_everything(
        drawn in vec((0u64..40, 0u64..6, 1u64..3, proptest::option::of(0u64..15), any::<bool>()), 1..14),
        limit in 1u64..6,
    ) {
        let entries: Vec<ObservedOrder> = drawn.iter().map(|&(start, length, count, held, told)| ObservedOrder {
            at: told.then_some(ms(start + length / 2)),
            returned: held.map(|held| ms(start + held)),
            ..ObservedOrder::granted_within(ms(start), ms(start + length), None, count)
        }).collect();
        let bucket = Policy::Bucket { window: WINDOW, burst: None };
        for policy in [Policy::Total, SLIDING, bucket, Policy::Concurrency { ttl: WINDOW }] {
            let mut record = record(policy, limit, entries.clone());
            record.spec.items[0].charge = Some(tidegate_core::Charge::Count);
            prop_assert_eq!(check_record(&record).is_err(), brute_force_finds_violation(policy, limit, &entries), "{:?}", policy);
        }
    }
}
