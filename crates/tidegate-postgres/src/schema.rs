//! The tables: created when a store is first opened, migrated when a newer program opens it.
//!
//! Migrations are numbered, compiled in, and only go forward. A program that finds a version newer than its own changes nothing,
//! because it cannot interpret the newer data.

use std::fmt;

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, NoTls};

use crate::connections::describe_error;
use crate::tls;
use crate::url::{InvalidUrl, PostgresOptions, TlsMode};

/// The migrations, in order.
const MIGRATIONS: &[(i32, &str)] = &[(1, include_str!("schema/001.sql"))];

/// The newest schema version that this program knows.
pub const VERSION: i32 = 1;

/// Why a store could not be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PostgresOpenError {
    /// The URL is invalid.
    Url(InvalidUrl),
    /// The database cannot be reached, or refuses the connection.
    Unreachable {
        /// The database, without user and password.
        location: String,
        /// The reason.
        why: String,
    },
    /// A newer program created the schema.
    Newer {
        /// The schema.
        schema: String,
        /// The version found.
        found: i32,
    },
    /// The user has no right to create the schema or its tables.
    Forbidden {
        /// The schema.
        schema: String,
        /// The user.
        user: String,
        /// The reason given by the database.
        why: String,
    },
    /// Any other error.
    Failed(String),
}

impl fmt::Display for PostgresOpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PostgresOpenError::Url(bad) => write!(f, "the store's URL is invalid: {bad}"),
            PostgresOpenError::Unreachable { location, why } => {
                write!(f, "{location} cannot be opened: {why}")
            }
            PostgresOpenError::Newer { schema, found } => write!(
                f,
                "the schema '{schema}' has version {found}, and this program knows versions up to {VERSION}; nothing was \
                 changed. Run the newer program, or name another schema (?schema=NAME)"
            ),
            PostgresOpenError::Forbidden { schema, user, why } => write!(
                f,
                "the user '{user}' has no right to create the schema '{schema}' or its tables: {why}. Run once as an owner of \
                 the database: CREATE SCHEMA \"{schema}\" AUTHORIZATION \"{user}\""
            ),
            PostgresOpenError::Failed(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for PostgresOpenError {}

/// Creates or migrates the tables.
pub(crate) async fn prepare(options: &PostgresOptions) -> Result<(), PostgresOpenError> {
    // A server may accept the connection and never answer.
    let silent = |_| {
        let why = format!("PostgreSQL did not answer within {} s", options.total_connect_timeout().as_secs());
        Err(PostgresOpenError::Unreachable { location: options.location(), why })
    };
    let connected = tokio::time::timeout(options.total_connect_timeout(), connect(options)).await;
    migrate(&connected.unwrap_or_else(silent)?, options).await
}

async fn connect(options: &PostgresOptions) -> Result<Client, PostgresOpenError> {
    let unreachable = |error: tokio_postgres::Error| PostgresOpenError::Unreachable {
        location: options.location(),
        why: describe_error(&error),
    };
    if options.tls == TlsMode::Off {
        let (client, connection) = options.config.connect(NoTls).await.map_err(unreachable)?;
        tokio::spawn(connection);
        return Ok(client);
    }
    let connector = tls::connector(&options.tls).map_err(PostgresOpenError::Url)?;
    let (client, connection) = options.config.connect(connector).await.map_err(unreachable)?;
    tokio::spawn(connection);
    Ok(client)
}

async fn migrate(client: &Client, options: &PostgresOptions) -> Result<(), PostgresOpenError> {
    let schema = &options.schema;
    let failed = |error: tokio_postgres::Error| migration_error(&error, options);
    // One migration at a time. The lock ends with the connection.
    client
        .execute("SELECT pg_advisory_lock($1)", &[&lock_key(schema, AdvisoryLock::Migration)])
        .await
        .map_err(failed)?;
    let find_schema = "SELECT 1 FROM pg_namespace WHERE nspname = $1";
    if client.query_opt(find_schema, &[schema]).await.map_err(failed)?.is_none() {
        let create = format!("CREATE SCHEMA IF NOT EXISTS \"{schema}\"");
        client.batch_execute(&create).await.map_err(failed)?;
    }
    let table = format!("\"{schema}\".migrations");
    let known = client.query_one("SELECT to_regclass($1) IS NOT NULL", &[&table]).await.map_err(failed)?;
    let found: i32 = if known.get(0) {
        let latest = format!("SELECT coalesce(max(version), 0) FROM {table}");
        client.query_one(&latest, &[]).await.map_err(failed)?.get(0)
    } else {
        0
    };
    if found > VERSION {
        return Err(PostgresOpenError::Newer { schema: schema.clone(), found });
    }
    for (version, migration) in MIGRATIONS.iter().filter(|(version, _)| *version > found) {
        let text = format!(
            "BEGIN; SET LOCAL search_path = \"{schema}\"; SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0; \
             CREATE TABLE IF NOT EXISTS migrations (version integer PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now()); \
             {migration} INSERT INTO migrations (version) VALUES ({version}); COMMIT"
        );
        if let Err(error) = client.batch_execute(&text).await {
            let _connection_closes_anyway = client.batch_execute("ROLLBACK").await;
            return Err(migration_error(&error, options));
        }
        tracing::info!(schema, version, "applied a schema migration");
    }
    client
        .execute("SELECT pg_advisory_unlock($1)", &[&lock_key(schema, AdvisoryLock::Migration)])
        .await
        .map_err(failed)?;
    Ok(())
}

fn migration_error(error: &tokio_postgres::Error, options: &PostgresOptions) -> PostgresOpenError {
    match error.code() {
        Some(&SqlState::INSUFFICIENT_PRIVILEGE) => PostgresOpenError::Forbidden {
            schema: options.schema.clone(),
            user: options.user().to_owned(),
            why: describe_error(error),
        },
        _ => PostgresOpenError::Failed(format!(
            "the tables of the schema '{}' could not be created or migrated: {}",
            options.schema,
            describe_error(error)
        )),
    }
}

/// Advisory locks, taken in addition to row locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AdvisoryLock {
    /// Held during a migration.
    Migration,
    /// Held shared by deciding transactions, and exclusively by edits.
    Limits,
    /// Held by the server that runs expiry.
    Expiry,
}

/// The number of an advisory lock. Numbers are shared by the whole database, so they are derived from the schema name.
pub(crate) fn lock_key(schema: &str, lock: AdvisoryLock) -> i64 {
    // FNV-1a, because every version of the program needs the same numbers.
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for byte in b"tidegate/".iter().chain(schema.as_bytes()) {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    i64::from_le_bytes((hash & !3 | lock as u64).to_le_bytes())
}
