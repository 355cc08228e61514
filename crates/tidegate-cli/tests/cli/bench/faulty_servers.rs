//! Servers that do wrong: each verdict must be able to be a bad one.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use crate::run;

const GRANT: &str = r#"{"allowed":true,"lease":null,"degraded":false}"#;

/// How a server answers that is no Tidegate: to an ask, and to the question what it has counted, knowing how many were asked.
#[derive(Clone, Copy)]
struct Wrong {
    ask: fn(asked: u64) -> (u16, &'static str),
    /// `None` if it cannot say.
    counted: fn(asked: u64) -> Option<u64>,
}

/// What it remembers.
#[derive(Default)]
struct Memory {
    /// How often it was asked about the limit that is there now.
    asked: AtomicU64,
    made: AtomicU64,
    removed: AtomicU64,
}

/// A server that answers so, until the test is over.
fn serve(wrong: Wrong) -> (String, Arc<Memory>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let memory = Arc::new(Memory::default());
    let remembered = Arc::clone(&memory);
    std::thread::spawn(move || {
        for caller in listener.incoming().map_while(Result::ok) {
            let memory = Arc::clone(&memory);
            std::thread::spawn(move || converse(caller, wrong, &memory));
        }
    });
    (url, remembered)
}

fn converse(mut caller: TcpStream, wrong: Wrong, memory: &Memory) {
    let mut heard = Vec::new();
    while let Some(request) = request(&mut caller, &mut heard) {
        let (status, body) = answer(&request, wrong, memory);
        let answer = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        if caller.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

fn answer(request: &str, wrong: Wrong, memory: &Memory) -> (u16, String) {
    let path = request.split(' ').take(2).collect::<Vec<_>>().join(" ");
    match &*path {
        "POST /v1/acquire" => {
            let (status, body) = (wrong.ask)(memory.asked.fetch_add(1, SeqCst) + 1);
            (status, body.to_owned())
        }
        "POST /v1/limits" => {
            memory.asked.store(0, SeqCst);
            memory.made.fetch_add(1, SeqCst);
            (201, "{}".to_owned())
        }
        usage if usage.ends_with("/usage") => match (wrong.counted)(memory.asked.load(SeqCst)) {
            Some(counted) => {
                let items = format!(r#"[{{"item":"all/total","current_count":{counted}}}]"#);
                (200, format!(r#"{{"count":{counted},"policy_status":{items}}}"#))
            }
            None => (500, "no idea".to_owned()),
        },
        other => {
            memory.removed.fetch_add(u64::from(other.starts_with("DELETE ")), SeqCst);
            (200, "{}".to_owned())
        }
    }
}

/// The next request, as text; `None` if there are no more.
fn request(caller: &mut TcpStream, heard: &mut Vec<u8>) -> Option<String> {
    loop {
        let text = String::from_utf8_lossy(heard).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().filter_map(|line| line.split_once(": "));
            let mut length = length.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
            let length = length.next().map_or(0, |(_, length)| length.parse::<usize>().expect("a length"));
            if body.len() >= length {
                heard.drain(..head.len() + 4 + length);
                return Some(text);
            }
        }
        let mut piece = [0; 4096];
        let length = caller.read(&mut piece).ok().filter(|length| *length > 0)?;
        heard.extend_from_slice(&piece[..length]);
    }
}

/// What is told about it.
fn told(wrong: Wrong) -> (Option<i32>, String, String) {
    let (url, memory) = serve(wrong);
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
    let (made, removed) = (memory.made.load(SeqCst), memory.removed.load(SeqCst));
    assert!(made > 0 && made == removed, "{made} limits were made, and {removed} removed");
    (run.code, run.out, run.err)
}

#[test]
fn a_server_that_grants_everything_has_oversold() {
    let (code, out, err) = told(Wrong { ask: |_| (200, GRANT), counted: Some });
    assert_eq!(code, Some(1), "{out}{err}");
    assert!(out.contains("ABOVE THE LIMIT"), "{out}");
    assert!(err.contains("over-admission"), "{err}");
}

#[test]
fn a_server_that_counts_less_than_it_grants_is_found_out() {
    let first = |asked| (200, if asked == 1 { GRANT } else { r#"{"allowed":false}"# });
    let (code, out, err) = told(Wrong { ask: first, counted: |_| Some(0) });
    assert_eq!(code, Some(1), "{out}{err}");
    assert!(out.contains("0 failures") && out.contains("The server's count is missing 2 grants"), "{out}");
}

#[test]
fn a_server_that_charges_without_granting_is_found_out() {
    let (code, out, err) = told(Wrong { ask: |_| (200, r#"{"allowed":false}"#), counted: |_| Some(1) });
    assert_eq!(code, Some(1), "{out}{err}");
    assert!(out.contains("The server has counted 2 units without a grant."), "{out}");
}

/// Document 004: whoever loses a race for the same record is sent away with an error.
#[test]
fn a_server_that_fails_every_other_question_has_half_the_success() {
    let every_other = |asked| {
        if asked % 2 == 0 {
            (503, "-13104: somebody else was quicker")
        } else {
            (200, r#"{"allowed":false}"#)
        }
    };
    let (code, out, err) = told(Wrong { ask: every_other, counted: |_| Some(0) });
    assert_eq!(code, Some(1), "{out}{err}");
    let success = out.lines().nth(1).and_then(|row| row.split_whitespace().nth(2)).expect("a row");
    // Of an odd number of questions one more has succeeded than failed.
    let success: f64 = success.parse().expect("a number");
    assert!((50.0..75.0).contains(&success), "{out}");
    assert!(out.contains(" x status 503: -13104: somebody else was quicker"), "{out}");
}

#[test]
fn a_server_that_cannot_say_what_it_has_counted_is_not_believed() {
    let (code, out, err) = told(Wrong { ask: |_| (200, r#"{"allowed":false}"#), counted: |_| None });
    assert_eq!(code, Some(1), "{out}{err}");
    assert!(out.contains("could not be read, and was not compared"), "{out}");
    assert!(err.contains("answered with status 500"), "{err}");
}
