//! Opening a store: what is refused, in which words, and that no password is among them.

use std::net::TcpListener;
use std::time::Duration;

use tidegate::catalog::Catalog;
use tidegate_postgres::{OpenError, PostgresOptions, PostgresStore, VERSION};

use crate::cluster::{Cluster, new_schema, options, shared_url};
use crate::sql::Sql;

/// A password that nobody would write by chance.
const SECRET: &str = "hunter2-xyzzy";

/// The address of the shared database: `HOST:PORT`.
fn address(url: &str) -> &str {
    let (_, rest) = url.split_once('@').expect("a URL of ours names a user");
    rest.split_once('/').expect("and a database").0
}

/// A URL of the shared database for this user.
fn url_of(user: &str, schema: &str) -> String {
    format!("postgres://{user}@{}/postgres?schema={schema}", address(shared_url()))
}

/// Why this cannot be opened. Whatever is said of it, no password is.
#[track_caller]
fn refused(url: &str) -> OpenError {
    let error = match PostgresOptions::parse(url) {
        Ok(options) => {
            assert!(!format!("{options:?}{}", options.location()).contains(SECRET), "{options:?}");
            let opened = PostgresStore::open(options);
            opened.expect_err("this cannot be opened")
        }
        Err(bad) => OpenError::Url(bad),
    };
    assert!(!format!("{error} {error:?}").contains(SECRET), "a password was shown: {error:?}");
    error
}

/// What is said of a URL that makes no sense.
#[track_caller]
fn bad(url: &str) -> String {
    match refused(url) {
        OpenError::Url(bad) => bad.to_string(),
        other => panic!("{url} is not understood to be bad: {other:?}"),
    }
}

#[track_caller]
fn says(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "'{part}' is not in: {message}");
    }
}

/// A role without any rights, once for all tests that ask for it.
fn role(name: &str, more: &str) {
    let make = format!(
        "DO $$ BEGIN PERFORM pg_advisory_xact_lock(7); \
         IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{name}') THEN CREATE ROLE {name} LOGIN {more}; END IF; END $$"
    );
    Sql::new(shared_url()).rows(&make);
}

#[test]
fn urls_that_make_no_sense_are_told_what_would() {
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
        says(&bad(url), parts);
    }
}

/// What stands behind a `?` in a password would be taken for parameters, and their names and values are told.
#[test]
fn a_password_with_signs_of_its_own_is_not_shown() {
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
    says(&bad(&format!("postgres://me:a?{SECRET}@host/db")), &["%3F"]);
}

#[test]
fn a_wrong_password_is_not_shown() {
    role("walled", "PASSWORD 'the right one'");
    let schema = new_schema();
    let wrong = refused(&url_of(&format!("walled:{SECRET}"), &schema));
    says(&wrong.to_string(), &["password authentication failed", "28P01"]);
    assert!(matches!(wrong, OpenError::Unreachable { .. }), "{wrong:?}");
    let by_parameter = refused(&format!("{}&password={SECRET}", url_of("walled", &schema)));
    says(&by_parameter.to_string(), &["28P01"]);
    let none = refused(&url_of("walled", &schema));
    says(&none.to_string(), &["wants a password for this user, and there is none"]);
    // The right one opens it, so that it is the password that was wrong.
    Sql::new(shared_url()).rows(&format!("CREATE SCHEMA {schema} AUTHORIZATION walled"));
    let options = PostgresOptions::parse(&url_of("walled:the%20right%20one", &schema)).expect("a URL");
    let store = PostgresStore::open(options).expect("the right password");
    assert!(!format!("{store:?}").contains("the right one"));
}

#[test]
fn a_database_that_is_not_there_is_named() {
    let url = format!("postgres://tidegate:{SECRET}@{}/nowhere", address(shared_url()));
    let error = refused(&url);
    assert!(matches!(error, OpenError::Unreachable { .. }), "{error:?}");
    says(&error.to_string(), &["nowhere", "does not exist", "3D000"]);
}

#[test]
fn a_refused_connection_says_where() {
    // A port that was free a moment ago, and that nobody answers at.
    let port =
        TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port").port();
    let error = refused(&format!("postgres://me:{SECRET}@127.0.0.1:{port}/db"));
    assert!(matches!(error, OpenError::Unreachable { .. }), "{error:?}");
    says(&error.to_string(), &[&format!("127.0.0.1:{port}/db"), "cannot be reached"]);
}

/// Somebody takes the connection and says nothing, as a machine does that has stopped, or a proxy without a database.
#[test]
fn a_silent_database_is_given_up() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let place = silent.local_addr().expect("it has one");
    for mode in ["disable", "prefer"] {
        let (tell, told) = std::sync::mpsc::channel();
        let url = format!("postgres://me:{SECRET}@{place}/db?connect_timeout=1&sslmode={mode}");
        std::thread::spawn(move || {
            let _nobody_waits = tell.send(refused(&url));
        });
        let error = told.recv_timeout(Duration::from_secs(60)).expect("it is given up");
        assert!(matches!(error, OpenError::Unreachable { .. }), "{error:?}");
        says(&error.to_string(), &[&place.to_string(), "within 1 s"]);
    }
}

#[test]
fn a_newer_schema_is_not_touched() {
    let schema = new_schema();
    drop(PostgresStore::open(options(&schema)).expect("a new schema"));
    let newer = VERSION + 1;
    Sql::new(shared_url()).rows(&format!("INSERT INTO {schema}.migrations (version) VALUES ({newer})"));
    let error = refused(&url_of("tidegate", &schema));
    assert_eq!(error, OpenError::Newer { schema: schema.clone(), found: newer });
    says(
        &error.to_string(),
        &[&schema, &format!("version {newer}"), &format!("up to {VERSION}"), "nothing was"],
    );
    // Without it all is as before.
    Sql::new(shared_url()).rows(&format!("DELETE FROM {schema}.migrations WHERE version = {newer}"));
    PostgresStore::open(options(&schema)).expect("it opens again");
}

#[test]
fn who_may_not_create_is_told_what_to_ask_for() {
    role("poor", "");
    let schema = new_schema();
    let error = refused(&url_of("poor", &schema));
    let grant = format!("CREATE SCHEMA \"{schema}\" AUTHORIZATION \"poor\"");
    assert!(matches!(error, OpenError::Forbidden { .. }), "{error:?}");
    says(&error.to_string(), &["'poor'", &schema, "42501", &grant]);
    // What it says helps.
    Sql::new(shared_url()).rows(&grant);
    let store = PostgresStore::open(PostgresOptions::parse(&url_of("poor", &schema)).expect("a URL"));
    assert!(store.expect("a schema of one's own").list().is_empty());
}

#[test]
fn a_schema_of_somebody_else_is_refused() {
    role("poor", "");
    let schema = new_schema();
    drop(PostgresStore::open(options(&schema)).expect("a new schema"));
    let error = refused(&url_of("poor", &schema));
    assert!(matches!(error, OpenError::Forbidden { .. }), "{error:?}");
}

#[test]
fn stores_that_open_a_new_schema_at_once_all_open() {
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
    assert_eq!(versions, VERSION.to_string(), "each migration is made once");
}

#[test]
fn names_of_schemas_are_kept_as_written() {
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
fn encrypted(sql: &Sql, name: &str) -> String {
    let look = "SELECT DISTINCT s.ssl FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid) WHERE a.application_name";
    let rows = sql.rows(&format!("{look} = '{name}'"));
    rows.into_iter().flatten().collect()
}

#[test]
fn encryption_is_as_it_was_asked_for() {
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
        assert_eq!(encrypted(&sql, &format!("tls-{name}")), expected, "{rest}");
        drop(store);
    }
    // Somebody with another name, and somebody whom nobody has heard of. The system may know no certificates at all.
    for (host, rest, parts) in [
        ("127.0.0.1", &*verified, ["certificate", "cannot be reached"]),
        ("127.0.0.1", &*trusted, ["certificate", "cannot be reached"]),
        ("localhost", "unknown&sslmode=verify-full", ["certificate", ""]),
    ] {
        says(&refused(&url(host, rest)).to_string(), &parts);
    }
}

#[test]
fn encryption_that_is_not_there_is_not_done_without() {
    let error = refused(&format!("{}&sslmode=require", url_of("tidegate", &new_schema())));
    says(&error.to_string(), &["TLS"]);
    let schema = new_schema();
    let prefers =
        PostgresOptions::parse(&format!("{}&sslmode=prefer", url_of("tidegate", &schema))).expect("a URL");
    PostgresStore::open(prefers).expect("without, where there is none");
}
