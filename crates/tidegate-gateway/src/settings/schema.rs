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
        field("server", FieldType::Section(&SERVER), Presence::Always, "Where clients come in."),
        field(
            "tls",
            FieldType::Section(&TLS),
            Presence::Optional,
            "The gateway's certificate; without it plain text is spoken.",
        ),
        field(
            "management",
            FieldType::Section(&MANAGEMENT),
            Presence::Optional,
            "Where operators come in; by default nowhere.",
        ),
        field(
            "backends",
            FieldType::List { element: &BACKEND, least: 0 },
            Presence::Always,
            "The services behind the gateway.",
        ),
        field(
            "routes",
            FieldType::List { element: &ROUTE, least: 0 },
            Presence::Always,
            "Which request goes to which of them.",
        ),
    ],
};

static SERVER: MappingSchema = MappingSchema {
    name: "server",
    what: "the gateway's server",
    fields: &[
        field(
            "port",
            PORT,
            Presence::Optional,
            "The port, at every IPv4 address of the machine; this or listen.",
        ),
        field("listen", FieldType::Text, Presence::Optional, "The address with its port; this or port."),
        field(
            "trustedProxies",
            FieldType::Texts,
            Presence::Optional,
            "Networks whose X-Forwarded-For and PROXY headers are believed, such as 10.0.0.0/8; by default none.",
        ),
        field(
            "proxyProtocol",
            FieldType::Bool,
            Presence::Optional,
            "Whether connections of trusted proxies begin with a PROXY header, version 1 or 2; by default false.",
        ),
        field(
            "clientHeader",
            FieldType::Text,
            Presence::Optional,
            "The header whose value is the client, where a request has one; by default the address is.",
        ),
        field(
            "rateLimit",
            FieldType::Section(&SERVER_RATES),
            Presence::Optional,
            "What everybody together may do.",
        ),
        field(
            "headerTimeout",
            WAIT,
            Presence::Optional,
            "How long the head of a request may take; by default 10s.",
        ),
        field("bodyTimeout", WAIT, Presence::Optional, "How long a body may stand still; by default 60s."),
        field(
            "idleTimeout",
            WAIT,
            Presence::Optional,
            "How long a connection may say nothing between requests; by default 75s.",
        ),
        field(
            "drainTimeout",
            FieldType::Timeout { least: Duration::ZERO },
            Presence::Optional,
            "How long requests that are under way may take when the gateway stops; by default 30s.",
        ),
        field(
            "tunnelTimeout",
            WAIT,
            Presence::Optional,
            "How long nothing may be said on a connection that was upgraded, such as a WebSocket; by default 1h.",
        ),
        field(
            "maxBodyBytes",
            FieldType::Whole { least: 0, most: MAX_BODY_LIMIT },
            Presence::Optional,
            "The largest body of a request, in bytes; by default a gibibyte.",
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
    what: "the management door",
    fields: &[
        field("port", PORT, Presence::Optional, "The port, on the loopback address; this or listen."),
        field("listen", FieldType::Text, Presence::Optional, "The address with its port; this or port."),
    ],
};

static BACKEND: MappingSchema = MappingSchema {
    name: "backend",
    what: "a backend",
    fields: &[
        field("name", FieldType::Text, Presence::Always, "What routes call it."),
        field(
            "loadBalance",
            FieldType::Word(|| Balance::ALL.map(Balance::word).to_vec()),
            Presence::Optional,
            "Which endpoint is next; by default round-robin.",
        ),
        field(
            "probe",
            FieldType::Section(&PROBE),
            Presence::Optional,
            "How endpoints are probed; by default they are not.",
        ),
        field(
            "endpoints",
            FieldType::List { element: &ENDPOINT, least: 0 },
            Presence::Always,
            "Where it is; at least one.",
        ),
        field("rateLimit", FieldType::Section(&RATES), Presence::Optional, "What may be asked of it."),
        field("connectTimeout", WAIT, Presence::Optional, "How long connecting may take; by default 5s."),
        field(
            "responseTimeout",
            WAIT,
            Presence::Optional,
            "How long the head of a response may take; by default 60s.",
        ),
        field(
            "idleTimeout",
            WAIT,
            Presence::Optional,
            "How long a connection to it is kept unused; by default 60s.",
        ),
    ],
};

static PROBE: MappingSchema = MappingSchema {
    name: "probe",
    what: "a probe",
    fields: &[
        field("path", FieldType::Text, Presence::Optional, "What is asked for; by default /."),
        field("periodSeconds", PROBES, Presence::Optional, "How often; by default every 10 seconds."),
        field(
            "timeoutSeconds",
            PROBES,
            Presence::Optional,
            "How long an answer may take; by default 1 second.",
        ),
        field(
            "successThreshold",
            PROBES,
            Presence::Optional,
            "After how many successes an endpoint is well; by default 1.",
        ),
        field(
            "failureThreshold",
            PROBES,
            Presence::Optional,
            "After how many failures it is not; by default 3.",
        ),
    ],
};

static ENDPOINT: MappingSchema = MappingSchema {
    name: "endpoint",
    what: "an endpoint",
    fields: &[
        field("host", FieldType::Text, Presence::Always, "Its name or address."),
        field("port", PORT, Presence::Always, "Its port."),
        field(
            "priority",
            FieldType::Whole { least: 0, most: 1_000 },
            Presence::Optional,
            "Endpoints of the lowest number that are well are used; by default 1.",
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
            "The path: /api, /api/* for one segment behind it, /api/** for any number; by default /**.",
        ),
        field("backend", FieldType::Text, Presence::Always, "The name of a backend."),
        field(
            "rateLimit",
            FieldType::Section(&RATES),
            Presence::Optional,
            "What may be asked of this route.",
        ),
    ],
};

const QPS: &str = "How many requests a second; by default -1, any number.";
const CONNECTIONS: &str = "How many connections at once; by default -1, any number.";
const CLIENT_QPS: &str = "How many requests a second of one client; -1 or inherit leave it to the level below, unlimited does not.";
const CLIENT_CONNECTIONS: &str =
    "How many connections of one client; -1 or inherit leave it to the level below, unlimited does not.";

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
            "What a second is, at every level: sliding is any, fixed is one of the clock's; by default sliding.",
        ),
    ],
};
