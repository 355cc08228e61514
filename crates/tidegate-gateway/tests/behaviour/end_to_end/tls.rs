//! TLS: the same requests, and the protocol that both sides know.

use std::io::{Read, Write};
use std::net::TcpStream as Plain;
use std::path::PathBuf;
use std::sync::Arc;

use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tidegate_gateway::{Gateway, Means};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::fixture::{Backend, Stage, file, get, wait_until};
use super::http_client::FAR_TOO_LONG;
use super::http2::{ask, asking, empty, full, run, shake};
use crate::fixture::spec;

/// Made for these tests, and good for nothing else.
fn of(name: &str) -> String {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/behaviour/end_to_end/certificate");
    directory.join(name).display().to_string()
}

fn secure(server: &str, backend: &Backend) -> String {
    let tls = format!("tls: {{certificate: '{}', key: '{}'}}\n", of("certificate.pem"), of("key.pem"));
    file(server, "", &[backend]) + &tls
}

fn client(protocols: &[&str]) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(of("certificate.pem")).expect("a certificate"))
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

type Secure = StreamOwned<ClientConnection, Plain>;

fn connect(stage: &Stage, protocols: &[&str]) -> Secure {
    let stream = Plain::connect(stage.gateway.address()).expect("it listens");
    stream.set_read_timeout(Some(FAR_TOO_LONG)).expect("a socket has timeouts");
    StreamOwned::new(ClientConnection::new(client(protocols), name()).expect("a client"), stream)
}

/// Asks and hears as much as ends so.
fn exchange(stream: &mut Secure, request: &str, end: &str) -> String {
    stream.write_all(request.as_bytes()).expect("somebody listens");
    let mut heard = Vec::new();
    let mut piece = [0; 4096];
    while !heard.ends_with(end.as_bytes()) {
        let length = stream.read(&mut piece).expect("an answer");
        assert!(length > 0, "{}", String::from_utf8_lossy(&heard));
        heard.extend_from_slice(&piece[..length]);
    }
    String::from_utf8_lossy(&heard).into_owned()
}

#[test]
fn requests_pass_by_http_1() {
    let backend = Backend::echo();
    let stage = Stage::new(&secure("", &backend));
    for protocols in [&[][..], &["http/1.1"]] {
        let mut stream = connect(&stage, protocols);
        for _ in 0..3 {
            let heard = exchange(&mut stream, &get("a.test"), "\r\n\r\n");
            let heard =
                if heard.contains("Via") { heard } else { heard + &exchange(&mut stream, "", "\r\n\r\n") };
            assert!(heard.starts_with("HTTP/1.1 200 OK\r\n"), "{heard}");
            assert!(heard.contains("X-Forwarded-Proto: https"), "{heard}");
        }
        let body = "x".repeat(200_000);
        let length = body.len();
        let request = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{body}-");
        assert!(exchange(&mut stream, &request[..request.len() - 1], "xxxxx").contains("200 OK"));
        drop(stream);
    }
    stage.end();
}

#[test]
fn requests_pass_by_http_2() {
    let backend = Backend::echo();
    let stage = Stage::new(&secure("", &backend));
    run(async {
        let stream = TcpStream::connect(stage.gateway.address()).await.expect("it listens");
        let connector = TlsConnector::from(client(&["h2", "http/1.1"]));
        let stream = connector.connect(name(), stream).await.expect("it is trusted");
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let mut sender = shake(TokioIo::new(stream)).await;
        let heard = ask(&mut sender, asking("https://a.test/x", empty())).await;
        let text = String::from_utf8_lossy(&heard.body).into_owned();
        assert!(
            text.starts_with("GET /x HTTP/1.1\r\n") && text.contains("x-forwarded-proto: https"),
            "{text}"
        );
        let heard = ask(&mut sender, asking("https://a.test/", full(vec![b'x'; 300_000]))).await;
        assert!(heard.body.len() > 300_000);
    });
    stage.end();
}

#[test]
fn who_does_not_speak_it_is_not_served() {
    let backend = Backend::echo();
    let stage = Stage::new(&secure("headerTimeout: 200ms", &backend));
    let mut plain = stage.client();
    plain.say(get("a.test"));
    plain.is_over_somehow();
    // Half a greeting, and none.
    let mut half = stage.client();
    half.say(b"\x16\x03\x01\x02\0\x01");
    half.is_over_somehow();
    stage.client().is_over_somehow();
    assert_eq!(backend.connections(), 0);
    stage.end();
}

#[test]
fn connections_that_are_refused_are_told_behind_it() {
    let backend = Backend::echo();
    let stage = Stage::new(&secure("rateLimit: {maxConnections: 0}", &backend));
    let mut stream = connect(&stage, &[]);
    let heard = exchange(&mut stream, &get("a.test"), "Too Many Connections");
    assert!(heard.starts_with("HTTP/1.1 429 "), "{heard}");
    run(async {
        let stream = TcpStream::connect(stage.gateway.address()).await.expect("it listens");
        let stream =
            TlsConnector::from(client(&["h2"])).connect(name(), stream).await.expect("it is trusted");
        let mut sender = shake(TokioIo::new(stream)).await;
        assert_eq!(ask(&mut sender, asking("https://a.test/", empty())).await.status, 429);
    });
    drop(stream);
    stage.end();
}

/// Upgrades behind TLS, as browsers make them.
#[test]
fn tunnels_pass() {
    let backend = Backend::raw(|mut wire, _| {
        let _head = wire.head();
        wire.say("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
        while let Ok(byte) = wire.exactly(1) {
            wire.shout(byte);
        }
    });
    let stage = Stage::new(&secure("", &backend));
    let mut stream = connect(&stage, &[]);
    let request = "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    assert!(exchange(&mut stream, request, "\r\n\r\n").contains(" 101 "));
    for number in 0..20 {
        let word = format!("word {number} ");
        assert_eq!(exchange(&mut stream, &word, &word), word);
    }
    drop(stream);
    stage.end();
}

#[test]
fn certificates_are_looked_at_when_settings_are_read() {
    let backend = Backend::echo();
    let stage = Stage::new(&secure("", &backend));
    let wrong = secure("", &backend).replace("key.pem", "certificate.pem");
    let error = stage.gateway.reload(spec(&wrong)).expect_err("that is no key");
    assert!(error.to_string().contains("certificate.pem cannot be used"), "{error}");
    let mut stream = connect(&stage, &[]);
    let heard = exchange(&mut stream, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "\r\n\r\n");
    assert!(heard.contains("200 OK"), "{heard}");
    // From the next connection on plain text is spoken.
    stage.reload(&file("", "", &[&backend]));
    wait_until("it is", || stage.ask(get("a.test")).status() == 200);
    drop(stream);
    stage.end();
    let mut nowhere = spec(&secure("", &backend).replace("key.pem", "nowhere.pem"));
    nowhere.server.listen.set_port(0);
    let error = Gateway::start(nowhere, Means::default()).expect_err("there is no key");
    assert!(error.to_string().contains("nowhere.pem"), "{error}");
}
