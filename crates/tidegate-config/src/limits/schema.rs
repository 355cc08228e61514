//! The schemas of limits, items and overrides.

use tidegate_core::amount::MAX_LIMIT;
use tidegate_core::{Charge, Durability, Fleet, Mode, OnOutage, Per, Precision, Unit, WeekStart};

use crate::schema::{FieldType, MappingSchema, Presence, field};

/// A section that only the server reads.
const SERVER_ONLY: FieldType =
    FieldType::Unread { warning: "is read by the server only; it has no effect here" };
const NOT_READ: FieldType = FieldType::Unread { warning: "not read by this version; it has no effect here" };

/// A settings file for a program that needs only the limits.
pub(super) static LIMITS_FILE: MappingSchema = MappingSchema {
    name: "settings",
    what: "a settings file",
    fields: &[
        field(
            "limits",
            FieldType::List { element: &LIMIT, least: 0 },
            Presence::Optional,
            "What is limited.",
        ),
        field("server", SERVER_ONLY, Presence::Optional, "Where the server listens."),
        field("store", SERVER_ONLY, Presence::Optional, "Where counts are kept."),
        field("auth", SERVER_ONLY, Presence::Optional, "Who may ask; by default everybody."),
        field("activity", SERVER_ONLY, Presence::Optional, "The limit of activities."),
        field("tls", NOT_READ, Presence::Optional, "Certificates."),
        field("envoy", NOT_READ, Presence::Optional, "The Envoy rate limit service."),
    ],
};

/// One of `limits`.
pub static LIMIT: MappingSchema = MappingSchema {
    name: "limit",
    what: "a limit",
    fields: &[
        field(
            "id",
            FieldType::Name,
            Presence::Always,
            "The name asks use: 1 to 256 characters of A-Z a-z 0-9 . _ : / -",
        ),
        field("description", FieldType::Text, Presence::Optional, "For people."),
        field(
            "time_zone",
            FieldType::Zone,
            Presence::Optional,
            "Where the calendar items live; by default UTC.",
        ),
        field(
            "week_start",
            FieldType::Word(week_starts),
            Presence::Optional,
            "The first day of the week; by default monday.",
        ),
        field("starts_at", FieldType::Instant, Presence::Optional, "Everything is refused before."),
        field(
            "ends_at",
            FieldType::Instant,
            Presence::Optional,
            "Everything is refused from then on, and the counts are dropped.",
        ),
        field(
            "mode",
            FieldType::Word(modes),
            Presence::Optional,
            "Whether refusals are real; by default enforce.",
        ),
        field(
            "on_outage",
            FieldType::Word(outages),
            Presence::Optional,
            "What to answer when the store cannot; by default deny.",
        ),
        field(
            "durability",
            FieldType::Word(durabilities),
            Presence::Optional,
            "How the embedded store keeps counts safe; by default ceiling.",
        ),
        field(
            "fleet",
            FieldType::Word(fleets),
            Presence::Optional,
            "How nodes share the limit; by default exact.",
        ),
        field(
            "max_keys",
            FieldType::Count { most: MAX_LIMIT, advice: "leave it out for the store's own bound" },
            Presence::Optional,
            "The most keys remembered at once.",
        ),
        field(
            "items",
            FieldType::List { element: &ITEM, least: 1 },
            Presence::Always,
            "What is limited; all of them must allow an ask.",
        ),
        field(
            "overrides",
            FieldType::List { element: &OVERRIDE, least: 0 },
            Presence::Optional,
            "Exceptions for single keys.",
        ),
    ],
};

/// One of a limit's `items`.
pub(super) static ITEM: MappingSchema = MappingSchema {
    name: "item",
    what: "an item",
    fields: &[
        field(
            "name",
            FieldType::Name,
            Presence::Optional,
            "The item's identity; by default PER/POLICY[-WINDOW].",
        ),
        field("policy", FieldType::Word(policies), Presence::Always, "How spent capacity comes back."),
        field(
            "limit",
            FieldType::Limit,
            Presence::Always,
            "-1 counts and never refuses, 0 refuses everything, above is the limit.",
        ),
        field(
            "per",
            FieldType::Word(pers),
            Presence::Optional,
            "Whose spending is counted together; by default all.",
        ),
        field(
            "window",
            FieldType::Duration,
            Presence::AlwaysIn(&["interval", "sliding", "bucket"]),
            "The length of the window.",
        ),
        field(
            "burst",
            FieldType::Count { most: MAX_LIMIT, advice: "to refuse everything write limit: 0" },
            Presence::OptionalIn(&["bucket"]),
            "How much may be spent at once; by default the limit.",
        ),
        field(
            "precision",
            FieldType::Word(precisions),
            Presence::OptionalIn(&["sliding"]),
            "How finely spending is remembered; by default exact.",
        ),
        field("charge", FieldType::Word(charges), Presence::Optional, "What an ask costs: its count, or 1."),
        field(
            "ttl",
            FieldType::Duration,
            Presence::OptionalIn(&["concurrency"]),
            "How long a lease lasts; by default 60s.",
        ),
    ],
};

/// One of a limit's `overrides`.
pub(super) static OVERRIDE: MappingSchema = MappingSchema {
    name: "override",
    what: "an override",
    fields: &[
        field("key", FieldType::Text, Presence::Always, "The key it is for."),
        field("item", FieldType::Text, Presence::Always, "The name of a per: key item."),
        field("limit", FieldType::Limit, Presence::Always, "What the key has instead."),
        field("until", FieldType::Instant, Presence::Optional, "When it ends; by default never."),
    ],
};

/// The words of `policy`.
fn policies() -> Vec<&'static str> {
    let calendar = Unit::ALL.iter().map(|unit| unit.word());
    std::iter::once("total").chain(calendar).chain(["interval", "sliding", "bucket", "concurrency"]).collect()
}

fn week_starts() -> Vec<&'static str> {
    WeekStart::ALL.iter().map(|day| day.word()).collect()
}

fn modes() -> Vec<&'static str> {
    Mode::ALL.iter().map(|mode| mode.word()).collect()
}

fn outages() -> Vec<&'static str> {
    OnOutage::ALL.iter().map(|answer| answer.word()).collect()
}

fn durabilities() -> Vec<&'static str> {
    Durability::ALL.iter().map(|durability| durability.word()).collect()
}

fn fleets() -> Vec<&'static str> {
    Fleet::ALL.iter().map(|fleet| fleet.word()).collect()
}

fn pers() -> Vec<&'static str> {
    Per::ALL.iter().map(|per| per.word()).collect()
}

fn precisions() -> Vec<&'static str> {
    Precision::ALL.iter().map(|precision| precision.word()).collect()
}

fn charges() -> Vec<&'static str> {
    Charge::ALL.iter().map(|charge| charge.word()).collect()
}
