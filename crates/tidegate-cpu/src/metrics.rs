//! The status as metrics in the Prometheus text format 0.0.4, for a file that a collector reads.
//!
//! All metrics are gauges, because a new window resets its counters. Quotas are in percent of the machine times minutes. Times are in
//! seconds.

use std::fmt::Write;
use std::time::Duration;

use tidegate::budget::{BudgetStatus, Quota, Rate};
use tidegate_config::text::shown_decimal;
use tidegate_core::Timestamp;

use crate::governor::Risk;
use crate::status::GovernorStatus;

/// Whether a governor is running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GovernorState {
    /// A governor is running.
    Yes,
    /// No governor is running. The metrics show its last state.
    No,
}

/// Formats a status as metrics.
pub fn text(status: &GovernorStatus, governing: GovernorState) -> String {
    let outlook = &status.outlook;
    let mut page = Page(String::new());
    page.gauge("running", "Whether a governor is at work.", i128::from(governing == GovernorState::Yes));
    page.rate("applied_limit_percent", "What may be used now.", status.applied);
    page.rate("safe_limit_percent", "What the window allows.", outlook.safe_rate);
    page.rate(
        "trailing_limit_percent",
        "What the window that ends now allows.",
        status.trailing_limit.min(WHOLE),
    );
    page.rate("target_percent", "What could be used from now on to end at the average.", outlook.target);
    page.rate("average_percent", "What was seen to be used in this window, on average.", status.average);
    page.quota("total_percent_minutes", "What the window has, reserve taken off.", outlook.total);
    page.quota("used_percent_minutes", "What is used of that.", outlook.used);
    page.quota("remaining_percent_minutes", "What is left; below zero it is over.", outlook.remaining);
    let (used, total) = status.trailing;
    page.quota("trailing_used_percent_minutes", "What the window that ends now has used.", used);
    page.quota("trailing_total_percent_minutes", "What it may use.", total);
    page.time("remaining_seconds", "How much of the window is left.", outlook.left);
    page.time("unobserved_seconds", "How much of the window nobody looked at.", status.unobserved);
    page.gauge("samples", "Samples in this window.", status.samples.into());
    page.gauge(
        "exceeded_samples",
        "Those of them above the limit and the tolerance.",
        status.exceeded.into(),
    );
    page.gauge("starting", "Whether too little is known of the window.", status.is_starting.into());
    let risks = [Risk::Low, Risk::Medium, Risk::High].map(|risk| (risk.word(), risk == status.risk));
    page.choice("risk", "level", "How much of the quota is used: 1 for the level that it is.", &risks);
    let standings = [BudgetStatus::Ok, BudgetStatus::Insufficient, BudgetStatus::Exhausted];
    let standings = standings.map(|standing| (standing.word(), standing == outlook.status));
    page.choice("status", "status", "Whether what is left suffices: 1 for what is the case.", &standings);
    page.instant("window_start_timestamp_seconds", "When the window began.", status.window.start);
    page.instant("window_end_timestamp_seconds", "When the window ends.", status.window.end);
    page.instant("sampled_timestamp_seconds", "When the latest sample was taken.", status.at());
    page.0
}

/// The whole machine, the maximum of a limit.
const WHOLE: Rate = Rate::from_units(100);

/// Metrics text under construction.
struct Page(String);

impl Page {
    fn family(&mut self, name: &str, help: &str) {
        // Writing into a string cannot fail.
        let _never_fails =
            write!(self.0, "# HELP tidegate_cpu_{name} {help}\n# TYPE tidegate_cpu_{name} gauge\n");
    }

    fn sample(&mut self, name: &str, value: &str) {
        let _never_fails = writeln!(self.0, "tidegate_cpu_{name} {value}");
    }

    fn gauge(&mut self, name: &str, help: &str, value: i128) {
        self.family(name, help);
        self.sample(name, &value.to_string());
    }

    /// A value in billionths.
    fn decimal(&mut self, name: &str, help: &str, billionths: i128) {
        self.family(name, help);
        self.sample(name, &shown_decimal(billionths));
    }

    fn rate(&mut self, name: &str, help: &str, rate: Rate) {
        self.decimal(name, help, rate.billionths().into());
    }

    fn quota(&mut self, name: &str, help: &str, quota: Quota) {
        self.decimal(name, help, quota.billionth_minutes());
    }

    fn time(&mut self, name: &str, help: &str, time: Duration) {
        self.decimal(name, help, i128::try_from(time.as_nanos()).unwrap_or(i128::MAX));
    }

    fn instant(&mut self, name: &str, help: &str, at: Timestamp) {
        self.decimal(name, help, at.ticks().into());
    }

    fn choice(&mut self, name: &str, label: &str, help: &str, choices: &[(&str, bool)]) {
        self.family(name, help);
        for (word, is_so) in choices {
            self.sample(&format!("{name}{{{label}=\"{word}\"}}"), if *is_so { "1" } else { "0" });
        }
    }
}
