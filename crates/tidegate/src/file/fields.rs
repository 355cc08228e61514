//! The fields a settings file may have, as tables.
//!
//! The reader and the published schema are both made from these, so neither can know a field that the other
//! does not. A table says what a field's value looks like and where it belongs; what values make sense together
//! is the core's to say.

use std::time::Duration;

use super::auth::Role;
use super::server::{LEAST_MEMORY, MOST_CONNECTIONS, MOST_WORKERS};
use tidegate_core::amount::MAX_LIMIT;
use tidegate_core::budget::Unobserved;
use tidegate_core::{Charge, Durability, Fleet, Mode, OnOutage, Per, Precision, Unit, WeekStart};

/// The fields of one kind of mapping.
pub(super) struct Table {
    /// What it describes, with its article.
    pub(super) what: &'static str,
    pub(super) fields: &'static [Field],
}

/// One field.
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) shape: Shape,
    pub(super) need: Need,
    pub(super) about: &'static str,
}

/// What a field's value looks like.
pub(super) enum Shape {
    /// Any text; a plain number is its text.
    Text,
    /// A text of 1 to 256 letters, digits and `. _ : / -`.
    Name,
    /// One of these words.
    Word(fn() -> Vec<&'static str>),
    /// `-1`, `0`, or a whole number above.
    Limit,
    /// A whole number from 1; the advice is for those who write 0.
    Count { most: u64, advice: &'static str },
    /// A whole number within bounds.
    Whole { least: u64, most: u64 },
    /// A number with up to nine places behind its point, within bounds that are billionths.
    Decimal { least: u64, most: u64 },
    /// A time of day, `09:30`.
    Clock,
    /// `true` or `false`.
    Truth,
    /// `500ms`, `15s`, `10m`, `24h`, `7d`.
    Duration,
    /// The same, from this to [`LONGEST_TIMEOUT`](super::server::LONGEST_TIMEOUT).
    Timeout { least: Duration },
    /// `64MiB`, from this.
    Size { least: u64 },
    /// An address with its port, or `off`.
    Listen,
    /// The name of a store.
    Store,
    /// RFC 3339 with an offset.
    Instant,
    /// An IANA time zone.
    Zone,
    /// 64 hexadecimal digits.
    Sha256,
    /// A limit of a gateway: `-1`, `0`, a whole number above, `inherit` or `unlimited`.
    Allowance,
    /// A list of texts.
    Texts,
    /// A list of mappings.
    List(&'static Table),
    /// A mapping.
    Section(&'static Table),
    /// A section that this version does not read.
    Unread,
}

/// Whether and where a field must be written.
pub(super) enum Need {
    Always,
    Optional,
    /// Only in items of these policies, and there always.
    AlwaysIn(&'static [&'static str]),
    /// Only in items of these policies.
    OptionalIn(&'static [&'static str]),
}

impl Table {
    pub(super) fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.name == name)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.fields.iter().map(|field| field.name)
    }
}

impl Field {
    /// The policies it belongs to, if not to all.
    pub(super) const fn policies(&self) -> Option<&'static [&'static str]> {
        match self.need {
            Need::AlwaysIn(policies) | Need::OptionalIn(policies) => Some(policies),
            Need::Always | Need::Optional => None,
        }
    }
}

pub(super) const fn field(name: &'static str, shape: Shape, need: Need, about: &'static str) -> Field {
    Field { name, shape, need, about }
}

/// The whole file.
pub(super) static SETTINGS: Table = Table {
    what: "a settings file",
    fields: &[
        field("limits", Shape::List(&LIMIT), Need::Optional, "What is limited."),
        field("server", Shape::Section(&SERVER), Need::Optional, "Where the server listens."),
        field("store", Shape::Section(&STORE), Need::Optional, "Where counts are kept."),
        field("auth", Shape::Section(&AUTH), Need::Optional, "Who may ask; by default everybody."),
        field("activity", Shape::Section(&ACTIVITY), Need::Optional, "The limit of activities."),
        field("tls", Shape::Unread, Need::Optional, "Certificates."),
        field("envoy", Shape::Unread, Need::Optional, "The Envoy rate limit service."),
    ],
};

/// One percent, and one, in billionths.
const BILLION: u64 = 1_000_000_000;

/// A part of a machine, or of a quota, in percent.
const PERCENT: Shape = Shape::Decimal { least: 0, most: 100 * BILLION };

/// The file of the CPU governor.
pub(super) static CPU: Table = Table {
    what: "the settings of the CPU governor",
    fields: &[
        field(
            "avg_load_limit_percent",
            Shape::Decimal { least: 1, most: 100 * BILLION },
            Need::Optional,
            "What may be used on average over a window; by default 30.",
        ),
        field(
            "rolling_window_hours",
            Shape::Whole { least: 1, most: 168 },
            Need::Optional,
            "How long a window is; by default 24.",
        ),
        field(
            "rolling_window",
            Shape::Duration,
            Need::Optional,
            "The same in any unit, from 60s to 7d; one of the two.",
        ),
        field(
            "window_start_hour",
            Shape::Whole { least: 0, most: 23 },
            Need::Optional,
            "The hour of the day at which windows begin; by default 0.",
        ),
        field("time_zone", Shape::Zone, Need::Optional, "Whose hours are meant; by default UTC."),
        field("min_load_percent", PERCENT, Need::Optional, "What may always be used; by default 10."),
        field("max_load_percent", PERCENT, Need::Optional, "What may be used at most; by default 90."),
        field(
            "safety_factor",
            Shape::Decimal { least: 1, most: BILLION },
            Need::Optional,
            "How much of what can be spread is spread evenly; by default 0.9.",
        ),
        field(
            "metrics_interval_seconds",
            Shape::Whole { least: 1, most: 300 },
            Need::Optional,
            "How often the counter is read; by default every 5 seconds.",
        ),
        field(
            "adjust_interval_seconds",
            Shape::Whole { least: 1, most: 600 },
            Need::Optional,
            "How often the limit may rise; by default every 15 seconds.",
        ),
        field(
            "trailing_guard",
            Shape::Truth,
            Need::Optional,
            "Whether every window that ends at any moment is kept under the average too; by default true.",
        ),
        field(
            "reserve_percent",
            Shape::Decimal { least: 0, most: 99 * BILLION },
            Need::Optional,
            "How much of the quota is taken off once, against what cannot be measured; by default 1.",
        ),
        field(
            "increase_deadband_points",
            PERCENT,
            Need::Optional,
            "By how many points the limit rises at least; by default 5.",
        ),
        field(
            "tolerance_points",
            PERCENT,
            Need::Optional,
            "By how many points more than the limit may be measured before that is told; by default 1.",
        ),
        field(
            "unobserved",
            Shape::Word(|| Unobserved::ALL.map(Unobserved::word).to_vec()),
            Need::Optional,
            "What time counts as that nobody looked at; by default limit.",
        ),
        field(
            "history_retention_days",
            Shape::Whole { least: 8, most: 3650 },
            Need::Optional,
            "How long samples are kept; by default 30 days.",
        ),
        field("time_slots", Shape::List(&TIME_SLOT), Need::Optional, "Hours in which less may be used."),
    ],
};

/// Hours of the day, which may go over midnight.
pub(super) static TIME_SLOT: Table = Table {
    what: "a time slot",
    fields: &[
        field("start", Shape::Clock, Need::Always, "When it begins."),
        field("end", Shape::Clock, Need::Always, "When it is over."),
        field("max_load_percent", PERCENT, Need::Always, "What may be used at most meanwhile."),
    ],
};

/// What a wait is at least, where not to wait makes no sense.
const A_MOMENT: Duration = Duration::from_millis(1);

/// The section `server`.
pub(super) static SERVER: Table = Table {
    what: "the server",
    fields: &[
        field("http", Shape::Listen, Need::Optional, "Where HTTP is spoken; by default 127.0.0.1:7700."),
        field("resp", Shape::Listen, Need::Optional, "Where RESP is spoken; by default 127.0.0.1:7701."),
        field(
            "workers",
            Shape::Count { most: MOST_WORKERS, advice: "leave it out for one per processor" },
            Need::Optional,
            "How many threads serve connections; by default one per processor.",
        ),
        field(
            "max_connections",
            Shape::Count { most: MOST_CONNECTIONS, advice: "to close a door write http: off or resp: off" },
            Need::Optional,
            "How many connections may be open at once.",
        ),
        field(
            "idle_timeout",
            Shape::Timeout { least: A_MOMENT },
            Need::Optional,
            "How long a connection may say nothing between requests.",
        ),
        field(
            "header_timeout",
            Shape::Timeout { least: A_MOMENT },
            Need::Optional,
            "How long the head of a request may take to arrive.",
        ),
        field(
            "request_timeout",
            Shape::Timeout { least: A_MOMENT },
            Need::Optional,
            "How long a whole request may take to arrive.",
        ),
        field(
            "drain",
            Shape::Timeout { least: Duration::ZERO },
            Need::Optional,
            "How long requests that are under way may take to end when the server stops.",
        ),
    ],
};

/// The section `store`.
pub(super) static STORE: Table = Table {
    what: "the store",
    fields: &[
        field(
            "url",
            Shape::Store,
            Need::Optional,
            "Where counts are kept, memory:, disk:DIR or postgres://USER@HOST/DATABASE; by default disk:./tidegate-data.",
        ),
        field(
            "memory",
            Shape::Size { least: LEAST_MEMORY },
            Need::Optional,
            "The most memory that counts may take; by default 1GiB.",
        ),
    ],
};

/// The section `activity`.
pub(super) static ACTIVITY: Table = Table {
    what: "the limit of activities",
    fields: &[
        field(
            "max_concurrent_tasks",
            Shape::Limit,
            Need::Optional,
            "How many tasks may run at once; by default 30.",
        ),
        field(
            "max_concurrent_per_user",
            Shape::Limit,
            Need::Optional,
            "How many of them may be one user's; by default -1, any number.",
        ),
        field(
            "window_requests",
            Shape::Limit,
            Need::Optional,
            "How many requests of a user are admitted in every window; by default 5.",
        ),
        field("window", Shape::Duration, Need::Optional, "The length of that window; by default 15s."),
        field(
            "lease_ttl",
            Shape::Duration,
            Need::Optional,
            "How long a task that is not renewed keeps its place; by default 5m.",
        ),
        field(
            "compat",
            Shape::Truth,
            Need::Optional,
            "Whether the window counts running tasks only, and refuses nobody by itself; by default false.",
        ),
    ],
};

/// The section `auth`.
pub(super) static AUTH: Table = Table {
    what: "who may ask",
    fields: &[field("tokens", Shape::List(&TOKEN), Need::Always, "The tokens that are known.")],
};

/// One of `auth.tokens`.
pub(super) static TOKEN: Table = Table {
    what: "a token",
    fields: &[
        field("name", Shape::Text, Need::Always, "For people."),
        field("sha256", Shape::Sha256, Need::Always, "The SHA-256 of the token, in 64 hexadecimal digits."),
        field(
            "role",
            Shape::Word(roles),
            Need::Always,
            "What it allows; each role includes the ones before.",
        ),
        field(
            "prefix",
            Shape::Text,
            Need::Optional,
            "What the ids of its limits begin with; by default all.",
        ),
    ],
};

/// One of `limits`.
pub(super) static LIMIT: Table = Table {
    what: "a limit",
    fields: &[
        field(
            "id",
            Shape::Name,
            Need::Always,
            "The name asks use: 1 to 256 characters of A-Z a-z 0-9 . _ : / -",
        ),
        field("description", Shape::Text, Need::Optional, "For people."),
        field("time_zone", Shape::Zone, Need::Optional, "Where the calendar items live; by default UTC."),
        field(
            "week_start",
            Shape::Word(week_starts),
            Need::Optional,
            "The first day of the week; by default monday.",
        ),
        field("starts_at", Shape::Instant, Need::Optional, "Everything is refused before."),
        field(
            "ends_at",
            Shape::Instant,
            Need::Optional,
            "Everything is refused from then on, and the counts are dropped.",
        ),
        field("mode", Shape::Word(modes), Need::Optional, "Whether refusals are real; by default enforce."),
        field(
            "on_outage",
            Shape::Word(outages),
            Need::Optional,
            "What to answer when the store cannot; by default deny.",
        ),
        field(
            "durability",
            Shape::Word(durabilities),
            Need::Optional,
            "How the embedded store keeps counts safe; by default ceiling.",
        ),
        field("fleet", Shape::Word(fleets), Need::Optional, "How nodes share the limit; by default exact."),
        field(
            "max_keys",
            Shape::Count { most: MAX_LIMIT, advice: "leave it out for the store's own bound" },
            Need::Optional,
            "The most keys remembered at once.",
        ),
        field("items", Shape::List(&ITEM), Need::Always, "What is limited; all of them must allow an ask."),
        field("overrides", Shape::List(&OVERRIDE), Need::Optional, "Exceptions for single keys."),
    ],
};

/// One of a limit's `items`.
pub(super) static ITEM: Table = Table {
    what: "an item",
    fields: &[
        field("name", Shape::Name, Need::Optional, "The item's identity; by default PER/POLICY[-WINDOW]."),
        field("policy", Shape::Word(policies), Need::Always, "How spent capacity comes back."),
        field(
            "limit",
            Shape::Limit,
            Need::Always,
            "-1 counts and never refuses, 0 refuses everything, above is the limit.",
        ),
        field(
            "per",
            Shape::Word(pers),
            Need::Optional,
            "Whose spending is counted together; by default all.",
        ),
        field(
            "window",
            Shape::Duration,
            Need::AlwaysIn(&["interval", "sliding", "bucket"]),
            "The length of the window.",
        ),
        field(
            "burst",
            Shape::Count { most: MAX_LIMIT, advice: "to refuse everything write limit: 0" },
            Need::OptionalIn(&["bucket"]),
            "How much may be spent at once; by default the limit.",
        ),
        field(
            "precision",
            Shape::Word(precisions),
            Need::OptionalIn(&["sliding"]),
            "How finely spending is remembered; by default exact.",
        ),
        field("charge", Shape::Word(charges), Need::Optional, "What an ask costs: its count, or 1."),
        field(
            "ttl",
            Shape::Duration,
            Need::OptionalIn(&["concurrency"]),
            "How long a lease lasts; by default 60s.",
        ),
    ],
};

/// One of a limit's `overrides`.
pub(super) static OVERRIDE: Table = Table {
    what: "an override",
    fields: &[
        field("key", Shape::Text, Need::Always, "The key it is for."),
        field("item", Shape::Text, Need::Always, "The name of a per: key item."),
        field("limit", Shape::Limit, Need::Always, "What the key has instead."),
        field("until", Shape::Instant, Need::Optional, "When it ends; by default never."),
    ],
};

/// The words of `policy`.
pub(super) fn policies() -> Vec<&'static str> {
    let calendar = Unit::ALL.iter().map(|unit| unit.word());
    std::iter::once("total").chain(calendar).chain(["interval", "sliding", "bucket", "concurrency"]).collect()
}

fn roles() -> Vec<&'static str> {
    Role::ALL.iter().map(|role| role.word()).collect()
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
