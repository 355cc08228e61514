//! Requests in requests: a body is never taken for a request, whoever read the head before us.
//!
//! Behind a proxy that understands a head otherwise than we do, what it takes for the body of one client's request could be answered
//! as another client's. So whatever can be understood in two ways is answered once, with 400 or by its one meaning, and the connection
//! ends there or goes on behind the whole message.

use crate::serve::stage::{Stage, first_answer, wide};

/// Would be charged if it were taken for a request.
const HIDDEN: &str = "POST /v1/acquire HTTP/1.1\r\nHost: h\r\nContent-Length: 38\r\n\r\n{\"limit_id\":\"twice\",\"limit_key\":\"eve\"}";

/// Comes last, and ends the connection.
const LAST: &str = "GET /nowhere HTTP/1.1\r\nConnection: close\r\n\r\n";

/// The statuses of everything that is answered to this and to what comes last.
fn statuses(stage: &Stage, bytes: &str) -> Vec<u16> {
    let mut client = stage.http();
    client.shout(bytes.as_bytes());
    client.shout(LAST.as_bytes());
    let rest = client.rest();
    let (mut rest, mut statuses) = (&rest[..], Vec::new());
    while !rest.is_empty() {
        // What HEAD is answered says a length, and has none.
        let is_head = statuses.is_empty() && bytes.starts_with("HEAD");
        let (answer, length) = first_answer(rest, is_head).expect("a whole answer");
        statuses.extend(Some(answer.status).filter(|status| *status != 100));
        rest = &rest[length..];
    }
    statuses
}

#[test]
fn a_request_that_hides_in_a_body_is_never_answered() {
    let stage = Stage::new(wide());
    let length = HIDDEN.len();
    for head in [
        format!("Content-Length: {length}\r\nContent-Length: 0\r\n"),
        format!("Content-Length: 0\r\nContent-Length: {length}\r\n"),
        format!("Content-Length: {length}\r\nContent-Length: {length}\r\n"),
        format!("Content-Length: {length}, 0\r\n"),
        format!("Content-Length: +{length}\r\n"),
        format!("Content-Length: 0{length}\r\n"),
        format!("Content-Length : {length}\r\n"),
        format!("Content-Length: {length}\r\nTransfer-Encoding: identity\r\n"),
        format!("Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n"),
        format!("Content-Length: {length}\r\nTransfer-Encoding: xchunked\r\n"),
        format!("Content-Length: {length}\r\nTransfer-Encoding : chunked\r\n"),
        format!("Content-Length: {length}\r\n Transfer-Encoding: chunked\r\n"),
        format!("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\nContent-Length: {length}\r\n"),
        "Transfer-Encoding: chunked, identity\r\n".to_owned(),
        format!("Content-Length: {length}\r\nExpect: 100-continue\r\n"),
        format!("Content-Length: {length}\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n"),
        format!("Content-Length: {length}\r\nConnection: close\r\n"),
        format!("Content-Length: {length}\r\n"),
    ] {
        for line in ["POST /v1/peek", "GET /healthz", "HEAD /healthz", "DELETE /v1/limits/no"] {
            let statuses = statuses(&stage, &format!("{line} HTTP/1.1\r\nHost: h\r\n{head}\r\n{HIDDEN}"));
            // The connection goes on behind the body, or ends.
            assert!(matches!(statuses[..], [_] | [_, 404]), "{line} {head}: {statuses:?}");
        }
    }
    assert_eq!(
        stage.resp().tell("TG.PEEK twice eve"),
        "[1, 2, 2, -1, -1, '', '']",
        "nothing was ever charged"
    );
    stage.is_well();
    stage.end();
}

#[test]
fn chunks_and_a_length_together_are_one_request_or_none() {
    let stage = Stage::new(wide());
    let request = format!(
        "POST /v1/peek HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{HIDDEN}"
    );
    // By its chunks the message ends, and what follows would be a request of its own; by its length it would not.
    assert_eq!(statuses(&stage, &request), [400], "what can be read in two ways is not read on");
    assert_eq!(stage.resp().tell("TG.PEEK twice eve"), "[1, 2, 2, -1, -1, '', '']");
    stage.end();
}

#[test]
fn what_follows_a_whole_request_is_the_next_one() {
    let stage = Stage::new(wide());
    let request =
        format!("POST /v1/peek HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n{HIDDEN}");
    assert_eq!(statuses(&stage, &request), [400, 200, 404], "these are two, however they were sent");
    assert_eq!(stage.resp().tell("TG.PEEK twice eve"), "[1, 2, 1, -1, -1, '', '']");
    stage.end();
}
