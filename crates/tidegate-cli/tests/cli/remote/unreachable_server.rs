//! Servers that do not answer, or are not Tidegate.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread::JoinHandle;

use super::TestServer;
use crate::{example, feed, run, tidegate};

/// A server that gives this reply to the first request. Returns its URL and the received request.
fn reply_once(answer: &'static str) -> (String, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let bytes_received = std::thread::spawn(move || {
        let (mut caller, _) = listener.accept().expect("a client connects");
        let mut request_bytes = Vec::new();
        let mut piece = [0; 4096];
        while !is_whole(&request_bytes) {
            let length = caller.read(&mut piece).expect("a request");
            assert!(length > 0, "a request has an end");
            request_bytes.extend_from_slice(&piece[..length]);
        }
        caller.write_all(answer.as_bytes()).expect("the caller listens");
        String::from_utf8(request_bytes).expect("text")
    });
    (url, bytes_received)
}

/// Whether a request has its head and its whole body.
fn is_whole(request_bytes: &[u8]) -> bool {
    let request_bytes = String::from_utf8_lossy(request_bytes);
    let Some((head, body)) = request_bytes.split_once("\r\n\r\n") else { return false };
    let fields = head.lines().filter_map(|line| line.split_once(": "));
    let mut length =
        fields.filter(|(name, _)| name.eq_ignore_ascii_case("content-length")).map(|(_, length)| length);
    body.len() >= length.next_back().map_or(0, |length| length.parse().expect("a length"))
}

#[test]
fn unreachable_server_is_exit_code_4_with_advice() {
    // A port that was free a moment ago.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    drop(listener);
    for args in
        [&["limit", "list"][..], &["acquire", "login", "ada"], &["release", "x"], &["limit", "delete", "x"]]
    {
        let output = run(&[args, &["--server", &url]].concat(), "").failed(4);
        assert!(output.starts_with(&format!("cannot reach {url}: ")), "{output}");
        assert!(
            output.contains(
                "is 'tidegate serve' running there? Otherwise give --server URL or set TIDEGATE_SERVER"
            ),
            "{output}"
        );
    }
    let three = example("spring-sale/tidegate.yaml");
    let output = run(&["limit", "add", &three, "--server", &url], "").failed(4);
    assert_eq!(output.lines().count(), 2, "{output}");
}

#[test]
fn silent_server_times_out() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let output = run(&["acquire", "login", "ada", "--server", &url, "--timeout", "50ms"], "").failed(4);
    assert!(output.contains("did not answer within 50ms; --timeout sets a longer time"), "{output}");
    assert!(output.contains("the request may have been executed"), "{output}");
    let output = run(&["limit", "list", "--server", &url, "--timeout", "50ms"], "").failed(4);
    assert!(!output.contains("may have been executed"), "{output}");
}

#[test]
fn wait_extends_the_timeout() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let args = ["acquire", "login", "--server", &url, "--timeout", "50ms", "--wait", "100ms"];
    assert!(run(&args, "").failed(4).contains("did not answer within 150ms"));
}

#[test]
fn all_arguments_are_sent() {
    const GRANTED: &str = "HTTP/1.1 200 OK\r\nContent-Length: 109\r\n\r\n{\"allowed\":true,\"lease\":null,\
                           \"binding\":null,\"wait\":null,\"retry_after_ms\":null,\"degraded\":false,\"readings\":[]}";
    let asked = |args: &[&str]| {
        let (url, bytes_received) = reply_once(GRANTED);
        run(&[args, &["--server", &url]].concat(), "").done();
        let bytes_received = bytes_received.join().expect("it was asked");
        let (head, body) = bytes_received.split_once("\r\n\r\n").expect("a body");
        let line = head.lines().next().expect("a line").to_owned();
        (line, serde_json::from_str::<serde_json::Value>(body).expect("JSON"))
    };
    let options = ["--count", "3", "--wait", "5s", "--hold", "--ttl", "1m", "--request-id", "r"];
    let (line, body) = asked(&[&["acquire", "a/b", "k"], &options[..]].concat());
    assert_eq!(line, "POST /v1/acquire HTTP/1.1");
    let meant = serde_json::json!({
        "limit_id": "a/b", "limit_key": "k", "count": 3, "max_wait_ms": 5000, "hold": true, "ttl_ms": 60000, "request_id": "r"
    });
    assert_eq!(body, meant);

    let (line, body) = asked(&["peek", "--ask", "limit=a,count=2,key=k", "--ask", "limit=b"]);
    assert_eq!(line, "POST /v1/peek HTTP/1.1");
    let asks =
        serde_json::json!([{"limit_id": "a", "limit_key": "k", "count": 2}, {"limit_id": "b", "count": 1}]);
    assert_eq!(body, serde_json::json!({"asks": asks}));
}

#[test]
fn flag_overrides_environment() {
    let serving = TestServer::start();
    let mut command = tidegate(&["limit", "list", "--json", "--server", serving.url()]);
    feed(command.env("TIDEGATE_SERVER", "http://127.0.0.1:1"), "").done();
    let output = feed(tidegate(&["limit", "list"]).env("TIDEGATE_SERVER", "localhost:7700"), "").failed(2);
    assert!(
        output.starts_with("TIDEGATE_SERVER must ") && output.contains("write http://localhost:7700"),
        "{output}"
    );
    run(&["limit", "list", "--server", "ftp://localhost"], "").failed(2);
}

#[test]
fn proxy_is_ignored_for_loopback() {
    let serving = TestServer::start();
    let mut command = tidegate(&["limit", "list", "--json", "--server", serving.url()]);
    feed(command.env("http_proxy", "http://127.0.0.1:1").env("ALL_PROXY", "http://127.0.0.1:1"), "").done();
}

#[test]
fn foreign_server_is_recognized() {
    let (url, bytes_received) = reply_once("HTTP/1.1 404 Not Found\r\nContent-Length: 6\r\n\r\n<html>");
    let output = run(&["limit", "list", "--server", &url], "").failed(1);
    assert!(
        output.contains("answered with status 404, but not as a Tidegate server; is --server right?"),
        "{output}"
    );
    let bytes_received = bytes_received.join().expect("it was asked");
    assert!(bytes_received.starts_with("GET /v1/limits?limit="), "{bytes_received}");
    assert!(bytes_received.to_ascii_lowercase().contains("\r\nuser-agent: tidegate/"), "{bytes_received}");

    let (url, _) = reply_once(
        "HTTP/1.1 308 Permanent Redirect\r\nLocation: https://there/\r\nContent-Length: 0\r\n\r\n",
    );
    let output = run(&["limit", "list", "--server", &url], "").failed(1);
    assert!(output.contains("points to https://there/, give that as --server"), "{output}");

    let (url, _) = reply_once("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}");
    assert!(run(&["limit", "list", "--server", &url], "").failed(1).contains("is it a Tidegate server?"));

    let (url, _) = reply_once("-ERR unknown command\r\n");
    let output = run(&["limit", "list", "--server", &url], "").failed(4);
    assert!(output.contains("is not an HTTP server"), "{output}");
}

#[test]
fn token_is_sent_in_the_authorization_header() {
    let (url, bytes_received) =
        reply_once("HTTP/1.1 200 OK\r\nContent-Length: 25\r\n\r\n{\"limits\":[],\"next\":null}");
    feed(tidegate(&["limit", "list", "--json", "--server", &url]).env("TIDEGATE_TOKEN", " tg_1 \n"), "")
        .done();
    let bytes_received = bytes_received.join().expect("it was asked").to_ascii_lowercase();
    assert!(bytes_received.contains("\r\nauthorization: bearer tg_1\r\n"), "{bytes_received}");
}
