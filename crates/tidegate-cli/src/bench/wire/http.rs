//! HTTP/1.1 for `POST /v1/acquire`: persistent connections, one request at a time.

use std::io::Write;

use memchr::memmem;

use super::{BenchTarget, WireAsk, WireDecision, WireReply, quoted};

/// Maximum number of header fields in a reply.
const MOST_FIELDS: usize = 64;
/// Maximum length of a reply's head.
const LONGEST_HEAD: usize = 64 << 10;
/// Maximum length of a reply's body.
const LONGEST_BODY: usize = 1 << 20;

/// The constant part of every request.
#[derive(Debug, Clone)]
pub(in crate::bench) struct BenchRequestHead(String);

impl BenchRequestHead {
    /// The head for this server and token.
    pub(super) fn new(target: &BenchTarget, token: Option<&str>) -> BenchRequestHead {
        let BenchTarget { host, port, path, .. } = target;
        let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        let token = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
        BenchRequestHead(format!(
            "POST {path}/v1/acquire HTTP/1.1\r\nHost: {host}:{port}\r\nUser-Agent: tidegate-bench\r\n{token}\
             Content-Type: application/json\r\nContent-Length: "
        ))
    }
}

/// Encodes a request. The tool chooses limits, keys and ids; none of them needs escaping.
pub(super) fn encode_ask(
    out: &mut Vec<u8>,
    BenchRequestHead(head): &BenchRequestHead,
    WireAsk { limit, key, request_id }: WireAsk<'_>,
) {
    const FIXED: usize = r#"{"limit_id":"","limit_key":""}"#.len();
    const WITH_ID: usize = r#","request_id":"""#.len();
    let length = FIXED + limit.len() + key.len() + request_id.map_or(0, |id| WITH_ID + id.len());
    out.extend_from_slice(head.as_bytes());
    // Writing to memory does not fail.
    let _written = write!(out, "{length}\r\n\r\n{{\"limit_id\":\"{limit}\",\"limit_key\":\"{key}\"");
    if let Some(id) = request_id {
        let _written = write!(out, ",\"request_id\":\"{id}\"");
    }
    out.push(b'}');
}

/// Parses the first reply: its length and content, or `None` if it is incomplete.
pub(super) fn parse_reply(bytes: &[u8]) -> Result<Option<(usize, WireReply)>, String> {
    let mut fields = [httparse::EMPTY_HEADER; MOST_FIELDS];
    let mut head = httparse::Response::new(&mut fields);
    let begin = match head.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if bytes.len() <= LONGEST_HEAD => return Ok(None),
        _ => return Err(format!("not HTTP: {}", quoted(bytes))),
    };
    let length = head.headers.iter().find(|field| field.name.eq_ignore_ascii_case("content-length"));
    let length = length.and_then(|field| std::str::from_utf8(field.value).ok()?.trim().parse::<usize>().ok());
    let Some(length) = length.filter(|length| *length <= LONGEST_BODY) else {
        return Err("a reply without a valid Content-Length".to_owned());
    };
    let Some(body) = bytes.get(begin..begin + length) else { return Ok(None) };
    let status = head.code.unwrap_or_default();
    let reply =
        if status == 200 { decision(body) } else { Err(format!("status {status}: {}", quoted(body))) };
    Ok(Some((begin + length, reply)))
}

/// Parses a decision. Tidegate writes `allowed` first; any other body is an error.
fn decision(body: &[u8]) -> WireReply {
    let allowed = match body {
        _ if body.starts_with(br#"{"allowed":true"#) => true,
        _ if body.starts_with(br#"{"allowed":false"#) => false,
        _ => return Err(format!("a reply that is not a decision: {}", quoted(body))),
    };
    if memmem::find(body, br#""degraded":true"#).is_some() {
        return Err("degraded: the store did not answer".to_owned());
    }
    let lease = body.strip_prefix(br#"{"allowed":true,"lease":{"id":""#);
    let lease = lease.and_then(|rest| rest.split(|byte| *byte == b'"').next());
    Ok(WireDecision {
        allowed,
        lease: lease.and_then(|lease| std::str::from_utf8(lease).ok()).map(Into::into),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(status: u16, body: &str) -> Vec<u8> {
        format!("HTTP/1.1 {status} X\r\ncontent-type: a\r\nContent-Length: {}\r\n\r\n{body}", body.len())
            .into_bytes()
    }

    #[test]
    fn request_has_its_content_length() {
        let target = BenchTarget::parse("http://[::1]:80/tide").expect("a target");
        for (request_id, body) in [
            (None, r#"{"limit_id":"a","limit_key":"k"}"#),
            (Some("r1"), r#"{"limit_id":"a","limit_key":"k","request_id":"r1"}"#),
        ] {
            let mut out = Vec::new();
            encode_ask(
                &mut out,
                &BenchRequestHead::new(&target, Some("tg_1")),
                WireAsk { limit: "a", key: "k", request_id },
            );
            let text = String::from_utf8(out).expect("text");
            assert!(text.starts_with("POST /tide/v1/acquire HTTP/1.1\r\nHost: [::1]:80\r\n"), "{text}");
            assert!(text.contains("\r\nAuthorization: Bearer tg_1\r\n"), "{text}");
            assert!(text.ends_with(&format!("\r\nContent-Length: {}\r\n\r\n{body}", body.len())), "{text}");
        }
    }

    #[test]
    fn reply_is_parsed_from_any_fragments() {
        let grant = answered(200, r#"{"allowed":true,"lease":{"id":"l1","fence":1},"degraded":false}"#);
        let refusal = answered(200, r#"{"allowed":false,"lease":null,"degraded":false}"#);
        let both = [&grant[..], &refusal].concat();
        for length in 0..grant.len() {
            assert_eq!(parse_reply(&both[..length]), Ok(None), "{length}");
        }
        let granted = WireDecision { allowed: true, lease: Some("l1".into()) };
        assert_eq!(parse_reply(&both), Ok(Some((grant.len(), Ok(granted)))));
        let refused = WireDecision { allowed: false, lease: None };
        assert_eq!(parse_reply(&refusal), Ok(Some((refusal.len(), Ok(refused)))));
    }

    #[test]
    fn reply_without_decision_is_an_error() {
        for (answer, why) in [
            (answered(503, r#"{"code":"store_unavailable"}"#), "status 503: "),
            (answered(200, "<html>"), "not a decision"),
            (answered(200, r#"{"allowed":true,"lease":null,"degraded":true}"#), "degraded"),
        ] {
            let (length, reply) = parse_reply(&answer).expect("HTTP").expect("whole");
            assert_eq!(length, answer.len());
            assert!(reply.as_ref().is_err_and(|message| message.contains(why)), "{reply:?}");
        }
        for nonsense in
            [&b"-ERR\r\n"[..], b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n"]
        {
            assert!(parse_reply(nonsense).is_err(), "{}", quoted(nonsense));
        }
    }
}
