//! The file of the gateway, `gateway.yaml`: document 002's limits, and what a gateway needs beside them.
//!
//! ```text
//! bytes ──▶ tree ──▶ env ──▶ record ──▶ here ──▶ GatewaySpec
//!                    ${env:…}           do routes, backends and names fit together?
//! ```
//!
//! As everywhere, all errors at once and each at its place; a file with any error gives no spec at all.

mod checks;
mod patterns;
mod schema;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use serde_json::json;
use tidegate::model::{Amount, Capacity};
use tidegate_config::schema::CustomType;
use tidegate_config::text::{parse_address, parse_capacity, quoted};
use tidegate_config::{
    DiagnosticSink, Diagnostics, Environment, FieldPath, Mapping, SourceSpan, YamlNode, expand,
    read_document, read_mapping,
};
use tidegate_core::amount::MAX_LIMIT;

use checks::{check_backends, check_routes};
pub use patterns::{HostPattern, LONGEST_HOST, LONGEST_PATH, Network, PathPattern, PathRest};
pub use schema::GATEWAY;

/// Where the gateway listens if nothing is said.
pub const DEFAULT_PORT: u16 = 9848;

/// The largest body of a request if nothing is said: a gibibyte.
pub const DEFAULT_MAX_BODY: u64 = 1 << 30;

/// What one field of a rate limit says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Allowance {
    /// Nothing, `-1` or `inherit`: no limit here. Of a client's limits the level below is asked.
    #[default]
    Inherit,
    /// `unlimited`: no limit here, and the level below is not asked.
    Unlimited,
    /// `0`, which refuses everything, or above.
    AtMost(Amount),
}

impl Allowance {
    /// What it means where nothing is below.
    pub const fn capacity(self) -> Capacity {
        match self {
            Allowance::Inherit | Allowance::Unlimited => Capacity::Unlimited,
            Allowance::AtMost(most) => Capacity::AtMost(most),
        }
    }

    fn parse(text: &str, plain: bool) -> Result<Allowance, String> {
        match text {
            "inherit" => return Ok(Allowance::Inherit),
            "unlimited" => return Ok(Allowance::Unlimited),
            _ => {}
        }
        match parse_capacity(text) {
            Ok(_) if !plain => {
                Err(format!("must be a whole number, found a text; write {text} without quotes"))
            }
            Ok(Capacity::Unlimited) => Ok(Allowance::Inherit),
            Ok(Capacity::AtMost(most)) => Ok(Allowance::AtMost(most)),
            // It is a number, and what is wrong with it is how large it is, or how it is written.
            Err(why) if text.bytes().all(|byte| byte.is_ascii_digit()) => Err(why),
            Err(_) => Err(format!(
                "must be -1 (no limit here), 0 (refuse everything), a whole number above, inherit or unlimited, found {}",
                quoted(text)
            )),
        }
    }
}

/// `-1`, `0`, a whole number above, `inherit` or `unlimited`.
static ALLOWANCE: CustomType = CustomType {
    check: |text, plain| Allowance::parse(text, plain).map(drop),
    allowed: "a whole number from -1, inherit or unlimited",
    json_schema: || json!({"type": ["integer", "string"], "minimum": -1, "maximum": MAX_LIMIT}),
};

/// Document 002's four fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RateLimits {
    /// How many requests a second.
    pub max_qps: Allowance,
    /// How many connections at once.
    pub max_connections: Allowance,
    /// How many requests a second of one client.
    pub max_qps_per_client: Allowance,
    /// How many connections of one client.
    pub max_connections_per_client: Allowance,
}

impl RateLimits {
    fn read(section: Option<&mut Mapping>) -> RateLimits {
        let Some(section) = section else { return RateLimits::default() };
        let mut allowance = |field| {
            let text = section.take_text(field);
            text.and_then(|text| Allowance::parse(&text, true).ok()).unwrap_or_default()
        };
        RateLimits {
            max_qps: allowance("maxQps"),
            max_connections: allowance("maxConnections"),
            max_qps_per_client: allowance("maxQpsPerClient"),
            max_connections_per_client: allowance("maxConnectionsPerClient"),
        }
    }
}

macro_rules! choices {
    ($(#[$doc:meta])* $name:ident[$count:literal] { $($(#[$about:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub enum $name { $($(#[$about])* $variant),+ }

        impl $name {
            /// Every choice.
            pub const ALL: [$name; $count] = [$($name::$variant),+];

            /// The word used in files.
            pub const fn word(self) -> &'static str {
                match self { $($name::$variant => $word),+ }
            }
        }
    };
}

choices! {
    /// What a second is.
    Window[2] {
        /// Any second.
        #[default]
        Sliding = "sliding",
        /// A second of the clock.
        Fixed = "fixed",
    }
}

choices! {
    /// Which endpoint is next.
    Balance[3] {
        /// The one after the last.
        #[default]
        RoundRobin = "round-robin",
        /// Any.
        Random = "random",
        /// The one with the fewest connections.
        LeastConnection = "least-connection",
    }
}

/// A gateway's file that has no errors.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GatewaySpec {
    /// Where clients come in.
    pub server: GatewayServer,
    /// The gateway's certificate, if TLS is spoken.
    pub tls: Option<Certificate>,
    /// Where operators come in, if anywhere.
    pub management: Option<SocketAddr>,
    /// The services behind the gateway; no two have the same name.
    pub backends: Vec<Backend>,
    /// Which request goes where; no two have the same host and path, and every backend exists.
    pub routes: Vec<Route>,
}

/// Where clients come in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayServer {
    /// The address.
    pub listen: SocketAddr,
    /// Whose word about clients is believed.
    pub trusted_proxies: Vec<Network>,
    /// Whether their connections begin with a PROXY header.
    pub proxy_protocol: bool,
    /// The header whose value is the client, in lower case.
    pub client_header: Option<String>,
    /// What everybody together may do.
    pub limits: RateLimits,
    /// What a second is, at every level.
    pub window: Window,
    /// How long the head of a request may take.
    pub header_timeout: Duration,
    /// How long a body may stand still.
    pub body_timeout: Duration,
    /// How long a connection may say nothing between requests.
    pub idle_timeout: Duration,
    /// How long requests under way may take when the gateway stops.
    pub drain_timeout: Duration,
    /// How long nothing may be said on a connection that was upgraded, such as a WebSocket.
    pub tunnel_timeout: Duration,
    /// The largest body of a request, in bytes.
    pub max_body: u64,
}

impl Default for GatewayServer {
    fn default() -> GatewayServer {
        GatewayServer {
            listen: SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), DEFAULT_PORT),
            trusted_proxies: Vec::new(),
            proxy_protocol: false,
            client_header: None,
            limits: RateLimits::default(),
            window: Window::default(),
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(75),
            drain_timeout: Duration::from_secs(30),
            tunnel_timeout: Duration::from_secs(3600),
            max_body: DEFAULT_MAX_BODY,
        }
    }
}

/// Files with a certificate and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// The certificate chain.
    pub certificate: String,
    /// The private key.
    pub key: String,
}

/// A service behind the gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backend {
    /// What routes call it.
    pub name: String,
    /// Which endpoint is next.
    pub balance: Balance,
    /// How endpoints are probed, if they are.
    pub probe: Option<Probe>,
    /// Where it is: at least one, no two the same.
    pub endpoints: Vec<Endpoint>,
    /// What may be asked of it.
    pub limits: RateLimits,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// How long the head of a response may take.
    pub response_timeout: Duration,
    /// How long a connection is kept unused.
    pub idle_timeout: Duration,
}

/// How endpoints are probed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// What is asked for.
    pub path: String,
    /// How often.
    pub period: Duration,
    /// How long an answer may take.
    pub timeout: Duration,
    /// After how many successes an endpoint is well.
    pub successes: u64,
    /// After how many failures it is not.
    pub failures: u64,
}

/// Where a backend is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Its name or address, in lower case; IPv6 without brackets.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Endpoints of the lowest number that are well are used.
    pub priority: u64,
}

/// Which requests go to a backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Their hosts.
    pub host: HostPattern,
    /// Their paths.
    pub path: PathPattern,
    /// The backend's name.
    pub backend: String,
    /// What may be asked of the route.
    pub limits: RateLimits,
}

impl Route {
    /// What the route is called: its host as in document 002, and its path if that is not every path.
    pub fn id(&self) -> String {
        if self.path == PathPattern::any() {
            return self.host.to_string();
        }
        format!("{}{}", self.host, self.path)
    }
}

/// Reads the file of the gateway. The name is for messages only; `env` knows the variables.
///
/// ```
/// let text = b"
/// server: {port: \"${env:PORT:-9848}\", rateLimit: {maxQps: 2000}}
/// backends: [{name: api, endpoints: [{host: 127.0.0.1, port: 8080}]}]
/// routes: [{host: api.example.com, backend: api}]";
/// let spec = tidegate_gateway::settings::read_gateway("gateway.yaml", text, &|_| None).unwrap();
/// assert_eq!(spec.server.listen.port(), 9848);
/// assert_eq!(spec.routes[0].id(), "api.example.com");
/// ```
pub fn read_gateway(
    name: &str,
    bytes: &[u8],
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<GatewaySpec, Diagnostics> {
    read_document(name, bytes, |sink, tree| read_tree(sink, tree, env)).map(|(spec, _)| spec)
}

fn read_tree(
    sink: &mut DiagnosticSink<'_>,
    tree: &Rc<YamlNode>,
    env: Environment<'_>,
) -> Option<GatewaySpec> {
    if tree.is_empty() {
        sink.error(tree.span, "", "is empty; a gateway needs backends and routes");
        return None;
    }
    let tree = expand(sink, tree, env, &FieldPath::Top);
    let mut file = read_mapping(sink, &tree, &GATEWAY, &FieldPath::Top);
    let server = file.take_section("server").map(|section| read_server(sink, section)).unwrap_or_default();
    let tls = file.take_section("tls").and_then(read_certificate);
    let management = file.take_section("management").and_then(|section| read_management(sink, section));
    let names_known = file.is_readable("backends");
    let backends = check_backends(sink, file.take_list("backends"), names_known, tree.span);
    let routes = check_routes(sink, file.take_list("routes"), backends.names());
    Some(GatewaySpec { server, tls, management, backends: backends.all, routes })
}

fn read_certificate(mut section: Mapping) -> Option<Certificate> {
    Some(Certificate { certificate: section.take_text("certificate")?, key: section.take_text("key")? })
}

fn read_server(sink: &mut DiagnosticSink<'_>, mut section: Mapping) -> GatewayServer {
    let path = FieldPath::Field(&FieldPath::Top, "server");
    let defaults = GatewayServer::default();
    let listen = read_listen(sink, &mut section, &path, Ipv4Addr::UNSPECIFIED);
    let mut rates = section.take_section("rateLimit");
    let window = rates.as_mut().and_then(|rates| rates.take_choice("window", &Window::ALL, Window::word));
    GatewayServer {
        listen: listen.unwrap_or(defaults.listen),
        trusted_proxies: read_networks(sink, &mut section, &path),
        proxy_protocol: section.take_bool("proxyProtocol").unwrap_or(false),
        client_header: read_header(sink, &mut section, &path),
        limits: RateLimits::read(rates.as_mut()),
        window: window.unwrap_or_default(),
        header_timeout: section.take_duration("headerTimeout").unwrap_or(defaults.header_timeout),
        body_timeout: section.take_duration("bodyTimeout").unwrap_or(defaults.body_timeout),
        idle_timeout: section.take_duration("idleTimeout").unwrap_or(defaults.idle_timeout),
        drain_timeout: section.take_duration("drainTimeout").unwrap_or(defaults.drain_timeout),
        tunnel_timeout: section.take_duration("tunnelTimeout").unwrap_or(defaults.tunnel_timeout),
        max_body: section.take_count("maxBodyBytes").unwrap_or(defaults.max_body),
    }
}

fn read_management(sink: &mut DiagnosticSink<'_>, mut section: Mapping) -> Option<SocketAddr> {
    let path = FieldPath::Field(&FieldPath::Top, "management");
    if section.key_span("port").is_none() && section.key_span("listen").is_none() && section.is_valid {
        sink.error(section.span, path, "must have a port or an address to listen at; write port: 9849");
    }
    read_listen(sink, &mut section, &path, Ipv4Addr::LOCALHOST)
}

/// `port` at an address, or `listen`.
fn read_listen(
    sink: &mut DiagnosticSink<'_>,
    section: &mut Mapping,
    path: &FieldPath<'_>,
    address: Ipv4Addr,
) -> Option<SocketAddr> {
    if let (Some(_), Some(place)) = (section.key_span("port"), section.key_span("listen")) {
        let message = "says where to listen, and so does port; keep one of them";
        sink.error(place, FieldPath::Field(path, "listen"), message);
    }
    let place = section.value_span("listen");
    if let (Some(text), Some(place)) = (section.take_text("listen"), place) {
        return parse_address(&text)
            .map_err(|why| sink.error(place, FieldPath::Field(path, "listen"), why))
            .ok();
    }
    let port = u16::try_from(section.take_count("port")?).ok()?;
    Some(SocketAddr::new(IpAddr::V4(address), port))
}

fn read_networks(sink: &mut DiagnosticSink<'_>, section: &mut Mapping, path: &FieldPath<'_>) -> Vec<Network> {
    let path = FieldPath::Field(path, "trustedProxies");
    let mut networks = Vec::new();
    for (index, (text, place)) in section.take_texts("trustedProxies").unwrap_or_default().iter().enumerate()
    {
        match Network::parse(text) {
            Ok(network) => networks.push(network),
            Err(why) => sink.error(*place, FieldPath::Element(&path, index), why),
        }
    }
    networks
}

fn read_header(sink: &mut DiagnosticSink<'_>, section: &mut Mapping, path: &FieldPath<'_>) -> Option<String> {
    let place: Option<SourceSpan> = section.value_span("clientHeader");
    let name = section.take_text("clientHeader")?.to_ascii_lowercase();
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if !name.is_empty() && name.bytes().all(is_token) {
        return Some(name);
    }
    if let Some(place) = place {
        let message = format!("must be the name of a header such as x-api-key, found {}", quoted(&name));
        sink.error(place, FieldPath::Field(path, "clientHeader"), message);
    }
    None
}
