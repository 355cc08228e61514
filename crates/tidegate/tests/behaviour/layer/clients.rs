//! Per-client limits: which address counts, and that it cannot be forged.

use std::net::SocketAddr;

use http::{Request, Response, StatusCode};
use tidegate::layer::http::{ForwardedFor, HttpLimitLayer, IpNetwork, PeerAddress, PeerIp, limit_clients};
use tidegate::{Limiter, total};
use tower::{Layer, ServiceExt, service_fn};

fn limiter() -> Limiter {
    Limiter::builder().limit("api", total(1).per_key()).build().expect("valid settings")
}

/// The status of a request from this peer with these `X-Forwarded-For` values.
async fn status(
    layer: &HttpLimitLayer<String, String>,
    peer: Option<&str>,
    forwarded: &[&str],
) -> StatusCode {
    let mut request = Request::builder();
    for value in forwarded {
        request = request.header("x-forwarded-for", *value);
    }
    let mut request = request.body(String::new()).expect("a request");
    if let Some(peer) = peer {
        let address: SocketAddr = peer.parse().expect("an address");
        request.extensions_mut().insert(PeerAddress(address));
    }
    let service = service_fn(async |_: Request<String>| {
        Ok::<_, std::convert::Infallible>(Response::new("hello".to_owned()))
    });
    layer.layer(service).oneshot(request).await.expect("infallible").status()
}

#[tokio::test]
async fn peer_ip_ignores_forwarded_addresses() {
    let layer = limit_clients(limiter(), "api", PeerIp);
    assert_eq!(status(&layer, Some("192.0.2.7:1"), &["1.1.1.1"]).await, 200);
    assert_eq!(
        status(&layer, Some("192.0.2.7:2"), &["2.2.2.2"]).await,
        429,
        "a forged address is no other client"
    );
    assert_eq!(status(&layer, Some("[::ffff:192.0.2.7]:3"), &[]).await, 429, "IPv4 inside IPv6 is IPv4");
    assert_eq!(status(&layer, Some("192.0.2.8:1"), &[]).await, 200);
    assert_eq!(status(&layer, Some("[2001:db8:1:2::1]:1"), &[]).await, 200);
    assert_eq!(status(&layer, Some("[2001:db8:1:2:ffff::9]:1"), &[]).await, 429, "a /64 is one client");
    assert_eq!(status(&layer, Some("[2001:db8:1:3::1]:1"), &[]).await, 200);
}

#[tokio::test]
async fn request_without_peer_address_is_an_error() {
    for layer in [
        limit_clients(limiter(), "api", PeerIp),
        limit_clients(limiter(), "api", ForwardedFor::trust(["::/0"]).expect("a network")),
    ] {
        assert_eq!(status(&layer, None, &["192.0.2.7"]).await, 500);
        assert_eq!(status(&layer, None, &[]).await, 500);
    }
}

#[tokio::test]
async fn forwarded_for_believes_only_trusted_proxies() {
    let trusted = ForwardedFor::trust(["10.0.0.0/8", "2001:db8::/32"]).expect("networks");
    let layer = limit_clients(limiter(), "api", trusted);
    let proxy = Some("10.0.0.1:1");
    assert_eq!(status(&layer, proxy, &["203.0.113.9"]).await, 200);
    assert_eq!(
        status(&layer, proxy, &["6.6.6.6, 203.0.113.9"]).await,
        429,
        "what the client wrote is ignored"
    );
    assert_eq!(status(&layer, proxy, &["6.6.6.6", "203.0.113.9, 10.0.0.7"]).await, 429, "hops are skipped");
    assert_eq!(
        status(&layer, Some("[2001:db8::1]:1"), &["[203.0.113.9]:80", "::ffff:203.0.113.9"]).await,
        429
    );
    assert_eq!(
        status(&layer, Some("203.0.113.9:5"), &["7.7.7.7"]).await,
        429,
        "a stranger's header is ignored"
    );
    assert_eq!(status(&layer, proxy, &["203.0.113.10"]).await, 200);
    assert_eq!(status(&layer, proxy, &["not an address"]).await, 200, "the proxy itself is the client");
    assert_eq!(status(&layer, proxy, &["8.8.8.8, not an address"]).await, 429, "and stays it");
}

#[test]
fn trust_of_invalid_network_is_error() {
    for (text, reason) in [
        ("", "must be an address"),
        ("localhost", "must be an address"),
        ("10.0.0.0/33", "has more bits"),
        ("::/129", "has more bits"),
        ("10.0.0.0/x", "must have a whole number"),
        ("10.0.0.0/+8", "must have a whole number"),
        ("10.0.0.7/8", "has bits set"),
        ("::ffff:10.0.0.7/104", "has bits set"),
    ] {
        let error = ForwardedFor::trust([text]).expect_err("no network");
        assert!(error.to_string().starts_with(&format!("'{text}' {reason}")), "{error}");
    }
}

#[test]
fn networks_contain_their_addresses() {
    let within = |network: &str, address: &str| {
        let network: IpNetwork = network.parse().expect("a network");
        network.contains(address.parse().expect("an address"))
    };
    assert!(within("10.0.0.0/8", "10.255.255.255") && !within("10.0.0.0/8", "11.0.0.0"));
    assert!(within("10.0.0.0/8", "::ffff:10.1.2.3") && within("::ffff:10.0.0.0/104", "10.1.2.3"));
    assert!(within("0.0.0.0/0", "255.255.255.255") && !within("0.0.0.0/0", "::1"));
    assert!(within("::/0", "ff::") && within("fd00::/8", "fdff::1") && !within("fd00::/8", "fe00::1"));
    assert!(within("192.0.2.1", "192.0.2.1") && !within("192.0.2.1/32", "192.0.2.2"));
}
