//! How reloads of the settings went.

use std::time::Duration;

use tidegate_net::metrics_page::{MetricKind, MetricsPage, NanosAsSeconds};

/// Knows how reloads went. A closure will do.
pub trait ReloadSource: Send + Sync {
    /// What happened so far.
    fn counts(&self) -> ReloadCounts;
}

impl<F: Fn() -> ReloadCounts + Send + Sync> ReloadSource for F {
    fn counts(&self) -> ReloadCounts {
        self()
    }
}

/// How reloads went so far. Reading the settings at the start is the first of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReloadCounts {
    /// How many were applied, or found nothing to change.
    pub succeeded: u64,
    /// How many were refused, because something is wrong with the settings.
    pub failed: u64,
    /// Whether the last one was refused, so that the server runs with older settings than those in the file.
    pub last_failed: bool,
    /// When the last one succeeded, since 1970; `None` if none has.
    pub last_success: Option<Duration>,
}

pub(super) fn write(page: &mut MetricsPage, reloads: &ReloadCounts) {
    let help = "Reloads of the settings, by how they ended; the first is the one at the start.";
    let mut family = page.family("tidegate_reloads_total", MetricKind::Counter, help);
    family.sample(&[("outcome", "succeeded")], reloads.succeeded);
    family.sample(&[("outcome", "failed")], reloads.failed);
    let help = "1 if the settings in use are those that were read last, 0 if those were refused.";
    page.family("tidegate_config_last_reload_successful", MetricKind::Gauge, help)
        .sample(&[], u8::from(!reloads.last_failed));
    if let Some(at) = reloads.last_success {
        let help = "When settings were last read and used, in seconds since 1970.";
        page.family("tidegate_config_last_reload_success_timestamp_seconds", MetricKind::Gauge, help)
            .sample(&[], NanosAsSeconds(at.as_nanos()));
    }
}
