//! Plain SQL: reads the tables, and waits by the database's clock.

use tokio::runtime::{Builder, Runtime};
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

/// A connection with its runtime.
pub(super) struct SqlClient {
    runtime: Runtime,
    client: Client,
}

impl SqlClient {
    pub(super) fn new(url: &str) -> SqlClient {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let client = runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("a database");
            tokio::spawn(connection);
            client
        });
        SqlClient { runtime, client }
    }

    /// Runs statements and returns the rows as text.
    #[track_caller]
    pub(super) fn rows(&self, text: &str) -> Vec<Vec<String>> {
        let output = self.runtime.block_on(self.client.simple_query(text));
        let output = output.unwrap_or_else(|error| panic!("{text}: {error:?}"));
        let row = |message| match message {
            SimpleQueryMessage::Row(row) => {
                Some((0..row.len()).map(|index| row.get(index).unwrap_or_default().to_owned()).collect())
            }
            _ => None,
        };
        output.into_iter().filter_map(row).collect()
    }

    /// Returns the only value of the only row.
    #[track_caller]
    pub(super) fn value(&self, text: &str) -> String {
        self.rows(text).into_iter().flatten().next().expect("a value")
    }

    /// The database's clock, in milliseconds since 1970.
    pub(super) fn now_ms(&self) -> i64 {
        self.ms("clock_timestamp()")
    }

    /// Converts an instant of a reply to milliseconds since 1970, rounded down.
    pub(super) fn ms_of(&self, instant: &str) -> i64 {
        self.ms(&format!("timestamptz '{instant}'"))
    }

    fn ms(&self, instant: &str) -> i64 {
        let value = self.value(&format!("SELECT floor(extract(epoch FROM {instant}) * 1000)::bigint"));
        value.parse().expect("a number")
    }

    /// Waits until the database's clock reaches this time.
    pub(super) fn wait_until(&self, ms: i64) {
        let instant = format!("timestamptz 'epoch' + {ms} * interval '1 millisecond'");
        self.rows(&format!("SELECT pg_sleep_until({instant})"));
    }

    /// Waits for this many milliseconds.
    pub(super) fn wait(&self, ms: i64) {
        self.wait_until(self.now_ms() + ms);
    }
}
