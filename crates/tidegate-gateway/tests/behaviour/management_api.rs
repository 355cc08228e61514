//! The management port: its pages, and its bounds.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tidegate_gateway::endpoints::Backend;
use tidegate_gateway::limits::Overfull;
use tidegate_gateway::management_api::{Behind, LARGEST_BODY, MOST_VISITORS, Page, Status, answer, start};
use tidegate_gateway::metrics::Numbers;
use tidegate_gateway::reload::Unused;
use tidegate_gateway::{ClientKey, RateLimitManager, Reloaded};

use crate::fixture::{DOCUMENT, managing, spec};

/// A gateway of which only what is managed is there.
struct House {
    status: Mutex<Status>,
    limits: RateLimitManager,
    numbers: Numbers,
    backends: Vec<Arc<Backend>>,
    reloaded: Mutex<Result<Reloaded, Unused>>,
    reloads: AtomicUsize,
}

impl House {
    fn new() -> House {
        let (limits, _clock) = managing(DOCUMENT);
        let backends = spec(DOCUMENT).backends;
        House {
            status: Mutex::new(Status::Up),
            limits,
            numbers: Numbers::new(1),
            backends: backends.iter().map(|backend| Arc::new(Backend::new(backend, None))).collect(),
            reloaded: Mutex::new(Ok(Reloaded::default())),
            reloads: AtomicUsize::new(0),
        }
    }

    fn is(&self, status: Status) {
        *self.status.lock().expect("nobody panicked") = status;
    }
}

impl Behind for House {
    fn status(&self) -> Status {
        *self.status.lock().expect("nobody panicked")
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

    fn numbers(&self) -> &Numbers {
        &self.numbers
    }

    fn backends(&self) -> Vec<Arc<Backend>> {
        self.backends.clone()
    }

    fn reload(&self) -> Result<Reloaded, Unused> {
        self.reloads.fetch_add(1, Ordering::Relaxed);
        self.reloaded.lock().expect("nobody panicked").clone()
    }
}

fn body(page: &Page) -> Value {
    serde_json::from_slice(&page.body).expect("JSON")
}

#[test]
fn health_says_whether_it_serves() {
    let house = House::new();
    house.numbers.worker(0).accepted();
    let page = answer("GET", "/health", &house);
    assert_eq!((page.status, page.content_type), (200, "application/json"));
    let meant = json!({
        "status": "UP", "timestamp": 1_772_355_606_123_u64, "uptimeSeconds": 61, "connections": 1,
        "backends": {"api-service": {"endpoints": 1, "well": 1}, "plain": {"endpoints": 1, "well": 1}},
    });
    assert_eq!(body(&page), meant);
    for (status, word) in [(Status::Draining, "DRAINING"), (Status::Down, "DOWN")] {
        house.is(status);
        let page = answer("GET", "/health", &house);
        assert_eq!((page.status, &body(&page)["status"]), (503, &json!(word)));
    }
}

#[test]
fn limits_are_told_at_every_level_with_the_hottest_clients() {
    let house = House::new();
    let key = ClientKey::of_address([203, 0, 113, 9].into());
    let client = key.as_bytes();
    let _connection =
        house.limits.try_acquire_connection("plain", client, Some("plain.example.com")).expect("room");
    for _ in 0..12 {
        let refused = house.limits.try_acquire("plain", client, Some("plain.example.com")).is_err();
        house.numbers.worker(0).asked(client, refused);
    }
    let page = answer("GET", "/limits", &house);
    assert_eq!(page.status, 200);
    let said = body(&page);
    assert_eq!(said["window"], "sliding");
    let server = json!({
        "maxQps": {"limit": 2000, "used": 10, "refused": 0},
        "maxConnections": {"limit": 10_000, "used": 1, "refused": 0},
        "maxQpsPerClient": {"limit": 10, "from": "server", "clients": 1, "refused": 2},
        "maxConnectionsPerClient": {"limit": 5, "from": "server", "clients": 1, "refused": 0},
    });
    assert_eq!(said["server"], server);
    let accept = json!({"limit": 20, "clients": 1, "refused": 0});
    assert_eq!(said["accept"], json!({"maxConnectionsPerClient": accept}));
    let plain = json!({
        "name": "plain",
        "maxQps": {"limit": "unlimited", "used": 10, "refused": 0},
        "maxConnections": {"limit": "unlimited", "used": 1, "refused": 0},
        "maxQpsPerClient": {"limit": 10, "from": "server"},
        "maxConnectionsPerClient": {"limit": 5, "from": "server"},
    });
    assert_eq!(said["backends"][1], plain);
    let route = &said["routes"][1];
    assert_eq!((&route["id"], &route["backend"]), (&json!("mixed.example.com"), &json!("api-service")));
    assert_eq!(route["maxConnectionsPerClient"], json!({"limit": 10, "from": "backend"}));
    let hottest =
        json!([{"client": "203.0.113.9", "requests": 12, "refused": 2, "uncertain": 0, "connections": 1}]);
    assert_eq!(said["hottestClients"]["clients"], hottest);
}

#[test]
fn metrics_are_those_of_the_numbers() {
    let house = House::new();
    house.numbers.worker(0).upgraded();
    let page = answer("GET", "/metrics", &house);
    assert_eq!((page.status, page.content_type), (200, "text/plain; version=0.0.4; charset=utf-8"));
    let text = String::from_utf8(page.body).expect("text");
    assert!(text.contains("\ntidegate_gateway_upgrades_total 1\n"), "{text}");
    assert!(
        text.contains("\ntidegate_gateway_endpoint_up{backend=\"plain\",endpoint=\"127.0.0.1:8081\"} 1\n")
    );
}

#[test]
fn a_reload_says_what_it_did_or_everything_that_is_wrong() {
    let house = House::new();
    let overfull = Overfull { limit_id: "server/connections".to_owned(), most: 5, open: 10 };
    *house.reloaded.lock().expect("nobody panicked") =
        Ok(Reloaded { changed: 3, overfull: vec![overfull], needs_restart: true });
    let page = answer("POST", "/reload", &house);
    assert_eq!(page.status, 200);
    let overfull = json!([{"limit": "server/connections", "most": 5, "open": 10}]);
    assert_eq!(body(&page), json!({"changed": 3, "overfull": overfull, "needsRestart": true}));

    let errors =
        ["gateway.yaml:3: server.port: too large", "gateway.yaml:9: routes: missing"].map(str::to_owned);
    let unused = Unused { text: "all of it".to_owned(), errors: errors.to_vec() };
    *house.reloaded.lock().expect("nobody panicked") = Err(unused);
    let page = answer("POST", "/reload", &house);
    assert_eq!((page.status, page.content_type), (422, "application/problem+json"));
    assert_eq!(body(&page)["errors"], json!(errors));
    assert_eq!((&body(&page)["code"], &body(&page)["status"]), (&json!("settings_not_used"), &json!(422)));
}

#[test]
fn other_paths_and_methods_are_told_what_there_is() {
    let house = House::new();
    for (method, path, status, allow) in [
        ("GET", "/", 404, None),
        ("GET", "/health/", 404, None),
        ("POST", "/health", 405, Some("GET, HEAD")),
        ("GET", "/reload", 405, Some("POST")),
        ("HEAD", "/reload", 405, Some("POST")),
        ("HEAD", "/limits", 200, None),
    ] {
        let page = answer(method, path, &house);
        assert_eq!((page.status, page.allow), (status, allow), "{method} {path}");
    }
    assert_eq!(house.reloads.load(Ordering::Relaxed), 0, "nobody reloads by looking");
}

/// Everything that is said to somebody who says this.
fn say(address: SocketAddr, text: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).expect("it is open");
    // Whoever is sent away may not be heard out.
    let _may_be_cut = stream.write_all(text);
    let mut heard = Vec::new();
    let _may_be_cut = stream.read_to_end(&mut heard);
    String::from_utf8(heard).expect("text")
}

#[test]
fn the_port_answers_one_request_for_each_connection() {
    let house = Arc::new(House::new());
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let managed = start(any, Arc::clone(&house) as _).expect("a free port");
    let address = managed.address();
    let said =
        say(address, b"GET /health?x=1 HTTP/1.1\r\nhost: a\r\n\r\nGET /health HTTP/1.1\r\nhost: a\r\n\r\n");
    assert!(said.starts_with("HTTP/1.1 200 OK\r\n"), "{said}");
    assert_eq!(said.matches("HTTP/1.1").count(), 1, "{said}");
    let (head, body) = said.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.contains("connection: close") && head.contains("cache-control: no-store"), "{head}");
    assert!(body.contains("\"UP\""), "{body}");
    let said = say(address, b"HEAD /health HTTP/1.1\r\nhost: a\r\n\r\n");
    assert!(said.starts_with("HTTP/1.1 200 OK\r\n") && said.ends_with("\r\n\r\n"), "{said}");
    let said = say(address, b"POST /reload HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}");
    assert!(said.starts_with("HTTP/1.1 200 OK\r\n"), "{said}");
    assert_eq!(house.reloads.load(Ordering::Relaxed), 1);
    let said = say(address, b"PUT /reload HTTP/1.1\r\nhost: a\r\n\r\n");
    assert!(said.starts_with("HTTP/1.1 405 ") && said.contains("allow: POST\r\n"), "{said}");
    assert!(start(address, Arc::clone(&house) as _).is_err(), "the port is taken");
    drop(managed);
    assert!(TcpStream::connect(address).is_err(), "it is closed");
    assert_eq!(Arc::strong_count(&house), 1, "nobody has it any more");
}

#[test]
fn a_large_body_is_refused_and_nothing_is_done() {
    let house = Arc::new(House::new());
    let managed = start(SocketAddr::from(([127, 0, 0, 1], 0)), Arc::clone(&house) as _).expect("a free port");
    let mut request =
        format!("POST /reload HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n", LARGEST_BODY + 1)
            .into_bytes();
    request.resize(request.len() + LARGEST_BODY + 1, b'x');
    let said = say(managed.address(), &request);
    assert!(said.starts_with("HTTP/1.1 413 "), "{said}");
    assert_eq!(house.reloads.load(Ordering::Relaxed), 0);
}

#[test]
fn there_is_room_for_so_many_and_others_are_sent_away() {
    let house = Arc::new(House::new());
    let managed = start(SocketAddr::from(([127, 0, 0, 1], 0)), Arc::clone(&house) as _).expect("a free port");
    let connect = || TcpStream::connect(managed.address()).expect("it is open");
    let mut silent: Vec<TcpStream> = (0..MOST_VISITORS).map(|_| connect()).collect();
    let mut heard = Vec::new();
    let mut beyond = connect();
    assert_eq!(beyond.read_to_end(&mut heard).unwrap_or(0), 0, "there is no room");
    // One who leaves makes room for another.
    drop(silent.pop());
    let answered =
        std::iter::repeat_with(|| say(managed.address(), b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n"))
            .take(10_000)
            .any(|said| said.starts_with("HTTP/1.1 200 "));
    assert!(answered);
}
