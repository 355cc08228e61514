//! The fields of the settings file, as schemas.

use std::time::Duration;

use tidegate_config::limits::LIMIT;
use tidegate_config::schema::{FieldType, MappingSchema, Presence, field};

use super::auth::{Role, SHA256};
use super::server::{LISTEN, MAX_OPEN_CONNECTIONS, MAX_WORKER_THREADS, MIN_MEMORY_BYTES};
use super::store_url::STORE_URL;

const UNSUPPORTED: &str = "not read by this version; it has no effect here";

/// The whole file.
pub static SETTINGS: MappingSchema = MappingSchema {
    name: "settings",
    what: "a settings file",
    fields: &[
        field("limits", FieldType::List { element: &LIMIT, least: 0 }, Presence::Optional, "The limits."),
        field(
            "server",
            FieldType::Section(&SERVER),
            Presence::Optional,
            "Listen addresses, threads and timeouts of the server.",
        ),
        field("store", FieldType::Section(&STORE), Presence::Optional, "The store of the counts."),
        field(
            "auth",
            FieldType::Section(&AUTH),
            Presence::Optional,
            "Tokens of clients; without it no token is required.",
        ),
        field("activity", FieldType::Section(&ACTIVITY), Presence::Optional, "The limit of activities."),
        field("tls", FieldType::Unread { warning: UNSUPPORTED }, Presence::Optional, "Certificates."),
        field(
            "envoy",
            FieldType::Unread { warning: UNSUPPORTED },
            Presence::Optional,
            "The Envoy rate limit service.",
        ),
    ],
};

/// The minimum of timeouts that cannot be zero.
const MIN_TIMEOUT: Duration = Duration::from_millis(1);

/// The section `server`.
static SERVER: MappingSchema = MappingSchema {
    name: "server",
    what: "the server",
    fields: &[
        field(
            "http",
            FieldType::Custom(&LISTEN),
            Presence::Optional,
            "The listen address of the HTTP API; by default 127.0.0.1:7700.",
        ),
        field(
            "resp",
            FieldType::Custom(&LISTEN),
            Presence::Optional,
            "The listen address of the RESP protocol; by default 127.0.0.1:7701.",
        ),
        field(
            "workers",
            FieldType::Count { most: MAX_WORKER_THREADS, advice: "leave it out for one per processor" },
            Presence::Optional,
            "The number of threads that serve connections; by default one per processor.",
        ),
        field(
            "max_connections",
            FieldType::Count {
                most: MAX_OPEN_CONNECTIONS,
                advice: "to disable a protocol write http: off or resp: off",
            },
            Presence::Optional,
            "The maximum number of open connections.",
        ),
        field(
            "idle_timeout",
            FieldType::Timeout { least: MIN_TIMEOUT },
            Presence::Optional,
            "The maximum idle time of a connection between requests.",
        ),
        field(
            "header_timeout",
            FieldType::Timeout { least: MIN_TIMEOUT },
            Presence::Optional,
            "The maximum time to receive the head of a request.",
        ),
        field(
            "request_timeout",
            FieldType::Timeout { least: MIN_TIMEOUT },
            Presence::Optional,
            "The maximum time to receive a whole request.",
        ),
        field(
            "drain",
            FieldType::Timeout { least: Duration::ZERO },
            Presence::Optional,
            "The maximum time for requests in progress when the server stops.",
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
            "The store: memory:, disk:DIR or postgres://USER@HOST/DATABASE; by default disk:./tidegate-data.",
        ),
        field(
            "memory",
            FieldType::Size { least: MIN_MEMORY_BYTES },
            Presence::Optional,
            "The maximum memory for counts; by default 1GiB.",
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
            "The maximum number of concurrent tasks; by default 30.",
        ),
        field(
            "max_concurrent_per_user",
            FieldType::Limit,
            Presence::Optional,
            "The maximum number of concurrent tasks per user; by default -1, unlimited.",
        ),
        field(
            "window_requests",
            FieldType::Limit,
            Presence::Optional,
            "The maximum number of requests per user and window; by default 5.",
        ),
        field("window", FieldType::Duration, Presence::Optional, "The length of the window; by default 15s."),
        field(
            "lease_ttl",
            FieldType::Duration,
            Presence::Optional,
            "The time after which a task without renewal expires; by default 5m.",
        ),
        field(
            "compat",
            FieldType::Bool,
            Presence::Optional,
            "Whether the window counts only running tasks and never refuses a request by itself; by default false.",
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
        "The valid tokens.",
    )],
};

/// One of `auth.tokens`.
static TOKEN: MappingSchema = MappingSchema {
    name: "token",
    what: "a token",
    fields: &[
        field("name", FieldType::Text, Presence::Always, "A name for operators."),
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
            "The role; each role includes the previous ones.",
        ),
        field(
            "prefix",
            FieldType::Text,
            Presence::Optional,
            "The prefix of the ids of permitted limits; by default all limits.",
        ),
    ],
};

fn roles() -> Vec<&'static str> {
    Role::ALL.iter().map(|role| role.word()).collect()
}
