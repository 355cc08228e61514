//! Identification of clients.

use std::net::IpAddr;

use tidegate::layer::http::ForwardedFor;
use tidegate_gateway::ClientKey;

fn parse_ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

#[test]
fn forwarded_addresses_are_trusted_from_the_right() {
    let proxies = ForwardedFor::trust(["10.0.0.0/8", "fd00::/8"]).expect("networks");
    for (peer, forwarded, expected) in [
        ("203.0.113.1", &["6.6.6.6"][..], "203.0.113.1"),
        ("10.0.0.1", &[], "10.0.0.1"),
        ("10.0.0.1", &["203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", &["6.6.6.6, 203.0.113.9, 10.0.0.7"], "203.0.113.9"),
        ("10.0.0.1", &["6.6.6.6, 203.0.113.9", "10.0.0.7"], "203.0.113.9"),
        ("10.0.0.1", &["10.0.0.2,10.0.0.3"], "10.0.0.2"),
        ("10.0.0.1", &["203.0.113.9, nonsense, 10.0.0.7"], "10.0.0.7"),
        ("10.0.0.1", &["unknown"], "10.0.0.1"),
        ("::ffff:10.0.0.1", &["203.0.113.9:4711"], "203.0.113.9"),
        ("fd00::1", &["[2001:db8::9]:4711"], "2001:db8::9"),
        ("fd00::1", &["[2001:db8::9]"], "2001:db8::9"),
        ("10.0.0.1", &["", "203.0.113.9,"], "203.0.113.9"),
    ] {
        let found = proxies.client(parse_ip(peer), forwarded.iter().map(|value| value.as_bytes()));
        assert_eq!(found, parse_ip(expected), "{peer} {forwarded:?}");
    }
}

#[test]
fn ipv6_client_is_its_64_network() {
    let key = |text| ClientKey::of_address(parse_ip(text));
    assert_eq!(key("2001:db8:0:1::1"), key("2001:db8:0:1:ffff::9"));
    assert_ne!(key("2001:db8:0:1::1"), key("2001:db8:0:2::1"));
    assert_eq!(key("::ffff:192.0.2.1"), key("192.0.2.1"));
    assert_ne!(key("192.0.2.1"), key("192.0.2.2"));
}

#[test]
fn client_name_never_equals_an_address_key() {
    let address = ClientKey::of_address(parse_ip("52.53.54.55"));
    let name = ClientKey::of_name(address.as_bytes()).expect("a name");
    assert_ne!(address, name);
    assert_eq!(ClientKey::of_name(b" ada "), ClientKey::of_name(b"ada"));
    assert_eq!(ClientKey::of_name(b"  "), None);
    assert_eq!(ClientKey::of_name(&[b'x'; 129]), None);
    assert!(ClientKey::of_name(&[b'x'; 128]).is_some());
}
