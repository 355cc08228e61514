//! The schema of `gateway.yaml`.

use std::time::Duration;

use tidegate_config::schema::{FieldType, MappingSchema, Presence, field};

use super::{ALLOWANCE, Balance, Window};

/// The minimum of all timeouts.
const MIN_TIMEOUT: Duration = Duration::from_millis(1);

const PORT: FieldType = FieldType::Whole { least: 1, most: 65_535 };
const WAIT: FieldType = FieldType::Timeout { least: MIN_TIMEOUT };

/// The maximum probe period in seconds, and the maximum of the probe thresholds.
const MAX_PROBES: u64 = 86_400;
const PROBES: FieldType = FieldType::Whole { least: 1, most: MAX_PROBES };

/// The maximum of `maxBodyBytes`: one pebibyte.
const MAX_BODY_LIMIT: u64 = 1 << 50;

/// The whole file.
pub static GATEWAY: MappingSchema = MappingSchema {
    name: "gateway",
    what: "the settings of the gateway",
    fields: &[
        field("server", FieldType::Section(&SERVER), Presence::Always, "The client side of the gateway."),
        field(
            "tls",
            FieldType::Section(&TLS),
            Presence::Optional,
            "The TLS certificate; without it the gateway uses plaintext.",
        ),
        field(
            "management",
            FieldType::Section(&MANAGEMENT),
            Presence::Optional,
            "The management port; off by default.",
        ),
        field("backends", FieldType::List { element: &BACKEND, least: 0 }, Presence::Always, "The backends."),
        field(
            "routes",
            FieldType::List { element: &ROUTE, least: 0 },
            Presence::Always,
            "The routes from requests to backends.",
        ),
    ],
};

static SERVER: MappingSchema = MappingSchema {
    name: "server",
    what: "the gateway's server",
    fields: &[
        field("port", PORT, Presence::Optional, "The port on all IPv4 addresses; use this or listen."),
        field("listen", FieldType::Text, Presence::Optional, "The address with its port; use this or port."),
        field(
            "trustedProxies",
            FieldType::Texts,
            Presence::Optional,
            "Networks whose X-Forwarded-For and PROXY headers are trusted, such as 10.0.0.0/8; by default none.",
        ),
        field(
            "proxyProtocol",
            FieldType::Bool,
            Presence::Optional,
            "Whether trusted proxies send a PROXY header, version 1 or 2; by default false.",
        ),
        field(
            "clientHeader",
            FieldType::Text,
            Presence::Optional,
            "The header that names the client; without it the address identifies the client.",
        ),
        field(
            "rateLimit",
            FieldType::Section(&SERVER_RATES),
            Presence::Optional,
            "The limits of the server.",
        ),
        field(
            "headerTimeout",
            WAIT,
            Presence::Optional,
            "The maximum time for the head of a request; by default 10s.",
        ),
        field(
            "bodyTimeout",
            WAIT,
            Presence::Optional,
            "The maximum time without progress of a body; by default 60s.",
        ),
        field(
            "idleTimeout",
            WAIT,
            Presence::Optional,
            "The maximum time between requests on a connection; by default 75s.",
        ),
        field(
            "drainTimeout",
            FieldType::Timeout { least: Duration::ZERO },
            Presence::Optional,
            "The maximum time for active requests when the gateway stops; by default 30s.",
        ),
        field(
            "tunnelTimeout",
            WAIT,
            Presence::Optional,
            "The maximum idle time of an upgraded connection, such as a WebSocket; by default 1h.",
        ),
        field(
            "maxBodyBytes",
            FieldType::Whole { least: 0, most: MAX_BODY_LIMIT },
            Presence::Optional,
            "The maximum size of a request body in bytes; by default 1 GiB.",
        ),
    ],
};

static TLS: MappingSchema = MappingSchema {
    name: "tls",
    what: "the gateway's certificate",
    fields: &[
        field("certificate", FieldType::Text, Presence::Always, "The file with the certificate chain, PEM."),
        field("key", FieldType::Text, Presence::Always, "The file with its private key, PEM."),
    ],
};

static MANAGEMENT: MappingSchema = MappingSchema {
    name: "management",
    what: "the management port",
    fields: &[
        field("port", PORT, Presence::Optional, "The port on the loopback address; use this or listen."),
        field("listen", FieldType::Text, Presence::Optional, "The address with its port; use this or port."),
    ],
};

static BACKEND: MappingSchema = MappingSchema {
    name: "backend",
    what: "a backend",
    fields: &[
        field("name", FieldType::Text, Presence::Always, "The name that routes use."),
        field(
            "loadBalance",
            FieldType::Word(|| Balance::ALL.map(Balance::word).to_vec()),
            Presence::Optional,
            "How the next endpoint is chosen; by default round-robin.",
        ),
        field(
            "probe",
            FieldType::Section(&PROBE),
            Presence::Optional,
            "The health probe of the endpoints; by default none.",
        ),
        field(
            "endpoints",
            FieldType::List { element: &ENDPOINT, least: 0 },
            Presence::Always,
            "The endpoints; at least one.",
        ),
        field("rateLimit", FieldType::Section(&RATES), Presence::Optional, "The limits of the backend."),
        field("connectTimeout", WAIT, Presence::Optional, "The maximum time to connect; by default 5s."),
        field(
            "responseTimeout",
            WAIT,
            Presence::Optional,
            "The maximum time to the head of a response; by default 60s.",
        ),
        field(
            "idleTimeout",
            WAIT,
            Presence::Optional,
            "How long an unused connection stays in the pool; by default 60s.",
        ),
    ],
};

static PROBE: MappingSchema = MappingSchema {
    name: "probe",
    what: "a probe",
    fields: &[
        field("path", FieldType::Text, Presence::Optional, "The request path; by default /."),
        field("periodSeconds", PROBES, Presence::Optional, "The period in seconds; by default 10."),
        field(
            "timeoutSeconds",
            PROBES,
            Presence::Optional,
            "The maximum time for a response in seconds; by default 1.",
        ),
        field(
            "successThreshold",
            PROBES,
            Presence::Optional,
            "The consecutive successes after which an endpoint is healthy; by default 1.",
        ),
        field(
            "failureThreshold",
            PROBES,
            Presence::Optional,
            "The consecutive failures after which an endpoint is unhealthy; by default 3.",
        ),
    ],
};

static ENDPOINT: MappingSchema = MappingSchema {
    name: "endpoint",
    what: "an endpoint",
    fields: &[
        field("host", FieldType::Text, Presence::Always, "The host name or address."),
        field("port", PORT, Presence::Always, "The port."),
        field(
            "priority",
            FieldType::Whole { least: 0, most: 1_000 },
            Presence::Optional,
            "The healthy endpoints with the lowest number are used; by default 1.",
        ),
    ],
};

static ROUTE: MappingSchema = MappingSchema {
    name: "route",
    what: "a route",
    fields: &[
        field(
            "host",
            FieldType::Text,
            Presence::Optional,
            "The host: api.example.com, *.example.com for any one label before it, or * for any; by default *.",
        ),
        field(
            "path",
            FieldType::Text,
            Presence::Optional,
            "The path: /api, /api/* for one more segment, /api/** for any number; by default /**.",
        ),
        field("backend", FieldType::Text, Presence::Always, "The name of a backend."),
        field("rateLimit", FieldType::Section(&RATES), Presence::Optional, "The limits of the route."),
    ],
};

const QPS: &str = "The maximum number of requests per second; by default -1, unlimited.";
const CONNECTIONS: &str = "The maximum number of open connections; by default -1, unlimited.";
const CLIENT_QPS: &str = "The maximum number of requests per second and client; -1 or inherit use the next level, unlimited does not.";
const CLIENT_CONNECTIONS: &str = "The maximum number of open connections per client; -1 or inherit use the next level, unlimited does not.";

static RATES: MappingSchema = MappingSchema {
    name: "rate_limit",
    what: "a rate limit",
    fields: &[
        field("maxQps", FieldType::Custom(&ALLOWANCE), Presence::Optional, QPS),
        field("maxConnections", FieldType::Custom(&ALLOWANCE), Presence::Optional, CONNECTIONS),
        field("maxQpsPerClient", FieldType::Custom(&ALLOWANCE), Presence::Optional, CLIENT_QPS),
        field(
            "maxConnectionsPerClient",
            FieldType::Custom(&ALLOWANCE),
            Presence::Optional,
            CLIENT_CONNECTIONS,
        ),
    ],
};

static SERVER_RATES: MappingSchema = MappingSchema {
    name: "server_rate_limit",
    what: "the server's rate limit",
    fields: &[
        field("maxQps", FieldType::Custom(&ALLOWANCE), Presence::Optional, QPS),
        field("maxConnections", FieldType::Custom(&ALLOWANCE), Presence::Optional, CONNECTIONS),
        field("maxQpsPerClient", FieldType::Custom(&ALLOWANCE), Presence::Optional, CLIENT_QPS),
        field(
            "maxConnectionsPerClient",
            FieldType::Custom(&ALLOWANCE),
            Presence::Optional,
            CLIENT_CONNECTIONS,
        ),
        field(
            "window",
            FieldType::Word(|| Window::ALL.map(Window::word).to_vec()),
            Presence::Optional,
            "The window of request limits at every level: a sliding second or a fixed calendar second; by default sliding.",
        ),
    ],
};
