//! The fields of a gateway's file, as tables.

use std::time::Duration;

use super::{Balance, Window};
use crate::file::fields::{Need, Shape, Table, field};

/// What a wait is at least.
const A_MOMENT: Duration = Duration::from_millis(1);

const PORT: Shape = Shape::Whole { least: 1, most: 65_535 };
const WAIT: Shape = Shape::Timeout { least: A_MOMENT };

/// The most that a backend may be probed apart, or have failed before it counts, in seconds or times.
const MOST_PROBES: u64 = 86_400;
const PROBES: Shape = Shape::Whole { least: 1, most: MOST_PROBES };

/// The most that the body of a request may be allowed to be: a pebibyte.
const LARGEST_BODY: u64 = 1 << 50;

/// The whole file.
pub(in crate::file) static GATEWAY: Table = Table {
    what: "the settings of the gateway",
    fields: &[
        field("server", Shape::Section(&SERVER), Need::Always, "Where clients come in."),
        field(
            "tls",
            Shape::Section(&TLS),
            Need::Optional,
            "The gateway's certificate; without it plain text is spoken.",
        ),
        field(
            "management",
            Shape::Section(&MANAGEMENT),
            Need::Optional,
            "Where operators come in; by default nowhere.",
        ),
        field("backends", Shape::List(&BACKEND), Need::Always, "The services behind the gateway."),
        field("routes", Shape::List(&ROUTE), Need::Always, "Which request goes to which of them."),
    ],
};

static SERVER: Table = Table {
    what: "the gateway's server",
    fields: &[
        field(
            "port",
            PORT,
            Need::Optional,
            "The port, at every IPv4 address of the machine; this or listen.",
        ),
        field("listen", Shape::Text, Need::Optional, "The address with its port; this or port."),
        field(
            "trustedProxies",
            Shape::Texts,
            Need::Optional,
            "Networks whose X-Forwarded-For and PROXY headers are believed, such as 10.0.0.0/8; by default none.",
        ),
        field(
            "proxyProtocol",
            Shape::Truth,
            Need::Optional,
            "Whether connections of trusted proxies begin with a PROXY header, version 1 or 2; by default false.",
        ),
        field(
            "clientHeader",
            Shape::Text,
            Need::Optional,
            "The header whose value is the client, where a request has one; by default the address is.",
        ),
        field("rateLimit", Shape::Section(&SERVER_RATES), Need::Optional, "What everybody together may do."),
        field(
            "headerTimeout",
            WAIT,
            Need::Optional,
            "How long the head of a request may take; by default 10s.",
        ),
        field("bodyTimeout", WAIT, Need::Optional, "How long a body may stand still; by default 60s."),
        field(
            "idleTimeout",
            WAIT,
            Need::Optional,
            "How long a connection may say nothing between requests; by default 75s.",
        ),
        field(
            "drainTimeout",
            Shape::Timeout { least: Duration::ZERO },
            Need::Optional,
            "How long requests that are under way may take when the gateway stops; by default 30s.",
        ),
        field(
            "tunnelTimeout",
            WAIT,
            Need::Optional,
            "How long nothing may be said on a connection that was upgraded, such as a WebSocket; by default 1h.",
        ),
        field(
            "maxBodyBytes",
            Shape::Whole { least: 0, most: LARGEST_BODY },
            Need::Optional,
            "The largest body of a request, in bytes; by default a gibibyte.",
        ),
    ],
};

static TLS: Table = Table {
    what: "the gateway's certificate",
    fields: &[
        field("certificate", Shape::Text, Need::Always, "The file with the certificate chain, PEM."),
        field("key", Shape::Text, Need::Always, "The file with its private key, PEM."),
    ],
};

static MANAGEMENT: Table = Table {
    what: "the management door",
    fields: &[
        field("port", PORT, Need::Optional, "The port, on the loopback address; this or listen."),
        field("listen", Shape::Text, Need::Optional, "The address with its port; this or port."),
    ],
};

static BACKEND: Table = Table {
    what: "a backend",
    fields: &[
        field("name", Shape::Text, Need::Always, "What routes call it."),
        field(
            "loadBalance",
            Shape::Word(|| Balance::ALL.map(Balance::word).to_vec()),
            Need::Optional,
            "Which endpoint is next; by default round-robin.",
        ),
        field(
            "probe",
            Shape::Section(&PROBE),
            Need::Optional,
            "How endpoints are probed; by default they are not.",
        ),
        field("endpoints", Shape::List(&ENDPOINT), Need::Always, "Where it is; at least one."),
        field("rateLimit", Shape::Section(&RATES), Need::Optional, "What may be asked of it."),
        field("connectTimeout", WAIT, Need::Optional, "How long connecting may take; by default 5s."),
        field(
            "responseTimeout",
            WAIT,
            Need::Optional,
            "How long the head of a response may take; by default 60s.",
        ),
        field(
            "idleTimeout",
            WAIT,
            Need::Optional,
            "How long a connection to it is kept unused; by default 60s.",
        ),
    ],
};

static PROBE: Table = Table {
    what: "a probe",
    fields: &[
        field("path", Shape::Text, Need::Optional, "What is asked for; by default /."),
        field("periodSeconds", PROBES, Need::Optional, "How often; by default every 10 seconds."),
        field("timeoutSeconds", PROBES, Need::Optional, "How long an answer may take; by default 1 second."),
        field(
            "successThreshold",
            PROBES,
            Need::Optional,
            "After how many successes an endpoint is well; by default 1.",
        ),
        field("failureThreshold", PROBES, Need::Optional, "After how many failures it is not; by default 3."),
    ],
};

static ENDPOINT: Table = Table {
    what: "an endpoint",
    fields: &[
        field("host", Shape::Text, Need::Always, "Its name or address."),
        field("port", PORT, Need::Always, "Its port."),
        field(
            "priority",
            Shape::Whole { least: 0, most: 1_000 },
            Need::Optional,
            "Endpoints of the lowest number that are well are used; by default 1.",
        ),
    ],
};

static ROUTE: Table = Table {
    what: "a route",
    fields: &[
        field(
            "host",
            Shape::Text,
            Need::Optional,
            "The host: api.example.com, *.example.com for any one label before it, or * for any; by default *.",
        ),
        field(
            "path",
            Shape::Text,
            Need::Optional,
            "The path: /api, /api/* for one segment behind it, /api/** for any number; by default /**.",
        ),
        field("backend", Shape::Text, Need::Always, "The name of a backend."),
        field("rateLimit", Shape::Section(&RATES), Need::Optional, "What may be asked of this route."),
    ],
};

const QPS: &str = "How many requests a second; by default -1, any number.";
const CONNECTIONS: &str = "How many connections at once; by default -1, any number.";
const CLIENT_QPS: &str = "How many requests a second of one client; -1 or inherit leave it to the level below, unlimited does not.";
const CLIENT_CONNECTIONS: &str =
    "How many connections of one client; -1 or inherit leave it to the level below, unlimited does not.";

static RATES: Table = Table {
    what: "a rate limit",
    fields: &[
        field("maxQps", Shape::Allowance, Need::Optional, QPS),
        field("maxConnections", Shape::Allowance, Need::Optional, CONNECTIONS),
        field("maxQpsPerClient", Shape::Allowance, Need::Optional, CLIENT_QPS),
        field("maxConnectionsPerClient", Shape::Allowance, Need::Optional, CLIENT_CONNECTIONS),
    ],
};

static SERVER_RATES: Table = Table {
    what: "the server's rate limit",
    fields: &[
        field("maxQps", Shape::Allowance, Need::Optional, QPS),
        field("maxConnections", Shape::Allowance, Need::Optional, CONNECTIONS),
        field("maxQpsPerClient", Shape::Allowance, Need::Optional, CLIENT_QPS),
        field("maxConnectionsPerClient", Shape::Allowance, Need::Optional, CLIENT_CONNECTIONS),
        field(
            "window",
            Shape::Word(|| Window::ALL.map(Window::word).to_vec()),
            Need::Optional,
            "What a second is, at every level: sliding is any, fixed is one of the clock's; by default sliding.",
        ),
    ],
};
