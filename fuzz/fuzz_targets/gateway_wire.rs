//! Parses arbitrary bytes as an HTTP/1.1 request, a response and a chunked body.
//!
//! Parsing must not panic. A composed head must parse to the same meaning and length, because any difference would allow
//! request smuggling.

#![no_main]

use std::net::{IpAddr, Ipv4Addr};

use libfuzzer_sys::fuzz_target;
use tidegate_gateway::wire::body::{BodyDecoder, BodyEncoder, BodyFraming};
use tidegate_gateway::wire::request_head::{ForwardingInfo, Http1RequestHead, header_storage};
use tidegate_gateway::wire::response_head::{Http1ResponseHead, ResponseOptions};

/// The maximum body size.
const MAX_BODY: u64 = 1 << 40;

fuzz_target!(|bytes: &[u8]| {
    check_request(bytes);
    check_response(bytes);
    check_chunks(bytes);
});

fn check_request(bytes: &[u8]) {
    let mut storage = header_storage();
    let Ok(Some(head)) = Http1RequestHead::read(bytes, &mut storage) else { return };
    for is_trusted in [false, true] {
        let info = ForwardingInfo { peer: IpAddr::V4(Ipv4Addr::LOCALHOST), is_trusted, is_secure: false };
        let mut composed = Vec::new();
        head.compose(&info, &mut composed);
        // The composed head may exceed the limits, because the gateway adds fields.
        let mut storage = header_storage();
        let Ok(read) = Http1RequestHead::read(&composed, &mut storage) else { continue };
        let again = read.expect("a composed head is complete");
        assert_eq!(again.length, composed.len());
        assert_eq!((again.method, again.path, again.framing), (head.method, head.path, head.framing));
        if head.minor > 0 {
            assert_eq!(again.host, head.host);
        }
    }
}

fn check_response(bytes: &[u8]) {
    for is_head_request in [false, true] {
        let mut storage = header_storage();
        let Ok(Some(reply)) = Http1ResponseHead::read(bytes, &mut storage, is_head_request) else { continue };
        let mut composed = Vec::new();
        let (encoder, keep_alive) =
            reply.compose(ResponseOptions { minor: 1, keeps_alive: true }, &mut composed);
        let mut storage = header_storage();
        let again = Http1ResponseHead::read(&composed, &mut storage, is_head_request)
            .expect("a composed head is valid")
            .expect("a composed head is complete");
        assert_eq!((again.length, again.status), (composed.len(), reply.status));
        match (reply.framing, again.framing) {
            (BodyFraming::UntilClose, BodyFraming::Chunked) => assert_eq!(encoder, BodyEncoder::Chunks),
            (before, after) => assert_eq!(before, after),
        }
        assert!(keep_alive, "HTTP/1.1 responses are always delimited");
    }
}

/// Checks that chunks decode to the same data in pieces of any size, and again after encoding.
fn check_chunks(bytes: &[u8]) {
    let Some((size, bytes)) = bytes.split_first() else { return };
    let whole = decode_chunks(bytes, bytes.len().max(1));
    assert_eq!(decode_chunks(bytes, usize::from(*size).max(1)), whole, "pieces of {size} bytes");
    let Some(data_of_whole) = whole else { return };
    let mut written = Vec::new();
    BodyEncoder::Chunks.write(&data_of_whole, &mut written);
    BodyEncoder::Chunks.finish(&[], &mut written);
    assert_eq!(decode_chunks(&written, 7), Some(data_of_whole));
}

/// Decodes a complete chunked body that arrives in pieces of `size` bytes.
fn decode_chunks(bytes: &[u8], size: usize) -> Option<Vec<u8>> {
    let mut body = BodyDecoder::new(BodyFraming::Chunked, MAX_BODY).expect("the length is unknown");
    let (mut data, mut start, mut end) = (Vec::new(), 0, 0);
    while !body.is_done() {
        let piece = body.next(&bytes[start..end]).ok()?;
        data.extend_from_slice(piece.data);
        start += piece.used;
        if piece.used == 0 && !body.is_done() {
            if end == bytes.len() {
                return None;
            }
            end = (end + size).min(bytes.len());
        }
    }
    Some(data)
}
