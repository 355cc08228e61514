//! The connection pool, and the meaning of database errors.

use std::error::Error as _;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use deadpool_postgres::{
    Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime, Timeouts,
};
use tidegate::store::Unavailable;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_postgres::error::SqlState;

use crate::engine::instant;
use crate::tls;
use crate::url::{InvalidUrl, PostgresOptions};

/// Connections in addition to the pool size, for edits and expiry.
const EXTRA_CONNECTIONS: usize = 2;

/// A failed database operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DatabaseError {
    /// A conflict. Nothing was changed, and a retry may succeed.
    Retry(String),
    /// The connection is lost, or none is available.
    ConnectionLost(String),
    /// The connection was lost during a commit. The commit may have succeeded, so it must not be retried.
    CommitUnknown(String),
    /// The database answers but cannot decide: its tables are missing or not writable.
    CannotDecide(String),
    /// The database rejected the statement.
    Rejected(String),
}

impl DatabaseError {
    pub(crate) fn unavailable(&self) -> Unavailable {
        Unavailable { reason: self.to_string() }
    }
}

impl fmt::Display for DatabaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason())
    }
}

impl From<tokio_postgres::Error> for DatabaseError {
    fn from(error: tokio_postgres::Error) -> DatabaseError {
        let why = describe_error(&error);
        let Some(code) = error.code() else {
            return DatabaseError::ConnectionLost(why);
        };
        match *code {
            SqlState::T_R_SERIALIZATION_FAILURE | SqlState::T_R_DEADLOCK_DETECTED => DatabaseError::Retry(why),
            SqlState::ADMIN_SHUTDOWN
            | SqlState::CRASH_SHUTDOWN
            | SqlState::CANNOT_CONNECT_NOW
            | SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT
            | SqlState::TOO_MANY_CONNECTIONS
            // Statements were prepared on tables that have been created again since.
            | SqlState::FEATURE_NOT_SUPPORTED
            | SqlState::UNDEFINED_PSTATEMENT => DatabaseError::ConnectionLost(why),
            SqlState::READ_ONLY_SQL_TRANSACTION
            | SqlState::INSUFFICIENT_PRIVILEGE
            | SqlState::INVALID_SCHEMA_NAME
            | SqlState::UNDEFINED_TABLE
            | SqlState::DISK_FULL => DatabaseError::CannotDecide(why),
            _ => DatabaseError::Rejected(why),
        }
    }
}

/// Describes a database error with its code.
pub(crate) fn describe_error(error: &tokio_postgres::Error) -> String {
    match (error.as_db_error(), error.source()) {
        (Some(db), _) => format!("PostgreSQL reports: {} ({})", db.message(), db.code().code()),
        (None, Some(source)) if source.to_string() == "password missing" => {
            "PostgreSQL wants a password for this user, and there is none: put it into the URL; tidegate serve takes it from PGPASSWORD too".to_owned()
        }
        (None, Some(source)) => format!("PostgreSQL cannot be reached: {error}: {source}"),
        (None, None) => format!("PostgreSQL cannot be reached: {error}"),
    }
}

/// The time without new connections after the database refused one.
const RETRY_CONNECTIONS_AFTER: Duration = Duration::from_secs(5);

/// The connections of a store, bounded by permits.
///
/// ```text
///    permits ──▶ idle connection, or a new one
///      ▲                                │ the database refuses more connections,
///      └─ one permit less, for 5 s ─────┘ and others exist
/// ```
#[derive(Clone)]
pub(crate) struct ConnectionPool {
    pool: Pool,
    permits: Arc<Semaphore>,
    shortage: Arc<Mutex<ConnectionShortage>>,
    /// The longest wait for a permit.
    permit_timeout: Duration,
}

/// Permits that were removed because the database refuses more connections.
#[derive(Default)]
struct ConnectionShortage {
    permits: usize,
    since: Option<Instant>,
}

/// A connection and its permit.
pub(crate) struct PooledConnection {
    object: Object,
    _permit: OwnedSemaphorePermit,
}

impl Deref for PooledConnection {
    type Target = Object;

    fn deref(&self) -> &Object {
        &self.object
    }
}

impl ConnectionPool {
    pub(crate) fn new(options: &PostgresOptions) -> Result<ConnectionPool, InvalidUrl> {
        let connector = tls::connector(&options.tls)?;
        let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = Manager::from_config(options.config.clone(), connector, recycling);
        let connect = options.total_connect_timeout();
        let timeouts = Timeouts { wait: Some(connect), create: Some(connect), recycle: Some(connect) };
        let permits = options.pool_size + EXTRA_CONNECTIONS;
        let pool = Pool::builder(manager)
            .max_size(permits)
            .timeouts(timeouts)
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|error| InvalidUrl(format!("the connection pool cannot be created: {error}")))?;
        let (permits, shortage) = (Arc::new(Semaphore::new(permits)), Arc::default());
        Ok(ConnectionPool { pool, permits, shortage, permit_timeout: connect })
    }

    pub(crate) async fn get(&self) -> Result<PooledConnection, DatabaseError> {
        loop {
            self.grow();
            let permit =
                tokio::time::timeout(self.permit_timeout, Arc::clone(&self.permits).acquire_owned()).await;
            let Ok(Ok(permit)) = permit else {
                return Err(DatabaseError::ConnectionLost(
                    "no connection to PostgreSQL was available in time".to_owned(),
                ));
            };
            match self.pool.get().await {
                Ok(object) => return Ok(PooledConnection { object, _permit: permit }),
                Err(PoolError::Backend(error)) => {
                    let is_full = error.code() == Some(&SqlState::TOO_MANY_CONNECTIONS);
                    if !is_full || !self.shrink(permit, &error) {
                        return Err(DatabaseError::from(error).to_connection_lost());
                    }
                }
                Err(PoolError::Timeout(_)) => {
                    return Err(DatabaseError::ConnectionLost(
                        "no connection to PostgreSQL was available in time".to_owned(),
                    ));
                }
                Err(other) => {
                    return Err(DatabaseError::ConnectionLost(format!(
                        "no connection to PostgreSQL is available: {other}"
                    )));
                }
            }
        }
    }

    /// Removes a permit, if other connections exist.
    fn shrink(&self, permit: OwnedSemaphorePermit, why: &tokio_postgres::Error) -> bool {
        let mut shortage = self.shortage.lock().unwrap_or_else(PoisonError::into_inner);
        let all = self.pool.status().max_size;
        if self.pool.status().size == 0 || shortage.permits + 1 >= all {
            return false;
        }
        permit.forget();
        shortage.permits += 1;
        if shortage.since.is_none() {
            let connections = all - shortage.permits;
            tracing::warn!(why = %describe_error(why), connections, "PostgreSQL accepts no more connections; the store continues with fewer");
        }
        shortage.since = Some(instant());
        true
    }

    /// Restores the removed permits after a while.
    fn grow(&self) {
        let mut shortage = self.shortage.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = |since: Instant| instant().saturating_duration_since(since) >= RETRY_CONNECTIONS_AFTER;
        if shortage.permits > 0 && shortage.since.is_some_and(is_over) {
            self.permits.add_permits(std::mem::take(&mut shortage.permits));
        }
        // A shortage that did not recur has ended.
        let is_forgotten =
            |since: Instant| instant().saturating_duration_since(since) >= RETRY_CONNECTIONS_AFTER * 2;
        if shortage.permits == 0 && shortage.since.is_some_and(is_forgotten) {
            shortage.since = None;
        }
    }

    /// Closes all connections.
    pub(crate) fn close(&self) {
        self.pool.close();
    }
}

impl DatabaseError {
    /// A refused connection counts as a lost one.
    fn to_connection_lost(&self) -> DatabaseError {
        DatabaseError::ConnectionLost(self.reason().to_owned())
    }

    fn reason(&self) -> &str {
        let (DatabaseError::Retry(why)
        | DatabaseError::ConnectionLost(why)
        | DatabaseError::CommitUnknown(why)
        | DatabaseError::CannotDecide(why)
        | DatabaseError::Rejected(why)) = self;
        why
    }

    /// The error occurred during a commit.
    pub(crate) fn while_committing(self) -> DatabaseError {
        match self {
            DatabaseError::ConnectionLost(why) => DatabaseError::CommitUnknown(why),
            other => other,
        }
    }
}

/// Removes a connection from the pool, because it may be inside a transaction.
pub(crate) fn discard(connection: PooledConnection) {
    drop(Object::take(connection.object));
}
