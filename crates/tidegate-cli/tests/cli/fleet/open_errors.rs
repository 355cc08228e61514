//! Databases that cannot be opened: message and exit code. Passwords never appear.

use tidegate_testkit::postgres_cluster::{Cluster, new_schema, shared_url};

use super::SqlClient;
use crate::{Files, Run, feed, run, tidegate};

const SECRET: &str = "hunter2-correct-horse";

/// The message of a failed start with this store. It never has the password.
#[track_caller]
fn refused(store: &str, code: i32) -> String {
    let nowhere = Files::new();
    let args = ["serve", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0", "--store", store];
    let why = feed(tidegate(&args).current_dir(nowhere.path("")), "").failed(code);
    assert!(!why.contains(SECRET), "{why}");
    why
}

#[test]
fn invalid_url_is_bad_input() {
    for (store, part) in [
        (format!("postgres://app:{SECRET}@db/limits?pool_size=0"), "from 1 to 64"),
        (format!("postgres://app:{SECRET}@db/limits?schema=pg_x"), "invalid: schema must be"),
        (format!("postgres://app:{SECRET}@db/limits?sslmode=maybe"), "sslmode must be"),
        (
            format!("postgres://app:{SECRET}@db/limits?pool_sise=4"),
            "the parameter 'pool_sise', which is unknown or has an invalid value; did you mean 'pool_size'?",
        ),
        (format!("postgres://app:{SECRET}@db/limits?pool_size=4&pool_size=5"), "has pool_size twice"),
        (format!("postgres://app:%zz{SECRET}@db/limits"), "write %25 for a %"),
        (
            format!("postgres://app:{SECRET}@db:port/limits"),
            "a port that must be a whole number from 1 to 65535, found 'port'",
        ),
        ("postgres:".to_owned(), "names no database"),
    ] {
        let why = refused(&store, 2);
        assert!(why.contains(part), "{store}: {why}");
    }
}

#[test]
fn password_in_mistyped_url_is_not_shown() {
    for store in [
        format!("postgre://password_user:{SECRET}@db/limits"),
        format!("POSTGRES://password_user:{SECRET}@db/limits"),
        format!(" postgres://password_user:{SECRET}@db/limits"),
        format!("postgres:/password_user:{SECRET}@db/limits"),
        format!("postgres:password_user:{SECRET}@db/limits"),
        format!("password_user:{SECRET}@db/limits"),
        format!("host=db password={SECRET}"),
        format!("disk:postgres://password_user:{SECRET}@db/limits"),
    ] {
        assert!(refused(&store, 2).contains("--store"), "{store}");
        let joined = format!("--store={store}");
        for args in [["serve", &joined], ["serve", store.trim()], ["check", store.trim()], [&store, "x"]] {
            let why = run(&args, "").failed(2);
            let about_store = !store.starts_with("password_user:") || args[1] == joined;
            assert!(!about_store || !why.contains(SECRET), "{args:?}: {why}");
        }
    }
}

#[test]
fn password_in_settings_file_is_not_shown() {
    for line in [
        format!("store:\n  url: \"postgre://password_user:{SECRET}@h/db\"\n"),
        format!("store: {{url: postgres://u:{SECRET},{SECRET}@h:5432/db}}\n"),
        format!("store: {{url: postgres://u:a,{SECRET},b@h:5432/db}}\n"),
        format!("store:\n  url: host=h password={SECRET}\n"),
        format!("store:\n  password: {SECRET}\n"),
        format!("store: [postgres://u:{SECRET}@h:5432/db]\n"),
        format!("server:\n  http: postgres://u:{SECRET}@h:5432/db\n"),
        format!("postgres://u:{SECRET}@h:5432/db\n"),
    ] {
        let files = Files::new();
        let path = files.write("tidegate.yaml", &line);
        for args in [&["check", &path][..], &["check", "--json", &path], &["serve", "--config", &path]] {
            let Run { code, out, err } = run(args, "");
            assert_eq!(code, Some(2), "{line}");
            assert!(!out.contains(SECRET) && !err.contains(SECRET), "{line}{out}{err}");
        }
    }
}

#[test]
fn missing_database_is_unreachable() {
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("it").port();
    let why = refused(&format!("postgres://app:{SECRET}@127.0.0.1:{port}/limits?schema=mine"), 4);
    assert!(why.contains(&format!("postgres://127.0.0.1:{port}/limits?schema=mine")), "{why}");
}

#[test]
fn wrong_password_is_not_shown() {
    let cluster = Cluster::start(&[]);
    SqlClient::new(cluster.url()).rows("CREATE ROLE password_user LOGIN PASSWORD 'another'");
    let store = cluster.url().replace("tidegate@", &format!("password_user:{SECRET}@"));
    let why = refused(&store, 4);
    assert!(why.contains("password authentication failed for user \"password_user\" (28P01)"), "{why}");
    // Without a password the message says so.
    let bare = cluster.url().replace("tidegate@", "password_user@");
    let why = refused(&bare, 4);
    assert!(why.contains("wants a password for this user, and there is none"), "{why}");
    // The environment can have it, where process listings do not show it.
    let args = ["serve", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0", "--store", &bare];
    let why = feed(tidegate(&args).env("PGPASSWORD", "another"), "").failed(1);
    assert!(why.contains("AUTHORIZATION \"password_user\""), "{why}");
    // With the right password the user may connect but not create tables.
    let store = cluster.url().replace("tidegate@", "password_user:another@");
    let why = refused(&store, 1);
    assert!(why.contains("CREATE SCHEMA \"tidegate\" AUTHORIZATION \"password_user\""), "{why}");
    assert!(!why.contains("another@"), "{why}");
}

#[test]
fn tables_of_newer_version_are_unchanged() {
    let schema = new_schema();
    SqlClient::new(shared_url()).rows(&format!(
        "CREATE SCHEMA {schema}; CREATE TABLE {schema}.migrations (version integer PRIMARY KEY); \
         INSERT INTO {schema}.migrations VALUES (1000)"
    ));
    let why = refused(&format!("{}?schema={schema}", shared_url()), 1);
    assert!(why.contains("has version 1000") && why.contains("nothing was changed"), "{why}");
}
