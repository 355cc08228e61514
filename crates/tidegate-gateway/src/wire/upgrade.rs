//! Protocol upgrades, such as WebSocket: which ones the gateway forwards, and the fields that request one.
//!
//! `http1/upgrade.rs` relays the bytes after an upgrade.

use super::body::BodyFraming;
use super::header_fields::list_items;
use super::hop_fields::HopFields;
use super::request_head::push_field;

/// Whether a request may be upgraded to the protocols in its `Upgrade` field. Otherwise the field is ignored.
pub(super) fn accepts_upgrade(protocols: &[u8], hop: &HopFields, minor: u8, framing: BodyFraming) -> bool {
    hop.upgrades && minor > 0 && framing == BodyFraming::None && !is_http(protocols)
}

/// Appends the fields that ask the endpoint for an upgrade.
pub(super) fn push_upgrade(out: &mut Vec<u8>, protocols: &[u8]) {
    push_field(out, b"Connection", b"Upgrade");
    push_field(out, b"Upgrade", protocols);
}

/// Whether an upgrade protocol is HTTP or a transport for it. Such an upgrade would bypass the gateway's
/// routing and limits.
fn is_http(protocols: &[u8]) -> bool {
    list_items(protocols).any(|protocol| {
        let name = protocol.split(|byte| *byte == b'/').next().unwrap_or_default().trim_ascii();
        [&b"http"[..], b"h2c", b"h2", b"h3", b"tls"].iter().any(|known| name.eq_ignore_ascii_case(known))
    })
}
