//! Closing the books: the diaries of all askers are laid side by side, limit by limit.

use std::collections::{BTreeMap, BTreeSet};

use tidegate::store::Usage;
use tidegate::{Amount, Charge, Clock, ItemSpec, LimitSpec, Per, Policy, Tick, Timestamp, Unit};

use super::client::{ClientLog, ObservedRow};
use super::operator::OperatorLog;
use super::{DecisionTimes, LimitFindings, StressContext, StressReport, workload};
use crate::checker::{LimitRecord, ProofLevel, check_record};

/// The most faults worth telling.
const MOST_FAULTS: usize = 20;

/// Explains what happened, or says why it cannot be explained.
pub(super) fn close(
    context: &StressContext,
    diaries: Vec<ClientLog>,
    mut deeds: OperatorLog,
) -> StressReport {
    let limits = context.limits.len();
    deeds.edits.resize_with(limits, Vec::new);
    deeds.resets.resize_with(limits, Vec::new);
    let mut report =
        StressReport { seed: context.plan.seed, limits: Vec::new(), leases: 0, faults: deeds.faults };
    let mut pages: Vec<Vec<ObservedRow>> = (0..limits).map(|_| Vec::new()).collect();
    let mut refused = vec![0; limits];
    let mut fences = vec![Vec::new(); limits];
    for log in diaries {
        report.leases += log.leases;
        report.faults.extend(log.faults);
        pages.iter_mut().zip(log.pages).for_each(|(page, more)| page.extend(more));
        refused.iter_mut().zip(log.refused).for_each(|(all, more)| *all += more);
        fences.iter_mut().zip(log.fences).for_each(|(all, more)| all.extend(more));
    }
    let is_untouched = |limit: usize| deeds.edits[limit].is_empty() && deeds.resets[limit].is_empty();
    let untouched: Vec<bool> = (0..limits).map(is_untouched).collect();
    for (limit, page) in pages.iter().enumerate() {
        if untouched[limit] {
            report.faults.extend(miscounted(context, &context.limits[limit], page));
        }
        report.faults.extend(out_of_order(&context.limits[limit], &mut fences[limit]));
    }
    context.clock.skip(workload::LULL);
    for (limit, page) in pages.iter().enumerate() {
        report.faults.extend(stuck(context, &context.limits[limit], page));
    }
    for (limit, page) in pages.into_iter().enumerate() {
        let spec = &context.limits[limit];
        let granted = page.iter().filter(|line| line.entry.granted).count();
        let record = LimitRecord {
            edits: std::mem::take(&mut deeds.edits[limit]),
            resets: std::mem::take(&mut deeds.resets[limit]),
            ..LimitRecord::new(
                spec.clone(),
                Tick::NANOSECOND,
                page.into_iter().map(|line| line.entry).collect(),
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
    report.faults.truncate(MOST_FAULTS);
    report
}

/// What the store counts for a limit and for each of its keys, item by item.
fn counted(
    context: &StressContext,
    spec: &LimitSpec,
    page: &[ObservedRow],
    mut say: impl FnMut(Option<&[u8]>, Usage),
) {
    let keys: BTreeSet<&[u8]> = page.iter().filter_map(|line| line.entry.key.as_deref()).collect();
    for key in std::iter::once(None).chain(keys.into_iter().map(Some)) {
        say(key, context.store.usage(&spec.id, key).decided().expect("the limit is known"));
    }
}

/// Counts that are not the sum of what was granted: something refused left a trace, or something granted left none.
fn miscounted(context: &StressContext, spec: &LimitSpec, page: &[ObservedRow]) -> Vec<String> {
    let mut faults = Vec::new();
    let hour = 3600 * Tick::NANOSECOND.per_second();
    let this_hour = context.clock.now().ticks() / hour * hour;
    let mut expected: BTreeMap<(&str, Option<&[u8]>), Amount> = BTreeMap::new();
    for item in &spec.items {
        let since = match item.policy {
            Policy::Total => 0,
            // Only the store knows which hour it was in.
            Policy::Calendar(Unit::Hour) if context.plan.times == DecisionTimes::Reported => this_hour,
            _ => continue,
        };
        let name = item.name.as_deref().expect("all items of a storm are named");
        let since = Timestamp::from_ticks(since);
        let granted = || page.iter().filter(|line| line.entry.granted);
        if granted()
            .any(|line| line.entry.at.is_none() && line.entry.start < since && since <= line.entry.end)
        {
            // On which side of the hour it was decided is not known.
            continue;
        }
        for line in granted().filter(|line| line.entry.at.unwrap_or(line.entry.start) >= since) {
            let key = line.entry.key.as_deref().filter(|_| item.per == Per::Key);
            *expected.entry((name, key)).or_default() += cost(item, line);
        }
        counted(context, spec, page, |key, usage| {
            for counted in usage.items.iter().filter(|counted| counted.item == name) {
                let expected = expected.get(&(name, key)).copied().unwrap_or(0);
                if counted.current_count != expected {
                    let whose = key.map(String::from_utf8_lossy);
                    let counts = counted.current_count;
                    faults.push(format!("{} {name} {whose:?}: counts {counts}, granted {expected}", spec.id));
                }
            }
        });
    }
    faults
}

fn cost(item: &ItemSpec, line: &ObservedRow) -> Amount {
    match item.charge {
        Some(Charge::Ask) => line.entry.asks,
        _ => line.kept,
    }
}

/// What should have come back by now: windows are over, leases released or lapsed.
fn stuck(context: &StressContext, spec: &LimitSpec, page: &[ObservedRow]) -> Vec<String> {
    let mut faults = Vec::new();
    counted(context, spec, page, |key, usage| {
        for item in &usage.items {
            let stays = item.policy == Policy::Total.word() || item.policy == Unit::Hour.word();
            if !stays && item.current_count > 0 {
                let whose = key.map(String::from_utf8_lossy);
                faults.push(format!(
                    "{} {} {whose:?}: {} never came back",
                    spec.id, item.item, item.current_count
                ));
            }
        }
    });
    faults
}

/// Fences that do not rise: two leases with the same, or a later lease with a lower one.
fn out_of_order(spec: &LimitSpec, fences: &mut [(Timestamp, Timestamp, u64)]) -> Vec<String> {
    let mut faults = Vec::new();
    let distinct: BTreeSet<u64> = fences.iter().map(|(.., fence)| *fence).collect();
    if distinct.len() < fences.len() {
        faults.push(format!("{}: a fence was given twice", spec.id));
    }
    let mut heard = fences.to_vec();
    heard.sort_unstable_by_key(|(_, end, _)| *end);
    fences.sort_unstable_by_key(|(start, ..)| *start);
    let (mut heard, mut highest) = (heard.into_iter().peekable(), 0);
    for (start, _, fence) in fences {
        // Only what was heard before this was asked for is certainly older.
        while let Some((.., former)) = heard.next_if(|(_, end, _)| end < start) {
            highest = highest.max(former);
        }
        if *fence < highest {
            faults.push(format!("{}: fence {fence} after {highest}", spec.id));
        }
    }
    faults
}
