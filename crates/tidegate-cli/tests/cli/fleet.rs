//! Several servers on one PostgreSQL: real processes, real sockets, and somebody who looks at the tables with plain SQL.
//!
//! What is waited for is waited for by the database's clock, because that is the one that decides.

mod doors;
mod files;
mod losses;
mod manual;
mod opening;
mod outages;
mod races;
mod sql;
mod tasks;
mod wire;

use std::time::Instant;

use tempfile::TempDir;
use tidegate_testkit::postgres_cluster::{new_schema, shared_url};

use crate::remote::Serving;
use sql::Sql;
use wire::Wire;

/// Servers that share a schema of their own.
struct Fleet {
    servers: Vec<Serving>,
    sql: Sql,
    /// Where their settings are.
    _place: TempDir,
}

impl Fleet {
    /// So many, with these settings, in the database that all tests share.
    fn of(count: usize, settings: &str) -> Fleet {
        Fleet::at(shared_url(), count, settings)
    }

    /// The same in another database.
    fn at(url: &str, count: usize, settings: &str) -> Fleet {
        let place = TempDir::new().expect("a temporary directory");
        let config = place.path().join("tidegate.yaml");
        std::fs::write(&config, settings).expect("a file");
        let schema = new_schema();
        let store = store_url(url, &schema);
        let args = ["--config", &config.display().to_string(), "--store", &store];
        let servers: Vec<Serving> = (0..count).map(|_| Serving::with(&args)).collect();
        for server in &servers {
            assert!(server.said().trim_end().ends_with(" store=postgres"), "{}", server.said());
        }
        let sql = Sql::new(url);
        sql.rows(&format!("SET search_path = {schema}"));
        Fleet { servers, sql, _place: place }
    }

    /// A connection to one of them.
    fn wire(&self, server: usize) -> Wire {
        Wire::to(&self.servers[server])
    }

    /// One to each.
    fn wires<const N: usize>(&self) -> [Wire; N] {
        assert_eq!(self.servers.len(), N);
        std::array::from_fn(|server| self.wire(server))
    }

    /// Who runs a task, and its name, as the tables say.
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

/// The most tasks that surely ran at one instant.
fn peak(tasks: &[(Instant, Instant)]) -> usize {
    let begins = tasks.iter().map(|(begin, _)| (*begin, 1));
    let ends = tasks.iter().map(|(_, end)| (*end, -1));
    let mut changes: Vec<(Instant, isize)> = begins.chain(ends).collect();
    // Of one instant the ends first: nobody is counted who may be gone.
    changes.sort_unstable();
    let mut running = 0_isize;
    let running = changes.into_iter().map(|(_, change)| {
        running += change;
        running
    });
    usize::try_from(running.max().unwrap_or(0)).expect("nobody ends what has not begun")
}
