//! ConnectionPool: a pool of them, and what it means when one fails.

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

/// ConnectionPool that are not for decisions: edits, sweeping.
const EXTRA_CONNECTIONS: usize = 2;

/// Why something was not done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DatabaseError {
    /// Somebody was in the way; nothing was changed, and the next try may succeed.
    Retry(String),
    /// The connection is gone, or there is none to be had.
    ConnectionLost(String),
    /// The connection went while the database was committing: what was asked for may have been done, and must not be tried again.
    CommitUnknown(String),
    /// The database answers, and will do it for nobody: tables are gone, or may not be written to.
    CannotDecide(String),
    /// The database will not do it.
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
            // Statements were prepared on tables that were made anew since.
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

/// What the database says, with what that is called.
pub(crate) fn describe_error(error: &tokio_postgres::Error) -> String {
    match (error.as_db_error(), error.source()) {
        (Some(db), _) => format!("PostgreSQL says: {} ({})", db.message(), db.code().code()),
        (None, Some(source)) if source.to_string() == "password missing" => {
            "PostgreSQL wants a password for this user, and there is none: put it into the URL; tidegate serve takes it from PGPASSWORD too".to_owned()
        }
        (None, Some(source)) => format!("PostgreSQL cannot be reached: {error}: {source}"),
        (None, None) => format!("PostgreSQL cannot be reached: {error}"),
    }
}

/// How long it is done with the connections there are before more are tried for.
const RETRY_CONNECTIONS_AFTER: Duration = Duration::from_secs(5);

/// The connections of a store. Whoever wants one takes a permit first.
///
/// ```text
///    permits ──▶ connection that is idle, or a new one
///      ▲                                  │ the database gives no more
///      └── a permit less, for five seconds ─┘ and there are others
/// ```
#[derive(Clone)]
pub(crate) struct ConnectionPool {
    pool: Pool,
    permits: Arc<Semaphore>,
    shortage: Arc<Mutex<ConnectionShortage>>,
    /// How long somebody waits for a permit.
    patience: Duration,
}

/// Seats that were taken away because the database gives no more connections.
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
            .map_err(|error| InvalidUrl(format!("no connections can be made: {error}")))?;
        let (permits, shortage) = (Arc::new(Semaphore::new(permits)), Arc::default());
        Ok(ConnectionPool { pool, permits, shortage, patience: connect })
    }

    pub(crate) async fn get(&self) -> Result<PooledConnection, DatabaseError> {
        loop {
            self.grow();
            let permit = tokio::time::timeout(self.patience, Arc::clone(&self.permits).acquire_owned()).await;
            let Ok(Ok(permit)) = permit else {
                return Err(DatabaseError::ConnectionLost(
                    "no connection to PostgreSQL could be had in time".to_owned(),
                ));
            };
            match self.pool.get().await {
                Ok(object) => return Ok(PooledConnection { object, _permit: permit }),
                Err(PoolError::Backend(error)) => {
                    let is_full = error.code() == Some(&SqlState::TOO_MANY_CONNECTIONS);
                    if !is_full || !self.shrink(permit, &error) {
                        return Err(DatabaseError::from(error).into_connection_lost());
                    }
                }
                Err(PoolError::Timeout(_)) => {
                    return Err(DatabaseError::ConnectionLost(
                        "no connection to PostgreSQL could be had in time".to_owned(),
                    ));
                }
                Err(other) => {
                    return Err(DatabaseError::ConnectionLost(format!(
                        "no connection to PostgreSQL could be had: {other}"
                    )));
                }
            }
        }
    }

    /// Takes a permit away, if there are connections that others have permits for.
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
            tracing::warn!(why = %describe_error(why), connections, "PostgreSQL gives no more connections; going on with those there are");
        }
        shortage.since = Some(instant());
        true
    }

    /// Gives back what was taken away, after a while.
    fn grow(&self) {
        let mut shortage = self.shortage.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = |since: Instant| instant().saturating_duration_since(since) >= RETRY_CONNECTIONS_AFTER;
        if shortage.permits > 0 && shortage.since.is_some_and(is_over) {
            self.permits.add_permits(std::mem::take(&mut shortage.permits));
        }
        // A shortage that has not come back is over.
        let is_forgotten =
            |since: Instant| instant().saturating_duration_since(since) >= RETRY_CONNECTIONS_AFTER * 2;
        if shortage.permits == 0 && shortage.since.is_some_and(is_forgotten) {
            shortage.since = None;
        }
    }

    /// Ends all of them.
    pub(crate) fn close(&self) {
        self.pool.close();
    }
}

impl DatabaseError {
    /// Whoever is not let in has no connection.
    fn into_connection_lost(&self) -> DatabaseError {
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

    /// It happened while a commit was on its way.
    pub(crate) fn while_committing(self) -> DatabaseError {
        match self {
            DatabaseError::ConnectionLost(why) => DatabaseError::CommitUnknown(why),
            other => other,
        }
    }
}

/// Takes a connection out of the pool that may be in the middle of something.
pub(crate) fn discard(connection: PooledConnection) {
    drop(Object::take(connection.object));
}
