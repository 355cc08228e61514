//! `tidegate cpu plan`: what may be used from here on. No clock, no state.

use std::time::Duration;

use serde::Serialize;
use tidegate::budget::{BudgetForecast, BudgetTerms};

use super::shown::{self, Number};
use super::terms::agrees;
use crate::args::PlanArgs;
use crate::store::as_line;
use crate::{Failure, answer};

/// Fewer samples than these say nothing about an average.
const FEWEST_SAMPLES: u64 = 10;

/// How long a window is unless somebody says otherwise.
const USUAL_WINDOW: Duration = Duration::from_secs(86_400);

/// Reckons, and says what came of it.
pub(super) fn run(args: &PlanArgs) -> Result<(), Failure> {
    let spec = args.terms.spec();
    agrees(&spec)?;
    let window = spec.window.unwrap_or(USUAL_WINDOW);
    if args.elapsed > window {
        let (elapsed, window) = (shown::short_minutes(args.elapsed), shown::short_minutes(window));
        let why = format!("--elapsed: must be at most --window, which is {window}; found {elapsed}");
        return Err(Failure::BadInput(why));
    }
    let terms = spec.terms();
    let is_known = args.samples.is_none_or(|samples| samples >= FEWEST_SAMPLES);
    let outlook = if is_known {
        terms.forecast(window, args.elapsed, args.average.over(args.elapsed))
    } else {
        terms.forecast_unmeasured(window, args.elapsed)
    };
    let expected = args.elapsed.as_nanos() / args.interval.as_nanos();
    answer(&if args.json { json(&terms, &outlook, expected) } else { text(&outlook, is_known) })
}

/// The wire form of a plan.
#[derive(Serialize)]
struct Plan {
    total_quota: Number,
    used_quota: Number,
    remaining_quota: Number,
    remaining_minutes: Number,
    future_min_quota: Number,
    target_cpu: Number,
    safe_limit: Number,
    status: &'static str,
    /// How many samples there are by now if none is missing.
    expected_samples: u128,
    /// What older versions of the document call safe: a part of the target.
    legacy_safe_limit: Number,
}

fn json(terms: &BudgetTerms, outlook: &BudgetForecast, expected_samples: u128) -> String {
    let plan = Plan {
        total_quota: shown::quota(outlook.total),
        used_quota: shown::quota(outlook.used),
        remaining_quota: shown::quota(outlook.remaining),
        remaining_minutes: shown::minutes(outlook.left),
        future_min_quota: shown::quota(outlook.future_floor),
        target_cpu: shown::rate(outlook.target),
        safe_limit: shown::rate(outlook.safe_rate),
        status: outlook.status.word(),
        expected_samples,
        legacy_safe_limit: shown::rate(outlook.target.part(terms.safety)),
    };
    as_line(&plan)
}

fn text(outlook: &BudgetForecast, is_known: bool) -> String {
    let used = shown::short_quota(outlook.used);
    let used = if is_known { used } else { format!("{used}, because there are too few samples to tell") };
    shown::table(&[
        ("total", shown::short_quota(outlook.total)),
        ("used", used),
        ("remaining", shown::short_quota(outlook.remaining)),
        ("time left", shown::short_minutes(outlook.left)),
        ("floor needs", shown::short_quota(outlook.future_floor)),
        ("target", shown::short_rate(outlook.target)),
        ("safe limit", shown::short_rate(outlook.safe_rate)),
        ("status", outlook.status.word().to_owned()),
    ])
}
