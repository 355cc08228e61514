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
        field("limits", FieldType::List { element: &LIMIT, least: 0 }, Presence::Optional, "The limits."),
        field(
            "server",
            SERVER_ONLY,
            Presence::Optional,
            "Listen addresses, threads and timeouts of the server.",
        ),
        field("store", SERVER_ONLY, Presence::Optional, "The store of the counts."),
        field("auth", SERVER_ONLY, Presence::Optional, "Tokens of clients; without it no token is required."),
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
        field("description", FieldType::Text, Presence::Optional, "A description for operators."),
        field(
            "time_zone",
            FieldType::Zone,
            Presence::Optional,
            "The time zone of calendar items; by default UTC.",
        ),
        field(
            "week_start",
            FieldType::Word(week_starts),
            Presence::Optional,
            "The first day of the week; by default monday.",
        ),
        field(
            "starts_at",
            FieldType::Instant,
            Presence::Optional,
            "All requests before this instant are refused.",
        ),
        field(
            "ends_at",
            FieldType::Instant,
            Presence::Optional,
            "All requests from this instant on are refused, and the counts are deleted.",
        ),
        field(
            "mode",
            FieldType::Word(modes),
            Presence::Optional,
            "Whether refusals are enforced; by default enforce.",
        ),
        field(
            "on_outage",
            FieldType::Word(outages),
            Presence::Optional,
            "The decision when the store is unavailable; by default deny.",
        ),
        field(
            "durability",
            FieldType::Word(durabilities),
            Presence::Optional,
            "How the embedded store persists counts; by default ceiling.",
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
            "The maximum number of tracked keys.",
        ),
        field(
            "items",
            FieldType::List { element: &ITEM, least: 1 },
            Presence::Always,
            "The items; a request must be allowed by all of them.",
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
        field("policy", FieldType::Word(policies), Presence::Always, "How spent capacity is refilled."),
        field(
            "limit",
            FieldType::Limit,
            Presence::Always,
            "-1 counts and never refuses, 0 refuses everything, a larger number is the limit.",
        ),
        field(
            "per",
            FieldType::Word(pers),
            Presence::Optional,
            "The scope of the count: each key, or all keys together; by default all.",
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
            "The maximum burst; by default the limit.",
        ),
        field(
            "precision",
            FieldType::Word(precisions),
            Presence::OptionalIn(&["sliding"]),
            "The precision of the window; by default exact.",
        ),
        field(
            "charge",
            FieldType::Word(charges),
            Presence::Optional,
            "The cost of a request: its count, or 1.",
        ),
        field(
            "ttl",
            FieldType::Duration,
            Presence::OptionalIn(&["concurrency"]),
            "The lifetime of a lease; by default 60s.",
        ),
    ],
};

/// One of a limit's `overrides`.
pub(super) static OVERRIDE: MappingSchema = MappingSchema {
    name: "override",
    what: "an override",
    fields: &[
        field("key", FieldType::Text, Presence::Always, "The key."),
        field("item", FieldType::Text, Presence::Always, "The name of a per: key item."),
        field("limit", FieldType::Limit, Presence::Always, "The limit of the key."),
        field("until", FieldType::Instant, Presence::Optional, "When the override ends; by default never."),
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
