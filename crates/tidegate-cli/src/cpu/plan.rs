//! `tidegate cpu plan`: the remaining budget from given numbers. No clock, no state.

use std::time::Duration;

use serde::Serialize;
use tidegate::budget::{BudgetForecast, BudgetTerms};

use super::format::{self, JsonNumber};
use super::settings::check_spec;
use crate::args::CpuPlanArgs;
use crate::store::as_line;
use crate::{Failure, print_result};

/// An average of fewer samples is ignored.
const MIN_SAMPLES: u64 = 10;

/// Default window.
const DEFAULT_WINDOW: Duration = Duration::from_secs(86_400);

/// Computes the plan and prints it.
pub(super) fn run(args: &CpuPlanArgs) -> Result<(), Failure> {
    let spec = args.terms.spec();
    check_spec(&spec)?;
    let window = spec.window.unwrap_or(DEFAULT_WINDOW);
    if args.elapsed > window {
        let (elapsed, window) = (format::short_minutes(args.elapsed), format::short_minutes(window));
        let why = format!("--elapsed: must be at most --window, which is {window}; found {elapsed}");
        return Err(Failure::BadInput(why));
    }
    let terms = spec.terms();
    let is_known = args.samples.is_none_or(|samples| samples >= MIN_SAMPLES);
    let outlook = if is_known {
        terms.forecast(window, args.elapsed, args.average.over(args.elapsed))
    } else {
        terms.forecast_unmeasured(window, args.elapsed)
    };
    let expected = args.elapsed.as_nanos() / args.interval.as_nanos();
    print_result(&if args.json { json(&terms, &outlook, expected) } else { text(&outlook, is_known) })
}

/// The JSON form of a plan.
#[derive(Serialize)]
struct CpuPlanJson {
    total_quota: JsonNumber,
    used_quota: JsonNumber,
    remaining_quota: JsonNumber,
    remaining_minutes: JsonNumber,
    future_min_quota: JsonNumber,
    target_cpu: JsonNumber,
    safe_limit: JsonNumber,
    status: &'static str,
    /// Number of samples expected by now.
    expected_samples: u128,
    /// An older definition of the safe limit: a share of the target.
    legacy_safe_limit: JsonNumber,
}

fn json(terms: &BudgetTerms, outlook: &BudgetForecast, expected_samples: u128) -> String {
    let plan = CpuPlanJson {
        total_quota: format::quota(outlook.total),
        used_quota: format::quota(outlook.used),
        remaining_quota: format::quota(outlook.remaining),
        remaining_minutes: format::minutes(outlook.left),
        future_min_quota: format::quota(outlook.future_floor),
        target_cpu: format::rate(outlook.target),
        safe_limit: format::rate(outlook.safe_rate),
        status: outlook.status.word(),
        expected_samples,
        legacy_safe_limit: format::rate(outlook.target.part(terms.safety)),
    };
    as_line(&plan)
}

fn text(outlook: &BudgetForecast, is_known: bool) -> String {
    let used = format::short_quota(outlook.used);
    let used = if is_known { used } else { format!("{used}, because there are too few samples") };
    format::table(&[
        ("total", format::short_quota(outlook.total)),
        ("used", used),
        ("remaining", format::short_quota(outlook.remaining)),
        ("time left", format::short_minutes(outlook.left)),
        ("floor needs", format::short_quota(outlook.future_floor)),
        ("target", format::short_rate(outlook.target)),
        ("safe limit", format::short_rate(outlook.safe_rate)),
        ("status", outlook.status.word().to_owned()),
    ])
}
