//! PROXY protocol headers, both versions.

use proptest::prelude::*;
use tidegate_gateway::proxy_header::{ProxyHeader, ProxyHeaderError, parse_proxy_header};

fn v2(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(body.len()).expect("a short body").to_be_bytes();
    [b"\r\n\r\n\0\r\nQUIT\n".as_slice(), &[0x20 | command, family], &length, body].concat()
}

fn source(bytes: &[u8]) -> Result<Option<String>, ProxyHeaderError> {
    parse_proxy_header(bytes).map(|header| header.source.map(|source| source.to_string()))
}

#[test]
fn version_1_headers_are_parsed() {
    let line = b"PROXY TCP4 192.0.2.1 192.0.2.2 56324 443\r\nGET / HTTP/1.1\r\n";
    let header = parse_proxy_header(line).expect("a header");
    assert_eq!(
        header,
        ProxyHeader { length: 42, source: Some("192.0.2.1:56324".parse().expect("an address")) }
    );
    assert_eq!(source(b"PROXY TCP6 2001:db8::1 ::1 1 2\r\n"), Ok(Some("[2001:db8::1]:1".to_owned())));
    assert_eq!(source(b"PROXY UNKNOWN\r\n"), Ok(None));
    assert_eq!(source(b"PROXY UNKNOWN ff:: ff:: 1 2\r\n"), Ok(None));
    for bad in [
        "PROXY TCP4 192.0.2.1 192.0.2.2 56324\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 56324 443 1\r\n",
        "PROXY TCP4 ::1 192.0.2.2 56324 443\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 +1 443\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 65536 443\r\n",
        "PROXY UDP4 192.0.2.1 192.0.2.2 1 2\r\n",
        "PROXY UNKNOWNS\r\n",
    ] {
        assert_eq!(source(bad.as_bytes()), Err(ProxyHeaderError::Malformed), "{bad}");
    }
    assert_eq!(source(&[b"PROXY ".as_slice(), &[b'x'; 101]].concat()), Err(ProxyHeaderError::Malformed));
    assert_eq!(source(b"GET / HTTP/1.1\r\n"), Err(ProxyHeaderError::Absent));
}

#[test]
fn version_2_headers_are_parsed() {
    let four = [192, 0, 2, 1, 192, 0, 2, 2, 0xdc, 4, 1, 0xbb];
    assert_eq!(source(&v2(1, 0x11, &four)), Ok(Some("192.0.2.1:56324".to_owned())));
    assert_eq!(
        source(&v2(1, 0x11, &[four.as_slice(), &[4, 0, 1, 9]].concat())),
        Ok(Some("192.0.2.1:56324".to_owned()))
    );
    let mut six = [0; 36];
    (six[15], six[33]) = (1, 80);
    assert_eq!(source(&v2(1, 0x21, &six)), Ok(Some("[::1]:80".to_owned())));
    assert_eq!(source(&v2(0, 0, &[])), Ok(None), "the proxy's own connection");
    assert_eq!(source(&v2(1, 0, &[])), Ok(None));
    assert_eq!(source(&v2(1, 0x11, &four[..11])), Err(ProxyHeaderError::Malformed));
    assert_eq!(source(&v2(2, 0x11, &four)), Err(ProxyHeaderError::Malformed));
    assert_eq!(source(&v2(1, 0x41, &four)), Err(ProxyHeaderError::Malformed));
    assert_eq!(source(&v2(1, 0x11, &[0; 3000])), Err(ProxyHeaderError::Malformed));
}

#[test]
fn partial_header_is_incomplete() {
    let whole = [v2(1, 0x11, &[1; 12]), b"PROXY TCP4 192.0.2.1 192.0.2.2 56324 443\r\n".to_vec()];
    for whole in whole {
        for end in 0..whole.len() {
            assert_eq!(source(&whole[..end]), Err(ProxyHeaderError::Incomplete), "{end}");
        }
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), version in 0..3_usize) {
        let start: &[u8] = [b"".as_slice(), b"PROXY TCP4 ", b"\r\n\r\n\0\r\nQUIT\n\x21"][version];
        let whole = [start, &bytes].concat();
        if let Ok(header) = parse_proxy_header(&whole) {
            prop_assert!(header.length <= whole.len());
        }
    }
}
