//! Connections: a pool of them, and what it means when one fails.

use std::error::Error as _;
use std::fmt;

use deadpool_postgres::{
    Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime, Timeouts,
};
use tidegate::store::Unavailable;
use tokio_postgres::error::SqlState;

use crate::tls;
use crate::url::{BadUrl, Options};

/// Connections that are not for decisions: edits, sweeping.
const SPARE: usize = 2;

/// Why something was not done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Somebody was in the way; nothing was changed, and the next try may succeed.
    Again(String),
    /// The connection is gone, or there is none to be had.
    Lost(String),
    /// The connection went while the database was committing: what was asked for may have been done, and must not be tried again.
    Doubtful(String),
    /// The database will not do it.
    Refused(String),
}

impl Fault {
    pub(crate) fn unavailable(&self) -> Unavailable {
        Unavailable { reason: self.to_string() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Fault::Again(why) | Fault::Lost(why) | Fault::Doubtful(why) | Fault::Refused(why)) = self;
        f.write_str(why)
    }
}

impl From<tokio_postgres::Error> for Fault {
    fn from(error: tokio_postgres::Error) -> Fault {
        let why = words(&error);
        let Some(code) = error.code() else {
            return Fault::Lost(why);
        };
        match *code {
            SqlState::T_R_SERIALIZATION_FAILURE | SqlState::T_R_DEADLOCK_DETECTED => Fault::Again(why),
            SqlState::ADMIN_SHUTDOWN
            | SqlState::CRASH_SHUTDOWN
            | SqlState::CANNOT_CONNECT_NOW
            | SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT
            | SqlState::READ_ONLY_SQL_TRANSACTION
            | SqlState::TOO_MANY_CONNECTIONS
            // Statements were prepared on tables that were made anew since.
            | SqlState::FEATURE_NOT_SUPPORTED
            | SqlState::UNDEFINED_PSTATEMENT => Fault::Lost(why),
            _ => Fault::Refused(why),
        }
    }
}

/// What the database says, with what that is called.
pub(crate) fn words(error: &tokio_postgres::Error) -> String {
    match (error.as_db_error(), error.source()) {
        (Some(db), _) => format!("PostgreSQL says: {} ({})", db.message(), db.code().code()),
        (None, Some(source)) => format!("PostgreSQL cannot be reached: {error}: {source}"),
        (None, None) => format!("PostgreSQL cannot be reached: {error}"),
    }
}

/// The connections of a store.
#[derive(Clone)]
pub(crate) struct Connections {
    pool: Pool,
}

impl Connections {
    pub(crate) fn new(options: &Options) -> Result<Connections, BadUrl> {
        let connector = tls::connector(&options.tls)?;
        let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = Manager::from_config(options.config.clone(), connector, recycling);
        let connect = options.connecting();
        let timeouts = Timeouts { wait: Some(connect), create: Some(connect), recycle: Some(connect) };
        let pool = Pool::builder(manager)
            .max_size(options.pool_size + SPARE)
            .timeouts(timeouts)
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|error| BadUrl(format!("no connections can be made: {error}")))?;
        Ok(Connections { pool })
    }

    pub(crate) async fn get(&self) -> Result<Object, Fault> {
        self.pool.get().await.map_err(|error| match error {
            PoolError::Backend(error) => Fault::from(error).lost(),
            PoolError::Timeout(_) => {
                Fault::Lost("no connection to PostgreSQL could be had in time".to_owned())
            }
            other => Fault::Lost(format!("no connection to PostgreSQL could be had: {other}")),
        })
    }

    /// Ends all of them.
    pub(crate) fn close(&self) {
        self.pool.close();
    }
}

impl Fault {
    /// Whoever is not let in has no connection.
    fn lost(self) -> Fault {
        match self {
            Fault::Again(why) | Fault::Lost(why) | Fault::Doubtful(why) | Fault::Refused(why) => {
                Fault::Lost(why)
            }
        }
    }

    /// It happened while a commit was on its way.
    pub(crate) fn while_committing(self) -> Fault {
        match self {
            Fault::Lost(why) => Fault::Doubtful(why),
            other => other,
        }
    }
}

/// Takes a connection out of the pool that may be in the middle of something.
pub(crate) fn discard(connection: Object) {
    drop(Object::take(connection));
}
