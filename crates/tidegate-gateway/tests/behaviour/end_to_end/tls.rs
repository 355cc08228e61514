//! TLS: the same requests, and protocol negotiation.

use std::io::{Read, Write};
use std::net::TcpStream as Plain;
use std::path::PathBuf;
use std::sync::Arc;

use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tidegate_gateway::{Gateway, GatewayOptions};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::fixture::{TestBackend, TestGateway, file, get, wait_until};
use super::http_client::TEST_TIMEOUT;
use super::http2::{empty, full, handshake, request_for, run, send};
use crate::fixture::spec;

/// Created for these tests.
fn certificate_path(name: &str) -> String {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/behaviour/end_to_end/certificate");
    directory.join(name).display().to_string()
}

fn tls_settings(server: &str, backend: &TestBackend) -> String {
    let tls = format!(
        "tls: {{certificate: '{}', key: '{}'}}\n",
        certificate_path("certificate.pem"),
        certificate_path("key.pem")
    );
    file(server, "", &[backend]) + &tls
}

fn client(protocols: &[&str]) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(certificate_path("certificate.pem")).expect("a certificate"))
        .expect("it is one");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("there are some")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    Arc::new(config)
}

fn name() -> ServerName<'static> {
    ServerName::try_from("localhost").expect("a name")
}

type TlsClient = StreamOwned<ClientConnection, Plain>;

fn connect(gateway: &TestGateway, protocols: &[&str]) -> TlsClient {
    let stream = Plain::connect(gateway.inner.address()).expect("it listens");
    stream.set_read_timeout(Some(TEST_TIMEOUT)).expect("a socket has timeouts");
    StreamOwned::new(ClientConnection::new(client(protocols), name()).expect("a client"), stream)
}

/// Sends a request and reads up to `end`.
fn exchange(stream: &mut TlsClient, request: &str, end: &str) -> String {
    stream.write_all(request.as_bytes()).expect("the peer is connected");
    let mut received = Vec::new();
    let mut piece = [0; 4096];
    while !received.ends_with(end.as_bytes()) {
        let length = stream.read(&mut piece).expect("an response");
        assert!(length > 0, "{}", String::from_utf8_lossy(&received));
        received.extend_from_slice(&piece[..length]);
    }
    String::from_utf8_lossy(&received).into_owned()
}

#[test]
fn http1_requests_pass_over_tls() {
    let backend = TestBackend::echo();
    let gateway = TestGateway::new(&tls_settings("", &backend));
    for protocols in [&[][..], &["http/1.1"]] {
        let mut stream = connect(&gateway, protocols);
        for _ in 0..3 {
            let received = exchange(&mut stream, &get("a.test"), "\r\n\r\n");
            let received = if received.contains("Via") {
                received
            } else {
                received + &exchange(&mut stream, "", "\r\n\r\n")
            };
            assert!(received.starts_with("HTTP/1.1 200 OK\r\n"), "{received}");
            assert!(received.contains("X-Forwarded-Proto: https"), "{received}");
        }
        let body = "x".repeat(200_000);
        let length = body.len();
        let request = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{body}-");
        assert!(exchange(&mut stream, &request[..request.len() - 1], "xxxxx").contains("200 OK"));
        drop(stream);
    }
    gateway.end();
}

#[test]
fn http2_requests_pass_over_tls() {
    let backend = TestBackend::echo();
    let gateway = TestGateway::new(&tls_settings("", &backend));
    run(async {
        let stream = TcpStream::connect(gateway.inner.address()).await.expect("it listens");
        let connector = TlsConnector::from(client(&["h2", "http/1.1"]));
        let stream = connector.connect(name(), stream).await.expect("it is trusted");
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let mut sender = handshake(TokioIo::new(stream)).await;
        let received = send(&mut sender, request_for("https://a.test/x", empty())).await;
        let text = String::from_utf8_lossy(&received.body).into_owned();
        assert!(
            text.starts_with("GET /x HTTP/1.1\r\n") && text.contains("x-forwarded-proto: https"),
            "{text}"
        );
        let received = send(&mut sender, request_for("https://a.test/", full(vec![b'x'; 300_000]))).await;
        assert!(received.body.len() > 300_000);
    });
    gateway.end();
}

#[test]
fn plaintext_on_a_tls_port_is_not_served() {
    let backend = TestBackend::echo();
    let gateway = TestGateway::new(&tls_settings("headerTimeout: 200ms", &backend));
    let mut plain = gateway.client();
    plain.send(get("a.test"));
    plain.assert_closes_eventually();
    // Half a ClientHello, and none.
    let mut half = gateway.client();
    half.send(b"\x16\x03\x01\x02\0\x01");
    half.assert_closes_eventually();
    gateway.client().assert_closes_eventually();
    assert_eq!(backend.connection_count(), 0);
    gateway.end();
}

#[test]
fn refused_connections_get_a_reply_over_tls() {
    let backend = TestBackend::echo();
    let gateway = TestGateway::new(&tls_settings("rateLimit: {maxConnections: 0}", &backend));
    let mut stream = connect(&gateway, &[]);
    let received = exchange(&mut stream, &get("a.test"), "Too Many Connections");
    assert!(received.starts_with("HTTP/1.1 429 "), "{received}");
    run(async {
        let stream = TcpStream::connect(gateway.inner.address()).await.expect("it listens");
        let stream =
            TlsConnector::from(client(&["h2"])).connect(name(), stream).await.expect("it is trusted");
        let mut sender = handshake(TokioIo::new(stream)).await;
        assert_eq!(send(&mut sender, request_for("https://a.test/", empty())).await.status, 429);
    });
    drop(stream);
    gateway.end();
}

/// Upgrades over TLS, as browsers use them.
#[test]
fn upgrades_pass_over_tls() {
    let backend = TestBackend::with_connections(|mut wire, _| {
        let _head = wire.head();
        wire.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
        while let Ok(byte) = wire.read_exactly(1) {
            wire.try_send(byte);
        }
    });
    let gateway = TestGateway::new(&tls_settings("", &backend));
    let mut stream = connect(&gateway, &[]);
    let request = "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    assert!(exchange(&mut stream, request, "\r\n\r\n").contains(" 101 "));
    for number in 0..20 {
        let word = format!("word {number} ");
        assert_eq!(exchange(&mut stream, &word, &word), word);
    }
    drop(stream);
    gateway.end();
}

#[test]
fn reload_checks_the_certificate() {
    let backend = TestBackend::echo();
    let gateway = TestGateway::new(&tls_settings("", &backend));
    let wrong = tls_settings("", &backend).replace("key.pem", "certificate.pem");
    let error = gateway.inner.reload(spec(&wrong)).expect_err("that is no key");
    assert!(error.to_string().contains("certificate.pem cannot be used"), "{error}");
    let mut stream = connect(&gateway, &[]);
    let received =
        exchange(&mut stream, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "\r\n\r\n");
    assert!(received.contains("200 OK"), "{received}");
    // New connections use plaintext after the reload.
    gateway.reload(&file("", "", &[&backend]));
    wait_until("it is", || gateway.request(get("a.test")).status() == 200);
    drop(stream);
    gateway.end();
    let mut nowhere = spec(&tls_settings("", &backend).replace("key.pem", "nowhere.pem"));
    nowhere.server.listen.set_port(0);
    let error = Gateway::start(nowhere, GatewayOptions::default()).expect_err("there is no key");
    assert!(error.to_string().contains("nowhere.pem"), "{error}");
}
