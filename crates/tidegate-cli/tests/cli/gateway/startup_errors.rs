//! Invalid settings are reported at the start: all errors with positions, and exit code 2.

use std::net::TcpListener;

use crate::{Files, feed, tidegate};

/// The error output for invalid settings.
#[track_caller]
fn start_error(text: &str) -> String {
    let files = Files::new();
    files.write("gateway.yaml", text);
    feed(tidegate(&["gateway", "--config", "gateway.yaml"]).current_dir(files.path("")), "").failed(2)
}

/// Valid settings after this beginning.
fn settings_starting_with(beginning: &str) -> String {
    format!(
        "{beginning}\nbackends: [{{name: b, endpoints: [{{host: 127.0.0.1, port: 9}}]}}]\nroutes: [{{backend: b}}]\n"
    )
}

#[test]
fn all_errors_are_reported_at_once() {
    let output = start_error(
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
        assert!(output.contains(part), "{part} is not in: {output}");
    }
}

#[test]
fn truncated_file_is_refused() {
    let whole = settings_starting_with("server: {listen: 127.0.0.1:0, rateLimit: {maxQps: 5}}");
    for (text, why) in [
        (&whole[..whole.len() / 4], "this is not YAML"),
        (&whole[..whole.len() / 2], "this is not YAML"),
        (&whole[..=whole.find('\n').unwrap_or(0)], "backends"),
        ("", "is empty"),
        ("\u{0}", "gateway.yaml"),
    ] {
        let output = start_error(text);
        assert!(output.contains(why), "{text:?}: {output}");
    }
}

#[test]
fn missing_and_invalid_variables_are_named() {
    let output = start_error(&settings_starting_with(
        "server: {listen: 127.0.0.1:0, rateLimit: {maxQps: \"${env:TIDEGATE_TEST_NONE}\", maxConnections: \"${env:TIDEGATE_TEST_NONE:-lots}\"}}",
    ));
    assert!(output.contains("the variable TIDEGATE_TEST_NONE is not set"), "{output}");
    assert!(output.contains("maxConnections: must be -1") && output.contains("found 'lots'"), "{output}");
}

#[test]
fn used_address_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let here = taken.local_addr().expect("an address");
    let output = start_error(&settings_starting_with(&format!("server: {{listen: {here}}}")));
    assert!(output.contains(&format!("cannot listen at {here}: the address is in use")), "{output}");
    let output = start_error(&settings_starting_with(&format!(
        "server: {{listen: 127.0.0.1:0}}\nmanagement: {{listen: {here}}}"
    )));
    assert!(output.contains("management port") && output.contains(&here.to_string()), "{output}");
    assert!(output.contains("the address is in use"), "{output}");
}

#[test]
fn missing_or_invalid_certificate_is_refused() {
    let files = Files::new();
    let (empty, missing) = (files.write("empty.pem", ""), files.path("none.pem").display().to_string());
    for (certificate, key, named) in [(&missing, &empty, &missing), (&empty, &missing, &empty)] {
        let tls = format!("tls: {{certificate: {certificate}, key: {key}}}\nserver: {{listen: 127.0.0.1:0}}");
        let output = start_error(&settings_starting_with(&tls));
        assert!(output.contains(named) && output.contains("tls: "), "{output}");
    }
    let output =
        start_error(&settings_starting_with("tls: {certificate: only.pem}\nserver: {listen: 127.0.0.1:0}"));
    assert!(output.contains("tls.key") || output.contains("tls: ") && output.contains("key"), "{output}");
}

#[test]
fn check_reports_both_tls_files_and_equal_ports() {
    let files = Files::new();
    let check = |text: &str| {
        files.write("gateway.yaml", &settings_starting_with(text));
        feed(tidegate(&["check", "gateway.yaml"]).current_dir(files.path("")), "").failed(2)
    };
    let output = check("tls: {certificate: none.pem, key: neither.pem}\nserver: {listen: 127.0.0.1:0}");
    assert!(
        output.contains("none.pem cannot be used") && output.contains("neither.pem cannot be used"),
        "{output}"
    );
    assert_eq!(output.matches("tls: ").count(), 1, "{output}");
    for listen in ["127.0.0.1:19848", "0.0.0.0:19848"] {
        let output = check(&format!("server: {{listen: '{listen}'}}\nmanagement: {{port: 19848}}"));
        assert!(output.contains("management: 127.0.0.1:19848 is also the gateway's own address"), "{output}");
    }
}

#[test]
fn settings_must_be_a_regular_file() {
    let files = Files::new();
    let pipe = files.path("pipe").display().to_string();
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
    let folder = files.path("").display().to_string();
    for (path, why) in [
        (&*pipe, "it is not a file"),
        (&*folder, "it is not a file"),
        ("/nonexistent/gateway.yaml", "/nonexistent/gateway.yaml"),
    ] {
        let output = feed(&mut tidegate(&["gateway", "--config", path]), "").failed(2);
        assert!(output.contains(why), "{path}: {output}");
    }
}

#[test]
fn invalid_arguments_are_reported() {
    for args in [
        &["gateway"][..],
        &["gateway", "--config"],
        &["gateway", "--config", "g.yaml", "--workers", "0"],
        &["gateway", "--config", "g.yaml", "--access-log", "loud"],
        &["gateway", "--config", "g.yaml", "stray"],
    ] {
        let output = feed(&mut tidegate(args), "").failed(2);
        assert!(!output.is_empty(), "{args:?}");
    }
}
