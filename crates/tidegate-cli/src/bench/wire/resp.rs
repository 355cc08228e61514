//! RESP for `TG.ACQUIRE`, `TG.RELEASE`, `TG.RENEW` and `AUTH`.

use std::io::Write;

use memchr::memchr;

use super::{WireAsk, WireDecision, WireReply, quoted};

/// Maximum length of a text: longer than any lease id.
const LONGEST_TEXT: i64 = 64 << 10;
/// Number of elements of a decision. The first is `allowed`, the last the lease id.
const FIELDS: usize = 7;

/// Encodes a request.
pub(super) fn encode_ask(out: &mut Vec<u8>, WireAsk { limit, key, request_id }: WireAsk<'_>) {
    match request_id {
        Some(id) => encode_command(out, &["TG.ACQUIRE", limit, key, "1", "REQ", id]),
        None => encode_command(out, &["TG.ACQUIRE", limit, key]),
    }
}

/// Encodes a command.
pub(in crate::bench) fn encode_command(out: &mut Vec<u8>, words: &[&str]) {
    // Writing to memory does not fail.
    let _written = write!(out, "*{}\r\n", words.len());
    for word in words {
        let _written = write!(out, "${}\r\n{word}\r\n", word.len());
    }
}

/// A RESP value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::bench) enum WireValue<'a> {
    Number(i64),
    Text(&'a [u8]),
    Nothing,
    Error(&'a [u8]),
    List(Vec<WireValue<'a>>),
}

/// Parses the first reply.
pub(super) fn parse_reply(bytes: &[u8]) -> Result<Option<(usize, WireReply)>, String> {
    let Some((value, length)) = parse_value(bytes)? else { return Ok(None) };
    let reply = match &value {
        WireValue::Error(why) => Err(quoted(why)),
        WireValue::List(fields) => {
            decision(fields).ok_or_else(|| "a reply that is not a decision".to_owned())
        }
        _ => Err("a reply that is not a decision".to_owned()),
    };
    Ok(Some((length, reply)))
}

fn decision(fields: &[WireValue<'_>]) -> Option<WireDecision> {
    let [WireValue::Number(allowed), .., WireValue::Text(lease)] = fields else { return None };
    let lease = std::str::from_utf8(lease).ok().filter(|lease| !lease.is_empty());
    (fields.len() == FIELDS).then(|| WireDecision { allowed: *allowed == 1, lease: lease.map(Into::into) })
}

/// Parses the first value: its content and length, or `None` if it is incomplete.
pub(in crate::bench) fn parse_value(bytes: &[u8]) -> Result<Option<(WireValue<'_>, usize)>, String> {
    let Some(end) = memchr(b'\n', bytes) else { return Ok(None) };
    let nonsense = || format!("not RESP: {}", quoted(bytes));
    let line = bytes[..end].strip_suffix(b"\r").ok_or_else(nonsense)?;
    let (kind, rest) = line.split_first().ok_or_else(nonsense)?;
    let number =
        || std::str::from_utf8(rest).ok().and_then(|text| text.parse::<i64>().ok()).ok_or_else(nonsense);
    let begin = end + 1;
    match kind {
        b':' => Ok(Some((WireValue::Number(number()?), begin))),
        b'+' => Ok(Some((WireValue::Text(rest), begin))),
        b'-' => Ok(Some((WireValue::Error(rest), begin))),
        b'_' => Ok(Some((WireValue::Nothing, begin))),
        b'$' | b'*' if number()? < 0 => Ok(Some((WireValue::Nothing, begin))),
        b'$' => {
            let length = Some(number()?).filter(|length| *length <= LONGEST_TEXT).ok_or_else(nonsense)?;
            let length = usize::try_from(length).map_err(|_| nonsense())?;
            let whole = begin + length + 2;
            Ok(bytes.get(begin..whole).map(|text| (WireValue::Text(&text[..length]), whole)))
        }
        b'*' => {
            let count =
                usize::try_from(number()?).ok().filter(|count| *count <= FIELDS).ok_or_else(nonsense)?;
            let (mut values, mut at) = (Vec::with_capacity(count), begin);
            for _ in 0..count {
                // No expected reply has nested lists.
                if bytes.get(at) == Some(&b'*') {
                    return Err(nonsense());
                }
                let Some((each, length)) = parse_value(&bytes[at..])? else { return Ok(None) };
                values.push(each);
                at += length;
            }
            Ok(Some((WireValue::List(values), at)))
        }
        _ => Err(nonsense()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRANT: &[u8] = b"*7\r\n:1\r\n:2\r\n:1\r\n:-1\r\n:5\r\n$0\r\n\r\n$5\r\nl\r\n-1\r\n";
    const REFUSAL: &[u8] = b"*7\r\n:0\r\n:2\r\n:0\r\n:9\r\n:5\r\n$7\r\nkey/day\r\n$0\r\n\r\n";

    #[test]
    fn request_is_encoded_as_a_command() {
        let mut out = Vec::new();
        encode_ask(&mut out, WireAsk { limit: "a", key: "k1", request_id: None });
        assert_eq!(out, b"*3\r\n$10\r\nTG.ACQUIRE\r\n$1\r\na\r\n$2\r\nk1\r\n");
        out.clear();
        encode_ask(&mut out, WireAsk { limit: "a", key: "k1", request_id: Some("r") });
        assert!(out.ends_with(b"$1\r\n1\r\n$3\r\nREQ\r\n$1\r\nr\r\n"), "{}", quoted(&out));
    }

    #[test]
    fn decision_is_parsed_from_any_fragments() {
        let both = [GRANT, REFUSAL].concat();
        for length in 0..GRANT.len() {
            assert_eq!(parse_reply(&both[..length]), Ok(None), "{length}");
        }
        let lease = Some("l\r\n-1".into());
        assert_eq!(parse_reply(&both), Ok(Some((GRANT.len(), Ok(WireDecision { allowed: true, lease })))));
        let refused = Ok(WireDecision { allowed: false, lease: None });
        assert_eq!(parse_reply(REFUSAL), Ok(Some((REFUSAL.len(), refused))));
    }

    #[test]
    fn error_reply_is_parsed_and_malformed_bytes_are_refused() {
        let (length, reply) = parse_reply(b"-NOLIMIT unknown limit 'x'\r\n").expect("RESP").expect("whole");
        assert_eq!((length, reply), (28, Err("NOLIMIT unknown limit \\'x\\'".to_owned())));
        for odd in [&b":1\r\n"[..], b"+OK\r\n", b"*1\r\n:1\r\n", b"$-1\r\n"] {
            assert!(matches!(parse_reply(odd), Ok(Some((_, Err(_))))), "{}", quoted(odd));
        }
        for nonsense in [
            &b"HTTP/1.1 400\r\n"[..],
            b"\n",
            b"\r\n",
            b":x\r\n",
            b"*9999999\r\n",
            b"*7\r\n?\r\n",
            b"*1\r\n*1\r\n",
            b"$65537\r\n",
        ] {
            assert!(parse_reply(nonsense).is_err(), "{}", quoted(nonsense));
        }
    }
}
