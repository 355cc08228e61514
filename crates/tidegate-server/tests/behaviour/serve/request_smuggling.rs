//! Request smuggling: a body is never parsed as a request.
//!
//! A proxy that parses a head differently could take one client's body for another client's request. So an ambiguous message is answered
//! once, with 400 or by its only valid meaning, and the connection ends there or continues after the
//! whole message.

use crate::serve::fixture::{ServerFixture, first_answer, wide};

/// Would be charged if it were parsed as a request.
const HIDDEN: &str = "POST /v1/acquire HTTP/1.1\r\nHost: h\r\nContent-Length: 38\r\n\r\n{\"limit_id\":\"twice\",\"limit_key\":\"eve\"}";

/// The last request; it ends the connection.
const LAST: &str = "GET /nowhere HTTP/1.1\r\nConnection: close\r\n\r\n";

/// The statuses of all responses to this and to the last request.
fn statuses(fixture: &ServerFixture, bytes: &str) -> Vec<u16> {
    let mut client = fixture.http();
    client.shout(bytes.as_bytes());
    client.shout(LAST.as_bytes());
    let rest = client.rest();
    let (mut rest, mut statuses) = (&rest[..], Vec::new());
    while !rest.is_empty() {
        // A response to HEAD has a content-length and no body.
        let is_head = statuses.is_empty() && bytes.starts_with("HEAD");
        let (answer, length) = first_answer(rest, is_head).expect("a whole answer");
        statuses.extend(Some(answer.status).filter(|status| *status != 100));
        rest = &rest[length..];
    }
    statuses
}

#[test]
fn request_hidden_in_a_body_is_never_answered() {
    let fixture = ServerFixture::new(wide());
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
            let statuses = statuses(&fixture, &format!("{line} HTTP/1.1\r\nHost: h\r\n{head}\r\n{HIDDEN}"));
            // The connection continues after the body, or ends.
            assert!(matches!(statuses[..], [_] | [_, 404]), "{line} {head}: {statuses:?}");
        }
    }
    assert_eq!(
        fixture.resp().command("TG.PEEK twice eve"),
        "[1, 2, 2, -1, -1, '', '']",
        "nothing was ever charged"
    );
    fixture.is_well();
    fixture.end();
}

#[test]
fn chunked_body_with_length_is_one_request_or_none() {
    let fixture = ServerFixture::new(wide());
    let request = format!(
        "POST /v1/peek HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{HIDDEN}"
    );
    // By its chunks the message ends before the hidden request; by its length it contains it.
    assert_eq!(statuses(&fixture, &request), [400], "what can be read in two ways is not read on");
    assert_eq!(fixture.resp().command("TG.PEEK twice eve"), "[1, 2, 2, -1, -1, '', '']");
    fixture.end();
}

#[test]
fn next_request_follows_a_whole_one() {
    let fixture = ServerFixture::new(wide());
    let request =
        format!("POST /v1/peek HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n{HIDDEN}");
    assert_eq!(statuses(&fixture, &request), [400, 200, 404], "these are two, however they were sent");
    assert_eq!(fixture.resp().command("TG.PEEK twice eve"), "[1, 2, 1, -1, -1, '', '']");
    fixture.end();
}
