//! A plain SQL client that reads the tables.

use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

/// A connection with its own runtime.
pub(crate) struct Sql {
    runtime: tokio::runtime::Runtime,
    client: Client,
}

impl Sql {
    #[track_caller]
    pub(crate) fn new(url: &str) -> Sql {
        Sql::connect(url).unwrap_or_else(|error| panic!("{url}: {error:?}"))
    }

    /// Opens a connection, if the database accepts one.
    pub(crate) fn try_new(url: &str) -> Option<Sql> {
        Sql::connect(url).ok()
    }

    fn connect(url: &str) -> Result<Sql, tokio_postgres::Error> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let client = runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
            tokio::spawn(connection);
            Ok(client)
        })?;
        Ok(Sql { runtime, client })
    }

    /// Runs statements and returns the rows as text.
    #[track_caller]
    pub(crate) fn rows(&self, text: &str) -> Vec<Vec<String>> {
        let messages = self.runtime.block_on(self.client.simple_query(text));
        let messages = messages.unwrap_or_else(|error| panic!("{text}: {error:?}"));
        let row = |message: SimpleQueryMessage| match message {
            SimpleQueryMessage::Row(row) => {
                Some((0..row.len()).map(|index| row.get(index).unwrap_or_default().to_owned()).collect())
            }
            _ => None,
        };
        messages.into_iter().filter_map(row).collect()
    }

    /// Returns the first value of the first row.
    #[track_caller]
    pub(crate) fn value(&self, text: &str) -> String {
        self.rows(text).into_iter().flatten().next().expect("a value")
    }
}

/// Drops a schema. Retries, because connections of a store that was just closed may still use it.
pub(crate) fn drop_schema(url: &str, schema: &str) {
    let sql = Sql::new(url);
    let text = format!("DROP SCHEMA IF EXISTS \"{schema}\" CASCADE");
    for _ in 0..5 {
        if sql.runtime.block_on(sql.client.batch_execute(&text)).is_ok() {
            return;
        }
    }
}
