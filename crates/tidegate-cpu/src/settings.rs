//! Settings of the governor, merged from a file and arguments.

mod schema;
mod spec;

use std::fmt;
use std::time::Duration;

use tidegate::budget::{BudgetTerms, Rate, Share, Unobserved};
use tidegate_core::Zone;
use tidegate_core::calendar::{MAX_SCHEDULED_WINDOW, MIN_SCHEDULED_WINDOW, WindowSchedule};

pub use schema::CPU;
pub use spec::{CpuFlaw, CpuSpec, TimeSlot, read_cpu, read_cpu_below};

/// Default reserve: one percent of the quota.
const DEFAULT_RESERVE: u64 = 10_000_000;

const DAY: Duration = Duration::from_secs(86_400);

/// Complete settings of the governor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GovernorSettings {
    /// Limits of the budget.
    pub terms: BudgetTerms,
    /// The window schedule.
    pub schedule: WindowSchedule,
    /// Sampling interval.
    pub sample_every: Duration,
    /// Minimum time between increases of the limit.
    pub adjust_every: Duration,
    /// Whether trailing windows are kept below the average too.
    pub guards: bool,
    /// Minimum increase of the limit.
    pub dead_band: Rate,
    /// How far usage may exceed the limit before it is reported.
    pub tolerance: Rate,
    /// How unobserved time counts.
    pub unobserved: Unobserved,
    /// How long samples are kept.
    pub retention: Duration,
    /// Time slots with lower limits.
    pub slots: Vec<TimeSlot>,
}

/// An invalid setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingsFlaw {
    /// The field to report.
    pub field: &'static str,
    /// Description of the problem.
    pub message: String,
}

impl fmt::Display for SettingsFlaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

impl std::error::Error for SettingsFlaw {}

impl GovernorSettings {
    /// Validates a spec and fills in defaults.
    pub fn of(spec: CpuSpec) -> Result<GovernorSettings, SettingsFlaw> {
        let reserve = spec.reserve.or(Share::from_billionths(DEFAULT_RESERVE));
        let spec = CpuSpec { reserve, ..spec };
        if let Some(flaw) = spec.flaws().into_iter().next() {
            return Err(SettingsFlaw { field: flaw.field, message: flaw.message });
        }
        let terms = spec.terms();
        let window = spec.window.unwrap_or(DAY);
        let zone = spec.zone.unwrap_or(Zone::UTC);
        let schedule =
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
            schedule,
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

    /// The longest time that a limit applies before the next decision.
    pub fn step(&self) -> Duration {
        self.sample_every.max(self.adjust_every)
    }

    /// The lowest slot ceiling at a minute of the day, if a slot contains it.
    pub fn slot_ceiling(&self, minute: u16) -> Option<Rate> {
        let time = tidegate_config::text::TimeOfDay::from_minutes(minute);
        self.slots.iter().filter(|slot| slot.covers(time)).map(|slot| slot.ceiling).min()
    }
}
