//! A database to test against, as this crate names it.

use tidegate_postgres::Options;

pub(crate) use tidegate_testkit::cluster::{Cluster, log_beside, new_schema, shared};

/// The options for this schema of the shared database.
pub(crate) fn options(schema: &str) -> Options {
    options_at(shared(), schema)
}

/// The options for this schema of a database.
pub(crate) fn options_at(url: &str, schema: &str) -> Options {
    Options::parse(&format!("{url}?schema={schema}")).expect("a URL of ours")
}
