//! Field schemas of the governor's settings file.

use tidegate_config::schema::{FieldType, MappingSchema, Presence, field};
use tidegate_core::budget::Unobserved;

/// Billionths in one, and in one percent.
const BILLION: u64 = 1_000_000_000;

/// A part of a machine or of a quota, in percent.
const PERCENT: FieldType = FieldType::Decimal { least: 0, most: 100 * BILLION };

/// The settings file of the CPU governor.
pub static CPU: MappingSchema = MappingSchema {
    name: "cpu",
    what: "the settings of the CPU governor",
    fields: &[
        field(
            "avg_load_limit_percent",
            FieldType::Decimal { least: 1, most: 100 * BILLION },
            Presence::Optional,
            "What may be used on average over a window; by default 30.",
        ),
        field(
            "rolling_window_hours",
            FieldType::Whole { least: 1, most: 168 },
            Presence::Optional,
            "How long a window is; by default 24.",
        ),
        field(
            "rolling_window",
            FieldType::Duration,
            Presence::Optional,
            "The same in any unit, from 60s to 7d; one of the two.",
        ),
        field(
            "window_start_hour",
            FieldType::Whole { least: 0, most: 23 },
            Presence::Optional,
            "The hour of the day at which windows begin; by default 0.",
        ),
        field("time_zone", FieldType::Zone, Presence::Optional, "Whose hours are meant; by default UTC."),
        field("min_load_percent", PERCENT, Presence::Optional, "What may always be used; by default 10."),
        field("max_load_percent", PERCENT, Presence::Optional, "What may be used at most; by default 90."),
        field(
            "safety_factor",
            FieldType::Decimal { least: 1, most: BILLION },
            Presence::Optional,
            "How much of what can be spread is spread evenly; by default 0.9.",
        ),
        field(
            "metrics_interval_seconds",
            FieldType::Whole { least: 1, most: 300 },
            Presence::Optional,
            "How often the counter is read; by default every 5 seconds.",
        ),
        field(
            "adjust_interval_seconds",
            FieldType::Whole { least: 1, most: 600 },
            Presence::Optional,
            "How often the limit may rise; by default every 15 seconds.",
        ),
        field(
            "trailing_guard",
            FieldType::Bool,
            Presence::Optional,
            "Whether every window that ends at any moment is kept under the average too; by default true.",
        ),
        field(
            "reserve_percent",
            FieldType::Decimal { least: 0, most: 99 * BILLION },
            Presence::Optional,
            "How much of the quota is taken off once, against what cannot be measured; by default 1.",
        ),
        field(
            "increase_deadband_points",
            PERCENT,
            Presence::Optional,
            "By how many points the limit rises at least; by default 5.",
        ),
        field(
            "tolerance_points",
            PERCENT,
            Presence::Optional,
            "By how many points more than the limit may be measured before that is told; by default 1.",
        ),
        field(
            "unobserved",
            FieldType::Word(|| Unobserved::ALL.map(Unobserved::word).to_vec()),
            Presence::Optional,
            "What time counts as that nobody looked at; by default limit.",
        ),
        field(
            "history_retention_days",
            FieldType::Whole { least: 8, most: 3650 },
            Presence::Optional,
            "How long samples are kept; by default 30 days.",
        ),
        field(
            "time_slots",
            FieldType::List { element: &TIME_SLOT, least: 0 },
            Presence::Optional,
            "Hours in which less may be used.",
        ),
    ],
};

/// A time slot, which may span midnight.
static TIME_SLOT: MappingSchema = MappingSchema {
    name: "time_slot",
    what: "a time slot",
    fields: &[
        field("start", FieldType::TimeOfDay, Presence::Always, "When it begins."),
        field("end", FieldType::TimeOfDay, Presence::Always, "When it is over."),
        field("max_load_percent", PERCENT, Presence::Always, "What may be used at most meanwhile."),
    ],
};
