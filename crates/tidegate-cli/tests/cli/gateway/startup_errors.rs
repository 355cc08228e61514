//! What is wrong with the settings is told when the gateway starts: all of it, where it is, with exit code 2.

use std::net::TcpListener;

use crate::{Files, feed, tidegate};

/// What is said of settings that are of no use.
#[track_caller]
fn refused(text: &str) -> String {
    let files = Files::new();
    files.write("gateway.yaml", text);
    feed(tidegate(&["gateway", "--config", "gateway.yaml"]).current_dir(files.path("")), "").failed(2)
}

/// Settings that are of use but for this, which comes first.
fn with(beginning: &str) -> String {
    format!(
        "{beginning}\nbackends: [{{name: b, endpoints: [{{host: 127.0.0.1, port: 9}}]}}]\nroutes: [{{backend: b}}]\n"
    )
}

#[test]
fn everything_that_is_wrong_is_told_at_once() {
    let said = refused(
        "server: {listen: 127.0.0.1:0, rateLimit: {maxQps: -2, maxConnections: many}}
backends:
  - {name: api, endpoints: [{host: 127.0.0.1, port: 9}], rateLimit: {maxQpsPerClient: -3}}
  - {name: api, endpoints: []}
routes:
  - {host: a.test, backend: apii}
  - {host: b.test, backend: api, rateLimit: {maxConnectionsPerClient: -4}}
  - {host: B.TEST, path: /**, backend: api}
",
    );
    for part in [
        "gateway.yaml:1:51: server.rateLimit.maxQps: must be -1 (no limit here)",
        "server.rateLimit.maxConnections: must be -1",
        "gateway.yaml:3:87: backends[0].rateLimit.maxQpsPerClient: must be -1",
        "gateway.yaml:4:12: backends[1].name: 'api' is the name of the backend on line 3 too",
        "backends[1].endpoints: must have at least one endpoint",
        "gateway.yaml:6:29: routes[0].backend: no backend is called 'apii'",
        "did you mean 'api'?",
        "routes[1].rateLimit.maxConnectionsPerClient: must be -1",
        "routes[2]: the route of b.test and /** is written on line 7 too",
        "8 errors in gateway.yaml",
    ] {
        assert!(said.contains(part), "{part} is not in: {said}");
    }
}

#[test]
fn half_a_file_is_none() {
    let whole = with("server: {listen: 127.0.0.1:0, rateLimit: {maxQps: 5}}");
    for (text, why) in [
        (&whole[..whole.len() / 4], "this is not YAML"),
        (&whole[..whole.len() / 2], "this is not YAML"),
        (&whole[..=whole.find('\n').unwrap_or(0)], "backends"),
        ("", "is empty"),
        ("\u{0}", "gateway.yaml"),
    ] {
        let said = refused(text);
        assert!(said.contains(why), "{text:?}: {said}");
    }
}

#[test]
fn variables_are_named_that_are_not_there_or_make_no_sense() {
    let said = refused(&with(
        "server: {listen: 127.0.0.1:0, rateLimit: {maxQps: \"${env:TIDEGATE_TEST_NONE}\", maxConnections: \"${env:TIDEGATE_TEST_NONE:-lots}\"}}",
    ));
    assert!(said.contains("the variable TIDEGATE_TEST_NONE is not set"), "{said}");
    assert!(said.contains("maxConnections: must be -1") && said.contains("found 'lots'"), "{said}");
}

#[test]
fn an_address_that_is_taken_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let here = taken.local_addr().expect("an address");
    let said = refused(&with(&format!("server: {{listen: {here}}}")));
    assert!(said.contains(&format!("cannot listen at {here}: somebody else does")), "{said}");
    let said = refused(&with(&format!("server: {{listen: 127.0.0.1:0}}\nmanagement: {{listen: {here}}}")));
    assert!(said.contains("management port") && said.contains(&here.to_string()), "{said}");
    assert!(said.contains("somebody else does"), "{said}");
}

#[test]
fn a_certificate_must_be_there_and_be_one() {
    let files = Files::new();
    let (empty, missing) = (files.write("empty.pem", ""), files.path("none.pem").display().to_string());
    for (certificate, key, named) in [(&missing, &empty, &missing), (&empty, &missing, &empty)] {
        let tls = format!("tls: {{certificate: {certificate}, key: {key}}}\nserver: {{listen: 127.0.0.1:0}}");
        let said = refused(&with(&tls));
        assert!(said.contains(named) && said.contains("tls: "), "{said}");
    }
    let said = refused(&with("tls: {certificate: only.pem}\nserver: {listen: 127.0.0.1:0}"));
    assert!(said.contains("tls.key") || said.contains("tls: ") && said.contains("key"), "{said}");
}

#[test]
fn a_check_tells_both_files_once_and_ports_that_are_one() {
    let files = Files::new();
    let check = |text: &str| {
        files.write("gateway.yaml", &with(text));
        feed(tidegate(&["check", "gateway.yaml"]).current_dir(files.path("")), "").failed(2)
    };
    let said = check("tls: {certificate: none.pem, key: neither.pem}\nserver: {listen: 127.0.0.1:0}");
    assert!(
        said.contains("none.pem cannot be used") && said.contains("neither.pem cannot be used"),
        "{said}"
    );
    assert_eq!(said.matches("tls: ").count(), 1, "{said}");
    for listen in ["127.0.0.1:19848", "0.0.0.0:19848"] {
        let said = check(&format!("server: {{listen: '{listen}'}}\nmanagement: {{port: 19848}}"));
        assert!(said.contains("management: 127.0.0.1:19848 is where the gateway listens"), "{said}");
    }
}

#[test]
fn what_is_no_file_is_not_read() {
    let files = Files::new();
    let pipe = files.path("pipe").display().to_string();
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
    let folder = files.path("").display().to_string();
    for (path, why) in [
        (&*pipe, "it is not a file"),
        (&*folder, "it is not a file"),
        ("/nonexistent/gateway.yaml", "/nonexistent/gateway.yaml"),
    ] {
        let said = feed(&mut tidegate(&["gateway", "--config", path]), "").failed(2);
        assert!(said.contains(why), "{path}: {said}");
    }
}

#[test]
fn what_cannot_be_typed_is_told() {
    for args in [
        &["gateway"][..],
        &["gateway", "--config"],
        &["gateway", "--config", "g.yaml", "--workers", "0"],
        &["gateway", "--config", "g.yaml", "--access-log", "loud"],
        &["gateway", "--config", "g.yaml", "stray"],
    ] {
        let said = feed(&mut tidegate(args), "").failed(2);
        assert!(!said.is_empty(), "{args:?}");
    }
}
