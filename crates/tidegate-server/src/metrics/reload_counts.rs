//! Counts of settings reloads.

use std::time::Duration;

use tidegate_net::metrics_page::{MetricKind, MetricsPage, NanosAsSeconds};

/// Source of the counts of reloads, such as a closure.
pub trait ReloadSource: Send + Sync {
    /// The counts so far.
    fn counts(&self) -> ReloadCounts;
}

impl<F: Fn() -> ReloadCounts + Send + Sync> ReloadSource for F {
    fn counts(&self) -> ReloadCounts {
        self()
    }
}

/// Counts of reloads. The load at startup is the first reload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReloadCounts {
    /// Reloads that were applied or found nothing to change.
    pub succeeded: u64,
    /// Reloads that were rejected because the settings are invalid.
    pub failed: u64,
    /// Whether the last reload was rejected, so that older settings are in use.
    pub last_failed: bool,
    /// Time of the last success since 1970; `None` if there was none.
    pub last_success: Option<Duration>,
}

pub(super) fn write(page: &mut MetricsPage, reloads: &ReloadCounts) {
    let help = "Settings reloads by outcome; the load at startup is the first.";
    let mut family = page.family("tidegate_reloads_total", MetricKind::Counter, help);
    family.sample(&[("outcome", "succeeded")], reloads.succeeded);
    family.sample(&[("outcome", "failed")], reloads.failed);
    let help = "1 if the last reload was applied, 0 if it was rejected.";
    page.family("tidegate_config_last_reload_successful", MetricKind::Gauge, help)
        .sample(&[], u8::from(!reloads.last_failed));
    if let Some(at) = reloads.last_success {
        let help = "Time of the last successful reload, in seconds since 1970.";
        page.family("tidegate_config_last_reload_success_timestamp_seconds", MetricKind::Gauge, help)
            .sample(&[], NanosAsSeconds(at.as_nanos()));
    }
}
