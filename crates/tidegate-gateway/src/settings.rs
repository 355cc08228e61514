//! The settings file of the gateway, `gateway.yaml`.
//!
//! ```text
//! bytes ──▶ tree ──▶ environment ──▶ mappings ──▶ checks ──▶ GatewaySpec
//!                    ${env:…}                     routes, backends and names
//! ```
//!
//! All errors are reported at once, each with its position. A file with any error gives no spec.

mod backends_and_routes;
mod patterns;
mod schema;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use serde_json::json;
use tidegate::layer::http::IpNetwork;
use tidegate::model::{Amount, Capacity};
use tidegate_config::schema::CustomType;
use tidegate_config::text::{parse_address, parse_capacity, quoted};
use tidegate_config::{
    DiagnosticSink, Diagnostics, Environment, FieldPath, Mapping, SourceSpan, YamlNode, expand,
    read_document, read_mapping,
};
use tidegate_core::amount::MAX_LIMIT;

use backends_and_routes::{check_backends, check_routes};
pub use patterns::{HostPattern, MAX_HOST_BYTES, MAX_PATTERN_BYTES, PathPattern, PathRest};
pub use schema::GATEWAY;

/// The default port.
pub const DEFAULT_PORT: u16 = 9848;

/// The default maximum size of a request body: one gibibyte.
pub const DEFAULT_MAX_BODY: u64 = 1 << 30;

/// The value of one rate limit field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Allowance {
    /// Absent, `-1` or `inherit`: no limit here. A client's limit is inherited from the next level.
    #[default]
    Inherit,
    /// `unlimited`: no limit here, and nothing is inherited.
    Unlimited,
    /// A limit; `0` refuses everything.
    AtMost(Amount),
}

impl Allowance {
    /// The capacity if nothing is inherited.
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
            // It is a number. The error is its size or its form.
            Err(why) if text.bytes().all(|byte| byte.is_ascii_digit()) => Err(why),
            Err(_) => Err(format!(
                "must be -1 (no limit here), 0 (refuse everything), a whole number above, inherit or unlimited, found {}",
                quoted(text)
            )),
        }
    }
}

/// `-1`, `0`, a larger whole number, `inherit` or `unlimited`.
static ALLOWANCE: CustomType = CustomType {
    check: |text, plain| Allowance::parse(text, plain).map(drop),
    allowed: "a whole number from -1, inherit or unlimited",
    json_schema: || json!({"type": ["integer", "string"], "minimum": -1, "maximum": MAX_LIMIT}),
};

/// The four limits of a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RateLimits {
    /// The maximum number of requests per second.
    pub max_qps: Allowance,
    /// The maximum number of open connections.
    pub max_connections: Allowance,
    /// The maximum number of requests per second and client.
    pub max_qps_per_client: Allowance,
    /// The maximum number of open connections per client.
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
            /// All values.
            pub const ALL: [$name; $count] = [$($name::$variant),+];

            /// The value in the file.
            pub const fn word(self) -> &'static str {
                match self { $($name::$variant => $word),+ }
            }
        }
    };
}

choices! {
    /// The kind of window for request limits.
    Window[2] {
        /// A sliding second.
        #[default]
        Sliding = "sliding",
        /// A calendar second.
        Fixed = "fixed",
    }
}

choices! {
    /// How the next endpoint is chosen.
    Balance[3] {
        /// Each in turn.
        #[default]
        RoundRobin = "round-robin",
        /// At random.
        Random = "random",
        /// The one with the fewest active requests.
        LeastConnection = "least-connection",
    }
}

/// The content of a valid file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GatewaySpec {
    /// The client side.
    pub server: GatewayServer,
    /// The certificate, if TLS is enabled.
    pub tls: Option<CertificateFiles>,
    /// The address of the management port, if enabled.
    pub management: Option<SocketAddr>,
    /// The backends. Names are unique.
    pub backends: Vec<BackendSpec>,
    /// The routes. Each pair of host and path is unique, and every backend exists.
    pub routes: Vec<RouteSpec>,
}

/// The client side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayServer {
    /// The listen address.
    pub listen: SocketAddr,
    /// The proxies whose forwarding information is trusted.
    pub trusted_proxies: Vec<IpNetwork>,
    /// Whether trusted proxies send a PROXY header.
    pub proxy_protocol: bool,
    /// The header that names the client, in lower case.
    pub client_header: Option<String>,
    /// The limits of the server.
    pub limits: RateLimits,
    /// The kind of window at every level.
    pub window: Window,
    /// The maximum time for the head of a request.
    pub header_timeout: Duration,
    /// The maximum time without progress of a body.
    pub body_timeout: Duration,
    /// The maximum time between requests on a connection.
    pub idle_timeout: Duration,
    /// The maximum time for active requests when the gateway stops.
    pub drain_timeout: Duration,
    /// The maximum idle time of an upgraded connection, such as a WebSocket.
    pub tunnel_timeout: Duration,
    /// The maximum size of a request body in bytes.
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

/// The files of a certificate and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The certificate chain.
    pub certificate: String,
    /// The private key.
    pub key: String,
}

/// A backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendSpec {
    /// The name that routes use.
    pub name: String,
    /// How the next endpoint is chosen.
    pub balance: Balance,
    /// The health probe, if configured.
    pub probe: Option<ProbeSpec>,
    /// The endpoints: at least one, all distinct.
    pub endpoints: Vec<EndpointSpec>,
    /// The limits of the backend.
    pub limits: RateLimits,
    /// The maximum time to connect.
    pub connect_timeout: Duration,
    /// The maximum time to the head of a response.
    pub response_timeout: Duration,
    /// How long an unused connection stays in the pool.
    pub idle_timeout: Duration,
}

/// A health probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeSpec {
    /// The request path.
    pub path: String,
    /// The period.
    pub period: Duration,
    /// The maximum time for a response.
    pub timeout: Duration,
    /// The consecutive successes after which an endpoint is healthy.
    pub successes: u64,
    /// The consecutive failures after which an endpoint is unhealthy.
    pub failures: u64,
}

/// An endpoint of a backend.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EndpointSpec {
    /// The host name or address, in lower case; IPv6 without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The healthy endpoints with the lowest number are used.
    pub priority: u64,
}

/// A route to a backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteSpec {
    /// The matching hosts.
    pub host: HostPattern,
    /// The matching paths.
    pub path: PathPattern,
    /// The name of the backend.
    pub backend: String,
    /// The limits of the route.
    pub limits: RateLimits,
}

impl RouteSpec {
    /// The id of the route: its host, followed by its path unless that matches every path.
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

fn read_certificate(mut section: Mapping) -> Option<CertificateFiles> {
    Some(CertificateFiles { certificate: section.take_text("certificate")?, key: section.take_text("key")? })
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

/// `port` on a default address, or `listen`.
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

fn read_networks(
    sink: &mut DiagnosticSink<'_>,
    section: &mut Mapping,
    path: &FieldPath<'_>,
) -> Vec<IpNetwork> {
    let path = FieldPath::Field(path, "trustedProxies");
    let mut networks = Vec::new();
    for (index, (text, place)) in section.take_texts("trustedProxies").unwrap_or_default().iter().enumerate()
    {
        match text.parse::<IpNetwork>() {
            Ok(network) => networks.push(network),
            Err(error) => {
                let (reason, text) = (error.reason(), quoted(text));
                let message =
                    format!("{reason}, found {text}; write a network such as 10.0.0.0/8 or fd00::/8");
                sink.error(*place, FieldPath::Element(&path, index), message);
            }
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
