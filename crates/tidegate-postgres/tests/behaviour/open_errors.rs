//! Errors of opening a store: their messages, and that none contains a password.

use std::net::TcpListener;
use std::time::Duration;

use tidegate::catalog::Catalog;
use tidegate_postgres::{PostgresOpenError, PostgresOptions, PostgresStore, VERSION};

use crate::cluster::{Cluster, new_schema, options, shared_url};
use crate::sql::Sql;

/// A password that does not occur in messages by chance.
const SECRET: &str = "hunter2-xyzzy";

/// The address of the shared database: `HOST:PORT`.
fn address(url: &str) -> &str {
    let (_, rest) = url.split_once('@').expect("the URL names a user");
    rest.split_once('/').expect("the URL names a database").0
}

/// A URL of the shared database for this user.
fn url_of(user: &str, schema: &str) -> String {
    format!("postgres://{user}@{}/postgres?schema={schema}", address(shared_url()))
}

/// Expects that a URL cannot be opened, and that the error does not contain the password.
#[track_caller]
fn open_error(url: &str) -> PostgresOpenError {
    let error = match PostgresOptions::parse(url) {
        Ok(options) => {
            assert!(!format!("{options:?}{}", options.location()).contains(SECRET), "{options:?}");
            let opened = PostgresStore::open(options);
            opened.expect_err("the URL cannot be opened")
        }
        Err(invalid) => PostgresOpenError::Url(invalid),
    };
    assert!(!format!("{error} {error:?}").contains(SECRET), "a password was shown: {error:?}");
    error
}

/// The message for an invalid URL.
#[track_caller]
fn invalid_url_message(url: &str) -> String {
    match open_error(url) {
        PostgresOpenError::Url(invalid) => invalid.to_string(),
        other => panic!("{url} is not reported as invalid: {other:?}"),
    }
}

#[track_caller]
fn assert_contains(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "'{part}' is not in: {message}");
    }
}

/// Creates a role without rights, if it does not exist.
fn create_role(name: &str, more: &str) {
    let make = format!(
        "DO $$ BEGIN PERFORM pg_advisory_xact_lock(7); \
         IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{name}') THEN CREATE ROLE {name} LOGIN {more}; END IF; END $$"
    );
    Sql::new(shared_url()).rows(&make);
}

#[test]
fn invalid_url_error_names_a_valid_form() {
    let form = "postgres://USER";
    let whole = |rest: &str| format!("postgres://me:{SECRET}@host/db?{rest}");
    let cases: &[(String, &[&str])] = &[
        (format!("me:{SECRET}"), &[form]),
        (format!("mysql://me:{SECRET}@host/db"), &[form]),
        (format!("postgres://me:{SECRET}@/db"), &["no host", form]),
        (format!("postgres://:{SECRET}@host/db"), &["no user", form]),
        (format!("postgres://me:{SECRET}@host:port/db"), &["1 to 65535", "'port'"]),
        (format!("postgres://me:{SECRET}@host:99999/db"), &["1 to 65535"]),
        (format!("postgres://me:{SECRET}%@host/db"), &["%25"]),
        (whole("pool_size=1&pool_size=2"), &["pool_size twice"]),
        (whole("pool_sise=1"), &["'pool_sise'", "did you mean 'pool_size'?"]),
        (whole("no_such_thing=1"), &["schema", "pool_size", "sslmode"]),
        (whole(&format!("password={SECRET}&no_such_thing=1")), &["schema", "pool_size"]),
        (whole("schema="), &["1 to 63 letters, digits, - and _"]),
        (whole("schema=two%20words"), &["1 to 63 letters", "'two words'"]),
        (whole("schema=pg_mine"), &["not beginning with pg_"]),
        (whole(&format!("schema={}", "x".repeat(64))), &["1 to 63 letters"]),
        (whole("schema=%zz"), &["two digits"]),
        (whole("schema=%ff"), &["UTF-8"]),
        (whole("pool_size=0"), &["1 to 64", "'0'"]),
        (whole("pool_size=65"), &["1 to 64"]),
        (whole("pool_size=-1"), &["1 to 64"]),
        (whole("connect_timeout=soon"), &["1 to 3600", "'soon'"]),
        (whole("lock_timeout_ms=0"), &["1 to 600000"]),
        (whole("statement_timeout_ms=600001"), &["1 to 600000"]),
        (whole("sslmode=maybe"), &["disable, prefer, require or verify-full", "'maybe'"]),
        (whole("sslmode=disable&sslrootcert=/x"), &["sslmode=disable"]),
        (whole("sslmode=verify-full&sslrootcert=/no/such/file"), &["/no/such/file", "cannot be read"]),
    ];
    for (url, parts) in cases {
        assert_contains(&invalid_url_message(url), parts);
    }
}

/// Text after a `?` in a password looks like parameters, whose names and values are quoted in messages.
#[test]
fn password_with_url_delimiters_is_not_shown() {
    for sign in ["?", "?schema=", "?pool_size=", "?sslmode=", "?a&", "?sslrootcert=", "/", "#", ":", "@"] {
        for url in [
            format!("postgres://me:a{sign}{SECRET}@host/db"),
            format!("postgres://me:{SECRET}{sign}{SECRET}@host:port/db?schema=x&pool_size=4"),
            format!("postgres://me:a{sign}{SECRET}&{SECRET}@host:port/db?no_such_thing=1"),
        ] {
            match PostgresOptions::parse(&url) {
                Ok(options) => {
                    assert!(!format!("{options:?}").contains(SECRET), "{url}: {options:?}");
                }
                Err(error) => assert!(!format!("{error} {error:?}").contains(SECRET), "{url}: {error}"),
            }
        }
    }
    assert_contains(&invalid_url_message(&format!("postgres://me:a?{SECRET}@host/db")), &["%3F"]);
}

#[test]
fn wrong_password_is_not_shown() {
    create_role("password_user", "PASSWORD 'correct password'");
    let schema = new_schema();
    let wrong = open_error(&url_of(&format!("password_user:{SECRET}"), &schema));
    assert_contains(&wrong.to_string(), &["password authentication failed", "28P01"]);
    assert!(matches!(wrong, PostgresOpenError::Unreachable { .. }), "{wrong:?}");
    let by_parameter = open_error(&format!("{}&password={SECRET}", url_of("password_user", &schema)));
    assert_contains(&by_parameter.to_string(), &["28P01"]);
    let none = open_error(&url_of("password_user", &schema));
    assert_contains(&none.to_string(), &["wants a password for this user, and there is none"]);
    // The correct password opens the store, so only the password was wrong before.
    Sql::new(shared_url()).rows(&format!("CREATE SCHEMA {schema} AUTHORIZATION password_user"));
    let options =
        PostgresOptions::parse(&url_of("password_user:correct%20password", &schema)).expect("a URL");
    let store = PostgresStore::open(options).expect("the correct password");
    assert!(!format!("{store:?}").contains("correct password"));
}

#[test]
fn missing_database_error_names_database() {
    let url = format!("postgres://tidegate:{SECRET}@{}/nowhere", address(shared_url()));
    let error = open_error(&url);
    assert!(matches!(error, PostgresOpenError::Unreachable { .. }), "{error:?}");
    assert_contains(&error.to_string(), &["nowhere", "does not exist", "3D000"]);
}

#[test]
fn refused_connection_error_names_address() {
    // A port that was free a moment ago, so that no server listens on it.
    let port =
        TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port").port();
    let error = open_error(&format!("postgres://me:{SECRET}@127.0.0.1:{port}/db"));
    assert!(matches!(error, PostgresOpenError::Unreachable { .. }), "{error:?}");
    assert_contains(&error.to_string(), &[&format!("127.0.0.1:{port}/db"), "cannot be reached"]);
}

/// The peer accepts the connection and never answers, like a stopped machine or a proxy without a database.
#[test]
fn open_times_out_when_database_does_not_answer() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = silent.local_addr().expect("an address");
    for mode in ["disable", "prefer"] {
        let (sender, receiver) = std::sync::mpsc::channel();
        let url = format!("postgres://me:{SECRET}@{address}/db?connect_timeout=1&sslmode={mode}");
        std::thread::spawn(move || {
            let _receiver_dropped = sender.send(open_error(&url));
        });
        let error = receiver.recv_timeout(Duration::from_secs(60)).expect("opening times out");
        assert!(matches!(error, PostgresOpenError::Unreachable { .. }), "{error:?}");
        assert_contains(&error.to_string(), &[&address.to_string(), "within 1 s"]);
    }
}

#[test]
fn newer_schema_is_refused_and_unchanged() {
    let schema = new_schema();
    drop(PostgresStore::open(options(&schema)).expect("a new schema"));
    let newer = VERSION + 1;
    Sql::new(shared_url()).rows(&format!("INSERT INTO {schema}.migrations (version) VALUES ({newer})"));
    let error = open_error(&url_of("tidegate", &schema));
    assert_eq!(error, PostgresOpenError::Newer { schema: schema.clone(), found: newer });
    assert_contains(
        &error.to_string(),
        &[&schema, &format!("version {newer}"), &format!("up to {VERSION}"), "nothing was"],
    );
    // Without the newer version the store opens again.
    Sql::new(shared_url()).rows(&format!("DELETE FROM {schema}.migrations WHERE version = {newer}"));
    PostgresStore::open(options(&schema)).expect("the schema is unchanged");
}

#[test]
fn missing_privilege_error_names_the_statement_to_run() {
    create_role("poor", "");
    let schema = new_schema();
    let error = open_error(&url_of("poor", &schema));
    let grant = format!("CREATE SCHEMA \"{schema}\" AUTHORIZATION \"poor\"");
    assert!(matches!(error, PostgresOpenError::Forbidden { .. }), "{error:?}");
    assert_contains(&error.to_string(), &["'poor'", &schema, "42501", &grant]);
    // The statement in the message solves the problem.
    Sql::new(shared_url()).rows(&grant);
    let store = PostgresStore::open(PostgresOptions::parse(&url_of("poor", &schema)).expect("a URL"));
    assert!(store.expect("the user owns the schema").list().is_empty());
}

#[test]
fn schema_of_another_user_is_refused() {
    create_role("poor", "");
    let schema = new_schema();
    drop(PostgresStore::open(options(&schema)).expect("a new schema"));
    let error = open_error(&url_of("poor", &schema));
    assert!(matches!(error, PostgresOpenError::Forbidden { .. }), "{error:?}");
}

#[test]
fn concurrent_opens_of_new_schema_all_succeed() {
    let schema = new_schema();
    let open = || PostgresStore::open(options(&schema));
    let opened: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..6).map(|_| scope.spawn(open)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    for store in &opened {
        assert!(store.is_ok(), "{store:?}");
    }
    let versions = Sql::new(shared_url()).value(&format!("SELECT count(*) FROM {schema}.migrations"));
    assert_eq!(versions, VERSION.to_string(), "each migration is applied once");
}

#[test]
fn schema_names_keep_case_and_dashes() {
    let sql = Sql::new(shared_url());
    let stem = new_schema();
    for name in [format!("{stem}-Dashed"), format!("{stem}-dashed"), format!("UPPER{stem}"), "9".repeat(63)] {
        let opened = PostgresStore::open(options(&name));
        drop(opened.unwrap_or_else(|error| panic!("{name}: {error}")));
        let tables = "SELECT count(*) FROM pg_tables WHERE tablename = 'states' AND schemaname";
        assert_eq!(sql.value(&format!("{tables} = '{name}'")), "1", "{name}");
        sql.rows(&format!("DROP SCHEMA \"{name}\" CASCADE"));
    }
}

/// Whether the connections of this name are encrypted.
fn encryption_of(sql: &Sql, name: &str) -> String {
    let look = "SELECT DISTINCT s.ssl FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid) WHERE a.application_name";
    let rows = sql.rows(&format!("{look} = '{name}'"));
    rows.into_iter().flatten().collect()
}

#[test]
fn sslmode_selects_encryption_and_verification() {
    let cluster = Cluster::start(&["ssl=on"]);
    let sql = Sql::new(cluster.url());
    let certificate = sql.value("SHOW ssl_cert_file");
    let (_, port) = address(cluster.url()).split_once(':').expect("a port");
    let url = |host: &str, rest: &str| {
        format!("postgres://tidegate:{SECRET}@{host}:{port}/postgres?application_name=tls-{rest}")
    };
    let verified = format!("verify-full&sslmode=verify-full&sslrootcert={certificate}");
    let trusted = format!("trusted&sslmode=require&sslrootcert={certificate}");
    let cases = [
        ("127.0.0.1", "usual", "t"),
        ("127.0.0.1", "disable&sslmode=disable", "f"),
        ("127.0.0.1", "prefer&sslmode=prefer", "t"),
        ("127.0.0.1", "require&sslmode=require", "t"),
        ("localhost", &*verified, "t"),
        ("localhost", &*trusted, "t"),
    ];
    for (host, rest, expected) in cases {
        let opened = PostgresStore::open(PostgresOptions::parse(&url(host, rest)).expect("a URL"));
        let store = opened.unwrap_or_else(|error| panic!("{rest}: {error}"));
        let name = rest.split('&').next().expect("a name");
        assert_eq!(encryption_of(&sql, &format!("tls-{name}")), expected, "{rest}");
        drop(store);
    }
    // A certificate for another name, and an untrusted certificate. The system may have no trusted certificates at all.
    for (host, rest, parts) in [
        ("127.0.0.1", &*verified, ["certificate", "cannot be reached"]),
        ("127.0.0.1", &*trusted, ["certificate", "cannot be reached"]),
        ("localhost", "unknown&sslmode=verify-full", ["certificate", ""]),
    ] {
        assert_contains(&open_error(&url(host, rest)).to_string(), &parts);
    }
}

#[test]
fn sslmode_require_fails_without_server_encryption() {
    let error = open_error(&format!("{}&sslmode=require", url_of("tidegate", &new_schema())));
    assert_contains(&error.to_string(), &["TLS"]);
    let schema = new_schema();
    let prefers =
        PostgresOptions::parse(&format!("{}&sslmode=prefer", url_of("tidegate", &schema))).expect("a URL");
    PostgresStore::open(prefers).expect("sslmode=prefer opens without encryption");
}
