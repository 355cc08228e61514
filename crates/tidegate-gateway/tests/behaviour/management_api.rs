//! The management API: responses and resource bounds.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tidegate_gateway::endpoints::UpstreamBackend;
use tidegate_gateway::limits::OverfullLimit;
use tidegate_gateway::management_api::{
    GatewayStatus, MAX_BODY_BYTES, MAX_CONNECTIONS, ManagedGateway, ManagementResponse, respond, start,
};
use tidegate_gateway::metrics::GatewayMetrics;
use tidegate_gateway::reload::RejectedConfig;
use tidegate_gateway::{ClientKey, RateLimitManager, ReloadSummary};

use crate::fixture::{EXAMPLE, manager_with, spec};

/// A gateway with only the parts that the management API reads.
struct FakeGateway {
    status: Mutex<GatewayStatus>,
    limits: RateLimitManager,
    metrics: GatewayMetrics,
    backends: Vec<Arc<UpstreamBackend>>,
    reloaded: Mutex<Result<ReloadSummary, RejectedConfig>>,
    reloads: AtomicUsize,
}

impl FakeGateway {
    fn new() -> FakeGateway {
        let (limits, _clock) = manager_with(EXAMPLE);
        let backends = spec(EXAMPLE).backends;
        FakeGateway {
            status: Mutex::new(GatewayStatus::Up),
            limits,
            metrics: GatewayMetrics::new(1),
            backends: backends.iter().map(|backend| Arc::new(UpstreamBackend::new(backend, None))).collect(),
            reloaded: Mutex::new(Ok(ReloadSummary::default())),
            reloads: AtomicUsize::new(0),
        }
    }

    fn is(&self, status: GatewayStatus) {
        *self.status.lock().expect("not poisoned") = status;
    }
}

impl ManagedGateway for FakeGateway {
    fn status(&self) -> GatewayStatus {
        *self.status.lock().expect("not poisoned")
    }

    fn now(&self) -> Duration {
        Duration::from_millis(1_772_355_606_123)
    }

    fn uptime(&self) -> Duration {
        Duration::from_millis(61_999)
    }

    fn limits(&self) -> &RateLimitManager {
        &self.limits
    }

    fn metrics(&self) -> &GatewayMetrics {
        &self.metrics
    }

    fn backends(&self) -> Vec<Arc<UpstreamBackend>> {
        self.backends.clone()
    }

    fn reload(&self) -> Result<ReloadSummary, RejectedConfig> {
        self.reloads.fetch_add(1, Ordering::Relaxed);
        self.reloaded.lock().expect("not poisoned").clone()
    }
}

fn body(page: &ManagementResponse) -> Value {
    serde_json::from_slice(&page.body).expect("JSON")
}

#[test]
fn health_reports_the_gateway_status() {
    let gateway = FakeGateway::new();
    gateway.metrics.worker(0).count_accepted();
    let page = respond("GET", "/health", &gateway);
    assert_eq!((page.status, page.content_type), (200, "application/json"));
    let meant = json!({
        "status": "UP", "timestamp": 1_772_355_606_123_u64, "uptimeSeconds": 61, "connections": 1,
        "backends": {"api-service": {"endpoints": 1, "well": 1}, "plain": {"endpoints": 1, "well": 1}},
    });
    assert_eq!(body(&page), meant);
    for (status, word) in [(GatewayStatus::Draining, "DRAINING"), (GatewayStatus::Down, "DOWN")] {
        gateway.is(status);
        let page = respond("GET", "/health", &gateway);
        assert_eq!((page.status, &body(&page)["status"]), (503, &json!(word)));
    }
}

#[test]
fn limits_lists_every_level_and_the_hottest_clients() {
    let gateway = FakeGateway::new();
    let key = ClientKey::of_address([203, 0, 113, 9].into());
    let client = key.as_bytes();
    let _connection =
        gateway.limits.try_acquire_connection("plain", client, Some("plain.example.com")).expect("room");
    for _ in 0..12 {
        let refused = gateway.limits.try_acquire("plain", client, Some("plain.example.com")).is_err();
        gateway.metrics.worker(0).count_client_request(client, refused);
    }
    let page = respond("GET", "/limits", &gateway);
    assert_eq!(page.status, 200);
    let response = body(&page);
    assert_eq!(response["window"], "sliding");
    let server = json!({
        "maxQps": {"limit": 2000, "used": 10, "refused": 0},
        "maxConnections": {"limit": 10_000, "used": 1, "refused": 0},
        "maxQpsPerClient": {"limit": 10, "from": "server", "clients": 1, "refused": 2},
        "maxConnectionsPerClient": {"limit": 5, "from": "server", "clients": 1, "refused": 0},
    });
    assert_eq!(response["server"], server);
    let accept = json!({"limit": 20, "clients": 1, "refused": 0});
    assert_eq!(response["accept"], json!({"maxConnectionsPerClient": accept}));
    let plain = json!({
        "name": "plain",
        "maxQps": {"limit": "unlimited", "used": 10, "refused": 0},
        "maxConnections": {"limit": "unlimited", "used": 1, "refused": 0},
        "maxQpsPerClient": {"limit": 10, "from": "server"},
        "maxConnectionsPerClient": {"limit": 5, "from": "server"},
    });
    assert_eq!(response["backends"][1], plain);
    let route = &response["routes"][1];
    assert_eq!((&route["id"], &route["backend"]), (&json!("mixed.example.com"), &json!("api-service")));
    assert_eq!(route["maxConnectionsPerClient"], json!({"limit": 10, "from": "backend"}));
    let hottest =
        json!([{"client": "203.0.113.9", "requests": 12, "refused": 2, "uncertain": 0, "connections": 1}]);
    assert_eq!(response["hottestClients"]["clients"], hottest);
}

#[test]
fn metrics_page_contains_the_counters() {
    let gateway = FakeGateway::new();
    gateway.metrics.worker(0).count_upgrade();
    let page = respond("GET", "/metrics", &gateway);
    assert_eq!((page.status, page.content_type), (200, "text/plain; version=0.0.4; charset=utf-8"));
    let text = String::from_utf8(page.body).expect("text");
    assert!(text.contains("\ntidegate_gateway_upgrades_total 1\n"), "{text}");
    assert!(
        text.contains("\ntidegate_gateway_endpoint_up{backend=\"plain\",endpoint=\"127.0.0.1:8081\"} 1\n")
    );
}

#[test]
fn reload_returns_changes_or_all_errors() {
    let gateway = FakeGateway::new();
    let overfull = OverfullLimit { limit_id: "server/connections".to_owned(), most: 5, open: 10 };
    *gateway.reloaded.lock().expect("not poisoned") =
        Ok(ReloadSummary { changed: 3, overfull: vec![overfull], needs_restart: true });
    let page = respond("POST", "/reload", &gateway);
    assert_eq!(page.status, 200);
    let overfull = json!([{"limit": "server/connections", "most": 5, "open": 10}]);
    assert_eq!(body(&page), json!({"changed": 3, "overfull": overfull, "needsRestart": true}));

    let errors =
        ["gateway.yaml:3: server.port: too large", "gateway.yaml:9: routes: missing"].map(str::to_owned);
    let rejected = RejectedConfig { text: "all of it".to_owned(), errors: errors.to_vec() };
    *gateway.reloaded.lock().expect("not poisoned") = Err(rejected);
    let page = respond("POST", "/reload", &gateway);
    assert_eq!((page.status, page.content_type), (422, "application/problem+json"));
    assert_eq!(body(&page)["errors"], json!(errors));
    assert_eq!((&body(&page)["code"], &body(&page)["status"]), (&json!("settings_not_used"), &json!(422)));
}

#[test]
fn unknown_paths_and_methods_list_what_exists() {
    let gateway = FakeGateway::new();
    for (method, path, status, allow) in [
        ("GET", "/", 404, None),
        ("GET", "/health/", 404, None),
        ("POST", "/health", 405, Some("GET, HEAD")),
        ("GET", "/reload", 405, Some("POST")),
        ("HEAD", "/reload", 405, Some("POST")),
        ("HEAD", "/limits", 200, None),
    ] {
        let page = respond(method, path, &gateway);
        assert_eq!((page.status, page.allow), (status, allow), "{method} {path}");
    }
    assert_eq!(gateway.reloads.load(Ordering::Relaxed), 0, "GET does not reload");
}

/// Sends this text and returns the whole response.
fn send_raw(address: SocketAddr, text: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).expect("it is open");
    // The connection may be closed before everything is sent.
    let _may_be_cut = stream.write_all(text);
    let mut received = Vec::new();
    let _may_be_cut = stream.read_to_end(&mut received);
    String::from_utf8(received).expect("text")
}

#[test]
fn port_serves_one_request_per_connection() {
    let gateway = Arc::new(FakeGateway::new());
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let managed = start(any, Arc::clone(&gateway) as _).expect("a free port");
    let address = managed.address();
    let response = send_raw(
        address,
        b"GET /health?x=1 HTTP/1.1\r\nhost: a\r\n\r\nGET /health HTTP/1.1\r\nhost: a\r\n\r\n",
    );
    assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
    assert_eq!(response.matches("HTTP/1.1").count(), 1, "{response}");
    let (head, body) = response.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.contains("connection: close") && head.contains("cache-control: no-store"), "{head}");
    assert!(body.contains("\"UP\""), "{body}");
    let response = send_raw(address, b"HEAD /health HTTP/1.1\r\nhost: a\r\n\r\n");
    assert!(response.starts_with("HTTP/1.1 200 OK\r\n") && response.ends_with("\r\n\r\n"), "{response}");
    let response = send_raw(address, b"POST /reload HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}");
    assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
    assert_eq!(gateway.reloads.load(Ordering::Relaxed), 1);
    let response = send_raw(address, b"PUT /reload HTTP/1.1\r\nhost: a\r\n\r\n");
    assert!(response.starts_with("HTTP/1.1 405 ") && response.contains("allow: POST\r\n"), "{response}");
    assert!(start(address, Arc::clone(&gateway) as _).is_err(), "the port is taken");
    drop(managed);
    assert!(TcpStream::connect(address).is_err(), "it is closed");
    assert_eq!(Arc::strong_count(&gateway), 1, "all references are released");
}

#[test]
fn large_body_is_refused_without_effect() {
    let gateway = Arc::new(FakeGateway::new());
    let managed =
        start(SocketAddr::from(([127, 0, 0, 1], 0)), Arc::clone(&gateway) as _).expect("a free port");
    let mut request =
        format!("POST /reload HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n", MAX_BODY_BYTES + 1)
            .into_bytes();
    request.resize(request.len() + MAX_BODY_BYTES + 1, b'x');
    let response = send_raw(managed.address(), &request);
    assert!(response.starts_with("HTTP/1.1 413 "), "{response}");
    assert_eq!(gateway.reloads.load(Ordering::Relaxed), 0);
}

#[test]
fn connections_above_maximum_are_closed() {
    let gateway = Arc::new(FakeGateway::new());
    let managed =
        start(SocketAddr::from(([127, 0, 0, 1], 0)), Arc::clone(&gateway) as _).expect("a free port");
    let connect = || TcpStream::connect(managed.address()).expect("it is open");
    let mut silent: Vec<TcpStream> = (0..MAX_CONNECTIONS).map(|_| connect()).collect();
    let mut received = Vec::new();
    let mut beyond = connect();
    assert_eq!(beyond.read_to_end(&mut received).unwrap_or(0), 0, "there is no room");
    // A closed connection makes room for another.
    drop(silent.pop());
    let answered =
        std::iter::repeat_with(|| send_raw(managed.address(), b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n"))
            .take(10_000)
            .any(|response| response.starts_with("HTTP/1.1 200 "));
    assert!(answered);
}
