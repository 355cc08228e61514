//! Faulty servers: every verdict must be able to fail.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use crate::run;

const GRANT: &str = r#"{"allowed":true,"lease":null,"degraded":false}"#;

/// Replies of a faulty server to an ask and to a usage request, given the number of asks so far.
#[derive(Clone, Copy)]
struct FaultyReplies {
    ask: fn(asked: u64) -> (u16, &'static str),
    /// `None` for an error reply.
    counted: fn(asked: u64) -> Option<u64>,
}

/// State of the faulty server.
#[derive(Default)]
struct FaultyServerState {
    /// Asks about the current limit.
    asked: AtomicU64,
    made: AtomicU64,
    removed: AtomicU64,
}

/// Starts a faulty server that runs until the test ends.
fn start_server(replies: FaultyReplies) -> (String, Arc<FaultyServerState>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let state = Arc::new(FaultyServerState::default());
    let remembered = Arc::clone(&state);
    std::thread::spawn(move || {
        for caller in listener.incoming().map_while(Result::ok) {
            let state = Arc::clone(&state);
            std::thread::spawn(move || serve_connection(caller, replies, &state));
        }
    });
    (url, remembered)
}

fn serve_connection(mut caller: TcpStream, replies: FaultyReplies, state: &FaultyServerState) {
    let mut received = Vec::new();
    while let Some(request) = request(&mut caller, &mut received) {
        let (status, body) = answer(&request, replies, state);
        let answer = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        if caller.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

fn answer(request: &str, replies: FaultyReplies, state: &FaultyServerState) -> (u16, String) {
    let path = request.split(' ').take(2).collect::<Vec<_>>().join(" ");
    match &*path {
        "POST /v1/acquire" => {
            let (status, body) = (replies.ask)(state.asked.fetch_add(1, SeqCst) + 1);
            (status, body.to_owned())
        }
        "POST /v1/limits" => {
            state.asked.store(0, SeqCst);
            state.made.fetch_add(1, SeqCst);
            (201, "{}".to_owned())
        }
        usage if usage.ends_with("/usage") => match (replies.counted)(state.asked.load(SeqCst)) {
            Some(counted) => {
                let items = format!(r#"[{{"item":"all/total","current_count":{counted}}}]"#);
                (200, format!(r#"{{"count":{counted},"policy_status":{items}}}"#))
            }
            None => (500, "no idea".to_owned()),
        },
        other => {
            state.removed.fetch_add(u64::from(other.starts_with("DELETE ")), SeqCst);
            (200, "{}".to_owned())
        }
    }
}

/// Reads the next request; `None` at the end.
fn request(caller: &mut TcpStream, received: &mut Vec<u8>) -> Option<String> {
    loop {
        let text = String::from_utf8_lossy(received).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().filter_map(|line| line.split_once(": "));
            let mut length = length.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
            let length = length.next().map_or(0, |(_, length)| length.parse::<usize>().expect("a length"));
            if body.len() >= length {
                received.drain(..head.len() + 4 + length);
                return Some(text);
            }
        }
        let mut piece = [0; 4096];
        let length = caller.read(&mut piece).ok().filter(|length| *length > 0)?;
        received.extend_from_slice(&piece[..length]);
    }
}

/// Runs a bench against a faulty server.
fn run_bench(replies: FaultyReplies) -> (Option<i32>, String, String) {
    let (url, state) = start_server(replies);
    let args = [
        "bench",
        "--server",
        &url,
        "--duration",
        "30ms",
        "--concurrency",
        "2",
        "--total",
        "10",
        "--per-key",
        "10",
    ];
    let run = run(&args, "");
    let (made, removed) = (state.made.load(SeqCst), state.removed.load(SeqCst));
    assert!(made > 0 && made == removed, "{made} limits were made, and {removed} removed");
    (run.code, run.out, run.err)
}

#[test]
fn server_that_grants_everything_is_over_the_limit() {
    let (code, out, err) = run_bench(FaultyReplies { ask: |_| (200, GRANT), counted: Some });
    assert_eq!(code, Some(1), "{out}{err}");
    assert!(out.contains("ABOVE THE LIMIT"), "{out}");
    assert!(err.contains("over-admission"), "{err}");
}

#[test]
fn server_that_counts_too_little_is_detected() {
    let first = |asked| (200, if asked == 1 { GRANT } else { r#"{"allowed":false}"# });
    let (code, out, err) = run_bench(FaultyReplies { ask: first, counted: |_| Some(0) });
    assert_eq!(code, Some(1), "{out}{err}");
    assert!(out.contains("0 failures") && out.contains("The server's count is missing 2 grants"), "{out}");
}

#[test]
fn server_that_charges_refusals_is_detected() {
    let (code, out, err) =
        run_bench(FaultyReplies { ask: |_| (200, r#"{"allowed":false}"#), counted: |_| Some(1) });
    assert_eq!(code, Some(1), "{out}{err}");
    assert!(out.contains("The server has counted 2 units without a grant."), "{out}");
}

/// A server that refuses lost races with an error.
#[test]
fn server_that_fails_every_other_request_has_half_the_success() {
    let every_other = |asked| {
        if asked % 2 == 0 { (503, "-13104: lost the race") } else { (200, r#"{"allowed":false}"#) }
    };
    let (code, out, err) = run_bench(FaultyReplies { ask: every_other, counted: |_| Some(0) });
    assert_eq!(code, Some(1), "{out}{err}");
    let success = out.lines().nth(1).and_then(|row| row.split_whitespace().nth(2)).expect("a row");
    // With an odd number of requests one more succeeds than fails.
    let success: f64 = success.parse().expect("a number");
    assert!((50.0..75.0).contains(&success), "{out}");
    assert!(out.contains(" x status 503: -13104: lost the race"), "{out}");
}

#[test]
fn server_without_usage_fails_the_verdict() {
    let (code, out, err) =
        run_bench(FaultyReplies { ask: |_| (200, r#"{"allowed":false}"#), counted: |_| None });
    assert_eq!(code, Some(1), "{out}{err}");
    assert!(out.contains("could not be read and were not compared"), "{out}");
    assert!(err.contains("answered with status 500"), "{err}");
}
