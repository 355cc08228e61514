//! Encoding of replies.

use tidegate_server::resp::reply::{MAX_ERROR_BYTES, RespVersion, RespWriter};

/// Checks the encoding in RESP2 and in RESP3.
#[track_caller]
fn check(write: impl Fn(&mut RespWriter<'_>), resp2: &str, resp3: &str) {
    for (protocol, expected) in [(RespVersion::Resp2, resp2), (RespVersion::Resp3, resp3)] {
        let mut output = b"before".to_vec();
        write(&mut RespWriter::new(&mut output, protocol));
        assert_eq!(String::from_utf8_lossy(&output), format!("before{expected}"), "{protocol:?}");
    }
}

#[test]
fn most_replies_are_the_same_in_both_versions() {
    for (number, text) in
        [(0, "0"), (-1, "-1"), (i64::MIN, "-9223372036854775808"), (i64::MAX, "9223372036854775807")]
    {
        let expected = format!(":{text}\r\n");
        check(|writer| writer.integer(number), &expected, &expected);
    }
    check(|writer| writer.simple("OK"), "+OK\r\n", "+OK\r\n");
    check(|writer| writer.bulk(b""), "$0\r\n\r\n", "$0\r\n\r\n");
    check(|writer| writer.bulk(b"a\r\nb"), "$4\r\na\r\nb\r\n", "$4\r\na\r\nb\r\n");
    check(|writer| writer.array(7), "*7\r\n", "*7\r\n");
}

#[test]
fn resp3_types_differ_from_resp2() {
    check(|writer: &mut RespWriter<'_>| writer.null(), "$-1\r\n", "_\r\n");
    check(|writer| writer.map(2), "*4\r\n", "%2\r\n");
    check(|writer| writer.text("hello"), "$5\r\nhello\r\n", "=9\r\ntxt:hello\r\n");
}

#[test]
fn error_is_one_bounded_line() {
    let error = "-ERR a  b   c\r\n";
    check(|writer| writer.error("ERR", "a\r\nb\0\u{85}\u{7f}c"), error, error);
    let cut = format!("-ERR {}\r\n", "ä".repeat(MAX_ERROR_BYTES / 2));
    check(|writer| writer.error("ERR", "ä".repeat(MAX_ERROR_BYTES)), &cut, &cut);
}
