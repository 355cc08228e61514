//! The audit after a run: the logs of all clients are merged per limit and compared with what the store counts.

use std::collections::{BTreeMap, BTreeSet};

use tidegate::clock::Clock;
use tidegate::model::{Amount, Charge, ItemSpec, LimitSpec, Per, Policy, Tick, Timestamp, Unit};
use tidegate::store::Usage;

use super::client::{ClientLog, ObservedRow};
use super::operator::OperatorLog;
use super::{DecisionTimes, LimitFindings, StressContext, StressReport, workload};
use crate::checker::{LimitRecord, ProofLevel, check_record};

/// Maximum number of reported faults.
const MAX_FAULTS: usize = 20;

/// Merges the logs, checks them, and reports what cannot be explained.
pub(super) fn audit(
    context: &StressContext,
    client_logs: Vec<ClientLog>,
    mut operator_log: OperatorLog,
) -> StressReport {
    let limits = context.limits.len();
    operator_log.edits.resize_with(limits, Vec::new);
    operator_log.resets.resize_with(limits, Vec::new);
    let mut report =
        StressReport { seed: context.plan.seed, limits: Vec::new(), leases: 0, faults: operator_log.faults };
    let mut rows: Vec<Vec<ObservedRow>> = (0..limits).map(|_| Vec::new()).collect();
    let mut refused = vec![0; limits];
    let mut fences = vec![Vec::new(); limits];
    for log in client_logs {
        report.leases += log.leases;
        report.faults.extend(log.faults);
        rows.iter_mut().zip(log.rows).for_each(|(rows, more)| rows.extend(more));
        refused.iter_mut().zip(log.refused).for_each(|(all, more)| *all += more);
        fences.iter_mut().zip(log.fences).for_each(|(all, more)| all.extend(more));
    }
    let is_untouched =
        |limit: usize| operator_log.edits[limit].is_empty() && operator_log.resets[limit].is_empty();
    let untouched: Vec<bool> = (0..limits).map(is_untouched).collect();
    for (limit, rows) in rows.iter().enumerate() {
        if untouched[limit] {
            report.faults.extend(find_miscounts(context, &context.limits[limit], rows));
        }
        report.faults.extend(find_fence_disorder(&context.limits[limit], &mut fences[limit]));
    }
    context.clock.skip(workload::QUIET_PERIOD);
    for (limit, rows) in rows.iter().enumerate() {
        report.faults.extend(find_unreturned(context, &context.limits[limit], rows));
    }
    for (limit, rows) in rows.into_iter().enumerate() {
        let spec = &context.limits[limit];
        let granted = rows.iter().filter(|row| row.order.granted).count();
        let record = LimitRecord {
            edits: std::mem::take(&mut operator_log.edits[limit]),
            resets: std::mem::take(&mut operator_log.resets[limit]),
            ..LimitRecord::new(
                spec.clone(),
                Tick::NANOSECOND,
                rows.into_iter().map(|row| row.order).collect(),
            )
        };
        let proof = check_record(&record);
        match &proof {
            Err(violation) => report.faults.push(format!("{}: {violation}", spec.id)),
            Ok(ProofLevel::Unrefuted)
                if untouched[limit] && context.plan.times == DecisionTimes::Reported =>
            {
                report.faults.push(format!("{}: every time is known, and yet nothing is proved", spec.id));
            }
            Ok(_) => {}
        }
        report.limits.push(LimitFindings {
            limit_id: spec.id.clone(),
            granted,
            refused: refused[limit],
            edits: record.edits.len(),
            resets: record.resets.len(),
            proof: proof.ok(),
        });
    }
    report.faults.truncate(MAX_FAULTS);
    report
}

/// Visits the store's usage of a limit and of each of its keys.
fn for_each_usage(
    context: &StressContext,
    spec: &LimitSpec,
    rows: &[ObservedRow],
    mut visit: impl FnMut(Option<&[u8]>, Usage),
) {
    let keys: BTreeSet<&[u8]> = rows.iter().filter_map(|row| row.order.key.as_deref()).collect();
    for key in std::iter::once(None).chain(keys.into_iter().map(Some)) {
        visit(key, context.store.usage(&spec.id, key).decided().expect("the limit is known"));
    }
}

/// Items whose count differs from the sum of the grants: a refused order left a trace, or a grant left none.
fn find_miscounts(context: &StressContext, spec: &LimitSpec, rows: &[ObservedRow]) -> Vec<String> {
    let mut faults = Vec::new();
    let hour = 3600 * Tick::NANOSECOND.per_second();
    let this_hour = context.clock.now().ticks() / hour * hour;
    let mut expected: BTreeMap<(&str, Option<&[u8]>), Amount> = BTreeMap::new();
    for item in &spec.items {
        let since = match item.policy {
            Policy::Total => 0,
            // Without reported times it is unknown in which hour an order was decided.
            Policy::Calendar(Unit::Hour) if context.plan.times == DecisionTimes::Reported => this_hour,
            _ => continue,
        };
        let name = item.name.as_deref().expect("all items of a storm are named");
        let since = Timestamp::from_ticks(since);
        let granted = || rows.iter().filter(|row| row.order.granted);
        if granted().any(|row| row.order.at.is_none() && row.order.start < since && since <= row.order.end) {
            // The order may have been decided on either side of the hour.
            continue;
        }
        for row in granted().filter(|row| row.order.at.unwrap_or(row.order.start) >= since) {
            let key = row.order.key.as_deref().filter(|_| item.per == Per::Key);
            *expected.entry((name, key)).or_default() += cost(item, row);
        }
        for_each_usage(context, spec, rows, |key, usage| {
            for counted in usage.items.iter().filter(|counted| counted.item == name) {
                let expected = expected.get(&(name, key)).copied().unwrap_or(0);
                if counted.current_count != expected {
                    let key_text = key.map(String::from_utf8_lossy);
                    let counts = counted.current_count;
                    faults.push(format!(
                        "{} {name} {key_text:?}: counts {counts}, granted {expected}",
                        spec.id
                    ));
                }
            }
        });
    }
    faults
}

fn cost(item: &ItemSpec, row: &ObservedRow) -> Amount {
    match item.charge {
        Some(Charge::Ask) => row.order.asks,
        _ => row.counted,
    }
}

/// Counts that should be zero by now: windows are over, and leases are released or have lapsed.
fn find_unreturned(context: &StressContext, spec: &LimitSpec, rows: &[ObservedRow]) -> Vec<String> {
    let mut faults = Vec::new();
    for_each_usage(context, spec, rows, |key, usage| {
        for item in &usage.items {
            let stays = item.policy == Policy::Total.word() || item.policy == Unit::Hour.word();
            if !stays && item.current_count > 0 {
                let key_text = key.map(String::from_utf8_lossy);
                faults.push(format!(
                    "{} {} {key_text:?}: {} never came back",
                    spec.id, item.item, item.current_count
                ));
            }
        }
    });
    faults
}

/// Fences that do not rise: two leases with the same fence, or a later lease with a lower one.
fn find_fence_disorder(spec: &LimitSpec, fences: &mut [(Timestamp, Timestamp, u64)]) -> Vec<String> {
    let mut faults = Vec::new();
    let distinct: BTreeSet<u64> = fences.iter().map(|(.., fence)| *fence).collect();
    if distinct.len() < fences.len() {
        faults.push(format!("{}: a fence was given twice", spec.id));
    }
    let mut received = fences.to_vec();
    received.sort_unstable_by_key(|(_, end, _)| *end);
    fences.sort_unstable_by_key(|(start, ..)| *start);
    let (mut received, mut highest) = (received.into_iter().peekable(), 0);
    for (start, _, fence) in fences {
        // Only a lease whose grant returned before this call is certainly older.
        while let Some((.., former)) = received.next_if(|(_, end, _)| end < start) {
            highest = highest.max(former);
        }
        if *fence < highest {
            faults.push(format!("{}: fence {fence} after {highest}", spec.id));
        }
    }
    faults
}
