//! HTTP and RESP calls on the PostgreSQL store, and limits that take effect on all servers at once.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use serde_json::json;

use super::Fleet;
use crate::remote::TestServer;

const SALE: &str = r#"{"id": "sale", "items": [{"policy": "total", "limit": 3}]}"#;

#[test]
fn changed_limit_applies_on_all_servers() {
    let fleet = Fleet::of(3, "limits: []");
    let [mut first, mut second, mut third] = fleet.connect_all();
    let ask = r#"{"limit_id": "sale"}"#;
    assert_eq!(first.post("/v1/acquire", ask).problem(), (404, "unknown_limit"));
    first.post("/v1/limits", SALE).is(201);
    for wire in [&mut first, &mut second, &mut third] {
        assert_eq!(wire.post("/v1/acquire", ask).is(200)["allowed"], true);
    }
    assert_eq!(first.post("/v1/acquire", ask).is(200)["allowed"], false, "all of them counted as one");
    // The next request sees the new definition and the old counts.
    for (limit, allowed) in [(4, true), (4, false), (2, false), (5, true), (5, false)] {
        let text = json!({"id": "sale", "items": [{"policy": "total", "limit": limit}]}).to_string();
        second.send("PUT /v1/limits/sale", &text).is(200);
        let output = third.post("/v1/acquire", ask).is(200);
        assert_eq!(output["allowed"], allowed, "{limit}: {output}");
    }
    assert_eq!(second.post("/v1/limits/sale/reset", r#"{"limit_key": null}"#).status, 204);
    assert_eq!(third.post("/v1/peek", ask).is(200)["readings"][0]["used"], 0);
    assert_eq!(third.delete("/v1/limits/sale").status, 204);
    assert_eq!(second.post("/v1/acquire", ask).problem(), (404, "unknown_limit"));
}

#[test]
fn limit_is_added_read_replaced_and_deleted() {
    let fleet = Fleet::of(2, "limits: [{id: written, items: [{policy: total, limit: 1}]}]");
    let [mut first, mut second] = fleet.connect_all();
    let added = first.post("/v1/limits", SALE);
    assert_eq!((added.status, added.header("location")), (201, Some("/v1/limits/sale")));
    assert_eq!(second.post("/v1/limits", SALE).problem(), (409, "limit_exists"));
    let read = first.get("/v1/limits/sale");
    let etag = read.header("etag").expect("a version").to_owned();
    assert_eq!(read.is(200)["items"][0]["limit"], 3);
    let ids = first.get("/v1/limits").is(200)["limits"].as_array().expect("a list").clone();
    assert_eq!(ids.iter().map(|limit| &limit["id"]).collect::<Vec<_>>(), ["sale", "written"]);
    let invalid = r#"{"id": "sale", "items": [{"policy": "total", "limit": -2}]}"#;
    assert_eq!(second.send("PUT /v1/limits/sale", invalid).problem(), (422, "invalid_limit"));
    let next = r#"{"id": "sale", "items": [{"policy": "total", "limit": 3, "per": "key"}]}"#;
    let replaced = second.send("PUT /v1/limits/sale", next);
    let changed = replaced.header("etag").expect("a version") != etag;
    assert_eq!((replaced.status, changed), (200, true));
    assert_eq!(first.get("/v1/limits/none").problem(), (404, "unknown_limit"));
    let exception = r#"{"item": "key/total", "limit": 9, "until": null}"#;
    second.send("PUT /v1/limits/sale/overrides/vip", exception).is(200);
    let vip = first.post("/v1/peek", r#"{"limit_id": "sale", "limit_key": "vip"}"#).is(200);
    assert_eq!(vip["readings"][0]["limit"], 9);
    assert_eq!(first.delete("/v1/limits/written").problem(), (409, "managed_by_file"));
    assert_eq!(first.delete("/v1/limits/sale").status, 204);
    assert_eq!(first.delete("/v1/limits/sale").problem(), (404, "unknown_limit"));
}

/// A lease of one server is renewed, settled and released at another.
#[test]
fn lease_is_valid_on_every_server() {
    let limits = "limits:
  - {id: workers, items: [{policy: concurrency, limit: 1, ttl: 10m}]}
  - {id: tokens, items: [{policy: day, limit: 1000, per: key}]}";
    let fleet = Fleet::of(2, limits);
    let [mut first, mut second] = fleet.connect_all();
    let granted = first.post("/v1/acquire", r#"{"limit_id": "workers"}"#).is(200);
    assert_eq!((&granted["allowed"], &granted["lease"]["fence"]), (&true.into(), &1.into()));
    let lease = json!({"lease_id": granted["lease"]["id"]}).to_string();
    let full = second.post("/v1/acquire", r#"{"limit_id": "workers"}"#).is(200);
    assert_eq!((&full["allowed"], &full["wait"]), (&false.into(), &"on_release".into()));
    let renewal = json!({"lease_id": granted["lease"]["id"], "ttl_ms": 3_600_000}).to_string();
    let renewed = second.post("/v1/renew", &renewal).is(200)["expires_at"].clone();
    assert!(renewed.as_str() > granted["lease"]["expires_at"].as_str(), "{renewed}");
    assert_eq!(second.post("/v1/release", &lease).is(200)["released"], true);
    assert_eq!(first.post("/v1/release", &lease).is(200)["released"], false);
    assert_eq!(first.post("/v1/renew", &renewal).problem(), (410, "unknown_lease"));
    // A hold with a request id, charged once.
    let ask =
        r#"{"limit_id": "tokens", "limit_key": "ada", "count": 500, "hold": true, "request_id": "r-1"}"#;
    let held = first.post("/v1/acquire", ask).is(200);
    assert_eq!(second.post("/v1/acquire", ask).is(200)["lease"]["id"], held["lease"]["id"]);
    let other = r#"{"limit_id": "tokens", "limit_key": "bob", "request_id": "r-1"}"#;
    assert_eq!(second.post("/v1/acquire", other).problem(), (409, "request_id_reused"));
    let actual = json!({"lease_id": held["lease"]["id"], "actual": 312}).to_string();
    for wire in [&mut second, &mut first] {
        assert_eq!(wire.post("/v1/settle", &actual).is(200), json!({"settled": true}));
    }
    let usage = first.get("/v1/limits/tokens/usage?limit_key=ada").is(200);
    assert_eq!(usage["policy_status"][0]["current_count"], 312, "{usage}");
    assert_eq!(first.get("/v1/gate/tokens/ada").status, 200);
    let peeked = second.post("/v1/peek", r#"{"limit_id": "tokens", "limit_key": "ada"}"#).is(200);
    assert_eq!(peeked["readings"][0]["used"], 313);
}

#[test]
fn resp_and_http_share_counts() {
    let limits = "limits:
  - {id: sale, items: [{policy: total, limit: 2, per: key}]}
  - {id: workers, items: [{policy: concurrency, limit: 1, ttl: 10m}]}";
    let fleet = Fleet::of(2, limits);
    let [mut first, mut second] = [0, 1].map(|server| RespConnection::to(&fleet.servers[server]));
    assert_eq!(first.call(&[b"TG.ACQUIRE", b"sale", b"ada"]), "[1 2 1 -1 -1  ]");
    assert_eq!(second.call(&[b"TG.ACQUIRE", b"sale", b"ada", b"1", b"REQ", b"r-1"]), "[1 2 0 -1 -1  ]");
    assert_eq!(first.call(&[b"TG.ACQUIRE", b"sale", b"ada", b"1", b"REQ", b"r-1"]), "[1 2 0 -1 -1  ]");
    assert_eq!(first.call(&[b"TG.ACQUIRE", b"sale", b"ada"]), "[0 2 0 -1 -1 key/total ]");
    assert_eq!(second.call(&[b"TG.PEEK", b"sale", b"a\0\xff"]), "[1 2 2 -1 -1  ]", "keys are any bytes");
    assert!(first.call(&[b"TG.ACQUIRE", b"none", b"ada"]).starts_with("NOLIMIT "));
    let granted = first.call(&[b"TG.ACQUIRE", b"workers", b"ada"]);
    let lease = granted.trim_end_matches(']').rsplit(' ').next().expect("a lease").to_owned();
    assert_eq!(lease.len(), 32, "{granted}");
    assert!(second.call(&[b"TG.RENEW", lease.as_bytes(), b"60000"]).parse::<u64>().is_ok());
    assert_eq!(second.call(&[b"TG.RELEASE", lease.as_bytes()]), "1");
    assert_eq!(first.call(&[b"TG.RELEASE", lease.as_bytes()]), "0");
    let throttle: [&[u8]; 5] = [b"CL.THROTTLE", b"ada", b"1", b"1", b"3600"];
    assert_eq!(first.call(&throttle), "[0 2 1 -1 3600]");
    assert!(second.call(&throttle).starts_with("[0 2 0 -1 "));
    assert!(first.call(&throttle).starts_with("[1 2 0 "));
}

/// A RESP connection.
pub(super) struct RespConnection {
    stream: BufReader<TcpStream>,
}

impl RespConnection {
    pub(super) fn to(server: &TestServer) -> RespConnection {
        let address = server.resp().strip_prefix("redis://").expect("an address");
        RespConnection { stream: BufReader::new(TcpStream::connect(address).expect("it listens")) }
    }

    /// Sends a command and returns its reply; arrays are shown in brackets.
    #[track_caller]
    pub(super) fn call(&mut self, words: &[&[u8]]) -> String {
        let mut command = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            command.extend(format!("${}\r\n", word.len()).bytes());
            command.extend(*word);
            command.extend(b"\r\n");
        }
        self.stream.get_mut().write_all(&command).expect("it listens");
        self.reply()
    }

    fn reply(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("a reply");
        let line = line.trim_end();
        let (kind, rest) = line.split_at(1);
        match kind {
            "*" => {
                let count: usize = rest.parse().expect("a number");
                let values: Vec<String> = (0..count).map(|_| self.reply()).collect();
                format!("[{}]", values.join(" "))
            }
            "$" => {
                let mut text = vec![0; rest.parse::<usize>().expect("a length") + 2];
                self.stream.read_exact(&mut text).expect("a text");
                String::from_utf8_lossy(&text[..text.len() - 2]).into_owned()
            }
            _ => rest.to_owned(),
        }
    }
}
