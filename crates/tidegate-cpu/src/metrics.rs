//! The status as metrics in the Prometheus text format 0.0.4, for a file that a collector reads.
//!
//! All metrics are gauges, because a new window resets its counters. Quotas are in percent of the machine times minutes. Times are in
//! seconds.

use std::fmt::Write;
use std::time::Duration;

use tidegate::budget::{BudgetStatus, Quota, Rate};
use tidegate_config::text::format_decimal;
use tidegate_core::Timestamp;

use crate::governor::Risk;
use crate::status::GovernorStatus;

/// Whether a governor is running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GovernorState {
    /// A governor is running.
    Running,
    /// No governor is running. The metrics show its last state.
    Stopped,
}

/// Formats a status as metrics.
pub fn text(status: &GovernorStatus, governing: GovernorState) -> String {
    let outlook = &status.outlook;
    let mut metrics = MetricsText(String::new());
    metrics.gauge(
        "running",
        "Whether a governor is running.",
        i128::from(governing == GovernorState::Running),
    );
    metrics.rate("applied_limit_percent", "Current limit.", status.applied);
    metrics.rate("safe_limit_percent", "Limit of the window.", outlook.safe_rate);
    metrics.rate("trailing_limit_percent", "Limit of the trailing window.", status.trailing_limit.min(WHOLE));
    metrics.rate(
        "target_percent",
        "Constant usage that would end the window at the average.",
        outlook.target,
    );
    metrics.rate("average_percent", "Average observed usage in this window.", status.average);
    metrics.quota("total_percent_minutes", "Quota of the window without the reserve.", outlook.total);
    metrics.quota("used_percent_minutes", "Used part of the quota.", outlook.used);
    metrics.quota(
        "remaining_percent_minutes",
        "Remaining quota. Negative if it is exceeded.",
        outlook.remaining,
    );
    let (used, total) = status.trailing;
    metrics.quota("trailing_used_percent_minutes", "Usage in the trailing window.", used);
    metrics.quota("trailing_total_percent_minutes", "Quota of the trailing window.", total);
    metrics.time("remaining_seconds", "Time left in the window.", outlook.left);
    metrics.time("unobserved_seconds", "Unobserved time in the window.", status.unobserved);
    metrics.gauge("samples", "Samples in this window.", status.samples.into());
    metrics.gauge("exceeded_samples", "Samples above limit and tolerance.", status.exceeded.into());
    metrics.gauge("starting", "Whether too little of the window is observed.", status.is_starting.into());
    let risks = [Risk::Low, Risk::Medium, Risk::High].map(|risk| (risk.word(), risk == status.risk));
    metrics.choice("risk", "level", "Level of quota usage: 1 for the current level.", &risks);
    let statuses = [BudgetStatus::Ok, BudgetStatus::Insufficient, BudgetStatus::Exhausted];
    let statuses = statuses.map(|budget_status| (budget_status.word(), budget_status == outlook.status));
    metrics.choice(
        "status",
        "status",
        "Whether the remaining quota suffices: 1 for the current status.",
        &statuses,
    );
    metrics.instant("window_start_timestamp_seconds", "Start of the window.", status.window.start);
    metrics.instant("window_end_timestamp_seconds", "End of the window.", status.window.end);
    metrics.instant("sampled_timestamp_seconds", "Time of the latest sample.", status.at());
    metrics.0
}

/// The whole machine, the maximum of a limit.
const WHOLE: Rate = Rate::from_units(100);

/// Metrics text under construction.
struct MetricsText(String);

impl MetricsText {
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
        self.sample(name, &format_decimal(billionths));
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
