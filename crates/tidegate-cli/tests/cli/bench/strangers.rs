//! Servers that do wrong: each verdict must be able to be a bad one.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::run;

const GRANT: &str = r#"{"allowed":true,"lease":null,"degraded":false}"#;

/// How a server answers that is no Tidegate: to an ask, and to the question what it has counted, knowing how many were asked.
#[derive(Clone, Copy)]
struct Wrong {
    ask: fn(asked: u64) -> (u16, &'static str),
    counted: fn(asked: u64) -> u64,
}

/// A server that answers so, until the test is over.
fn serve(wrong: Wrong) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    // How many were asked about the limit that is there now.
    let asked = Arc::new(AtomicU64::new(0));
    std::thread::spawn(move || {
        for caller in listener.incoming().map_while(Result::ok) {
            let asked = Arc::clone(&asked);
            std::thread::spawn(move || converse(caller, wrong, &asked));
        }
    });
    url
}

fn converse(mut caller: TcpStream, wrong: Wrong, asked: &AtomicU64) {
    let mut heard = Vec::new();
    while let Some(request) = request(&mut caller, &mut heard) {
        let (status, body) = if request.starts_with("POST /v1/acquire") {
            let (status, body) = (wrong.ask)(asked.fetch_add(1, Ordering::SeqCst) + 1);
            (status, body.to_owned())
        } else if request.starts_with("GET ") {
            let counted = (wrong.counted)(asked.load(Ordering::SeqCst));
            let status = format!(r#"[{{"item":"all/total","current_count":{counted}}}]"#);
            (200, format!(r#"{{"count":{counted},"policy_status":{status}}}"#))
        } else {
            asked.store(0, Ordering::SeqCst);
            (200, "{}".to_owned())
        };
        let answer = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        if caller.write_all(answer.as_bytes()).is_err() {
            return;
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
    let url = serve(wrong);
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
    (run.code, run.out, run.err)
}

#[test]
fn a_server_that_grants_everything_has_oversold() {
    let (code, out, err) = told(Wrong { ask: |_| (200, GRANT), counted: |asked| asked });
    assert_eq!(code, Some(1), "{out}{err}");
    assert!(out.contains("ABOVE THE LIMIT: more was sold than there was"), "{out}");
    assert!(err.contains("over-admission"), "{err}");
}

#[test]
fn a_server_that_counts_less_than_it_grants_is_found_out() {
    let first = |asked| (200, if asked == 1 { GRANT } else { r#"{"allowed":false}"# });
    let (code, out, err) = told(Wrong { ask: first, counted: |_| 0 });
    assert_eq!(code, Some(1), "{out}{err}");
    assert!(out.contains("0 failures") && out.contains("The server has not counted 2 grants"), "{out}");
}

#[test]
fn a_server_that_charges_without_granting_is_found_out() {
    let (code, out, err) = told(Wrong { ask: |_| (200, r#"{"allowed":false}"#), counted: |_| 1 });
    assert_eq!(code, Some(1), "{out}{err}");
    assert!(out.contains("The server has counted 2 units that it granted nobody."), "{out}");
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
    let (code, out, err) = told(Wrong { ask: every_other, counted: |_| 0 });
    assert_eq!(code, Some(1), "{out}{err}");
    let success = out.lines().nth(1).and_then(|row| row.split_whitespace().nth(2)).expect("a row");
    // Of an odd number of questions one more has succeeded than failed.
    let success: f64 = success.parse().expect("a number");
    assert!((50.0..75.0).contains(&success), "{out}");
    assert!(out.contains(" x status 503: -13104: somebody else was quicker"), "{out}");
}
