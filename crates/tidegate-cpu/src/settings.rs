//! Settings: what a file and arguments say, made whole.

mod schema;
mod spec;

use std::fmt;
use std::time::Duration;

use tidegate::budget::{BudgetTerms, Rate, Share, Unobserved};
use tidegate_core::Zone;
use tidegate_core::calendar::{MAX_SCHEDULED_WINDOW, MIN_SCHEDULED_WINDOW, WindowSchedule};

pub use schema::CPU;
pub use spec::{CpuFlaw, CpuSpec, TimeSlot, read_cpu, read_cpu_below};

/// The share of the quota that is taken off unless somebody says otherwise: one percent.
const USUAL_RESERVE: u64 = 10_000_000;

const DAY: Duration = Duration::from_secs(86_400);

/// How the governor is to govern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GovernorSettings {
    /// What is promised, and how it is spread.
    pub terms: BudgetTerms,
    /// The windows.
    pub tiling: WindowSchedule,
    /// How often the counter is read.
    pub sample_every: Duration,
    /// How often the limit may rise.
    pub adjust_every: Duration,
    /// Whether windows that end at any moment are kept under the average too.
    pub guards: bool,
    /// By how much the limit rises at least.
    pub dead_band: Rate,
    /// How much more than the limit may be measured before that is told.
    pub tolerance: Rate,
    /// What time counts as that nobody looked at.
    pub unobserved: Unobserved,
    /// How long samples are kept.
    pub retention: Duration,
    /// Hours in which less may be used.
    pub slots: Vec<TimeSlot>,
}

/// What is wrong with settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingsFlaw {
    /// The field to blame.
    pub field: &'static str,
    /// What is wrong with it.
    pub message: String,
}

impl fmt::Display for SettingsFlaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

impl std::error::Error for SettingsFlaw {}

impl GovernorSettings {
    /// The settings that these words stand for.
    pub fn of(spec: CpuSpec) -> Result<GovernorSettings, SettingsFlaw> {
        let reserve = spec.reserve.or(Share::from_billionths(USUAL_RESERVE));
        let spec = CpuSpec { reserve, ..spec };
        if let Some(flaw) = spec.flaws().into_iter().next() {
            return Err(SettingsFlaw { field: flaw.field, message: flaw.message });
        }
        let terms = spec.terms();
        let window = spec.window.unwrap_or(DAY);
        let zone = spec.zone.unwrap_or(Zone::UTC);
        let tiling =
            WindowSchedule::new(zone, spec.first_hour.unwrap_or(0), window).ok_or_else(|| SettingsFlaw {
                field: "rolling_window_hours",
                message: format!(
                    "a window must be from {} seconds to {} hours, in whole seconds; found {window:?}",
                    MIN_SCHEDULED_WINDOW.as_secs(),
                    MAX_SCHEDULED_WINDOW.as_secs() / 3600
                ),
            })?;
        let sample_every = spec.sample_every.unwrap_or(Duration::from_secs(5));
        let adjust_every = spec.adjust_every.unwrap_or(Duration::from_secs(15));
        if sample_every * 4 > window || adjust_every * 4 > window {
            let message = "must be at most a quarter of the window".to_owned();
            let field = if sample_every * 4 > window {
                "metrics_interval_seconds"
            } else {
                "adjust_interval_seconds"
            };
            return Err(SettingsFlaw { field, message });
        }
        Ok(GovernorSettings {
            terms,
            tiling,
            sample_every,
            adjust_every,
            guards: spec.guards.unwrap_or(true),
            dead_band: spec.dead_band.unwrap_or(Rate::from_units(5)),
            tolerance: spec.tolerance.unwrap_or(Rate::from_units(1)),
            unobserved: spec.unobserved.unwrap_or_default(),
            retention: spec.retention.unwrap_or(DAY * 30),
            slots: spec.slots,
        })
    }

    /// The longest that a limit stands before somebody looks again.
    pub fn step(&self) -> Duration {
        self.sample_every.max(self.adjust_every)
    }

    /// What the slots allow at a time of day.
    pub fn slot_ceiling(&self, minute: u16) -> Option<Rate> {
        let time = tidegate_config::text::TimeOfDay::from_minutes(minute);
        self.slots.iter().filter(|slot| slot.covers(time)).map(|slot| slot.ceiling).min()
    }
}
