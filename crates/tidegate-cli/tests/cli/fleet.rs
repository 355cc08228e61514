//! Several server processes on one PostgreSQL, checked over HTTP, RESP and plain SQL.
//!
//! Tests wait by the database's clock, which decides expiry.

mod documented_sql;
mod http_connection;
mod open_errors;
mod outages;
mod protocols;
mod races;
mod server_crash;
mod settings_files;
mod sql;
mod tasks;

use std::time::Instant;

use tempfile::TempDir;
use tidegate_testkit::postgres_cluster::{new_schema, shared_url};

use crate::remote::TestServer;
use http_connection::HttpConnection;
use sql::SqlClient;

/// Servers that share a new schema.
struct Fleet {
    servers: Vec<TestServer>,
    sql: SqlClient,
    /// Directory of the settings file.
    _place: TempDir,
}

impl Fleet {
    /// Starts servers on the database that all tests share.
    fn of(count: usize, settings: &str) -> Fleet {
        Fleet::at(shared_url(), count, settings)
    }

    /// Starts servers on another database.
    fn at(url: &str, count: usize, settings: &str) -> Fleet {
        let directory = TempDir::new().expect("a temporary directory");
        let config = directory.path().join("tidegate.yaml");
        std::fs::write(&config, settings).expect("a file");
        let schema = new_schema();
        let store = store_url(url, &schema);
        let args = ["--config", &config.display().to_string(), "--store", &store];
        let servers: Vec<TestServer> = (0..count).map(|_| TestServer::with_args(&args)).collect();
        for server in &servers {
            assert!(
                server.startup_output().trim_end().ends_with(" store=postgres"),
                "{}",
                server.startup_output()
            );
        }
        let sql = SqlClient::new(url);
        sql.rows(&format!("SET search_path = {schema}"));
        Fleet { servers, sql, _place: directory }
    }

    /// Connects to a server.
    fn connect(&self, server: usize) -> HttpConnection {
        HttpConnection::to(&self.servers[server])
    }

    /// Connects to every server.
    fn connect_all<const N: usize>(&self) -> [HttpConnection; N] {
        assert_eq!(self.servers.len(), N);
        std::array::from_fn(|server| self.connect(server))
    }

    /// The running tasks in the tables: user and id.
    fn tasks(&self) -> Vec<[String; 2]> {
        let rows = self.sql.rows("SELECT user_sub, id FROM session_activity ORDER BY 1, 2");
        rows.into_iter().map(|row| row.try_into().expect("two columns")).collect()
    }
}

/// The `--store` argument for a schema of a database. The database is local: a connection that takes a second fails.
fn store_url(url: &str, schema: &str) -> String {
    format!("{url}?schema={schema}&connect_timeout=1")
}

/// The `--store` argument for a new schema in the database that all tests share.
pub(crate) fn postgres_store() -> String {
    store_url(shared_url(), &new_schema())
}

/// The most tasks that certainly overlapped.
fn peak(tasks: &[(Instant, Instant)]) -> usize {
    let begins = tasks.iter().map(|(begin, _)| (*begin, 1));
    let ends = tasks.iter().map(|(_, end)| (*end, -1));
    let mut changes: Vec<(Instant, isize)> = begins.chain(ends).collect();
    // At equal instants ends come first, so that only certain overlaps count.
    changes.sort_unstable();
    let mut running = 0_isize;
    let running = changes.into_iter().map(|(_, change)| {
        running += change;
        running
    });
    usize::try_from(running.max().unwrap_or(0)).expect("every end has a start")
}
