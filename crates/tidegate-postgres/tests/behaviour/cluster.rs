//! Databases and schemas for the tests.

use tidegate_postgres::PostgresOptions;

use crate::sql::Sql;

pub(crate) use tidegate_testkit::postgres_cluster::{Cluster, new_schema, server_log_path, shared_url};

/// The options for this schema of the shared database.
pub(crate) fn options(schema: &str) -> PostgresOptions {
    options_at(shared_url(), schema)
}

/// The options for this schema of a database.
pub(crate) fn options_at(url: &str, schema: &str) -> PostgresOptions {
    PostgresOptions::parse(&format!("{url}?schema={schema}")).expect("the URL is valid")
}

/// Creates a database on the shared server for one test, and returns its URL.
pub(crate) fn new_database() -> String {
    let name = new_schema();
    Sql::new(shared_url()).rows(&format!("CREATE DATABASE {name}"));
    let (server, _) = shared_url().rsplit_once('/').expect("the URL names a database");
    format!("{server}/{name}")
}
