//! Per-client limits of an axum server: the peer's address comes from `ConnectInfo`.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use tidegate::clock::ManualClock;
use tidegate::layer::http::{ForwardedFor, HttpLimitLayer, PeerIp, limit_clients};
use tidegate::{Limiter, Timestamp, sliding};
use tokio::net::{TcpListener, TcpSocket};

/// Two requests in a closed window of a minute for each client, at a stopped clock.
fn limiter() -> Limiter {
    let builder = Limiter::builder().clock(ManualClock::at(Timestamp::EPOCH));
    builder.limit("api", sliding(2, Duration::from_secs(60)).per_key()).build().expect("valid settings")
}

/// An axum server on the loopback interface with the middleware of the guide.
async fn serve(layer: HttpLimitLayer<Body, Body>) -> SocketAddr {
    let router = Router::new().route("/", get(async || "hello")).layer(layer);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, service).await });
    address
}

/// The response to a request from this address, over a connection of its own.
async fn request(
    server: SocketAddr,
    from: &str,
    forwarded_for: Option<&str>,
) -> (StatusCode, HeaderMap, String) {
    let from: IpAddr = from.parse().expect("an address");
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind((from, 0).into()).expect("a loopback address");
    let stream = socket.connect(server).await.expect("the server listens");
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await.expect("an HTTP connection");
    tokio::spawn(connection);
    let mut request = Request::get("/").header("host", "localhost");
    if let Some(forwarded_for) = forwarded_for {
        request = request.header("x-forwarded-for", forwarded_for);
    }
    let request = request.body(Empty::<Bytes>::new()).expect("a request");
    let (head, body) = sender.send_request(request).await.expect("a response").into_parts();
    let body = body.collect().await.expect("a whole body").to_bytes();
    (head.status, head.headers, String::from_utf8(body.to_vec()).expect("text"))
}

#[track_caller]
fn check_refusal((status, headers, body): &(StatusCode, HeaderMap, String)) {
    assert_eq!(*status, 429, "{body}");
    let field = |name| headers.get(name).and_then(|value| value.to_str().ok());
    assert_eq!(field("retry-after"), Some("61"));
    assert_eq!(field("ratelimit-policy"), Some("\"key/sliding-60s\";q=2;w=60"));
    assert_eq!(field("ratelimit"), Some("\"key/sliding-60s\";r=0;t=61"));
    assert_eq!(field("content-type"), Some("application/problem+json"));
    assert!(body.contains("quota-exceeded"), "{body}");
}

#[tokio::test]
async fn peer_ip_limits_each_address_alone() {
    let server = serve(limit_clients(limiter(), "api", PeerIp)).await;
    for left in ["\"key/sliding-60s\";r=1;t=61", "\"key/sliding-60s\";r=0;t=61"] {
        let (status, headers, body) = request(server, "127.0.0.1", None).await;
        assert_eq!((status, &*body), (StatusCode::OK, "hello"));
        assert_eq!(headers["ratelimit"], left);
        assert!(!headers.contains_key("retry-after"));
    }
    check_refusal(&request(server, "127.0.0.1", None).await);
    check_refusal(&request(server, "127.0.0.1", Some("192.0.2.7")).await);
    assert_eq!(request(server, "127.0.0.2", None).await.0, 200, "another address has its own count");
}

#[tokio::test]
async fn forwarded_for_limits_clients_behind_trusted_proxy() {
    let trusted = ForwardedFor::trust(["127.0.0.1"]).expect("a network");
    let server = serve(limit_clients(limiter(), "api", trusted)).await;
    for _ in 0..2 {
        assert_eq!(request(server, "127.0.0.1", Some("192.0.2.7")).await.0, 200);
    }
    check_refusal(&request(server, "127.0.0.1", Some("6.6.6.6, 192.0.2.7")).await);
    assert_eq!(request(server, "127.0.0.1", Some("192.0.2.8")).await.0, 200);
    // The peer 127.0.0.2 is not trusted, so its own address counts.
    for forged in ["1.1.1.1", "2.2.2.2"] {
        assert_eq!(request(server, "127.0.0.2", Some(forged)).await.0, 200);
    }
    check_refusal(&request(server, "127.0.0.2", Some("3.3.3.3")).await);
}

#[tokio::test]
async fn server_without_connect_info_answers_500() {
    let router = Router::new().route("/", get(async || "hello"));
    let router = router.layer(limit_clients(limiter(), "api", PeerIp));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let server = listener.local_addr().expect("it is bound");
    tokio::spawn(async move { axum::serve(listener, router).await });
    assert_eq!(request(server, "127.0.0.1", Some("192.0.2.7")).await.0, 500);
}
