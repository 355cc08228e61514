//! The sections `server`, `store`, `auth` and `activity`: the values of good ones, and the messages for bad ones.

use std::fmt::Write as _;
use std::time::Duration;

use tidegate::model::Capacity;
use tidegate_config::Severity;
use tidegate_server::settings::{
    ActivitySpec, Listen, Role, ServerSpec, StoreSpec, StoreUrl, TokenSpec, parse_store, read, read_limits,
};

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The messages for a bad file.
#[track_caller]
fn bad(text: impl AsRef<[u8]>) -> String {
    read("tidegate.yaml", text.as_ref()).expect_err("the file must be refused").to_string()
}

#[test]
fn sections_of_others_are_warnings() {
    let text = "tls: []\nenvoy: {}\nlimits: []\n";
    let reading = read("tidegate.yaml", text.as_bytes()).expect("warnings are not errors");
    assert!(reading.warnings.iter().all(|warning| warning.severity == Severity::Warning));
    insta::assert_snapshot!(reading.warnings);
}

#[test]
fn an_activity_is_a_limit_in_words_of_its_own() {
    let text = "activity: {max_concurrent_tasks: 3, max_concurrent_per_user: -1, window_requests: 0, window: 500ms, \
                lease_ttl: 2m, compat: true}";
    let settings = read("tidegate.yaml", text.as_bytes()).expect("it makes sense").settings;
    let spec = ActivitySpec {
        max_concurrent_tasks: Some(Capacity::AtMost(3)),
        max_concurrent_per_user: Some(Capacity::Unlimited),
        window_requests: Some(Capacity::AtMost(0)),
        window: Some(Duration::from_millis(500)),
        lease_ttl: Some(Duration::from_secs(120)),
        compat: Some(true),
    };
    assert_eq!((settings.activity, settings.limits.len()), (Some(spec), 0));
    assert_eq!(settings.all_limits()[0].id, "activity");
    let nothing =
        |text: &str| read("tidegate.yaml", text.as_bytes()).expect("it makes sense").settings.activity;
    assert_eq!(nothing("activity: {}"), Some(ActivitySpec::default()));
    assert_eq!(nothing("activity: null"), None);
    assert_eq!(nothing("limits: []"), None);
    let alone = "limits: [{id: activity, items: [{policy: day, limit: 1}]}]";
    assert_eq!(nothing(alone), None, "whoever writes the limit has the limit");
    assert_eq!(read_limits("f", b"activity: {}").expect("it makes sense").len(), 1);
}

#[test]
fn tokens_are_read_with_their_roles_and_prefixes() {
    let (one, two) = ("0123456789abcdef".repeat(4), "ABCDEF0123456789".repeat(4));
    let text = format!(
        "auth:\n  tokens:\n  - {{name: ops, sha256: {one}, role: admin}}\n  \
         - {{name: shop, sha256: {two}, role: decide, prefix: shop/}}\n"
    );
    let token = |name: &str, sha256: &str, role, prefix: &str| TokenSpec {
        name: name.to_owned(),
        sha256: sha256.to_owned(),
        role,
        prefix: prefix.to_owned(),
    };
    let tokens = vec![token("ops", &one, Role::Admin, ""), token("shop", &two, Role::Decide, "shop/")];
    let reading = read("tidegate.yaml", text.as_bytes()).expect("a good file");
    assert_eq!((reading.settings.tokens, reading.warnings.is_empty()), (Some(tokens), true));

    let known = |text: &str| read("tidegate.yaml", text.as_bytes()).expect("a good file").settings.tokens;
    assert_eq!(known("limits: []"), None, "nobody needs one");
    assert_eq!(known("auth:\n  tokens: []"), Some(vec![]), "nobody has one");
}

#[test]
fn a_server_is_told_where_to_listen_and_how_long_to_wait() {
    let text = "server:\n  http: 0.0.0.0:80\n  resp: off\n  workers: 4\n  max_connections: 20000\n  \
                idle_timeout: 5m\n  header_timeout: 10s\n  request_timeout: 30s\n  drain: 0s\n";
    let reading = read("tidegate.yaml", text.as_bytes()).expect("a good file");
    let server = ServerSpec {
        http: Some(Listen::At(([0, 0, 0, 0], 80).into())),
        resp: Some(Listen::Off),
        workers: Some(4),
        max_connections: Some(20_000),
        idle_timeout: Some(seconds(300)),
        header_timeout: Some(seconds(10)),
        request_timeout: Some(seconds(30)),
        drain: Some(Duration::ZERO),
    };
    assert_eq!((reading.settings.server, reading.warnings.is_empty()), (server, true));

    let read = |text: &str| read("tidegate.yaml", text.as_bytes()).expect("a good file").settings;
    for nothing in ["limits: []", "server: {}\nstore: {}", "server: null\nstore: {url: null}"] {
        let settings = read(nothing);
        assert_eq!(settings.server, ServerSpec::default(), "{nothing}");
        assert_eq!(settings.store, StoreSpec::default(), "{nothing}");
    }
    assert_eq!(read("server: {http: '[::1]:0'}").server.http, "[::1]:0".parse().ok().map(Listen::At));
}

#[test]
fn a_store_is_named_with_or_without_its_colon() {
    for text in ["store: {url: 'memory:', memory: 64MiB}", "store:\n  url: memory\n  memory: 65536KiB\n"] {
        let reading = read("tidegate.yaml", text.as_bytes()).expect("a good file");
        let store = StoreSpec { url: Some(StoreUrl::Memory), memory: Some(64 << 20) };
        assert_eq!((reading.settings.store, reading.warnings.is_empty()), (store, true), "{text}");
    }
}

#[test]
fn one_limit_and_a_whole_file_are_told_apart() {
    let ids = |text: &str| -> Vec<String> {
        let limits = read_limits("it", text.as_bytes()).expect(text);
        limits.into_iter().map(|limit| limit.id).collect()
    };
    let item = "items: [{policy: day, limit: 1}]";
    assert_eq!(ids(&format!("id: a\n{item}")), ["a"]);
    assert_eq!(ids(&format!("{{\"id\": \"a\", {item}}}")), ["a"]);
    assert_eq!(ids(&format!("limits: [{{id: a, {item}}}, {{id: b, {item}}}]\ntls: {{}}")), ["a", "b"]);
    for nothing in ["", "# nothing", "limits: []", "auth: {tokens: []}"] {
        assert_eq!(ids(nothing), [""; 0], "{nothing}");
    }
    for (text, field) in [
        ("id: a\nitems: [{policy: dya, limit: 1}]", "items[0].policy"),
        ("limits: [{id: a, items: [{policy: dya, limit: 1}]}]", "limits[0].items[0].policy"),
        ("[1]", ""),
    ] {
        let wrong = read_limits("it", text.as_bytes()).expect_err(text);
        assert!(wrong.iter().any(|found| found.field == field), "{text}: {wrong}");
    }
}

#[test]
fn of_tokens() {
    let hash = "0123456789abcdef".repeat(4);
    insta::assert_snapshot!(bad(format!(
        "auth:\n  tokens:\n  - {{name: a, sha256: {hash}, role: admin}}\n  - {{name: b, sha256: abc, role: write}}\n  \
         - {{sha256: {}, role: read, prefx: shop/}}\n",
        hash.to_uppercase()
    )));
    insta::assert_snapshot!(bad("auth: {}"));
    insta::assert_snapshot!(bad("auth: everybody"));
}

/// The errors of a section with only this field, for each field.
#[track_caller]
fn bad_section(section: &str, fields: &[&str]) -> String {
    let mut told = String::new();
    for field in fields {
        writeln!(told, "{}\n", bad(format!("{section}:\n  {field}\n"))).expect("a string takes all writes");
    }
    told
}

#[test]
fn of_server() {
    insta::assert_snapshot!(bad_section(
        "server",
        &[
            "http: 7700",
            "http: ':7700'",
            "http: localhost:7700",
            "http: http://0.0.0.0:7700/",
            "http: '*:7700'",
            "http: ::1:7700",
            "http: 127.0.0.1",
            "http: 127.0.0.1:77000",
            "resp: no",
            "resp:",
            "resp: []",
            "workers: 0",
            "workers: 1025",
            "max_connections: -1",
            "idle_timeout: 0s",
            "header_timeout: 10",
            "request_timeout: 25h",
            "drain: forever",
            "htttp: off",
            "port: 7700",
        ]
    ));
    insta::assert_snapshot!(bad("server: 127.0.0.1:7700\nstore:\n"));
}

#[test]
fn of_activity() {
    insta::assert_snapshot!(bad_section(
        "activity",
        &[
            "max_concurrent_tasks: -2",
            "max_concurrent_tasks: '30'",
            "window_requests: 1.5",
            "window_requests: 99999999999999999999",
            "window: 15",
            "window: 0s",
            "lease_ttl: forever",
            "lease_ttl: 0s",
            "compat: yes",
            "compat: 'true'",
            "compat: 1",
            "compat:",
            "compat: {}",
            "max_concurent_tasks: 30",
        ]
    ));
    let both = "limits:\n  - {id: activity, items: [{policy: day, limit: 1}]}\nactivity:\n  window: 0s\n  lease_ttl: 0s\n";
    insta::assert_snapshot!(bad(both));
    insta::assert_snapshot!(bad("activity: {compat: true, window: 5m, window_requests: 1000001}\n"));
}

#[test]
fn of_store() {
    insta::assert_snapshot!(bad_section(
        "store",
        &[
            "url: mem",
            "url: 'disk:'",
            "url: disc:data",
            "url: memory:",
            "memory: 1073741824",
            "memory: 64MB",
            "memory: 1.5 GB",
            "memory: 64",
            "memory: 1023KiB",
            "memory: 99999999999TiB",
            "memory: much",
            "memory: -1GiB",
        ]
    ));
}

#[test]
fn a_store_that_is_mistyped_keeps_its_password_to_itself() {
    for text in [
        "postgre://app:s3cret@db/limits",
        "POSTGRES://app:s3cret@db/limits",
        " postgres://app:s3cret@db/limits",
        "postgres:/app:s3cret@db/limits",
        "postgres:app:s3cret@db/limits",
        "host=db password=s3cret",
        "pg:app:s3cret@db",
        "app:s3cret@db",
        "disk:postgres://app:s3cret@db/limits",
        "disk: PostgreSQL:app:s3cret@db/limits",
    ] {
        let why = parse_store(text).expect_err(text);
        assert!(!why.contains("s3cret"), "{text}: {why}");
    }
    assert!(parse_store("POSTGRES://app@db/x").unwrap_err().contains("did you mean 'postgres:'?"));
}
