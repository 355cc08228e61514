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
            "Average CPU usage over a window, in percent of the machine. Default: 30.",
        ),
        field(
            "rolling_window_hours",
            FieldType::Whole { least: 1, most: 168 },
            Presence::Optional,
            "Length of a window in hours. Default: 24.",
        ),
        field(
            "rolling_window",
            FieldType::Duration,
            Presence::Optional,
            "Length of a window in any unit, from 60s to 7d. Excludes rolling_window_hours.",
        ),
        field(
            "window_start_hour",
            FieldType::Whole { least: 0, most: 23 },
            Presence::Optional,
            "Hour of the day at which windows begin. Default: 0.",
        ),
        field("time_zone", FieldType::Zone, Presence::Optional, "Time zone of all hours. Default: UTC."),
        field("min_load_percent", PERCENT, Presence::Optional, "Lowest limit. Default: 10."),
        field("max_load_percent", PERCENT, Presence::Optional, "Highest limit. Default: 90."),
        field(
            "safety_factor",
            FieldType::Decimal { least: 1, most: BILLION },
            Presence::Optional,
            "Part of the remaining budget that is spread evenly. Default: 0.9.",
        ),
        field(
            "metrics_interval_seconds",
            FieldType::Whole { least: 1, most: 300 },
            Presence::Optional,
            "Sampling interval in seconds. Default: 5.",
        ),
        field(
            "adjust_interval_seconds",
            FieldType::Whole { least: 1, most: 600 },
            Presence::Optional,
            "Minimum time between increases of the limit, in seconds. Default: 15.",
        ),
        field(
            "trailing_guard",
            FieldType::Bool,
            Presence::Optional,
            "Whether trailing windows are kept below the average too. Default: true.",
        ),
        field(
            "reserve_percent",
            FieldType::Decimal { least: 0, most: 99 * BILLION },
            Presence::Optional,
            "Part of the quota kept in reserve for usage that cannot be measured. Default: 1.",
        ),
        field(
            "increase_deadband_points",
            PERCENT,
            Presence::Optional,
            "Minimum increase of the limit, in points. Default: 5.",
        ),
        field(
            "tolerance_points",
            PERCENT,
            Presence::Optional,
            "How many points usage may exceed the limit before it is reported. Default: 1.",
        ),
        field(
            "unobserved",
            FieldType::Word(|| Unobserved::ALL.map(Unobserved::word).to_vec()),
            Presence::Optional,
            "How unobserved time counts. Default: limit.",
        ),
        field(
            "history_retention_days",
            FieldType::Whole { least: 8, most: 3650 },
            Presence::Optional,
            "How long samples are kept, in days. Default: 30.",
        ),
        field(
            "time_slots",
            FieldType::List { element: &TIME_SLOT, least: 0 },
            Presence::Optional,
            "Time slots with lower limits.",
        ),
    ],
};

/// A time slot, which may span midnight.
static TIME_SLOT: MappingSchema = MappingSchema {
    name: "time_slot",
    what: "a time slot",
    fields: &[
        field("start", FieldType::TimeOfDay, Presence::Always, "Start of the slot."),
        field("end", FieldType::TimeOfDay, Presence::Always, "End of the slot."),
        field("max_load_percent", PERCENT, Presence::Always, "Highest limit in the slot."),
    ],
};
