//! Databases that cannot be opened: what is said, with which exit code, and what is never said.

use tidegate_testkit::cluster::{Cluster, new_schema, shared};

use super::Sql;
use crate::{Files, feed, tidegate};

const SECRET: &str = "hunter2-correct-horse";

/// What a server says that does not start with this store. The password is never part of it.
#[track_caller]
fn refused(store: &str, code: i32) -> String {
    let nowhere = Files::new();
    let args = ["serve", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0", "--store", store];
    let why = feed(tidegate(&args).current_dir(nowhere.path("")), "").failed(code);
    assert!(!why.contains(SECRET), "{why}");
    why
}

#[test]
fn a_url_that_makes_no_sense_is_bad_input() {
    for (store, part) in [
        (format!("postgres://app:{SECRET}@db/limits?pool_size=0"), "from 1 to 64"),
        (format!("postgres://app:{SECRET}@db/limits?schema=pg_x"), "schema must be"),
        (format!("postgres://app:{SECRET}@db/limits?sslmode=maybe"), "sslmode must be"),
        (format!("postgres://app:{SECRET}@db/limits?pool=4"), "cannot be understood"),
        (format!("postgres://app:{SECRET}@db:port/limits"), "cannot be understood"),
        ("postgres:".to_owned(), "names no database"),
    ] {
        let why = refused(&store, 2);
        assert!(why.contains(part), "{store}: {why}");
    }
}

#[test]
fn a_database_that_is_not_there_cannot_be_reached() {
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("it").port();
    let why = refused(&format!("postgres://app:{SECRET}@127.0.0.1:{port}/limits?schema=mine"), 4);
    assert!(why.contains(&format!("postgres://127.0.0.1:{port}/limits?schema=mine")), "{why}");
}

#[test]
fn a_wrong_password_is_not_repeated() {
    let cluster = Cluster::start(&[]);
    Sql::new(cluster.url()).rows("CREATE ROLE walled LOGIN PASSWORD 'another'");
    let store = cluster.url().replace("tidegate@", &format!("walled:{SECRET}@"));
    let why = refused(&store, 4);
    assert!(why.contains("password authentication failed for user \"walled\" (28P01)"), "{why}");
    // With the right one it is let in, and may not make anything.
    let store = cluster.url().replace("tidegate@", "walled:another@");
    let why = refused(&store, 1);
    assert!(why.contains("CREATE SCHEMA \"tidegate\" AUTHORIZATION \"walled\""), "{why}");
    assert!(!why.contains("another@"), "{why}");
}

#[test]
fn tables_of_a_newer_program_are_left_alone() {
    let schema = new_schema();
    Sql::new(shared()).rows(&format!(
        "CREATE SCHEMA {schema}; CREATE TABLE {schema}.migrations (version integer PRIMARY KEY); \
         INSERT INTO {schema}.migrations VALUES (1000)"
    ));
    let why = refused(&format!("{}?schema={schema}", shared()), 1);
    assert!(why.contains("has version 1000") && why.contains("nothing was changed"), "{why}");
}
