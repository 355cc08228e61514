//! When there is no answer, or none from a Tidegate.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread::JoinHandle;

use super::Serving;
use crate::{example, feed, run, tidegate};

/// Somebody who answers the first request with this, and hears what was said.
fn somebody(answer: &'static str) -> (String, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let heard = std::thread::spawn(move || {
        let (mut caller, _) = listener.accept().expect("somebody calls");
        let mut said = Vec::new();
        let mut piece = [0; 4096];
        while !is_whole(&said) {
            let length = caller.read(&mut piece).expect("a request");
            assert!(length > 0, "a request has an end");
            said.extend_from_slice(&piece[..length]);
        }
        caller.write_all(answer.as_bytes()).expect("the caller listens");
        String::from_utf8(said).expect("text")
    });
    (url, heard)
}

/// Whether a request has its head, and as much of a body as that says.
fn is_whole(said: &[u8]) -> bool {
    let said = String::from_utf8_lossy(said);
    let Some((head, body)) = said.split_once("\r\n\r\n") else { return false };
    let fields = head.lines().filter_map(|line| line.split_once(": "));
    let mut length =
        fields.filter(|(name, _)| name.eq_ignore_ascii_case("content-length")).map(|(_, length)| length);
    body.len() >= length.next_back().map_or(0, |length| length.parse().expect("a length"))
}

#[test]
fn a_server_that_is_not_there_is_exit_code_4_with_advice() {
    // A port that was free just now and that nobody listens at.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    drop(listener);
    for args in
        [&["limit", "list"][..], &["acquire", "login", "ada"], &["release", "x"], &["limit", "delete", "x"]]
    {
        let told = run(&[args, &["--server", &url]].concat(), "").failed(4);
        assert!(told.starts_with(&format!("cannot reach {url}: ")), "{told}");
        assert!(
            told.contains("is 'tidegate serve' running there? Otherwise give --server URL or set TIDEGATE_SERVER"),
            "{told}"
        );
    }
    let three = example("spring-sale/tidegate.yaml");
    let told = run(&["limit", "add", &three, "--server", &url], "").failed(4);
    assert_eq!(told.lines().count(), 2, "{told}");
}

#[test]
fn a_server_that_stays_silent_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let told = run(&["acquire", "login", "ada", "--server", &url, "--timeout", "50ms"], "").failed(4);
    assert!(told.contains("did not answer within 50ms; --timeout sets a longer time"), "{told}");
    assert!(told.contains("the request may have been executed"), "{told}");
    let told = run(&["limit", "list", "--server", &url, "--timeout", "50ms"], "").failed(4);
    assert!(!told.contains("may have been executed"), "{told}");
}

#[test]
fn whoever_asks_to_wait_is_given_longer() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let args = ["acquire", "login", "--server", &url, "--timeout", "50ms", "--wait", "100ms"];
    assert!(run(&args, "").failed(4).contains("did not answer within 150ms"));
}

#[test]
fn everything_that_was_typed_is_asked() {
    const GRANTED: &str = "HTTP/1.1 200 OK\r\nContent-Length: 109\r\n\r\n{\"allowed\":true,\"lease\":null,\
                           \"binding\":null,\"wait\":null,\"retry_after_ms\":null,\"degraded\":false,\"readings\":[]}";
    let asked = |args: &[&str]| {
        let (url, heard) = somebody(GRANTED);
        run(&[args, &["--server", &url]].concat(), "").done();
        let heard = heard.join().expect("it was asked");
        let (head, body) = heard.split_once("\r\n\r\n").expect("a body");
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
fn the_flag_goes_before_the_environment() {
    let serving = Serving::start();
    let mut command = tidegate(&["limit", "list", "--json", "--server", serving.url()]);
    feed(command.env("TIDEGATE_SERVER", "http://127.0.0.1:1"), "").done();
    let told = feed(tidegate(&["limit", "list"]).env("TIDEGATE_SERVER", "localhost:7700"), "").failed(2);
    assert!(
        told.starts_with("TIDEGATE_SERVER must ") && told.contains("write http://localhost:7700"),
        "{told}"
    );
    run(&["limit", "list", "--server", "ftp://localhost"], "").failed(2);
}

#[test]
fn a_proxy_is_not_asked_for_this_machine() {
    let serving = Serving::start();
    let mut command = tidegate(&["limit", "list", "--json", "--server", serving.url()]);
    feed(command.env("http_proxy", "http://127.0.0.1:1").env("ALL_PROXY", "http://127.0.0.1:1"), "").done();
}

#[test]
fn strangers_are_told_from_a_tidegate() {
    let (url, heard) = somebody("HTTP/1.1 404 Not Found\r\nContent-Length: 6\r\n\r\n<html>");
    let told = run(&["limit", "list", "--server", &url], "").failed(1);
    assert!(
        told.contains("answered with status 404, but not as a Tidegate server; is --server right?"),
        "{told}"
    );
    let heard = heard.join().expect("it was asked");
    assert!(heard.starts_with("GET /v1/limits?limit="), "{heard}");
    assert!(heard.to_ascii_lowercase().contains("\r\nuser-agent: tidegate/"), "{heard}");

    let (url, _) =
        somebody("HTTP/1.1 308 Permanent Redirect\r\nLocation: https://there/\r\nContent-Length: 0\r\n\r\n");
    let told = run(&["limit", "list", "--server", &url], "").failed(1);
    assert!(told.contains("points to https://there/, give that as --server"), "{told}");

    let (url, _) = somebody("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}");
    assert!(run(&["limit", "list", "--server", &url], "").failed(1).contains("is it a Tidegate?"));

    let (url, _) = somebody("-ERR unknown command\r\n");
    let told = run(&["limit", "list", "--server", &url], "").failed(4);
    assert!(told.contains("is not an HTTP server"), "{told}");
}

#[test]
fn a_token_goes_where_only_the_server_sees_it() {
    let (url, heard) = somebody("HTTP/1.1 200 OK\r\nContent-Length: 25\r\n\r\n{\"limits\":[],\"next\":null}");
    feed(tidegate(&["limit", "list", "--json", "--server", &url]).env("TIDEGATE_TOKEN", " tg_1 \n"), "")
        .done();
    let heard = heard.join().expect("it was asked").to_ascii_lowercase();
    assert!(heard.contains("\r\nauthorization: bearer tg_1\r\n"), "{heard}");
}
