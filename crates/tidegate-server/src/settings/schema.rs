//! The fields of the settings file, as schemas.

use std::time::Duration;

use tidegate_config::limits::LIMIT;
use tidegate_config::schema::{FieldType, MappingSchema, Presence, field};

use super::auth::{Role, SHA256};
use super::server::{LEAST_MEMORY, LISTEN, MOST_CONNECTIONS, MOST_WORKERS};
use super::store_url::STORE_URL;

const NOT_READ: &str = "not read by this version; it has no effect here";

/// The whole file.
pub static SETTINGS: MappingSchema = MappingSchema {
    name: "settings",
    what: "a settings file",
    fields: &[
        field(
            "limits",
            FieldType::List { element: &LIMIT, least: 0 },
            Presence::Optional,
            "What is limited.",
        ),
        field("server", FieldType::Section(&SERVER), Presence::Optional, "Where the server listens."),
        field("store", FieldType::Section(&STORE), Presence::Optional, "Where counts are kept."),
        field("auth", FieldType::Section(&AUTH), Presence::Optional, "Who may ask; by default everybody."),
        field("activity", FieldType::Section(&ACTIVITY), Presence::Optional, "The limit of activities."),
        field("tls", FieldType::Unread { warning: NOT_READ }, Presence::Optional, "Certificates."),
        field(
            "envoy",
            FieldType::Unread { warning: NOT_READ },
            Presence::Optional,
            "The Envoy rate limit service.",
        ),
    ],
};

/// The least timeout where zero is not allowed.
const A_MOMENT: Duration = Duration::from_millis(1);

/// The section `server`.
static SERVER: MappingSchema = MappingSchema {
    name: "server",
    what: "the server",
    fields: &[
        field(
            "http",
            FieldType::Custom(&LISTEN),
            Presence::Optional,
            "Where HTTP is spoken; by default 127.0.0.1:7700.",
        ),
        field(
            "resp",
            FieldType::Custom(&LISTEN),
            Presence::Optional,
            "Where RESP is spoken; by default 127.0.0.1:7701.",
        ),
        field(
            "workers",
            FieldType::Count { most: MOST_WORKERS, advice: "leave it out for one per processor" },
            Presence::Optional,
            "How many threads serve connections; by default one per processor.",
        ),
        field(
            "max_connections",
            FieldType::Count {
                most: MOST_CONNECTIONS,
                advice: "to close a door write http: off or resp: off",
            },
            Presence::Optional,
            "How many connections may be open at once.",
        ),
        field(
            "idle_timeout",
            FieldType::Timeout { least: A_MOMENT },
            Presence::Optional,
            "How long a connection may say nothing between requests.",
        ),
        field(
            "header_timeout",
            FieldType::Timeout { least: A_MOMENT },
            Presence::Optional,
            "How long the head of a request may take to arrive.",
        ),
        field(
            "request_timeout",
            FieldType::Timeout { least: A_MOMENT },
            Presence::Optional,
            "How long a whole request may take to arrive.",
        ),
        field(
            "drain",
            FieldType::Timeout { least: Duration::ZERO },
            Presence::Optional,
            "How long requests that are under way may take to end when the server stops.",
        ),
    ],
};

/// The section `store`.
static STORE: MappingSchema = MappingSchema {
    name: "store",
    what: "the store",
    fields: &[
        field(
            "url",
            FieldType::Custom(&STORE_URL),
            Presence::Optional,
            "Where counts are kept, memory:, disk:DIR or postgres://USER@HOST/DATABASE; by default disk:./tidegate-data.",
        ),
        field(
            "memory",
            FieldType::Size { least: LEAST_MEMORY },
            Presence::Optional,
            "The most memory that counts may take; by default 1GiB.",
        ),
    ],
};

/// The section `activity`.
static ACTIVITY: MappingSchema = MappingSchema {
    name: "activity",
    what: "the limit of activities",
    fields: &[
        field(
            "max_concurrent_tasks",
            FieldType::Limit,
            Presence::Optional,
            "How many tasks may run at once; by default 30.",
        ),
        field(
            "max_concurrent_per_user",
            FieldType::Limit,
            Presence::Optional,
            "How many of them may be one user's; by default -1, any number.",
        ),
        field(
            "window_requests",
            FieldType::Limit,
            Presence::Optional,
            "How many requests of a user are admitted in every window; by default 5.",
        ),
        field(
            "window",
            FieldType::Duration,
            Presence::Optional,
            "The length of that window; by default 15s.",
        ),
        field(
            "lease_ttl",
            FieldType::Duration,
            Presence::Optional,
            "How long a task that is not renewed keeps its place; by default 5m.",
        ),
        field(
            "compat",
            FieldType::Bool,
            Presence::Optional,
            "Whether the window counts running tasks only, and refuses nobody by itself; by default false.",
        ),
    ],
};

/// The section `auth`.
static AUTH: MappingSchema = MappingSchema {
    name: "auth",
    what: "who may ask",
    fields: &[field(
        "tokens",
        FieldType::List { element: &TOKEN, least: 0 },
        Presence::Always,
        "The tokens that are known.",
    )],
};

/// One of `auth.tokens`.
static TOKEN: MappingSchema = MappingSchema {
    name: "token",
    what: "a token",
    fields: &[
        field("name", FieldType::Text, Presence::Always, "For people."),
        field(
            "sha256",
            FieldType::Custom(&SHA256),
            Presence::Always,
            "The SHA-256 of the token, in 64 hexadecimal digits.",
        ),
        field(
            "role",
            FieldType::Word(roles),
            Presence::Always,
            "What it allows; each role includes the ones before.",
        ),
        field(
            "prefix",
            FieldType::Text,
            Presence::Optional,
            "What the ids of its limits begin with; by default all.",
        ),
    ],
};

fn roles() -> Vec<&'static str> {
    Role::ALL.iter().map(|role| role.word()).collect()
}
